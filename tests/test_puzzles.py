"""Puzzles: their files, training on blanks alone, and the share that is solved."""

import itertools
import json
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from conftest import make_model

import train
from anyorder.datasets import open_split
from anyorder.likelihood.nll import blank_nll, draw_known
from anyorder.orders import draw_orders
from anyorder.puzzles.rules import SHARES, TASKS, NaeSat, make_task
from anyorder.puzzles.sudoku import Sudoku
from anyorder.tokens import puzzles
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import read_meta, write_meta
from anyorder.tokens.puzzles import fractions, make_puzzles, prepare_puzzles
from anyorder.tokens.sets import GIVEN
from anyorder.training.update import TrainState, draw_batch, make_optimizers, update, validate
from configurator import Config, configure
from data import puzzles as command
from model import EMA


def test_splits_share_no_solution_up_to_relabelling(tmp_path):
    prepare_puzzles('sudoku4', tmp_path, n_rows={'train': 500, 'val': 100, 'test': 100})
    keys, rules = {}, Sudoku(4)
    for split in ('train', 'val', 'test'):
        rows, meta = open_split(tmp_path, 'sudoku4', split)
        packed = rows.packed
        tokens = packed & (GIVEN - 1)
        keys[split] = {tuple(row) for row in rules.key(tokens.astype(int)).tolist()}
        assert packed.shape == (meta.splits[split].rows, 16) and tokens.max() == 3
        assert 0.2 < (packed >= GIVEN).mean() < 0.6
    assert all(keys.values()) and not any(
        a & b for a, b in itertools.combinations(keys.values(), 2)
    )
    assert len(set.union(*keys.values())) <= 12
    again = prepare_puzzles(
        'sudoku4', tmp_path / 'b', n_rows={'train': 500, 'val': 100, 'test': 100}
    )
    assert again.splits == meta.splits  # a function of the seed
    grid = rules.random_grids(1, np.random.default_rng(0))
    relabelled = np.array([0, 3, 1, 4, 2])[grid]
    assert (rules.key(grid - 1) == rules.key(relabelled - 1)).all()


@pytest.mark.parametrize('task, at_once', [('sudoku', 40), ('zebra4', 120)])
def test_generated_splits_share_no_solution(task, at_once, monkeypatch):
    monkeypatch.setattr(puzzles, 'PART', at_once)
    rules = make_task({'task': task})
    sizes = {'test': 8, 'val': 8, 'train': 40}
    keys = {split: rules.key(make_puzzles(rules, split, n, 0)[0]) for split, n in sizes.items()}
    for split, (low, high) in SHARES.items():
        u = fractions(keys[split])
        assert ((u >= low) & (u < high)).all()
    keys = {split: {key.tobytes() for key in rows} for split, rows in keys.items()}
    # a variant may be the puzzle itself
    assert len(keys['test']) == len(keys['val']) == 8 and len(keys['train']) > 25
    assert not any(a & b for a, b in itertools.combinations(keys.values(), 2))


def test_small_zebra_puzzles_in_the_tokens_of_all(tmp_path):
    meta = prepare_puzzles('zebra', tmp_path, n_rows={'train': 30, 'val': 5, 'test': 5}, largest=3)
    assert (
        meta.puzzle == {'task': 'zebra'}
        and meta.splits['test'].source == 'zebra, seed 0, up to 3 houses'
    )
    split = open_split(tmp_path, 'zebra', 'train')[0]
    tokens, given = split.unpack(split.packed)
    house = tokens[:, 30:].reshape(30, 6, 6)
    assert (np.sort(house[:, :3, :3], 2) == [1, 2, 3]).all() and house.sum() == 30 * 3 * 6
    assert ((tokens == 0) <= given).all()
    with pytest.raises(ValueError, match='largest must be 3 to 6'):
        command.main(
            configure(vars(command), ['zebra', '--largest=2', f'--data_dir={tmp_path / "other"}'])
        )


def test_what_is_generated_depends_on_seed_split_and_part(monkeypatch):
    monkeypatch.setattr(puzzles, 'PART', 60)
    rules = NaeSat(20, 5, 0)
    parts = ('train', 0, 0), ('train', 0, 1), ('train', 1, 0), ('val', 0, 0), ('train', 0, 0)
    made = [puzzles.make_part(rules, *part)[0].tobytes() for part in parts]
    assert len(set(made)) == 4 and made[0] == made[4]


