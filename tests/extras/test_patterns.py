"""anyorder/extras/patterns/: which tokens may follow which, so that a text matches a pattern."""

import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import one_line

import anyorder

pytest.importorskip('outlines_core')

from anyorder.extras.patterns import automaton, build
from anyorder.extras.patterns import pattern as patterns
from anyorder.extras.patterns.spelled import spelled
from anyorder.tokens.tokenizer import PART
from anyorder.tokens.tokenizers import GPT2, Bytes, Symbols

Pattern = anyorder.Pattern
BYTES = Bytes()
DATE = '(19|20)[0-9][0-9]-(0[1-9]|1[0-2])'


@pytest.fixture
def gpt2(monkeypatch):
    def fail(*args):
        raise OSError

    monkeypatch.setattr('tiktoken.load.read_file', fail)  # the cache or nothing
    try:
        return GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')


@pytest.fixture
def here(monkeypatch):
    """Automata are built in this process, which saves the start of another."""

    def ask(expression, pattern):
        try:
            return build.automaton(expression)
        except ValueError as e:
            raise automaton.Refused(str(e)) from None

    monkeypatch.setattr(automaton, 'ask', ask)


# ---- against re.fullmatch

LETTERS = 'ab0é٣\n'
ATOMS = ['a', 'b', '0', 'é', '.', '[ab]', '[^a]', r'\d', r'\w', '[a-z0-9]', r'[^\d]', r'\n', r'\s']
ATOMS += [r'\D', r'\W', r'[^\n0]', 'ab', r'(?i:A)', '(?i:[^A])', '']
COUNTS = ['*', '+', '?', '*?', '+?', '??', '{2}', '{1,2}', '{0,2}?', '{2,}', '{0}']


def random_expression(rng, depth=4):
    """Return an expression with empty and lazy parts, classes and repetitions."""
    draw = rng.random()
    if depth == 0 or draw < 0.3:
        return rng.choice(ATOMS)
    if draw < 0.55:
        return random_expression(rng, depth - 1) + random_expression(rng, depth - 1)
    if draw < 0.8:
        parts = [random_expression(rng, depth - 1) for _ in range(rng.randint(1, 3))]
        return f'({"|".join(parts)})'
    return f'(?:{random_expression(rng, depth - 1)}){rng.choice(COUNTS)}'


def texts_of(sequences):
    """Return the text of each tuple of bytes, None of those that are not UTF-8."""
    texts = []
    for sequence in sequences:
        try:
            texts.append(b''.join(sequence).decode())
        except UnicodeDecodeError:
            texts.append(None)
    return texts


def accepted(table, sequences):
    """Return which rows of tokens (n, L), -1 behind the end of a row, the table accepts."""
    wide = np.pad(table.next, ((0, 1), (0, 0)), constant_values=-1)
    state = np.full(len(sequences), table.start)
    for column in sequences.T:
        state = np.where(column < 0, state, wide[state, table.classes[column]])
    return np.append(table.final, False)[state]


class Sequences:
    """All sequences of at most `most` of the tokens that are made of LETTERS, and their texts.

    Tokens have `n_bytes` at most: Python's own matching takes long for long texts."""

    def __init__(self, tokenizer, most, n_bytes, n_tokens):
        self.tokenizer = tokenizer
        letters = {*LETTERS.encode()}
        tokens = spelled(tokenizer).tokens
        used = [i for i, token in enumerate(tokens) if token and {*token} <= letters]
        used = [i for i in used if len(tokens[i]) <= n_bytes][:n_tokens]
        rows = [row for n in range(most + 1) for row in itertools.product(used, repeat=n)]
        self.texts = texts_of([[tokens[i] for i in row] for row in rows])
        self.rows = np.array([[*row, *itertools.repeat(-1, most - len(row))] for row in rows])

    def compare(self, expression):
        """Return whether texts match an expression; the table must accept those and no others."""
        match = re.compile(expression).fullmatch
        matches = {text: bool(match(text)) for text in {*self.texts} - {None}} | {None: False}
        expected = np.array([matches[text] for text in self.texts])
        if not Pattern(expression).text:
            return False
        try:
            table = Pattern(expression).table(self.tokenizer)
        except ValueError as e:
            assert not expected.any() and 'no text' in str(e), expression
            return False
        np.testing.assert_array_equal(accepted(table, self.rows), expected, expression)
        return expected.any()


