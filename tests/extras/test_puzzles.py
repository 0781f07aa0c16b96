"""Puzzles: their files, training on blanks alone, and the share that is solved."""

import itertools
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from conftest import make_model, one_line

import train
from anyorder.datasets import open_split
from anyorder.extras.puzzles import make as command
from anyorder.extras.puzzles import sets as puzzles
from anyorder.extras.puzzles.rules import SHARES, TASKS, NaeSat, make_task
from anyorder.extras.puzzles.sets import fractions, make_puzzles, prepare_puzzles
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.likelihood.nll import blank_nll, draw_known
from anyorder.orders import draw_orders
from anyorder.tokens.meta import read_meta
from anyorder.tokens.sets import GIVEN
from anyorder.training.update import TrainState, draw_batch, make_optimizers, update
from anyorder.training.validation import validate
from configurator import Config, configure
from model import EMA

FEW = {'train': 20, 'val': 5, 'test': 5}


def run_command(*words):
    command.main(configure(vars(command), [*words]))


def assert_disjoint(keys):
    """`keys` are {split: what two splits may not share}."""
    for one, other in itertools.combinations(keys, 2):
        assert not keys[one] & keys[other], (one, other)


@pytest.fixture(scope='module')
def sudokus(tmp_path_factory):
    """A folder with the set sudoku4; to be read only."""
    folder = tmp_path_factory.mktemp('sudokus')
    prepare_puzzles('sudoku4', folder, n_rows={'train': 500, 'val': 100, 'test': 100})
    return folder


def test_a_row_is_a_grid_some_of_which_is_given(sudokus):
    for split in ('train', 'val', 'test'):
        rows, meta = open_split(sudokus, 'sudoku4', split)
        assert rows.packed.shape == (meta.splits[split].rows, 16)
        assert (rows.packed & (GIVEN - 1)).max() == 3
        assert 0.2 < (rows.packed >= GIVEN).mean() < 0.6


def test_splits_share_no_solution_up_to_relabelling(sudokus):
    keys = {}
    for split in ('train', 'val', 'test'):
        rows, _ = open_split(sudokus, 'sudoku4', split)
        tokens = rows.packed & (GIVEN - 1)
        keys[split] = {tuple(row) for row in Sudoku(4).key(tokens.astype(int)).tolist()}
    assert all(keys.values())
    assert_disjoint(keys)
    assert len(set.union(*keys.values())) <= 12


def test_a_set_is_a_function_of_its_seed(sudokus, tmp_path):
    n_rows = {'train': 500, 'val': 100, 'test': 100}
    again = prepare_puzzles('sudoku4', tmp_path, n_rows=n_rows)
    assert again == read_meta(sudokus / 'sudoku4')


def test_a_relabelled_grid_has_the_key_of_the_grid():
    rules = Sudoku(4)
    grid = rules.random_grids(1, np.random.default_rng(0))
    relabelled = np.array([0, 3, 1, 4, 2])[grid]
    assert (rules.key(grid - 1) == rules.key(relabelled - 1)).all()


@pytest.mark.parametrize('task, at_once', [('sudoku', 40), ('zebra4', 120)])
def test_generated_splits_share_no_solution(task, at_once, monkeypatch):
    monkeypatch.setattr(puzzles, 'PART', at_once)
    rules = make_task({'task': task})
    sizes = {'test': 8, 'val': 8, 'train': 40}
    keys = {}
    for split, n in sizes.items():
        tokens, _ = make_puzzles(rules, split, n, 0)
        found = rules.key(tokens)
        low, high = SHARES[split]
        u = fractions(found)
        assert ((u >= low) & (u < high)).all()
        keys[split] = {key.tobytes() for key in found}
    assert len(keys['test']) == len(keys['val']) == 8
    assert len(keys['train']) > 25  # a variant may be the puzzle itself
    assert_disjoint(keys)


def test_small_zebra_puzzles_in_the_tokens_of_all(tmp_path):
    meta = prepare_puzzles('zebra', tmp_path, n_rows={'train': 30, 'val': 5, 'test': 5}, largest=3)
    assert meta.puzzle == {'task': 'zebra'}
    assert meta.splits['test'].source == 'zebra, seed 0, up to 3 houses'
    split, _ = open_split(tmp_path, 'zebra', 'train')
    tokens, given = split.unpack(split.packed)
    house = tokens[:, 30:].reshape(30, 6, 6)
    assert (np.sort(house[:, :3, :3], 2) == [1, 2, 3]).all()
    assert house.sum() == 30 * 3 * 6
    assert ((tokens == 0) <= given).all()


def test_zebra_puzzles_are_not_too_small(tmp_path):
    with one_line('largest must be 3 to 6'):
        run_command('zebra', '--largest=2', f'--data_dir={tmp_path}')


