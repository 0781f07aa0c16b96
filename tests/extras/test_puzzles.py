"""Puzzles: their rules against plain search, their sets, and how many of them a model solves."""

import hashlib
import itertools
import operator
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_model, one_line, options_in

from anyorder.checkpoint import save_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.puzzles import make, sets, solve
from anyorder.extras.puzzles.rules import TASKS, judge_of, task_of
from anyorder.extras.puzzles.sets import make_puzzles, prepare_puzzles
from anyorder.extras.puzzles.solve import Puzzles, only_blank, read_runs, score
from anyorder.extras.puzzles.solver import rounds
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.extras.puzzles.zebra import Zebra, random_houses, true_clues, zebra_names
from anyorder.fast import freeze
from anyorder.generation import SCORES, generate
from anyorder.machine.files import read_json
from anyorder.orders import draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Blocks, all_blocks
from anyorder.tokens.meta import read_meta
from anyorder.tokens.prepared import prepare
from configurator import configure
from model import EMA

HARD = '083020090000800100029300008000098700070000060006740000300006980002005000010030540'


def every(keys):
    """All puzzles are wanted."""
    return np.ones(len(keys), bool)


def rng(seed=0):
    return np.random.default_rng(seed)


# ---- the rules, by plain search


def test_the_sudoku_solver_counts_the_grids_that_agree():
    """Among all 288, which are drawn."""
    grids = Sudoku(4).random_grids(5000, rng())
    every_grid = np.unique(grids, axis=0)
    assert len(every_grid) == 288
    grids = grids[:40]
    given = rng(1).random(grids.shape) < 0.7 * rng(2).random((40, 1))
    grids[:8, :2] = 1  # contradictions
    given[:8, :2] = True
    agrees = ((every_grid == grids[:, None]) | ~given[:, None]).all(2)
    counts = Sudoku(4).count(grids, given)
    assert counts.tolist() == agrees.sum(1).clip(max=2).tolist()
    assert {*counts.tolist()} == {0, 1, 2}
    hard = np.array([[*map(int, HARD)]])
    assert Sudoku(9).count(hard - 1, hard > 0) == 1


@pytest.mark.parametrize('n, low, high', [(4, 4, 16), (9, 24, 48)])
def test_sudokus_have_one_solution_and_so_have_their_variants(n, low, high):
    rules = Sudoku(n)
    tokens, given = rules.make(60, rng(1), every)
    assert low <= given.sum(1).min() and given.sum(1).max() < high
    turned = rules.symmetric(tokens, given, rng(2))
    assert (turned[0] != tokens).any(1).mean() > 0.9
    for grids, are_given in ((tokens, given), turned):
        assert (rules.count(grids, are_given) == 1).all()
        assert (rules.count(grids, given | True) == 1).all()  # the solution is one
    names = rng(3).permutation(n)
    assert (rules.key(tokens) == rules.key(names[tokens])).all()  # a split has no other names of it


HOLDS = [
    lambda i, j: True,
    operator.eq,
    lambda i, j: i + 1 == j,
    lambda i, j: abs(i - j) == 1,
    operator.lt,
]


def agree(clues, house):
    return all(HOLDS[r](house[a], house[b]) for r, a, b in clues)


@pytest.mark.parametrize('n', [3, 4])
def test_the_zebra_solver_counts_what_every_arrangement_counts(n):
    """Of 2 n clues, and of half of the clues of two puzzles."""
    house = random_houses(8, n, 3, rng())
    clues = true_clues(house, n, 2 * n, rng())
    mixed = np.concatenate([clues[:, :n], clues[::-1, n:]], 1)
    assert all(map(agree, clues.tolist(), house.tolist()))
    rows = itertools.product(itertools.permutations(range(n)), repeat=3)
    every_house = [[*range(n), *itertools.chain(*row)] for row in rows]
    both = np.concatenate([clues, mixed])
    truth = [min(2, sum(agree(some, house) for house in every_house)) for some in both.tolist()]
    assert Zebra(6).count(both, n, 3).tolist() == truth
    assert {*truth} == {0, 1, 2}


