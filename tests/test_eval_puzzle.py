"""The puzzles that a model solves: what is written, how it is scored, and wrong questions."""

import json
import re
import shlex
import time

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_puzzles import tiny_run

import eval_puzzle
from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.datasets import open_split
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import generate
from anyorder.generation.unmasking import SCORES, Adaptive, Given
from anyorder.likelihood.measured import open_corpus
from anyorder.likelihood.tables import share_error
from anyorder.orders import Order, draw_orders
from anyorder.puzzles.rules import NaeSat
from anyorder.puzzles.sudoku import Sudoku
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import all_blocks, only_blank
from anyorder.tokens.meta import read_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.tokenizers import get_tokenizer
from anyorder.training.update import validate
from configurator import Config, configure
from eval_puzzle import Puzzles, loss_by_share, read_runs, score, solve, solve_all
from model import EMA


def some_puzzles(task, n):
    """(tokens, given) (n, N) of new puzzles, all different."""
    made = task.make(n, np.random.default_rng(0), lambda tokens: np.ones(len(tokens), bool))
    return [torch.from_numpy(x) for x in made[:2]]


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """A folder with sets of puzzles and of text, and of two of them a checkpoint that was never trained."""
    path = tmp_path_factory.mktemp('puzzles')
    metas = {
        'sudoku4': prepare_puzzles(
            'sudoku4', path / 'data', n_rows={'train': 60, 'val': 5, 'test': 30}
        ),
        'nae_sat': prepare_puzzles(
            'nae_sat',
            path / 'data',
            n_rows={'train': 5, 'val': 5, 'test': 5},
            n_latents=8,
            n_observations=8,
        ),
    }
    for name, n_tokens in ('sudoku4', 4), ('nae_sat', 2):
        model = make_model(block_size=16, vocab_size=64, n_tokens=n_tokens).float()
        run = {'dataset': name, 'data_dir': str(path / 'data')}
        save_checkpoint(
            path / f'{name}.pt',
            model,
            EMA(model, 0.9),
            tokenizer=metas[name].tokenizer,
            config=run,
            puzzle=metas[name].puzzle,
        )
    (path / 'words.txt').write_text('some words of text ' * 50)
    prepare('text', path / 'data', 'words', str(path / 'words.txt'), 'test', 'bytes')
    return path


def options_of(*options):
    return configure(vars(eval_puzzle), options)


# ---- what is written


@pytest.mark.parametrize('policy, temperature', [('random', 0.0), ('l2r', 1.0), ('margin', 0.7)])
def test_solving_keeps_what_is_given_and_depends_on_the_number_of_a_puzzle(policy, temperature):
    (tokens, given), model = some_puzzles(Sudoku(4), 20), make_model(block_size=16, vocab_size=4)
    score = policy if policy in SCORES else None
    unmasking = Adaptive(score, 16) if score else Given(16)
    order = Order('random' if policy in SCORES else policy)
    drawing = Drawing(temperature)
    idx, step, logprob = solve(model, tokens, given, order, unmasking, drawing, 3, batch_size=6)
    assert torch.equal(
        solve(model, tokens, given, order, unmasking, drawing, 3, batch_size=20)[0], idx
    )
    assert (
        torch.equal(idx[given], tokens[given])
        and ((step < 0) == given).all()
        and (logprob[given] == 0).all()
    )
    for r in (0, 7):  # one puzzle, by its definition
        visits = draw_orders([r], 16, 1, 3, order)[0, 0].tolist()
        visits = [p for p in visits if given[r, p]] + [p for p in visits if not given[r, p]]
        blank = torch.where(given[r], tokens[r], 0)[None]
        alone, trace = generate(
            model,
            blank,
            torch.tensor([visits]),
            int(given[r].sum()),
            16,
            score or 'given',
            temperature=temperature,
            seeds=[derive_seed(3, r)],
            return_trace=True,
        )
        assert torch.equal(alone[0], idx[r]) and torch.equal(trace['step'][0], step[r])


