"""Tokenizers: laws of all kinds, how they are opened and kept, what is shown, and prompts."""

import functools
import json
import os
import random
import re
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import make_model, one_line, tokenizer_like

from anyorder.checkpoint import entries_of, save_checkpoint
from anyorder.datasets import open_split
from anyorder.generation import prompts as p
from anyorder.likelihood.measured import open_corpus
from anyorder.tokens.choices import choose
from anyorder.tokens.libraries import LONG_WORD, Library, heard, train_bpe
from anyorder.tokens.meta import Meta, read_meta
from anyorder.tokens.mixture import mixed
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.ranks import file_of_ranks
from anyorder.tokens.shown import lay_out, shown_text, token_texts, written_text
from anyorder.tokens.tokenizer import END_OF_TEXT, PART, tokens_of
from anyorder.tokens.tokenizers import (
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
WHOLE = ('bytes of UTF-8', 'gpt2', 'tiktoken', 'bpe')  # which spell every text


# as that of cl100k_base
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r'|\s++$|\s*[\r\n]|\s+(?!\S)|\s'
)


def small_encoding():
    """An Encoding of tiktoken of all bytes, a few pairs, special tokens and gaps between them."""
    tiktoken = pytest.importorskip('tiktoken')
    tokens = [*(bytes([b]) for b in range(256)), b'th', b'the', b' t', b'aa', b'12', b'aaa']
    ranks = {token: i for i, token in enumerate(tokens)}
    special = {'<|fim|>': 300, '</s>': 262}
    return tiktoken.Encoding('s', pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def of_tiktoken():
    """The tokenizer that it becomes."""
    pytest.importorskip('tokenizers')
    return Library.of_file('tiktoken:s', file_of_ranks(small_encoding()))


def trained(n_tokens=300):
    pytest.importorskip('tokenizers')
    return train_bpe(f'bpe:{n_tokens}', n_tokens, [TEXT, TEXT, 'the end'])


def changed(tok, *tokens, **parts):
    """The tokenizer with other parts of its tokenizer.json, and with tokens that are added."""
    file = json.loads(tok.file) | parts
    flags = dict.fromkeys(('special', 'normalized', 'single_word', 'lstrip', 'rstrip'), False)
    for one in tokens:
        file['added_tokens'].append({'id': tok.n_tokens, **flags, **one})
    return Library.of_file('changed.json', json.dumps(file))


def gpt2():
    try:
        get_tokenizer('gpt2').encode('')
    except (ImportError, ValueError):
        pytest.skip('the GPT-2 vocabulary is not cached')
    return get_tokenizer('gpt2')


OPENED = {
    'bytes of UTF-8': Bytes,
    'gpt2': gpt2,
    'tiktoken': of_tiktoken,
    'bpe': lambda: changed(trained(), {'content': '<|mask|>', 'special': True}),
}


@functools.cache
def opened(kind):
    """A tokenizer of this kind, made once."""
    if kind in OPENED:
        return OPENED[kind]()
    return Library.of_file(f'{kind}.json', tokenizer_like(kind).file)


def kind_of_tokenizer(tok):
    """What a checkpoint keeps of it."""
    return Meta('', tok.name, tok.n_tokens, tok.eos, tokenizer_file=tok.file)


# --------------------------------------------------------------------------------------------------
# laws of all tokenizers


@pytest.mark.parametrize('kind', [*WHOLE, *LIKE])
def test_a_text_comes_back_from_its_ids_also_by_what_a_checkpoint_keeps(kind):
    tok = opened(kind)
    again = tokenizer_of_set(kind_of_tokenizer(tok))
    assert again.identity == tok.identity
    marked = f'<|mask|>a{END_OF_TEXT}<|fim|> b' if kind in WHOLE else f'a{END_OF_TEXT}b'
    spans = tok.shown_spans(marked)
    shown = tokens_of(spans)
    parts = [marked[start:end] for _, start, end in spans]
    assert ''.join(parts) == marked or kind in LIKE
    special = {tok.eos, *tok.special.values()}
    assert shown.count(tok.eos) == 1
    assert again.decode(shown).replace(' ', '') == marked.replace(' ', '')
    for text in (WORDS, '', TEXT, marked)[: 4 if kind in WHOLE else 2]:
        ids = tok.encode(text)
        spans = tok.spans(text)
        assert {*ids} <= {*range(tok.n_tokens)} - special
        assert tokens_of(spans) == ids == [*again.encode_batch([text])[0]]
        assert again.decode(ids).replace(' ', '') == text.replace(' ', '')
        for i, start, end in spans:
            one = tok.decode([i])
            assert start < end and (kind in LIKE or PART in one or one == text[start:end])
        if tok.n_bytes is not None:
            assert tok.decode(ids) == text
            assert tok.n_bytes[ids].sum() == len(text.encode())
            assert not tok.n_bytes[[*special]].any()


def encoded(documents, tok, **kind):
    for *found, _ in encode_documents(documents, tok, Meta(n_tokens=tok.n_tokens, **kind)):
        yield found


@pytest.mark.parametrize('kind', ['bytes of UTF-8', *LIKE])
def test_a_prompt_and_its_answer_are_the_whole_text(kind):
    """No letter of the answer is given, and what is given has the highest bit on disk."""
    tok = opened(kind)
    whole = tok.encode(WORDS)
    pairs = [(WORDS[:n], WORDS[n:]) for n in range(len(WORDS) + 1)]
    both = tok.encode_pairs(pairs)
    for (prompt, _), found, (row, _) in zip(
        pairs, both, encoded(pairs, tok, given=True, prompts=True)
    ):
        given, rest = ([*map(int, ids)] for ids in found)
        assert tok.decode(given + rest) == tok.decode(whole)
        assert given + rest == whole or tok.is_bytes
        assert len(tok.decode(given).strip()) <= len(prompt)
        assert row.tolist() == [*(1 << 15 | i for i in given), *rest, tok.eos]


BY_BYTES = ('bytes of UTF-8', 'bytes behind a space', 'bytes NFC', 'sentences and bytes')


@pytest.mark.parametrize(
    'kind, text',
    [(kind, WORDS) for kind in LIKE if kind != 'ends of words']
    + [(kind, 'é a你\n🙂b 🙂🙂 é\ufffd<|endoftext|>a é') for kind in BY_BYTES],
)
def test_the_text_of_a_part_is_that_of_the_text_at_the_end(kind, text):
    """Of each token alone, a letter of several at the last, and of all from each place on."""
    tok = opened(kind)
    ids = tokens_of(tok.shown_spans(text))
    whole = tok.decode(ids)
    assert ''.join(token_texts(ids, tok)) == whole
    for n in range(len(ids)):
        before = tok.decode(ids[:n])
        if not before.endswith(PART):
            written = [i >= n for i in range(len(ids))]
            assert before + written_text(ids, written, tok) == whole


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
        first, more, last = (some_text(rng, 16, letters) for _ in range(3))
        ((wanted, n_bytes),) = encoded([first + more + last], tok)
        found, sizes = zip(*encoded([Begun(first), Begun(more), last], tok))
        assert np.concatenate(found).tolist() == wanted.tolist()
        assert sum(sizes) == n_bytes
        n_pieces += len(found)
    assert (n_pieces > 100) == (tok.cut_place('a b') > 0)


# --------------------------------------------------------------------------------------------------
# what one kind alone has


def test_bytes_and_gpt2_by_hand():
    tok = Bytes()
    assert tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�'
    assert tok.cut_place('a b') == 3
    assert token_texts([97, 195], tok) == ['a', PART]
    assert gpt2().encode('hello world') == [31373, 995]
    assert choose('tiktoken:gpt2') is gpt2()


def test_symbols_are_the_longest_that_fit_or_stand_between_blanks():
    assert Symbols('own', ['a', 'ab', 'b']).encode('abab') == [1, 1]
    words = Symbols('words', ['up', 'down', 'u'], ' ', eos=2)
    assert words.spans(' up  down') == [(0, 1, 3), (1, 5, 9)]
    assert tokenizer_of_set(Meta('', 'own', 11)).encode('10 0') == [10, 0]
    for other, text in ((words, 'up left'), (get_tokenizer('sudoku4'), '12<|endoftext|>')):
        with one_line(f'{other.name} has the tokens'):
            other.shown_spans(text)


def test_the_tokens_of_long_runs_are_those_of_the_whole_text():
    """Also of a million letters, for which the library itself takes hours."""
    tok = gpt2()
    rng = random.Random(0)
    for size in (1, 2, 998, 999, 1000, 1001, 1999, 2000, 5000):
        runs = (''.join(rng.choices(' \n\r\t\xa0\x1c\u2028', k=size)) for _ in range(4))
        text = rng.choice(('a', "'s", '1', '?!', 'é')).join(runs)
        assert tok.encode(text) == tok.bpe.encode_ordinary(text)
    parts = ['!', ' ' * 10**6, ' c']
    ids = [i for part in parts for i in tok.bpe.encode_ordinary(part)]
    assert tok.encode_batch(['c', ''.join(parts)]) == [tok.encode('c'), ids]


def test_the_tokens_of_an_encoding_of_tiktoken_keep_their_ids():
    """Also of a run of blanks for which tiktoken itself panics."""
    encoding = small_encoding()
    tok = opened('tiktoken')
    rng = random.Random(1)
    for _ in range(500):
        text = some_text(rng, 24, [*LETTERS, 'the', 'aa', '12', "'S", '/'])
        assert tok.encode(text) == encoding.encode_ordinary(text)
    assert tok.decode([280, 300, 262]) == f'<|280|><|fim|>{END_OF_TEXT}'
    assert len(tok.encode(f'a{" " * 10**6}b')) == 10**6 + 2


def test_words_that_are_learned_are_those_of_gpt2_up_to_a_length():
    pre_tokenizers = pytest.importorskip('tokenizers').pre_tokenizers
    tok = trained()
    assert tok.file == trained().file
    rng = random.Random(3)
    of_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = tok.backend.pre_tokenizer.pre_tokenize_str
    for _ in range(200):
        text = some_text(rng, LONG_WORD)
        assert words(text) == of_gpt2(text)
    for run in ('中', 'ACGT', '1', '-', ' ', 'é\u0301'):
        sizes = [end - start for _, (start, end) in words(run * 500)]
        assert sum(sizes) == len(run * 500)
        assert max(sizes) <= LONG_WORD + 1  # and its space
    assert tok.cut_place('中' * 500) > 400


def test_a_signal_ends_what_is_learned_in_a_thread():
    def interrupt(*_):
        raise KeyboardInterrupt

    def learn(texts):
        while True:  # no signal is heard here
            next(texts)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            heard(learn, iter(lambda: 'a', ''))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard(''.join, ['a', 'b']) == 'ab'
    with pytest.raises(ZeroDivisionError):
        heard(list, (1 / 0 for _ in 'a'))


def test_only_the_first_word_of_a_text_begins_it():
    """A word behind the end of a document does not."""
    tok = opened('metaspace first')
    shown = tokens_of(tok.shown_spans(f'a{END_OF_TEXT}b'))
    assert [*map(tok.backend.id_to_token, shown)] == ['▁a', END_OF_TEXT, 'b']


def test_documents_are_read_together_and_nothing_ends_one_where_no_token_does():
    tok = tokenizer_like('letters')
    for tok.n_tokens, dtype in ((2**16, '<u2'), (2**16 + 1, '<u4')):
        ((tokens, n_bytes),) = encoded([Begun('a'), Begun('b'), 'b'], tok)
        assert (tokens.tolist(), tokens.dtype, n_bytes) == ([0, 1, 1], dtype, 3)
    documents = ['ab', 'cd', 'efgh', 'i', ('jk', 'lm'), 'n', 'o', 'p']
    assert [len(batch) for batch in batches(documents, 3, 4)] == [2, 1, 2, 3]


# --------------------------------------------------------------------------------------------------
# which one is opened, and what is kept of it


def test_what_a_file_says_beside_its_tokens_cuts_no_text_and_is_told_from_bytes():
    tok = trained()
    file = json.loads(tok.file)
    model = file['model'] | {'dropout': 0.9}
    cut = {'direction': 'Right', 'max_length': 2, 'strategy': 'LongestFirst', 'stride': 0}
    frame = {'type': 'BertProcessing', 'sep': ['a', 1], 'cls': ['b', 2]}
    other = changed(tok, truncation=cut, model=model, post_processor=frame)
    assert other.encode(TEXT) == tok.encode(TEXT)
    assert (other.cut_place('a b'), other.about_bytes()) == (1, '')
    removed = {'type': 'Split', 'pattern': {'String': 'x'}, 'behavior': 'Removed', 'invert': False}
    behind = file['pre_tokenizer']['pretokenizers'] + [removed]
    changes = [
        {'normalizer': {'type': 'NFC'}},
        {'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True}},
        {'decoder': {'type': 'Fuse'}},
        {'model': model | {'end_of_word_suffix': '</w>'}},
        {'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': behind}},
    ]
    found = [changed(tok, **parts) for parts in changes]
    for one in ({'content': 'xy', 'rstrip': True}, {'content': 'xy'}):
        found.append(changed(tok, one))
    assert [one.n_bytes is None and bool(one.about_bytes()) for one in found] == 6 * [True] + [
        False
    ]
    assert [one.cut_place('a b') for one in found] == 7 * [0]


# (a name of a tokenizer, its file or what it says of the model, what is said)
WRONG = [
    ('gtp2', None, 'tokenizer must be bytes'),
    ('tiktoken:cl100k', None, 'cl100k_base'),
    ('bpe:256', None, 'from 257'),
    ('bpe:1048577', None, 'from 257'),
    ('hf:me/wrods', None, 'hf:me/wrods cannot be read .*OSError'),
    ('a.json', {'type': 'New'}, 'pip install -U tokenizers'),
    ('a.json', {'vocab': None}, 'cannot be read as a tokenizer.json'),
    ('a.json', {'vocab': {'[UNK]': 0}}, "a.json has no token for 'ab'"),
    ('a.json', {'vocab': {'[UNK]': 0, 'a': 1 << 24}}, 'a.json must have an id below 16,777,216'),
    ('a.json', {'vocab': {'[UNK]': 0, 'a': 5, 'b': 5}}, 'and none for two'),
    ('.', '{"model_type": "aogpt", "tokenizer": "sudoku4"}', 'has sudoku4 tokens, which are'),
    ('.', '{"model_type": "llada"}', 'holds no tokenizer.json'),
    ('.', '[]', 'cannot be read as the config.json'),
    ('.', '{"model_type": "aogpt", "tokenizer": ["bytes"]}', 'cannot be read as a set or a model'),
    ('.', '{"eos_token": ["x"]}', 'holds no tokenizer.json'),
]


@pytest.mark.parametrize('name, file, said', WRONG)
def test_a_tokenizer_that_is_none_is_one_line_before_anything_is_written(hub, name, file, said):
    if isinstance(file, dict):  # of the model in a tokenizer.json
        parts = json.loads(opened('words').file)
        parts['model'] |= file
        Path(name).write_text(json.dumps(parts))
    elif file:
        kind = 'tokenizer_config' if 'eos' in file else 'config'
        Path(f'{kind}.json').write_text(file)
    with one_line(said):
        prepared(name, text=WORDS)
    assert not os.path.exists('a')


def prepared(tokenizer, name='a', text=TEXT * 40, **more):
    Path('a.txt').write_text(text)
    return prepare('text', '.', name, 'a.txt', tokenizer=tokenizer, **more)


def test_a_set_keeps_its_tokenizer_and_is_found_by_its_folder(capsys):
    pytest.importorskip('tokenizers')
    prepared('bpe:280')
    shutil.move('a', 'b')
    meta = read_meta('b')
    tok = tokenizer_of_set(meta)
    train = open_split('.', 'b', 'train').packed[:-1].tolist()
    assert tok.decode(train) == TEXT * 36
    of_file = prepared('b/tokenizer.json', 'c')
    assert tokenizer_of_set(of_file).identity == tok.identity
    for name, said in (('b', r'another kind \(tokenizer\)'), ('e', 'trained on a train split')):
        with one_line(said):
            prepare('text', '.', name, 'a.txt', 'test', tokenizer='bpe:290')
    with open('b/tokenizer.json', 'a') as f:
        f.write(' ')
    with one_line('damaged.*--force'):
        prepared('bpe:280', 'b')
    assert prepared('bpe:280', 'b', force=True) == meta == read_meta('b')
    Path('w.json').write_text(opened('words').file)
    prepared('w.json', 'w', f'{WORDS} ' * 9)
    assert 'bits a byte are not known of w.json' in capsys.readouterr().out


@pytest.fixture
def hub(monkeypatch):
    """hub.put('OWNER/NAME', {file: text}) has it downloaded from there. What is asked is noted."""
    huggingface_hub = pytest.importorskip('huggingface_hub')
    pytest.importorskip('tokenizers')
    there = {}
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        path = Path('cache', name)
        if name not in there:
            raise OSError('no such repository\nof this name')
        path.mkdir(parents=True, exist_ok=True)
        for file in there[name].keys() & {*allow_patterns}:
            (path / file).write_text(there[name][file])
        return str(path)

    monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot)
    return SimpleNamespace(put=there.__setitem__, asked=asked)