def read_clue(text, n):
    """(relation, item, item) of the text of a clue of `zebra`, of n houses."""
    a, sign, b = text
    items = [zebra_names(6).index(name) for name in (a, b)]
    return ' =<~-'.index(sign), *[item // 6 * n + item % 6 for item in items]


@pytest.mark.parametrize('n, k', [(3, 4), (4, 3), (5, 3), (6, 6)])
def test_zebra_rows_say_one_grid_with_no_clue_too_many(n, k):
    rows = Zebra(6).make_size(3, n, k, rng(3), every)
    texts = task_of('zebra').symbols
    for row in rows.tolist():
        house = np.array(row[30:]).reshape(6, 6)[:k, :n] - 1
        clues = [read_clue(texts[i], n) for i in row[:30] if i]
        assert agree(clues, [*range(n), *house.flat])
        assert Zebra(6).count(np.array([clues]), n, k) == 1
        fewer = [clues[:i] + clues[i + 1 :] for i in range(len(clues))]
        assert (Zebra(6).count(np.array(fewer), n, k) == 2).all()


@pytest.mark.parametrize('n_clues, n', [(9, 24), (5, 0)])
def test_zebras_that_need_more_clues_than_a_row_has_are_left_out(n_clues, n):
    rules = Zebra(4)
    rules.n_clues = n_clues
    tokens = rules.make_size(40, 4, 4, rng(), every)
    assert len(tokens) == n
    assert (tokens[:, 0] > 0).all()


# ---- their steps


def test_a_cell_is_found_in_the_round_in_which_it_can_be_nothing_else():
    """2, 5, 8: the only digit of its cell. 3, 6, 9: the only cell of its digit in a unit."""
    grids = '0000201300303001', '0000000000303001'  # row by row; the second takes a guess
    tokens = np.array([[*map(int, grid)] for grid in grids])
    found, guessed = rounds(*Sudoku(4).state(tokens - 1, tokens > 0))
    assert ''.join(map(str, found)) == '5389020066080560'
    assert (guessed < 0).any()


# a kind of puzzles, tokens of a step, and the share that rounds solve
STEPS = [('sudoku4', 3, 1), ('sudoku', 3, 0.75), ('zebra4', 2, 0.5)]


@pytest.mark.parametrize('name, width, share', STEPS)
def test_a_row_of_steps_is_a_puzzle_in_the_order_of_a_solver(name, width, share):
    """What is given comes first, in reading order; who needs more than rounds is left out."""
    kind = task_of(name)
    tokens, given = kind.make(24, rng(4), every)
    found = rounds(*kind.state(tokens, given))[:, -len(kind.cells) :]
    solved = (found >= 0).all(1)
    assert solved.mean() == pytest.approx(share, abs=0.25)
    tokens, given, found = tokens[solved], given[solved], found[solved]
    cells = task_of(name, steps='cells').make(24, rng(4), every)
    assert all(map(np.array_equal, cells, (tokens, given)))
    n = found.shape[1]
    head = tokens.shape[1] - n
    for steps in ('solver', 'reading', 'random'):
        task = task_of(name, steps=steps)
        rows, is_given = task.make(24, rng(4), every)
        assert (task.in_cells(rows) == tokens).all()
        assert is_given[:, :head].all()
        cell, _ = task.steps(rows)
        when = np.take_along_axis(found if steps == 'solver' else found.clip(max=1), cell, 1)
        assert (is_given[:, head:] == (when == 0).repeat(width, 1)).all()
        assert (np.diff(when) >= 0).all()
        assert (np.diff(when * n + cell) > 0).all() == (steps != 'random')


@pytest.mark.parametrize('name, width', [('sudoku4', 3), ('zebra4', 2)])
def test_a_step_is_right_if_it_names_a_free_cell_and_its_value(name, width):
    task = task_of(name, steps='solver')
    tokens, given = task.make(24, rng(5), every)
    answer = tokens.copy()
    steps = answer[:, -16 * width :].reshape(-1, 16, width)
    steps[:] = steps[:, ::-1].copy()  # in another order
    assert task.right(tokens, answer).all()
    steps[0, 5] = steps[0, 2]  # a cell that is full
    steps[1, 6] = steps[1, 5]
    steps[1, 5, -1] = 4 - steps[1, 5, -1]  # another value, then the cell is full
    steps[2, 5, 0] = -1  # no cell
    right = task.right(tokens, answer)
    wrong = np.argwhere(~right[:, -16 * width :].reshape(-1, 16, width).all(2)).tolist()
    assert wrong == [[0, 5], [1, 5], [1, 6], [2, 5]]
    assert right.sum() == right.size - 4 * width
    assert not task.right(tokens[:0], tokens[:0]).size


NUMBERS = task_of('countdown3').symbols


@pytest.mark.parametrize('name, n, largest', [('countdown3', 3, 25), ('countdown4', 4, 100)])
def test_countdowns_are_solved_by_their_rows(name, n, largest):
    task = task_of(name, largest=largest)
    tokens, given = task.make(400, rng(), every)
    assert task.right(tokens, tokens).all()
    numbers = tokens[:, :n] - 5
    target = tokens[:, 4] - 5
    assert numbers.min() >= 1 and numbers.max() <= largest
    assert target.min() == 10 and target.max() <= largest
    assert {*tokens[:, 6::5].flat} == {1, 2, 3, 4}  # all signs


# the answer to 15 44 79 . 20, or to a question before it, and which of its two steps are right
ANSWERS = {
    '79 - 44 = 35 35 - 15 = 20': '11',
    '44 + 15 = 59 79 - 59 = 20': '11',
    '12 1 4 . 48 12 / 1 = 12 12 * 4 = 48': '11',
    '79 - 15 = 65 65 - 44 = 21': '00',
    '79 - 15 = 64 64 - 44 = 21': '10',
    '79 - 15 = 64 64 + 15 = 79': '10',  # another target
    '40 20 7 . 20 40 - 20 = 20 40 - 20 = 20': '10',  # a number twice
    '40 10 7 . 20 40 - 10 = 30 30 - 10 = 20': '10',
    '40 20 7 . 60 40 + 40 = 80 80 - 20 = 60': '00',
    '79 - 15 = 64 79 - 59 = 20': '10',
    '79 - 79 = 1 64 - 44 = 20': '00',
    '15 + 5 = 20 20 * 1 = 20': '00',
    '15 - 79 = 64 64 - 44 = 20': '00',
    '15 / 79 = 1 44 * 1 = 44': '00',
    '79 - 15 = 64 = - 44 = 20': '10',
    '79 5 15 = 64 64 - 44 = 20': '00',
    '79 - 15 + 64 64 - 44 = 20': '00',
    '79 - 15 = . . - 44 = 20': '00',
    '. . . . . . . . . .': '00',
    '44 44 79 . 35 44 - 44 = . 79 - 44 = 35': '00',
    '15 44 20 . 20 44 - 15 = 29 20 * 1 = 20': '10',
}


def test_a_step_is_right_as_long_as_it_and_all_before_it_are():
    rows = [f'15 44 79 . 20 {answer}'.split()[-15:] for answer in ANSWERS]
    answer = np.array([[NUMBERS.index(word) for word in row] for row in rows])
    puzzle = np.column_stack([answer[:, :5], answer[:1, 5:].repeat(len(rows), 0)])
    right = task_of('countdown3').right(puzzle, answer)
    assert right[:, :5].all()
    steps = right[:, 5:].reshape(-1, 2, 5)
    assert np.array_equal(steps.all(2), steps.any(2))
    found = steps.all(2).astype(int).tolist()
    assert [f'{one}{two}' for one, two in found] == [*ANSWERS.values()]


def test_observations_are_not_all_equal_and_are_judged_by_the_latents_of_the_answer():
    task = task_of('nae_sat', n_latents=5, n_observations=7)
    tokens, given = task.make(40, rng(), every)
    assert len({*map(tuple, task.triples.tolist())}) == 7
    answer = tokens.copy()
    answer[:, 5] ^= 1  # one observation is wrong, in every row
    answer[0, 0] ^= 1  # and one latent
    answer[1, 1] = -1  # which is no bit
    right = task.right(tokens, answer)
    assert not given.any()
    seen = answer[:, task.triples]
    expected = answer[:, 5:] == (seen != seen[:, :, :1]).any(2)
    assert (right[:, 5:] == (expected & (seen >= 0).all(2))).all()


# ---- the sets


SETS = [
    'sudoku4',
    'sudoku4 steps=solver',
    'zebra4 largest=3',
    'zebra4 steps=random largest=3',
    'countdown3 largest=20',
    'nae_sat seed=5 n_latents=9 n_observations=4',
]


@pytest.mark.parametrize('case', SETS)
def test_a_set_is_made_by_its_options_and_its_splits_share_no_solution(case, monkeypatch):
    monkeypatch.setattr(sets, 'PART', 60)
    monkeypatch.setattr(sets, 'N_ROWS', {'val': 8, 'test': 7})
    task, _, text = case.partition(' ')
    options = options_in(text)
    words = [f'--{word}' for word in text.split()]
    where = ['--data_dir=.', '--name=one', '--n_train=40', '--n_test=9']
    make.main(configure(vars(make), [task, *words, *where]))
    meta = read_meta('one')
    kept = {name: options[name] for name in task_of(task).options if name in options}
    assert meta.puzzle == {'task': task} | kept
    assert meta.made_by.split()[5:] == words
    found = []
    for name, n in (('train', 40), ('val', 8), ('test', 9)):
        split = open_split('.', 'one', name)
        tokens = all_blocks(Blocks(split, meta.row_length))[0].numpy()
        assert len(tokens) == n
        found.append({key.tobytes() for key in judge_of(meta).key(tokens)})
    assert len(set().union(*found)) == sum(map(len, found))


@pytest.mark.slow
def test_what_is_generated_depends_on_the_part_and_on_no_process(monkeypatch):
    rules = task_of('nae_sat', n_latents=20, n_observations=5)
    one = make_puzzles(rules, 'train', 1500, 0)
    assert len(np.unique(one[0], axis=0)) > 1400  # of 2^20
    monkeypatch.setattr(sets, 'MANY', 0)  # for which processes are started
    assert all(map(np.array_equal, one, make_puzzles(rules, 'train', 1500, 0)))


# digests of the rows of a seed
DRAWN = {
    'sudoku4': '63947555a1ad900b',
    'sudoku': 'cf928d56659505ae',
    'zebra4 largest=3': '8e338c64bff18fd5',
    'zebra4': '5b5aae1c53549c65',
    'countdown3': '38ce4961a0a87915',
    'nae_sat n_latents=3 n_observations=1': '1567007577e4b9d2',
    'sudoku steps=solver': 'f0af0947aab86d13',
    'zebra4 steps=solver': '3fb09a62c4b1ef2a',
}


@pytest.mark.parametrize('case, digest', DRAWN.items())
def test_a_seed_draws_the_puzzles_that_it_always_drew(case, digest, monkeypatch):
    """A set that is made again has the rows that a run was trained on."""
    monkeypatch.setattr(sets, 'PART', 64)
    name, _, options = case.partition(' ')
    made = np.stack(sets.make_part(task_of(name, **options_in(options)), 'val', 0, 0))
    assert hashlib.sha256(made.astype('<i2')).hexdigest()[:16] == digest


def test_a_set_of_other_puzzles_is_replaced_by_force_alone():
    few = {'train': 60, 'val': 40, 'test': 10}
    made = prepare_puzzles('sudoku4', 'data', n_rows=few)
    assert prepare_puzzles('sudoku4', 'data', n_rows=few) == made
    for other in (dict(n_rows=few | {'val': 6}), dict(n_rows=few, seed=1)):
        with one_line('--force'):
            prepare_puzzles('sudoku4', 'data', **other)
        forced = prepare_puzzles('sudoku4', 'data', force=True, **other)
        assert forced.splits['val']['sha256'] != made.splits['val']['sha256']
    assert [name for name in TASKS if task_of(name).quick] == ['sudoku4']


BAD_SETS = {
    'sudoku4 --n_val=-1': 'n_val',
    'sudoku4 --largest=3': 'largest changes nothing',
    'sudoku4 --steps=solve': 'steps',
    'countdown3 --steps=solver': 'steps changes nothing',
    'zebra --largest=2': 'largest must be 3 to 6',
    'countdown3 --largest=101': '20 to 100',
    'countdown5': 'countdown4',
    'nae_sat --n_latents=2': '3 latents',
    'nae_sat --n_latents=4 --n_observations=5': '3 latents',
}


@pytest.mark.parametrize('words, said', BAD_SETS.items())
def test_wrong_options_of_a_set_are_one_line_and_write_nothing(words, said, monkeypatch):
    with one_line(said):
        make.main(configure(vars(make), words.split()))
    assert not os.listdir()
    with one_line('sudoku4'):
        task_of('chess')
    monkeypatch.setattr(sets, 'PART', 0)
    with one_line('none of 0 puzzles'):
        make_puzzles(task_of('nae_sat'), 'val', 1, 0)


# ---- who solves them


def options_of(*options):
    return configure(vars(solve), options)


def runs_of(*options):
    return read_runs(options_of('--temperature=0', *options), {})


@pytest.fixture
def tiny():
    """Puzzles of six Sudokus."""
    tokens, given = map(torch.from_numpy, Sudoku(4).make(6, rng(), every))
    return Puzzles(Sudoku(4), tokens, given, 'some', np.arange(4))


def network(**config):
    return make_model(block_size=16, vocab_size=4, **config)


@pytest.mark.parametrize('order, temperature', [('random', 0.0), ('l2r', 1.0), ('margin', 0.7)])
def test_a_puzzle_is_written_by_its_number_and_keeps_what_is_given(tiny, order, temperature):
    model = network()
    _, tokens, given, *_ = tiny
    ((_, way),) = runs_of(f'--orders={order}', f'--temperature={temperature}')
    idx = solve.solve(model, tokens, given, way, 3, batch_size=4)
    for r in range(6):  # one puzzle, by its definition
        visits = draw_orders([r], 16, 1, 3, way.order)[0].tolist()
        visits.sort(key=lambda p: not given[r, p])
        blank = torch.where(given[r], tokens[r], 0)[None]
        how = dict(temperature=temperature, seeds=[derive_seed(3, r)])
        how['policy'] = order if order in SCORES else 'given'
        n_given = int(given[r].sum())
        alone = generate(model, blank, torch.tensor([visits]), n_given, 16, **how)
        assert torch.equal(alone[0], idx[r])


def test_scores_by_hand():
    """Of two puzzles of 2 and 4 blanks one is solved, and 1 blank of the other is right."""
    counts = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()
    right = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]).bool()
    found = score(counts, right)
    # of 1 of 2, see share_error; of 2 of 2 and 1 of 4, sqrt((1^2 + 1^2) / (n - 1) / n) / 3
    errors = {'solved_stderr': (3 * 3 / 6**3) ** 0.5, 'right_stderr': 1 / 3}
    assert found == pytest.approx({'solved': 0.5, 'right': 0.5, 'puzzles': 2} | errors)
    counts[1] = False  # of no blank nothing is solved
    assert score(counts, right) == score(counts[:1], right[:1])
    for some in (slice(0, 1), [0, 0]):  # which do not differ
        whole = score(counts[some], right[some])
        assert whole['solved'] == whole['right'] == 1
        assert whole['right_stderr'] == whole['solved_stderr'] > 0