def test_blanks_are_written_left_to_right_and_drawn_by_the_seed_of_the_puzzle():
    (tokens, given), model = some_puzzles(Sudoku(4), 9), make_model(block_size=16, vocab_size=4)
    _, steps, _ = solve(model, tokens, given, Order('l2r'), Given(16), Drawing(), 3)
    assert all(step[~g].tolist() == sorted(step[~g].tolist()) for step, g in zip(steps, given))
    unmasking = Adaptive('margin', 16, binomial=True)
    order = Order('random')
    whole, alone, other = (
        solve(model, tokens, given, order, unmasking, Drawing(), seed, batch_size=size)[0]
        for seed, size in ((3, 9), (3, 1), (4, 9))
    )
    assert torch.equal(whole, alone) and not torch.equal(whole, other)
    same = [tokens[:1].repeat(9, 1), given[:1].repeat(9, 1)]
    assert len(solve(model, *same, order, unmasking, Drawing(), 3)[0].unique(dim=0)) > 1


def test_every_run_is_a_row_of_policy_steps_and_noise():
    runs = read_runs(options_of('--policies=random,margin', '--n_steps=4,0', '--noises=0,0.5'))
    assert [run[:3] for run in runs] == [
        ('random', 4, 0.0),
        ('random', 0, 0.0),
        ('margin', 4, 0.0),
        ('margin', 4, 0.5),
        ('margin', 0, 0.0),
        ('margin', 0, 0.5),
    ]
    assert runs[3][3] == Adaptive('margin', 4, noise=0.5)
    assert runs[1][3].ends([5], [0]).tolist() == [[1, 2, 3, 4, 5]]
    assert isinstance(runs[1][3], Given)
    assert [run[0] for run in read_runs(options_of())] == ['random', 'l2r', *SCORES]
    random, margin = read_runs(options_of('--policies=random,margin', '--block_length=4'))
    assert random[3:] == (Given(2**31), 'random')
    assert margin[3:] == (Adaptive('margin', 2**31, block_length=4), 'l2r')


# ---- scores


def test_scores_by_hand():
    rules, (tokens, given) = Sudoku(4), some_puzzles(Sudoku(4), 20)
    wrong = torch.where(given, tokens, 3 - tokens)
    wrong[0] = tokens[0]
    wrong[1, given[1].byte().argmin()] = tokens[1, given[1].byte().argmin()]  # one blank is right
    puzzles, blanks = Puzzles(rules, tokens, given, 'some', np.arange(4)), (~given).sum(1).double()
    half = score(*puzzles.check_answer(wrong))
    assert half['solved'] == 1 / 20 and half['right'] == pytest.approx(
        float((blanks[0] + 1) / blanks.sum())
    )
    assert half['right_stderr'] > 0 and half['solved_stderr'] == share_error(1, 20)
    whole = score(*puzzles.check_answer(tokens))
    assert whole['solved'] == 1 and whole['right_stderr'] == share_error(20, 20)
    assert share_error(20, 20) == pytest.approx((22 * 2 / 24**3) ** 0.5)


