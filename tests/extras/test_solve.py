"""The puzzles that a model solves: what is written, how it is scored, and wrong questions."""

import json
import time
from functools import partial

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_puzzles import run_tiny

import anyorder.extras.puzzles.solve as eval_puzzle
from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.extras.puzzles.solve import Puzzles, only_blank, read_runs, score, solve, solve_all
from anyorder.extras.puzzles.sudoku import Sudoku
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import generate
from anyorder.generation.unmasking import SCORES, Adaptive, Given
from anyorder.generation.way import Way
from anyorder.likelihood.tables import share_error
from anyorder.orders import Order, draw_orders
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import read_meta
from anyorder.tokens.prepared import prepare
from anyorder.training.validation import validate
from configurator import Config, configure
from model import EMA


def some_puzzles(task, n):
    """(tokens, given) (n, N) of new puzzles, all different."""
    rng = np.random.default_rng(0)
    tokens, given = task.make(n, rng, lambda tokens: np.ones(len(tokens), bool))
    return torch.from_numpy(tokens), torch.from_numpy(given)


def save_untrained(path, meta, n_tokens, **run):
    """A checkpoint of a set of puzzles that was never trained."""
    model = make_model(block_size=16, vocab_size=64, n_tokens=n_tokens).float()
    ema = EMA(model, 0.9)
    save_checkpoint(path, model, ema, tokenizer=meta.tokenizer, config=run, puzzle=meta.puzzle)


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """A folder with sets of puzzles and of text, and of two of them a checkpoint."""
    path = tmp_path_factory.mktemp('puzzles')
    data = path / 'data'
    n_rows = {'train': 60, 'val': 5, 'test': 30}
    sudoku = prepare_puzzles('sudoku4', data, n_rows=n_rows)
    n_rows = {'train': 5, 'val': 5, 'test': 5}
    nae_sat = prepare_puzzles('nae_sat', data, n_rows=n_rows, n_latents=8, n_observations=8)
    save_untrained(path / 'sudoku4.pt', sudoku, 4, dataset='sudoku4', data_dir=str(data))
    save_untrained(path / 'nae_sat.pt', nae_sat, 2, dataset='nae_sat', data_dir=str(data))
    (path / 'words.txt').write_text('some words of text ' * 50)
    prepare('text', data, 'words', str(path / 'words.txt'), 'test', 'bytes')
    return path


def options_of(*options):
    return configure(vars(eval_puzzle), options)


def results(path):
    """The rows of the table in a JSON file."""
    return json.loads(path.read_text())['results']


# --------------------------------------------------------------------------------------------------
# what is written

MODEL = {'block_size': 16, 'vocab_size': 4}


@pytest.mark.parametrize('policy, temperature', [('random', 0.0), ('l2r', 1.0), ('margin', 0.7)])
def test_solving_keeps_what_is_given_and_depends_on_the_number_of_a_puzzle(policy, temperature):
    tokens, given = some_puzzles(Sudoku(4), 20)
    model = make_model(**MODEL)
    if policy in SCORES:
        way = Way(Order('random'), Adaptive(policy, 16), Drawing(temperature))
    else:
        way = Way(Order(policy), Given(16), Drawing(temperature))
    idx, step, logprob = solve(model, tokens, given, way, 3, batch_size=6)
    at_once, _, _ = solve(model, tokens, given, way, 3, batch_size=20)
    assert torch.equal(at_once, idx)
    assert torch.equal(idx[given], tokens[given])
    assert ((step < 0) == given).all()
    assert (logprob[given] == 0).all()
    for r in (0, 7):  # one puzzle, by its definition
        visits = draw_orders([r], 16, 1, 3, way.order)[0, 0].tolist()
        visits.sort(key=lambda p: not given[r, p])
        blank = torch.where(given[r], tokens[r], 0)[None]
        how = {'temperature': temperature, 'seeds': [derive_seed(3, r)], 'return_trace': True}
        score = policy if policy in SCORES else 'given'
        n_given = int(given[r].sum())
        alone, trace = generate(model, blank, torch.tensor([visits]), n_given, 16, score, **how)
        assert torch.equal(alone[0], idx[r])
        assert torch.equal(trace['step'][0], step[r])


def test_blanks_are_written_left_to_right():
    tokens, given = some_puzzles(Sudoku(4), 9)
    way = Way(Order('l2r'), Given(16))
    _, steps, _ = solve(make_model(**MODEL), tokens, given, way, 3)
    for step, known in zip(steps, given):
        written = step[~known].tolist()
        assert written == sorted(written)