def test_many_rows_are_made_by_several_processes_and_are_the_same(monkeypatch):
    rules = Sudoku(4)
    one = make_puzzles(rules, 'train', 3000, 0)
    started = []
    monkeypatch.setattr(puzzles, 'MANY', 0)
    monkeypatch.setattr(
        puzzles,
        'ProcessPoolExecutor',
        lambda *a: started.append(ProcessPoolExecutor(*a)) or started[-1],
    )
    again = make_puzzles(rules, 'train', 3000, 0)
    assert all((a == b).all() and len(a) == 3000 for a, b in zip(one, again, strict=True))
    assert len(started) == 1


def test_the_options_of_the_command_reach_the_set(tmp_path, monkeypatch):
    monkeypatch.setattr(puzzles, 'N_ROWS', {'val': 4, 'test': 3})
    monkeypatch.setattr(puzzles, 'PART', 60)
    for name, n in ('sudoku4', 10), ('nae_sat', 50):
        monkeypatch.setitem(TASKS, name, TASKS[name]._replace(n_train=n))

    def sizes(*argv):
        command.main(configure(vars(command), [*argv, f'--data_dir={tmp_path}']))
        meta = read_meta(tmp_path / argv[-1].partition('=')[2])
        assert {info.source for info in meta.splits.values()} <= {
            'sudoku4, seed 0',
            'nae_sat, seed 5',
            'zebra4, seed 0, up to 3 houses',
        }
        return [meta.splits[split].rows for split in ('train', 'val', 'test')], meta.puzzle

    assert sizes('sudoku4', '--name=a') == ([10, 4, 3], {'task': 'sudoku4'})
    assert sizes('sudoku4', '--n_train=6', '--n_test=2', '--name=b')[0] == [6, 4, 2]
    assert sizes('nae_sat', '--seed=5', '--n_latents=9', '--n_observations=4', '--name=c') == (
        [50, 4, 3],
        {'task': 'nae_sat', 'seed': 5, 'n_latents': 9, 'n_observations': 4},
    )
    assert sizes('zebra4', '--largest=3', '--n_train=5', '--name=d')[0] == [5, 4, 3]
    for argv, said in (
        (['--n_val=-1'], 'n_val must be at least 0'),
        (['--split=all'], 'split must be test, val or train'),
        (['--largest=3'], '--largest changes nothing'),
        (['--split=val', '--n_train=3'], '--n_train changes nothing'),
        (['--split=val', '--source=p.csv', '--seed=3'], '--seed changes nothing'),
        (['--split=val', '--source=p.csv', '--n_val=3'], '--n_val changes nothing'),
    ):
        with pytest.raises(ValueError, match=said):
            command.main(configure(vars(command), ['sudoku4', *argv, f'--data_dir={tmp_path}']))


def test_a_split_whose_file_is_lost_is_made_again(tmp_path):
    sizes = {'train': 20, 'val': 5, 'test': 5}
    meta = prepare_puzzles('sudoku4', tmp_path, n_rows=sizes)
    path = tmp_path / 'sudoku4' / 'val.bin'
    for spoil in (path.unlink, lambda: path.write_bytes(b'1')):
        rows = path.read_bytes()
        spoil()
        assert prepare_puzzles('sudoku4', tmp_path, n_rows=sizes, split='val').with_splits(
            {}
        ) == meta.with_splits({})
        assert (
            path.read_bytes() == rows
            and len(open_split(tmp_path, 'sudoku4', 'test')[0].packed) == 5
        )
    meta_path = tmp_path / 'sudoku4' / 'meta.json'
    # as if its symbols had been others
    meta_path.write_text(json.dumps(json.loads(meta_path.read_text()) | {'n_tokens': 3}))
    with pytest.raises(ValueError, match='3 sudoku4 tokens, there are 4 now'):
        open_split(tmp_path, 'sudoku4', 'test')
    with pytest.raises(ValueError, match='--force replaces it'):
        prepare_puzzles('sudoku4', tmp_path, n_rows=sizes)
    write_meta(tmp_path / 'sudoku4', meta)
    with pytest.raises(ValueError, match='--force replaces it'):  # other sizes, another seed
        prepare_puzzles('sudoku4', tmp_path, n_rows=sizes | {'val': 6})
    with pytest.raises(ValueError, match='from sudoku4, seed 0'):
        prepare_puzzles('sudoku4', tmp_path, n_rows=sizes, seed=1)
    assert prepare_puzzles('sudoku4', tmp_path, n_rows=sizes).splits == meta.splits
    with pytest.raises(ValueError, match='plain name'):
        prepare_puzzles('sudoku4', tmp_path, name='../other')


