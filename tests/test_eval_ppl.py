"""Likelihood: totals, errors and ensembles against slow versions, and a table that does not depend on the batch."""
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model

from anyorder.checkpoint import save_checkpoint
from anyorder.journal import Journal
from anyorder.likelihood import (
    block_nll,
    conditional_logprob,
    context_logprobs,
    draw_known,
    ensemble_block_nll,
    ensemble_nll,
    ensemble_totals,
    group_contexts,
    last_word_hits,
    last_words,
    one_by_one,
    powers_of_two,
    sample_groups,
)
from anyorder.orders import draw_orders, sample_order
from anyorder.tables import format_table, summarize, table_row
from data.prepare import prepare
from data.tokenizers import Bytes


def test_one_context_is_the_plain_nll(batch):
    model, (idx, order) = make_model(), batch
    nll = model(idx, order)
    for i in range(9):
        logprobs = context_logprobs(model, idx, order, i, 1)
        torch.testing.assert_close(ensemble_nll(logprobs), nll[:, i], rtol=0, atol=1e-10)


def test_contexts_are_shuffles_of_the_prefix(batch):
    model, (idx, order), i = make_model(), batch, 3
    logprobs = context_logprobs(model, idx, order, i, 200, torch.Generator().manual_seed(0))
    for r in range(5):
        possible = []
        for prefix in itertools.permutations(order[r, :i].tolist()):
            o = torch.tensor([[*prefix, int(order[r, i])]])
            possible.append(-model(idx[r:r + 1], o)[0, i])
        torch.testing.assert_close(logprobs[r, 0], possible[0], rtol=0, atol=1e-10)
        distance = (logprobs[r, :, None] - torch.stack(possible)).abs()
        assert distance.min(1).values.max() < 1e-10 and len(distance.argmin(1).unique()) == 6
    with pytest.raises(ValueError, match='visit i'):
        context_logprobs(model, idx, order, 9, 2)


def test_the_encoder_is_scored_by_a_pass_for_each_visit_or_by_a_draw(batch):
    """One by one is what a decoder's forward gives; the draws of orders and numbers of known visits agree with the mean over all orders."""
    idx, order = batch
    torch.testing.assert_close(one_by_one(make_model(), idx, order), make_model()(idx, order), rtol=0, atol=1e-10)
    encoder, idx = make_model(causal=False, block_size=4), idx[:, :4]
    orders = torch.tensor(list(itertools.permutations(range(4))))
    exact = torch.stack([block_nll(encoder, row.expand(24, 4), orders, 7).mean() for row in idx])
    K = 400
    drawn, known = draw_orders(range(5), 4, K, 3).flatten(0, 1), draw_known(range(5), 4, K, 3)
    assert torch.equal(known, draw_known(range(5), 4, K, 3)) and [int((known == k).sum()) for k in range(4)] == [500] * 4
    nats = block_nll(encoder, idx.repeat_interleave(K, 0), drawn, 64, n_known=known.flatten()).view(5, K)
    z = (nats.mean(1) - exact) / (nats.std(1) / K ** 0.5)
    assert z.abs().max() < 3.5 and nats.std(1).min() > 0.1


def test_ensemble_averages_probabilities():
    logprobs = -1000 * torch.rand(4, 8, dtype=torch.float64)     # exp of most of them is 0
    for row, nll in zip(logprobs, ensemble_nll(logprobs)):
        top = float(row.max())
        assert math.isclose(nll, -top - math.log(sum(math.exp(x - top) for x in row.tolist()) / 8))
    p = torch.tensor([[0.2, 0.4]]).log()
    torch.testing.assert_close(ensemble_nll(p), -torch.tensor([0.3]).log())
    assert (ensemble_nll(logprobs) <= -logprobs.mean(-1)).all()      # Jensen


def test_totals_do_not_depend_on_the_batch(batch):
    model, (idx, order) = make_model(), batch
    expected = model(idx, order).sum(1)
    for batch_size in (1, 2, 5, 9):
        torch.testing.assert_close(block_nll(model, idx, order, batch_size), expected, rtol=0, atol=1e-10)


