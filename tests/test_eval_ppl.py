"""eval_ppl.py: estimates against slow versions, rows by hand, a table that depends on neither batch nor processes."""
import json
import math
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model

import eval_ppl
from anyorder import likelihood
from anyorder.checkpoint import save_checkpoint
from anyorder.journal import Journal
from anyorder.likelihood import block_nll, draw_known, ensemble_block_nll, ensemble_totals, one_by_one, sample_groups
from anyorder.orders import derive_seed, draw_orders, sample_order
from configurator import configure, one_line_errors
from data.measured import Text
from data.prepare import prepare
from data.tokenizers import Bytes
from eval_ppl import ESTIMATES, choose_estimates, evaluate, open_journal

SEED = 1337


def options(*args):
    return configure(vars(eval_ppl), list(args))


def opened(order=None, **config):
    """What estimates ask of a Checkpoint."""
    config = SimpleNamespace(**{'causal': True, 'block_size': 9} | config)
    return SimpleNamespace(config=config, order=order or {'kind': 'random'}, tokenizer=Bytes())


def estimate(name, *args, checkpoint=None, asked=()):
    return ESTIMATES[name](options(*args), checkpoint or opened(), asked or (name,))


def text_of(blocks, n_bytes=None, name='words'):
    return Text(name, f'{name} (val)', {'source': name, 'sha256': '0'}, blocks.flatten().numpy(), blocks,
                blocks.numel() if n_bytes is None else n_bytes)


@pytest.fixture
def blocks():
    """Blocks (4, 9), of which the first and the last are equal."""
    idx = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))
    idx[3] = idx[0]
    return idx


# ---------------------------------------------------------------------------------------------------------------------
# nats of each estimate

def test_one_order_for_all_blocks(blocks):
    model, own = make_model(), {'kind': 'block', 'seed': 3, 'block': 4}
    for name, order in (('l2r', {'kind': 'l2r'}), ('own', own)):
        it = estimate(name, checkpoint=opened(own))
        want = model(blocks[[2, 0]], sample_order(2, 9, **order)).sum(1, keepdim=True)
        torch.testing.assert_close(it.nats(model, blocks, [2, 0], None), want, rtol=0, atol=1e-10)


def test_bounds_are_of_the_orders_of_each_block(blocks):
    model = make_model()
    got = estimate('any', '--n_orders=3', '--batch_size=2').nats(model, blocks, [3, 1], None)
    assert got.shape == (2, 3)
    for row, b in zip(got, (3, 1)):
        orders = draw_orders([b], 9, 3, SEED)[0]
        torch.testing.assert_close(row, model(blocks[b].expand(3, 9), orders).sum(1), rtol=0, atol=1e-10)


def test_an_encoder_draws_for_the_bound_and_passes_one_by_one_for_importance_weights(blocks):
    model, encoder = make_model(causal=False), opened(causal=False)
    orders, repeated = draw_orders([3, 1], 9, 2, SEED).flatten(0, 1), blocks[[3, 1]].repeat_interleave(2, 0)
    known = draw_known([3, 1], 9, 2, SEED).flatten()
    drawn = block_nll(model, repeated, orders, 9, n_known=known).view(2, 2)
    exact = one_by_one(model, repeated, orders).sum(1).view(2, 2)
    for name, asked, want in (('any', ['any'], drawn), ('any', ['any', 'iw'], exact), ('iw', ['iw'], exact)):
        got = estimate(name, '--n_orders=2', checkpoint=encoder, asked=asked).nats(model, blocks, [3, 1], None)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_the_ensemble_is_of_the_first_order_of_a_block(blocks):
    model = make_model()
    args = ['--n_contexts=5', '--n_positions=4', '--ensemble_block=2']
    got = estimate('ensemble', *args).nats(model, blocks, [3, 1], None)
    assert got.shape == (2, 4)
    for row, b in zip(got, (3, 1)):
        order = draw_orders([b], 9, 1, SEED)[0, 0]
        groups, weights = sample_groups(9, 2, 4, derive_seed(SEED, 'positions', b))
        own, members = ensemble_block_nll(model, blocks[b], order, 5, groups, 2, derive_seed(SEED, 'contexts', b))
        torch.testing.assert_close(row, ensemble_totals(own, members, weights), rtol=0, atol=1e-10)
        assert math.isclose(row[0], model(blocks[b:b + 1], order[None]).sum(), abs_tol=1e-9)


