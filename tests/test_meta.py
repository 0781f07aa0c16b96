"""meta.json: what was written is read, and a file that was changed since is refused in one line."""

import json
import shutil

import numpy as np
import pytest
from conftest import one_line

from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.meta import kind_of, read_meta, write_meta
from anyorder.tokens.prepared import prepare


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


@pytest.mark.parametrize('name', ['text', 'qa', 'rows', 'nae_sat'])
def test_a_file_that_was_changed_is_refused(sets, tmp_path, name):
    """Each byte in turn is another one; spaces between fields say nothing."""
    meta = read_meta(sets / name)
    write_meta(tmp_path, meta)
    path = tmp_path / 'meta.json'
    whole = path.read_bytes()
    assert whole == (sets / name / 'meta.json').read_bytes()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        if whole[place : place + 1].isspace():
            continue
        with one_line('damaged|cannot be read'):
            read_meta(tmp_path)
    entries = json.loads((sets / name / 'meta.json').read_text())
    for field in entries:
        path.write_text(json.dumps({key: entries[key] for key in entries if key != field}))
        with one_line('damaged|cannot be read'):
            read_meta(tmp_path)


@pytest.mark.parametrize(
    'content', [b'', b'[]', b'3', b'{"tokenizer": "by', b'\xff', b'[' * 100000]
)
def test_a_file_of_another_kind_is_one_line_that_lets_the_folder_be(sets, tmp_path, content):
    shutil.copytree(sets / 'text', tmp_path / 'text')
    path = tmp_path / 'text' / 'meta.json'
    path.write_bytes(content)
    with one_line('cannot be read'):
        open_split(tmp_path, 'text', 'val')
    with one_line('text/meta.json'):
        prepare('text', tmp_path, source=str(sets / 'a.txt'), tokenizer='bytes', force=True)
    assert path.read_bytes() == content


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
    assert kind_of(read_meta(sets / name)) == kind
