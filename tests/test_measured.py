"""Texts that are measured: their split, their blocks and what is counted of them."""

import hashlib
import json
import unicodedata

import numpy as np
import pytest
from conftest import one_line

from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.tables import unigram_row
from anyorder.tokens.prepared import prepare
from anyorder.tokens.tokenizers import Bytes, get_tokenizer

TEXT = 'a b c d e f g\n' * 9


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    """Prepared sets: `words`, both splits of wikitext2, and `broken`, of a token that is none."""
    folder = tmp_path_factory.mktemp('measured')
    (folder / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    for name in ('words', 'broken'):
        prepare(
            'text', folder / 'data', name=name, source=str(folder / 'words.txt'), tokenizer='bytes'
        )
    val = np.memmap(folder / 'data' / 'broken' / 'val.bin', dtype='<u2', mode='r+')
    val[-1] = 257
    val.flush()
    for split, source in (('train', TEXT), ('test', TEXT.upper())):
        (folder / 'wiki.raw').write_text(source)
        prepare(
            'wikitext2',
            folder / 'data',
            source=str(folder / 'wiki.raw'),
            split=split,
            tokenizer='bytes',
        )
    return str(folder / 'data')


def test_protocols_name_their_splits(data_dir):
    for asked, split, letter in (('', 'train', 'a'), ('test', 'test', 'A')):
        text = open_corpus('wikitext2', Cut(4), Bytes(), data_dir, asked)
        assert text.label == f'wikitext2 ({split})'
        assert ord(letter) in text.blocks
    words = open_corpus('words', Cut(4), Bytes(), data_dir, 'train')
    assert words.label == 'words (train)'
    with open(f'{data_dir}/words/meta.json') as f:
        kept = json.load(f)['splits']['train']
    assert words.origin == {key: kept[key] for key in ('source', 'sha256')}


def test_blocks_and_bytes_of_a_file_by_hand(tmp_path):
    path = tmp_path / 'my.jsonl'
    path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in ('héllo', 'abc', 'de')))
    text = open_corpus(str(path), Cut(4), Bytes(), 'nowhere')
    tokens = [*'héllo'.encode(), 256, *b'abc', 256, *b'de', 256]
    assert text.tokens.tolist() == tokens
    assert text.blocks.tolist() == [tokens[:4], tokens[4:8], tokens[8:12]]
    assert text.n_bytes == 12 - 2  # ends of documents are no bytes
    assert text.name == str(path)
    assert text.label == 'my.jsonl'
    digest = hashlib.sha256(text.tokens.tobytes()).hexdigest()
    assert text.origin == {'source': str(path), 'sha256': digest}
    path.with_suffix('.csv').write_text('text\nhéllo\nabc\nde\n', encoding='utf-8')
    assert (
        open_corpus(str(path.with_suffix('.csv')), Cut(4), Bytes(), 'nowhere').digest == text.digest
    )
    some = open_corpus(str(path), Cut(4, n_blocks=2), Bytes(), 'nowhere')
    assert some.blocks.tolist() == [tokens[:4], tokens[4:8]]
    assert some.n_bytes == 7
    assert len(some.tokens) == len(tokens)
    spread = open_corpus(str(path), Cut(2, n_blocks=3), Bytes(), 'nowhere')
    assert spread.blocks[:, 0].tolist() == [tokens[0], tokens[4], tokens[8]]


def test_the_digest_tells_the_blocks(data_dir):
    digests = {
        open_corpus('words', Cut(N, n_blocks=n), Bytes(), data_dir).digest
        for N, n in ((4, 0), (4, 3), (4, 4))
    }
    assert len(digests) == 3
    assert open_corpus('words', Cut(4, n_blocks=3), Bytes(), data_dir).digest in digests