# a network, and (a, b, c) in a given order and by margin
SLOTS = {
    '': '16 0 0  16 1 0',
    'attention=bidirectional': '0 0 16  0 0 16',
    'attention=mixed': '16 1 0  16 1 0',
    'target_position=two_stream': '16 0 1  16 1 1',
}


@pytest.mark.parametrize('config, numbers', SLOTS.items())
def test_slots_are_counted_for_one_puzzle(tiny, simulated, config, numbers):
    """Slots a puzzle, a + b sum over blanks of those that remain (and one) + c blanks. Where steps
    are recorded a finished row may run one slot more in each.

    A decoder runs every slot once in an order that is given. Where it chooses, it runs what was
    just revealed and what remains, as the mixed network always does. An encoder runs all slots in
    every step. Of two streams the content runs every slot once, and the queries what is scored."""
    model = freeze(network(**options_in(config)))
    rows = [*solve.solve_all(model, tiny, runs_of('--orders=l2r,margin'), options_of())]
    n_blanks = (~tiny.given).sum(1).double()
    remain = n_blanks * (n_blanks - 1) / 2
    if config != 'target_position=two_stream':
        remain += n_blanks - 1
    for row, (a, b, c) in zip(rows, np.array(numbers.split(), int).reshape(2, 3)):
        assert row['slots'] == pytest.approx(float((a + b * remain + c * n_blanks).mean()))
        assert 0 < row['seconds'] < 60

    def on_device(device):
        there = freeze(network(**options_in(config)).to(device))
        runs = runs_of('--orders=l2r,margin')
        for row, here in zip(solve.solve_all(there, tiny, runs, options_of()), rows):
            assert row['right'] == here['right']
            assert 0 <= row['slots'] - here['slots'] < n_blanks.max()

    simulated(on_device)