@pytest.mark.parametrize('form', ['tokenizer.json', 'merges.txt'])
def test_a_tokenizer_of_the_hub_is_downloaded_once_and_kept(hub, form):
    tok = trained()
    model = json.loads(tok.file)['model']
    files = {
        'vocab.json': json.dumps(model['vocab']),
        'merges.txt': '\n'.join(['#version: 0.2', *map(' '.join, model['merges'])]),
        'tokenizer_config.json': '{"eos_token": "<end>"}',
    }
    if form == 'tokenizer.json':
        tok.backend.add_special_tokens(['<end>'])
        files = {
            'tokenizer.json': tok.backend.to_str().replace(END_OF_TEXT, '<pad>'),
            'tokenizer_config.json': '{"eos_token": {"content": "<end>"}}',
        }
    others = {'tokenization_own.py': 'raise SystemExit', 'model.safetensors': 'gigabytes'}
    hub.put('me/Words-1.5', files | others)
    name = 'hf:me/Words-1.5'
    meta = prepared(name)
    found = tokenizer_of_set(meta)
    assert {*os.listdir('cache/me/Words-1.5')} == {*files}
    assert (meta.tokenizer, found.special['<end>']) == (name, meta.eos)
    assert found.encode(TEXT) == tok.encode(TEXT)

    # The second split has it again, and all that comes after has it from the set
    prepared(name, text=TEXT, split='test')
    shutil.rmtree('cache')
    train = open_split('.', 'a', 'train').packed.tolist()
    assert tokenizer_of_set(read_meta('a')).decode(train) == TEXT * 36 + END_OF_TEXT
    assert prepared('a', 'b').tokenizer == name
    assert hub.asked == ['me/Words-1.5'] * 2