@pytest.mark.parametrize(
    'name, tokenizer, said',
    [
        (
            'broken',
            'bytes',
            'val.bin has the token 257, bytes tokens are below 257: prepare broken again',
        ),
        (
            'words',
            'sudoku4',
            'the model reads sudoku4 tokens, .*words holds bytes tokens: .*--tokenizer=sudoku4',
        ),
        ('my.txt', 'sudoku4', 'my.txt is text, the checkpoint was trained on sudoku4'),
        ('nosuch', 'bytes', 'python data/prepare.py'),
        ('void.txt', 'bytes', 'void.txt holds no text'),
        ('no.txt', 'bytes', 'no file no.txt'),
        ('short.txt', 'bytes', 'beyond the data: .* takes --block_size=6 or less'),
    ],
)
def test_a_text_that_cannot_be_measured_is_one_line(
    data_dir, tmp_path, monkeypatch, name, tokenizer, said
):
    monkeypatch.chdir(tmp_path)
    for file, text in (('my.txt', 'x' * 50), ('void.txt', ''), ('short.txt', 'short')):
        (tmp_path / file).write_text(text)
    with one_line(said):
        open_corpus(name, Cut(16), get_tokenizer(tokenizer), data_dir)


def decomposed(text):
    return unicodedata.normalize('NFD', text)


@pytest.mark.parametrize(
    'kind',
    ['bytes', 'bytes NFC', 'bytes NFKC', 'bytes NFD', 'bytes Lowercase', 'bytes behind a space'],
)
@pytest.mark.parametrize(
    'texts',
    [
        [decomposed('é ü ñ å')],
        ['ﬁx ½ İ é', decomposed('é'), 'a'],
        [('ab ', decomposed('éa')), ('', 'Ünd')],
        [' a  b\n'],
    ],
)
def test_bytes_are_those_of_the_text_as_it_was_given(tmp_path, kind, texts):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer = tokenizer_like(kind)
    path = tmp_path / 'my.jsonl'
    has_prompts = isinstance(texts[0], tuple)
    names = ('prompt', 'text') if has_prompts else ('text',)
    rows = [dict(zip(names, text if has_prompts else (text,))) for text in texts]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    n_bytes = [len(row['text'].encode()) for row in rows]
    found = open_corpus(str(path), Cut(64 if has_prompts else 1), tokenizer, 'nowhere')
    assert found.n_bytes == found.sizes.sum() == sum(n_bytes)
    assert len(found.sizes) == len(found.tokens)
    assert unigram_row(found.tokens, tokenizer, 1, found.sizes)['bytes'] == sum(n_bytes)
    some = open_corpus(str(path), Cut(64 if has_prompts else 2, n_blocks=1), tokenizer, 'nowhere')
    assert some.n_bytes == (n_bytes[0] if has_prompts else found.sizes[:2].sum())
    if kind == 'bytes':  # each token is its own bytes
        counted = found.sizes > 0
        assert found.sizes[counted].tolist() == tokenizer.n_bytes[found.tokens[counted]].tolist()


def test_bytes_of_a_large_text_are_those_of_its_pieces_together(tmp_path, monkeypatch):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    monkeypatch.setattr('anyorder.tokens.sources.PIECE', 3)
    text = decomposed('é ü<|endoftext|>ñ å ' * 3)
    path = tmp_path / 'my.txt'
    path.write_text(text)
    found = open_corpus(str(path), Cut(1), tokenizer_like('bytes NFC'), 'nowhere')
    assert found.n_bytes == len(text.replace('<|endoftext|>', '').encode())


def test_unknown_tokens_of_a_file_are_said_once(tmp_path, capsys):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    (tmp_path / 'my.txt').write_text('ab ! ef ¶')
    path = str(tmp_path / 'my.txt')
    assert open_corpus(path, Cut(2), tokenizer_like('wordpiece'), 'nowhere').n_bytes is None
    said = capsys.readouterr().err
    assert '2 of 5 tokens are unknown' in said
    assert "'!'" in said
    assert said.count('\n') == 1
    open_corpus(path, Cut(2), tokenizer_like('bytes'), 'nowhere')
    assert not capsys.readouterr().err
