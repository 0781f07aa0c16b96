"""Tokenizers of tiktoken and of the package tokenizers: opened, kept, and trained with."""

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
from conftest import make_model, one_line
from test_tokenizers import some_text

from anyorder import Pattern
from anyorder.checkpoint import entries_of, save_checkpoint
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.tokens.choices import choose
from anyorder.tokens.libraries import BYTE_OF, LONG_WORD, Library, Tiktoken, heard, train_bpe
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.mixture import kind_of_all
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.sets import read_split
from anyorder.tokens.shown import token_texts, written_text
from anyorder.tokens.tokenizer import END_OF_TEXT, PART
from anyorder.tokens.tokenizers import KNOWN, encode_documents, tokenizer_of_set
from anyorder.training.start import start_model
from anyorder.writer import Writer
from configurator import Config

LETTER_OF = {b: letter for letter, b in BYTE_OF.items()}
TEXT = 'It was the best of times, it was the worst of times. Grüße, 中文 🙂!\n\n'


def small_encoding(**special):
    """A tiktoken Encoding of all bytes, three pairs and special tokens; it leaves numbers out."""
    import tiktoken

    ranks = {bytes([b]): b for b in range(256)} | {b'th': 256, b'the': 257, b' t': 258}
    pattern = r' ?\p{L}+| ?[^\s\p{L}]+|\s+'
    return tiktoken.Encoding('s', pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def trained(n_tokens=300):
    pytest.importorskip('tokenizers')
    return train_bpe(f'bpe:{n_tokens}', n_tokens, [TEXT, TEXT, 'the end'])


def reopened(tok):
    """The tokenizer as a checkpoint keeps it."""
    kind = {'tokenizer': tok.name, 'tokenizer_file': tok.file, 'eos': tok.eos}
    return tokenizer_of_set({**kind, 'n_tokens': tok.n_tokens})


def bytes_of(tok, i):
    """The bytes of a token, by the library itself."""
    if isinstance(tok, Tiktoken):
        return tok.bpe.decode_single_token_bytes(i)
    return bytes(BYTE_OF[letter] for letter in tok.backend.id_to_token(i))


def tokens_of_bytes(tok, text):
    """The tokens of bytes, which may be no UTF-8, by the library itself."""
    if isinstance(tok, Tiktoken):
        return tok.bpe._encode_bytes(text)
    letters = ''.join(LETTER_OF[b] for b in text)
    return [token.id for token in tok.backend.model.tokenize(letters)]


def tokenizers():
    yield 'tiktoken', lambda: Tiktoken('tiktoken:s', small_encoding())
    yield 'gaps', lambda: Tiktoken('tiktoken:s', small_encoding(**{'<|fim|>': 300, '</s>': 262}))
    yield 'bpe', trained


@pytest.mark.parametrize('make', [pytest.param(f, id=name) for name, f in tokenizers()])
def test_every_id_comes_back_and_has_its_bytes(make):
    tok = make()
    again = reopened(tok)
    assert again.identity == tok.identity
    for i in range(tok.n_tokens):
        text = tok.decode([i])
        assert again.decode([i]) == text
        if i == tok.eos or i in tok.special.values():
            assert tok.n_bytes[i] == 0
            assert [i for i, *_ in tok.shown_spans(text)] == [i]
        else:  # a part of a letter has U+FFFD as its text: it comes back from its bytes alone
            found = bytes_of(tok, i)
            assert tok.n_bytes[i] == len(found)
            assert text == found.decode(errors='replace')
            assert tokens_of_bytes(tok, found) == [i]
            if '\ufffd' not in text:
                assert tok.encode(text) == [i]
    ids = tok.encode(TEXT)
    assert tok.decode(ids) == TEXT
    assert again.encode_batch([TEXT, '']) == [ids, []]
    assert tok.n_bytes[ids].sum() == len(TEXT.encode())
    assert tok.eos not in tok.encode(f'a{END_OF_TEXT}b')
    assert [i for i, *_ in tok.shown_spans(f'a{END_OF_TEXT}b')] == [
        *tok.encode('a'),
        tok.eos,
        *tok.encode('b'),
    ]
    starts = [start for _, start, _ in tok.spans(TEXT)]
    assert starts == sorted(starts)


def test_training_twice_makes_the_same_tokens():
    assert trained().file == trained().file


def test_words_that_are_learned_are_those_of_gpt2_up_to_a_length():
    pre_tokenizers = pytest.importorskip('tokenizers').pre_tokenizers
    tok = trained()
    rng = random.Random(3)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = tok.backend.pre_tokenizer.pre_tokenize_str
    for _ in range(300):
        text = some_text(rng, LONG_WORD)
        assert words(text) == gpt2(text)
    for run in ('中', 'ACGT', '1', '-', ' ', 'é\u0301'):
        text = f'a {run * 500}b'
        places = [place for _, place in words(text)]
        assert ''.join(text[start:end] for start, end in places) == text
        assert max(end - start for start, end in places) <= LONG_WORD + 1  # and its space


def test_a_cut_within_a_run_keeps_the_tokens():
    tok = trained()
    rng = random.Random(4)
    for _ in range(500):
        run = rng.choice(['中', 'A', 'th', '1', '-', ' '])
        text = some_text(rng, 3) + run * rng.randrange(200) + rng.choice(['', "'", '中', ' '])
        more = rng.choice(['', run, 's', "'s", ' a']) + some_text(rng, 3)
        ids = []
        rest = text
        while n := tok.cut(rest):
            ids += tok.encode(rest[:n])
            rest = rest[n:]
        assert ids + tok.encode(rest + more) == tok.encode(text + more)
        assert len(rest) < 2 * LONG_WORD


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


def changed(tok, **parts):
    """The tokenizer with other parts of its tokenizer.json."""
    text = json.dumps(json.loads(tok.file) | parts)
    return Library.of_file('changed.json', text)


@pytest.mark.parametrize(
    'part, value',
    [
        ('normalizer', {'type': 'NFC'}),
        ('pre_tokenizer', {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True}),
        ('decoder', {'type': 'Fuse'}),
    ],
)
def test_bytes_that_cannot_be_known_are_not_said(part, value):
    tok = changed(trained(), **{part: value})
    assert tok.n_bytes is None
    assert tok.why_no_bytes


def test_truncation_and_padding_of_a_file_cut_no_text():
    cut = {'direction': 'Right', 'max_length': 2, 'strategy': 'LongestFirst', 'stride': 0}
    tok = trained()
    assert changed(tok, truncation=cut).encode(TEXT) == tok.encode(TEXT)


def test_a_vocabulary_that_cannot_spell_a_text_is_one_line(tmp_path):
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({'[UNK]': 0, 'a': 1}, unk_token='[UNK]'))
    backend.save(str(tmp_path / 'words.json'))
    (tmp_path / 'a.txt').write_text('b')
    with one_line("words.json has no token for 'b'"):
        prepare('text', tmp_path, 'x', f'{tmp_path}/a.txt', tokenizer=f'{tmp_path}/words.json')
    assert not (tmp_path / 'x').exists()