def test_what_is_generated_depends_on_seed_split_and_part(monkeypatch):
    monkeypatch.setattr(puzzles, 'PART', 60)
    rules = NaeSat(20, 5, 0)
    parts = ('train', 0, 0), ('train', 0, 1), ('train', 1, 0), ('val', 0, 0), ('train', 0, 0)
    made = [puzzles.make_part(rules, *part)[0].tobytes() for part in parts]
    assert len(set(made)) == 4
    assert made[0] == made[4]


def test_many_rows_are_made_by_several_processes_and_are_the_same(monkeypatch):
    one = make_puzzles(Sudoku(4), 'train', 3000, 0)
    monkeypatch.setattr(puzzles, 'MANY', 0)
    started = []
    monkeypatch.setattr(puzzles, 'ProcessPoolExecutor', spied(ProcessPoolExecutor, started))
    again = make_puzzles(Sudoku(4), 'train', 3000, 0)
    for a, b in zip(one, again, strict=True):
        assert len(a) == 3000
        assert np.array_equal(a, b)
    assert len(started) == 1


def spied(function, seen):
    """Return the function, which adds what it returns to the list `seen`."""

    def called(*args):
        seen.append(function(*args))
        return seen[-1]

    return called


@pytest.mark.parametrize(
    'words, n_rows, puzzle, source',
    [
        (['sudoku4'], [10, 4, 3], {'task': 'sudoku4'}, 'sudoku4, seed 0'),
        (
            ['sudoku4', '--n_train=6', '--n_test=2'],
            [6, 4, 2],
            {'task': 'sudoku4'},
            'sudoku4, seed 0',
        ),
        (
            ['nae_sat', '--seed=5', '--n_latents=9', '--n_observations=4'],
            [50, 4, 3],
            {'task': 'nae_sat', 'seed': 5, 'n_latents': 9, 'n_observations': 4},
            'nae_sat, seed 5',
        ),
        (
            ['zebra4', '--largest=3', '--n_train=5'],
            [5, 4, 3],
            {'task': 'zebra4'},
            'zebra4, seed 0, up to 3 houses',
        ),
    ],
)
def test_the_options_of_the_command_reach_the_set(
    tmp_path, monkeypatch, words, n_rows, puzzle, source
):
    monkeypatch.setattr(puzzles, 'N_ROWS', {'val': 4, 'test': 3})
    monkeypatch.setattr(puzzles, 'PART', 60)
    for name, n in (('sudoku4', 10), ('nae_sat', 50)):
        monkeypatch.setitem(TASKS, name, TASKS[name]._replace(n_train=n))
    run_command(*words, f'--data_dir={tmp_path}')
    meta = read_meta(tmp_path / words[0])
    assert meta.puzzle == puzzle
    assert [meta.splits[split].rows for split in ('train', 'val', 'test')] == n_rows
    assert {info.source for info in meta.splits.values()} == {source}


@pytest.mark.parametrize(
    'options, said',
    [
        (['--n_val=-1'], 'n_val must be at least 0'),
        (['--split=all'], 'split must be test, val or train'),
        (['--largest=3'], '--largest changes nothing'),
    ],
)
def test_options_that_change_nothing_are_one_line(tmp_path, options, said):
    with one_line(said):
        run_command('sudoku4', *options, f'--data_dir={tmp_path}')


@pytest.fixture
def few(tmp_path):
    """The Meta of a small set sudoku4 in tmp_path."""
    return prepare_puzzles('sudoku4', tmp_path, n_rows=FEW)


@pytest.mark.parametrize('spoil', [lambda path: path.unlink(), lambda path: path.write_bytes(b'1')])
def test_a_split_whose_file_is_lost_is_made_again(tmp_path, few, spoil):
    path = tmp_path / 'sudoku4' / 'val.bin'
    rows = path.read_bytes()
    spoil(path)
    again = prepare_puzzles('sudoku4', tmp_path, n_rows=FEW, split='val')
    assert again.splits.keys() == few.splits.keys()
    assert again.with_splits({}) == few.with_splits({})
    assert path.read_bytes() == rows
    assert len(open_split(tmp_path, 'sudoku4', 'test')[0].packed) == 5


def test_other_sizes_or_another_seed_are_another_set(tmp_path, few):
    with one_line('--force replaces it'):
        prepare_puzzles('sudoku4', tmp_path, n_rows=FEW | {'val': 6})
    with one_line('from sudoku4, seed 0'):
        prepare_puzzles('sudoku4', tmp_path, n_rows=FEW, seed=1)
    assert prepare_puzzles('sudoku4', tmp_path, n_rows=FEW) == few


def test_the_name_of_a_set_is_plain(tmp_path):
    with one_line('plain name'):
        prepare_puzzles('sudoku4', tmp_path, name='../other')


OPTIONS = [
    '--block_size=16',
    '--n_layer=1',
    '--n_head=2',
    '--n_embd=16',
    '--batch_size=8',
    '--warmup_iters=2',
    '--max_iters=6',
    '--eval_interval=3',
    '--eval_iters=2',
    '--device=cpu',
    '--compile=False',
    '--dtype=float32',
]


def run_tiny(*options):
    """Train for a moment; returns the resolved options."""
    config = configure(vars(train), [*OPTIONS, *options])
    train.main(config)
    return config