OTHER = 'A tale of two cities, in two books: the other one is not of this time. Ärger, 日本語!\n'
LEARNED = [
    ('bpe:280', 'bpe:280'),  # of one name and one size, from other texts
    ('bytes', 'bpe:280'),
    ('bpe:280', 'bytes'),
]


@pytest.mark.parametrize('of_training, of_set', LEARNED)
@pytest.mark.parametrize('way', ['a', 'model'])
def test_the_way_out_of_tokenizers_that_differ_leads_out(of_training, of_set, way):
    """Mixing, going on to train and evaluating say --tokenizer=FOLDER, which each then takes: of a
    set or of an exported model."""
    pytest.importorskip('tokenizers')
    meta = prepared(of_training)
    tok = tokenizer_of_set(meta)
    entries = entries_of(make_model(vocab_size=320, n_tokens=tok.n_tokens))
    checkpoint = SimpleNamespace(tokenizer=tok, entries=entries, weights='raw')
    config = Config(dataset='b', dropout=0.0, init_from='ckpt.pt')
    os.mkdir('model')
    exported = {'model_type': 'aogpt', 'tokenizer': tok.name, 'set': asdict(meta)}
    Path('model/config.json').write_text(json.dumps(exported))
    ways = (
        lambda other, name: mixed([meta, other]),
        lambda other, name: start_model(config, checkpoint, tokenizer_of_set(other)),
        lambda other, name: open_corpus(name, 4, tok, '.'),
    )
    other = prepared(of_set, 'b', OTHER * 40)
    for read in ways:
        with one_line('--tokenizer='):
            read(other, 'b')
    other = prepared(way, 'c', OTHER * 40)
    for read in ways:
        read(other, 'c')


