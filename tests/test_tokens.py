"""Tokenizers: laws of all kinds, how they are opened and kept, what is shown, and prompts."""

import functools
import json
import os
import random
import re
import shutil
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import make_model, one_line, tokenizer_like

from anyorder import Pattern
from anyorder.checkpoint import entries_of, save_checkpoint
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.tokens import prompts as p
from anyorder.tokens.choices import choose
from anyorder.tokens.libraries import BYTE_OF, LONG_WORD, Library, Tiktoken, heard, train_bpe
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.mixture import kind_of_all
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.sets import read_split
from anyorder.tokens.shown import lay_out, token_texts, written_text
from anyorder.tokens.tokenizer import END_OF_TEXT, PART
from anyorder.tokens.tokenizers import (
    GPT2,
    KNOWN,
    Begun,
    Bytes,
    Symbols,
    batches,
    encode_documents,
    get_tokenizer,
    tokenizer_of_set,
)
from anyorder.training.start import start_model
from anyorder.writer import Writer
from configurator import Config
from sample import parse_stop

TEXT = 'It was the best of times, it was the worst of times. Grüße, 中文 🙂!\n\n'
WORDS = 'ab x a b x ab'  # which every tokenizer below spells
# what tokenizers of the package tokenizers are like, see tokenizer_like
LIKE = [
    'bytes',
    'bytes behind a space',
    'bytes NFC',
    'metaspace always',
    'metaspace first',
    'metaspace never',
    'metaspace always of words',
    'sentences',
    'sentences and bytes',
    'wordpiece',
    'ends of words',
    'words',
]
WHOLE = ('bytes of UTF-8', 'gpt2', 'tiktoken', 'gaps', 'bpe')  # which spell every text