@pytest.mark.parametrize(
    'name, said',
    [
        ('gtp2', 'tokenizer must be bytes'),
        ('tiktoken:cl100k', 'cl100k_base'),
        ('bpe:200', 'from 257'),
        ('bpe:many', 'from 257'),
        ('hf:name', 'hf:OWNER/NAME'),
        ('bpe', 'bpe:4096'),
        ('OWNER/NAME', 'hf:OWNER/NAME'),
    ],
)
def test_an_unknown_name_is_one_line(name, said):
    pytest.importorskip('tokenizers')
    with one_line(said):
        choose(name)


def words_with(**model):
    """A tokenizer.json of words, with other parts of its model."""
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models

    parts = json.loads(Tokenizer(models.WordLevel({'a': 0, 'b': 1}, 'a')).to_str())
    return json.dumps(parts | {'model': parts['model'] | model})


@pytest.mark.parametrize(
    'model, said',
    [
        ({'vocab': {'a': 0, 'b': 1, 'c': 1}}, "the id 1 for 'b' and for 'c'"),
        ({'vocab': {'a': 0, 'b': 2**32 - 1}}, 'the id 4,294,967,295, ids must be below 16,777,216'),
        ({'type': 'New'}, 'pip install -U tokenizers'),
        ({'vocab': None}, 'cannot be read as a tokenizer.json'),
    ],
)
def test_a_wrong_file_of_a_tokenizer_is_one_line(tmp_path, model, said):
    (tmp_path / 'words.json').write_text(words_with(**model))
    with one_line(said):
        choose(f'{tmp_path}/words.json')


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