def test_positions_that_an_option_names_are_blank():
    tokens = torch.zeros(1, 6, dtype=torch.long)
    given = torch.tensor([[False, False, True, True, True, True]])
    found = only_blank('1,3:5', tokens, given)
    assert found.tolist() == [[True, False, True, False, False, True]]
    for positions in ('6', '3:3', 'x', ':2', '-1', '1,,2', '0:7'):
        with one_line('positions from 0 to 5|int'):
            only_blank(positions, tokens, given)
    assert only_blank('1:3', tokens - 1, given).all()  # padding


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with sets of puzzles and of text, and of those with rows a checkpoint."""
    path = tmp_path_factory.mktemp('puzzles')
    data = str(path / 'data')
    n_rows = {'train': 5, 'val': 5, 'test': 12}
    (path / 'short.json').write_text('[1, 0]')
    (path / 'words.txt').write_text('some words of text ' * 50)
    (path / 'rows.jsonl').write_text('{"prompt": "", "text": "ab"}\n{"prompt": "", "text": "c"}\n')
    prepare('text', data, 'words', str(path / 'words.txt'), 'test', 'bytes')
    for meta in (
        prepare_puzzles('sudoku4', data, n_rows=n_rows),
        prepare_puzzles('nae_sat', data, n_rows=n_rows, n_latents=8, n_observations=8),
        prepare('text', data, 'rows', str(path / 'rows.jsonl'), 'test', 'bytes'),
    ):
        model = make_model(block_size=16, vocab_size=257, n_tokens=meta.n_tokens).float()
        what = dict(tokenizer=meta.tokenizer, puzzle=meta.puzzle)
        run = dict(dataset=meta.name, data_dir=data)
        save_checkpoint(path / f'{meta.name}.pt', model, EMA(model, 0.9), config=run, **what)
    return path


@pytest.fixture
def solved(folder, script):
    """solved(name, option, ...): the JSON file of the command on a checkpoint."""

    def solved(name, *args):
        words = ('solve', f'--ckpt={folder}/{name}.pt', '--n_puzzles=6', '--out=o.json', *args)
        script('anyorder.extras.puzzles', *words)
        return read_json('o.json')

    return solved


def test_the_command_solves_along_files_families_and_scores(solved):
    Path('back.json').write_text(str([*range(15, -1, -1)]))
    orders = ['r2l', 'back.json', 'swaps:5', 'margin/4+0.5']
    how = ('--n_steps=0,2', '--temperature=1', f'--orders={",".join(orders)}')
    rows = solved('sudoku4', *how, '--batch_size=4')['results']
    names = [(row['order'], row['n_steps']) for row in rows]
    assert names == [*itertools.product(orders, (0, 2))]
    right = [row['right'] for row in rows]
    assert right[:2] == right[2:4]
    assert len({*right}) > 2


def test_the_likeliest_digits_are_taken_unless_nothing_is_given(solved):
    """The padding of shorter rows is not given."""
    for name, temperature in (('sudoku4', 0), ('nae_sat', 1), ('rows', 1)):
        assert solved(name, '--orders=l2r')['config']['temperature'] == temperature
    (row,) = solved('nae_sat', '--orders=l2r', '--blanks=13')['results']  # one blank a row
    assert row['solved'] == row['right']


# options of a checkpoint of sudoku4, unless they name another one
BAD = {
    '--dataset=words': 'text without prompts',
    '--dataset=nae_sat': 'other puzzles',
    '--dataset=hard': 'hard',
    '--orders=margins': 'nearest',
    '--orders=l2r/2': 'no order',
    '--temperature=hot': 'temperature must be',
    '--blanks=foo': 'blanks must be',
    '--ckpt=nae_sat.pt --blanks=1': 'judge none',
    '--orders=l2r,short.json': '0 to 15',
    '--temperature=-1': 'temperature',
}


@pytest.mark.parametrize('options, said', BAD.items())
def test_wrong_questions_are_one_line(folder, options, said, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    with one_line(said):
        solve.main(options_of('--ckpt=sudoku4.pt', *options.split()))
    assert not capsys.readouterr().out  # before any is solved
