"""Which prepared sets can be opened? A split by its name; a set that is missing is made, or its command is said."""
import os
import shlex

from anyorder.machine.files import check_names
from anyorder.puzzles.rules import SHARES, TASKS
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.sets import bin_path, read_meta, read_split
from anyorder.tokens.tokenizers import OWN


def open_split(data_dir, name, split):
    """(its Split, dict of meta.json) of a prepared split. A missing set that needs no source and no time is made.
    Raises ValueError with the command to run where another set is missing, or a file is not what meta.json says."""
    check_names(dataset=name)
    directory = os.path.join(data_dir, name)
    meta = read_meta(directory)
    if split not in meta.get('splits', {}) or not os.path.isfile(bin_path(directory, split)):
        meta = make_split(data_dir, name, split, meta)
    return read_split(directory, meta, split), meta


def make_split(data_dir, name, split, meta):
    """The meta of a set that is made now, if it is a quick one. Raises ValueError with its command for any other."""
    missing = f'no {bin_path(os.path.join(data_dir, name), split)}'
    if name in TASKS and TASKS[name].quick and split in SHARES and not meta:
        return prepare_puzzles(name, data_dir)
    if split in SHARES and (name in TASKS or 'puzzle' in meta):
        task = meta.get('puzzle', {}).get('task', name)
        command = f'data/puzzles.py {task} --name={name} --split={split}' if meta else f'data/puzzles.py {name}'
    elif meta.get('tokenizer') == OWN:
        same = f" --shape={'x'.join(map(str, meta['shape']))}" if meta.get('shape') else ''
        same += '' if meta['eos'] is None else f" --end={meta['eos']}"
        command = f'data/prepare.py tokens --name={name} --source=FILE --split={split}{same}'
    else:
        row = DATA_SETS.get(name)
        if row is not None and row.offline:
            if split in ('train', 'val'):
                return prepare(name, data_dir)
            raise ValueError(f'{missing}: {name} has the splits train and val')
        command = f'data/prepare.py {words_for_text(name, row, split, meta)}'
    raise ValueError(f'{missing}; make it with: python {command} --data_dir={shlex.quote(str(data_dir))}')


def words_for_text(name, row, split, meta):
    """What follows data/prepare.py to make a split of the set `name`; `row` is its row of DATA_SETS or None."""
    there, words = meta.get('splits', {}), name if row else f'text --name={name}'
    if row is not None and row.splits:
        return f'{words} [--source=FILE] --split={split}'
    lost = split in ('train', 'val') and {'train', 'val'} <= there.keys()   # its file is not there
    if lost and there['train']['source'] == there['val']['source']:
        return f"{words} --source=FILE --tokenizer={meta['tokenizer']} --force"
    if there or split not in ('train', 'val'):
        return f'{words} --source=FILE --split={split}'
    return f'{words} --source=FILE' if name == 'text' or row is None else words   # the others are downloaded
