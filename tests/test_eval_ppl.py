"""eval_ppl.py: which estimates it makes, what its journal is of, and a table for any batch and
number of processes."""

import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_model
from test_estimates import SEED, opened, options, text_of
from toy_runs import log, run

import eval_ppl
from anyorder import likelihood
from anyorder.checkpoint import save_checkpoint
from anyorder.generation import Given
from anyorder.likelihood import estimates
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.nll import draw_known, one_by_one
from anyorder.likelihood.tables import summarize
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import ORDERS, Family, Order, draw_orders, sample_order
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.mixture import weights_in
from anyorder.tokens.prepared import prepare
from anyorder.tokens.tokenizers import Bytes
from eval_ppl import (
    ESTIMATES,
    PLAIN,
    Asked,
    choose_estimates,
    estimate_class,
    evaluate,
    open_journal,
    report,
)

# --------------------------------------------------------------------------------------------------
# the plan


def test_an_estimate_has_the_name_and_the_options_of_the_command():
    for name in ESTIMATES:
        it = estimate_class(name)
        assert name == it.name
        assert set(it.options) <= options().keys()


def test_programs_find_the_functions_here():
    for name in ('context_logprobs', 'conditional_logprob', 'ensemble_nll'):
        assert getattr(eval_ppl, name) is getattr(likelihood, name)


def ways(**orders):
    """The rows of one token a step of {text: what read_order gave}."""
    return [Asked(text, order, '', Given(), PLAIN) for text, order in orders.items()]


def test_which_estimates_are_made():
    def names(*asked, datasets=('lambada',), **how):
        return [
            it.name for it in choose_estimates(list(asked), [], datasets, options(), opened(**how))
        ]

    assert names() == ['l2r', 'any']
    assert names(order=Order('l2r')) == ['l2r']
    assert names(order=Order('r2l')) == ['l2r', 'own']
    assert names(attention='bidirectional') == names(attention='mixed') == ['any']
    assert names('iw', 'l2r') == ['l2r', 'iw']
    assert names('accuracy') == ['accuracy']
    for asked, said, how in (
        (['own'], 'take any', {}),
        (['own'], 'take l2r', {'order': Order('l2r')}),
        (['accuracy'], 'accuracy is measured on lambada, .* ptb', {'datasets': ['ptb']}),
        (['ensemble'], "^ensemble is a decoder's: others cannot score", {'attention': 'mixed'}),
        (['ensemble'], "^ensemble is a decoder's", {'attention': 'bidirectional'}),
        (['own'], 'another order or block_size', {'order': Order('rows', shape=(4, 2))}),
    ):
        with pytest.raises(ValueError, match=said):
            names(*asked, **how)


def test_every_order_that_is_asked_for_is_a_row_once():
    def labels(*asked, **orders):
        checkpoint = opened(Order('block', 2), attention=attention)
        checkpoint.run = {'order': 'block:2@3'}
        names = list(asked)
        return [
            (it.name, it.label)
            for it in choose_estimates(names, ways(**orders), ['words'], options(), checkpoint)
        ]

    for attention in ('causal', 'bidirectional', 'mixed'):
        assert labels(l2r='l2r', swaps='swaps', random='random') == [
            ('l2r', 'left to right'),
            ('order', 'swaps:16@3'),
            ('any', 'any order'),
        ]
        assert labels('any', random='random', block='block') == [
            ('any', 'any order'),
            ('order', 'block:2@3'),
        ]


def along(run, **orders):
    """The estimates of {text: what read_order gave} of a run with these options."""
    checkpoint = SimpleNamespace(**vars(opened()), run=run)
    return choose_estimates([], ways(**orders), ['words'], options(), checkpoint)


def test_rows_of_orders_have_the_seed_and_the_length_of_the_run():
    texts = {'a/b.json': list(range(9)), 'swaps:3': 'swaps:3', 'fixed': 'fixed'}
    listed, swaps, fixed = along({'order': 'few@3', 'block_size': 9}, **texts)
    assert listed.label == 'b.json'
    assert listed.order.parameter == tuple(range(9))
    assert swaps.order == Order('swaps', 3, seed=3, length=9)
    assert fixed.order.seed == 3
    assert len({it.work for it in (listed, swaps, fixed)}) == 3
    with pytest.raises(ValueError, match='from 0 to 8, once; got 2 from 0 to 1'):
        along({}, short=[1, 0])
    with pytest.raises(ValueError, match='at most the 9 positions of the model, got 10'):
        along({}, long=list(range(10)))


