"""Countdown: what is generated, and the judge against arithmetic by hand."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from conftest import one_line
from test_puzzles import assert_disjoint, run_command

from anyorder.datasets import open_split
from anyorder.extras.puzzles.countdown import Countdown, countdown_texts
from anyorder.tokens.meta import read_meta
from anyorder.tokens.tokenizers import get_tokenizer

TEXTS = countdown_texts()
ARITHMETIC = {
    '+': lambda a, b: a + b,
    '-': lambda a, b: a - b,
    '*': lambda a, b: a * b,
    '/': lambda a, b: Fraction(a, b),
}


def every(tokens):
    """All puzzles are wanted."""
    return np.ones(len(tokens), bool)


def row_of(text):
    """The tokens (1, N) of a row that is written with blanks between them."""
    return np.array([[TEXTS.index(word) for word in text.split()]])


def is_right_by_hand(words, n):
    """Whether the words of a row are a derivation of its target from its n numbers."""
    columns = 5
    n_question = -(-(n + 1) // columns) * columns
    left = [int(word) for word in words[:n]]
    target = int(words[n_question - 1])
    for i in range(n_question, len(words), columns):
        a, sign, b, equals, result = words[i : i + columns]
        if equals != '=' or sign not in ARITHMETIC:
            return False
        for number in (a, b):
            if not number.isdigit() or int(number) not in left:
                return False
            left.remove(int(number))
        if not result.isdigit() or ARITHMETIC[sign](int(a), int(b)) != int(result):
            return False
        left.append(int(result))
    return left == [target]


def reached(numbers):
    """All numbers that n numbers lead to by whole steps from 1 to 999, by trying."""
    if len(numbers) == 1:
        return set(numbers)
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        others = [x for k, x in enumerate(numbers) if k not in (i, j)]
        for step in ARITHMETIC.values():
            result = step(numbers[i], numbers[j])
            if result == int(result) and 1 <= result <= 999:
                found |= reached([*others, int(result)])
    return found


@pytest.mark.parametrize('n, largest', [(3, 100), (4, 100), (3, 25), (5, 100)])
def test_every_row_reaches_its_target_by_its_own_derivation(n, largest):
    task = Countdown(n, largest)
    tokens, given = task.make(900, np.random.default_rng(0), every)
    assert len(tokens) > 100
    assert tokens.shape[1] % 5 == 0
    counts, right = task.check_answer(tokens, given, tokens)
    assert right.all()
    assert (counts == ~given).all()
    assert set((~given).sum(1).tolist()) == {4 * (n - 1)}
    for row in tokens.tolist():
        words = [TEXTS[token] for token in row]
        assert is_right_by_hand(words, n)
        question = [int(word) for word in words[: task.n_question] if word != '.']
        assert 1 <= min(question) and max(question) <= largest
        assert question[-1] >= 10
        for i in range(task.n_question, len(words), 5):
            assert int(words[i]) >= int(words[i + 2])
    signs = tokens[:, task.n_question + 1 :: 5]
    assert set(signs.flat) == {TEXTS.index(sign) for sign in ARITHMETIC}


def test_targets_are_those_that_trying_reaches():
    tokens, _ = Countdown(3, 25).make(40, np.random.default_rng(1), every)
    for row in tokens.tolist():
        numbers = [int(TEXTS[token]) for token in row[:3]]
        assert int(TEXTS[row[4]]) in reached(numbers)


QUESTION = '15 44 79 . 20 '
RIGHT = [
    '79 - 15 = 64 64 - 44 = 20',
    '79 - 44 = 35 35 - 15 = 20',
    '15 + 44 = 59 79 - 59 = 20',
    '44 + 15 = 59 79 - 59 = 20',
]
WRONG = {
    'the sum is wrong': '79 - 15 = 65 65 - 44 = 20',
    'the last sum is wrong': '79 - 15 = 64 64 - 43 = 20',
    'another target': '79 - 15 = 64 64 + 15 = 79',
    'a number twice': '79 - 15 = 64 79 - 59 = 20',
    'a number that is not there': '79 - 15 = 64 64 - 45 = 19',
    'a result that is used up': '79 - 79 = 1 64 - 44 = 20',
    'one number is left': '15 + 5 = 20 20 * 1 = 20',
    'a difference the wrong way': '15 - 79 = 64 64 - 44 = 20',
    'a sign for a number': '79 - 15 = 64 = - 44 = 20',
    'a number for a sign': '79 5 15 = 64 64 - 44 = 20',
    'no equals': '79 - 15 + 64 64 - 44 = 20',
    'padding': '79 - 15 = . . - 44 = 20',
    'nothing': '. . . . . . . . . .',
}


@pytest.mark.parametrize('answer', RIGHT)
def test_every_right_derivation_is_right(answer):
    puzzle = row_of(QUESTION + RIGHT[0])
    given = np.arange(15) < 5
    _, right = Countdown(3).check_answer(puzzle, given[None], row_of(QUESTION + answer))
    assert right.all()


@pytest.mark.parametrize('kind', WRONG)
def test_a_wrong_derivation_of_each_kind_is_refused(kind):
    puzzle = row_of(QUESTION + RIGHT[0])
    given = np.arange(15) < 5
    _, right = Countdown(3).check_answer(puzzle, given[None], row_of(QUESTION + WRONG[kind]))
    assert right[:, :5].all()
    assert not right[:, 10:].any()


def test_division_is_of_whole_numbers():
    puzzle = row_of('6 4 40 . 20 6 - 4 = 2 40 / 2 = 20')
    given = np.zeros(puzzle.shape, bool)
    halves = row_of('6 4 40 . 20 6 / 4 = 1 40 / 2 = 20')
    answers = np.concatenate([puzzle, halves])
    _, right = Countdown(3).check_answer(puzzle.repeat(2, 0), given.repeat(2, 0), answers)
    assert right[0].all() and not right[1, 5:].any()


def test_a_step_is_right_as_long_as_all_before_it_are():
    puzzle = row_of(QUESTION + RIGHT[0])
    given = np.zeros(puzzle.shape, bool)
    task = Countdown(3)
    for answer, want in {'79 - 15 = 64 64 - 44 = 21': [1, 0], RIGHT[0]: [1, 1]}.items():
        _, right = task.check_answer(puzzle, given, row_of(QUESTION + answer))
        assert right[0, 5:].reshape(2, 5).all(1).tolist() == want
        assert right[0, 5:].reshape(2, 5).any(1).tolist() == want


@pytest.mark.parametrize('n', [3, 4])
def test_the_judge_agrees_with_arithmetic_by_hand(n):
    """Rows of which a few tokens are changed: many are wrong, some are right in another way."""
    task = Countdown(n, 20)
    rng = np.random.default_rng(2)
    tokens, given = task.make(1600, rng, every)
    answer = tokens.copy()
    other = rng.integers(-1, 26, tokens.shape)
    changed = ~given & (rng.random(tokens.shape) < 0.06)
    answer[changed] = other[changed]
    # a step whose numbers change places
    turned = rng.random(len(tokens)) < 0.5
    first = task.n_question
    answer[turned, first : first + 3] = answer[turned, first : first + 3][:, ::-1]
    counts, right = task.check_answer(tokens, given, answer)
    solved = (right | ~counts).all(1)
    by_hand = []
    for row in answer.tolist():
        by_hand.append(is_right_by_hand([TEXTS[token] if token >= 0 else '' for token in row], n))
    assert solved.tolist() == by_hand
    assert 0.1 * len(solved) < solved.sum() < 0.9 * len(solved)
    assert (solved & (answer != tokens).any(1)).any()


def test_no_two_splits_share_numbers_and_target(tmp_path):
    few = ['--n_train=1500', '--n_val=300', '--n_test=300', '--largest=20']
    run_command('countdown3', *few, f'--data_dir={tmp_path}')
    meta = read_meta(tmp_path / 'countdown3')
    assert meta.splits['test'].source == 'countdown3, seed 0, numbers up to 20'
    assert meta.made_by.endswith('make countdown3 --largest=20')
    assert meta.row_length == 15
    keys = {}
    for name in ('train', 'val', 'test'):
        split, _ = open_split(tmp_path, 'countdown3', name)
        tokens, _ = split.unpack(split.packed.astype(int))
        questions = [(*sorted(row[:3]), row[4]) for row in tokens.tolist()]
        keys[name] = set(questions)
        assert len(questions) in (1500, 300)
    assert_disjoint(keys)


def test_a_row_is_written_with_blanks_between_its_tokens():
    tokenizer = get_tokenizer('countdown4')
    text = '15 44 79 50 58 44 - 15 = 29 79 + 29 = 108 108 - 50 = 58'
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    'words, said',
    [
        (['countdown3', '--largest=101'], 'largest must be a number from 20 to 100, got 101'),
        (['countdown4', '--largest=-5'], 'largest must be a number from 20 to 100'),
        (['countdown5'], 'countdown4'),
        (['countdown3', '--n_latents=3'], '--n_latents changes nothing of countdown3'),
        (['countdown3', '--n_train=many'], 'n_train'),
        (['countdown3', '--split=all'], 'split must be test, val or train'),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(tmp_path, words, said):
    with one_line(said):
        run_command(*words, f'--data_dir={tmp_path}/data')
    assert not (tmp_path / 'data').exists()
