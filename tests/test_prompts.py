"""Prompts with blanks: text, files, and the tokens that they become."""
import numpy as np
import pytest

from anyorder.tokens.prompts import behind_beginning, encode, parse_prompt, parse_prompts, read_prompts, spans, typed
from anyorder.tokens.tokenizers import Bytes, get_tokenizer, symbols
from sample import listed


def test_parsing_of_blanks():
    def parse(prompt, length=20):
        tokens, known, answer = parse_prompt(prompt, Bytes(), length).lay_out()[:3]
        return ''.join(chr(t) if k else chr(t).upper() if a else '_' for t, k, a in zip(tokens, known, answer))
    assert parse('ab [[3]] c[[=xy]]d') == 'ab ___ cXYd' and parse('ab[[..]]c', 6) == 'ab___c'
    assert parse('[[..]]', 4) == '____' and parse('abc', 5) == 'abc__' and parse('', 2) == '__'
    assert parse(r'a \[[3]]', 9) == 'a [[3]]__' and parse('[[2]][[1]]') == '___'
    assert parse('[[1]]a[[..]]b', 6) == '_a___b'
    assert parse(r'[[=\[[x]]') == '[[X'
    assert parse('a]]b[[1]]') == 'a]]b_' and parse('x[[[2]]]') == 'x[__]' and parse('[[=a\nb]]') == 'A\nB'
    assert parse('abcde', 5) == 'abcde'


@pytest.mark.parametrize('option, text', [
    (r'a\nb', 'a\nb'), (r'\n\n', '\n\n'), (r'a\\nb', r'a\nb'), (r'a\\\nb', r'a\\nb'), (r'a\tb\\', r'a\tb\\'),
    ('a\nb', 'a\nb'), (r'\[[n', r'\[[n'), ('n', 'n'), ('', '')])
def test_a_line_end_is_typed_by_one_rule_in_a_prompt_and_a_stop(option, text):
    assert typed(option) == text and read_prompts(option) == [text] and listed(option) == text


def test_the_end_of_a_document_is_one_token():
    tokens, known, answer = parse_prompt('<|endoftext|>ab[[=c<|endoftext|>]]', Bytes(), 9).lay_out()[:3]
    assert tokens == [256, *b'abc', 256] and known == [True] * 3 + [False] * 2 and answer == [False] * 3 + [True] * 2
    assert Bytes().decode(tokens) == '<|endoftext|>abc<|endoftext|>'
    with pytest.raises(ValueError, match='sudoku4 has the tokens'):   # which has no documents
        parse_prompt('12<|endoftext|>', get_tokenizer('sudoku4'), 16)


def test_files_of_prompts(tmp_path, monkeypatch):
    for content in (b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b[[1]]"}', b'[' * 20000, b'{"prompt": 1}'):
        (tmp_path / 'p.jsonl').write_bytes(content)
        if content[0] == 0xef:
            assert read_prompts(f'FILE:{tmp_path}/p.jsonl') == ['a', 'b[[1]]']
        else:
            with pytest.raises(ValueError, match='line 1 of .*/p.jsonl cannot be read as a prompt: write'):
                read_prompts(f'FILE:{tmp_path}/p.jsonl')
    (tmp_path / 'p.jsonl').write_text(r'{"prompt": "a\\nb\nc"}')   # as JSON has it
    monkeypatch.setenv('HOME', str(tmp_path))
    assert read_prompts('FILE:~/p.jsonl') == ['a\\nb\nc']
    np.save(tmp_path / 'none.npy', np.zeros((0, 8), int))
    with pytest.raises(ValueError, match='none.npy holds no prompt'):
        read_prompts(f'FILE:{tmp_path}/none.npy')
    with pytest.raises(ValueError, match='prompt 2 of 2: the prompt has 4 tokens'):
        parse_prompts(['a', 'abcd'], Bytes(), 3)


WORDS = symbols('words', ['up', 'down', 'u'], separator=' ')()


@pytest.mark.parametrize('tokenizer, text, want', [
    ('bytes', 'aé', [('a', 0, 1), ('é', 1, 2), ('é', 1, 2)]), ('bytes', '', []),
    ('bytes', 'a<|endoftext|>b', [('a', 0, 1), ('<|endoftext|>', 1, 14), ('b', 14, 15)]),
    ('gpt2', 'The quick 日', [('The', 0, 3), (' quick', 3, 9), (' 日', 9, 11), ('日', 10, 11), ('日', 10, 11)]),
    ('sudoku4', '142', [('1', 0, 1), ('4', 1, 2), ('2', 2, 3)]),
    (WORDS, ' up  down', [('up', 1, 3), ('down', 5, 9)])])
def test_each_token_has_its_place_in_the_text(tokenizer, text, want):
    try:
        tokenizer = get_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    found = spans(text, tokenizer)
    assert [(text[start:end], start, end) for _, start, end in found] == want
    assert [token for token, _, _ in found] == encode(text, tokenizer)


@pytest.mark.parametrize('text, prefix, want', [
    ('<|endoftext|>ab', [256], b'ab'), ('ab', [256], b'ab'), ('<|endoftext|>ab', [], [256, *b'ab']), ('', [256], b''),
    ('<|endoftext|><|endoftext|>', [256], [256]), ('<|endoftext|>', [256, 256], [256])])
def test_a_text_that_is_written_with_its_beginning_has_it_once(text, prefix, want):
    assert [token for token, _, _ in behind_beginning(spans(text, Bytes()), tuple(prefix))] == [*want]
    pieces = parse_prompt(f'{text}[[2]]<|endoftext|>', Bytes(), 9, tuple(prefix)).pieces
    assert pieces == [([*want], 'known'), (2, 'blank'), ([256], 'known')]   # a later one stays