def test_a_missing_library_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with one_line('pip install tokenizers'):
        choose('bpe:4096')


def prepared(folder, tokenizer, name='a', text=TEXT * 40, **more):
    (folder / 'a.txt').write_text(text)
    return prepare('text', folder, name, f'{folder}/a.txt', tokenizer=tokenizer, **more)


def test_a_set_keeps_its_tokenizer_and_is_found_by_its_folder(tmp_path):
    pytest.importorskip('tokenizers')
    meta = prepared(tmp_path, 'bpe:280')
    shutil.move(tmp_path / 'a', tmp_path / 'b')
    moved = read_meta(tmp_path / 'b')
    assert kind_of(moved) == kind_of(meta)
    tok = tokenizer_of_set(kind_of(moved))
    train, val = (read_split(tmp_path / 'b', moved, split).packed for split in ('train', 'val'))
    assert tok.decode(train[:-1].tolist()) + tok.decode(val[:-1].tolist()) == TEXT * 40
    again = prepared(tmp_path, f'{tmp_path}/b', 'c')
    assert tokenizer_of_set(kind_of(again)).identity == tok.identity
    copied = prepared(tmp_path, f'{tmp_path}/b/tokenizer.json', 'd')
    assert tokenizer_of_set(kind_of(copied)).identity == tok.identity
    with one_line('one folder has one tokenizer'):
        prepare('text', tmp_path, 'b', f'{tmp_path}/a.txt', 'test', tokenizer='bpe:290')


def test_a_changed_file_of_a_tokenizer_is_one_line(tmp_path):
    pytest.importorskip('tokenizers')
    prepared(tmp_path, 'bpe:280')
    with open(tmp_path / 'a' / 'tokenizer.json', 'a') as f:
        f.write(' ')
    with one_line('damaged'):
        read_meta(tmp_path / 'a')


def test_a_folder_in_the_hubs_format_says_what_ends_a_text(tmp_path):
    tok = trained()
    tok.backend.add_special_tokens(['<end>'])
    text = tok.backend.to_str().replace(END_OF_TEXT, '<pad>')
    (tmp_path / 'tokenizer.json').write_text(text)
    (tmp_path / 'tokenizer_config.json').write_text('{"eos_token": {"content": "<end>"}}')
    found = choose(str(tmp_path)).open({})
    assert found.eos == tok.backend.token_to_id('<end>')
    assert found.decode([found.eos]) == END_OF_TEXT


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """hub('OWNER/NAME', {file: text}) has it downloaded from there. What is asked for is noted."""
    import huggingface_hub

    there = {}
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        if name not in there:
            raise OSError('no such repository\nof this name')
        folder = tmp_path / 'cache' / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in there[name].keys() & {*allow_patterns}:
            (folder / file).write_text(there[name][file])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot)
    return SimpleNamespace(put=there.__setitem__, asked=asked, folder=tmp_path / 'cache')


def test_a_tokenizer_of_the_hub_is_downloaded_once_and_kept(tmp_path, hub):
    tok = trained()
    tok.backend.add_special_tokens(['<end>'])
    files = {
        'tokenizer.json': tok.backend.to_str().replace(END_OF_TEXT, '<pad>'),
        'tokenizer_config.json': '{"eos_token": "<end>"}',
        'tokenization_own.py': 'raise SystemExit',
        'model.safetensors': 'gigabytes',
    }
    hub.put('me/Words-1.5', files)
    meta = prepared(tmp_path, 'hf:me/Words-1.5')
    assert sorted(os.listdir(hub.folder / 'me' / 'Words-1.5')) == [*files][:2]
    assert meta.tokenizer == 'hf:me/Words-1.5'
    assert meta.eos == tok.backend.token_to_id('<end>')
    train = read_split(tmp_path / 'a', meta, 'train').packed
    assert train[-1] == meta.eos

    # The second split has it again, and all that comes after has it from the set
    again = prepared(tmp_path, 'hf:me/Words-1.5', text=TEXT, split='test')
    assert again.splits.keys() == {'train', 'val', 'test'}
    assert hub.asked == ['me/Words-1.5'] * 2
    shutil.rmtree(hub.folder)
    kept = tokenizer_of_set(kind_of(read_meta(tmp_path / 'a')))
    assert kept.decode(train[:-1].tolist()) == TEXT * 36
    assert prepared(tmp_path, f'{tmp_path}/a', 'b').tokenizer == meta.tokenizer
    assert len(hub.asked) == 2