def test_no_letter_of_a_text_is_left_out_but_on_purpose():
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.BPE({'a': 0, 'b': 1, ' ': 2, '?': 3}, []))
    with one_line(r"no token for '\\n'"):
        Library.of_file('letters', backend.to_str()).encode('a\nb')
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # which takes blanks out on purpose
    assert Library.of_file('words', backend.to_str()).encode('a\nb') == [0, 1]
    backend.model.unk_token = '?'
    backend.normalizer = normalizers.Replace('b', '')
    with one_line("no token for 'b'"):  # which the token for what is unknown does not stand for
        Library.of_file('without', backend.to_str()).encode('a b')
    tok = tokenizer_like('nothing else')  # a vocabulary without a token for what it lacks
    for read in (tok.encode, tok.spans, lambda text: tok.encode_batch([text])):
        with one_line('nothing else cannot spell all of'):
            read('abc')


def test_what_is_missing_is_one_line_before_a_download(monkeypatch):
    def fail(*args):
        raise ConnectionError('a\nlong story')

    monkeypatch.setattr('tiktoken.get_encoding', fail)
    get_tokenizer.cache_clear()
    monkeypatch.setattr(DATA_SETS['openwebtext'], 'documents', list)
    with one_line('--tokenizer=bytes'):
        prepare('openwebtext', '.')
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    with pytest.raises(ModuleNotFoundError):
        choose('bpe:4096')


