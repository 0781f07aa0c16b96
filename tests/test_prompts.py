"""Prompts with blanks: text, files, and the tokens that they become."""

import re

import numpy as np
import pytest
from conftest import one_line

from anyorder.tokens.prompts import (
    behind_beginning,
    has_pattern,
    has_rest,
    parse_prompt,
    parse_prompts,
    read_pattern,
    read_prompts,
    split_blanks,
    typed,
)
from anyorder.tokens.tokenizers import Bytes, Symbols, get_tokenizer
from sample import parse_stop


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
        (r'[[=\[[x]]', 20, '[[X'),
        ('a]]b[[1]]', 20, 'a]]b_'),
        ('x[[[2]]]', 20, 'x[__]'),
        ('[[=a\nb]]', 20, 'A\nB'),
        ('abcde', 5, 'abcde'),
    ],
)
def test_parsing_of_blanks(prompt, length, laid_out):
    """A blank is shown as _, and an answer in capitals."""
    template = parse_prompt(prompt, Bytes(), length).lay_out()
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
        ('a[[/0+/]]b', ['a', (1, None), 'b'], ['0+']),
        ('[[8/0+/]]', ['', 8, ''], ['0+']),
        ('a [[2-12/[0-9]+/]].', ['a ', (2, 12), '.'], ['[0-9]+']),
        ('[[/a]]b/]]c', ['', (1, None), 'c'], ['a]]b']),
        ('[[/[[0]+/]]', ['', (1, None), ''], ['[[0]+']),
        (r'[[/a\/]]b/]]', ['', (1, None), ''], ['a/]]b']),
        (r'[[/a\\/]]b', ['', (1, None), 'b'], [r'a\\']),
        (r'[[/\\\/\./]]', ['', (1, None), ''], [r'\\/\.']),
        ('[[/a\nb/]]', ['', (1, None), ''], ['a\nb']),
        ('[[[2/0/]]]', ['[', 2, ']'], ['0']),
        (r'\[[/0/]][[/1/]]', ['[[/0/]]', (1, None), ''], ['1']),
        ('[[/0/]][[2]][[3/1/]]', ['', (1, None), '', 2, '', 3, ''], ['0', '1']),
        (r'[[/\[[0-9]\]/]]', ['', (1, None), ''], [r'\[[0-9]\]']),
        ('[[=/a/]]', ['', '/a/', ''], []),
        ('[[///]]', ['', (1, None), ''], ['/']),
    ],
)
def test_a_pattern_ends_at_the_first_slash_before_brackets(prompt, pieces, patterns):
    found, of_blanks = split_blanks(prompt)
    assert [value for value, _ in found] == pieces
    assert [*of_blanks.values()] == patterns
    assert has_pattern(prompt) == bool(patterns)
    for i in of_blanks:
        assert found[i][1] in ('blank', 'unknown')


@pytest.mark.parametrize('prompt', ['[[//]]', '[[/a]]', '[[0/a/]]', '[[?/a/]]', '[[../a/]]'])
def test_what_is_no_blank_with_a_pattern_is_refused(prompt):
    with one_line(r'a blank is .*\[\[/pattern/\]\]'):
        parse_prompt(prompt, Bytes(), 20)
    assert not has_pattern(prompt)


def test_the_open_blanks_of_a_prompt_are_found_as_they_are_typed():
    assert has_rest('[[/0/]] a[[..]]')
    assert not has_rest(r'\[[..]]')
    assert not has_rest('[[/[[..]]/]]')
    assert not has_rest([1, -1]) and not has_pattern(np.array([1, -1]))