def small_encoding(**special):
    """A Tiktoken of all bytes, three pairs and special tokens; it leaves numbers out."""
    tiktoken = pytest.importorskip('tiktoken')
    ranks = {bytes([b]): b for b in range(256)} | {b'th': 256, b'the': 257, b' t': 258}
    pattern = r' ?\p{L}+| ?[^\s\p{L}]+|\s+'
    bpe = tiktoken.Encoding('s', pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return Tiktoken('tiktoken:s', bpe)


def trained(n_tokens=300):
    pytest.importorskip('tokenizers')
    return train_bpe(f'bpe:{n_tokens}', n_tokens, [TEXT, TEXT, 'the end'])


def changed(tok, added_tokens=(), **parts):
    """The tokenizer with other parts of its tokenizer.json."""
    found = json.loads(tok.file) | parts
    found['added_tokens'] += added_tokens
    return Library.of_file('changed.json', json.dumps(found))


def added(i, content, **flags):
    """What a tokenizer.json says of a token that is added."""
    names = ('special', 'normalized', 'single_word', 'lstrip', 'rstrip')
    return {'id': i, 'content': content, **dict.fromkeys(names, False), **flags}


def gpt2():
    try:
        return get_tokenizer('gpt2')
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


def like(kind):
    """A small tokenizer of this kind, of somebody else's model."""
    return tokenizer_like(kind)


OPENED = {
    'bytes of UTF-8': Bytes,
    'gpt2': gpt2,
    'tiktoken': small_encoding,
    'gaps': lambda: small_encoding(**{'<|fim|>': 300, '</s>': 262}),
    'bpe': lambda: changed(trained(), added_tokens=[added(298, '<|mask|>', special=True)]),
}


@functools.cache
def opened(kind):
    """A tokenizer of this kind, made once."""
    if kind in OPENED:
        return OPENED[kind]()
    return Library.of_file(f'{kind}.json', like(kind).file)


def kind_of_tokenizer(tok):
    """What a checkpoint keeps of it."""
    kind = {'tokenizer': tok.name, 'n_tokens': tok.n_tokens, 'eos': tok.eos}
    return kind | ({'tokenizer_file': tok.file} if tok.file else {})


def ids_of(spans):
    return [token for token, _, _ in spans]


# --------------------------------------------------------------------------------------------------
# laws of all tokenizers


@pytest.mark.parametrize('kind', [*WHOLE, *LIKE])
def test_a_text_comes_back_from_its_ids_also_by_what_a_checkpoint_keeps(kind):
    tok = opened(kind)
    again = tokenizer_of_set(kind_of_tokenizer(tok))
    assert again.identity == tok.identity
    texts = [WORDS, '', f'a{END_OF_TEXT}b']
    if kind in WHOLE:
        texts = [WORDS, TEXT, f'<|mask|>a{END_OF_TEXT}<|fim|> b']
    for text in texts:
        shown = ids_of(tok.shown_spans(text))
        assert shown.count(tok.eos) == text.count(END_OF_TEXT)
        assert again.decode(shown) == tok.decode(shown)
        assert tok.decode(shown).replace(' ', '') == text.replace(' ', '')
        if END_OF_TEXT in text and kind not in WHOLE:
            continue
        ids = tok.encode(text)
        spans = tok.spans(text)
        assert {*ids} <= {*range(tok.n_tokens)} - {tok.eos, *tok.special.values()}
        assert ids_of(spans) == ids
        last = 0
        for i, start, end in spans:
            assert last - 1 <= start < end <= len(text)  # several may have parts of a letter
            one = tok.decode([i])
            assert kind in LIKE or PART in one or one == text[start:end]
            last = end
        assert [[*row] for row in again.encode_batch([text, ''])] == [ids, []]
        assert END_OF_TEXT in text or ids == shown
        if tok.n_bytes is not None:
            assert tok.decode(ids) == text
            assert tok.n_bytes[ids].sum() == len(text.encode())


@pytest.mark.parametrize('kind', ['tiktoken', 'gaps', 'bpe'])
def test_every_id_comes_back_and_has_its_bytes(kind):
    tok = opened(kind)
    again = tokenizer_of_set(kind_of_tokenizer(tok))
    for i in range(tok.n_tokens):
        text = tok.decode([i])
        assert again.decode([i]) == text
        if i == tok.eos or i in tok.special.values():
            assert tok.n_bytes[i] == 0
            assert ids_of(tok.shown_spans(text)) == [i]
            continue
        if kind == 'bpe':
            found = bytes(map(BYTE_OF.get, tok.backend.id_to_token(i)))
        else:
            found = tok.bpe.decode_single_token_bytes(i)
        assert tok.n_bytes[i] == len(found)
        assert text == found.decode(errors='replace')
        assert PART in text or tok.encode(text) == [i]


@pytest.mark.parametrize('kind', ['bytes of UTF-8', *LIKE])
def test_a_prompt_and_its_answer_are_the_whole_text(kind):
    """No letter of the answer is given, and what is given has the highest bit on disk."""
    tok = opened(kind)
    whole = tok.encode(WORDS)
    pairs = [(WORDS[:n], WORDS[n:]) for n in range(len(WORDS) + 1)]
    both = tok.encode_pairs(pairs)
    for (prompt, text), found, (row, n_bytes) in zip(pairs, both, encode_documents(pairs, tok)):
        spans = tok.pair_spans(prompt, text)
        given, rest = map(ids_of, spans)
        assert [[*ids] for ids in found] == [given, rest]
        assert tok.decode(given + rest) == tok.decode(whole)
        assert given + rest == whole or not tok.why_no_bytes
        assert len(tok.decode(given).strip()) <= len(prompt)
        assert all(0 <= start <= end <= len(text) for _, start, end in spans[1])
        assert row.tolist() == [*(1 << 15 | i for i in given), *rest, tok.eos]
        assert n_bytes == len(text)


BY_BYTES = ('bytes of UTF-8', 'bytes behind a space', 'bytes NFC', 'sentences and bytes')


@pytest.mark.parametrize(
    'kind, text',
    [(kind, WORDS) for kind in LIKE if kind != 'ends of words']
    + [
        (kind, text) for kind in BY_BYTES for text in ('é a你\n🙂b 🙂🙂', 'ab\n\né<|endoftext|>a b')
    ],
)
def test_the_text_of_a_part_is_that_of_the_text_at_the_end(kind, text):
    """Of each token alone, a letter of several at the last, and of all from each place on."""
    tok = opened(kind)
    ids = ids_of(tok.shown_spans(text))
    whole = tok.decode(ids)
    rng = random.Random(5)
    assert ''.join(token_texts(ids, tok)) == whole
    for n in range(len(ids)):
        before = tok.decode(ids[:n])
        if not before.endswith(PART):
            written = [i >= n for i in range(len(ids))]
            assert before + written_text(ids, written, tok) == whole
        if text == WORDS:
            blanks = rng.sample(range(len(ids)), n)
            shown = [None if i in blanks else token for i, token in enumerate(ids)]
            assert fits(''.join(token_texts(shown, tok)), whole)


def fits(shown, whole):
    """Whether a text with dots for blanks is what a whole text has there."""
    return re.fullmatch('.*'.join(map(re.escape, shown.split('·'))), whole)


RUNS = ['中' * 90, 'A' * 99, '1' * 70, '-' * 130, ' ' * 66]
LETTERS = [
    *(' ', '  ', '\n', '\r\n', '\t', '\xa0', '\x1c', '\u3000'),
    *('a', 'The', 's', "'s", "'", '1', '²', '.', '"?!', '_'),
    *('é', '中', '。', 'か', 'ー', '𝒳', '\u0301'),
]


def some_text(rng, most, letters=LETTERS):
    """Fewer than `most` of the letters."""
    return ''.join(rng.choices(letters, k=rng.randrange(most)))


@pytest.mark.parametrize('kind', [*WHOLE, *LIKE[:-1]])
def test_the_tokens_of_pieces_are_those_of_the_whole_text(kind):
    tok = opened(kind)
    rng = random.Random(2)
    letters = LETTERS + RUNS if kind in WHOLE else ' abx'
    n_pieces = 0
    for _ in range(100):
        text = some_text(rng, 40, letters)
        *places, last = sorted(rng.choices(range(len(text) + 1), k=3))
        begun = [Begun(text[start:end]) for start, end in zip([0, *places], [*places, last])]
        found, sizes = zip(*encode_documents([*begun, text[last:]], tok))
        ((wanted, n_bytes),) = encode_documents([text], tok)
        assert np.concatenate(found).tolist() == wanted.tolist()
        assert sum(sizes) == n_bytes
        n_pieces += len(found)
        n = tok.cut(text)
        more = some_text(rng, 9, letters)
        assert tok.encode(text[:n]) + tok.encode(text[n:] + more) == tok.encode(text + more)
    assert (n_pieces > 100) == (tok.cut('a b') > 0)


# --------------------------------------------------------------------------------------------------
# what one kind alone has


def test_bytes_and_gpt2_by_hand():
    tok = Bytes()
    assert tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�'
    assert tok.cut('a b') == 3
    assert gpt2().encode('hello world') == [31373, 995]


def test_symbols_are_the_longest_that_fit_or_stand_between_blanks():
    assert Symbols('own', ['a', 'ab', 'b']).encode('abab') == [1, 1]
    words = Symbols('words', ['up', 'down', 'u'], ' ', eos=2)
    assert words.spans(' up  down') == [(0, 1, 3), (1, 5, 9)]
    assert words.decode([0, 1]) == 'up down'
    assert tokenizer_of_set(dict(tokenizer='own', n_tokens=11, eos=None)).encode('10 0') == [10, 0]
    for other, text in ((words, 'up left'), (get_tokenizer('sudoku4'), '12<|endoftext|>')):
        with one_line(f'{other.name} has the tokens'):
            other.shown_spans(text)


RARE = ['\n', '\t', '\u3000', ' \x85\n', 'a', '1', '中']
RARE = [pytest.param(run, marks=pytest.mark.slow) for run in RARE]


@pytest.mark.parametrize('run', [' ', '\r\n', *RARE])
def test_a_million_letters_have_the_tokens_of_their_parts(run):
    tok = gpt2()
    letters = run * (10**6 // len(run))
    parts = [f'!{letters} c']
    if run.isspace():  # the last one goes with what follows
        parts = ['!', letters[:-1], f'{letters[-1]}c']
    ids = tok.encode(''.join(parts))
    assert ids == [i for part in parts for i in tok.bpe.encode_ordinary(part)]
    assert tok.encode_batch(['c', ''.join(parts), '']) == [tok.encode('c'), ids, []]


def test_the_tokens_of_long_runs_are_those_of_the_whole_text():
    rng = random.Random(0)
    for _ in range(40):
        blanks = rng.choices((' ', '\n', '\r\n', '\t', '\xa0', '\x1c', '\u2028'), k=2)
        text = ''
        for size in rng.choices([1, 2, 998, 999, 1000, 1001, 1999, 2000, 5000], k=4):
            text += ''.join(rng.choices(blanks, k=size))
            text += rng.choice(('a', "'s", '1', '?!', 'é', ''))
        assert gpt2().encode(text) == gpt2().bpe.encode_ordinary(text)


def test_words_that_are_learned_are_those_of_gpt2_up_to_a_length():
    pre_tokenizers = pytest.importorskip('tokenizers').pre_tokenizers
    tok = trained()
    assert tok.file == trained().file
    rng = random.Random(3)
    of_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = tok.backend.pre_tokenizer.pre_tokenize_str
    for _ in range(300):
        text = some_text(rng, LONG_WORD)
        assert words(text) == of_gpt2(text)
    for run in ('中', 'ACGT', '1', '-', ' ', 'é\u0301'):
        text = f'a {run * 500}b'
        places = [place for _, place in words(text)]
        assert ''.join(text[start:end] for start, end in places) == text
        assert max(end - start for start, end in places) <= LONG_WORD + 1  # and its space
    assert tok.cut('中' * 500) > 400


def test_a_signal_ends_what_is_learned_in_a_thread():
    def interrupt(*_):
        raise KeyboardInterrupt

    def learn(texts):
        began.set()
        while True:  # no signal is heard here
            next(texts)

    began = threading.Event()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            heard(learn, iter(lambda: 'a', ''))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert began.is_set()
    assert heard(''.join, ['a', 'b']) == 'ab'
    with pytest.raises(ZeroDivisionError):
        heard(list, (1 / 0 for _ in 'a'))


def test_only_the_first_word_of_a_text_begins_it():
    """A word behind the end of a document does not."""
    tok = opened('metaspace first')
    shown = ids_of(tok.shown_spans(f'a{END_OF_TEXT}b'))
    assert [*map(tok.backend.id_to_token, shown)] == ['▁a', END_OF_TEXT, 'b']


def test_documents_are_read_together_and_nothing_ends_one_where_no_token_does():
    tok = like('letters')
    for tok.n_tokens, dtype in ((2**16, '<u2'), (2**16 + 1, '<u4')):
        ((tokens, n_bytes),) = encode_documents([Begun('a'), Begun('b'), 'b'], tok)
        assert tokens.tolist() == [0, 1, 1]
        assert (tokens.dtype, n_bytes) == (dtype, 3)
    documents = ['ab', 'cd', 'efgh', 'i', ('jk', 'lm'), 'n', 'o', 'p']
    assert [len(batch) for batch in batches(documents, 3, 4)] == [2, 1, 2, 3]


# --------------------------------------------------------------------------------------------------
# which one is opened, and what is kept of it


def test_what_a_file_says_beside_its_tokens_cuts_no_text_and_is_told_from_bytes():
    tok = trained()
    cut = {'direction': 'Right', 'max_length': 2, 'strategy': 'LongestFirst', 'stride': 0}
    frame = {'type': 'BertProcessing', 'sep': ['a', 1], 'cls': ['b', 2]}
    model = json.loads(tok.file)['model'] | {'dropout': 0.9}
    other = changed(tok, truncation=cut, model=model, post_processor=frame)
    assert other.encode(TEXT) == tok.encode(TEXT)
    behind = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True}
    removed = {'type': 'Split', 'pattern': {'String': 'x'}, 'behavior': 'Removed', 'invert': False}
    pre_tokenizer = json.loads(tok.file)['pre_tokenizer']
    pre_tokenizer['pretokenizers'].append(removed)
    for parts, said in (
        ({'normalizer': {'type': 'NFC'}}, 'rewrites texts'),
        ({'pre_tokenizer': behind}, 'a space before a text'),
        ({'decoder': {'type': 'Fuse'}}, 'no bytes'),
        ({'model': model | {'end_of_word_suffix': '</w>'}}, 'no bytes'),
        ({'pre_tokenizer': pre_tokenizer}, 'leave out'),
        ({'added_tokens': [added(298, 'xy', rstrip=True)]}, "'xy' takes blanks"),
        ({'added_tokens': [added(298, 'xy')]}, ''),
    ):
        found = changed(tok, **parts)
        assert (found.n_bytes is None) == bool(said)
        assert said in found.about_bytes()


def words_with(**model):
    """A tokenizer.json of words, with other parts of its model."""
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models

    parts = json.loads(Tokenizer(models.WordLevel({'a': 0, 'b': 1}, 'a')).to_str())
    return json.dumps(parts | {'model': parts['model'] | model})


# (a name of a tokenizer, what is in its file, what is said)
WRONG = [
    ('gtp2', None, 'tokenizer must be bytes'),
    ('tiktoken:cl100k', None, 'cl100k_base'),
    ('bpe:200', None, 'from 257'),
    ('bpe:256', None, 'from 257'),
    ('bpe:1048577', None, 'from 257'),
    ('bpe:many', None, 'from 257'),
    ('hf:name', None, 'hf:OWNER/NAME'),
    ('hf:me/wrods', None, 'cannot get hf:me/wrods from the hub .*OSError'),
    ('bpe', None, 'bpe:4096'),
    ('OWNER/NAME', None, 'hf:OWNER/NAME'),
    ('a.json', {'vocab': {'a': 0, 'b': 1, 'c': 1}}, "the id 1 for 'b' and for 'c'"),
    ('a.json', {'vocab': {'a': 0, 'b': 2**32 - 1}}, '4,294,967,295, ids must be below 16,777,216'),
    ('a.json', {'vocab': {'a': 0, 'b': 2**24}}, 'the id 16,777,216'),
    ('a.json', {'type': 'New'}, 'pip install -U tokenizers'),
    ('a.json', {'vocab': None}, 'cannot be read as a tokenizer.json'),
    ('a.json', {'unk_token': 'b'}, "a.json has no token for 'ab x"),
    ('.', None, 'holds no tokenizer.json'),
]


@pytest.mark.parametrize('name, model, said', WRONG)
def test_a_tokenizer_that_is_none_is_one_line_before_anything_is_written(hub, name, model, said):
    if model:
        with open(name, 'w') as f:
            f.write(words_with(**model))
    with one_line(said):
        prepared(name, text=WORDS)
    assert not os.path.exists('a')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The empty working folder of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(tokenizer, name='a', text=TEXT * 40, **more):
    with open('a.txt', 'w') as f:
        f.write(text)
    return prepare('text', '.', name, 'a.txt', tokenizer=tokenizer, **more)


def test_a_set_keeps_its_tokenizer_and_is_found_by_its_folder(folder):
    pytest.importorskip('tokenizers')
    meta = prepared('bpe:280')
    shutil.move('a', 'b')
    moved = read_meta('b')
    assert kind_of(moved) == kind_of(meta)
    tok = tokenizer_of_set(kind_of(moved))
    train, val = (read_split('b', moved, split).packed for split in ('train', 'val'))
    assert tok.decode(train[:-1].tolist()) + tok.decode(val[:-1].tolist()) == TEXT * 40
    for name, path in (('c', 'b'), ('d', 'b/tokenizer.json')):
        assert tokenizer_of_set(kind_of(prepared(path, name))).identity == tok.identity
    with one_line('one folder has one tokenizer'):
        prepare('text', '.', 'b', 'a.txt', 'test', tokenizer='bpe:290')
    with one_line('trained on a train split'):
        prepare('text', '.', 'e', 'a.txt', 'test', tokenizer='bpe:290')
    with open('b/tokenizer.json', 'a') as f:
        f.write(' ')
    with one_line('damaged'):
        read_meta('b')


@pytest.fixture
def hub(folder, monkeypatch):
    """hub.put('OWNER/NAME', {file: text}) has it downloaded from there. What is asked is noted."""
    huggingface_hub = pytest.importorskip('huggingface_hub')
    pytest.importorskip('tokenizers')
    there = {}
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        if name not in there:
            raise OSError('no such repository\nof this name')
        path = folder / 'cache' / name
        path.mkdir(parents=True, exist_ok=True)
        for file in there[name].keys() & {*allow_patterns}:
            (path / file).write_text(there[name][file])
        return str(path)

    monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot)
    return SimpleNamespace(put=there.__setitem__, asked=asked)