# --------------------------------------------------------------------------------------------------
# what a Writer shows and looks for is a part of the text at the end


@pytest.fixture(
    scope='module',
    params=['bytes', 'metaspace first', 'sentences and bytes', 'wordpiece', 'ends of words'],
)
def writer(request, tmp_path_factory):
    """A Writer of a tokenizer of this kind, which writes the tokens of WORDS alone."""
    tok = opened(request.param)
    model = make_model(block_size=16, vocab_size=320, n_tokens=tok.n_tokens).float()
    model.lm_head.bias -= 1e4
    model.lm_head.bias[tok.encode(WORDS)] += 1e4
    path = str(tmp_path_factory.mktemp('words') / 'ckpt.pt')
    save_checkpoint(path, model, tokenizer=tok.name, set=asdict(kind_of_tokenizer(tok)))
    return Writer(path, device='cpu')


def test_what_a_writer_shows_is_a_part_of_the_text_at_the_end(writer):
    tok = writer.tokenizer
    end = writer.infill('ab[[3]] x[[..]]', top_logprobs=2, length=16)
    *seen, last = writer.stream('ab[[3]] x[[..]]', length=16)
    assert last == end == tok.decode(end.sample['tokens'])
    seen.append(''.join('·' if one is None else one['text'] for one in end.top_logprobs))
    blank = ' ' if tok.why_no_parts else ''  # of the token before it, which may be a blank
    for text in seen:
        shown = map(re.escape, text.replace(blank, '').split('·'))
        assert re.fullmatch('.*'.join(shown), end.replace(blank, ''))

    n = len(tok.decode(tok.encode('ab')))
    whole = writer.infill('ab', length=16, order='l2r')
    stop = whole[n + 1 : n + 4]
    text = writer.infill('ab', length=16, order='l2r', stop=stop)
    assert stop in text[n:] and whole.startswith(text)
    assert stop not in tok.decode(text.sample['tokens'][:-1])[n:]


