"""Which prepared sets can be opened? A split by its name.

A set that is missing is made, or its command is said."""

import os
import shlex

import numpy as np

from anyorder.machine.files import check_names
from anyorder.tokens.documents import SPLITS, TRAIN_AND_VAL
from anyorder.tokens.meta import bin_path, read_meta, whole_splits
from anyorder.tokens.mixture import sets_in
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizer import MAKERS, OWN, maker_of
from configurator import differing, home


def open_splits(data_dir, name, *splits):
    """Return the Splits of these names of a prepared set. A missing set that needs no source and no
    time is made.

    Raises ValueError with the command to run where another set is missing, or where a file is not
    what meta.json says."""
    check_names(dataset=name)
    data_dir = home(data_dir)
    directory = os.path.join(data_dir, name)
    meta = read_meta(directory)
    whole = whole_splits(directory, meta)
    there = [split for split in splits if split in whole]
    files = [np.memmap(bin_path(directory, split), np.uint8, 'r') for split in there]
    is_same = read_meta(directory) == meta  # else another command has replaced a file meanwhile
    if is_same and len(there) == len(splits):
        return [Split(file.view(meta.dtype), meta, split) for split, file in zip(splits, files)]
    if is_same:
        make_split(data_dir, name, min({*splits} - {*there}), meta)
    return open_splits(data_dir, name, *splits)


def open_split(data_dir, name, split):
    """Return one Split of a prepared set. See open_splits."""
    (found,) = open_splits(data_dir, name, split)
    return found


def make_split(data_dir, name, split, meta):
    """Make a set now, of which nothing is there, if it is one that needs no source and no time.

    Raises ValueError with the command that makes any other, or a split of a set with this Meta."""
    if not meta and name in DATA_SETS and DATA_SETS[name].offline and split in TRAIN_AND_VAL:
        return prepare(name, data_dir)
    if not meta and name in MAKERS and split in SPLITS and maker_of(name).task_of(name).quick:
        return maker_of(name).prepare_puzzles(name, data_dir)
    directory = os.path.join(data_dir, name)
    command = f'{command_of(name, split, meta)} --data_dir={shlex.quote(str(data_dir))}'
    raise ValueError(f'no whole {bin_path(directory, split)}; make it with: {command}')


def command_of(name, split, meta):
    """Return the command that makes a split of the set of this name, of which there may be a Meta,
    without --data_dir."""
    row = DATA_SETS.get(name, DATA_SETS['text'])
    again = ' --force' if meta else ''
    if meta and meta.made_by:
        return f'{meta.made_by} --name={name} --split={split}'
    if name in MAKERS:
        return f'{maker_of(name).MADE_BY} {name}'
    if row.splits:
        return f'python data/prepare.py {name} --split={split}'
    if row.documents and split in TRAIN_AND_VAL:  # which are made together
        return f'python data/prepare.py {name}{again}'

    # A source of one's own, which is divided or is this split
    kind = 'text'
    if meta and meta.tokenizer == OWN:
        kind = 'tokens [--shape, --end and --vocabulary as before]'
    splits = meta.splits if meta else dict.fromkeys(TRAIN_AND_VAL, {'source': ''})
    sources = [entry['source'] for entry in splits.values()]
    is_part = split in splits and sources.count(splits[split]['source']) > 1
    ending = again if is_part else f' --split={split}'
    return f'python data/prepare.py {kind} --name={name} --source=FILE{ending}'


def names_of_run(run):
    """Return the names of the sets of a run with these options; [] of a run that names none."""
    return [name for name, _ in sets_in(run.get('dataset', ''))]


def only_set_of(run):
    """Return the name of the set of a run with these options; '' of a run that names none.

    Raises ValueError where the run mixes several."""
    names = names_of_run(run)
    if len(names) > 1:
        raise ValueError(
            f'the checkpoint was trained on {" and ".join(names)}: say which of them with '
            f'--dataset={names[0]}'
        )
    return ''.join(names)


def changed_since(saved, meta):
    """Return 'train and val of NAME', those splits of a set that have other contents now than a
    checkpoint has `saved` of its sets; '' where none has, or where it does not say.

    No set is read: its Meta and the checkpoint have hashes."""
    before = saved.get(meta.name, {})
    changed = [
        split
        for split in TRAIN_AND_VAL
        if 'sha256' in differing(before.get(split, {}), meta.splits.get(split, {}))
    ]
    return f'{" and ".join(changed)} of {meta.name}' if changed else ''


def prepared_anew(checkpoint, meta):
    """Return a line on the set of this Meta, if a checkpoint was trained on it and it has other
    contents now, see changed_since; '' of any other set."""
    changed = changed_since(checkpoint.entries.get('sets', {}), meta)
    return changed and f'prepared anew since the training: {changed}; the model may know it'
