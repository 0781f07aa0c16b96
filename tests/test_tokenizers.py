"""Text to tokens and back."""

import random

import numpy as np
import pytest
from conftest import one_line

from anyorder.extras.masked.tokenizer import HuggingFace
from anyorder.tokens.tokenizers import END_OF_TEXT, GPT2, Begun, Bytes, encode_documents


def fail_with(error):
    """A function that raises this error, whatever it is called with."""

    def fail(*args):
        raise error

    return fail


@pytest.fixture
def gpt2(monkeypatch):
    monkeypatch.setattr('tiktoken.load.read_file', fail_with(OSError()))  # the cache or nothing
    try:
        return GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


def test_gpt2_tokens(gpt2):
    text = 'hello world<|endoftext|> Grüße'
    ids = gpt2.encode(text)
    assert ids[:2] == [31373, 995]
    assert gpt2.eos not in ids
    assert gpt2.decode([*ids, gpt2.eos]) == text + '<|endoftext|>'
    assert gpt2.n_bytes[[*ids, gpt2.eos]].sum() == len(text.encode())


RARE = [pytest.param(run, marks=pytest.mark.slow) for run in ('\n', '\t', '\u3000', ' \x85\n')]


@pytest.mark.parametrize('run', [' ', '\r\n', *RARE])
def test_a_million_blanks_have_the_tokens_of_their_parts(gpt2, run):
    blanks = run * (10**6 // len(run))
    parts = 'a', blanks[:-1], f'{blanks[-1]}b'  # the last one goes with what follows
    ids = gpt2.encode(f'a{blanks}b')
    assert ids == [i for part in parts for i in gpt2.bpe.encode_ordinary(part)]
    assert gpt2.encode_batch(['c', f'a{blanks}b', '']) == [gpt2.encode('c'), ids, []]


@pytest.mark.slow
@pytest.mark.parametrize('letter', ['a', '1', '!', '中', '\x1c'])
def test_a_million_letters_have_the_tokens_of_the_whole(gpt2, letter):
    text = f'b{letter * 10**6} c'
    assert gpt2.encode(text) == gpt2.bpe.encode_ordinary(text)


BLANKS = (' ', '\n', '\r\n', '\t', '\xa0', '\x1c', '\u2028')
BEHIND_BLANKS = ('a', "'s", '1', '?!', 'é', '')


@pytest.mark.parametrize('seed', range(40))
def test_the_tokens_of_long_runs_are_those_of_the_whole_text(gpt2, seed):
    rng = random.Random(seed)
    blanks = rng.choices(BLANKS, k=2)
    text = ''
    for size in rng.choices([1, 2, 998, 999, 1000, 1001, 1999, 2000, 5000], k=4):
        text += ''.join(rng.choices(blanks, k=size))
        text += rng.choice(BEHIND_BLANKS)
    assert gpt2.encode(text) == gpt2.bpe.encode_ordinary(text)


LETTERS = [
    *(' ', '  ', '\n', '\r\n', '\t', '\xa0', '\x1c', '\u3000'),
    *('a', 'The', 's', "'s", "'", '1', '²', '.', '"?!', '_'),
    *('é', '中', '。', 'か', 'ー', '𝒳', '\u0301'),
]


def some_text(rng, most):
    """Fewer than `most` of LETTERS."""
    return ''.join(rng.choices(LETTERS, k=rng.randrange(most)))


def test_a_cut_keeps_the_tokens_whatever_follows(gpt2):
    rng = random.Random(1)
    n_cuts = 0
    for _ in range(3000):
        text = some_text(rng, 9)
        more = some_text(rng, 9)
        n = gpt2.cut(text)
        if 0 < n < len(text):
            n_cuts += 1
        found = gpt2.encode(text[:n]) + gpt2.encode(text[n:] + more)
        assert found == gpt2.encode(text + more), (text, n, more)
    assert n_cuts > 1000


def test_bytes_can_be_cut_everywhere():
    assert Bytes().cut('a b') == 3


def cut_in_pieces(text, rng):
    """The pieces of a text, cut at up to three places."""
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(4)))
    begun = [Begun(text[start:end]) for start, end in zip([0, *places], places)]
    last = places[-1] if places else 0
    return [*begun, text[last:]]


