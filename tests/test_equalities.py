"""What the project promises: ten equalities, most of them on one tiny decoder in float64.

Every other way to train, write and score a text is built from these. `model` and `batch` are
fixtures of conftest.py. `definition` is the same decoder by anyorder/extras/minimal.py, which
shares no code with model.py. Other networks and slow definitions are in test_model.py,
test_generation.py and test_likelihood.py."""

import pytest
import torch
from conftest import N_KNOWN, REFERENCE, close, make_model
from oracle import EVERY, chi2_of, counts_of, limit
from test_minimal import same_network
from toy_runs import TWO, assert_same_runs, resume, run

from anyorder.checkpoint import model_from_checkpoint
from anyorder.extras.minimal import visit_nll
from anyorder.generation import generate
from anyorder.likelihood import context_logprobs, ensemble_nll
from model import EMA, KVCache


@pytest.fixture
def definition(model):
    return same_network(model)


def test_1_prefix(model, idx, order, definition):
    """The nats of the first T visits do not depend on the visits behind them."""
    whole = visit_nll(definition, idx, order)
    for T in (1, 2, 5, 9):
        close(model(idx, order[:, :T]), whole[:, :T])


def test_2_a_score_is_a_prediction(model, idx, order, definition):
    """The nats of visit i in one pass over the whole order are -log p of predicting it alone."""
    nll = visit_nll(definition, idx, order)
    for i in range(9):
        logp = model.predict(idx, order[:, : i + 1], i)[:, 0].log_softmax(-1)
        target = idx.gather(1, order[:, i : i + 1])
        close(-logp.gather(1, target)[:, 0], nll[:, i])


@pytest.mark.parametrize('n_steps', [1, 2, 3, 9])
@pytest.mark.parametrize(
    'how', [{}, dict(schedule='cosine'), dict(unmask='binomial'), dict(policy='margin')]
)
def test_3_cached_is_uncached(model, batch, n_steps, how):
    """With a cache and without it is the same text.

    On any schedule, for prompts of unequal length, in adaptive orders."""
    options = dict(n_steps=n_steps, seeds=range(5), return_trace=True, **how)
    cached, trace = generate(model, *batch, N_KNOWN, use_cache=True, **options)
    plain, other = generate(model, *batch, N_KNOWN, use_cache=False, **options)
    assert torch.equal(cached, plain)
    assert torch.equal(trace['order'], other['order'])
    close(trace['logprob'], other['logprob'])


def test_4_parallel_is_alone(model, idx, order, definition):
    """Column j of a prediction is that of visit n_known + j as if it came next, alone."""
    for n_known in (0, 4):
        logits = model.predict(idx, order, n_known)
        for j in range(9 - n_known):
            visit = n_known + j
            alone = torch.cat([order[:, :n_known], order[:, visit : visit + 1]], 1)
            close(logits[:, j], definition(idx, alone, n_known)[:, n_known])


@pytest.mark.parametrize('cached', [False, True])
def test_5_blindness(model, idx, order, cached):
    """The tokens of visits that are not known change nothing, not in the last bit."""
    is_known = order.argsort(1) < N_KNOWN.unsqueeze(1)
    others = torch.where(is_known, idx, (idx + 5) % 11)
    logits = []
    for tokens in (idx, others):
        cache = KVCache(model.config, 5, dtype=torch.float64) if cached else None
        logits.append(model.predict(tokens, order, N_KNOWN, cache=cache))
    is_blank = torch.arange(9) < 9 - N_KNOWN.unsqueeze(1)
    assert torch.equal(logits[0][is_blank], logits[1][is_blank])

    seen = model.predict(idx, order, N_KNOWN + 1, 1)
    assert not torch.equal(seen, model.predict(others, order, N_KNOWN + 1, 1))