@pytest.mark.parametrize('end', ['"<end>"', '{"content": "<end>"}'])
def test_a_tokenizer_of_the_hub_is_downloaded_once_and_kept(hub, end):
    tok = trained()
    tok.backend.add_special_tokens(['<end>'])
    files = {
        'tokenizer.json': tok.backend.to_str().replace(END_OF_TEXT, '<pad>'),
        'tokenizer_config.json': f'{{"eos_token": {end}}}',
        'tokenization_own.py': 'raise SystemExit',
        'model.safetensors': 'gigabytes',
    }
    hub.put('me/Words-1.5', files)
    meta = prepared('hf:me/Words-1.5')
    assert sorted(os.listdir('cache/me/Words-1.5')) == [*files][:2]
    assert (meta.tokenizer, meta.eos) == ('hf:me/Words-1.5', tok.backend.token_to_id('<end>'))
    train = read_split('a', meta, 'train').packed
    assert train[-1] == meta.eos

    # The second split has it again, and all that comes after has it from the set
    prepared('hf:me/Words-1.5', text=TEXT, split='test')
    shutil.rmtree('cache')
    kept = tokenizer_of_set(kind_of(read_meta('a')))
    assert kept.decode(train.tolist()) == TEXT * 36 + END_OF_TEXT
    assert prepared('a', 'b').tokenizer == meta.tokenizer
    assert hub.asked == ['me/Words-1.5'] * 2