def test_a_grid_is_shown_in_cells_of_equal_width_and_a_text_as_it_is():
    tok = Symbols('own', ['a', 'bc', '日本'], '.')
    for tokens, columns, text in (
        ([0, 1, 2, 0], 2, '   a   bc\n日本    a'),
        ([0, -1, 2, 0], 2, '   a    ·\n日本    a'),
        ([0, 1, 2], 0, 'a.bc.日本'),
        ([0, -1], 0, 'a.·'),
    ):
        assert shown_text(tokens, tok, columns) == text


LINES = {  # texts, and the lines that they take
    'ab|cd': 'ab|c;d',
    'a\nb|c': 'a↵;b|c',
    '\n\n|a': '↵;↵|;a',
    '中中|a': '中;中|a',
    'e\u0301\t\x07b|': 'e\u0301 b|',
}


@pytest.mark.parametrize('texts, lines', LINES.items())
def test_texts_stand_on_lines_of_three_columns(texts, lines):
    """A letter may take two columns or none, and what cannot be printed is left out."""
    found = ''
    last = 0
    for letters in lay_out(texts.split('|'), 3):
        for line, letter in letters:
            found += ';' * (line - last) + letter
            last = line
        found += '|'
    assert found[:-1] == lines


# --------------------------------------------------------------------------------------------------
# prompts


LAID_OUT = {
    'ab [[3]] c[[=xy]]d': 'ab ___ cXYd',
    'ab[[..]]c': 'ab___c',
    'abc': 'abc__',
    '': '__',
    r'a \[[3]]': 'a [[3]]__',
    '[[1]]a[[..]]b': '_a___b',
    '[[..]]a[[..]]b[[..]]': '___a__b__',
    r'[[=\[[x]]': '[[X',
    'a]]b[[1]]': 'a]]b_',
    'x[[[2]]]': 'x[__]',
    '[[=a\nb]]': 'A\nB',
    'a [[=b]]': 'a B',
    '[[2]]a[[?]]b': '__a_b',
    '<|endoftext|>ab[[=c<|endoftext|>]]': 'ĀabCĀ',
}


@pytest.mark.parametrize('prompt, laid_out', LAID_OUT.items())
def test_a_prompt_is_laid_out(prompt, laid_out):
    """A blank is shown as _, and an answer in capitals; Ā is 256, the end of a document."""
    text = p.parse_prompt(prompt, Bytes(), len(laid_out))
    shown = ''
    for token, kind in zip(map(chr, text.tokens), text.kinds):
        shown += {'given': token, 'answer': token.upper()}.get(kind, '_')
    assert shown == laid_out


@pytest.fixture
def patterns():
    pytest.importorskip('outlines_core')