@pytest.mark.parametrize(
    'prompt, piece, lengths',
    [
        ('[[/0{3}/]]', (3, 'blank'), [3]),
        ('[[2-12/0{3}/]]', (3, 'blank'), [3]),
        ('[[3/0*/]]', (3, 'blank'), [3]),
        ('[[/0{3}|0{5}|0{30}/]]b', ((3, None), 'unknown'), [3, 5]),
        ('[[4-12/(00)+/]]b', ((4, 12), 'unknown'), [4, 6, 8, 10, 12]),
        ('[[4-9/(00)+/]]b', ((4, 8), 'unknown'), [4, 6, 8]),
        ('[[/0*/]]b', ((1, None), 'unknown'), [*range(1, 21)]),
    ],
)
def test_a_pattern_says_which_lengths_its_blank_may_have(zeros, prompt, piece, lengths):
    template = parse_prompt(f'a{prompt}', Bytes(), 20)
    assert template.pieces[1] == piece
    assert [*template.matching] == [1]
    assert template.matching[1].lengths == lengths
    assert [n for n in range(1, 21) if template.may_have(1, n)] == lengths
    n = lengths[0]
    assert template.lay_out().patterns == [(1, 1 + n, template.matching[1].pattern)]


def test_parts_with_patterns_are_laid_out_behind_lengths_that_were_chosen(zeros):
    template = parse_prompt('a[[1-3]]b[[2/00/]][[..]]c[[/0|00/]]d', Bytes(), 20)
    assert len(template.unknown) == 2
    one, two = [matching.pattern for matching in template.matching.values()]
    assert template.lay_out((3, 2)).patterns == [(5, 7, one), (17, 19, two)]
    template.pattern = Zeros('.*')  # of the whole
    assert template.lay_out((3, 2)).patterns == [(0, 20, template.pattern)]


@pytest.mark.parametrize(
    'prompt, said',
    [
        ('[[99999999/0*/]]', 'does not fit into length=20'),
        ('[[50-60/0*/]]', 'does not fit into length=20'),
        ('[[/0+/]]', 'no text follows'),
        ('[[..]][[/0+/]]b', r'right behind a \[\[\.\.'),
        ('abcdefghij[[2-12/0+/]]klm', 'has room for 7'),
    ],
)
def test_a_length_that_cannot_match_is_one_line(zeros, prompt, said):
    with one_line(said):
        parse_prompt(prompt, Bytes(), 20)


def test_a_pattern_is_read_as_it_is_typed(zeros):
    assert read_pattern('') is None and read_pattern(None) is None
    assert read_pattern(r'a\n') == Zeros(r'a\n')
    pattern = Zeros('0')
    assert read_pattern(pattern) is pattern


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
    assert typed(option) == text
    assert read_prompts(option) == [text]
    assert parse_stop(option) == text


def test_the_end_of_a_document_is_one_token():
    template = parse_prompt('<|endoftext|>ab[[=c<|endoftext|>]]', Bytes(), 9).lay_out()
    assert template.tokens == [256, *b'abc', 256]
    assert template.known == [True, True, True, False, False]
    assert template.answer == [False, False, False, True, True]
    assert Bytes().decode(template.tokens) == '<|endoftext|>abc<|endoftext|>'
    with one_line('sudoku4 has the tokens'):  # which has no documents
        parse_prompt('12<|endoftext|>', get_tokenizer('sudoku4'), 16)


def test_a_file_of_prompts_has_one_on_each_line(tmp_path, monkeypatch):
    path = tmp_path / 'p.jsonl'
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b[[1]]"}')
    assert read_prompts(f'FILE:{path}') == ['a', 'b[[1]]']
    path.write_text(r'{"prompt": "a\\nb\nc"}')  # as JSON has it
    monkeypatch.setenv('HOME', str(tmp_path))
    assert read_prompts('FILE:~/p.jsonl') == ['a\\nb\nc']


@pytest.mark.parametrize('content', ['[' * 20000, '{"prompt": 1}'])
def test_a_line_that_is_no_prompt_is_named(tmp_path, content):
    (tmp_path / 'p.jsonl').write_text(content)
    with one_line('line 1 of .*/p.jsonl cannot be read as a prompt: write'):
        read_prompts(f'FILE:{tmp_path}/p.jsonl')


def test_a_file_without_a_prompt_is_one_line(tmp_path):
    np.save(tmp_path / 'none.npy', np.zeros((0, 8), int))
    with one_line('none.npy holds no prompt'):
        read_prompts(f'FILE:{tmp_path}/none.npy')