def test_the_vocabulary_and_merges_of_the_hub_are_a_tokenizer(hub):
    tok = trained()
    model = json.loads(tok.file)['model']
    merges = '\n'.join(map(' '.join, model['merges']))
    files = {'vocab.json': json.dumps(model['vocab']), 'merges.txt': f'#version: 0.2\n{merges}\n'}
    config = {'tokenizer_config.json': '{"eos_token": "<end>"}'}
    hub.put('me/pairs', files | config)
    found = choose('hf:me/pairs').open({})
    assert found.encode(TEXT) == tok.encode(TEXT)
    assert (found.name, found.eos) == ('hf:me/pairs', tok.eos)
    hub.put('me/half', {'vocab.json': files['vocab.json']})
    with one_line('half holds no tokenizer.json'):
        choose('hf:me/half')


OTHER = 'A tale of two cities, in two books: the other one is not of this time. Ärger, 日本語!\n'
LEARNED = [
    ('bpe:280', 'bpe:290'),
    ('bpe:280', 'bpe:280'),  # of one name and one size, from other texts
    ('bytes', 'bpe:280'),
    ('bpe:280', 'bytes'),
]


@pytest.mark.parametrize('of_training, of_set', LEARNED)
@pytest.mark.parametrize('way', ['a', 'model'])
def test_the_way_out_of_tokenizers_that_differ_leads_out(folder, of_training, of_set, way):
    """Mixing, going on to train and evaluating say --tokenizer=FOLDER, which each then takes: of a
    set or of an exported model."""
    pytest.importorskip('tokenizers')
    kind = kind_of(prepared(of_training))
    tok = tokenizer_of_set(kind)
    entries = entries_of(make_model(vocab_size=320, n_tokens=tok.n_tokens))
    checkpoint = SimpleNamespace(tokenizer=tok, entries=entries)
    config = Config(dataset='b', dropout=0.0, init_from='ckpt.pt')
    (folder / 'model').mkdir()
    exported = {'model_type': 'aogpt', 'tokenizer': tok.name, 'set': kind}
    (folder / 'model' / 'config.json').write_text(json.dumps(exported))

    def reads(name):
        of_name = kind_of(read_meta(name))
        yield lambda: kind_of_all({'a': kind, name: of_name})
        yield lambda: start_model(config, checkpoint, tokenizer_of_set(of_name))
        yield lambda: open_corpus(name, Cut(4), tok, '.')

    prepared(of_set, 'b', OTHER * 40)
    for read in reads('b'):
        with one_line('--tokenizer='):
            read()
    with one_line('one folder has one tokenizer; use another --name'):
        prepared(way, 'b', TEXT, split='test')
    prepared(way, 'c', OTHER * 40)
    for read in reads('c'):
        read()