def test_orders_are_a_function_of_seed_and_block():
    a = draw_orders(range(4), 50, 2, seed=1)
    assert a.shape == (4, 2, 50) and len({tuple(o) for o in a.flatten(0, 1).tolist()}) == 8
    assert torch.equal(a[[3, 1]], draw_orders([3, 1], 50, 2, seed=1)) and not torch.equal(a, draw_orders(range(4), 50, 2, seed=2))


@pytest.mark.parametrize('width', [1, 2, 4, 9])
@pytest.mark.parametrize('n_tokens', [1, 40, 10 ** 6])
def test_ensemble_is_its_definition(width, n_tokens):
    model, g = make_model(), torch.Generator().manual_seed(3)
    idx, order, n_contexts = torch.randint(11, (9,), generator=g), torch.randperm(9, generator=g), 5
    groups = list(range(-(-9 // width)))
    own, members = ensemble_block_nll(model, idx, order, n_contexts, groups, width, 7, n_tokens)
    plain = model(idx[None], order[None])[0]
    contexts = [group_contexts(order, g, width, n_contexts - 1, 7) for g in groups]
    total = torch.zeros(len(powers_of_two(n_contexts))).double()
    for i in range(9):   # each visit by itself, with one whole pass for every member
        start = i // width * width
        rows = [order, *contexts[i // width]]
        assert start < 5 or len({tuple(row[:start].tolist()) for row in rows}) > 2   # shuffles
        assert all(sorted(row[:start].tolist()) == sorted(order[:start].tolist()) for row in rows)
        assert all(torch.equal(row[start:i + 1], order[start:i + 1]) for row in rows)
        nll = torch.stack([model(idx[None], row[None, :i + 1])[0, i] for row in rows])
        torch.testing.assert_close(members[i // width, :, i - start], nll, rtol=0, atol=1e-10)
        total += torch.stack([-(-nll[:m]).exp().mean().log() for m in (1, 2, 4, 5)])
        assert all(-(-nll[:m]).exp().mean().log() <= nll[:m].mean() + 1e-12 for m in (1, 2, 4, 5))
    got = ensemble_totals(own, members, torch.ones(len(groups)))
    torch.testing.assert_close(got, total, rtol=0, atol=1e-9)
    assert math.isclose(float(got[0]), float(plain.sum()), abs_tol=1e-10)
    if 4 < width:
        assert torch.allclose(got, plain.sum())   # nothing is before the only group


def test_contexts_of_one_visit_agree_with_context_logprobs():
    model, idx, order = make_model(), torch.arange(9) % 11, torch.randperm(9, generator=torch.Generator().manual_seed(0))
    _, members = ensemble_block_nll(model, idx, order, 400, [5], 1, 0)
    other = context_logprobs(model, idx[None], order[None], 5, 400, torch.Generator().manual_seed(1))[0]
    assert math.isclose(members[0, 0, 0], -other[0], abs_tol=1e-10)
    assert set(members[0, :, 0].mul(-1e8).round().long().tolist()) >= set(other.mul(1e8).round().long().tolist()[:3])   # of 120 shuffles


def test_sampled_visits_are_unbiased_and_stratified():
    assert sample_groups(5, 1, 0, 0)[0] == sample_groups(5, 1, 9, 0)[0] == [0, 1, 2, 3, 4]
    values, counts = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.zeros(10)
    total = 0.0
    for seed in range(4000):
        groups, weights = sample_groups(10, 1, 4, seed)
        assert weights.sum() == 10 and len(set(groups)) == 4 and groups == sorted(groups)
        counts[groups] += weights
        total += float((values[groups] * weights).sum()) / 4000
    assert (counts / 4000 - 1).abs().max() < 0.1 and abs(total - float(values.sum())) < 0.15
    members = torch.rand(4, 2, 1, dtype=torch.float64) + 1
    got = ensemble_totals(torch.tensor(30.0, dtype=torch.float64), members, weights)
    assert got[0] == 30 and math.isclose(float(got[1]), 30 + float(
        ((ensemble_nll(-members[:, :, 0]) - members[:, 0, 0]) * weights).sum()), abs_tol=1e-12)


def test_log_probability_of_a_set_given_another():
    model = make_model(block_size=4, vocab_size=3)
    every = torch.tensor(list(itertools.product(range(3), repeat=2)))
    idx = torch.stack([torch.full((9,), 2), every[:, 0], torch.full((9,), 1), every[:, 1]], 1)
    for n_orders in (0, 3):   # a law over what a may be
        logp = conditional_logprob(model, idx, [3, 1], [0], n_orders, torch.Generator().manual_seed(0))
        assert math.isclose(float(logp.exp().sum()), 1, abs_tol=1e-10)
    idx, order = idx[:1], torch.tensor([[0, 2, 1, 3]])
    assert math.isclose(conditional_logprob(model, idx, [3, 1], [2, 0]), -model(idx, order)[0, 2:].sum(), abs_tol=1e-10)
    assert math.isclose(conditional_logprob(model, idx, [2], []), -model(idx, torch.tensor([[2]]))[0, 0], abs_tol=1e-10)
    for wrong in (([], [1]), ([1], [1]), ([4], []), ([-1], [])):
        with pytest.raises(ValueError, match='disjoint'):
            conditional_logprob(model, idx, *wrong)


def test_last_words_by_greedy_decoding():
    tok = Bytes()
    texts = ['a bc', 'bc a', 'abcabcab cc', 'x', 'aa b']
    tokens = np.array([t for text in texts for t in (*text.encode(), tok.eos)])
    rows = last_words(tokens, tok)
    assert [(bytes(c).decode(), bytes(w).decode()) for c, w in rows] == [('a', ' bc'), ('bc', ' a'), ('abcabcab', ' cc'), ('aa', ' b')]
    model, hits = make_model(block_size=9, vocab_size=257), []
    for context, word in rows:
        text, right = (context + word)[-9:], True
        for j in range(len(text) - len(word), len(text)):
            logits = model.predict(torch.tensor([text]), torch.arange(len(text))[None], j, 1)
            right &= int(logits.argmax()) == text[j]
        hits.append(right)
    got = [last_word_hits(model, rows, batch_size) for batch_size in (1, 3, 9)]
    assert got == [hits] * 3
    sure = last_word_hits(model, [(c, [int(model.predict(torch.tensor([c + [0]]), torch.arange(len(c) + 1)[None], len(c), 1).argmax())])
                                  for c, _ in rows], 2)
    assert sure == [True] * 4


def test_summary_by_hand():
    row = summarize('x', torch.tensor([2.0, 4.0], dtype=torch.float64), 4, 6)
    assert row['nats_per_token'] == 6 / 8 and row['tokens'] == 8 and row['blocks'] == 2
    assert math.isclose(row['stderr'], math.sqrt(2) / math.sqrt(2) / 4)          # std of (2, 4) is sqrt 2
    assert table_row('no text', 1.0, None, 1, 5, 0)['bits_per_byte'] == math.inf
    assert format_table([table_row('a puzzle', 1.0, None, 1, 5, None)]).split()[-3:] == ['-', '1', '5']
    assert math.isclose(row['bits_per_byte'], 6 / 6 / math.log(2)) and math.isclose(row['perplexity'], math.exp(0.75))
    assert summarize('x', torch.tensor([2.0]), 4, 6)['stderr'] is None


@pytest.fixture
def ckpt(tmp_path):
    (tmp_path / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare('text', tmp_path / 'data', name='words', source=str(tmp_path / 'words.txt'), tokenizer='bytes')
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, tokenizer='bytes', iter_num=7, config={'dataset': 'words', 'data_dir': 'data'})
    return tmp_path / 'ckpt.pt'


def test_command_gives_the_same_numbers_for_any_batch_and_for_its_own_file(script, ckpt, tmp_path):
    for name, args in {'a': [], 'b': ['--batch_size=3']}.items():
        p = script('eval_ppl.py', f'--ckpt={ckpt}', '--weights=raw', '--datasets=words,words.txt', '--n_orders=2',
                   f'--out={name}.json', *args)
        assert 'unigram, whole set' in p.stdout and max(map(len, p.stdout.splitlines()[1:])) <= 80 and 'words (val)' in p.stdout
    a, b = (json.loads((tmp_path / f'{name}.json').read_text())['results'] for name in 'ab')
    assert [r['dataset'] for r in a] == ['words', 'words', 'words.txt', 'words.txt']
    for x, y in zip(a, b):
        assert math.isclose(x['nats_per_token'], y['nats_per_token'], rel_tol=1e-6)
    assert a[2]['tokens'] == (45 * 40 + 1) // 16 * 16 and a[2]['bytes'] in (a[2]['tokens'], a[2]['tokens'] - 1)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    text = torch.tensor(list((tmp_path / 'words.txt').read_bytes()) + [256])[:a[2]['tokens']].view(-1, 16)
    nll = model(text, sample_order(len(text), 16, 'l2r'))
    assert math.isclose(a[2]['nats_per_token'], float(nll.double().mean()), rel_tol=1e-6)


EVERY = ['--weights=raw', '--datasets=words', '--estimates=l2r,any,iw,ensemble', '--n_orders=4', '--n_contexts=5', '--n_positions=6',
         '--ensemble_block=2', '--n_blocks=7']


def test_estimates_do_not_depend_on_batch_processes_or_being_killed(script, ckpt, tmp_path):
    script('eval_ppl.py', f'--ckpt={ckpt}', *EVERY, '--out=a.json')
    script('eval_ppl.py', f'--ckpt={ckpt}', *EVERY, '--out=b.json', '--batch_size=3')
    journal = tmp_path / 'a.json.blocks.jsonl'
    (tmp_path / 'c.json.blocks.jsonl').write_text(''.join(journal.read_text().splitlines(True)[:10]) + '["half')
    p = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', f'{ROOT}/eval_ppl.py',
                        f'--ckpt={ckpt}', *EVERY, '--out=c.json'], cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert p.returncode == 0 and '9 results are there already' in p.stdout, p.stdout + p.stderr
    a, b, c = (json.loads((tmp_path / f'{name}.json').read_text())['results'] for name in 'abc')
    names = [r['estimate'] for r in a]
    assert names == ['left to right', 'any order x 4', 'iw x 1', 'iw x 2', 'iw x 4'] + [f'ensemble x {m}' for m in (1, 2, 4, 5)]
    for x, y, z in zip(a, b, c, strict=True):
        for key in ('nats_per_token', 'stderr'):
            assert math.isclose(x[key], y[key], rel_tol=1e-5) and math.isclose(x[key], z[key], rel_tol=1e-5)
    assert len(journal.read_text().splitlines()) == 1 + 3 * 7
    nats = {r['estimate']: r['nats_per_token'] for r in a}
    script('eval_ppl.py', f'--ckpt={ckpt}', *EVERY[:2], '--n_blocks=7', '--estimates=any,iw', '--out=d.json')
    one = {r['estimate']: r['nats_per_token'] for r in json.loads((tmp_path / 'd.json').read_text())['results']}
    assert math.isclose(one['any order x 1'], one['iw x 1'], rel_tol=1e-9) and nats['iw x 4'] < nats['any order x 4']
    assert math.isclose(nats['ensemble x 1'], nats['iw x 1'], rel_tol=1e-5)   # the same order, all of its visits


def test_protocols_name_their_splits(script, ckpt, tmp_path):
    for split, source in (('train', 'a b c d e f g\n' * 9), ('test', 'h i j k l m n\n' * 9)):
        (tmp_path / 'wiki.raw').write_text(source)
        prepare('wikitext2', tmp_path / 'data', source=str(tmp_path / 'wiki.raw'), split=split, tokenizer='bytes')
    for protocol, split in (('paper', 'train'), ('clean', 'test')):
        args = ('--weights=raw', '--datasets=wikitext2', f'--protocol={protocol}', '--out=o.json')
        out = script('eval_ppl.py', f'--ckpt={ckpt}', *args).stdout
        assert f'wikitext2 ({split}, protocol {protocol})' in out
        result = json.loads((tmp_path / 'o.json').read_text())
        assert {r['set'] for r in result['results']} == {f'wikitext2 ({split}, protocol {protocol})'}
    (tmp_path / 'l.txt').write_text('one two three four five\nsix seven\n')
    prepare('lambada', tmp_path / 'data', source=str(tmp_path / 'l.txt'), tokenizer='bytes')
    out = script('eval_ppl.py', f'--ckpt={ckpt}', '--weights=raw', '--datasets=lambada', '--estimates=accuracy', '--out=l.json').stdout
    assert 'of 2 passages' in out and json.loads((tmp_path / 'l.json').read_text())['results'][0]['rows'] == 2


@pytest.mark.parametrize('args, said', [
    (['--estimates=l2r,best'], "got 'l2r,best'"), (['--protocol=mine'], 'protocol'),
    (['--n_contexts=0'], 'n_contexts'),
    (['--n_positions=-1'], 'n_positions'), (['--n_positions=1', '--ensemble_block=2'], 'n_positions'),
    (['--estimates=accuracy'], 'lambada'), (['--datasets=ptb'], 'python data/prepare.py ptb'),
    (['--datasets=nosuch'], 'python data/prepare.py'), (['--datasets=no.txt'], 'no file no.txt'),
    (['--batch_size=0'], 'batch_size'), (['--n_orders=0'], 'n_orders'), (['--datset=x'], "'datasets'"), (['--ckpt=no.pt'], 'no.pt'),
    (['--datasets=short.txt'], 'block_size=16 is beyond the data'), (['--device=tpu'], 'device'),
    (['--datasets=void.txt'], 'no text'), (['--out=data'], '--out=data')])
def test_wrong_input_is_one_line(ckpt, tmp_path, monkeypatch, args, said):
    import eval_ppl
    from configurator import configure, one_line_errors
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'short.txt').write_text('short')
    (tmp_path / 'void.txt').write_text('')
    with pytest.raises(SystemExit) as e, one_line_errors():
        eval_ppl.main(configure(vars(eval_ppl), [f'--ckpt={ckpt}', '--weights=raw', *args]))
    assert said in e.value.code and '\n' not in e.value.code


def test_journal_goes_on_and_drops_a_cut_line(tmp_path):
    path, calls = str(tmp_path / 'j.jsonl'), []

    def work(numbers):
        calls.append(numbers)
        return torch.tensor([[n + 0.5, 2.0 * n] for n in numbers], dtype=torch.float64)
    want = torch.tensor([[n + 0.5, 2.0 * n] for n in range(7)], dtype=torch.float64)
    assert torch.equal(Journal(path, {'seed': 1}).complete(('a', 'b', 'any'), 7, 3, work), want) and calls == [[0, 1, 2], [3, 4, 5], [6]]
    lines = open(path).readlines()
    for kept, again in ((len(lines), []), (4, [[3, 4, 5], [6]])):
        with open(path, 'w') as f:
            f.write(''.join(lines[:kept]) + '["a", "b", "any", 5, [5.')
        calls.clear()
        assert torch.equal(Journal(path, {'seed': 1}).complete(('a', 'b', 'any'), 7, 3, work), want) and calls == again
    assert open(path).readlines() == lines and not Journal('', {}).done
    for other, said in (({'seed': 2}, 'seed'), ({'seed': 1, 'order': 3}, 'order'), ({}, 'seed')):
        with pytest.raises(ValueError, match=f'another evaluation .{said} differ'):
            Journal(path, other)
    for text in ('hello\n', '3\n', '[1, 2]\n', 'no line end', '{}\n3\n'):
        (tmp_path / 'x.jsonl').write_text(text)
        with pytest.raises(ValueError, match='x.jsonl is no list of finished blocks'):
            Journal(str(tmp_path / 'x.jsonl'), {})
        assert (tmp_path / 'x.jsonl').read_text() == text
