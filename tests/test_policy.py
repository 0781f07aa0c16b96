"""An order that sees the run: what its function is given, and where it may stand."""

import math
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import close, make_model, one_line
from toy_runs import TWO, assert_same_runs, log, resume, run

import eval_ppl
import train
from anyorder.checkpoint import Checkpoint
from anyorder.functions import LOADED
from anyorder.generation.canvas import Canvas
from anyorder.likelihood.estimates import in_orders
from anyorder.likelihood.measured import Corpus
from anyorder.likelihood.nll import block_nll
from anyorder.orders import Order, draw_orders, read_order
from anyorder.seeds import stream
from anyorder.training.validation import Validation
from configurator import configure

POLICY = """
import torch

def everything(u, n, parameter, model, idx, given, step, coin):
    B = len(u)
    assert u.shape == idx.shape == given.shape == (B, n) and coin.shape == (B,)
    assert idx.min() >= 0 and given.dtype == torch.bool and type(step) is int
    assert not model.training and not [p for p in model.parameters() if p.requires_grad]
    assert not torch.is_grad_enabled()
    random = u.argsort(1)
    sure = model.predict(idx, random, n // 2).softmax(-1).amax(-1)
    rank = (sure + 0.1 * torch.rand(sure.shape)).argsort(1)
    own = torch.cat([random[:, : n // 2], random[:, n // 2 :].gather(1, rank)], 1)
    return own.where(coin.unsqueeze(1) < 0.1 * step, random)

def by_token(u, n, parameter, *, idx, step):
    return (idx + step % 3 + u).argsort(1)

def late(u, n, parameter, step):
    order = u.argsort(1)
    order[0, 1] = order[0, int(step < 3)]
    order[-1, 0] += n * (step > 2)  # a position that there is not
    return order

def short(u, n, parameter, step):
    return u.argsort(1)[:, 1:]

def curious(u, n, parameter, batch):
    return u.argsort(1)

def ends(u, n, parameter):
    return (u * 0 + torch.arange(n)).argsort(1).flip(1)

def coins(u, n, parameter, coin):
    return (coin.unsqueeze(1) - u).argsort(1)

def greedy(u, n, parameter, idx, given):
    given[:] = True
    idx[:] = 0
    return u.argsort(1)

def early(u, n, step):
    return u.argsort(1)

def any(u, n, parameter):
    return u.argsort(1)

def falls(u, n, parameter, step):
    raise ArithmeticError('a fall')

def same(u, n, parameter):
    return u.argsort(1) * 0 + 9

def drawn(u, n, parameter):
    return torch.rand(u.shape).argsort(1)

a_l2r = drawn
"""


@pytest.fixture
def policy(data):
    """The working folder, in which a run has its set, has policy.py."""
    Path('policy.py').write_text(POLICY)
    with mock.patch.dict(LOADED):
        yield


def order_of(name):
    return Order.of(read_order(f'policy.py:{name}'), {})


def seen(step, idx, given, model=None):
    """What an order is shown of a run."""
    return dict(model=model or make_model(), step=step, idx=idx, given=given)


def drawn_by(name, l2r_ratio=0.0):
    order = order_of(name)
    return order.draw(2, 4, stream(1), l2r_ratio, **seen(4, TOKENS, NOTHING))


TOKENS = torch.tensor([[3, 1, 2, -1], [5, 6, 0, 7]])
NOTHING = torch.zeros(2, 4, dtype=torch.bool)


def test_a_function_gets_what_it_names(policy):
    """Padding is token 0; the numbers u are those without it, and the coin is none of them."""
    u = torch.rand(2, 6, dtype=torch.float64, generator=stream(1))
    assert torch.equal(drawn_by('by_token'), (TOKENS.clamp(min=0) + 1 + u[:, :4]).argsort(1))
    assert torch.equal(drawn_by('coins'), (u[:, 4:5] - u[:, :4]).argsort(1))
    assert drawn_by('coins', l2r_ratio=1.0).tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize('name, options', [('everything', ['--dropout=0.1']), ('by_token', TWO)])
def test_a_resumed_run_is_the_whole_one(policy, name, options):
    order = f'--order=policy.py:{name}'
    run('--max_iters=6', '--lr_decay_iters=6', order, *options, '--out_dir=whole')
    run('--max_iters=3', '--lr_decay_iters=6', order, *options)
    LOADED.clear()
    with one_line('--order=PATH/policy.py'):
        resume('--max_iters=6')
    resume('--max_iters=6', order)
    assert_same_runs('whole', 'out', entries_of_one=[3])
    assert all(math.isfinite(entry['val_own']) for entry in log() if 'val_own' in entry)


def test_a_row_that_is_no_permutation_ends_the_run(policy):
    """Not in the update that has it, as this would wait for the device, and before a save."""
    with one_line('policy.py:late .* every position once, since iteration 3'):
        run(
            *('--max_iters=8', '--order=policy.py:late', '--val_orders=random'),
            *('--eval_interval=3', '--log_interval=9'),
        )
    assert Checkpoint('out/ckpt.pt').iter_num == 3
    with one_line('every position .* policy.py:late'):
        draw_orders([0, 1], 4, order=order_of('late'), **seen(3, TOKENS, NOTHING))