def test_contexts_and_sampled_visits_of_blocks_differ(blocks, monkeypatch):
    """Two blocks of equal tokens and, here, one order: only their contexts tell them apart."""
    it = estimate('ensemble', '--n_contexts=3', '--n_positions=3')
    assert len({tuple(it.groups(b, 9)[0]) for b in range(20)}) > 5 and it.groups(2, 9)[0] == it.groups(2, 9)[0]
    monkeypatch.setattr(eval_ppl, 'draw_orders', lambda numbers, *_: draw_orders([0] * len(numbers), 9, 1, SEED))
    nats = estimate('ensemble', '--n_contexts=3').nats(make_model(), blocks, [0, 3], None)
    assert nats[0, 0] == nats[1, 0] and (nats[0, 1:] - nats[1, 1:]).abs().min() > 1e-6
    assert torch.equal(nats[1:], estimate('ensemble', '--n_contexts=3').nats(make_model(), blocks, [3], None))


def test_another_seed_gives_other_orders_contexts_and_visits(blocks):
    model = make_model()
    for name, args in (('any', []), ('ensemble', ['--n_contexts=3'])):
        a, b = (estimate(name, *args, f'--seed={seed}').nats(model, blocks, [0, 1], None) for seed in (1, 2))
        assert (a - b).abs().min() > 1e-6
    of_seeds = [estimate('ensemble', '--n_positions=3', f'--seed={seed}') for seed in range(20)]
    assert len({tuple(it.groups(0, 9)[0]) for it in of_seeds}) > 5


def test_a_pass_has_at_most_batch_size_blocks():
    sizes = [(name, estimate(name, '--batch_size=6', f'--n_orders={n}').n_at_once())
             for name, n in (('l2r', 1), ('any', 1), ('any', 4), ('iw', 3), ('any', 9), ('ensemble', 1))]
    assert sizes == [('l2r', 6), ('any', 6), ('any', 1), ('iw', 2), ('any', 1), ('ensemble', 1)]


def test_the_bar_knows_what_an_estimate_costs():
    class Bar:
        n = 0

        def update(self, n):
            self.n += n
    blocks = torch.zeros(2, 9, dtype=torch.long)
    ensemble = ['--n_contexts=3', '--n_positions=4', '--ensemble_block=2']
    for name, args in (('l2r', []), ('any', ['--n_orders=3']), ('ensemble', ensemble)):
        it, bar = estimate(name, *args), Bar()
        it.nats(make_model(), blocks, [0, 1], bar)
        cost = sum(it.n_tokens(b, 9) for b in (0, 1))
        assert cost - bar.n in (0, 4, 8) if name == 'ensemble' else cost == bar.n   # the first group is not run again


# ---------------------------------------------------------------------------------------------------------------------
# rows by hand: two blocks of nine tokens, twelve bytes

def rows_of(name, nats, *args, **how):
    text = text_of(torch.zeros(2, 9, dtype=torch.long), n_bytes=12)
    it = estimate(name, *args, **how)
    return it, it.rows(torch.tensor(nats, dtype=torch.float64), text), text


def test_the_bound_is_the_mean_of_all_orders():
    _, (row,), _ = rows_of('any', [[1, 3, 8], [5, 7, 6]], '--n_orders=3')
    assert math.isclose(row['nats_per_token'], (4 + 6) / 18) and math.isclose(row['stderr'], 2 ** 0.5 / 2 ** 0.5 / 9)
    assert (row['kind'], row['n'], row['estimate']) == ('any', 3, 'any order x 3')


def test_bits_are_of_bytes():
    for name, args in (('l2r', []), ('any', [])):
        _, (row,), _ = rows_of(name, [[3], [9]], *args)
        assert math.isclose(row['bits_per_byte'], 12 / math.log(2) / 12) and row['bytes'] == 12 and row['tokens'] == 18