def test_of_several_prompts_the_wrong_one_is_named():
    with one_line('prompt 2 of 2: the prompt has 4 tokens'):
        parse_prompts(['a', 'abcd'], Bytes(), 3)


def tokenizer_of(name):
    try:
        return get_tokenizer(name)
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


@pytest.fixture
def like():
    """like(kind): a small tokenizer of this kind of the package `tokenizers`."""
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    return tokenizer_like


WORDS = Symbols('words', ['up', 'down', 'u'], ' ')


@pytest.mark.parametrize(
    'tokenizer, text, want',
    [
        ('bytes', 'aé', [('a', 0, 1), ('é', 1, 2), ('é', 1, 2)]),
        ('bytes', '', []),
        ('bytes', 'a<|endoftext|>b', [('a', 0, 1), ('<|endoftext|>', 1, 14), ('b', 14, 15)]),
        (
            'gpt2',
            'The quick 日',
            [('The', 0, 3), (' quick', 3, 9), (' 日', 9, 11), ('日', 10, 11), ('日', 10, 11)],
        ),
        ('sudoku4', '142', [('1', 0, 1), ('4', 1, 2), ('2', 2, 3)]),
        (WORDS, ' up  down', [('up', 1, 3), ('down', 5, 9)]),
    ],
)
def test_each_token_has_its_place_in_the_text(tokenizer, text, want):
    if isinstance(tokenizer, str):
        tokenizer = tokenizer_of(tokenizer)
    found = tokenizer.shown_spans(text)
    assert [(text[start:end], start, end) for _, start, end in found] == want
    assert found == tokenizer.shown_spans(text)


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
    found = behind_beginning(Bytes().shown_spans(text), tuple(prefix))
    assert [token for token, _, _ in found] == [*want]
    pieces = parse_prompt(f'{text}[[2]]<|endoftext|>', Bytes(), 9, tuple(prefix)).pieces
    assert pieces == [([*want], 'known'), (2, 'blank'), ([256], 'known')]  # a later one stays


@pytest.mark.parametrize(
    'kind',
    [
        'bytes',
        'bytes behind a space',
        'bytes NFC',
        'metaspace always',
        'metaspace first',
        'metaspace never',
        'metaspace always of words',
        'sentences',
        'wordpiece',
        'ends of words',
    ],
)
@pytest.mark.parametrize(
    'prompt',
    [
        'ab[[=cd]]ef',
        'a b[[=c]] d',
        'abc[[=d]]',
        'a b [[=c]] d',
        'a [[=b]][[=c]]',
        '[[=ab]]cd',
        'a b[[=c ]]d',
        'a([[=b]].)',
        '[[=a]] b [[=c]]ef',
        'a[[= b]]',
    ],
)
def test_texts_at_a_border_stand_as_they_are_typed(like, kind, prompt):
    tokenizer = like(kind)
    text = prompt.replace('[[=', '').replace(']]', '')
    try:
        pieces = parse_prompt(prompt, tokenizer, 40).pieces
    except ValueError as e:
        assert kind == 'ends of words'
        assert 'right behind' in str(e)
        return
    written = tokenizer.decode([token for ids, _ in pieces for token in ids])
    assert written == tokenizer.decode(tokenizer.encode(text))
    assert written.replace(' ', '') == text.replace(' ', '')


@pytest.mark.parametrize(
    'kind, prompt, want',
    [
        ('metaspace always', 'a [[=b]] c', ['▁a', '▁b', '▁c']),
        ('sentences', 'a[[1]] b', ['▁a', '▁b']),
        ('metaspace always', 'ab[[1]]cd e', ['▁a', 'b', 'cd', '▁e']),
        ('sentences', ' [[=a]]', ['▁', '▁a']),
        ('wordpiece', 'a[[1]]b', ['a', '##b']),
        ('wordpiece', 'a [[1]] ef', ['a', 'ef']),
        ('wordpiece', 'a([[=ef]].)', ['a', '(', 'ef', '.', ')']),
        ('wordpiece', '[[1]]ef', ['##ef']),
        ('wordpiece', '[[=ef]]', ['ef']),
        ('bytes', 'a [[=a]]', ['a', 'Ġa']),
    ],
)
def test_tokens_at_a_border(like, kind, prompt, want):
    tokenizer = like(kind)
    pieces = parse_prompt(prompt, tokenizer, 40).pieces
    tokens = [token for ids, kind in pieces if kind != 'blank' for token in ids]
    assert list(map(tokenizer.backend.id_to_token, tokens)) == want


