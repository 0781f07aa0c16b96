"""Tokens: bytes, GPT-2's and symbols, documents, and what is shown."""

import random
import re
import sys
from dataclasses import asdict

import pytest
from conftest import gpt2, make_model, one_line, tokenizer_like

from anyorder.checkpoint import save_checkpoint
from anyorder.tokens.documents import Begun, Source, batches, encode_source
from anyorder.tokens.meta import Meta
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.shown import shown_text, token_texts
from anyorder.tokens.tokenizer import PART, Bytes, Symbols, choose, get_tokenizer, tokenizer_of_set
from anyorder.writer import Writer


def test_bytes_and_gpt2_by_hand():
    tok = Bytes()
    assert tok.decode([72, 105, 256, 255]) == 'Hi<|endoftext|>�'
    assert tok.cut_place('a b') == 3
    assert token_texts([97, 195], tok) == ['a', PART]
    assert gpt2().encode('hello world') == [31373, 995]


def test_symbols_are_the_longest_that_fit_or_stand_between_blanks():
    assert Symbols('own', ['a', 'ab', 'b']).encode('abab') == [1, 1]
    words = Symbols('words', ['up', 'down', 'u'], ' ', eos=2)
    assert words.spans(' up  down') == [(0, 1, 3), (1, 5, 9)]
    assert tokenizer_of_set(Meta('', 'own', 11)).encode('10 0') == [10, 0]
    assert tokenizer_of_set(Meta('', 'own', 9)).decode([1, 0]) == '1 0'  # also one digit each
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


def test_documents_are_read_together_and_nothing_ends_one_where_no_token_does():
    tok = Symbols('own', ['a', 'b'])
    for tok.n_tokens, dtype in ((2**16, '<u2'), (2**16 + 1, '<u4')):
        meta = Meta(n_tokens=tok.n_tokens)
        source = Source('', {'val': [Begun('a'), Begun('b'), 'b']})
        ((_, tokens, n_bytes, _),) = encode_source(source, tok, meta)
        assert (tokens.tolist(), tokens.dtype, n_bytes) == ([0, 1, 1], dtype, 3)
    documents = ['ab', 'cd', 'efgh', 'i', ('jk', 'lm'), 'n', 'o', 'p']
    assert [len(batch) for batch in batches(documents, 3, 4)] == [2, 1, 2, 3]


def test_what_is_missing_is_one_line_before_a_download(monkeypatch):
    def fail(*args):
        raise ConnectionError('a\nlong story')

    monkeypatch.setattr('tiktoken.get_encoding', fail)
    get_tokenizer.cache_clear()
    monkeypatch.setattr(DATA_SETS['openwebtext'], 'documents', list)
    with one_line('--tokenizer=bytes'):
        prepare('openwebtext', '.')
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    monkeypatch.delitem(sys.modules, 'anyorder.extras.tokenizers.choices', raising=False)
    with pytest.raises(ModuleNotFoundError):
        choose('bpe:4096')


def test_a_grid_is_shown_in_cells_of_equal_width_and_a_text_as_it_is():
    tok = Symbols('own', ['e\u0301', 'bc', '日本'], '.')
    for tokens, columns, text in (
        ([0, 1, 2, 0], 2, '   e\u0301   bc\n日本    e\u0301'),
        ([0, -1, 2, 0], 2, '   e\u0301    ·\n日本    e\u0301'),
        ([0, 1, 2], 0, 'e\u0301.bc.日本'),
        ([0, -1], 0, 'e\u0301.·'),
    ):
        assert shown_text(tokens, tok, columns) == text


WORDS = 'ab x a b x ab'  # which every tokenizer below spells


SPELT = ['bytes', 'metaspace first', 'sentences and bytes', 'wordpiece', 'ends of words']


@pytest.mark.parametrize('kind', SPELT)
def test_what_a_writer_shows_is_a_part_of_the_text_at_the_end(kind):
    """Of a model that writes the tokens of WORDS alone."""
    entries = Meta(tokenizer=f'{kind}.json', tokenizer_file=tokenizer_like(kind).file)
    tok = tokenizer_of_set(entries)
    model = make_model(block_size=16, vocab_size=320, n_tokens=tok.n_tokens).float()
    model.lm_head.bias -= 1e4
    model.lm_head.bias[tok.encode(WORDS)] += 1e4
    save_checkpoint('ckpt.pt', model, tokenizer=entries.tokenizer, set=asdict(entries))
    writer = Writer('ckpt.pt', device='cpu')
    end = writer.infill('ab[[3]] x[[..]]', top_logprobs=2, length=16)
    *seen, last = writer.stream('ab[[3]] x[[..]]', length=16)
    assert last == end == tok.decode(end.sample['tokens'])
    seen.append(''.join('·' if one is None else one['text'] for one in end.sample['top_logprobs']))
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