def test_importance_weights_average_probabilities_of_a_whole_block():
    p = [[0.5, 0.25, 0.125, 0.5], [0.1, 0.3, 0.2, 0.2]]
    _, rows, _ = rows_of('iw', [[-math.log(x) for x in row] for row in p], '--n_orders=4')
    assert [row['n'] for row in rows] == [1, 2, 4]
    assert [row['estimate'] for row in rows] == ['iw x 1', 'iw x 2', 'iw x 4']
    for row in rows:
        nats = [-math.log(sum(q[:row['n']]) / row['n']) for q in p]
        assert math.isclose(row['nats_per_token'], sum(nats) / 18)


def test_the_gain_has_an_error_of_its_own():
    it, rows, text = rows_of('ensemble', [[10, 9, 8], [50, 46, 44]], '--n_contexts=4')
    assert [row['estimate'] for row in rows] == ['ensemble x 1', 'ensemble x 2', 'ensemble x 4']
    assert [row['n'] for row in rows] == [1, 2, 4] and rows[0]['gain'] == rows[0]['gain_stderr'] == 0
    assert math.isclose(rows[1]['gain'], 5 / 18) and math.isclose(rows[1]['gain_stderr'], 1.5 / 9)    # of 1 and 4
    assert math.isclose(rows[2]['gain'], 8 / 18) and math.isclose(rows[2]['gain_stderr'], 2 / 9)      # of 2 and 6
    assert math.isclose(rows[1]['stderr'], 18.5 / 9)
    assert it.remarks(rows, text) == ['gain of ensemble x 2 over x 1, block by block: 0.2778 ± 0.1667 nats/token',
                                      'gain of ensemble x 4 over x 1, block by block: 0.4444 ± 0.2222 nats/token']
    it, rows, text = rows_of('ensemble', [[10, 9], [50, 46]], '--n_contexts=2', '--n_positions=6', '--ensemble_block=2')
    assert it.remarks(rows, text)[0] == 'ensemble on 6 of 9 visits a block'


def test_own_is_the_order_of_the_training():
    _, (row,), _ = rows_of('own', [[3], [9]], checkpoint=opened({'kind': 'r2l'}))
    assert row['estimate'] == 'own order (r2l)' and row['kind'] == 'own'


def test_last_words_are_counted_over_all_processes(monkeypatch):
    tokens = np.array([t for word in 'abcdefg' for t in (*f'x {word}'.encode(), 256)])
    text = text_of(torch.zeros(2, 9, dtype=torch.long), name='lambada')
    text.tokens = tokens
    it, seen = estimate('accuracy'), []

    def last_word_hits(model, rows, *_):
        seen.append(rows)
        return [word[1] < 100 for _, word in rows]
    monkeypatch.setattr(eval_ppl, 'last_word_hits', last_word_hits)
    assert it.measure(None, text, None) == (3, 7)   # a, b, c
    for rank in (0, 1):
        monkeypatch.setattr(eval_ppl, 'processes', lambda rank=rank: (rank, 2))
        monkeypatch.setattr(eval_ppl, 'gather', lambda n: [n, 10])
        n_hits, n = it.measure(None, text, None)
        assert n == 7 and n_hits == 10 + sum(word[1] < 100 for _, word in seen[-1])
    assert sorted(seen[1] + seen[2]) == sorted(seen[0])
    row, = it.rows((3, 7), text)
    assert row['accuracy'] == 3 / 7 and row['rows'] == 7 and 0.1 < row['stderr'] < 0.2
    assert it.remarks([row], text) == ['last word, greedy: 42.86% ± 15.01% of 7 passages']


# ---------------------------------------------------------------------------------------------------------------------
# the plan

def test_every_estimate_is_in_the_manual():
    for name, it in ESTIMATES.items():
        assert name == it.name and re.search(f'^{name} +', eval_ppl.__doc__, re.MULTILINE)
        assert set(it.options) <= options().keys()


def test_programs_find_the_functions_here():
    for name in ('context_logprobs', 'conditional_logprob', 'ensemble_nll'):
        assert getattr(eval_ppl, name) is getattr(likelihood, name)