PATTERNS = {  # a prompt, its pieces, and its patterns
    'a[[/0+/]]b': 'a|(1, None)|b with 0+',
    'a [[2-12/[0-9]+/]].': 'a |(2, 12)|. with [0-9]+',
    '[[/a]]b/]]c': '|(1, None)|c with a]]b',
    '[[/[[0]+/]]': '|(1, None)| with [[0]+',
    r'[[/a\/]]b/]]': '|(1, None)| with a/]]b',
    r'[[/a\\/]]b': r'|(1, None)|b with a\\',
    r'[[/\\\/\./]]': r'|(1, None)| with \\/\.',
    '[[[2/0/]]]': '[|2|] with 0',
    r'\[[/0/]][[/1/]]': '[[/0/]]|(1, None)| with 1',
    '[[/0/]][[2]][[3/1/]]': '|(1, None)||2||3| with 0 1',
    '[[=/a/]]': '|/a/| with ',
    '[[///]]': '|(1, None)| with /',
}


@pytest.mark.parametrize('prompt, found', PATTERNS.items())
def test_a_pattern_ends_at_the_first_slash_before_brackets(prompt, found):
    pieces = p.split_blanks(prompt)
    shown = '|'.join(map(shown_piece, pieces))
    patterns = [piece.pattern for piece in pieces if piece.pattern]
    assert f'{shown} with {" ".join(patterns)}' == found


def shown_piece(piece):
    if piece.is_text:
        return piece.text
    return str((piece.least, piece.most) if piece.finds_length else piece.least)


LENGTHS = {  # a prompt, its blank, and the lengths that its blank may have
    '[[3/0*/]]': '3: 3',
    '[[/0{3}|0{5}|0{30}/]]b': '(3, None): 3 5',
    '[[4-9/(00)+/]]b': '(4, 8): 4 6 8',
    '[[4-30/0{5}|0{25}/]]b': '5: 5',
    '[[/0{17}0*/]]b': '(17, None): 17 18 19 20',
    '[[19/0+/]]': '19: 19',  # which just fits
}


@pytest.mark.parametrize('prompt, found', LENGTHS.items())
def test_a_pattern_says_which_lengths_its_blank_may_have(patterns, prompt, found):
    template = p.parse_prompt(f'a{prompt}', Bytes(), 20)
    piece = template.pieces[1]
    assert f'{shown_piece(piece)}: {" ".join(map(str, piece.lengths))}' == found
    assert [n for n in range(1, 21) if piece.may_have(n)] == piece.lengths
    assert template.patterns == [(1, 1 + piece.lengths[0], piece.pattern)]


def test_parts_with_patterns_are_laid_out_behind_lengths_that_were_chosen(patterns):
    template = p.parse_prompt('a[[1-3]]b[[/00/]][[..]]c[[/0|00/]]d', Bytes(), 20)
    found = [(start, end) for start, end, _ in template.with_lengths((3, 2)).patterns]
    assert found == [(5, 7), (17, 19)]


def test_a_pattern_behind_a_token_or_a_blank_is_within_a_text(patterns):
    template = p.parse_prompt('[[1/0/]][[1/0/]]a[[1/0/]]', Bytes(), 20)
    assert [pattern.within for *_, pattern in template.patterns] == [False, True, True]


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
def test_a_wrong_prompt_is_one_line(patterns, prompt, said):
    with one_line(f'prompt 2 of 2: .*{said}'):
        p.parse_prompts(['a', prompt], Bytes(), 20)


@pytest.mark.parametrize('row', [[], [300], [-2], [1.5], ['a'], [True, False]])
def test_a_row_that_is_none_is_one_line(row):
    with one_line('integers from 0 to 256, and -1 for a blank, got'):
        p.parse_prompt(row, Bytes(), 20)
    text = p.parse_prompt([1.0, -1.0], Bytes(), 20)
    assert [*zip(text.tokens, text.kinds)] == [(1, 'given'), (0, 'blank')]


@pytest.mark.parametrize(
    'option, text',
    {
        r'a\nb': 'a\nb',
        r'\n\n': '\n\n',
        r'a\\\nb': r'a\\nb',
        r'a\tb\\': r'a\tb\\',
        r'\[[n': r'\[[n',
    }.items(),
)
def test_a_line_end_is_typed_by_one_rule_in_a_prompt_and_a_stop(option, text):
    assert p.read_prompts(option) == [text]
    assert parse_stop(option) == text