@pytest.fixture
def tiny_run(tmp_path, monkeypatch):
    """tiny_run(option, ...): the options of a run on the set sudoku4, and its split to train on."""
    monkeypatch.chdir(tmp_path)
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 600, 'val': 40, 'test': 30})

    def tiny_run(*options):
        config = run_tiny('--dataset=sudoku4', '--l2r_ratio=0', *options)
        return config, open_split('data', 'sudoku4', 'train')[0]

    return tiny_run


def state_of(**kind):
    """The state of a small network before its first update."""
    model = make_model(block_size=16, vocab_size=64, n_tokens=4, **kind).float()
    model.requires_grad_(True)
    optimizers = make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95))
    return TrainState(model, optimizers, EMA(model, 0.9))


def test_an_update_is_the_mean_over_the_blanks_of_its_batch(tiny_run):
    config, split = tiny_run()
    state = state_of()
    seen = []
    update(state, split, 1e-9, config, spied(draw_batch, seen), spied(blank_nll, seen))
    batch, nll = seen
    n_blanks = (16 - batch.n_given).sum()
    assert state.totals[0] == pytest.approx(float(nll.detach().sum() / n_blanks))


def test_what_an_order_has_first_is_what_the_file_says_is_given(tiny_run):
    config, split = tiny_run()
    seen = []
    update(state_of(), split, 1e-9, config, spied(draw_batch, seen))
    (batch,) = seen
    rows = {tuple(row) for row in split.packed.tolist()}
    for r, n in enumerate(batch.n_given.tolist()):
        packed = batch.idx[r].clone()
        packed[batch.order[r, :n]] |= GIVEN
        assert tuple(packed.tolist()) in rows


def test_an_encoder_is_trained_on_uniform_numbers_of_known_blanks(tiny_run):
    options = ['--network=encoder', '--batch_size=40', '--max_iters=1']
    config, split = tiny_run(*options)
    state = state_of(attention='bidirectional')
    seen = []
    for _ in range(30):
        update(state, split, 1e-9, config, spied(draw_batch, seen))
    known = torch.cat([batch.n_known for batch in seen])
    given = torch.cat([batch.n_given for batch in seen])
    assert (known >= given).all()
    assert (known < 16).all()

    share = (known - given) / (16 - given)
    assert abs(share.mean() - 0.5 + 0.5 / (16.0 - given).mean()) < 0.03
    for n in (6, 8):
        found = known[given == n] - n
        assert len(found) > 60
        counts = torch.bincount(found, minlength=16 - n).double()
        expected = len(found) / (16 - n)
        assert (counts - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_validation_is_the_loss_of_each_blank_by_hand(attention):
    model = make_model(block_size=16, vocab_size=4, attention=attention)
    rng = np.random.default_rng(0)
    rows = Sudoku(4).make(6, rng, lambda tokens: np.ones(len(tokens), bool))
    tokens, given = map(torch.from_numpy, rows)
    val = validate(model, tokens, given, Config(batch_size=4, dtype='float32', order='random'))
    n_given = given.sum(1, keepdim=True)
    known = draw_known(range(6), 16 - n_given, n_given=n_given)[:, 0]
    for r, order in enumerate(draw_orders(range(6), 16)[:, 0]):
        is_given = given[r, order]
        order = torch.cat([order[is_given], order[~is_given]])
        if attention == 'causal':
            direct = nats_one_by_one(model, tokens[r], order, int(n_given[r]))
        else:
            direct = nats_at_once(model, tokens[r], order, int(n_given[r]), int(known[r]))
        torch.testing.assert_close(val['any'][r], direct.double(), rtol=0, atol=1e-9)


def nats_one_by_one(model, row, order, n):
    """-log p of the tokens of a row behind the first n visits, by a pass for each."""
    nats = 0
    for d in range(n, len(order)):
        logp = model.predict(row[None], order[None], d, 1)[0, 0].log_softmax(-1)
        nats = nats - logp[row[order[d]]]
    return nats


def nats_at_once(model, row, order, n, known):
    """An unbiased draw of it: the visits behind the known ones by one pass, and their weight."""
    logp = model.predict(row[None], order[None], known)[0].log_softmax(-1)
    found = logp.gather(1, row[order[known:], None])
    return -found.sum() * (len(order) - n) / (len(order) - known)


def test_a_run_goes_on_with_its_own_puzzles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        n_rows = {'train': 40, 'val': 40, 'test': 5}
        of_set = {'seed': seed, 'n_latents': 8, 'n_observations': 8}
        prepare_puzzles('nae_sat', 'data', f'set{seed}', n_rows=n_rows, **of_set)
    run_tiny('--dataset=set0')
    with one_line(r'another kind of set than set1 is \(puzzle\)'):
        run_tiny('--dataset=set1', '--init_from=resume', '--max_iters=8')
    run_tiny('--dataset=set1', '--init_from=out/ckpt.pt', '--out_dir=new')