def test_blanks_are_drawn_by_the_seed_of_the_puzzle():
    tokens, given = some_puzzles(Sudoku(4), 9)
    model = make_model(**MODEL)
    way = Way(Order('random'), Adaptive('margin', 16, binomial=True))
    whole, _, _ = solve(model, tokens, given, way, 3, batch_size=9)
    alone, _, _ = solve(model, tokens, given, way, 3, batch_size=1)
    other, _, _ = solve(model, tokens, given, way, 4, batch_size=9)
    assert torch.equal(whole, alone)
    assert not torch.equal(whole, other)
    same, _, _ = solve(model, tokens[:1].repeat(9, 1), given[:1].repeat(9, 1), way, 3)
    assert len(same.unique(dim=0)) > 1


def runs_of(*options):
    return read_runs(options_of('--temperature=0', *options), {})


def test_every_run_is_a_row_of_order_and_steps():
    runs = runs_of('--orders=random,margin+0.5', '--n_steps=4,0')
    of_random = [('random', 4), ('random', 0)]
    of_margin = [('margin+0.5', 4), ('margin+0.5', 0)]
    assert [(run.order, run.n_steps) for run in runs] == of_random + of_margin
    assert runs[2].way.unmasking == Adaptive('margin', 4, noise=0.5)
    one_by_one = runs[1].way.unmasking
    assert isinstance(one_by_one, Given)
    assert one_by_one.ends([5], [0]).tolist() == [[1, 2, 3, 4, 5]]
    assert [run.order for run in runs_of()] == ['random', 'l2r', *SCORES]


def test_blocks_are_for_policies_and_go_from_left_to_right():
    random, margin = [run.way for run in runs_of('--orders=random,margin/4')]
    assert (random.unmasking, random.order) == (Given(2**31), Order('random'))
    in_blocks = Adaptive('margin', 2**31, block_length=4)
    assert (margin.unmasking, margin.order) == (in_blocks, Order('l2r'))


# --------------------------------------------------------------------------------------------------
# scores


def test_scores_by_hand():
    tokens, given = some_puzzles(Sudoku(4), 20)
    puzzles = Puzzles(Sudoku(4), tokens, given, 'some', np.arange(4))
    wrong = torch.where(given, tokens, 3 - tokens)
    wrong[0] = tokens[0]
    blank = given[1].byte().argmin()
    wrong[1, blank] = tokens[1, blank]  # one blank is right
    blanks = (~given).sum(1).double()
    half = score(*puzzles.check_answer(wrong))
    assert half['solved'] == 1 / 20
    assert half['right'] == pytest.approx(float((blanks[0] + 1) / blanks.sum()))
    assert half['right_stderr'] > 0
    assert half['solved_stderr'] == share_error(1, 20)
    whole = score(*puzzles.check_answer(tokens))
    assert whole['solved'] == 1
    assert whole['right_stderr'] == share_error(20, 20)
    assert share_error(20, 20) == pytest.approx((22 * 2 / 24**3) ** 0.5)


NETWORKS = {
    'causal': {},
    'bidirectional': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    'two_stream': {'target_position': 'two_stream'},
}


@pytest.mark.parametrize('network', NETWORKS)
def test_slots_and_seconds_are_counted_for_one_puzzle(network):
    """A decoder runs every slot once in an order that is given.

    Where it chooses, it runs what was just revealed and what remains, as the mixed network always
    does. An encoder runs all slots in every step. Of two streams the content runs every slot once,
    and the queries what is scored."""
    tokens, given = some_puzzles(Sudoku(4), 6)
    puzzles = Puzzles(Sudoku(4), tokens, given, 'some', np.arange(4))
    model = make_model(**MODEL, **NETWORKS[network])
    runs = runs_of('--orders=l2r,margin')
    start = time.perf_counter()
    rows = list(solve_all(model, puzzles, runs, options_of('--temperature=0')))
    passed = time.perf_counter() - start

    blanks = (~given).sum(1)
    assert len(blanks.unique()) > 1
    n = float(blanks.double().mean())
    chosen = 0
    scored = 0
    for b in blanks.tolist():
        chosen += sum(1 + left for left in range(1, b)) / 6
        scored += sum(range(b + 1)) / 6
    want = {
        'causal': [16, 16 + chosen],
        'bidirectional': [16 * n, 16 * n],
        'mixed': [16 + chosen, 16 + chosen],
        'two_stream': [16 + n, 16 + scored],
    }
    assert [row['slots'] for row in rows] == pytest.approx(want[network])
    assert 0 < 6 * sum(row['seconds'] for row in rows) < passed


