"""Which prepared sets can be opened? A split by its name.

A set that is missing is made, or its command is said."""

import glob
import os
import shlex

from anyorder.machine.files import check_names
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.mixture import sets_in
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.sets import bin_path, read_split
from anyorder.tokens.tokenizers import MAKERS, OWN, maker_of
from configurator import home, nearest

TRAIN_AND_VAL = ('train', 'val')
ALL_SPLITS = (*TRAIN_AND_VAL, 'test')


def open_split(data_dir, name, split, kind=None):
    """Return (its Split, Meta) of a prepared split. A missing set that needs no source and no time
    is made.

    kind  what kind_of would say of the set, if there is no meta.json

    Raises ValueError with the command to run where another set is missing, or where a file is not
    what meta.json says."""
    check_names(dataset=name)
    data_dir = home(data_dir)
    directory = os.path.join(data_dir, name)
    meta = read_meta(directory)
    if not meta or split not in meta.splits or not os.path.isfile(bin_path(directory, split)):
        meta = make_split(data_dir, name, split, meta, kind)
    found = read_unless_replaced(directory, meta, split)
    if found is None:
        return open_split(data_dir, name, split, kind)
    return found, meta


def read_unless_replaced(directory, meta, split):
    """Return the Split; None where another command has put another file in its place since this
    Meta was read."""
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


def make_split(data_dir, name, split, meta, kind):
    """Make a set now, if it is a quick one; return its Meta.

    Raises ValueError with the command that makes any other, see open_split."""
    made = make_quick(data_dir, name, split, meta)
    if made:
        return made
    path = bin_path(os.path.join(data_dir, name), split)
    others = others_than(data_dir, name, split, meta)
    command = command_of(name, split, meta, kind)
    raise ValueError(
        f'no {path}{others}; make it with: {command} --data_dir={shlex.quote(str(data_dir))}'
    )


def make_quick(data_dir, name, split, meta):
    """Make a set that needs no source and no time; return its Meta, None of any other set."""
    if name in MAKERS and split in ALL_SPLITS and not meta:
        maker = maker_of(name)
        if maker.is_quick(name):
            return maker.prepare_puzzles(name, data_dir)
    row = DATA_SETS.get(name)
    if row and row.offline and split in TRAIN_AND_VAL:
        return prepare(name, data_dir)
    return None


def others_than(data_dir, name, split, meta):
    """Return in words the other splits of a set that is there, or a set with nearly this name."""
    if meta:
        others = [other for other in meta.splits if other != split]
        return f', only {", ".join(others)}' if others else ''
    if name in DATA_SETS or name in MAKERS:
        return ''
    return nearest(name, [*DATA_SETS, *MAKERS, *prepared_in(data_dir)], cutoff=0.75)


def prepared_in(data_dir):
    """Return the names of the sets that are there."""
    paths = glob.glob(os.path.join(glob.escape(str(data_dir)), '*', 'meta.json'))
    return [os.path.basename(os.path.dirname(path)) for path in sorted(paths)]


def command_of(name, split, meta, kind):
    """Return the command that makes a split, beside what is there, its Meta. See open_split."""
    row = DATA_SETS.get(name)
    if row and row.splits:
        return f'python data/prepare.py {name} [--source=FILE] --split={split}'
    if meta:
        kind = kind_of(meta) | {'made_by': meta.made_by}
    elif name in MAKERS or not kind:
        kind = {}
    command = command_of_set(name, split, kind)
    if not meta and kind.get('tokenizer') == 'bytes':  # by default it is gpt2
        command += ' --tokenizer=bytes'
    if meta or split not in TRAIN_AND_VAL:  # which are made without --split
        command += f' --split={split}'
    return command


def command_of_set(name, split, kind):
    """Return the command for a set of this name or kind, without its --split."""
    row = DATA_SETS.get(name)
    if row and row.documents and split in TRAIN_AND_VAL:
        return f'python data/prepare.py {name}'
    made_by = None if row else command_of_maker(name, kind)
    if made_by:
        return f'{made_by} --name={name}'
    if kind.get('tokenizer') != OWN:
        return f'python data/prepare.py text --name={name} --source=FILE'
    command = f'python data/prepare.py tokens --name={name} --source=FILE'
    if kind.get('eos') is not None:
        command += f' --end={kind["eos"]}'
    if kind.get('shape'):
        height, width = kind['shape']
        command += f' --shape={height}x{width}'
    return command


def command_of_maker(name, kind):
    """Return the command of extras that makes a set of this name or kind, None where core does."""
    if kind.get('made_by'):
        return kind['made_by']
    for task in (kind.get('tokenizer'), name):
        if task in MAKERS:
            return maker_of(task).about(kind.get('puzzle', {'task': task}))['made_by']
    return None


def names_of_run(run):
    """Return the names of the sets of a run with these options; [] of a run that names none."""
    return [name for name, _, _ in sets_in(run.get('dataset', ''))]


def name_of_run(run):
    """Return the name of the set of a run with these options; '' of a run that names none.

    Raises ValueError where the run mixes several."""
    names = names_of_run(run)
    if len(names) > 1:
        raise ValueError(
            f'the checkpoint was trained on {" and ".join(names)}: say which of them with '
            f'--dataset={names[0]}'
        )
    return ''.join(names)


def changed_since(checkpoint, name, meta):
    """Return 'train and val of NAME', those splits of a set that have other contents now than when
    a checkpoint was trained; '' where none has, or where the checkpoint does not say.

    No set is read: its Meta and the checkpoint have hashes."""
    of_set = checkpoint.entries.get('sets', {}).get(name, checkpoint.entries)
    changed = []
    for split, entry in (('train', 'data'), ('val', 'val_data')):
        before = of_set.get(entry)
        if before and split in meta.splits and meta.splits[split].sha256 != before:
            changed.append(split)
    return f'{" and ".join(changed)} of {name}' if changed else ''


def prepared_anew(checkpoint, data_dir, name):
    """Return a line on the set of this name, if a checkpoint was trained on it and it has other
    contents now, see changed_since; '' of any other set."""
    meta = read_meta(os.path.join(home(data_dir), name))
    if not meta or name not in names_of_run(checkpoint.run):
        return ''
    changed = changed_since(checkpoint, name, meta)
    if not changed:
        return ''
    return f'prepared anew since the training: {changed}; the model may know it'
