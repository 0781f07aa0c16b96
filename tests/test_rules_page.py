"""chain.py and rules.py of results/rules: the law is exact, and so are the costs of rules by it."""

import itertools
import json

import numpy as np
import pytest
import torch

from anyorder.generation.way import Way
from anyorder.likelihood.written import written_nats
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.blocks import Batch
from configurator import configure
from results.rules import rules
from results.rules.chain import Chain, Law

N = 5
V = 3
ORDER = (3, 0, 4, 1, 2)
DRAWN = Chain.drawn(n_states=6, n_tokens=V, seed=2)
# begins behind a state: in its stationary law all blanks are alike at first
CHAIN = Chain(DRAWN.step[0], DRAWN.step, DRAWN.emit)
RULES = 'random,margin,max probability,threshold,margin in blocks'
ALL = torch.tensor([*itertools.product(range(V), repeat=N)])  # every text


def written(way, idx):
    """-log q of texts by a way of writing, (n,), and its passes."""
    order = torch.tensor(ORDER).expand(idx.shape)
    given = torch.zeros_like(idx, dtype=torch.bool)
    batch = Batch.of(idx, order, given)
    law = Way.of({}, score=True, **way)
    nats = written_nats(CHAIN.network(N), batch, range(len(idx)), law.unmasking, law.drawing, 300)
    assert not nats[:, 1].any()
    return nats[:, 0], nats[:, 2]


def test_conditionals_given_any_tokens_are_those_of_enumeration():
    p = (-CHAIN.nats(ALL)).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    partial = torch.tensor([*itertools.product(range(V + 1), repeat=N)])  # V is a blank
    found = CHAIN(partial).logits.exp()
    fits = ((ALL == partial.unsqueeze(1)) | (partial.unsqueeze(1) == V)).all(2)  # (partial, ALL)
    is_token = (ALL.unsqueeze(2) == torch.arange(V)).double()  # (ALL, N, V)
    joint = (fits * p) @ is_token.flatten(1)
    wanted = joint.view(-1, N, V) / (fits * p).sum(1)[:, None, None]
    blank = partial == V
    assert torch.allclose(found[blank], wanted[blank], rtol=0, atol=1e-12)


@pytest.mark.parametrize('order', ['random', 'margin', 'entropy', 'margin/2'])
def test_one_token_a_step_has_the_probability_of_the_text_in_every_order(order):
    nats, passes = written({'order': order, 'n_steps': N}, ALL)
    assert torch.allclose(nats, CHAIN.nats(ALL), rtol=0, atol=1e-10)
    assert (passes == N).all()


def test_several_tokens_a_step_cost_on_average_and_remain_a_law():
    p = (-CHAIN.nats(ALL)).exp()
    for order in ('margin', 'random', 'top_prob:.6'):
        nats, passes = written({'order': order, 'n_steps': 2}, ALL)
        assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-12)
        assert float(p @ (nats - CHAIN.nats(ALL))) > 1e-3  # a divergence
        assert float(passes.mean()) < N


def test_drawn_texts_follow_the_law():
    drawn = CHAIN.draw(20_000, 2, seed=3)
    counts = torch.bincount(drawn[:, 0] * V + drawn[:, 1], minlength=V * V)
    pairs = torch.tensor([*itertools.product(range(V), repeat=2)])
    expected = 20_000 * (-CHAIN.nats(pairs)).exp()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 26.1  # of 8 degrees: 0.1 %


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What measure writes for some rules of the law, and its path."""
    np.savez(tmp_path / 'toy.npz', train=np.zeros((1, N), int), val=ALL[:6].numpy())
    prepare_tokens(str(tmp_path), 'toy', str(tmp_path / 'toy.npz'))
    monkeypatch.setattr(rules, 'Law', lambda length: Law(CHAIN, N))
    path = str(tmp_path / 'law.json')
    options = [f'--data_dir={tmp_path}', f'--out={path}', '--dataset=toy', '--n_steps=0,2']
    rules.main(configure(vars(rules), ['measure', *options, f'--rules={RULES}']))
    with open(path) as f:
        return json.load(f), path


def test_measure_writes_the_nats_of_each_text_by_each_rule(measured):
    result, path = measured
    assert result['tokens'] == [N for _ in range(6)]
    named = [(entry['rule'], entry['setting']) for entry in result['rules']]
    first = [('random', rules.ONE), ('random', '2'), ('margin', rules.ONE), ('margin', '2')]
    assert named[:4] == first
    # blocks of 32 are longer than these texts
    assert named[6:] == [('threshold', order) for order in rules.BY_ORDERS['threshold']]
    by_name = dict(zip(named, result['rules']))
    exact = CHAIN.nats(ALL[:6])
    for rule in ('random', 'margin'):
        nats = torch.tensor(by_name[rule, rules.ONE]['nats'], dtype=torch.float64)
        assert torch.allclose(nats, exact, rtol=0, atol=1e-10)
    assert by_name['margin', '2']['passes'] == [2.0 for _ in range(6)]
    margin, _ = written({'order': 'margin', 'n_steps': 2}, ALL[:6])
    assert by_name['margin', '2']['nats'] == pytest.approx(margin.tolist())
    assert [by_name[name]['bound'] for name in first] == [True, True, False, False]


def test_tables_say_what_a_rule_costs_and_the_parts_of_a_cost_add_up(measured, capsys, tmp_path):
    result, path = measured
    worse = dict(result)
    worse['rules'] = [entry | {'nats': [x + 5 for x in entry['nats']]} for entry in result['rules']]
    other = str(tmp_path / 'other.json')
    with open(other, 'w') as f:
        json.dump(worse, f)
    capsys.readouterr()

    rules.main(configure(vars(rules), ['table', f'--files={path}']))
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if '| ' in line]
    found, tokens = rules.read(path)
    cost = (found['margin', '2'][0] - found['random', rules.ONE][0]).sum() / tokens.sum()
    (margin,) = [row for row in rows if row[:2] == ['| margin', '2']]
    assert float(margin[4].split()[0]) == pytest.approx(float(cost), abs=6e-4)

    rules.main(configure(vars(rules), ['parts', f'--files={path},{other}']))
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if '| ' in line]
    (margin,) = [row for row in rows if row[:2] == ['| margin', '2']]
    above, of_rule, of_network, together = [float(cell.split()[0]) for cell in margin[3:]]
    assert of_rule == pytest.approx(float(cost), abs=6e-4)
    assert (of_network, together) == (1, 0)  # 5 nats a text of 5 tokens
    assert above == pytest.approx(of_rule + 1, abs=2e-3)