def compare_random(all_sequences, n):
    """Compare n random expressions that some text matches."""
    rng = random.Random(5)
    n_compared = 0
    while n_compared < n:
        expression = random_expression(rng)
        if expression:
            found = [sequences.compare(expression) for sequences in all_sequences]
            n_compared += any(found)


def test_a_table_accepts_what_matches_an_expression(here):
    compare_random([Sequences(BYTES, 3, 1, 8)], 12)


@pytest.mark.slow
def test_300_random_expressions(here):
    compare_random([Sequences(BYTES, 4, 1, 8)], 300)


@pytest.mark.slow
def test_random_expressions_in_all_divisions_into_tokens_of_gpt2(here, gpt2):
    compare_random([Sequences(gpt2, 2, 3, 60), Sequences(gpt2, 3, 2, 12)], 60)


TYPED = ['a|ab', '(|a)b', 'a*?b??', '^a$', r'\Aab', r'(?i)^A$', '(?s).b', '(?m)^a', '(?x)a b # a']
TYPED += [
    '[]a]',
    '[^]a]',
    r'[\]a]',
    '[$^]',
    r'\.|a',
    r'\\',
    'a{0}',
    '|',
    '()',
    '\n',
    '.',
    r'\u0663',
]
TYPED += [
    r'\d',
    '[0-9]',
    r'\x61',
    r'\u00e9',
    '(?P<one>a)b',
    r'[\s\S]*',
    r'[\x00-\x7f]',
    '(?i:É)',
    '(a|(b|é))+?',
]
RUST = [('[0-9--1]', '[02-9]'), ('[[:alpha:]]', '[a-zA-Z]'), (r'\x{61}+', 'a+'), (r'\p{Nd}', r'\d')]
TEXTS = ['', 'a', 'b', 'ab', 'A', 'é', '٣', '\n', '\nb', ']', '$', '0', '1', '.', '\\', 'bb', 'abé']


@pytest.mark.parametrize(('expression', 'meant'), [*RUST, *zip(TYPED, TYPED)])
def test_an_expression_as_users_type_it(here, expression, meant):
    pattern = Pattern(expression)
    found = [text for text in TEXTS if pattern.matches(text, BYTES)]
    assert found == [text for text in TEXTS if re.fullmatch(meant, text)]


# ---- tables


@pytest.mark.slow
def test_a_table_is_small_and_every_state_can_be_completed(here, gpt2):
    table = Pattern(DATE).table(gpt2)
    assert table.next.shape == (10, 17)
    assert (table.next[:, table.classes[gpt2.eos]] == -1).all()
    for state in range(table.n_states):
        assert replace(table, start=state).lengths(20).any()
    assert [*np.flatnonzero(table.lengths(20))] == [3, 4, 5, 6, 7]


def test_tables_are_kept_by_pattern_and_tokenizer(monkeypatch):
    tokenizer = Symbols('own', ['a', 'b', 'c'], ' ')
    table = Pattern('^a+b$').table(tokenizer)
    monkeypatch.setattr(automaton, 'ask', None)
    assert Pattern('a+b').table(Symbols('own', ['a', 'b', 'c'], ' ')) is table
    assert Pattern('^a+b') == Pattern('a+b')
    assert {Pattern('a'), Pattern('^a')} == {Pattern('a')}
    with pytest.raises(TypeError):
        Pattern('a+b').table(Symbols('own', ['a', 'c', 'b'], ' '))


def test_the_oldest_table_makes_room(here, monkeypatch):
    monkeypatch.setattr(patterns, 'TABLES', {})
    monkeypatch.setattr(patterns, 'MOST_TABLES', 2)
    for expression in 'abc':
        Pattern(expression).table(BYTES)
    assert [text for text, *_ in patterns.TABLES] == ['b', 'c']


@pytest.mark.parametrize(('expression', 'lengths'), [('ab{2}|c{4,5}', [3, 4, 5]), ('a{0}', [0])])
def test_lengths_are_the_numbers_of_tokens_that_match(here, expression, lengths):
    assert [*np.flatnonzero(Pattern(expression).table(BYTES).lengths(6))] == lengths


# ---- tokens of all kinds