def joined(found):
    """(how many, their tokens one behind the other, bytes of them all) of encoded documents."""
    tokens, n_bytes = zip(*found)
    return len(tokens), np.concatenate(tokens).tolist(), sum(n_bytes)


@pytest.mark.parametrize('name', ['bytes', 'gpt2'])
def test_the_tokens_of_pieces_are_those_of_the_whole_text(request, name):
    tok = Bytes() if name == 'bytes' else request.getfixturevalue('gpt2')
    rng = random.Random(2)
    texts = [some_text(rng, 40) for _ in range(300)]
    pieces = [piece for text in texts for piece in cut_in_pieces(text, rng)]
    n_found, *found = joined(encode_documents(pieces, tok))
    n_wanted, *wanted = joined(encode_documents(texts, tok))
    assert found == wanted
    assert n_found > 400
    assert n_wanted == 300


def test_gpt2_without_its_vocabulary_is_one_line(monkeypatch):
    monkeypatch.setattr('tiktoken.get_encoding', fail_with(ConnectionError('a\nlong story')))
    with one_line('--tokenizer=bytes'):
        GPT2()


def test_bytes_decode_what_is_no_text():
    tok = Bytes()
    assert tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�'
    assert tok.decode(tok.encode('Grüße')) == 'Grüße'


def tokenizer_in(folder, **special):
    """(HuggingFace, {name: id of a special token}, number of tokens) of a folder, made here."""
    pytest.importorskip('transformers')
    from masked_kinds import write_tokenizer
    from tokenizers import Tokenizer

    ids, n = write_tokenizer(folder, **special)
    backend = Tokenizer.from_file(str(folder / 'tokenizer.json'))
    return HuggingFace('of a folder', backend, ids.get('eos')), ids, n


def test_a_tokenizer_of_others_reads_no_special_tokens_from_text(tmp_path):
    tok, special, n = tokenizer_in(tmp_path, eos='<|endoftext|>', mask='<|mask|>')
    text = 'It was <|mask|> Grüße <|endoftext|>'
    ids = tok.encode(text)
    assert not {*special.values()} & {*ids}
    assert tok.encode_batch([text, 'a']) == [ids, tok.encode('a')]
    assert tok.n_tokens == n == 272
    assert tok.n_bytes[[*ids, tok.eos]].sum() == len(text.encode())
    assert tok.n_bytes[special['mask']] == 0


def test_a_tokenizer_of_others_shows_special_tokens(tmp_path):
    tok, special, _ = tokenizer_in(tmp_path, eos='<|endoftext|>', mask='<|mask|>')
    ids = tok.encode('It was')
    assert tok.decode([*ids, tok.eos, tok.eos, ids[0]]) == f'It was{END_OF_TEXT}{END_OF_TEXT}I'
    assert tok.decode([special['mask'], *tok.encode('a')]) == '<|mask|>a'


def test_a_prompt_reads_the_special_tokens_of_a_tokenizer_of_others(tmp_path):
    tok, special, _ = tokenizer_in(tmp_path, eos='<|endoftext|>', mask='<|mask|>')
    found = [i for i, *_ in tok.shown_spans('<|mask|>a b<|mask|><|endoftext|>')]
    assert found == [special['mask'], *tok.encode('a b'), special['mask'], tok.eos]


def test_words_of_others_have_no_bytes(tmp_path):
    tok, _, _ = tokenizer_in(tmp_path, words='abc')
    assert tok.encode('ca[x') == [7, 5, 4, 4]
    assert tok.decode([7, 5]) == 'ca'
    assert tok.n_bytes is None


def test_documents_of_words_of_others(tmp_path):
    tok, _, _ = tokenizer_in(tmp_path, words='abc')
    ((tokens, n_bytes),) = encode_documents(['ab'], tok)
    assert tokens.tolist() == [5, 6]  # nothing ends a document
    assert tokens.dtype == '<u2'
    assert n_bytes == 2
    ((tokens, _),) = encode_documents([Begun('a'), Begun('b'), 'c'], tok)
    assert tokens.tolist() == tok.encode('abc')
    tok.n_tokens = 2**16 + 1
    ((tokens, _),) = encode_documents(['ab'], tok)
    assert tokens.dtype == '<u4'