def test_a_folder_whose_tokens_are_no_text_is_one_line(folder):
    (folder / 'config.json').write_text('{"model_type": "aogpt", "tokenizer": "sudoku4"}')
    with one_line('a model of sudoku4 tokens, which are no text'):
        choose('.')
    (folder / 'config.json').write_text('{"model_type": "llada"}')
    with one_line('holds no tokenizer.json'):
        choose('.')
    (folder / 'config.json').write_text('[]')
    with one_line('cannot be read as the config.json'):
        choose('.')


def test_a_set_of_66000_ids_has_32_bits(folder, capsys):
    words = {'[UNK]': 0} | {f'w{i}': i for i in range(1, 66_000)}
    parts = json.loads(words_with(vocab=words, unk_token='[UNK]'))
    parts['pre_tokenizer'] = {'type': 'WhitespaceSplit'}
    (folder / 'words.json').write_text(json.dumps(parts))
    meta = prepared('words.json', text=' '.join(f'w{i}' for i in range(65_000, 66_000)))
    assert 'bits a byte are not known of words.json' in capsys.readouterr().out
    train = read_split('a', meta, 'train').packed
    assert train.dtype == '<u4'
    assert [*train[:2], train[-1]] == [65_000, 65_001, 66_000]


def test_no_letter_of_a_text_is_left_out_but_on_purpose():
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.BPE({'a': 0, 'b': 1, ' ': 2}, []))
    tok = Library.of_file('letters', backend.to_str())
    assert tok.encode('a b') == [0, 2, 1]
    with one_line(r"no token for '\\n'"):
        tok.encode('a\nb')
    backend.model = models.BPE({'a': 0, 'b': 1, ' ': 2, '?': 3}, [], unk_token='?')
    backend.normalizer = normalizers.Replace('b', '')
    with one_line("no token for 'b'"):  # which the token for what is unknown does not stand for
        Library.of_file('without', backend.to_str()).encode('a b')
    backend.model = models.BPE({'a': 0, 'b': 1, ' ': 2}, [])
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # which takes blanks out on purpose
    assert Library.of_file('words', backend.to_str()).encode('a\nb') == [0, 1]
    tok = like('nothing else')  # a vocabulary without a token for what it lacks
    for read in (tok.encode, tok.spans, lambda text: tok.encode_batch([text])):
        with one_line('nothing else cannot spell all of'):
            read('abc')


@pytest.mark.parametrize('name', KNOWN)
def test_a_file_has_no_name_that_means_another_tokenizer(tmp_path, name):
    (tmp_path / name).write_text(words_with())
    assert choose(f'{tmp_path}/{name}').open({}).name not in KNOWN


def test_what_is_missing_is_one_line_before_a_download(folder, monkeypatch):
    def fail(error):
        def failing(*args):
            raise error

        return failing

    monkeypatch.setattr('tiktoken.get_encoding', fail(ConnectionError('a\nlong story')))
    with one_line('--tokenizer=bytes'):
        GPT2()
    monkeypatch.setattr('anyorder.tokens.choices.get_tokenizer', fail(ValueError('no ranks')))
    monkeypatch.setattr(DATA_SETS['openwebtext'], 'documents', fail(AssertionError))
    with one_line('no ranks'):
        prepare('openwebtext', '.')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with one_line('pip install tokenizers'):
        choose('bpe:4096')


# --------------------------------------------------------------------------------------------------
# what a Writer shows and looks for is a part of the text at the end


@pytest.fixture(
    scope='module',
    params=[
        'bytes',
        'bytes behind a space',
        'metaspace always',
        'metaspace first',
        'sentences and bytes',
        'wordpiece',
        'ends of words',
        'words',
    ],
)
def writer(request, tmp_path_factory):
    """A Writer of a tokenizer of this kind, which writes the tokens of WORDS alone."""
    tok = opened(request.param)
    model = make_model(block_size=16, vocab_size=320, n_tokens=tok.n_tokens).float()
    model.lm_head.bias -= 1e4
    model.lm_head.bias[tok.encode(WORDS)] += 1e4
    path = str(tmp_path_factory.mktemp('words') / 'ckpt.pt')
    save_checkpoint(path, model, tokenizer=tok.name, set=kind_of_tokenizer(tok))
    return Writer(path, device='cpu')


def test_what_a_writer_shows_is_a_part_of_the_text_at_the_end(writer):
    tok = writer.tokenizer
    how = {'length': 16, 'order': 'random'}
    end = writer.infill('ab[[3]] x[[..]]', top_logprobs=2, **how)
    tokens = end.sample['tokens']
    assert end == tok.decode(tokens)
    *seen, last = writer.stream('ab[[3]] x[[..]]', **how)
    assert len(seen) > 5
    assert last == end
    seen.append(''.join('·' if one is None else one['text'] for one in end.top_logprobs))
    for text in seen:
        if tok.why_no_parts:  # where a space is of the token before it, which may be a blank
            assert fits(text.replace(' ', ''), end.replace(' ', ''))
        else:
            assert fits(text, end)

    n = len(tok.decode(tok.encode('ab')))
    how['order'] = 'l2r'
    for seed in range(4):
        whole = writer.infill('ab', seed=seed, **how)
        for stop in (whole[n : n + 2], whole[n + 1 : n + 4]):
            text = writer.infill('ab', stop=stop, seed=seed, **how)
            assert stop in text[n:]
            assert stop not in tok.decode(text.sample['tokens'][:-1])[n:]
            assert whole.startswith(text)