def test_a_source_may_not_share_a_solution_with_another_split(tmp_path):
    prepare_puzzles('sudoku4', tmp_path, n_rows={'train': 20, 'val': 5, 'test': 5})
    tokens, given = (x[:3] for x in all_blocks(open_split(tmp_path, 'sudoku4', 'train')[0], 16))
    lines = [''.join(str(int(d)) for d in torch.where(g, t + 1, 0)) for t, g in zip(tokens, given)]
    (tmp_path / 'p.csv').write_text('puzzle\n' + '\n'.join(lines))
    before = (tmp_path / 'sudoku4' / 'test.bin').read_bytes()
    with pytest.raises(ValueError, match='solutions of test are in train'):
        prepare_puzzles(
            'sudoku4', tmp_path, source=str(tmp_path / 'p.csv'), split='test', force=True
        )
    assert (tmp_path / 'sudoku4' / 'test.bin').read_bytes() == before
    prepare_puzzles('sudoku4', tmp_path, name='mine', source=str(tmp_path / 'p.csv'), split='test')
    (tmp_path / 'p.csv').write_text(f'puzzle\n{lines[0]}\n')  # another file of the same name
    with pytest.raises(ValueError, match='holds test already'):
        prepare_puzzles(
            'sudoku4', tmp_path, name='mine', source=str(tmp_path / 'p.csv'), split='test'
        )


def tiny_run(tmp_path, monkeypatch, *options):
    monkeypatch.chdir(tmp_path)
    if not (tmp_path / 'data' / 'sudoku4').exists():
        prepare_puzzles('sudoku4', 'data', n_rows={'train': 600, 'val': 40, 'test': 30})
    config = configure(
        vars(train),
        [
            '--dataset=sudoku4',
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
            *options,
        ],
    )
    train.main(config)
    return config


def spied(function, seen):
    """Return the function, which adds what it returns to the list `seen`."""

    def called(*args):
        seen.append(function(*args))
        return seen[-1]

    return called


def test_an_update_is_the_mean_over_the_blanks_of_its_batch(tmp_path, monkeypatch):
    config = tiny_run(tmp_path, monkeypatch, '--l2r_ratio=0')
    split = open_split('data', 'sudoku4', 'train')[0]
    model = make_model(block_size=16, vocab_size=64, n_tokens=4).float()
    model.requires_grad_(True)
    seen = []
    state = TrainState(
        model, make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95)), EMA(model, 0.9)
    )
    update(state, split, 1e-9, config, spied(draw_batch, seen), spied(blank_nll, seen))
    batch, nll = seen
    rows, n_blanks = {tuple(row) for row in split.packed.tolist()}, 0
    for r, n in enumerate(batch.n_given.tolist()):
        packed = batch.idx[r].clone()
        packed[batch.order[r, :n]] |= (
            GIVEN  # what the order has first is what the file says is given
        )
        assert tuple(packed.tolist()) in rows
        n_blanks += 16 - n
    assert state.totals[0] == pytest.approx(float(nll.detach().sum()) / n_blanks)