def test_estimates_of_the_same_work_share_its_nats():
    text = text_of(torch.zeros(4, 9, dtype=torch.long))
    journal = Journal('', {})
    estimates = choose_estimates(
        ['any', 'iw', 'accuracy'], [], ['lambada'], options('--n_orders=2'), opened()
    )
    model = make_model()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    rows = evaluate(model, text, estimates, journal)
    assert len(calls) == 1
    assert list(journal.done) == [
        ('words (val)', text.digest, 'orders', block) for block in range(4)
    ]
    assert [e.name for e in rows] == ['any', 'iw']  # accuracy is not of `words`


def test_a_journal_names_all_that_the_nats_depend_on(tmp_path):
    def journal(*args, model=None, dtype='float32', asked=(), **how):
        c = options(
            f'--out={tmp_path}/x.json', '--estimates=ensemble:16/2', '--n_positions=4', *args
        )
        estimates = [ESTIMATES[name](c, opened(**how), asked) for name in asked]
        return open_journal(c, opened(**how), estimates, model or make_model(), dtype)

    journal()
    journal(
        '--batch_size=3', '--device=cpu', '--datasets=ptb', '--n_blocks=7', asked=['iw']
    )  # goes on with it
    scaled = make_model()
    scaled.transformer.h[1].ln_2.weight.mul_(1.001)
    for differ, args, how in (
        ('seed', ['--seed=1'], {}),
        ('weights', ['--weights=raw'], {}),
        ('n_orders', ['--n_orders=2'], {}),
        ('n_contexts', ['--estimates=ensemble:8/2'], {}),
        ('n_positions', ['--n_positions=6'], {}),
        ('ensemble_block', ['--estimates=ensemble:16/4'], {}),
        ('dtype', [], {'dtype': 'bfloat16'}),
        ('model', [], {'model': scaled}),
        ('model', [], {'model': make_model(rotary=True)}),  # equal weights
        ('block_size', ['--block_size=3'], {}),
        ('one_by_one', [], {'attention': 'bidirectional', 'asked': ['iw']}),
    ):
        with pytest.raises(
            ValueError,
            match=rf'x.json.blocks.jsonl holds .* another evaluation \({differ} differ\)',
        ):
            journal(*args, **how)
    assert open_journal(options(), opened(), [], None, 'float32').path == ''
    (tmp_path / 'x.json.blocks.jsonl').unlink()
    journal(attention='bidirectional')
    with pytest.raises(ValueError, match='one_by_one differ'):
        journal(attention='bidirectional', asked=['any', 'iw'])


