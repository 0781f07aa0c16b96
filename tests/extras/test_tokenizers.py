"""Tokenizers of others: laws of all kinds, how they are opened and kept, and what is shown."""

import functools
import json
import os
import random
import shutil
import signal
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import gpt2, make_model, one_line, tokenizer_like

pytest.importorskip('tokenizers')
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from anyorder.checkpoint import entries_of
from anyorder.datasets import open_split
from anyorder.extras.tokenizers.learned import heard, train_bpe
from anyorder.extras.tokenizers.library import Library
from anyorder.extras.tokenizers.ranks import file_of_ranks
from anyorder.extras.tokenizers.words import LONG_WORD
from anyorder.likelihood.measured import open_corpus
from anyorder.tokens.documents import Begun, Source, encode_source
from anyorder.tokens.meta import Meta, read_meta
from anyorder.tokens.mixture import mixed
from anyorder.tokens.prepared import prepare
from anyorder.tokens.shown import token_texts, written_text
from anyorder.tokens.tokenizer import (
    END_OF_TEXT,
    PART,
    Bytes,
    choose,
    get_tokenizer,
    tokenizer_of_set,
    tokens_of,
)
from anyorder.training.start import model_to_train
from configurator import Config

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
    return Library.of_file('tiktoken:s', file_of_ranks(small_encoding()))


def trained(n_tokens=300):
    return train_bpe(f'bpe:{n_tokens}', n_tokens, [TEXT, TEXT, 'the end'])


def changed(tok, *tokens, **parts):
    """The tokenizer with other parts of its tokenizer.json, and with tokens that are added."""
    file = json.loads(tok.file)
    model = file['model'] | parts.pop('model', {})
    file |= {'model': model} | parts
    flags = dict.fromkeys(('special', 'normalized', 'single_word', 'lstrip', 'rstrip'), False)
    for one in tokens:
        file['added_tokens'].append({'id': tok.n_tokens, **flags, **one})
    return Library.of_file('changed.json', json.dumps(file))


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


# --------------------------------------------------------------------------------------------------
# laws of all tokenizers


@pytest.mark.parametrize('kind', [*WHOLE, *LIKE])
def test_a_text_comes_back_from_its_ids_and_a_checkpoint_keeps_the_tokenizer(kind):
    tok = opened(kind)
    kept = Meta('', tok.name, tok.n_tokens, tok.eos, tokenizer_file=tok.file)
    assert tokenizer_of_set(kept).identity == tok.identity
    special = {tok.eos, *tok.special.values()}
    marked = f'a{END_OF_TEXT} b'
    texts = [WORDS, '']
    if kind in WHOLE:
        marked = f'<|mask|>{marked}<|fim|>'
        texts += [TEXT, marked]
    shown = tok.shown_spans(marked)
    assert tokens_of(shown).count(tok.eos) == 1
    for text, spans in ((marked, shown), *((text, tok.spans(text)) for text in texts)):
        ids = tokens_of(spans)
        assert {*ids} <= {*range(tok.n_tokens)}
        assert tok.decode(ids).replace(' ', '') == text.replace(' ', '')
        for i, start, end in spans:
            one = tok.decode([i])
            assert start < end and (kind in LIKE or PART in one or one == text[start:end])
        if spans is shown:
            continue
        assert ids == [*tok.encode(text)] and special.isdisjoint(ids)
        if tok.n_bytes is not None:
            assert tok.decode(ids) == text
            assert tok.n_bytes[ids].sum() == len(text.encode())
            assert not tok.n_bytes[[*special]].any()


def encoded(documents, tok, **kind):
    source = Source('', {'val': documents})
    for _, *found, _ in encode_source(source, tok, Meta(n_tokens=tok.n_tokens, **kind)):
        yield found


@pytest.mark.parametrize('kind', ['bytes of UTF-8', *LIKE])
def test_a_prompt_and_its_answer_are_the_whole_text(kind):
    """No letter of the answer is given, and what is given has the highest bit on disk."""
    tok = opened(kind)
    whole = tok.encode(WORDS)
    pairs = [(WORDS[:n], WORDS[n:]) for n in range(len(WORDS) + 1)]
    rows = encoded(pairs, tok, given=True, prompts=True)
    for (prompt, _), (row, _) in zip(pairs, rows, strict=True):
        *ids, end = (row & (1 << 15) - 1).tolist()
        is_given = row >= 1 << 15
        n_given = is_given.sum()
        assert end == tok.eos and is_given[:n_given].all()
        assert tok.decode(ids) == tok.decode(whole)
        assert ids == whole or tok.is_bytes
        assert len(tok.decode(ids[:n_given]).strip()) <= len(prompt)


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
    assert choose('tiktoken:gpt2') is get_tokenizer('gpt2')


def test_words_that_are_learned_are_those_of_gpt2_up_to_a_length():
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


# --------------------------------------------------------------------------------------------------
# which one is opened, and what is kept of it


BEHIND = {'type': 'Split', 'pattern': {'String': 'x'}, 'behavior': 'Removed', 'invert': False}
SPACED = {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True}
NO_BYTES = [  # other parts of a tokenizer.json by which its tokens are no bytes of a text
    {'normalizer': {'type': 'NFC'}},
    {'pre_tokenizer': SPACED},
    {
        'pre_tokenizer': {
            'type': 'Sequence',
            'pretokenizers': [SPACED | {'add_prefix_space': False}, BEHIND],
        }
    },
    {'decoder': {'type': 'Fuse'}},
    {'model': {'end_of_word_suffix': '</w>'}},
]