def test_an_encoder_is_trained_on_uniform_numbers_of_known_blanks(tmp_path, monkeypatch):
    options = ['--l2r_ratio=0', '--attention=bidirectional', '--batch_size=40', '--max_iters=1']
    config = tiny_run(tmp_path, monkeypatch, *options)
    split = open_split('data', 'sudoku4', 'train')[0]
    model = make_model(block_size=16, vocab_size=64, n_tokens=4, attention='bidirectional').float()
    model.requires_grad_(True)
    seen = []
    state = TrainState(
        model, make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95)), EMA(model, 0.9)
    )
    for _ in range(30):
        update(state, split, 1e-9, config, spied(draw_batch, seen))
    known = torch.cat([batch.n_known for batch in seen])
    given = torch.cat([batch.n_given for batch in seen])
    share = (known - given) / (16 - given)
    assert (known >= given).all() and (known < 16).all()
    assert abs(share.mean() - 0.5 + 0.5 / (16.0 - given).mean()) < 0.03
    for n in (6, 8):
        rows = given == n
        counts = torch.bincount(known[rows] - n, minlength=16 - n).double()
        assert (
            rows.sum() > 60
            and (counts - rows.sum() / (16 - n)).abs().max() < 5 * (rows.sum() / (16 - n)).sqrt()
        )


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_validation_is_the_loss_of_each_blank_by_hand(attention):
    rules, model = Sudoku(4), make_model(block_size=16, vocab_size=4, attention=attention)
    rows = rules.make(6, np.random.default_rng(0), lambda tokens: np.ones(len(tokens), bool))
    tokens, given = map(torch.from_numpy, rows)
    val = validate(model, tokens, given, Config(batch_size=4, dtype='float32', order='random'))
    orders = draw_orders(range(6), 16)[:, 0]
    for r in range(6):
        order = [p for p in orders[r].tolist() if given[r, p]] + [
            p for p in orders[r].tolist() if not given[r, p]
        ]
        n, order = int(given[r].sum()), torch.tensor([order])
        if attention == 'causal':
            logp = [
                model.predict(tokens[r : r + 1], order, d, 1)[0, 0].log_softmax(-1)
                for d in range(n, 16)
            ]
            direct = sum(-p[tokens[r, order[0, d]]] for d, p in enumerate(logp, n))
        else:
            n_given = given.sum(1, keepdim=True)
            known = int(draw_known(range(6), 16 - n_given, n_given=n_given)[r, 0])
            logp = model.predict(tokens[r : r + 1], order, known)[0].log_softmax(-1)
            direct = (
                -logp.gather(1, tokens[r, order[0, known:], None]).sum() * (16 - n) / (16 - known)
            )
        torch.testing.assert_close(val['any'][r], direct.double(), rtol=0, atol=1e-9)


def test_a_run_goes_on_with_its_own_puzzles(tmp_path, monkeypatch):
    for seed in (0, 1):
        prepare_puzzles(
            'nae_sat',
            tmp_path / 'data',
            f'set{seed}',
            n_rows={'train': 40, 'val': 40, 'test': 5},
            seed=seed,
            n_latents=8,
            n_observations=8,
        )
    tiny_run(tmp_path, monkeypatch, '--dataset=set0')
    with pytest.raises(ValueError, match=r'another kind of set than set1 is \(puzzle\)'):
        tiny_run(tmp_path, monkeypatch, '--dataset=set1', '--init_from=resume', '--max_iters=8')
    tiny_run(tmp_path, monkeypatch, '--dataset=set1', '--init_from=out/ckpt.pt', '--out_dir=new')


GRID = '1234341221434321'


@pytest.mark.parametrize(
    'text, said',
    [
        ('puzzle\n123\n', 'puzzle 1 must be 16 digits from 0'),
        (f'puzzle\n{GRID}\n0034341221434325\n', 'puzzle 2 must be 16 digits'),
        ('puzzle\n1100000000000000\n', 'puzzle 1 has no solution'),
        (f'puzzle\n{GRID}\n', 'puzzle 1 has no blank'),
        ('puzzle\n1000000000000000\n', 'puzzle 1 has several solutions'),
        (f'puzzle,solution\n0{GRID[1:]},2134341221434321\n', 'has another solution than it says'),
        ('quiz\n1\n', 'must have the column puzzle, it has quiz'),
        ('puzzle\n', 'no puzzles'),
        ('', 'holds no puzzles'),
        (None, r'^no file .*p\.csv'),
    ],
)
def test_wrong_puzzles_are_one_line_and_write_nothing(tmp_path, text, said):
    if text is not None:
        (tmp_path / 'p.csv').write_text(text)
    with pytest.raises(ValueError, match=said):
        prepare_puzzles('sudoku4', tmp_path / 'data', source=str(tmp_path / 'p.csv'), split='test')
    assert not (tmp_path / 'data').exists()


def test_a_source_is_read_with_and_without_its_solutions(tmp_path, capsys):
    (tmp_path / 'p.csv').write_text(f'puzzle,solution\n.{GRID[1:]},{GRID}\n0{GRID[1:]},\n')
    options = [
        f'--source={tmp_path}/p.csv',
        '--split=test',
        '--name=mine',
        f'--data_dir={tmp_path}',
    ]
    for _ in range(2):
        command.main(configure(vars(command), ['sudoku4', *options]))
    assert 'there already' in capsys.readouterr().out
    tokens, given = all_blocks(open_split(tmp_path, 'mine', 'test')[0], 16)
    assert (tokens + 1).tolist() == [[int(d) for d in GRID]] * 2 and given.tolist() == [
        [False] + [True] * 15
    ] * 2
