"""The network in float64 against a slow definition that shares no code with it, its fast paths
against the network itself, and how networks are named.

The decoder of the paper is also checked against anyorder/extras/minimal.py, in test_minimal.py and
test_equalities.py; texts that share a row, or end early, in test_given.py."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import N_KNOWN, close, make_model, one_line, rows_of
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS, defined

from anyorder.fast import bits_of, freeze, kept_frozen, lean
from anyorder.networks import NETWORKS, named_network, network_name
from anyorder.orders import sample_order
from model import AOGPT, EMA, AOGPTConfig, KVCache, Slots

MIXED = dict(attention='mixed')
DECODERS = VARIANTS + TWO_STREAM
BLANKS = [dict(variant, **ENCODER) for variant in VARIANTS[::2]]
BLANKS += [dict(variant, **MIXED) for variant in VARIANTS[1::2]]

some_decoders = pytest.mark.parametrize('network', DECODERS[::2])


def nats_of(logits, idx, order):
    """-log p (..., n) of the tokens that stand at `order` (..., n)."""
    tokens = idx.gather(-1, order).unsqueeze(-1)
    return -logits.log_softmax(-1).gather(-1, tokens)[..., 0]


# --------------------------------------------------------------------------------------------------
# the forward pass


@pytest.mark.parametrize('network', DECODERS + BLANKS)
def test_a_network_is_its_definition(network, batch):
    """In rows of unequal n_known, whatever a blank holds, of a decoder from the first visit on; a
    masked loss scores what is not known, and weights it."""
    model = make_model(**network)
    idx, order = (x[:3] for x in batch)
    known = N_KNOWN[:3]
    is_masked = model.slots_class.masked_loss
    nll = model(idx, order, known if is_masked else None)
    blank = torch.where(order.argsort(1) < known.unsqueeze(1), idx, 99)  # which is no token
    first = known if is_masked else torch.zeros(3, dtype=torch.long)
    logits = model.predict(blank, order, known, first=first)
    assert logits.shape == (3, 9, 11)
    for r, k in enumerate(known.tolist()):
        wanted = [defined(model, idx[r], order[r], k, d) for d in range(first[r], 9)]
        close(logits[r, : len(wanted)], torch.stack(wanted))
        if not is_masked:
            wanted = [defined(model, idx[r], order[r], 8, d) for d in range(9)]
        start = 9 - len(wanted)
        assert (nll[r, :start] == 0).all()
        nats = nats_of(torch.stack(wanted), idx[r], order[r, start:])
        close(nll[r, start:], nats * 9 / len(wanted))


@some_decoders
def test_the_first_columns_may_score_known_visits_behind_a_cache(network, idx, order):
    """Column j of a row is visit first + j."""
    model = make_model(**network)
    known = torch.tensor([2, 3, 9, 5, 1])
    first = known - torch.tensor([2, 0, 3, 4, 1])
    cache = new_cache(model)
    model.predict(idx, order, first, 1, cache)
    cache.length = first  # slot n_known reads the last token that is known now
    logits = model.predict(idx, order, known, 6, cache, first=first)
    plain = model.predict(idx, order, known, 6, first=first)
    is_there = torch.arange(6) < 9 - first.unsqueeze(1)
    close(logits[is_there], plain[is_there])
    assert cache.length.tolist() == [3, 4, 9, 6, 2]


def test_losses_of_bfloat16_logits_are_taken_in_float32(batch):
    """And padding of the vocabulary has no probability."""
    padded = dict(vocab_size=16, n_tokens=11)
    trained = lean(make_model(gpt2_blocks=True, **padded).bfloat16())  # whose head has no bias
    frozen = freeze(make_model(**padded), torch.bfloat16)
    for model in (make_model(**padded).bfloat16(), trained, frozen):
        with torch.set_grad_enabled(model is trained):
            nll = model(*batch)
            logits = model.predict(*batch, 8, first=0)
        assert nll.dtype == torch.float32
        assert (logits[..., 11:] == -math.inf).all()
        nats = nats_of(logits.float(), *batch)
        close(nll, nats, 1e-6)


def test_a_bfloat16_model_turns_by_float32_angles():
    """From 256 on bfloat16 holds every other position alone."""
    model = make_model(block_size=400, rotary=True)
    for name, p in model.named_parameters():
        larger = 4 if name.endswith('q_norm.weight') else 1  # so that small angles matter
        p.copy_(p.mul(larger).bfloat16())
    idx, _ = rows_of(2, 400)
    order = torch.stack([torch.arange(400), torch.arange(400).flip(0)])
    exact = model(idx, order)
    rounded = model.bfloat16()(idx, order)
    assert (exact - rounded)[:, 300:340].abs().mean() < 0.05  # 0.017; with bfloat16 angles 0.29


# --------------------------------------------------------------------------------------------------
# the cache


def new_cache(model, n_rows=5):
    return KVCache(model.config, n_rows, dtype=torch.float64)


def test_one_token_a_step_is_a_pass_without_a_mask():
    """One that asks for two has slots that do not see each other."""
    for n, n_keys in ((1, None), (2, 5)):
        asked = [torch.tensor([[number]]) for number in (3, 3, n, 9)]
        (size,) = Slots.plan(asked, 9)[1]
        assert [*size] == [3 + n, n, n_keys]


# --------------------------------------------------------------------------------------------------
# what is wrong


ZEROS = torch.zeros(2, 9, dtype=torch.long)
ORDER = sample_order(2, 9)
BAD = {  # what is called, and what is said
    'AOGPTConfig(n_embd=10, n_head=3)': "got {'n_head': 3, 'n_embd': 10}$",
    'AOGPTConfig(vocab_size=5, n_tokens=6)': 'n_tokens',
    'AOGPTConfig(n_tokens=-1)': 'n_tokens',
    'AOGPTConfig(n_layer=2.0)': 'n_layer',
    'AOGPTConfig(n_head=0)': 'n_head',
    'AOGPTConfig(dropout=1.0)': "dropout .* got {'dropout': 1.0}$",
    "AOGPTConfig(attention='none')": 'attention must be causal, ',
    "AOGPTConfig(target_position='none')": 'target_position must be adaln, ',
    "AOGPTConfig(target_position='two_stream', attention='mixed')": 'attention=causal',
    'AOGPTConfig(n_embd=36, n_head=12, rotary=True)': 'rotary',
    'EMA(make_model(), 1.0)': 'ema_decay',
    'freeze(freeze(make_model().float()), torch.bfloat16)': 'float32 already',
    'make_model()(ZEROS, ZEROS.new_zeros(3, 9))': 'B, N',
    'make_model()(ZEROS, ZEROS.new_zeros(2, 10))': 'T <= N',
    'make_model()(ZEROS, ZEROS.new_zeros(2, 0))': 'T <= N',
    'make_model(block_size=8)(ZEROS, ORDER)': 'block_size',
    'make_model()(ZEROS, ORDER, ZEROS[:, 0])': 'masked loss',
    'make_model(**ENCODER)(ZEROS, ORDER)': 'n_known',
    'make_model(**ENCODER)(ZEROS, ORDER, torch.full((2,), 9))': '0 to 8',
    'make_model(**ENCODER)(ZEROS, ORDER, torch.full((2,), -1))': '0 to 8',
    'make_model(**ENCODER)(ZEROS, ORDER[:, :4], ZEROS[:, 0])': 'whole orders',
    'predicted(ENCODER, 1, cache=new_cache(make_model(), 2))': 'no cache',
    'predicted(ENCODER, 3, first=2)': 'decoder',
    'predicted({}, 3, first=-1)': 'first',
    'predicted({}, 3, first=torch.tensor([3, 4]))': 'first',
    'predicted({}, -1)': 'n_known',
    'predicted({}, 9)': 'n_known',
    'predicted({}, 3, n_targets=0)': 'target',
    'predicted({}, torch.tensor([10, 2]))': 'n_known',
    'predicted({}, 4, n_visits=10)': 'n_visits',
    'predicted({}, 4, n_visits=torch.tensor([9, 3]))': 'n_visits',
}


def predicted(network, n_known, **given):
    return make_model(**network).predict(ZEROS, ORDER, n_known, **given)


@pytest.mark.parametrize('called, said', BAD.items())
def test_what_a_network_cannot_be_or_answer_is_one_line(called, said):
    with one_line(said):
        eval(called)


# --------------------------------------------------------------------------------------------------
# the vocabulary's padding, initialisation, the average, dropout


def test_initialisation():
    torch.manual_seed(0)
    sizes = dict(vocab_size=256, block_size=64, n_layer=8, n_head=2, n_embd=64)
    w = dict(AOGPT(AOGPTConfig(**sizes, gate_init=0.5)).named_parameters())
    for name, std in (
        ('transformer.h.3.attn.c_attn.weight', 0.02),
        ('lm_head.weight', 0.02),
        ('transformer.h.3.mlp.c_proj.weight', 0.02 / 4),
        ('transformer.h.3.attn.c_proj.weight', 0.02 / 4),
    ):
        assert w[name].abs().max() <= 3 * std
        assert w[name].std().item() / std == pytest.approx(0.9866, abs=0.03)  # cut at 3
    gates = w['transformer.h.3.adaLN.1.bias'].view(6, -1)
    assert gates.mean(1).tolist() == [0, 0, 0.5, 0, 0, 0.5]
    sigma = AOGPT(AOGPTConfig(**sizes, target_position='input', gpt2_blocks=True))
    assert sigma.lm_head.weight is sigma.transformer.wte.weight
    assert sigma.lm_head.bias is None


def test_the_average_has_no_dropout_and_no_gradients(batch):
    model = make_model(dropout=0.5).requires_grad_(True).train()
    average = EMA(model, 0.9).model
    assert torch.equal(average(*batch), make_model()(*batch))
    assert model.training
    assert not any(p.requires_grad for p in average.parameters())


def test_dropout_at_each_place(monkeypatch, batch):
    """On embeddings, then in each block on the weights of attention and behind both branches."""
    seen = []

    def dropout(x, p, training):
        seen.append(p if training else 0.0)
        return x

    def attention(q, k, v, mask, p, is_causal):
        seen.append(p)
        return q

    monkeypatch.setattr(F, 'dropout', dropout)
    monkeypatch.setattr(F, 'scaled_dot_product_attention', attention)
    model = make_model(dropout=0.25)
    model(*batch)
    assert seen == [0] * 7
    model.train()(*batch)
    assert seen[7:] == [0.25] * 7


# --------------------------------------------------------------------------------------------------
# fast paths: to train with


def gradients(model, nats):
    nats.backward()
    result = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return result


@pytest.mark.parametrize('network', [VARIANTS[0], VARIANTS[2], VARIANTS[6], TWO_STREAM[1]])
@pytest.mark.parametrize('rows_at_a_time', [7, 100])
def test_lean_has_the_loss_and_the_gradients_of_the_plain_model(
    network, idx, order, monkeypatch, rows_at_a_time
):
    config = dict(vocab_size=16, n_tokens=11, dropout=0.3, **network)
    plain = make_model(**config).train().requires_grad_(True)
    model = lean(make_model(**config).train().requires_grad_(True))
    weights = torch.rand(idx.shape, dtype=torch.float64)

    def split_rows(vocab_size, *tensors):
        return [x.split(rows_at_a_time) for x in tensors]

    def scored(network, T):
        torch.manual_seed(0)  # for dropout
        return network(idx, order[:, :T])

    monkeypatch.setattr('anyorder.fast.split_rows', split_rows)
    assert list(model.state_dict()) == list(plain.state_dict())
    for T in (9, 4, 1):  # AdaLN is looked up by position where there are more slots
        nll = scored(model, T)
        expected = scored(plain, T)
        close(nll, expected)
        with torch.no_grad():
            close(scored(model, T), expected)
        wanted = gradients(plain, (expected * weights[:, :T]).sum())
        found = gradients(model, (nll * weights[:, :T]).sum())
        close(found, wanted)


def one_graph(model):
    """The model compiled; a break of the graph is an error.

    aot_eager traces the backward pass too and needs no compiler."""
    return torch.compile(model, fullgraph=True, backend='aot_eager')


@pytest.mark.slow
def test_the_whole_model_is_one_graph(batch):
    """In evaluation mode, where there is no dropout, its gradients are those of the plain model."""
    model = lean(make_model(vocab_size=16, n_tokens=11, dropout=0.1).float().requires_grad_(True))
    expected = gradients(model, model(*batch).mean())
    compiled = one_graph(model)
    found = gradients(model, compiled(*batch).mean())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    network = one_graph(make_model(rotary=True, **MIXED).float().requires_grad_(True))
    with torch.autocast('cpu', torch.bfloat16):
        compiled.train()(*batch).mean().backward()
        network.train()(*batch, N_KNOWN).mean().backward()
    torch.compiler.reset()


class SaysCuda(torch.Tensor):
    """A tensor of the CPU that names another device."""

    device = torch.device('cuda')


def test_on_a_gpu_cudnn_attends_where_a_gradient_is_wanted_alone(monkeypatch):
    """By the flags that hold at each call of attention."""
    flags = []

    def attention(q, k, v, *rest, **options):
        names = ('flash', 'mem_efficient', 'math', 'cudnn')
        flags.append([getattr(torch.backends.cuda, f'{name}_sdp_enabled')() for name in names])
        return q

    block = lean(make_model()).transformer.h[0].attn
    q = torch.randn(2, 3, 4, 8)
    monkeypatch.setattr(F, 'scaled_dot_product_attention', attention)
    for x in (q, q.as_subclass(SaysCuda)):
        with torch.no_grad():
            block.attend(x, x, x, None, True)
        block.attend(x, x, x, None, True)
    every = [True, True, True, True]
    assert flags == [every, every, [True, True, True, False], every]
    assert torch.backends.cuda.cudnn_sdp_enabled()


# --------------------------------------------------------------------------------------------------
# fast paths: to write and measure with


@pytest.mark.parametrize('network', [*VARIANTS[::2], VARIANTS[5], *FINAL])
@pytest.mark.parametrize(
    'own, dtype, tolerance',
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-4),
        (torch.float32, torch.bfloat16, 0.4),
    ],
)
def test_frozen_answers_as_the_model(network, own, dtype, tolerance, idx, order):
    """At once and step by step: in float32 one token a step of one row takes a way of its own, and
    so does one query a row in bfloat16."""
    model = make_model(vocab_size=32, n_tokens=27, n_embd=32, **network).to(own)
    frozen = freeze(model.train(), dtype)
    assert not frozen.training
    shared = {p.data_ptr() for p in frozen.parameters()}
    assert model.transformer.wte.weight.data_ptr() in shared
    model.eval()
    for rows, n in ((3, 4), (1, 1), (3, 1), (3, 2)):
        cache = KVCache(model.config, rows, dtype=dtype) if n < 4 else None
        for known in range(0, 9 - n, n):
            asked = idx[:rows], order[:rows], known, n
            found = frozen.predict(*asked, cache) - model.predict(*asked)
            assert found[..., :27].abs().max() < tolerance


def test_one_row_is_as_exact_under_autocast():
    fast = freeze(make_model().float(), torch.float32)
    x = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    expected = fast.lm_head(x)
    with torch.autocast('cpu', torch.bfloat16):
        assert (fast.lm_head(x) - expected).abs().max() < 1e-5


def test_a_frozen_model_has_one_dtype_and_is_given_back():
    model = make_model().float()
    frozen = freeze(model)
    assert frozen.lm_head.dtype == torch.float32
    assert freeze(frozen) is frozen is kept_frozen(frozen)
    assert kept_frozen(model) is not model
    with torch.autocast('cpu', torch.bfloat16):
        assert freeze(model).lm_head.dtype == torch.bfloat16


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_the_bits_of_weights_tell_every_change(dtype):
    """Also of places alone, which no sum would tell."""
    model = make_model().to(dtype)
    x = model.lm_head.weight
    norm = model.transformer.h[0].ln_1.weight
    known = {tuple(bits_of(model))}
    for weights, place, value in (
        (x, [0, 1], x[[1, 0]]),
        (x, 2, x[2].flip(0)),
        (x, 3, 2 * x[3] + 1),
        (norm, 0, 2),
    ):
        weights[place] = value
        known.add(tuple(bits_of(model)))
    assert len(known) == 5
    assert tuple(bits_of(model)) in known


def test_a_network_of_others_keeps_its_buffers_as_exact_as_they_are():
    """Frequencies of rotary positions stay in float32.

    In bfloat16 they would turn position 4095 of LLaDA by 7 radians too much."""
    network = torch.nn.Linear(3, 2)
    network.only_read = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    network.register_buffer('inv_freq', torch.full((8,), 1 / 3))
    assert freeze(network, torch.bfloat16) is network
    assert torch.equal(network.inv_freq, torch.full((8,), 1 / 3))
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}


# --------------------------------------------------------------------------------------------------
# names


def test_the_name_of_a_network_names_all_of_it():
    words = [*NETWORKS, 'gate_init=1', 'gate_init=1e-7', 'n_cond=4']
    for some in itertools.combinations(words, 4):
        try:
            config = named_network(','.join(some))
        except ValueError:  # of two words that give a field two values, or do not go together
            continue
        assert named_network(network_name(config)) == config


@pytest.mark.parametrize(
    'text, name',
    {
        '': 'decoder',
        'gate_init=1,rotary,encoder': 'encoder,rotary,gate_init=1',
        'gpt2_blocks, input': 'sigma_gpt',
        'sigma_gpt,gelu_tanh': 'sigma_gpt,gelu_tanh',
        'gpt2_blocks,layer,n_cond=4': 'layer,gpt2_blocks,n_cond=4',
    }.items(),
)
def test_the_words_of_a_network_may_stand_in_any_order(text, name):
    assert network_name(named_network(text)) == name


@pytest.mark.parametrize(
    'text, said',
    {
        'encode': "'encode'; the nearest is 'encoder'",
        'encoder,mixed': 'attention two values, bidirectional and mixed',
        'sigma_gpt,layer': 'target_position two values, input and layer',
        'gate_init=open': "got 'gate_init=open'",
        'gate_init=1_0': "got 'gate_init=1_0'",
        'n_cond=1.5': "got 'n_cond=1.5'",
        'n_embd=64': "got 'n_embd=64'",
    }.items(),
)
def test_what_is_no_network_is_refused_in_one_line(text, said):
    with one_line(said):
        named_network(text)