def test_a_pattern_is_matched_by_the_text_at_the_end(writer):
    pytest.importorskip('outlines_core')
    tok = writer.tokenizer
    if tok.why_no_parts:
        with one_line('another tokenizer'):
            writer.infill('[[3]]', pattern='a')
        return
    begin = tok.decode(tok.encode('ab'))
    whole = begin + '( [abx]+)*'
    has_space = any(tok.text_behind([None], [i]) == ' ' for i in range(tok.n_tokens))
    blank = ' a ?a' if has_space else 'a ?a'  # else the space before a word is none of the blank's
    part = begin + ' a ?a[ abx]*'
    for order in ('l2r', 'margin', 'random'):
        for seed in range(2):
            how = {'length': 9, 'order': order, 'seed': seed}
            text = writer.infill('ab', pattern=whole, **how)
            assert re.fullmatch(whole, text)
            if tok.decode(tok.encode(text)) == text:
                assert Pattern(whole).matches(text, tok)
            assert re.fullmatch(part, writer.infill(f'ab[[2/{blank}/]][[..]]', **how))


@pytest.mark.parametrize(
    'texts, runs',
    [
        ('ab|cd', '0,0 ab|0,2 c;1,0 d'),
        ('a\nb|c', '0,0 a;0,1 ↵;1,0 b|1,1 c'),
        ('\n\n|a', '0,0 ↵;1,0 ↵|2,0 a'),
        ('中中|a', '0,0 中;1,0 中|1,2 a'),
        ('e\u0301\t\x07b|', '0,0 e\u0301 b|'),
    ],
)
def test_texts_stand_on_lines_of_three_columns(texts, runs):
    """A letter may take two columns or none, and what cannot be printed is left out."""
    found = [
        ';'.join(f'{line},{column} {letters}' for line, column, letters in places)
        for places in lay_out(texts.split('|'), 3)
    ]
    assert '|'.join(found) == runs


# --------------------------------------------------------------------------------------------------
# prompts


@pytest.mark.parametrize(
    'prompt, length, laid_out',
    [
        ('ab [[3]] c[[=xy]]d', 20, 'ab ___ cXYd'),
        ('ab[[..]]c', 6, 'ab___c'),
        ('[[..]]', 4, '____'),
        ('abc', 5, 'abc__'),
        ('', 2, '__'),
        (r'a \[[3]]', 9, 'a [[3]]__'),
        ('[[2]][[1]]', 20, '___'),
        ('[[1]]a[[..]]b', 6, '_a___b'),
        ('[[..]]a[[..]]b[[..]]', 9, '___a__b__'),
        (r'[[=\[[x]]', 20, '[[X'),
        ('a]]b[[1]]', 20, 'a]]b_'),
        ('x[[[2]]]', 20, 'x[__]'),
        ('[[=a\nb]]', 20, 'A\nB'),
        ('abcde', 5, 'abcde'),
        ('[[2-4]]a[[?]]b', 9, '__a_b'),
        ('a[[1-3]]b', 5, 'a_b'),
        ('<|endoftext|>ab[[=c<|endoftext|>]]', 9, 'ĀabCĀ'),
    ],
)
def test_a_prompt_is_laid_out(prompt, length, laid_out):
    """A blank is shown as _, and an answer in capitals; Ā is 256, the end of a document."""
    template = p.parse_prompt(prompt, Bytes(), length).lay_out()
    shown = ''
    for token, is_known, is_answer in zip(template.tokens, template.known, template.answer):
        if is_known:
            shown += chr(token)
        else:
            shown += chr(token).upper() if is_answer else '_'
    assert shown == laid_out


class Zeros:
    """In place of Pattern, in an environment without its library: texts of zeros that match."""

    def __init__(self, text, within=False):
        self.text = text

    def __eq__(self, other):
        return isinstance(other, Zeros) and self.text == other.text

    def lengths_between(self, tokenizer, least, most):
        return [n for n in range(least, most + 1) if re.fullmatch(self.text, n * '0')]


@pytest.fixture
def zeros(monkeypatch):
    monkeypatch.setattr('anyorder.Pattern', Zeros, raising=False)


@pytest.mark.parametrize(
    'prompt, pieces, patterns',
    [
        ('a[[/0+/]]b', 'a|(1, None)|b', '0+'),
        ('[[8/0+/]]', '|8|', '0+'),
        ('a [[2-12/[0-9]+/]].', 'a |(2, 12)|.', '[0-9]+'),
        ('[[/a]]b/]]c', '|(1, None)|c', 'a]]b'),
        ('[[/[[0]+/]]', '|(1, None)|', '[[0]+'),
        (r'[[/a\/]]b/]]', '|(1, None)|', 'a/]]b'),
        (r'[[/a\\/]]b', '|(1, None)|b', r'a\\'),
        (r'[[/\\\/\./]]', '|(1, None)|', r'\\/\.'),
        ('[[/a\nb/]]', '|(1, None)|', 'a\nb'),
        ('[[[2/0/]]]', '[|2|]', '0'),
        (r'\[[/0/]][[/1/]]', '[[/0/]]|(1, None)|', '1'),
        ('[[/0/]][[2]][[3/1/]]', '|(1, None)||2||3|', '0 1'),
        (r'[[/\[[0-9]\]/]]', '|(1, None)|', r'\[[0-9]\]'),
        ('[[=/a/]]', '|/a/|', ''),
        ('[[///]]', '|(1, None)|', '/'),
    ],
)
def test_a_pattern_ends_at_the_first_slash_before_brackets(prompt, pieces, patterns):
    found, of_blanks = p.split_blanks(prompt)
    assert '|'.join(str(value) for value, _ in found) == pieces
    assert [*of_blanks.values()] == patterns.split(' ' if patterns else None)
    assert p.has_pattern(prompt) == bool(patterns)
    assert {found[i][1] for i in of_blanks} <= {'blank', 'unknown'}


def test_the_open_blanks_of_a_prompt_are_found_as_they_are_typed():
    assert p.has_rest('[[/0/]] a[[..]]')
    for prompt in (r'\[[..]]', '[[/[[..]]/]]', [1, -1]):
        assert not p.has_rest(prompt)
    for prompt in (np.array([1, -1]), '[[//]]', '[[/a]]', '[[?/a/]]'):
        assert not p.has_pattern(prompt)