@pytest.mark.parametrize('network', ['causal', 'bidirectional', 'mixed', 'two_stream'])
def test_slots_and_seconds_are_counted_for_one_puzzle(network):
    """A decoder runs every slot once in an order that is given. Where it chooses, it runs what was just revealed and
    what remains, as the mixed network always does. An encoder runs all slots in every step. Of two streams the content
    runs every slot once, and the queries what is scored."""
    puzzles = Puzzles(Sudoku(4), *some_puzzles(Sudoku(4), 6), 'some', np.arange(4))
    kind = {'target_position': network} if network == 'two_stream' else {'attention': network}
    model = make_model(block_size=16, vocab_size=4, **kind)
    runs = read_runs(options_of('--policies=l2r,margin'))
    start = time.perf_counter()
    rows = [
        row for row, _ in solve_all(model, puzzles, runs, {}, [0], options_of('--temperature=0'))
    ]
    blanks = (~puzzles[2]).sum(1)
    assert len(blanks.unique()) > 1
    by_margin = 16 + sum(sum(1 + left for left in range(1, b)) for b in blanks.tolist()) / 6
    n = float(blanks.double().mean())
    scored = sum(sum(range(b + 1)) for b in blanks.tolist()) / 6
    want = {
        'causal': [16, by_margin],
        'bidirectional': [16 * n, 16 * n],
        'mixed': [by_margin, by_margin],
        'two_stream': [16 + n, 16 + scored],
    }
    assert [row['slots'] for row in rows] == pytest.approx(want[network])
    assert 0 < 6 * sum(row['seconds'] for row in rows) < time.perf_counter() - start


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
def test_the_error_map_is_the_mean_loss_of_what_is_masked(attention):
    task, model = (
        NaeSat(4, 4, 0),
        make_model(block_size=8, vocab_size=4, n_tokens=2, attention=attention),
    )
    tokens = some_puzzles(task, 6)[0]
    rows = loss_by_share(model, tokens, task.groups, seed=1, batch_size=4, n_shares=4)
    assert [r['masked'] for r in rows] == [0.25, 0.5, 0.75, 1.0]
    order = draw_orders(range(6), 8, 1, 1)[:, 0]
    sums = {'latents': [], 'observations': []}
    for r in range(6):  # one half masked
        logp = model.predict(tokens[r : r + 1], order[r : r + 1], 4).log_softmax(-1)[0]
        for j, p in enumerate(order[r, 4:].tolist()):
            sums['latents' if p < 4 else 'observations'].append(-float(logp[j, tokens[r, p]]))
    assert all(
        rows[1][name] == pytest.approx(np.mean(values), abs=1e-5) for name, values in sums.items()
    )


# ---- the command


def test_a_run_on_puzzles_is_validated_on_blanks_and_scored(tmp_path, monkeypatch, script):
    tiny_run(tmp_path, monkeypatch)
    val = json.loads((tmp_path / 'out' / 'log.jsonl').read_text().splitlines()[-1])
    # nats of a blank, before much is learnt
    assert all(abs(v - np.log(4)) < 0.2 for k, v in val.items() if k.startswith('val_'))
    said = script(
        'eval_puzzle.py',
        '--ckpt=out/ckpt.pt',
        '--out=p.json',
        '--html=p.html',
        '--show=0,3',
        '--n_steps=0,2',
        '--noises=0,0.5',
        '--batch_size=7',
        '--n_puzzles=12',
    ).stdout
    rows = json.loads((tmp_path / 'p.json').read_text())['results']
    assert len(rows) == 2 * 2 + len(SCORES) * 2 * 2 and 'margin' in said
    assert all(0 <= r['right'] <= 1 and r['solved_stderr'] > 0 for r in rows)
    page = (tmp_path / 'p.html').read_text()
    assert '"columns": 4' in page and 'puzzle 3, margin, 2 steps' in page
    again = script(
        'eval_puzzle.py',
        '--ckpt=out/ckpt.pt',
        '--out=q.json',
        '--policies=entropy',
        '--noises=0.5',
        '--batch_size=30',
        '--n_puzzles=12',
    )
    assert (
        json.loads((tmp_path / 'q.json').read_text())['results'][0]['right'] == rows[-3]['right']
    ), again.stdout


@pytest.mark.parametrize(
    'options', [['--attention=bidirectional', '--l2r_ratio=0'], ['--order=l2r', '--l2r_ratio=0']]
)
def test_other_networks_and_orders_are_validated_and_scored(tmp_path, monkeypatch, script, options):
    tiny_run(tmp_path, monkeypatch, *options)
    val = json.loads((tmp_path / 'out' / 'log.jsonl').read_text().splitlines()[-1])
    assert all(abs(v - np.log(4)) < 0.2 for k, v in val.items() if k.startswith('val_'))
    script(
        'eval_puzzle.py',
        '--ckpt=out/ckpt.pt',
        '--out=p.json',
        '--policies=l2r,margin',
        '--n_puzzles=9',
    )
    assert len(json.loads((tmp_path / 'p.json').read_text())['results']) == 2


