"""meta.json: every field is as it must be, or one line names it; sets from before a field open."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from conftest import one_line

from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.meta import SPLIT_FIELDS, kind_of, read_meta
from anyorder.tokens.prepared import prepare

MISSING = object()
DAMAGES = [MISSING, None, True, -1, 2**63, 1.5, '', [1, 2], {'a': 1}]
# what is no damage: {set: {field: values}}
GRID = [None, MISSING, [1, 2]]  # blocks of a text may be grids
FINE = {
    'text': {'given': [MISSING], 'shape': GRID},
    'qa': {'given': [True], 'prompts': [True], 'shape': GRID},
    'rows': {'eos': [None], 'given': [True], 'shape': [None], 'vocabulary': [None]},
    'nae_sat': {
        'eos': [None],
        'given': [MISSING, True],
        'shape': [None, MISSING],
        'vocabulary': [None, MISSING],
        'made_by': [None, MISSING],
    },
}
OPTIONAL = {
    'prompts': [MISSING, False],
    'row_length': [None, MISSING],
    'shape': [None, MISSING],
    'vocabulary': [None, MISSING],
    'puzzle': [None, MISSING],
    'made_by': [None, MISSING],
}


@pytest.fixture(scope='module')
def sets(tmp_path_factory):
    """A folder with a set of each kind; to be read only."""
    folder = tmp_path_factory.mktemp('sets')
    (folder / 'a.txt').write_text('some words of text, ' * 60)
    prepare('text', folder, source=str(folder / 'a.txt'), tokenizer='bytes')
    pairs = [json.dumps({'prompt': f'{i}', 'text': 'a'}) for i in range(20)]
    (folder / 'a.jsonl').write_text('\n'.join(pairs))
    prepare('text', folder, 'qa', str(folder / 'a.jsonl'), tokenizer='bytes')
    np.save(folder / 'a.npy', np.arange(60).reshape(10, 6) % 6)
    (folder / 'names.txt').write_text('\n'.join('abcdef'))
    names = str(folder / 'names.txt')
    prepare_tokens(folder, 'rows', str(folder / 'a.npy'), shape='2x3', vocabulary=names)
    n_rows = {'train': 50, 'val': 5, 'test': 5}
    prepare_puzzles('nae_sat', folder, n_rows=n_rows, n_latents=4, n_observations=4)
    return folder


def changed(meta, path, value):
    """A copy of meta.json with this value at a path of keys."""
    copy = json.loads(json.dumps(meta))
    *outer, last = path
    inner = copy
    for key in outer:
        inner = inner[key]
    if value is MISSING:
        inner.pop(last, None)
    else:
        inner[last] = value
    return copy


def paths_of(meta):
    """(path of keys, the field that an error must name) of every value."""
    for field in [*meta, *OPTIONAL]:
        yield (field,), field
    for field in SPLIT_FIELDS:
        yield ('splits', 'val', field), f'splits.val.{field}'
    yield ('splits', 'train', 'rows'), 'splits.train.rows'
    for option in meta.get('puzzle', ()):
        yield ('puzzle', option), 'puzzle'


@pytest.mark.parametrize('name', FINE)
def test_every_damage_of_every_field_is_named(sets, tmp_path, name):
    shutil.copytree(sets / name, tmp_path / name)
    path = tmp_path / name / 'meta.json'
    meta = json.loads(path.read_text())
    fine = {field: values for field, values in OPTIONAL.items() if field not in meta} | FINE[name]
    for (keys, field), damage in itertools.product(paths_of(meta), DAMAGES):
        path.write_text(json.dumps(changed(meta, keys, damage)))
        lacks_an_option = keys[0] == 'puzzle' and len(keys) == 2 and damage is MISSING
        if damage in fine.get(field, ()) or (lacks_an_option and keys[1] != 'task'):
            read_meta(tmp_path / name)
        else:
            with one_line(re.escape(str(path)) + rf' is damaged: .*\b{re.escape(field)}\b'):
                open_split(tmp_path, name, 'val')
    path.write_text(json.dumps(meta))
    open_split(tmp_path, name, 'val')


@pytest.mark.parametrize(
    'keys, value, field',
    [
        (('text', 'eos'), 257, 'eos'),
        (('text', 'given'), True, 'given'),
        (('text', 'prompts'), True, 'given'),
        (('qa', 'given'), False, 'given'),
        (('qa', 'prompts'), False, 'given'),
        (('rows', 'prompts'), True, 'given'),
        (('text', 'puzzle'), {'task': 'sudoku4'}, 'puzzle'),
        (('text', 'tokenizer'), 'braille', 'tokenizer'),
        (('text', 'row_length'), 7, 'row_length'),
        (('text', 'splits'), {'../x': {}}, 'splits'),
        (('qa', 'eos'), None, 'eos'),
        (('text', 'eos'), 3, 'eos'),
        (('rows', 'n_tokens'), 2**31 + 1, 'n_tokens'),
        (('rows', 'splits', 'val'), 7, 'splits.val'),
        (('rows', 'shape'), [3, 3], 'shape'),
        (('rows', 'row_length'), 5, 'shape'),
        (('rows', 'vocabulary'), list('abc'), 'vocabulary'),
        (('rows', 'vocabulary'), list('aabcde'), 'vocabulary'),
        (('rows', 'splits', 'val', 'rows'), 7, 'row_length'),
        (('nae_sat', 'puzzle', 'task'), 'zebra', 'puzzle'),
    ],
)
def test_fields_that_contradict_each_other_are_named(sets, tmp_path, keys, value, field):
    name, *keys = keys
    meta = json.loads((sets / name / 'meta.json').read_text())
    (tmp_path / 'meta.json').write_text(json.dumps(changed(meta, keys, value)))
    with one_line(f'meta.json is damaged: {field} must be'):
        read_meta(tmp_path)


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'[]',
        b'null',
        b'3',
        b'"a"',
        b'{"tokenizer": "bytes"',
        b'\xff\xfe',
        b'[' * 100000,
        b'9' * 10000,
        b'{"name": NaN',
        b'[{"name": "text"}]',
    ],
)
def test_a_file_of_another_kind_is_one_line_that_lets_the_folder_be(sets, tmp_path, content):
    shutil.copytree(sets / 'text', tmp_path / 'text')
    path = tmp_path / 'text' / 'meta.json'
    for damaged in (content, path.read_bytes()[:-3]):
        path.write_bytes(damaged)
        with one_line(
            'cannot be read as the meta.json of a prepared set: .* or another --data_dir$'
        ):
            open_split(tmp_path, 'text', 'val')
        with one_line('text/meta.json'):
            prepare('text', tmp_path, source=str(sets / 'a.txt'), tokenizer='bytes', force=True)
        assert path.read_bytes() == damaged


@pytest.mark.parametrize('name, new', [('text', ['given']), ('nae_sat', ['given', 'shape'])])
def test_sets_from_before_a_field_still_open(sets, tmp_path, name, new):
    """Text had no field `given`, and puzzles neither it nor a shape."""
    meta = json.loads((sets / name / 'meta.json').read_text())
    older = {key: meta[key] for key in meta if key not in new}
    newer = meta | {'shape': None, 'of a later time': [1]}
    for other in (older, newer):
        (tmp_path / 'meta.json').write_text(json.dumps(other))
        assert read_meta(tmp_path) == read_meta(sets / name)


OF_BYTES = {'tokenizer': 'bytes', 'n_tokens': 257, 'eos': 256}
OF_ROWS = {'tokenizer': 'own', 'n_tokens': 6, 'eos': None, 'row_length': 6, 'shape': [2, 3]}
OF_BITS = {'tokenizer': 'nae_sat', 'n_tokens': 2, 'eos': None, 'row_length': 8}
PUZZLE = {'task': 'nae_sat', 'seed': 0, 'n_latents': 4, 'n_observations': 4}


@pytest.mark.parametrize(
    'name, kind',
    [
        ('text', OF_BYTES | {'given': False}),
        ('qa', OF_BYTES | {'given': True, 'prompts': True}),
        ('rows', OF_ROWS | {'given': False, 'vocabulary': list('abcdef')}),
        ('nae_sat', OF_BITS | {'given': True, 'puzzle': PUZZLE, 'vocabulary': ['0', '1']}),
    ],
)
def test_what_a_checkpoint_keeps(sets, name, kind):
    """A resume compares it with what older checkpoints keep."""
    assert kind_of(read_meta(sets / name)) == kind