def matching(expression, tokenizer, most=4):
    """Return the shown texts of all sequences of tokens that match."""
    table = Pattern(expression).table(tokenizer)
    found = []
    for n in range(most + 1):
        for row in itertools.product(range(tokenizer.n_tokens), repeat=n):
            state = table.read(row)
            if state >= 0 and table.final[state]:
                found.append(tokenizer.decode(row))
    return found


@pytest.mark.parametrize(
    ('names', 'separator', 'eos', 'expression', 'texts'),
    [
        (['a', 'b', 'ab'], '', None, 'aba?', ['ab', 'ab', 'aba', 'aba']),
        (['1', '12', '2'], ' ', None, '(12 )*1', ['1', '12 1', '12 12 1', '12 12 12 1']),
        (['1', '12', '2'], ' ', None, '(12)*', ['', '12']),
        (['1', '12', '2'], ' ', 2, '(1 )*12', ['12', '1 12', '1 1 12', '1 1 1 12']),
        (['1', '12', '2'], ' ', 1, '1?2', ['2', '1 2']),
        (['P', 'N', 'S'], ' ', None, 'N[^P]S', ['N N S', 'N S S']),
        (['é', 'a'], ' ', None, '[^a]a', ['é a']),
    ],
)
def test_names_are_read_with_their_separator_unless_they_are_letters(
    here, names, separator, eos, expression, texts
):
    assert matching(expression, Symbols('own', names, separator, eos)) == texts


PIECES = ['a', 'ab', '\u2581', '\u2581a', '##a', '##ef', 'ef', 'cd', '.', '\u0120', '\u0120a']
PIECES += ['<0xC3>', '<0xA9>', '\u00c3', '\u00a9']


@pytest.mark.parametrize('within', [False, True], ids=['text', 'part'])
@pytest.mark.parametrize(
    'kind',
    [
        'bytes',
        'bytes behind a space',
        'metaspace always',
        'metaspace first',
        'metaspace never',
        'sentences and bytes',
        'wordpiece',
        'words',
    ],
)
def test_what_matches_is_what_a_tokenizer_shows(here, kind, within):
    """As re says of the text of all sequences of tokens, at the beginning of a text or behind a
    word. There the space before a word is none of the part where no token is a space."""
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    tokenizer = tokenizer_like(kind)
    vocabulary = tokenizer.backend.get_vocab()
    has_words = kind.startswith('word')
    ids = [vocabulary[piece] for piece in PIECES if piece in vocabulary]
    rows = [row for n in range(4) for row in itertools.product(ids, repeat=n)]
    n_found = 0
    for expression in ('a( a| ab)*', '[a ]*', r'( |a|ef|\.|cd)+', ' a.*', '##ef', ' *aé?'):
        try:
            table = Pattern(expression, within).table(tokenizer)
        except ValueError as e:
            assert 'spell' in str(e)
            continue
        for row in rows:
            text = tokenizer.text_behind([None] if within else [], row)
            if within and has_words:
                text = text.removeprefix(' ')
            state = table.read(row)
            is_match = state >= 0 and bool(table.final[state])
            fits = PART not in text and re.fullmatch(expression, text)
            assert is_match == bool(fits), (expression, text)
            n_found += is_match
    assert n_found > 10
    if tokenizer.unknown is not None:
        assert (table.next[:, table.classes[tokenizer.unknown]] < 0).all()


@pytest.mark.parametrize('kind', ['letters', 'nothing else'])
def test_letters_stand_side_by_side(here, kind):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    table = Pattern('ab').table(tokenizer_like(kind))
    assert table.final[table.read([0, 1])]
    assert table.read([1, 0]) < 0


def test_special_tokens_and_numbers_without_a_token_are_no_text(here):
    tokenizers = pytest.importorskip('tokenizers')
    from anyorder.extras.masked.tokenizer import HuggingFace

    ids = {'a': 0, '[MASK]': 1, 'b': 5}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token='[UNK]'))
    backend.add_special_tokens(['[MASK]'])
    backend.add_tokens(['c d'])
    tokenizer = HuggingFace('some', backend)
    table = Pattern(r'[\s\S]*').table(tokenizer)
    is_text = table.next[table.start, table.classes] >= 0
    assert [*np.flatnonzero(is_text)] == sorted([0, 5, backend.token_to_id('c d')])