@pytest.mark.parametrize(
    'prompt, piece, lengths',
    [
        ('[[/0{3}/]]', "(3, 'blank')", '3'),
        ('[[2-12/0{3}/]]', "(3, 'blank')", '3'),
        ('[[3/0*/]]', "(3, 'blank')", '3'),
        ('[[/0{3}|0{5}|0{30}/]]b', "((3, None), 'unknown')", '3 5'),
        ('[[4-12/(00)+/]]b', "((4, 12), 'unknown')", '4 6 8 10 12'),
        ('[[4-9/(00)+/]]b', "((4, 8), 'unknown')", '4 6 8'),
        ('[[/0{17}0*/]]b', "((17, None), 'unknown')", '17 18 19 20'),
        ('[[/0?/]]b', "(1, 'blank')", '1'),
    ],
)
def test_a_pattern_says_which_lengths_its_blank_may_have(zeros, prompt, piece, lengths):
    template = p.parse_prompt(f'a{prompt}', Bytes(), 20)
    assert repr(template.pieces[1]) == piece
    ((i, matching),) = template.matching.items()
    lengths = [*map(int, lengths.split())]
    assert (i, matching.lengths) == (1, lengths)
    assert [n for n in range(1, 21) if template.may_have(1, n)] == lengths
    assert template.lay_out().patterns == [(1, 1 + lengths[0], matching.pattern)]


def test_parts_with_patterns_are_laid_out_behind_lengths_that_were_chosen(zeros):
    template = p.parse_prompt('a[[1-3]]b[[2/00/]][[..]]c[[/0|00/]]d', Bytes(), 20)
    assert len(template.unknown) == 2
    one, two = [matching.pattern for matching in template.matching.values()]
    assert template.lay_out((3, 2)).patterns == [(5, 7, one), (17, 19, two)]
    template.pattern = Zeros('.*')  # of the whole
    assert template.lay_out((3, 2)).patterns == [(0, 20, template.pattern)]
    assert p.read_pattern('') is p.read_pattern(None) is None
    assert p.read_pattern(r'a\n') == Zeros(r'a\n')
    assert p.read_pattern(one) is one


# prompts of at most 20 tokens, and what is said of them
BAD = {
    '[[0]]': 'a blank is',
    '[[x]]': 'a blank is',
    '[[5-]]': 'a blank is',
    '[[//]]': r'a blank is .*\[\[/pattern/\]\]',
    '[[/a]]': 'a blank is',
    '[[0/a/]]': 'a blank is',
    '[[?/a/]]': 'a blank is',
    '[[../a/]]': 'a blank is',
    '[[5-2]]': 'least to its most',
    '\udce9': 'in UTF-8',
    '[[99999999/0*/]]': 'does not fit into length=20',
    '[[50-60/0*/]]': 'does not fit into length=20',
    'abcdefghij[[2-12/0+/]]klm': 'has room for 7',
    'abcdefghij[[8]]klm': '21 tokens, .* does not fit',
    '[[/0+/]]': 'no text follows',
    'a[[?]]': 'no text follows',
    '[[?]][[2]]': 'no text follows',
    '[[..]][[/0+/]]b': r'right behind a \[\[\.\.',
    '[[..]][[1]][[?]]b': r'right behind a \[\[\.\.',
}


@pytest.mark.parametrize('prompt, said', BAD.items())
def test_a_wrong_prompt_is_one_line(zeros, prompt, said):
    with one_line(said):
        p.parse_prompt(prompt, Bytes(), 20)
    with one_line(f'prompt 2 of 2: .*{said}'):
        p.parse_prompts(['a', prompt], Bytes(), 20)


@pytest.mark.parametrize('row', [[], [300], [-2], [1.5], [[1]], ['a'], [True, False], [None]])
def test_a_row_that_is_none_is_one_line(row):
    with one_line('integers from 0 to 256, and -1 for a blank, got'):
        p.parse_prompt(row, Bytes(), 20)
    good = p.parse_prompt(np.array([1.0, -1.0, 256.0]), Bytes(), 20).lay_out()
    assert (good.tokens, good.known) == ([1, 0, 256], [True, False, True])


@pytest.mark.parametrize(
    'option, text',
    [
        (r'a\nb', 'a\nb'),
        (r'\n\n', '\n\n'),
        (r'a\\nb', r'a\nb'),
        (r'a\\\nb', r'a\\nb'),
        (r'a\tb\\', r'a\tb\\'),
        ('a\nb', 'a\nb'),
        (r'\[[n', r'\[[n'),
        ('n', 'n'),
        ('', ''),
    ],
)
def test_a_line_end_is_typed_by_one_rule_in_a_prompt_and_a_stop(option, text):
    assert p.typed(option) == text
    assert p.read_prompts(option) == [text]
    assert parse_stop(option) == text


def test_a_file_of_prompts_has_one_on_each_line(folder, monkeypatch):
    path = folder / 'p.jsonl'
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b[[1]]"}\n[1, -1]')
    assert p.read_prompts('FILE:p.jsonl') == ['a', 'b[[1]]', [1, -1]]
    path.write_text(r'{"prompt": "a\\nb\nc"}')  # as JSON has it
    monkeypatch.setenv('HOME', str(folder))
    assert p.read_prompts('FILE:~/p.jsonl') == ['a\\nb\nc']
    for content in ('[' * 20000, '{"prompt": 1}'):
        path.write_text(content)
        with one_line('line 1 of p.jsonl cannot be read as a prompt: write'):
            p.read_prompts('FILE:p.jsonl')
    np.save('rows.npy', [[1, -1], [2, 3]])
    assert p.read_prompts('FILE:rows.npy') == [[1, -1], [2, 3]]
    np.save('rows.npy', np.zeros((0, 8), int))
    for name, said in (('rows.npy', 'holds no prompt'), ('none', 'must name'), ('.', 'must name')):
        with one_line(said):
            p.read_prompts(f'FILE:{name}')