def test_the_vocabulary_and_merges_of_the_hub_are_a_tokenizer(tmp_path, hub):
    tok = trained()
    model = json.loads(tok.backend.to_str())['model']
    merges = '\n'.join(map(' '.join, model['merges']))
    files = {'vocab.json': json.dumps(model['vocab']), 'merges.txt': f'#version: 0.2\n{merges}\n'}
    hub.put('me/pairs', files)
    found = choose('hf:me/pairs').open({})
    assert found.encode(TEXT) == tok.encode(TEXT)
    assert found.name == 'hf:me/pairs'
    hub.put('me/half', {'vocab.json': files['vocab.json']})
    with one_line('half holds no tokenizer.json'):
        choose('hf:me/half')


def test_a_tokenizer_that_the_hub_lacks_is_one_line_before_anything_is_written(tmp_path, hub):
    pytest.importorskip('tokenizers')
    with one_line('cannot get hf:me/wrods from the hub .*OSError'):
        prepared(tmp_path, 'hf:me/wrods')
    assert not (tmp_path / 'a').exists()


OTHER = 'A tale of two cities, in two books: the other one is not of this time. Ärger, 日本語!\n'
LEARNED = [
    ('bpe:280', 'bpe:290'),
    ('bpe:280', 'bpe:280'),  # of one name and one size, from other texts
    ('bytes', 'bpe:280'),
    ('bpe:280', 'bytes'),
]


@pytest.mark.parametrize('of_training, of_set', LEARNED)
@pytest.mark.parametrize('way', ['a set', 'an exported model'])
def test_the_way_out_of_tokenizers_that_differ_leads_out(tmp_path, of_training, of_set, way):
    """Mixing, going on to train and evaluating say --tokenizer=FOLDER, which each then takes."""
    pytest.importorskip('tokenizers')
    kind = kind_of(prepared(tmp_path, of_training))
    tok = tokenizer_of_set(kind)
    checkpoint = checkpoint_of(kind)
    config = Config(dataset='b', dropout=0.0, init_from='ckpt.pt')

    def reads(name):
        meta = read_meta(tmp_path / name)
        yield lambda: kind_of_all({'a': kind, name: kind_of(meta)})
        yield lambda: start_model(config, checkpoint, tokenizer_of_set(kind_of(meta)))
        yield lambda: open_corpus(name, Cut(4), tok, tmp_path)

    prepared(tmp_path, of_set, 'b', OTHER * 40)
    for read in reads('b'):
        with one_line('--tokenizer='):
            read()

    folder = tmp_path / 'a'
    if way == 'an exported model':
        folder = tmp_path / 'model'
        folder.mkdir()
        config_json = {'model_type': 'aogpt', 'tokenizer': tok.name, 'set': kind}
        (folder / 'config.json').write_text(json.dumps(config_json))
    with one_line('one folder has one tokenizer; use another --name'):
        prepared(tmp_path, str(folder), 'b', TEXT, split='test')
    prepared(tmp_path, str(folder), 'c', OTHER * 40)
    for read in reads('c'):
        read()


def checkpoint_of(kind):
    """What start_model wants of a Checkpoint that was trained on a set of this kind."""
    tok = tokenizer_of_set(kind)
    model = make_model(vocab_size=320, n_tokens=tok.n_tokens)
    return SimpleNamespace(tokenizer=tok, entries=entries_of(model))