# --------------------------------------------------------------------------------------------------
# the command


@pytest.fixture
def train(tmp_path, monkeypatch):
    """train(option, ...) makes a set sudoku4 and trains on it for a moment."""
    monkeypatch.chdir(tmp_path)
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 600, 'val': 40, 'test': 30})
    return partial(run_tiny, '--dataset=sudoku4')


def check_untrained(log):
    """The validations are about the nats of a blank before much is learnt."""
    last = json.loads(log.read_text().splitlines()[-1])
    for key, nats in last.items():
        if key.startswith('val_'):
            assert abs(nats - np.log(4)) < 0.2, key


def test_a_run_on_puzzles_is_validated_on_blanks_and_scored(train, tmp_path, script):
    train()
    check_untrained(tmp_path / 'out' / 'log.jsonl')
    run = ('anyorder.extras.puzzles', 'solve', '--ckpt=out/ckpt.pt', '--n_puzzles=12')
    said = script(*run, '--n_steps=0,2', '--batch_size=7', '--out=p.json').stdout
    rows = results(tmp_path / 'p.json')
    assert len(rows) == 2 * 2 + len(SCORES) * 2
    assert 'margin' in said
    assert all(0 <= row['right'] <= 1 and row['solved_stderr'] > 0 for row in rows)
    script(*run, '--orders=entropy,entropy+0.5', '--batch_size=30', '--out=q.json')
    without, with_noise = results(tmp_path / 'q.json')
    by_entropy = [row for row in rows if row['order'] == 'entropy']
    assert without['right'] == by_entropy[0]['right']
    assert with_noise['order'] == 'entropy+0.5'


OTHERS = [['--network=encoder', '--l2r_ratio=0'], ['--order=l2r', '--l2r_ratio=0']]


@pytest.mark.parametrize('options', OTHERS)
def test_other_networks_and_orders_are_validated_and_scored(train, tmp_path, script, options):
    train(*options)
    check_untrained(tmp_path / 'out' / 'log.jsonl')
    how = ('--orders=l2r,margin', '--n_puzzles=9', '--out=p.json')
    script('anyorder.extras.puzzles', 'solve', '--ckpt=out/ckpt.pt', *how)
    assert len(results(tmp_path / 'p.json')) == 2


def test_blanks_are_written_along_a_file_and_any_family(folder, script, tmp_path):
    (tmp_path / 'back.json').write_text(json.dumps([*range(15, -1, -1)]))
    (tmp_path / 'short.json').write_text('[1, 0]')
    how = (f'--ckpt={folder}/sudoku4.pt', '--n_puzzles=6', '--temperature=1', '--out=o.json')
    script('anyorder.extras.puzzles', 'solve', *how, '--orders=r2l,back.json,swaps:5,random,l2r')
    rows = results(tmp_path / 'o.json')
    assert [row['order'] for row in rows] == ['r2l', 'back.json', 'swaps:5', 'random', 'l2r']
    right = [row['right'] for row in rows]
    assert right[0] == right[1]
    assert len(set(right)) > 2
    failed = script('anyorder.extras.puzzles', 'solve', *how, '--orders=l2r,short.json', code=1)
    assert 'from 0 to 15, once; got 2' in failed.stderr
    assert not failed.stdout  # before any is solved


@pytest.mark.parametrize(
    'name, option, temperature',
    [('sudoku4', 'auto', 0.0), ('nae_sat', 'auto', 1.0), ('sudoku4', '0.5', 0.5)],
)
def test_the_likeliest_digits_are_taken_unless_nothing_is_given(
    folder, script, tmp_path, name, option, temperature
):
    how = ('--orders=random', '--n_puzzles=4', f'--temperature={option}', '--out=o.json')
    script('anyorder.extras.puzzles', 'solve', f'--ckpt={folder}/{name}.pt', *how)
    result = json.loads((tmp_path / 'o.json').read_text())
    assert result['config']['temperature'] == temperature
    assert result['results'][0]['puzzles'] == 4


