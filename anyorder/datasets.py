"""Which prepared sets can be opened? A split by its name; a set that is missing is made, or its command is said."""

import os
import shlex

from anyorder.machine.files import check_names
from anyorder.puzzles.rules import SHARES, TASKS
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.sets import bin_path, read_split
from anyorder.tokens.tokenizers import OWN
from configurator import home


def open_split(data_dir, name, split, kind=None):
    """(its Split, Meta) of a prepared split. A missing set that needs no source and no time is made.
    Raises ValueError with the command to run where another set is missing, one of this `kind` if there is no meta.json,
    or a file is not what meta.json says."""
    check_names(dataset=name)
    data_dir = home(data_dir)
    directory = os.path.join(data_dir, name)
    meta = read_meta(directory)
    if not meta or split not in meta.splits or not os.path.isfile(bin_path(directory, split)):
        kind = {} if name in TASKS else kind or {}
        meta = make_split(data_dir, name, split, meta, kind_of(meta) if meta else kind)
    found = read_unless_replaced(directory, meta, split)
    return (found, meta) if found else open_split(data_dir, name, split, kind)


def read_unless_replaced(directory, meta, split):
    """The Split; None where another command has put another file in its place since this Meta was read."""
    error = None
    try:
        found = read_split(directory, meta, split)
    except (ValueError, FileNotFoundError) as e:
        error = e
    now = read_meta(directory)
    if not now or now.splits.get(split) != meta.splits[split]:
        return None
    if error:
        raise error
    return found


def changed_since(checkpoint, data_dir, name):
    """A line on the set of this name, if it is the set that a checkpoint was trained on and has other contents now; ''
    where it has not, or where the checkpoint does not say. No set is read: meta.json and checkpoint have hashes."""
    meta = (
        read_meta(os.path.join(home(data_dir), name))
        if name == checkpoint.run.get('dataset')
        else None
    )
    hashes = {'train': checkpoint.entries.get('data'), 'val': checkpoint.entries.get('val_data')}
    other = [
        split
        for split, sha256 in hashes.items()
        if meta and sha256 and split in meta.splits and meta.splits[split].sha256 != sha256
    ]
    if not other:
        return ''
    return (
        f'{name} was prepared anew since the training, its {" and ".join(other)} changed: the model may have been '
        'trained on what is measured'
    )


def make_split(data_dir, name, split, meta, kind):
    """The meta of a set that is made now, if it is a quick one. Raises ValueError with its command for any other."""
    row, parts = DATA_SETS.get(name), ('train', 'val')
    task = kind.get('puzzle', {}).get('task', name if name in TASKS else kind.get('tokenizer'))
    if name in TASKS and TASKS[name].quick and split in SHARES and not meta:
        return prepare_puzzles(name, data_dir)
    if row and row.offline and split in parts:
        return prepare(name, data_dir)
    if task in (*TASKS, 'TASK') and not row:  # which nobody knows
        words, parts = f'puzzles.py {task} --name={name}', SHARES
        words += ''.join(
            f' --{key}={value}' for key, value in kind.get('puzzle', {}).items() if key != 'task'
        )
    elif kind.get('tokenizer') == OWN and not row:
        words = f'prepare.py tokens --name={name} --source=FILE'
        words += '' if kind.get('eos') is None else f' --end={kind["eos"]}'
        words += f' --shape={"x".join(map(str, kind["shape"]))}' if kind.get('shape') else ''
    elif row and row.documents and (row.splits or split in parts):
        words = f'prepare.py {name}' + ' [--source=FILE]' * bool(row.splits)
    else:
        words = f'prepare.py text --name={name} --source=FILE'
    words += ' --tokenizer=bytes' * (
        not meta and kind.get('tokenizer') == 'bytes'
    )  # by default it is gpt2
    if meta or split not in parts or row and row.splits:
        words += f' --split={split}'
    there = ', '.join(other for other in (meta.splits if meta else ()) if other != split)
    raise ValueError(
        f'no {bin_path(os.path.join(data_dir, name), split)}'
        + f', only {there}' * bool(there)
        + f'; make it with: python data/{words} --data_dir={shlex.quote(str(data_dir))}'
    )
