"""Prompts: laid out, with patterns, from a file, and in the tokens of any tokenizer."""

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import gpt2, one_line, tokenizer_like

from anyorder.generation import prompts as p
from anyorder.tokens.tokenizer import Bytes
from sample import parse_stop, read_prompts

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
    (-1.0,): '_',  # a row
}
BEGUN = {  # of a text that is written with its beginning, which it has once
    '<|endoftext|>a[[2]]<|endoftext|>': 'a__Ā',
    '<|endoftext|><|endoftext|>[[2]]<|endoftext|>': 'Ā__Ā',
}


def test_a_prompt_is_laid_out():
    """A blank is shown as _, and an answer in capitals; Ā is 256, the end of a document."""
    for prompt, laid_out in (LAID_OUT | BEGUN).items():
        prefix = (256,) if prompt in BEGUN else ()
        (text,) = p.parse_prompts([prompt], Bytes(), len(laid_out), prefix)
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
    return str((piece.least, piece.most) if piece.sign == '?' else piece.least)


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
    (template,) = p.parse_prompts([f'a{prompt}'], Bytes(), 20)
    piece = template.pieces[1]
    assert f'{shown_piece(piece)}: {" ".join(map(str, piece.lengths))}' == found
    assert [n for n in range(21) if piece.may_have(n)] == piece.lengths
    assert template.patterns == [(1, 1 + piece.lengths[0], piece.pattern)]


def test_patterns_stand_behind_lengths_that_were_chosen_and_know_what_is_before(patterns):
    (template,) = p.parse_prompts(
        ['[[1/0/]][[1/0/]]a[[1-3]]b[[/00/]][[..]]c[[/0|00/]]d'], Bytes(), 20
    )
    found = template.with_lengths((3, 2)).patterns
    places = [(*span, one.within) for *span, one in found]
    assert places == [(0, 1, False), (1, 2, True), (7, 9, True), (17, 19, True)]


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
    '\udce9': 'a prompt must be text in UTF-8',
    '[[99999999/0*/]]': 'does not fit into length=20',
    '[[50-60/0*/]]': 'does not fit into length=20',
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
        p.parse_prompts([row], Bytes(), 20)


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
    assert read_prompts(option) == [text]
    assert parse_stop(option) == text


def test_a_file_of_prompts_has_one_on_each_line(home):
    path = Path('p.jsonl')
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b\\nc"}\n[1, -1]')
    assert read_prompts('FILE:~/p.jsonl') == ['a', 'b\nc', [1, -1]]
    for content in ('[' * 20000, '{"prompt": 1}'):
        path.write_text(content)
        with one_line('line 1 of p.jsonl cannot be read as a prompt'):
            read_prompts('FILE:p.jsonl')
    np.save('a.npy', [[1, -1], [2, 3]])
    assert read_prompts('FILE:a.npy') == [[1, -1], [2, 3]]
    np.save('a.npy', np.array([path]))  # an object, which is code
    with one_line('a.npy cannot be read'):
        read_prompts('FILE:a.npy')


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


def tokens_of(template):
    return [token for piece in template.pieces for token in piece.text]


@pytest.mark.parametrize('kind', AT_BORDERS)
def test_tokens_at_a_border(kind):
    tok = tokenizer_like(kind)
    for prompt, want in AT_BORDERS[kind].items():
        if want.startswith('right'):  # a word that no token goes on
            with one_line(want):
                p.parse_prompts([prompt], tok, 9)
            continue
        (template,) = p.parse_prompts([prompt], tok, 40)
        assert ' '.join(map(tok.backend.id_to_token, tokens_of(template))) == want


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
    assert [gpt2().decode([token]) for token in tokens_of(template)] == pieces.split('|')


@pytest.mark.parametrize(
    'kind, prompts, said',
    [
        ('wordpiece', ['ab É[[2]]', 'é ZZ[[1]] !'], "1 of 7 tokens are unknown.*'!'"),
        ('bytes', ['ä<unk>[[1]]'], ''),
        ('letters', ['ab ü[[1]]'], '2 of 4 tokens are unknown'),
        ('words', ['a [UNK] [[1]] c', 'c c[[2]]'], "3 of 5 tokens are unknown.*'c'"),
        ('sentences', ['ä[[=é]]'], "2 of 3 tokens are unknown.*'ä'"),
    ],
)
def test_unknown_tokens_are_said_once(kind, prompts, said, capsys):
    p.parse_prompts(prompts, tokenizer_like(kind), 40)
    err = capsys.readouterr().err
    assert err.count('\n') == bool(said)
    assert re.search(said, err)