@pytest.mark.parametrize(
    'text, prefix, want',
    [
        ('<|endoftext|>ab', [256], b'ab'),
        ('ab', [256], b'ab'),
        ('<|endoftext|>ab', [], [256, *b'ab']),
        ('', [256], b''),
        ('<|endoftext|><|endoftext|>', [256], [256]),
        ('<|endoftext|>', [256, 256], [256]),
    ],
)
def test_a_text_that_is_written_with_its_beginning_has_it_once(text, prefix, want):
    pieces = p.parse_prompt(f'{text}[[2]]<|endoftext|>', Bytes(), 9, tuple(prefix)).pieces
    assert pieces == [([*want], 'known'), (2, 'blank'), ([256], 'known')]  # a later one stays


BORDERS = (
    'ab[[=cd]]ef|a b[[=c]] d|abc[[=d]]|a b [[=c]] d|a [[=b]][[=c]]|[[=ab]]cd|a b[[=c ]]d|'
    'a([[=b]].)|[[=a]] b [[=c]]ef|a[[= b]]'
)


@pytest.mark.parametrize('kind', LIKE[:-1])
def test_texts_at_a_border_stand_as_they_are_typed(kind):
    tok = like(kind)
    n_refused = 0
    for prompt in BORDERS.split('|'):
        text = prompt.replace('[[=', '').replace(']]', '')
        try:
            pieces = p.parse_prompt(prompt, tok, 40).pieces
        except ValueError as e:
            assert 'right behind' in str(e)
            n_refused += 1
            continue
        written = tok.decode([token for ids, _ in pieces for token in ids])
        assert written == tok.decode(tok.encode(text))
        assert written.replace(' ', '') == text.replace(' ', '')
    assert bool(n_refused) == (kind == 'ends of words')


@pytest.mark.parametrize(
    'kind, prompt, want',
    [
        ('metaspace always', 'a [[=b]] c', '▁a ▁b ▁c'),
        ('sentences', 'a[[1]] b', '▁a ▁b'),
        ('metaspace always', 'ab[[1]]cd e', '▁a b cd ▁e'),
        ('sentences', ' [[=a]]', '▁ ▁a'),
        ('wordpiece', 'a[[1]]b', 'a ##b'),
        ('wordpiece', 'a [[1]] ef', 'a ef'),
        ('wordpiece', 'a([[=ef]].)', 'a ( ef . )'),
        ('wordpiece', '[[1]]ef', '##ef'),
        ('wordpiece', '[[=ef]]', 'ef'),
        ('bytes', 'a [[=a]]', 'a Ġa'),
        ('words', 'a [[2]] b [[=ab]]', 'a b ab'),
        ('words', 'a[[=b]]', "right behind 'a',"),
        ('words', 'a [[2]]b', "right behind 'a blank',"),
        ('words', 'a[[=b]]a', "right behind 'a',"),
    ],
)
def test_tokens_at_a_border(kind, prompt, want):
    tok = like(kind)
    if want.startswith('right'):  # a word that no token goes on
        with one_line(f'{want} .*border'):
            p.parse_prompt(prompt, tok, 9)
        return
    pieces = p.parse_prompt(prompt, tok, 40).pieces
    tokens = [token for ids, kind in pieces if kind != 'blank' for token in ids]
    assert ' '.join(map(tok.backend.id_to_token, tokens)) == want


@pytest.mark.parametrize(
    'prompt, pieces, said',
    [
        ('The [[=quick]] fox', 'The| quick| fox', 0),
        ('The[[= quick]]', 'The| quick', 0),
        ('The  [[=quick]]', 'The| | quick', 0),
        ('The [[=  quick]]', 'The| | | quick', 0),
        (' [[=quick]]', ' quick', 0),
        ('a\n[[=b]]', 'a|\n|b', 0),
        ('a\n [[=quick]]', 'a|\n| quick', 0),
        ('[[1]] [[=quick]]', ' quick', 0),
        ('foo([[=bar]])', 'foo|(|bar|)', 0),
        ('The [[2]] fox', 'The| | fox', 1),
        ('The[[2]] fox', 'The| fox', 0),
        ('The [[?]] fox', 'The| | fox', 1),
        ('The [[..]]', 'The| ', 1),
        ('The ', 'The| ', 1),
        ('a\n[[..]]', 'a|\n', 0),
        ('The [[1]] [[=fox]] [[2-3]] a', 'The| | fox| | a', 1),
    ],
)
def test_a_word_of_gpt2_begins_with_its_space(prompt, pieces, said, capsys):
    for tok in (Bytes(), gpt2()):  # the words of bytes begin with no space
        (template,) = p.parse_prompts([prompt], tok, 40)
        err = capsys.readouterr().err
        n_said = 0 if tok.name == 'bytes' else said
        assert err.count('\n') == err.count(']]') == n_said
    texts = (value for value, _ in template.pieces if isinstance(value, list))
    assert [tok.decode([token]) for value in texts for token in value] == pieces.split('|')


def test_a_space_before_an_answer_of_bytes_stays():
    known, answer, _ = p.parse_prompt('a [[=b]]', Bytes(), 9).pieces
    assert (known, answer) == (([*b'a '], 'known'), ([*b'b'], 'answer'))


@pytest.mark.parametrize(
    'kind, prompts, unknown, n_tokens',
    [
        ('wordpiece', ['ab É[[2]]', 'é ZZ[[1]] !'], ['!'], 7),
        ('bytes', ['ä<unk>[[1]]'], [], 7),
        ('words', ['a [UNK] [[1]] c', 'c c[[2]]'], ['c', 'c', 'c'], 5),
        ('letters', ['aéb ¶'], ['é', ' ', '¶'], 5),
        ('metaspace always', ['abÄ[[1]]ÄÖ ü'], ['Ä', 'ÄÖ', 'ü'], 6),
        ('sentences', ['ä[[=é]]'], ['ä', 'é'], 3),
        ('sentences and bytes', ['ä[[=é]]'], [], 5),
    ],
)
def test_unknown_tokens_are_said_once(kind, prompts, unknown, n_tokens, capsys):
    p.parse_prompts(prompts, like(kind), 40)
    err = capsys.readouterr().err
    assert err.count('\n') == bool(unknown)
    if unknown:
        assert f'{len(unknown)} of {n_tokens} tokens are unknown' in err
        assert repr(unknown[0]) in err