def test_which_estimates_are_made():
    def names(*asked, datasets=('lambada',), **how):
        return [it.name for it in choose_estimates(list(asked), datasets, options(), opened(**how))]
    assert names() == ['l2r', 'any'] and names(order={'kind': 'l2r'}) == ['l2r']
    assert names(order={'kind': 'r2l'}) == ['l2r', 'own']
    assert names(causal=False) == ['any'] and names('iw', 'l2r') == ['l2r', 'iw'] and names('accuracy') == ['accuracy']
    for asked, said, how in ((['own'], 'take any', {}), (['own'], 'take l2r', {'order': {'kind': 'l2r'}}),
                             (['accuracy'], 'accuracy is of the set lambada, .* ptb', {'datasets': ['ptb']}),
                             (['ensemble'], "^ensemble and accuracy are a decoder's", {'causal': False}),
                             (['accuracy'], "^ensemble and accuracy are a decoder's", {'causal': False})):
        with pytest.raises(ValueError, match=said):
            names(*asked, **how)


def test_estimates_of_the_same_work_share_its_nats(blocks):
    text, journal = text_of(blocks), Journal('', {})
    estimates = choose_estimates(['any', 'iw', 'accuracy'], ['lambada'], options('--n_orders=2'), opened())
    model, calls = make_model(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    rows = evaluate(model, text, estimates, journal)
    assert len(calls) == 1
    assert list(journal.done) == [('words (val)', text.digest, 'orders', block) for block in range(4)]
    assert [e.name for e in rows] == ['any', 'iw']   # accuracy is not of `words`


def test_a_journal_is_of_all_that_the_nats_depend_on(tmp_path):
    def journal(*args, model=None, dtype='float32', asked=(), **how):
        c = options(f'--out={tmp_path}/x.json', '--n_positions=4', '--ensemble_block=2', *args)
        estimates = [SimpleNamespace(name=name) for name in asked]
        return open_journal(c, opened(**how), estimates, model or make_model(), dtype)
    journal()
    journal('--batch_size=3', '--device=cpu', '--datasets=ptb', '--n_blocks=7', asked=['iw'])   # goes on with it
    scaled = make_model()
    scaled.transformer.h[1].ln_2.weight.mul_(1.001)
    for differ, args, how in (
            ('seed', ['--seed=1'], {}), ('weights', ['--weights=raw'], {}), ('n_orders', ['--n_orders=2'], {}),
            ('n_contexts', ['--n_contexts=8'], {}), ('n_positions', ['--n_positions=6'], {}),
            ('ensemble_block', ['--ensemble_block=4'], {}), ('dtype', [], {'dtype': 'bfloat16'}),
            ('model', [], {'model': scaled}), ('model', [], {'model': make_model(rotary=True)}),   # of the same weights
            ('order', [], {'order': {'kind': 'r2l'}}), ('one_by_one', [], {'causal': False, 'asked': ['iw']})):
        with pytest.raises(ValueError, match=rf'x.json.blocks.jsonl holds .* another evaluation \({differ} differ\)'):
            journal(*args, **how)
    assert open_journal(options(), opened(), [], None, 'float32').path == ''
    (tmp_path / 'x.json.blocks.jsonl').unlink()
    journal(causal=False)
    with pytest.raises(ValueError, match='one_by_one differ'):
        journal(causal=False, asked=['any', 'iw'])


# ---------------------------------------------------------------------------------------------------------------------
# the command

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with words.txt, the sets `words` and lambada, and checkpoints of random weights."""
    folder = tmp_path_factory.mktemp('eval_ppl')
    (folder / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    (folder / 'passages.txt').write_text('one two three four five\nsix seven\n')
    for name, source, how in (('text', 'words.txt', {'name': 'words'}), ('lambada', 'passages.txt', {})):
        prepare(name, folder / 'data', source=str(folder / source), tokenizer='bytes', **how)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    how = dict(tokenizer='bytes', iter_num=7, config={'dataset': 'words', 'data_dir': str(folder / 'data')})
    save_checkpoint(folder / 'ckpt.pt', model, **how)
    model.lm_head.weight.fill_(3e38)
    save_checkpoint(folder / 'large.pt', model, **how)
    return folder


def results(path):
    return json.loads(path.read_text())['results']


def test_the_table_is_of_the_plain_nll_for_any_batch(script, folder, tmp_path):
    for name, args in {'a': [], 'b': ['--batch_size=3']}.items():
        p = script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--n_orders=2', f'--out={name}.json',
                   f'--datasets=words, {folder}/words.txt', *args)
        lines = p.stdout.splitlines()
        assert f'{folder}/ckpt.pt: raw weights, iteration 7, ' in lines[0]
        assert 'blocks of 16 bytes tokens, cpu, float32' in lines[1]
        assert 'words (val), from ' in p.stdout and p.stdout.count('unigram, whole set') == 2
        assert max(len(line) for line in lines[1:] if 'from' not in line) <= 80 and lines[-1] == f'written: {name}.json'
    a, b = results(tmp_path / 'a.json'), results(tmp_path / 'b.json')
    assert [(r['dataset'], r['set'], r['kind']) for r in a] == [(name, label, kind) for name, label in (
        ('words', 'words (val)'), (f'{folder}/words.txt', 'words.txt')) for kind in ('l2r', 'any')]
    for x, y in zip(a, b):
        assert math.isclose(x['nats_per_token'], y['nats_per_token'], rel_tol=1e-6)
    n = (45 * 40 + 1) // 16
    assert all(r['tokens'] == 16 * n and r['bytes'] in (16 * n, 16 * n - 1) and r['block_size'] == 16 for r in a[2:])
    text = torch.tensor(list((folder / 'words.txt').read_bytes()) + [256])[:16 * n].view(-1, 16)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    for row, orders in ((a[2], sample_order(n, 16, 'l2r')[:, None]), (a[3], draw_orders(range(n), 16, 2, SEED))):
        nll = [model(text, orders[:, k]).double().sum() / (16 * n) for k in range(orders.size(1))]
        assert math.isclose(row['nats_per_token'], sum(nll) / len(nll), rel_tol=1e-6)


EVERY = ['--weights=raw', '--estimates=l2r,any,iw,ensemble', '--n_orders=4', '--n_contexts=5', '--n_positions=6',
         '--ensemble_block=2', '--n_blocks=7']


def test_estimates_do_not_depend_on_batch_processes_or_being_killed(script, folder, tmp_path):
    """Two processes that go on from ten lines of the journal of one."""
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=a.json')
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=b.json', '--batch_size=3')
    journal = (tmp_path / 'a.json.blocks.jsonl').read_text()
    (tmp_path / 'c.json.blocks.jsonl').write_text(''.join(journal.splitlines(True)[:10]) + '["half')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    command = [sys.executable, f'{ROOT}/eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=c.json']
    torchrun = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'OMP_NUM_THREADS': '1'}
    both = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=os.environ | torchrun | {'RANK': rank, 'LOCAL_RANK': rank}) for rank in '01']
    said = [p.communicate(timeout=170)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert '9 results are there already' in said[0] and 'left to right' in said[0] and 'left to right' not in said[1]
    a, b, c = (results(tmp_path / f'{name}.json') for name in 'abc')
    names = [r['estimate'] for r in a]
    assert names == ['left to right', 'any order x 4', *(f'iw x {k}' for k in (1, 2, 4)),
                     *(f'ensemble x {m}' for m in (1, 2, 4, 5))]
    for x, y, z in zip(a, b, c, strict=True):
        for key in ('nats_per_token', 'stderr'):
            assert math.isclose(x[key], y[key], rel_tol=1e-5) and math.isclose(x[key], z[key], rel_tol=1e-5)
    assert len(journal.splitlines()) == len((tmp_path / 'c.json.blocks.jsonl').read_text().splitlines()) == 1 + 3 * 7
    nats = {r['estimate']: r['nats_per_token'] for r in a}
    assert nats['iw x 4'] < nats['any order x 4'] and math.isclose(nats['ensemble x 1'], nats['iw x 1'], rel_tol=1e-5)


def test_published_contexts_and_the_accuracy_of_lambada(script, folder, tmp_path):
    out = script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--datasets=lambada', '--out=l.json',
                 '--estimates=l2r,accuracy').stdout
    assert 'lambada (test, protocol paper)' in out and 'of 2 passages' in out
    assert 'published numbers are of context 1024' in out
    rows = results(tmp_path / 'l.json')
    assert [r['kind'] for r in rows] == ['l2r', 'accuracy'] and rows[1]['rows'] == 2


def test_another_estimate_is_one_class(folder, capsys, monkeypatch):
    class RightToLeft(eval_ppl.LeftToRight):
        name = work = 'r2l'
        label, order = 'right to left', {'kind': 'r2l'}
    monkeypatch.setitem(ESTIMATES, 'r2l', RightToLeft)
    eval_ppl.main(options(f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--estimates=r2l', '--n_blocks=3'))
    assert '\nright to left' in capsys.readouterr().out


def test_which_text_is_measured(folder, tmp_path):
    """The options that choose it; a set that is named twice is measured once."""
    passages = str(folder / 'passages.txt')
    prepare('text', tmp_path / 'other', name='words', source=passages, tokenizer='bytes', split='test')
    for args, label, n in ((['--split=train', '--n_blocks=5'], 'words (train)', 5),
                           (['--split=test', '--n_blocks=1', f'--data_dir={tmp_path}/other'], 'words (test)', 1),
                           (['--datasets=lambada,lambada', '--protocol=clean'], 'lambada (test, protocol clean)', 2)):
        eval_ppl.main(options(f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--estimates=l2r', *args,
                              f'--out={tmp_path}/x.json'))
        row, = results(tmp_path / 'x.json')
        assert (row['set'], row['blocks']) == (label, n) and row['sha256']


def test_the_model_runs_in_the_precision_that_is_asked_for(folder, tmp_path):
    nats = {}
    for dtype in ('float32', 'bfloat16'):
        eval_ppl.main(options(f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--n_blocks=3', '--estimates=l2r',
                              f'--dtype={dtype}', f'--out={tmp_path}/{dtype}.json'))
        result = json.loads((tmp_path / f'{dtype}.json').read_text())
        nats[dtype] = result['results'][0]['nats_per_token']
        assert result['dtype'] == dtype and result['iter_num'] == 7 and result['config']['n_blocks'] == 3
    assert 1e-5 < abs(nats['float32'] - nats['bfloat16']) < 0.2


def test_options_that_change_nothing_are_ignored(script, folder):
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--estimates=l2r', '--n_blocks=3',
           '--n_contexts=4', '--n_orders=4', '--protocol=clean')


@pytest.mark.parametrize('args, said', [
    (['--estimates=l2r,best'], "got 'l2r,best'"), (['--protocol=mine'], 'protocol'),
    (['--n_contexts=0'], 'n_contexts'), (['--n_positions=-1'], 'n_positions'),
    (['--ensemble_block=0'], 'ensemble_block'),
    (['--n_positions=1', '--ensemble_block=2'], 'n_positions'), (['--n_blocks=-1'], 'n_blocks'),
    (['--estimates=accuracy'], 'lambada'), (['--datasets=ptb'], 'python data/prepare.py ptb'),
    (['--datasets=nosuch'], 'python data/prepare.py'), (['--datasets=no.txt'], 'no file no.txt'),
    (['--datasets=,'], '--datasets='), (['--batch_size=0'], 'batch_size'), (['--n_orders=0'], 'n_orders'),
    (['--datset=x'], "'datasets'"), (['--ckpt=no.pt'], 'no.pt'), (['--device=tpu'], 'device'),
    (['--out=data'], '--out=data'), (['--weights=ema'], "ask for weights='raw'"),
    (['--n_blocks=3', '--ckpt=large.pt'], 'not finite'),
    (['--ckpt=large.pt', '--datasets=lambada', '--estimates=accuracy'], 'not finite')])
def test_wrong_input_is_one_line(folder, monkeypatch, args, said):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as e, one_line_errors():
        eval_ppl.main(options('--ckpt=ckpt.pt', '--weights=raw', *args))
    assert said in e.value.code and '\n' not in e.value.code