def test_blanks_are_written_along_a_file_and_any_family(folder, script, tmp_path):
    (tmp_path / 'back.json').write_text(json.dumps([*range(15, -1, -1)]))
    (tmp_path / 'short.json').write_text('[1, 0]')
    run = (
        'eval_puzzle.py',
        f'--ckpt={folder}/sudoku4.pt',
        '--n_puzzles=6',
        '--temperature=1',
        '--out=o.json',
    )
    script(*run, '--policies=r2l,back.json,swaps:5,random,l2r')
    rows = json.loads((tmp_path / 'o.json').read_text())['results']
    assert [row['policy'] for row in rows] == ['r2l', 'back.json', 'swaps:5', 'random', 'l2r']
    right = [row['right'] for row in rows]
    assert right[0] == right[1] and len(set(right)) > 2
    failed = script(*run, '--policies=l2r,short.json', code=1)
    assert (
        'from 0 to 15, once; got 2' in failed.stderr and not failed.stdout
    )  # before any is solved


def test_the_likeliest_digits_are_taken_unless_nothing_is_given(folder, script, tmp_path):
    for name, temperature in ('sudoku4', 0.0), ('nae_sat', 1.0):
        script(
            'eval_puzzle.py',
            f'--ckpt={folder}/{name}.pt',
            '--policies=random',
            '--n_puzzles=4',
            '--out=o.json',
        )
        result = json.loads((tmp_path / 'o.json').read_text())
        assert (
            result['config']['temperature'] == temperature and result['results'][0]['puzzles'] == 4
        )
    script(
        'eval_puzzle.py',
        f'--ckpt={folder}/sudoku4.pt',
        '--policies=random',
        '--temperature=0.5',
        '--out=o.json',
    )
    assert json.loads((tmp_path / 'o.json').read_text())['config']['temperature'] == 0.5


@pytest.mark.parametrize(
    'options, said',
    [
        (['--dataset=words'], 'words is text'),
        (['--dataset=nae_sat'], 'other puzzles'),
        (['--dataset=hard'], 'data/puzzles.py sudoku4 --name=hard'),
        (['--split=valid'], 'split must be'),
        (['--policies=best'], "got 'best'"),
        (['--n_steps=-1'], 'n_steps must be'),
        (['--noises=x'], 'noises must be'),
        (['--unmask=binomial'], 'n_steps must be 1 or more'),
        (['--unmask=x'], 'unmask must'),
        (['--unmask=lossless'], 'choose fixed'),
        (['--noises=1', '--policies=l2r'], 'noises and'),
        (['--block_length=2', '--policies=l2r'], 'block_length are for'),
        (['--block_length=17'], 'at most the 16 positions'),
        (['--block_length=0'], 'an integer from 1'),
        (['--temperature=hot'], 'temperature must'),
        (['--temperature=-1'], 'temperature must'),
        (['--show=30', '--html=p.html'], 'show must'),
        (['--out=t.bin'], 'must end in .json'),
        (['--error_map=m.png'], 'puzzles without clues, as nae_sat; of sudoku4'),
        (['--error_map=m.xyz'], 'must end in'),
    ],
)
def test_wrong_questions_are_one_line(folder, options, said):
    with one_line(said):
        eval_puzzle.main(options_of(f'--ckpt={folder}/sudoku4.pt', *options))


@pytest.mark.parametrize('option', ['html=m.html', 'policies=margin', 'revise=2', 'show=1'])
def test_an_error_map_solves_nothing(folder, option):
    with one_line(f'solves nothing: leave out --{option.partition("=")[0]}'):
        eval_puzzle.main(
            options_of(f'--ckpt={folder}/nae_sat.pt', '--error_map=m.png', f'--{option}')
        )


