"""Text to tokens and back."""

import random

import pytest
from conftest import one_line

from anyorder.tokens.prompts import encode
from anyorder.tokens.tokenizers import (
    END_OF_TEXT,
    GPT2,
    Begun,
    Bytes,
    HuggingFace,
    encode_documents,
)


@pytest.fixture
def gpt2(monkeypatch):
    monkeypatch.setattr(
        'tiktoken.load.read_file', lambda path: (_ for _ in ()).throw(OSError)
    )  # the cache or nothing
    try:
        return GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


def test_gpt2_tokens(gpt2):
    text = 'hello world<|endoftext|> Grüße'
    ids = gpt2.encode(text)
    assert (
        ids[:2] == [31373, 995]
        and gpt2.eos not in ids
        and gpt2.decode([*ids, gpt2.eos]) == text + '<|endoftext|>'
    )
    assert gpt2.n_bytes[[*ids, gpt2.eos]].sum() == len(text.encode())


@pytest.mark.parametrize(
    'run',
    [
        ' ',
        '\r\n',
        *(pytest.param(run, marks=pytest.mark.slow) for run in ('\n', '\t', '\u3000', ' \x85\n')),
    ],
)
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


def test_the_tokens_of_long_runs_are_those_of_the_whole_text(gpt2):
    rng = random.Random(0)
    for _ in range(40):
        kinds = rng.choices([' ', '\n', '\r\n', '\t', '\xa0', '\x1c', '\u2028'], k=2)
        text = ''
        for size in rng.choices([1, 2, 998, 999, 1000, 1001, 1999, 2000, 5000], k=4):
            text += ''.join(rng.choices(kinds, k=size)) + rng.choice(
                ['a', "'s", '1', '?!', 'é', '']
            )
        assert gpt2.encode(text) == gpt2.bpe.encode_ordinary(text)


LETTERS = [
    ' ',
    '  ',
    '\n',
    '\r\n',
    '\t',
    '\xa0',
    '\x1c',
    '\u3000',
    'a',
    'The',
    's',
    "'s",
    "'",
    '1',
    '²',
    '.',
    '"?!',
    'é',
    '中',
    '。',
    'か',
    'ー',
    '𝒳',
    '\u0301',
    '_',
]


def test_a_cut_keeps_the_tokens_whatever_follows(gpt2):
    rng, n_cuts = random.Random(1), 0
    for _ in range(3000):
        text, more = (''.join(rng.choices(LETTERS, k=rng.randrange(9))) for _ in range(2))
        n = gpt2.cut(text)
        n_cuts += 0 < n < len(text)
        assert gpt2.encode(text[:n]) + gpt2.encode(text[n:] + more) == gpt2.encode(text + more), (
            text,
            n,
            more,
        )
    assert n_cuts > 1000 and Bytes().cut('a b') == 3


@pytest.mark.parametrize('name', ['bytes', 'gpt2'])
def test_the_tokens_of_pieces_are_those_of_the_whole_text(request, name):
    tok, rng = Bytes() if name == 'bytes' else request.getfixturevalue('gpt2'), random.Random(2)
    whole, pieces = [], []
    for _ in range(300):
        whole.append(''.join(rng.choices(LETTERS, k=rng.randrange(40))))
        places = sorted(rng.choices(range(len(whole[-1]) + 1), k=rng.randrange(4)))
        pieces += [Begun(whole[-1][a:b]) for a, b in zip([0, *places], places)]
        pieces.append(whole[-1][([0] + places)[-1] :])
    found, wanted = list(encode_documents(pieces, tok)), list(encode_documents(whole, tok))
    assert [i for ids, _ in found for i in ids] == [i for ids, _ in wanted for i in ids]
    assert len(found) > 400 and sum(n for _, n in found) == sum(n for _, n in wanted)


def test_gpt2_without_its_vocabulary_is_one_line(monkeypatch):
    import tiktoken

    monkeypatch.setattr(
        tiktoken,
        'get_encoding',
        lambda name: (_ for _ in ()).throw(ConnectionError('a\nlong story')),
    )
    with one_line('--tokenizer=bytes'):
        GPT2()


def test_bytes_decode_what_is_no_text():
    tok = Bytes()
    assert (
        tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�'
        and tok.decode(tok.encode('Grüße')) == 'Grüße'
    )


def test_a_tokenizer_of_others_reads_no_special_tokens_from_text(tmp_path):
    pytest.importorskip('transformers')
    from masked_kinds import TEXT, write_tokenizer
    from tokenizers import Tokenizer

    special, n = write_tokenizer(tmp_path, eos='<|endoftext|>', mask='<|mask|>')
    tok = HuggingFace(
        'of a folder', Tokenizer.from_file(str(tmp_path / 'tokenizer.json')), special['eos']
    )
    text = TEXT + '<|mask|> Grüße <|endoftext|>'
    ids = tok.encode(text)
    assert not {*special.values()} & {*ids} and tok.encode_batch([text, 'a']) == [
        ids,
        tok.encode('a'),
    ]
    assert (
        tok.decode([*ids, tok.eos, tok.eos, ids[0]]) == text + 2 * END_OF_TEXT + 'I'
        and tok.n_tokens == n == 272
    )
    assert (
        tok.n_bytes[[*ids, tok.eos]].sum() == len(text.encode())
        and tok.n_bytes[special['mask']] == 0
    )
    assert tok.decode([special['mask'], *tok.encode('a')]) == '<|mask|>a'
    asked = encode('<|mask|>a b<|mask|><|endoftext|>', tok)  # a prompt reads them
    assert asked == [special['mask'], *tok.encode('a b'), special['mask'], tok.eos]


def test_words_of_others_have_no_bytes(tmp_path):
    pytest.importorskip('transformers')
    from masked_kinds import write_tokenizer
    from tokenizers import Tokenizer

    write_tokenizer(tmp_path, words='abc')
    tok = HuggingFace('of a folder', Tokenizer.from_file(str(tmp_path / 'tokenizer.json')))
    assert tok.encode('ca[x') == [7, 5, 4, 4] and tok.decode([7, 5]) == 'ca' and tok.n_bytes is None
    ((tokens, n_bytes),) = encode_documents(['ab'], tok)
    assert (
        tokens.tolist() == [5, 6] and tokens.dtype == '<u2' and n_bytes == 2
    )  # nothing ends a document
    assert [ids.tolist() for ids, _ in encode_documents([Begun('a'), Begun('b'), 'c'], tok)] == [
        tok.encode('abc')
    ]
    tok.n_tokens = 2**16 + 1
    assert next(encode_documents(['ab'], tok))[0].dtype == '<u4'