def test_a_word_that_no_token_goes_on_is_refused(like):
    words = like('words')
    assert parse_prompt('a [[2]] b [[=ab]]', words, 9).lay_out().tokens == [1, 0, 0, 2, 3]
    for prompt in ('a[[=b]]', 'a [[2]]b', 'a[[=b]]a'):
        with one_line('right behind .*border'):
            parse_prompt(prompt, words, 9)


@pytest.mark.parametrize(
    'prompt, pieces, said',
    [
        ('The [[=quick]] fox', ['The', ' quick', ' fox'], 0),
        ('The[[= quick]]', ['The', ' quick'], 0),
        ('The  [[=quick]]', ['The', ' ', ' quick'], 0),
        ('The [[=  quick]]', ['The', ' ', ' ', ' quick'], 0),
        (' [[=quick]]', [' quick'], 0),
        ('a\n[[=b]]', ['a', '\n', 'b'], 0),
        ('a\n [[=quick]]', ['a', '\n', ' quick'], 0),
        ('[[1]] [[=quick]]', [' quick'], 0),
        ('foo([[=bar]])', ['foo', '(', 'bar', ')'], 0),
        ('The [[2]] fox', ['The', ' ', ' fox'], 1),
        ('The[[2]] fox', ['The', ' fox'], 0),
        ('The [[?]] fox', ['The', ' ', ' fox'], 1),
        ('The [[..]]', ['The', ' '], 1),
        ('The ', ['The', ' '], 1),
        ('a\n[[..]]', ['a', '\n'], 0),
        ('The [[1]] [[=fox]] [[2-3]] a', ['The', ' ', ' fox', ' ', ' a'], 1),
    ],
)
def test_a_word_of_gpt2_begins_with_its_space(prompt, pieces, said, capsys):
    gpt2 = tokenizer_of('gpt2')
    (template,) = parse_prompts([prompt], gpt2, 20)
    texts = (value for value, _ in template.pieces if isinstance(value, list))
    assert [gpt2.decode([token]) for value in texts for token in value] == pieces
    err = capsys.readouterr().err
    assert err.count('\n') == err.count(']]') == said

    (of_bytes,) = parse_prompts([prompt], Bytes(), 40)  # whose words begin with no space
    assert of_bytes.pieces == parse_prompt(prompt, Bytes(), 40).pieces
    assert not capsys.readouterr().err


def test_a_space_before_an_answer_of_bytes_stays():
    known, answer, _ = parse_prompt('a [[=b]]', Bytes(), 9).pieces
    assert known == ([*b'a '], 'known')
    assert answer == ([*b'b'], 'answer')


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
def test_unknown_tokens_are_said_once(like, kind, prompts, unknown, n_tokens, capsys):
    tokenizer = like(kind)
    spelling = tokenizer.spelling()
    for prompt in prompts:
        parse_prompt(prompt, tokenizer, 40, spelling=spelling)
    assert (spelling.unknown, spelling.n_tokens) == (unknown, n_tokens)
    parse_prompts(prompts, tokenizer, 40)
    err = capsys.readouterr().err
    assert err.count('\n') == bool(unknown)
    if unknown:
        assert f'{len(unknown)} of {n_tokens} tokens are unknown' in err
        assert repr(unknown[0]) in err


def test_a_vocabulary_without_a_token_for_what_it_lacks_is_one_line(like):
    tokenizer = like('nothing else')
    for read in (tokenizer.encode, tokenizer.spans, lambda text: tokenizer.encode_batch([text])):
        with one_line('nothing else cannot spell all of'):
            read('abc')