@pytest.mark.parametrize('blanks', ['', '3:7,15'])
def test_eval_ppl_measures_the_blanks_of_puzzles(folder, script, blanks):
    options = (
        '--estimates=l2r,any',
        '--split=test',
        f'--blanks={blanks}',
        f'--out={folder}/ppl.json',
    )
    script('eval_ppl.py', f'--ckpt={folder}/sudoku4.pt', *options)
    with open(folder / 'ppl.json') as f:
        rows = {row['kind']: row for row in json.load(f)['results']}
    tokens, given = all_blocks(open_split(folder / 'data', 'sudoku4', 'test')[0], 16)
    given = only_blank(blanks, tokens, given)
    own = Config(batch_size=7, dtype='float32', order='random')
    nats = validate(model_from_checkpoint(f'{folder}/sudoku4.pt'), tokens, given, own)['l2r']
    assert rows['l2r']['nats_per_block'] == pytest.approx(float(nats.mean()), rel=1e-6)
    assert rows['l2r']['nats_per_block_stderr'] == pytest.approx(
        float(nats.std()) / len(nats) ** 0.5, rel=1e-5
    )
    assert rows['any']['tokens'] == int((~given).sum())
    corpora = [
        open_corpus('sudoku4', 16, get_tokenizer('sudoku4'), folder / 'data', blanks=b)
        for b in (blanks, '0')
    ]
    assert corpora[0].digest != corpora[1].digest
    said = script(
        'eval_ppl.py',
        f'--ckpt={folder}/sudoku4.pt',
        '--estimates=ensemble',
        '--split=test',
        '--n_contexts=2',
        '--n_blocks=2',
    ).stdout
    assert 'ensemble x 2' in said


def test_what_is_given_counts_for_nothing(folder, script):
    options = (
        f'--ckpt={folder}/nae_sat.pt',
        '--policies=l2r',
        '--split=test',
        f'--out={folder}/t.json',
    )
    script('eval_puzzle.py', *options, '--blanks=13')  # one blank a row
    with open(folder / 't.json') as f:
        (row,) = json.load(f)['results']
    assert row['solved'] == row['right']
    assert (
        'the rules judge none of the blanks'
        in script('eval_puzzle.py', *options, '--blanks=1', code=1).stderr
    )
    # nothing is given here, but could be
    said = script('eval_ppl.py', f'--ckpt={folder}/nae_sat.pt', '--split=test').stdout
    assert 'left to right' in said and 'unigram' not in said


def test_eval_puzzle_names_the_command_that_measures_a_text(folder, script):
    save_checkpoint(
        folder / 'text.pt',
        make_model(vocab_size=320, n_tokens=257).float(),
        tokenizer='bytes',
        config={'dataset': 'other'},
    )
    said = script(
        'eval_puzzle.py',
        f'--ckpt={folder}/text.pt',
        f'--data_dir={folder}/data',
        '--dataset=words',
        '--split=test',
        code=1,
    ).stderr
    command = re.search(r'python (eval_ppl.py .*?) measures', said)[1]
    assert 'words (test)' in script(*shlex.split(command), '--n_blocks=2', '--weights=raw').stdout


def test_a_checkpoint_of_text_solves_nothing_wherever_its_data_are(tmp_path):
    model = make_model(vocab_size=320, n_tokens=257)
    save_checkpoint(tmp_path / 'c.pt', model, tokenizer='bytes', config={'dataset': 'novels'})
    with pytest.raises(ValueError, match='novels is text'):
        eval_puzzle.main(
            options_of(f'--ckpt={tmp_path / "c.pt"}', '--weights=raw', f'--data_dir={tmp_path}')
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, key', [('eval_puzzle.py', 'data'), ('eval_ppl.py', 'val_data'), ('', '')]
)
def test_both_evaluations_say_that_a_set_was_prepared_anew(folder, script, name, key):
    model = make_model(block_size=16, vocab_size=64, n_tokens=4).float()
    splits = read_meta(folder / 'data' / 'sudoku4').splits
    hashes = {'data': splits['train'].sha256, 'val_data': splits['val'].sha256} | (
        {key: 'other'} if key else {}
    )
    save_checkpoint(
        folder / 'anew.pt',
        model,
        config={'dataset': 'sudoku4', 'data_dir': str(folder / 'data')},
        tokenizer='sudoku4',
        **hashes,
    )
    for command in [name] if name else ['eval_puzzle.py', 'eval_ppl.py']:
        said = script(
            command, f'--ckpt={folder}/anew.pt', '--weights=raw', '--split=val', '--device=cpu'
        ).stdout
        assert ('anew since the training' in said) == bool(key)