def test_a_file_of_prompts_has_one_on_each_line(home):
    path = Path('p.jsonl')
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b\\nc"}\n[1, -1]')
    assert p.read_prompts('FILE:~/p.jsonl') == ['a', 'b\nc', [1, -1]]
    for content in ('[' * 20000, '{"prompt": 1}'):
        path.write_text(content)
        with one_line('line 1 of p.jsonl cannot be read as a prompt: write'):
            p.read_prompts('FILE:p.jsonl')
    np.save('a.npy', [[1, -1], [2, 3]])
    assert p.read_prompts('FILE:a.npy') == [[1, -1], [2, 3]]


def test_a_text_that_is_written_with_its_beginning_has_it_once():
    for text, n_first, want in (('a', 1, [97]), ('a', 0, [256, 97]), ('<|endoftext|>', 1, [256])):
        prompt = f'<|endoftext|>{text}[[2]]<|endoftext|>'
        known, _, last = p.parse_prompt(prompt, Bytes(), 9, n_first * (256,)).pieces
        assert (known.text, last.text) == (want, [256])  # a later one stays


AT_BORDERS = {
    'metaspace always': {'a [[=b]] c': '▁a ▁b ▁c', 'ab[[1]]cd e': '▁a b cd ▁e'},
    'sentences': {'a[[1]] b': '▁a ▁b', ' [[=a]]': '▁ ▁a'},
    'wordpiece': {
        'a[[1]]b': 'a ##b',
        'a [[1]] ef': 'a ef',
        'a([[=ef]].)': 'a ( ef . )',
        '[[1]]ef': '##ef',
        '[[=ef]]': 'ef',
    },
    'bytes': {'a [[=a]]': 'a Ġa', 'a([[=b]].)': 'a ( b . )'},
    'words': {
        'a [[2]] b [[=ab]]': 'a b ab',
        'a[[=b]]': "right behind 'a', .*border",
        'a [[2]]b': "right behind 'a blank', .*border",
    },
}


@pytest.mark.parametrize('kind', AT_BORDERS)
def test_tokens_at_a_border(kind):
    tok = tokenizer_like(kind)
    for prompt, want in AT_BORDERS[kind].items():
        if want.startswith('right'):  # a word that no token goes on
            with one_line(want):
                p.parse_prompt(prompt, tok, 9)
            continue
        pieces = p.parse_prompt(prompt, tok, 40).pieces
        tokens = [token for piece in pieces for token in piece.text]
        assert ' '.join(map(tok.backend.id_to_token, tokens)) == want


SPACED = {  # a prompt, its tokens, and what a line is said of: a space before a blank
    'The [[=quick]] fox': ('The| quick| fox', ''),
    'The  [[=quick]]': ('The| | quick', ''),
    'a\n[[=b]]': ('a|\n|b', ''),
    'a\n [[=quick]]': ('a|\n| quick', ''),
    '[[1]] [[=quick]]': (' quick', ''),
    'foo([[=bar]])': ('foo|(|bar|)', ''),
    'The [[2]] fox': ('The| | fox', 'The[[2]]'),
    'The[[2]] fox': ('The| fox', ''),
    'The ': ('The| ', 'The[[2]]'),
    'a\n[[..]]': ('a|\n', ''),
    'The [[1]] [[=fox]] [[2-3]] a': ('The| | fox| | a', 'The[[2]]'),
}


@pytest.mark.parametrize('prompt, found', SPACED.items())
def test_a_word_of_gpt2_begins_with_its_space(prompt, found, capsys):
    pieces, said = found
    p.parse_prompts([prompt], Bytes(), 40)  # whose words begin with no space
    (template,) = p.parse_prompts([prompt], gpt2(), 40)
    err = capsys.readouterr().err
    assert (err.count('\n'), said in err) == (bool(said), True)
    tokens = [token for piece in template.pieces for token in piece.text]
    assert [gpt2().decode([token]) for token in tokens] == pieces.split('|')


@pytest.mark.parametrize(
    'kind, prompts, said',
    [
        ('wordpiece', ['ab É[[2]]', 'é ZZ[[1]] !'], "1 of 7 tokens are unknown.*'!'"),
        ('bytes', ['ä<unk>[[1]]'], ''),
        ('words', ['a [UNK] [[1]] c', 'c c[[2]]'], "3 of 5 tokens are unknown.*'c'"),
        ('sentences', ['ä[[=é]]'], "2 of 3 tokens are unknown.*'ä'"),
    ],
)
def test_unknown_tokens_are_said_once(kind, prompts, said, capsys):
    p.parse_prompts(prompts, tokenizer_like(kind), 40)
    err = capsys.readouterr().err
    assert err.count('\n') == bool(said)
    assert re.search(said, err)
