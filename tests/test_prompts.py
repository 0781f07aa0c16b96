"""Prompts with blanks: text, files, and the tokens that they become."""

import numpy as np
import pytest

from anyorder.tokens.prompts import (
    Spelling,
    behind_beginning,
    encode,
    parse_prompt,
    parse_prompts,
    read_prompts,
    spans,
    typed,
)
from anyorder.tokens.tokenizers import Bytes, get_tokenizer, symbols
from sample import listed


def test_parsing_of_blanks():
    def parse(prompt, length=20):
        tokens, known, answer = parse_prompt(prompt, Bytes(), length).lay_out()[:3]
        return ''.join(
            chr(t) if k else chr(t).upper() if a else '_' for t, k, a in zip(tokens, known, answer)
        )

    assert parse('ab [[3]] c[[=xy]]d') == 'ab ___ cXYd' and parse('ab[[..]]c', 6) == 'ab___c'
    assert parse('[[..]]', 4) == '____' and parse('abc', 5) == 'abc__' and parse('', 2) == '__'
    assert parse(r'a \[[3]]', 9) == 'a [[3]]__' and parse('[[2]][[1]]') == '___'
    assert parse('[[1]]a[[..]]b', 6) == '_a___b'
    assert parse(r'[[=\[[x]]') == '[[X'
    assert (
        parse('a]]b[[1]]') == 'a]]b_'
        and parse('x[[[2]]]') == 'x[__]'
        and parse('[[=a\nb]]') == 'A\nB'
    )
    assert parse('abcde', 5) == 'abcde'


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
    assert typed(option) == text and read_prompts(option) == [text] and listed(option) == text


def test_the_end_of_a_document_is_one_token():
    tokens, known, answer = parse_prompt(
        '<|endoftext|>ab[[=c<|endoftext|>]]', Bytes(), 9
    ).lay_out()[:3]
    assert (
        tokens == [256, *b'abc', 256]
        and known == [True] * 3 + [False] * 2
        and answer == [False] * 3 + [True] * 2
    )
    assert Bytes().decode(tokens) == '<|endoftext|>abc<|endoftext|>'
    with pytest.raises(ValueError, match='sudoku4 has the tokens'):  # which has no documents
        parse_prompt('12<|endoftext|>', get_tokenizer('sudoku4'), 16)


def test_files_of_prompts(tmp_path, monkeypatch):
    for content in (
        b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b[[1]]"}',
        b'[' * 20000,
        b'{"prompt": 1}',
    ):
        (tmp_path / 'p.jsonl').write_bytes(content)
        if content[0] == 0xEF:
            assert read_prompts(f'FILE:{tmp_path}/p.jsonl') == ['a', 'b[[1]]']
        else:
            with pytest.raises(
                ValueError, match='line 1 of .*/p.jsonl cannot be read as a prompt: write'
            ):
                read_prompts(f'FILE:{tmp_path}/p.jsonl')
    (tmp_path / 'p.jsonl').write_text(r'{"prompt": "a\\nb\nc"}')  # as JSON has it
    monkeypatch.setenv('HOME', str(tmp_path))
    assert read_prompts('FILE:~/p.jsonl') == ['a\\nb\nc']
    np.save(tmp_path / 'none.npy', np.zeros((0, 8), int))
    with pytest.raises(ValueError, match='none.npy holds no prompt'):
        read_prompts(f'FILE:{tmp_path}/none.npy')
    with pytest.raises(ValueError, match='prompt 2 of 2: the prompt has 4 tokens'):
        parse_prompts(['a', 'abcd'], Bytes(), 3)