def test_a_function_may_change_what_it_is_given(policy):
    given = NOTHING.clone()
    tokens = TOKENS.clone()
    draw_orders([0, 1], 4, order=order_of('greedy'), **seen(0, tokens, given))
    assert torch.equal(given, NOTHING) and torch.equal(tokens, TOKENS)


def test_a_wrong_function_is_told_wherever_it_is_drawn(policy):
    """That it draws by torch's own generator does not make another validation of it."""
    same = order_of('same')
    blanks = [([0] * 4, [False] * 4)]
    for draw in (
        lambda: same.check(4),
        lambda: draw_orders([0, 1], 4, order=same),
        lambda: Canvas.of_texts(blanks, same, 0),
    ):
        with one_line('every position .* policy.py:same'):
            draw()
    found = [draw_orders([0, 1], 4, order=order_of('drawn')) for _ in range(2)]
    assert torch.equal(*found)


BAD = {
    '--order=policy.py:early': 'early',
    '--val_orders=policy.py:any': 'got val_any',
    '--order=policy.py:curious': 'batch',
    '--order=policy.py:short': 'must return int64',
    '--order=policy.py:late --network=encoder --l2r_ratio=0': "order and val_orders 'random'",
    '--order=policy.py:everything --save_memory=shard': 'save_memory=shard',
    '--val_orders=policy.py:everything --save_memory=hybrid': 'save_memory=hybrid',
    '--val_orders=own,l2r --network=encoder --l2r_ratio=0': 'val_orders',
    '--val_orders=own,other': "'other' is no order",
    '--val_orders=policy.py:ends,b.py:ends': 'got val_ends',
    '--val_orders=own,block:8 --keep_best=val_l2r': 'val_any, val_block:8',
    '--val_orders=policy.py:gone': 'has no order gone',
}


@pytest.mark.parametrize('words', BAD)
def test_what_cannot_be_is_one_line_and_writes_nothing(policy, words):
    Path('b.py').write_text(POLICY + '\n')
    with one_line(BAD[words]):
        run('--max_iters=2', *words.split())
    assert not Path('out').exists()


def test_nothing_is_written_in_such_an_order(policy, script):
    run('--max_iters=2', '--order=policy.py:by_token')
    said = script('sample.py', '--ckpt=out/ckpt.pt', '--order=policy.py:by_token', code=1).stderr
    assert 'policy.py:by_token is an order of training' in said
    row = script('eval_ppl.py', '--ckpt=out/ckpt.pt', '--orders=policy.py:by_token', '--n_blocks=2')
    assert 'no likelihood' in row.stdout
    for how in ('--n_steps=0,4', '--temperature=.9'):
        words = ['--ckpt=out/ckpt.pt', '--orders=policy.py:by_token', how]
        said = script('eval_ppl.py', *words, code=1).stderr
        assert 'nothing is written' in said


def test_an_estimate_is_the_nats_in_the_orders_that_the_function_gives(policy):
    """Each of K orders a block sees the tokens of that block, and the updates of the checkpoint;
    a block has them alone, too."""
    model = make_model(block_size=4)
    config = configure(vars(eval_ppl), ['--n_orders=3', '--block_size=4', '--batch_size=8'])
    order = order_of('by_token')
    estimate = in_orders(config, mock.Mock(config=model.config, iter_num=7), order)
    tokens = TOKENS.clamp(min=0)
    found = estimate.nats(model, Corpus(None, tokens, NOTHING), [0, 1])
    for b, nats in enumerate(found):
        blocks = tokens[b].repeat(3, 1)
        shown = seen(7, blocks, blocks < 0, model)
        want = block_nll(model, blocks, draw_orders([b], 4, 3, config.seed, order, **shown), 8)
        close(nats, want)
    assert not estimate.bound


NAMES = ['any', 'l2r', 'block:8', 'ends', 'own']


def test_a_validation_has_the_orders_that_are_named(policy):
    """The best is one of them, and begins anew where its name means another order."""
    names = 'random,l2r,block:8,policy.py:ends,own'
    words = ['--order=block:4', f'--val_orders={names}', '--keep_best=val_ends']
    run('--max_iters=4', *words)
    (entry,) = [entry for entry in log() if 'val_any' in entry]
    assert [name[4:] for name in entry if name.startswith('val_')] == NAMES
    assert (entry['best'], entry['best_iter']) == (entry['val_ends'], 4)
    one = Checkpoint('out/ckpt.pt').run['val_orders']
    LOADED.clear()
    with one_line('--val_orders= if'):
        resume('--max_iters=6')
    resume('--max_iters=8', f'--val_orders={names}')
    assert Checkpoint('out/ckpt.pt').run['val_orders'] == one
    assert Path('out/ckpt_best.pt').exists()


def test_no_loss_of_a_set_has_the_name_of_a_function(policy):
    config = configure(vars(train), ['--dataset=a,b'])
    config['val_orders'] = ['l2r', read_order('policy.py:a_l2r')]
    with one_line('val_a_l2r'):
        Validation(config)
    config['dataset'] = 'a'
    Validation(config)


def test_an_order_that_fails_does_so_before_anything_is_written(policy):
    with pytest.raises(ArithmeticError):
        run('--max_iters=2', '--order=policy.py:falls', '--val_orders=random')
    assert not Path('out').exists()