def test_a_set_of_66000_ids_has_32_bits(tmp_path):
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {'[UNK]': 0} | {f'w{i}': i for i in range(1, 66_000)}
    backend = Tokenizer(models.WordLevel(words, unk_token='[UNK]'))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / 'words.json'))
    (tmp_path / 'a.txt').write_text(' '.join(f'w{i}' for i in range(65_000, 66_000)))
    meta = prepare('text', tmp_path, 'a', f'{tmp_path}/a.txt', tokenizer=f'{tmp_path}/words.json')
    train = read_split(tmp_path / 'a', meta, 'train').packed
    assert train.dtype == np.dtype('<u4')
    assert train[:3].tolist() == [65_000, 65_001, 65_002]
    assert train[-1] == meta.eos == 66_000


@pytest.mark.parametrize('name', KNOWN)
def test_a_file_has_no_name_that_means_another_tokenizer(tmp_path, name):
    pytest.importorskip('tokenizers')
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.BPE({'a': 0, 'b': 1}, []))
    backend.save(f'{tmp_path}/{name}')
    assert choose(f'{tmp_path}/{name}').open({}).name not in KNOWN


def test_a_tokenizer_that_cannot_be_opened_is_told_before_a_download(tmp_path, monkeypatch):
    def no_ranks(name):
        raise ValueError('no ranks')

    def download():
        raise AssertionError

    monkeypatch.setattr('anyorder.tokens.choices.get_tokenizer', no_ranks)
    monkeypatch.setattr(DATA_SETS['openwebtext'], 'documents', download)
    with one_line('no ranks'):
        prepare('openwebtext', str(tmp_path))


# --------------------------------------------------------------------------------------------------
# A part of a text is what the whole text has there. The oracle is the text at the end

WORDS = 'ab x a b x ab'


def stream(writer, end, tokens, steps, script):
    *frames, last = writer.stream('ab[[3]] x[[..]]', length=16, order='random')
    assert len(frames) > 5
    assert last == end
    return frames


def watch(writer, end, tokens, steps, script):
    for now in range(max(steps) + 1):
        seen = [step if step <= now else None for step in steps]
        shown = [None if step is None else token for token, step in zip(tokens, seen)]
        yield ''.join(token_texts(shown, writer.tokenizer))


def likeliest(writer, end, tokens, steps, script):
    text = writer.infill('ab[[3]] x[[..]]', length=16, order='random', top_logprobs=2)
    assert text == end
    return [with_dots(text.top_logprobs)]


def out(writer, end, tokens, steps, script):
    how = ['--prompt=ab[[3]] x[[..]]', '--length=16', '--order=random', '--n_samples=1']
    how += ['--weights=raw', '--top_logprobs=1', '--out=o.json']
    script('sample.py', '--ckpt=words.pt', *how)
    with open('o.json') as f:
        (sample,) = json.load(f)['samples']
    assert sample['text'] == end
    return [with_dots(sample['top_logprobs'])]


def with_dots(places):
    """What is said of each place one behind the other, with a dot for the tokens of the prompt."""
    return ''.join('·' if place is None else place['text'] for place in places)


def answer(writer, end, tokens, steps, script):
    """What was written, as an answer of lm-eval."""
    for known in range(1, len(tokens)):
        written = [i >= known for i in range(len(tokens))]
        begin = writer.tokenizer.decode(tokens[:known])
        yield begin + written_text(tokens, written, writer.tokenizer)
    yield written_text(tokens, [True for _ in tokens], writer.tokenizer)


def stop(writer, end, tokens, steps, script):
    begin = len(writer.tokenizer.decode(writer.tokenizer.encode('ab')))
    for seed in range(4):
        how = {'length': 16, 'order': 'l2r', 'seed': seed}
        whole = writer.infill('ab', **how)
        for stop in (whole[begin : begin + 2], whole[begin + 1 : begin + 4]):
            text = writer.infill('ab', stop=stop, **how)
            assert stop in text[begin:]
            assert stop not in writer.tokenizer.decode(text.sample['tokens'][:-1])[begin:]
            assert whole.startswith(text)
    return []