WORDS = symbols('words', ['up', 'down', 'u'], separator=' ')()


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
    try:
        tokenizer = get_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    found = spans(text, tokenizer)
    assert [(text[start:end], start, end) for _, start, end in found] == want
    assert [token for token, _, _ in found] == encode(text, tokenizer)


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
    assert [token for token, _, _ in behind_beginning(spans(text, Bytes()), tuple(prefix))] == [
        *want
    ]
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
def test_texts_at_a_border_stand_as_they_are_typed(kind, prompt):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer, text = tokenizer_like(kind), prompt.replace('[[=', '').replace(']]', '')
    try:
        pieces = parse_prompt(prompt, tokenizer, 40).pieces
    except ValueError as e:
        assert kind == 'ends of words' and 'right behind' in str(e)
        return
    tokens = [token for ids, _ in pieces for token in ids]
    assert tokenizer.decode(tokens) == tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokens).replace(' ', '') == text.replace(' ', '')


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
def test_tokens_at_a_border(kind, prompt, want):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer = tokenizer_like(kind)
    pieces = parse_prompt(prompt, tokenizer, 40).pieces
    assert [
        tokenizer.backend.id_to_token(token)
        for ids, kind in pieces
        if kind != 'blank'
        for token in ids
    ] == want


def test_a_word_that_no_token_goes_on_is_refused():
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    words = tokenizer_like('words')
    assert parse_prompt('a [[2]] b [[=ab]]', words, 9).lay_out()[0] == [1, 0, 0, 2, 3]
    for prompt in ('a[[=b]]', 'a [[2]]b', 'a[[=b]]a'):
        with pytest.raises(ValueError, match='right behind .*border') as e:
            parse_prompt(prompt, words, 9)
        assert '\n' not in str(e.value)


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
    try:
        gpt2 = get_tokenizer('gpt2')
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    (template,) = parse_prompts([prompt], gpt2, 20)
    texts = (value for value, _ in template.pieces if isinstance(value, list))
    assert [gpt2.decode([token]) for value in texts for token in value] == pieces
    err = capsys.readouterr().err
    assert err.count('\n') == err.count(']]') == said
    (of_bytes,) = parse_prompts([prompt], Bytes(), 40)  # whose words begin with no space
    assert (
        of_bytes.pieces == parse_prompt(prompt, Bytes(), 40).pieces and not capsys.readouterr().err
    )


def test_a_space_before_an_answer_of_bytes_stays():
    assert parse_prompt('a [[=b]]', Bytes(), 9).pieces[:2] == [
        ([*b'a '], 'known'),
        ([*b'b'], 'answer'),
    ]


@pytest.mark.parametrize(
    'kind, prompts, unknown, n_tokens',
    [
        ('wordpiece', ['ab É[[2]]', 'é ZZ[[1]] !'], ['!'], 7),
        ('bytes', ['ä<unk>[[1]]'], [], 7),
        ('words', ['a [UNK] [[1]] c', 'c c[[2]]'], ['c', 'c', 'c'], 5),
        ('letters', ['aéb ¶'], ['é', '¶'], 4),
        ('metaspace always', ['abÄ[[1]]ÄÖ ü'], ['Ä', 'ÄÖ', 'ü'], 6),
        ('sentences', ['ä[[=é]]'], ['ä', 'é'], 3),
        ('sentences and bytes', ['ä[[=é]]'], [], 5),
    ],
)
def test_unknown_tokens_are_said_once(kind, prompts, unknown, n_tokens, capsys):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer = tokenizer_like(kind)
    spelling = Spelling(tokenizer)
    for prompt in prompts:
        parse_prompt(prompt, tokenizer, 40, spelling=spelling)
    assert (spelling.unknown, spelling.n_tokens) == (unknown, n_tokens)
    parse_prompts(prompts, tokenizer, 40)
    err = capsys.readouterr().err
    assert err.count('\n') == bool(unknown)
    if unknown:
        assert f'{len(unknown)} of {n_tokens} tokens are unknown' in err and repr(unknown[0]) in err


def test_a_vocabulary_without_a_token_for_what_it_lacks_is_one_line():
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer = tokenizer_like('nothing else')
    for read in (tokenizer.encode, tokenizer.spans, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(ValueError, match='nothing else cannot spell all of') as e:
            read('abc')
        assert '\n' not in str(e.value)