def test_a_way_of_decoding_that_says_no_text_of_a_token_is_one_line(here):
    pytest.importorskip('tokenizers')
    from masked_kinds import tokenizer_like

    with one_line('BPEDecoder'):
        Pattern('a').table(tokenizer_like('ends of words'))


# ---- errors


NOT_REGULAR = {
    'string': [5, None],
    'empty': ['', '^$', r'\A\z'],
    'UTF-8': ['\ud800'],
    'NUL': ['a\0'],
    'look-around': ['(?=a)b', '(?!a)b', '(?<=a)b', 'a(?<!a)b'],
    'word boundary': [r'\ba', r'a\B'],
    'back-reference': [r'(a)\1', '(?P<a>b)(?P=a)'],
    r'\^ or \$': ['(^a)', 'a^b', '(a|b$)', r'a\zb'],
    'possessive': ['a++', 'a{2}+', '(?>a)'],
    r'\{0,2\}': ['a{,2}'],
    'flag a': ['(?a)a'],
    r'without its \(': ['a)', 'a)(b', 'a)|(b'],
}


@pytest.mark.parametrize('said', NOT_REGULAR)
def test_an_expression_without_an_automaton_is_one_line(said):
    for expression in NOT_REGULAR[said]:
        with one_line(said):
            Pattern(expression)


def test_what_only_looks_like_it_is_an_expression():
    for expression in (r'\(?=a', '[(?=]a', r'a\$', r'\\b', r'[\^b$]', r'\x{41}+'):
        assert Pattern(expression).text == expression


UNREADABLE = {
    'unterminated': ['[a'],
    r'missing \)': ['(a'],
    'nothing to repeat': ['*a'],
    'escape': ['a\\', r'\h'],
    'min repeat': ['a{2,1}'],
    r'is \\\{': ['{"a": [0-9]}', 'a{', 'a{b}'],
    r'is \\\[': ['[[a]', r'\[[a[]'],
    'Rust': [r'\p{Foo}', '(?#a)b', '(?:' * 3000 + 'a' + ')' * 3000],
    'no text': [r'\x00', 'a[b&&c]'],
}


@pytest.mark.parametrize('said', UNREADABLE)
def test_an_expression_that_cannot_be_read_is_one_line(here, said):
    for expression in UNREADABLE[said]:
        with one_line(said):
            Pattern(expression).table(BYTES)


def test_tokens_that_spell_no_text_are_one_line(here):
    with one_line('own'):
        Pattern('[ab]c').table(Symbols('own', ['a', 'b'], ' '))


def test_no_library_is_one_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(automaton, 'find_spec', lambda name: None)
    with one_line('pip install outlines-core'):
        Pattern('never asked for').table(BYTES)


# ---- the process that builds


@pytest.mark.parametrize(
    'expression',
    ['a{30000}', pytest.param('(a|b)*a(a|b){20}', marks=pytest.mark.slow)],  # states, time
)
def test_a_pattern_that_is_too_large_is_one_line(monkeypatch, expression):
    monkeypatch.setattr(build, 'MOST_SECONDS', 1)
    with one_line('too large'):
        Pattern(expression).table(BYTES)


def test_a_process_has_so_much_time_and_memory():
    resource = pytest.importorskip('resource')
    program = f"""
import resource, runpy
runpy.run_path({build.__file__!r})['set_limits']()
print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_AS)[0])
bytearray({build.MOST_BYTES})
"""
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, check=False)
    assert [int(one) for one in done.stdout.split()] == [build.MOST_SECONDS, build.MOST_BYTES]
    assert done.returncode == build.FAILED
    assert b'MemoryError' in done.stderr
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != build.MOST_BYTES  # this process goes on


@pytest.mark.parametrize(
    ('body', 'said'),
    [('import os; os.abort()', 'too large'), ('raise MemoryError', 'MemoryError'), ('x', "'x'")],
)
def test_a_process_that_dies_is_one_line(tmp_path, monkeypatch, body, said):
    program = tmp_path / 'dies.py'
    program.write_text(body)
    monkeypatch.setattr(build, '__file__', os.fspath(program))
    with one_line(said):
        Pattern(f'never asked for {said}').table(BYTES)