def answers_behind_prompts(writer, end, tokens, steps, script):
    tokenizer = writer.tokenizer
    whole = tokenizer.decode(tokenizer.encode(WORDS))
    pairs = [(WORDS[:n], WORDS[n:]) for n in range(len(WORDS) + 1)]
    for (prompt, text), (row, n_bytes) in zip(pairs, encode_documents(pairs, tokenizer)):
        given = row >> 15
        ids = (row & 0x7FFF)[:-1].tolist()
        assert (np.diff(given.astype(int)) <= 0).all()
        assert n_bytes == len(text)
        assert tokenizer.decode(ids) == whole
        # no letter of the answer is given
        assert len(tokenizer.decode(ids[: given.sum()]).strip()) <= len(prompt)
    return []


def pattern(writer, end, tokens, steps, script):
    pytest.importorskip('outlines_core')
    tok = writer.tokenizer
    if tok.why_no_parts:
        with one_line('another tokenizer'):
            writer.infill('[[3]]', pattern='a')
        return []
    begin = tok.decode(tok.encode('ab'))
    whole = begin + '( [abx]+)*'
    has_space = any(tok.text_behind([None], [i]) == ' ' for i in range(tok.n_tokens))
    blank = ' a ?a' if has_space else 'a ?a'  # else the space before a word is none of the blank's
    part = begin + ' a ?a[ abx]*'
    for order in ('l2r', 'margin', 'random'):
        for seed in range(3):
            how = {'length': 9, 'order': order, 'seed': seed}
            text = writer.infill('ab', pattern=whole, **how)
            assert re.fullmatch(whole, text)
            if tok.decode(tok.encode(text)) == text:
                assert Pattern(whole).matches(text, tok)
            assert re.fullmatch(part, writer.infill(f'ab[[2/{blank}/]][[..]]', **how))
    return []


@pytest.mark.parametrize('kind', ['bytes behind a space', 'bytes NFC', 'sentences and bytes'])
@pytest.mark.parametrize('text', ['é a你\n🙂b 🙂🙂', 'ab\n\né<|endoftext|>a b'])
def test_a_letter_of_several_tokens_stands_at_the_last(kind, text):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tok = Library.of_file('a.json', tokenizer_like(kind).file)
    ids = [i for i, *_ in tok.shown_spans(text)]
    assert len(ids) > len(text) or END_OF_TEXT in text
    assert ''.join(token_texts(ids, tok)) == tok.decode(ids)
    for n in range(len(ids)):
        before = tok.decode(ids[:n])
        if not before.endswith(PART):
            written = [i >= n for i in range(len(ids))]
            assert before + written_text(ids, written, tok) == tok.decode(ids)


PLACES = (stream, watch, likeliest, out, answer, stop, answers_behind_prompts, pattern)
KINDS = (
    'bytes',
    'bytes behind a space',
    'metaspace always',
    'metaspace first',
    'sentences and bytes',
    'wordpiece',
    'ends of words',
    'words',
)


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('kind', KINDS)
def test_a_part_is_that_of_the_whole_text(kind, place, tmp_path, monkeypatch, script):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    monkeypatch.chdir(tmp_path)
    tok = Library.of_file(f'{kind}.json', tokenizer_like(kind).file)
    kind = {'tokenizer': tok.name, 'n_tokens': tok.n_tokens, 'eos': tok.eos}
    model = make_model(block_size=16, vocab_size=320, n_tokens=tok.n_tokens).float()
    model.lm_head.bias -= 1e4
    model.lm_head.bias[tok.encode(WORDS)] += 1e4
    save_checkpoint('words.pt', model, tokenizer=tok.name, set=kind | {'tokenizer_file': tok.file})
    writer = Writer('words.pt', device='cpu')
    end = writer.infill('ab[[3]] x[[..]]', length=16, order='random')
    tokens = end.sample['tokens']
    assert end == tok.decode(tokens)
    for seen in place(writer, end, tokens, end.sample['step'], script):
        if tok.why_no_parts:  # where a space is of the token before it, which may be a blank
            end = end.replace(' ', '')
            seen = seen.replace(' ', '')
        assert re.fullmatch('.*'.join(map(re.escape, seen.split('·'))), end), seen