@pytest.mark.parametrize(
    'options, said',
    [
        (['--dataset=words'], 'words is text without prompts, which eval_ppl.py'),
        (['--dataset=nae_sat'], 'other puzzles'),
        (['--dataset=hard'], 'no .*hard'),
        (['--split=valid'], 'split must be'),
        (['--orders=margins'], "'margins' is no order; the nearest is"),
        (['--n_steps=-1'], 'n_steps must be'),
        (['--orders=margin:x'], "got 'margin:x'"),
        (['--orders=l2r/2'], "'l2r/2' is no order"),
        (['--orders=margin/17'], 'at most the 16 positions'),
        (['--orders=margin/0'], 'an integer from 1'),
        (['--policies=margin'], 'there is no option'),
        (['--temperature=hot'], 'temperature must'),
        (['--temperature=-1'], 'temperature must'),
        (['--out=t.bin'], 'must end in .json'),
    ],
)
def test_wrong_questions_are_one_line(folder, options, said):
    with one_line(said):
        eval_puzzle.main(options_of(f'--ckpt={folder}/sudoku4.pt', *options))


# --------------------------------------------------------------------------------------------------
# beside eval_ppl.py


def test_eval_ppl_measures_the_blanks_of_puzzles(folder, script):
    how = ('--estimates=l2r,any', '--split=test', f'--out={folder}/ppl.json')
    script('eval_ppl.py', f'--ckpt={folder}/sudoku4.pt', *how)
    rows = {row['kind']: row for row in results(folder / 'ppl.json')}
    split, _ = open_split(folder / 'data', 'sudoku4', 'test')
    tokens, given = all_blocks(split, 16)
    own = Config(batch_size=7, dtype='float32', order='random')
    nats = validate(model_from_checkpoint(f'{folder}/sudoku4.pt'), tokens, given, own)['l2r']
    error = float(nats.std()) / len(nats) ** 0.5
    assert rows['l2r']['nats_per_block'] == pytest.approx(float(nats.mean()), rel=1e-6)
    assert rows['l2r']['nats_per_block_stderr'] == pytest.approx(error, rel=1e-5)
    assert rows['any']['tokens'] == int((~given).sum())


def test_positions_that_an_option_names_are_blank():
    tokens = torch.zeros(1, 6, dtype=torch.long)
    given = torch.tensor([[False, False, True, True, True, True]])
    found = only_blank('1,3:5', tokens, given)
    assert found.tolist() == [[True, False, True, False, False, True]]
    for positions in ('6', '3:3', 'x', '1:', ':2', '-1', '1,,2'):
        with one_line('blanks must be positions from 0 to 5'):
            only_blank(positions, tokens, given)


def test_an_ensemble_measures_puzzles(folder, script):
    how = ('--estimates=ensemble:2', '--split=test', '--n_blocks=2')
    assert 'ensemble x 2' in script('eval_ppl.py', f'--ckpt={folder}/sudoku4.pt', *how).stdout


def test_what_is_given_counts_for_nothing(folder, script):
    how = (f'--ckpt={folder}/nae_sat.pt', '--orders=l2r', f'--out={folder}/t.json')
    script('anyorder.extras.puzzles', 'solve', *how, '--blanks=13')  # one blank a row
    (row,) = results(folder / 't.json')
    assert row['solved'] == row['right']
    failed = script('anyorder.extras.puzzles', 'solve', *how, '--blanks=1', code=1)
    assert 'the rules judge none of the blanks' in failed.stderr
    # nothing is given here, but could be
    said = script('eval_ppl.py', f'--ckpt={folder}/nae_sat.pt', '--split=test').stdout
    assert 'left to right' in said
    assert 'unigram' not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    'changed, commands',
    [
        ('data', ['anyorder.extras.puzzles solve']),
        ('val_data', ['eval_ppl.py']),
        (None, ['anyorder.extras.puzzles solve', 'eval_ppl.py']),
    ],
)
def test_both_evaluations_say_that_a_set_was_prepared_anew(folder, script, changed, commands):
    model = make_model(block_size=16, vocab_size=64, n_tokens=4).float()
    splits = read_meta(folder / 'data' / 'sudoku4').splits
    hashes = {'data': splits['train'].sha256, 'val_data': splits['val'].sha256}
    if changed:
        hashes[changed] = 'other'
    run = {'dataset': 'sudoku4', 'data_dir': str(folder / 'data')}
    save_checkpoint(folder / 'anew.pt', model, config=run, tokenizer='sudoku4', **hashes)
    for command in commands:
        how = ('--weights=raw', '--split=val', '--device=cpu')
        said = script(command, f'--ckpt={folder}/anew.pt', *how).stdout
        assert ('anew since the training' in said) == bool(changed)