def test_what_a_file_says_beside_its_tokens_cuts_no_text_and_is_told_from_bytes():
    tok = trained()
    cut = {'direction': 'Right', 'max_length': 2, 'strategy': 'LongestFirst', 'stride': 0}
    pad = {'direction': 'Right', 'strategy': {'Fixed': 999}}
    pad |= {'pad_id': 0, 'pad_type_id': 0, 'pad_token': 'a'}
    frame = {'type': 'BertProcessing', 'sep': ['a', 1], 'cls': ['b', 2]}
    model = {'dropout': 0.9}
    other = changed(tok, truncation=cut, padding=pad, model=model, post_processor=frame)
    assert other.encode(TEXT) == tok.encode(TEXT)
    assert (other.cut_place('a b'), other.about_bytes()) == (1, '')
    others = [changed(tok, **parts) for parts in NO_BYTES]
    others.append(changed(tok, {'content': 'xy', 'rstrip': True}))
    for other in others:
        assert (other.cut_place('a b'), other.n_bytes) == (0, None) and other.about_bytes()
    plain = changed(tok, {'content': 'xy'})
    assert (plain.cut_place('a b'), plain.about_bytes()) == (0, '')


# (a name of a tokenizer, its file or what it says of the model, what is said)
WRONG = [
    ('FOLDER', None, 'tokenizer must be bytes'),
    ('tiktoken:cl100k', None, 'cl100k_base'),
    ('bpe:256', None, 'from 257'),
    ('bpe:1048577', None, 'from 257'),
    ('hf:me/wrods', None, 'hf:me/wrods cannot be read as what the hub has'),
    ('a.json', {'type': 'New'}, 'pip install -U tokenizers'),
    ('a.json', {'vocab': None}, 'cannot be read as a tokenizer.json'),
    ('a.json', {'vocab': {'[UNK]': 0}}, "a.json has no token for 'ab'"),
    ('a.json', {'vocab': {'[UNK]': 0, 'a': 1 << 24}}, 'a.json must have an id below 16,777,216'),
    ('a.json', {'vocab': {'[UNK]': 0, 'a': 5, 'b': 5}}, 'and none for two'),
    ('.', '{"model_type": "aogpt", "tokenizer": "sudoku4"}', 'has sudoku4 tokens, which are'),
    ('.', '{"model_type": "llada"}', 'holds no tokenizer.json'),
    ('.', '[]', 'config.json cannot be read'),
    ('.', '{"model_type": "aogpt", "tokenizer": ["bytes"]}', 'cannot be read as a set or a model'),
    ('.', '{"eos_token": ["x"]}', 'holds no tokenizer.json'),
]


@pytest.mark.parametrize('name, file, said', WRONG)
def test_a_tokenizer_that_is_none_is_one_line_before_anything_is_written(name, file, said):
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


def test_pairs_are_learned_from_the_documents_of_train_alone():
    text = END_OF_TEXT.join(8 * one for one in 'abcdefghij')
    tok = tokenizer_of_set(prepared('bpe:400', text=text))
    val = tok.decode(open_split('.', 'a', 'val').packed.tolist())
    assert [one for one in 'abcdefghij' if len(tok.encode(8 * one)) == 8] == [val[0]]


def test_a_set_keeps_its_tokenizer_and_is_found_by_its_file(capsys):
    prepared('bpe:280')
    shutil.move('a', 'b')
    meta = read_meta('b')
    of_file = prepared('b/tokenizer.json', 'c')
    assert tokenizer_of_set(of_file).identity == tokenizer_of_set(meta).identity
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


@pytest.mark.parametrize('form', ['tokenizer.json', 'merges.txt'])
def test_a_tokenizer_of_the_hub_is_downloaded_once_and_kept(monkeypatch, form):
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
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        os.makedirs('cache', exist_ok=True)
        for file, text in (files | others).items():
            if file in allow_patterns:
                Path('cache', file).write_text(text)
        return 'cache'

    monkeypatch.setattr('huggingface_hub.snapshot_download', snapshot)
    name = 'hf:me/Words-1.5'
    meta = prepared(name)
    found = tokenizer_of_set(meta)
    assert {*os.listdir('cache')} == {*files}
    assert (meta.tokenizer, found.special['<end>']) == (name, meta.eos)
    assert found.encode(TEXT) == tok.encode(TEXT)

    # The second split has it again, and what comes after has it from the set
    prepared(name, text=TEXT, split='test')
    shutil.rmtree('cache')
    assert prepared('a', 'b').tokenizer == name
    assert asked == ['me/Words-1.5'] * 2


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
    meta = prepared(of_training)
    tok = tokenizer_of_set(meta)
    entries = entries_of(make_model(vocab_size=320, n_tokens=tok.n_tokens))
    checkpoint = SimpleNamespace(tokenizer=tok, entries=entries, weights='raw')
    config = Config(dataset='b', dropout=0.0, init_from='ckpt.pt')
    os.mkdir('model')
    exported = {'model_type': 'aogpt', 'tokenizer': tok.name, 'set': asdict(meta)}
    Path('model/config.json').write_text(json.dumps(exported))
    ways = (
        lambda name: mixed([meta, read_meta(name)]),
        lambda name: model_to_train(config, checkpoint, tokenizer_of_set(read_meta(name))),
        lambda name: open_corpus(name, 4, tok, '.'),
    )
    prepared(of_set, 'b', OTHER * 40)
    prepared(way, 'c', OTHER * 40)
    for read in ways:
        with one_line('--tokenizer='):
            read('b')
        read('c')


def test_no_letter_of_a_text_is_left_out_but_on_purpose():
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
    for read in (tok.encode, tok.spans):
        with one_line('nothing else cannot spell all of'):
            read('abc')