# --------------------------------------------------------------------------------------------------
# the command


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with words.txt, the sets `words` and lambada, and checkpoints of random weights."""
    folder = tmp_path_factory.mktemp('eval_ppl')
    (folder / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    (folder / 'passages.txt').write_text('one two three four five\nsix seven\n')
    for name, source, how in (
        ('text', 'words.txt', {'name': 'words'}),
        ('lambada', 'passages.txt', {}),
    ):
        prepare(name, folder / 'data', source=str(folder / source), tokenizer='bytes', **how)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    how = dict(
        tokenizer='bytes', iter_num=7, config={'dataset': 'words', 'data_dir': str(folder / 'data')}
    )
    save_checkpoint(folder / 'ckpt.pt', model, **how)
    model.lm_head.weight.fill_(3e38)
    save_checkpoint(folder / 'large.pt', model, **how)
    return folder


def results(path):
    return json.loads(path.read_text())['results']


def nats_of(rows):
    return {row['estimate']: row['nats_per_token'] for row in rows}


def test_the_table_shows_the_plain_nll_for_any_batch(script, folder, tmp_path):
    for name, args in {'a': [], 'b': ['--batch_size=3']}.items():
        said = script(
            'eval_ppl.py',
            f'--ckpt={folder}/ckpt.pt',
            '--weights=raw',
            '--n_orders=2',
            f'--out={name}.json',
            f'--datasets=words, {folder}/words.txt',
            *args,
        ).stdout
        check_said(said, folder, name)
    a = results(tmp_path / 'a.json')
    b = results(tmp_path / 'b.json')
    assert [(r['dataset'], r['set'], r['kind']) for r in a] == [
        (name, label, kind)
        for name, label in (('words', 'words (val)'), (f'{folder}/words.txt', 'words.txt'))
        for kind in ('l2r', 'any')
    ]
    for x, y in zip(a, b):
        assert math.isclose(x['nats_per_token'], y['nats_per_token'], rel_tol=1e-6)
    n = (45 * 40 + 1) // 16
    for row in a[2:]:
        assert row['tokens'] == 16 * n
        assert row['bytes'] in (16 * n, 16 * n - 1)
        assert row['block_size'] == 16
    text = torch.tensor(list((folder / 'words.txt').read_bytes()) + [256])[: 16 * n].view(-1, 16)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    for row, orders in (
        (a[2], sample_order(n, 16, 'l2r')[:, None]),
        (a[3], draw_orders(range(n), 16, 2, SEED)),
    ):
        nll = [model(text, orders[:, k]).double().sum() / (16 * n) for k in range(orders.size(1))]
        assert math.isclose(row['nats_per_token'], sum(nll) / len(nll), rel_tol=1e-6)


def check_said(said, folder, name):
    """What the command says of two texts."""
    lines = said.splitlines()
    assert f'{folder}/ckpt.pt: raw weights, iteration 7, ' in lines[0]
    assert lines[0].endswith(', 16 positions')
    assert 'blocks of 16 bytes tokens, cpu, float32' in lines[1]
    assert 'words (val), from ' in said
    assert said.count('unigram, whole set') == 2
    assert max(len(line) for line in lines[1:] if 'from' not in line) <= 80
    assert lines[-1] == f'written: {name}.json'


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(rotary=True),
        dict(target_position='input', gpt2_blocks=True),
        dict(attention='bidirectional'),
    ],
)
def test_blocks_may_be_shorter_than_the_model(folder, tmp_path, sizes):
    """Nats of its first positions, in its own order of them; for a decoder also left to right, as
    of the start of long blocks."""
    N = 6
    n = 5
    own = torch.randperm(16).tolist()
    decoder = 'attention' not in sizes
    model = make_model(block_size=16, vocab_size=320, n_tokens=257, **sizes).float()
    save_checkpoint(
        tmp_path / 'ckpt.pt', model, tokenizer='bytes', config={'order': own, 'block_size': 16}
    )
    asked = options(
        f'--ckpt={tmp_path}/ckpt.pt',
        '--weights=raw',
        f'--block_size={N}',
        f'--n_blocks={n}',
        f'--datasets={folder}/words.txt',
        f'--out={tmp_path}/x.json',
        '--orders=margin',
        '--estimates=any,own,l2r,ensemble:1' if decoder else '--estimates=any,own',
    )
    eval_ppl.main(asked)
    found = {row['kind']: row for row in results(tmp_path / 'x.json')}
    text = torch.tensor([*(folder / 'words.txt').read_bytes()])
    starts = N * (torch.arange(n) * (1801 // N) // n).unsqueeze(1)
    short = text[starts + torch.arange(N)]
    long = text[starts + torch.arange(16)]
    orders = {
        'own': torch.tensor([[p for p in own if p < N]] * n),
        'any': draw_orders(range(n), N, 1, SEED)[:, 0],
    }
    if decoder:
        want = {name: model(short, order) for name, order in orders.items()}
        want['l2r'] = model(long, sample_order(n, 16, 'l2r'))[:, :N]
        want['ensemble'] = want['any']
    else:
        want = {
            'own': one_by_one(model, short, orders['own']),
            'any': model(short, orders['any'], draw_known(range(n), N, 1, SEED)[:, 0]),
        }
    for name, nll in want.items():
        assert math.isclose(found[name]['nats_per_token'], nll.sum() / (n * N), rel_tol=1e-5), name
    assert {row['tokens'] for row in found.values()} == {n * N}
    assert found['written']['passes'] == N


# --------------------------------------------------------------------------------------------------
# what is taken from the run

PLAIN_SET = [{'text': 'the fox'}, {'text': ''}, {'text': 'the quick brown fox'}]
SETS = {
    'plain': PLAIN_SET,
    'other': [{'text': 'over the lazy dog. '}],
    'asked': [{'prompt': f'{i}+', 'text': f'{i}={2 * i}'} for i in (1, 20, 300)],
}


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """A folder with the prepared sets of SETS, grids, and wikitext2, whose splits differ."""
    monkeypatch.chdir(tmp_path)
    for name, rows in SETS.items():
        lines = [json.dumps(row) + '\n' for row in rows * 30]
        (tmp_path / f'{name}.jsonl').write_text(''.join(lines))
        prepare('text', 'sets', name=name, source=f'{name}.jsonl', tokenizer='bytes')
    for split in ('train', 'val', 'test'):
        (tmp_path / f'{split}.txt').write_text(f'of {split}, ' * 90)
        source = {'source': f'{split}.txt', 'split': split}
        prepare('wikitext2', 'sets', tokenizer='bytes', **source)
    np.save('grids.npy', np.random.default_rng(1).integers(5, size=(60, 16)))
    prepare_tokens('sets', 'grids', 'grids.npy', shape='4x4')


@pytest.mark.parametrize(
    'dataset, trained, estimates',
    [
        ('plain', '--documents=together', ['l2r', 'any']),
        ('plain', '--documents=apart', ['l2r']),
        ('plain:0.7,other:0.3', '--documents=apart', ['l2r']),
        ('plain', '--order=fixed@3', ['l2r', 'own']),
        ('plain', '--order=swaps:3', ['l2r', 'own']),
        ('asked', '--order=r2l', ['l2r', 'own']),
        ('grids', '--order=spiral', ['l2r', 'own']),
        ('wikitext2', '--l2r_ratio=0', ['l2r', 'any']),
    ],
)
def test_a_run_is_measured_by_the_law_of_its_validation(sets, script, dataset, trained, estimates):
    """Also from its exported folder, which has no path of a machine. The seed of validations is
    0."""
    pytest.importorskip('safetensors')
    run(f'--dataset={dataset}', trained, '--data_dir=sets', '--max_iters=1', '--dtype=float32')
    script('anyorder.extras.hub', '--out=out/hf')
    last = log()[-1]
    for place in (['--ckpt=out/ckpt.pt'], ['--ckpt=out/hf', '--data_dir=sets']):
        asked = [*place, '--n_blocks=16', '--seed=0', f'--estimates={",".join(estimates)}']
        said = script('eval_ppl.py', *asked, '--out=eval.json').stdout
        assert ('as in the training' in said) == (dataset not in ('asked', 'grids'))
        with open('eval.json') as f:
            rows = json.load(f)['results']
        names = [*weights_in(dataset)]
        assert [(row['dataset'], row['kind'].replace('order', 'own')) for row in rows] == [
            (name, kind) for name in names for kind in estimates
        ]
        for row, kind in zip(rows, estimates * len(names)):
            entry = f'val_{kind}' if len(names) == 1 else f'val_{row["dataset"]}_{kind}'
            assert row['nats_per_token'] == pytest.approx(last[entry], rel=1e-6)
        os.remove('eval.json.blocks.jsonl')


EVERY = [
    '--weights=raw',
    '--estimates=l2r,any,iw,ensemble:5/2',
    '--n_orders=4',
    '--n_positions=6',
    '--n_blocks=7',
]


def test_estimates_do_not_depend_on_batch_processes_or_being_killed(
    script, forked, folder, tmp_path
):
    """Two processes that go on from every second line of the journal of one."""
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=a.json')
    script('eval_ppl.py', f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=b.json', '--batch_size=3')
    lines = (tmp_path / 'a.json.blocks.jsonl').read_text().splitlines(True)
    (tmp_path / 'c.json.blocks.jsonl').write_text(''.join(lines[:1] + lines[1::2]) + '["half')
    command = options(f'--ckpt={folder}/ckpt.pt', *EVERY, '--out=c.json')
    first, second = forked(*2 * [lambda: eval_ppl.main(command)])
    assert (first.code, second.code) == (0, 0), (first.said, second.said)
    assert '11 results are there already' in first.said
    assert 'left to right' in first.said
    assert 'left to right' not in second.said
    a, b, c = (results(tmp_path / f'{name}.json') for name in 'abc')
    mixtures = [f'iw x {k}' for k in (1, 2, 4)] + [f'ensemble x {m}' for m in (1, 2, 4, 5)]
    assert [row['estimate'] for row in a] == ['left to right', 'any order x 4', *mixtures]
    for rows in (b, c):
        for row, again in zip(a, rows, strict=True):
            for key in ('nats_per_token', 'stderr'):
                assert math.isclose(row[key], again[key], rel_tol=1e-5)
    for name in 'ac':
        assert (tmp_path / f'{name}.json.blocks.jsonl').read_text().count('\n') == 1 + 3 * 7
    nats = nats_of(a)
    assert nats['iw x 4'] < nats['any order x 4']
    assert math.isclose(nats['ensemble x 1'], nats['iw x 1'], rel_tol=1e-5)


def test_any_order_is_scored_and_none_of_it_by_chance(script, folder, tmp_path, monkeypatch):
    """A drawn family gives the same nats again, and with what a killed run has left."""

    def rotation(u, n, _):
        return (torch.arange(n) + (u * n).long()) % n

    rotated = Family(rotation, drawn=True, n_numbers=lambda n, _: 1)
    monkeypatch.setitem(ORDERS, 'rotated', rotated)
    (tmp_path / 'odd.json').write_text(json.dumps([*range(1, 16, 2), *range(0, 16, 2)]))
    run = (
        'eval_ppl.py',
        f'--ckpt={folder}/ckpt.pt',
        '--weights=raw',
        '--n_blocks=5',
        '--n_orders=2',
    )
    orders = '--orders=r2l,rotated,random,swaps:3,odd.json,l2r'
    said = script(*run, orders, '--out=a.json').stdout
    rows = results(tmp_path / 'a.json')
    assert [(r['kind'], r['estimate'], r['n']) for r in rows] == [
        ('order', 'r2l', 1),
        ('order', 'rotated x 2', 2),
        ('any', 'any order x 2', 2),
        ('order', 'swaps:3 x 2', 2),
        ('order', 'odd.json', 1),
        ('l2r', 'left to right', 1),
    ]
    assert all(r['estimate'] in said for r in rows)
    assert len({r['nats_per_token'] for r in rows}) == 6
    assert all(r['stderr'] > 0 for r in rows)
    lines = (tmp_path / 'a.json.blocks.jsonl').read_text().splitlines(True)
    assert len(lines) == 1 + 6 * 5
    for name, kept, more in (
        ('b', lines[:13], '--batch_size=3'),
        ('c', lines[:1], '--estimates=l2r'),
    ):
        torch.manual_seed(len(kept))
        (tmp_path / f'{name}.json.blocks.jsonl').write_text(''.join(kept))
        script(*run, orders, more, f'--out={name}.json')
        again = nats_of(results(tmp_path / f'{name}.json'))
        assert again == pytest.approx(nats_of(rows), rel=1e-6)


def test_published_contexts_and_the_accuracy_of_lambada(script, folder, tmp_path):
    out = script(
        'eval_ppl.py',
        f'--ckpt={folder}/ckpt.pt',
        '--weights=raw',
        '--datasets=lambada',
        '--out=l.json',
        '--estimates=l2r,accuracy',
    ).stdout
    assert 'lambada (test)' in out
    assert 'of 2 passages' in out
    assert 'published numbers have a context of 1024' in out
    rows = results(tmp_path / 'l.json')
    assert [r['kind'] for r in rows] == ['l2r', 'accuracy']
    assert rows[1]['rows'] == 2


def test_another_estimate_is_one_class(folder, capsys, monkeypatch):
    class RightToLeft(estimates.LeftToRight):
        name = work = 'r2l'
        label = 'right to left'
        order = Order('r2l')

    monkeypatch.setitem(ESTIMATES, 'r2l', RightToLeft)
    eval_ppl.main(
        options(f'--ckpt={folder}/ckpt.pt', '--weights=raw', '--estimates=r2l', '--n_blocks=3')
    )
    assert '\nright to left' in capsys.readouterr().out


def test_which_text_is_measured(folder, tmp_path):
    """The options that choose it; a set that is named twice is measured once."""
    passages = str(folder / 'passages.txt')
    prepare(
        'text', tmp_path / 'other', name='words', source=passages, tokenizer='bytes', split='test'
    )
    for args, label, n in (
        (['--split=train', '--n_blocks=5'], 'words (train)', 5),
        (['--split=test', '--n_blocks=1', f'--data_dir={tmp_path}/other'], 'words (test)', 1),
        (['--datasets=lambada,lambada'], 'lambada (test)', 2),
    ):
        eval_ppl.main(
            options(
                f'--ckpt={folder}/ckpt.pt',
                '--weights=raw',
                '--estimates=l2r',
                *args,
                f'--out={tmp_path}/x.json',
            )
        )
        (row,) = results(tmp_path / 'x.json')
        assert (row['set'], row['blocks']) == (label, n)
        assert row['sha256']


def test_the_unigram_row_counts_the_whole_set():
    text = text_of(torch.zeros(1, 10, dtype=torch.long))
    text.tokens = np.array([0] * 10 + [1] * 10)
    (own,) = choose_estimates(['l2r'], {}, ['words'], options(), opened())
    lines = report(
        text, {own: [summarize('left to right', torch.tensor([3.0]), 10, 10)]}, Bytes()
    ).splitlines()
    assert 'unigram, whole set' in lines[4]
    assert f' {math.log(2):.4f} ' in lines[4]


def test_the_model_runs_in_the_precision_that_is_asked_for(folder, tmp_path):
    nats = {}
    for dtype in ('float32', 'bfloat16'):
        eval_ppl.main(
            options(
                f'--ckpt={folder}/ckpt.pt',
                '--weights=raw',
                '--n_blocks=3',
                '--estimates=l2r',
                f'--dtype={dtype}',
                f'--out={tmp_path}/{dtype}.json',
            )
        )
        result = json.loads((tmp_path / f'{dtype}.json').read_text())
        nats[dtype] = result['results'][0]['nats_per_token']
        assert result['dtype'] == dtype
        assert result['iter_num'] == 7
        assert result['config']['n_blocks'] == 3
    assert 1e-5 < abs(nats['float32'] - nats['bfloat16']) < 0.2


@pytest.mark.parametrize(
    'args, said',
    [
        (['--estimates=l2r,best'], "got 'l2r,best'"),
        (['--orders=l2r,up'], "'up' is no order"),
        (['--orders=swaps:x'], "'swaps:x' is no order"),
        (['--orders=block:0'], 'at least 1 position'),
        (['--orders=no.json'], "'no.json' is no order"),
        (['--split=mine'], 'mine'),
        (['--estimates=ensemble:0'], 'n_contexts'),
        (['--n_positions=-1'], 'n_positions'),
        (['--estimates=ensemble/0'], 'ensemble_block'),
        (['--n_positions=1', '--estimates=ensemble/2'], 'n_positions'),
        (['--estimates=any:4'], "got 'any:4'"),
        (['--n_blocks=-1'], 'n_blocks'),
        (['--estimates=accuracy'], 'lambada'),
        (['--datasets=ptb'], 'python data/prepare.py ptb'),
        (['--datasets=nosuch'], 'python data/prepare.py'),
        (['--datasets=no.txt'], 'no file no.txt'),
        (['--datasets=,'], '--datasets='),
        (['--batch_size=0'], 'batch_size'),
        (['--n_orders=0'], 'n_orders'),
        (['--datset=x'], "'datasets'"),
        (['--ckpt=no.pt'], 'no.pt'),
        (['--device=tpu'], 'device'),
        (['--out=data'], '--out=data'),
        (['--weights=ema'], "ask for weights='raw'"),
        (['--block_size=17'], 'must be 2 to 16, the positions of the model'),
        (['--block_size=1'], 'must be 2'),
        (['--n_blocks=3', '--ckpt=large.pt'], 'not finite'),
        (['--ckpt=large.pt', '--datasets=lambada', '--estimates=accuracy'], 'not finite'),
    ],
)
def test_wrong_input_is_one_line(folder, monkeypatch, args, said):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as e, one_line_errors():
        eval_ppl.main(options('--ckpt=ckpt.pt', '--weights=raw', *args))
    assert said in e.value.code
    assert '\n' not in e.value.code