def test_6_sampling_is_exact():
    """Of all 27 sequences of three tokens, each is drawn as often as exp(-nats) says."""
    model = make_model(block_size=3, vocab_size=3)
    order = torch.tensor([[2, 0, 1]])
    nll = visit_nll(same_network(model), EVERY, order.expand(27, 3))

    blanks = torch.zeros(6_000, 3, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    drawn = generate(model, blanks, order.expand(6_000, 3), 0, n_steps=3, generator=generator)
    assert chi2_of(counts_of(drawn), (-nll.sum(1)).exp()) < limit(26)


@pytest.mark.parametrize('how', [dict(n_steps=9), dict(unmask='lossless:4')])
def test_7_what_is_written_is_what_is_scored(model, idx, order, definition, how):
    """The log-probabilities that are collected while a text is written are its scores."""
    options = dict(temperature=0.7, top_p=0.9, return_trace=True, **how)
    text, trace = generate(model, idx, order, N_KNOWN, **options)
    scored = -visit_nll(definition, text, order)
    written = torch.arange(9) >= N_KNOWN.unsqueeze(1)
    close(trace['logprob'].gather(1, order)[written], scored[written])


@pytest.mark.parametrize('weights', ['raw', 'ema'])
@pytest.mark.parametrize('name', ['adaln_small', 'adaln_1024', 'sigma_small'])
def test_8_files_in_the_published_format_give_its_logits(name, weights):
    """A file of the published format gives the logits and the loss of the published code."""
    expected = torch.load(f'{REFERENCE}/{name}.expected.pt', weights_only=True)
    model = model_from_checkpoint(f'{REFERENCE}/{name}.ckpt.pt', weights).requires_grad_(False)
    idx = expected['idx']
    order = expected['orders']
    visits = range(0, idx.size(1), expected['logits_stride'])
    logits = torch.stack([model.predict(idx, order[:, : d + 1], d)[:, 0] for d in visits], 1)
    close(logits, expected[weights]['logits'], 1e-4)
    assert abs(model(idx, order).mean() - expected[weights]['loss']) < 1e-5


@pytest.mark.parametrize('use_cache', [True, False])
def test_8_files_in_the_published_format_write_its_text(use_cache):
    """And the tokens that the published code draws at temperature 0."""
    expected = torch.load(f'{REFERENCE}/adaln_1024.expected.pt', weights_only=True)['generate']
    model = model_from_checkpoint(f'{REFERENCE}/adaln_1024.ckpt.pt', expected['weights'])
    order = expected['orders']
    for published in expected['runs']:
        ends = published['ends']
        if not use_cache and len(ends) >= 1000:  # 1024 passes without a cache take minutes
            continue
        options = dict(schedule=ends, temperature=0, use_cache=use_cache)
        text = generate(model, order * 0, order, 0, 1, **options)
        assert torch.equal(text, published['tokens'])


@pytest.mark.parametrize('optimizer', ['adamw', 'muon'])
def test_9_a_resumed_run_is_the_uninterrupted_run(data, optimizer):
    """Bit for bit: weights, average, optimizer, log.

    The interrupted run had logged beyond its checkpoint."""
    options = [f'--optimizer={optimizer}', '--dropout=0.1', '--lr_decay_iters=5', *TWO]
    run('--max_iters=5', *options, '--out_dir=whole')
    run('--max_iters=3', *options)
    with open('out/log.jsonl', 'a') as f:
        f.write('{"iter": 4, "loss": 1.0}\n{"iter": 5, "lo')
    resume('--max_iters=5')
    assert_same_runs('whole', 'out', entries_of_one=[3])


def test_9_two_processes_are_one(data, forked):
    """Two processes train on the batches of one.

    The logs and the checkpoints agree but for the order of sums."""
    run(*TWO, '--max_iters=4', '--out_dir=one')
    forked(*2 * [lambda: run(*TWO, '--max_iters=4')])
    assert_same_runs('one', 'out', tolerance=1e-5)


def test_9_the_average_in_closed_form(model):
    """After update n the average is d * average + (1 - d) * weights.

    d = min(decay, (1 + n) / (10 + n))"""
    ema = EMA(model, 0.5)
    average = {name: p.clone() for name, p in model.named_parameters()}
    for n in range(1, 21):
        for p in model.parameters():
            p.add_(torch.randn_like(p))
        ema.update(model)
        d = min(0.5, (1 + n) / (10 + n))
        average = {name: d * average[name] + (1 - d) * p for name, p in model.named_parameters()}
    close(dict(ema.model.named_parameters()), average)


def test_9_an_ensemble_of_one_context_is_the_plain_nll(model, batch, definition):
    """Column 0 of the contexts is the order itself."""
    nll = visit_nll(definition, *batch)
    for i in range(9):
        logprobs = context_logprobs(model, *batch, i, n_contexts=1)
        close(ensemble_nll(logprobs), nll[:, i])


@pytest.mark.parametrize('attention', ['bidirectional', 'causal'])
def test_10_an_encoder_knows_no_order_of_what_is_known(idx, order, attention):
    """Permuting the known visits changes nothing for the encoder, and much for the decoder."""
    model = make_model(attention=attention)
    permuted = torch.cat([order[:, :4].flip(1), order[:, 4:]], 1)
    difference = (model.predict(idx, order, 4) - model.predict(idx, permuted, 4)).abs().max()
    if attention == 'bidirectional':
        assert difference < 1e-10
    else:
        assert difference > 1e-3
