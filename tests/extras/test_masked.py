"""anyorder/extras/masked/masked.py: a masked model of others under our policies, each step by
hand."""

import functools

import pytest
import torch
from conftest import make_model
from masked_kinds import KINDS

pytest.importorskip('transformers')

from types import SimpleNamespace

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.extras.masked.tokenizer import HuggingFace
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.likeliest import ask_for
from anyorder.generation.options import choice_in, unmasking_of
from anyorder.generation.unmasking import SCORES
from anyorder.likelihood.conditional import conditional_logprob
from anyorder.likelihood.nll import block_nll
from anyorder.orders import Order
from model import KVCache


@pytest.fixture(scope='session')
def kinds(folders):
    """kinds(name): (oracle, the opened folder, its model), opened once."""

    @functools.cache
    def opened(name):
        oracle, folder = folders(name)
        checkpoint = open_checkpoint(f'masked:{folder}')
        return oracle, checkpoint, checkpoint.model().requires_grad_(False)

    return opened


def by_hand(oracle, c, tokens, known):
    """Log-probabilities (N, V) of a text whose `known` tokens are read.

    What stands around it, masks in the blanks, the shift, and no probability for tokens that are
    never written."""
    inside = [token if there else c.mask_id for token, there in zip(tokens, known)]
    logits = oracle(torch.tensor([*c.prefix, *inside, *c.suffix]))
    first = len(c.prefix)
    if c.shift:
        first -= 1
    logits = logits[first : first + len(tokens), : c.n_tokens].clone()
    logits[:, never_written(c)] = -torch.inf
    return logits.log_softmax(-1)


def never_written(c):
    """Tokens of the vocabulary that are never written."""
    return sorted(token for token in {*c.banned, c.mask_id} if token < c.n_tokens)


def rows_of(checkpoint, lengths=(11, 7, 9)):
    """[(tokens, known)] of these lengths. Every third token is known, in the second row none."""
    g = torch.Generator().manual_seed(5)
    low = len(checkpoint.config.banned) + 2
    high = checkpoint.config.n_tokens - 4
    rows = []
    for r, n in enumerate(lengths):
        tokens = torch.randint(low, high, (n,), generator=g).tolist()
        known = [r != 1 and p % 3 == 0 for p in range(n)]
        rows.append((tokens, known))
    return rows


def write(model, texts, seed=3, **unmasking):
    canvas = Canvas.of_texts(texts, Order('random'), seed)
    fill(model, canvas, unmasking_of(**unmasking), Drawing())
    return canvas.lists()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'how',
    [
        {'n_steps': 99},
        {'n_steps': 3, 'schedule': 'cosine'},
        {'n_steps': 4, 'unmask': 'binomial'},
        {'n_steps': 4, 'policy': 'margin'},
        {'n_steps': 5, 'policy': 'entropy', 'unmask': 'binomial'},
        {'policy': 'top_prob:0.3'},
    ],
    ids=lambda how: '-'.join(map(str, how.values())),
)
def test_each_step_is_a_call_of_the_network_by_hand(kinds, kind, how):
    oracle, checkpoint, model = kinds(kind)
    texts = rows_of(checkpoint)
    written = write(model, texts, **how)
    for (given, known), (tokens, _, step, logprob) in zip(texts, written, strict=True):
        for p, there in enumerate(known):
            assert not there or tokens[p] == given[p]
        for s in {*step} - {-1}:
            before = [there or -1 < when < s for there, when in zip(known, step)]
            now = [p for p, when in enumerate(step) if when == s]
            logp = by_hand(oracle, checkpoint.config, tokens, before)
            expected = [float(logp[p, tokens[p]]) for p in now]
            assert [logprob[p] for p in now] == pytest.approx(expected, abs=1e-4)
            if 'policy' in how:
                choice = choice_in(how['policy'])
                score = SCORES[choice['policy']](logp).tolist()
                check_best_are_revealed(score, before, now, choice.get('threshold'))


@pytest.mark.parametrize('kind', KINDS)
def test_guidance_is_that_of_llada_by_hand(kinds, kind):
    """un_logits + (w + 1) (logits - un_logits), of unequal texts, the longest of which ends first.

    A token that the network rules out itself stays impossible."""
    oracle, checkpoint, model = kinds(kind)
    c = checkpoint.config
    ruled_out = c.n_tokens - 2

    def with_infinity(tokens):
        logits = model.network(tokens).logits.clone()
        logits[..., ruled_out] = -torch.inf
        return SimpleNamespace(logits=logits)

    texts = rows_of(checkpoint, (11, 9, 9))
    texts[0][1][2:] = [True] * 9
    canvas = Canvas.of_texts(texts, Order('random'), 3)
    own = MaskedModel(with_infinity, c)
    fill(own, canvas, unmasking_of(n_steps=5), Drawing(cfg_scale=1.5))
    for (_, known), (tokens, _, step, logprob) in zip(texts, canvas.lists(), strict=True):
        for s in {*step} - {-1}:
            written = [-1 < when < s for when in step]
            before = [there or new for there, new in zip(known, written)]
            logits = by_hand(oracle, c, tokens, before)
            blank = by_hand(oracle, c, tokens, written)
            logp = blank + 2.5 * (logits - blank)
            logp[:, [*never_written(c), ruled_out]] = -torch.inf
            logp = logp.log_softmax(-1)
            now = [p for p, when in enumerate(step) if when == s]
            expected = [float(logp[p, tokens[p]]) for p in now]
            assert [logprob[p] for p in now] == pytest.approx(expected, abs=1e-4)


def test_a_letter_that_is_only_rewritten_is_not_unknown():
    """A normalizer writes the sign for angstrom as a letter, in fewer bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = HuggingFace('qwen', backend, None)
    text = 'a \u212b b'
    assert not tokenizer.unspelt(text, tokenizer.spans(text))


@pytest.mark.parametrize('kind', KINDS)
def test_the_likeliest_tokens_of_blanks_are_those_of_a_call_by_hand(kinds, kind):
    oracle, checkpoint, model = kinds(kind)
    texts = rows_of(checkpoint)
    canvas = Canvas.of_texts(texts, Order('random'), 3)
    ask_for(canvas, 2)
    fill(model, canvas, unmasking_of(n_steps=1), Drawing())
    for row, (tokens, known) in enumerate(texts):
        logp = by_hand(oracle, checkpoint.config, tokens, known)
        for p, there in enumerate(known):
            own, *nats, first, second = canvas.likeliest[row, p].tolist()
            if there:
                assert nats == [0, 0]
                continue
            assert own == pytest.approx(float(logp[p, canvas.idx[row, p]]), abs=1e-4)
            assert nats == pytest.approx(logp[p].topk(2).values.tolist(), abs=1e-4)
            assert logp[p, [int(first), int(second)]].tolist() == pytest.approx(nats, abs=1e-4)


def check_best_are_revealed(score, before, now, threshold):
    """The places `now` have the best scores of all that were not known before."""
    left = [score[p] for p, there in enumerate(before) if not there and p not in now]
    least = min(score[p] for p in now)
    assert least >= max(left, default=-9e9) - 1e-5
    if threshold is not None:
        assert len(now) == 1 or least > threshold - 1e-5


@pytest.mark.parametrize('kind', KINDS)
def test_rows_of_unequal_length_are_written_as_alone(kinds, kind):
    _, checkpoint, model = kinds(kind)
    texts = rows_of(checkpoint)
    # where nothing is known, all blanks of a network without learned positions are equally sure
    texts[1][1][2] = True
    together = write(model, texts, n_steps=4, policy='margin')
    for r, text in enumerate(texts):
        ((tokens, order, step, logprob),) = write(model, [text], 3 + r, n_steps=4, policy='margin')
        assert (tokens, order, step) == tuple(together[r][:3])
        assert logprob == pytest.approx(together[r][3], abs=1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_blanks_change_nothing_and_banned_tokens_are_never_drawn(kinds, kind):
    _, checkpoint, model = kinds(kind)
    c = checkpoint.config
    B = 400 if c.n_tokens < 1000 else 20
    order = torch.rand(B, 6, generator=torch.Generator().manual_seed(2)).argsort(1)
    idx = torch.full((B, 6), 20)
    another = c.banned[0] if c.banned else 1
    other = idx.scatter(1, order[:, 2:], another)
    logits = model.predict(idx[:4], order[:4], 2)
    assert torch.equal(logits, model.predict(other[:4], order[:4], 2))
    assert logits.shape == (4, 4, c.n_tokens)
    assert (logits[..., never_written(c)] == -torch.inf).all()
    written = generate(model, idx, order, 2, 1, temperature=9.0, seeds=range(B))
    assert not {*c.banned, c.mask_id} & {*written.flatten().tolist()}
    assert len(written.unique()) > 30


@pytest.mark.parametrize('kind', KINDS)
def test_losses_and_likelihoods_are_sums_of_the_hand_made(kinds, kind):
    oracle, checkpoint, model = kinds(kind)
    ((tokens, _),) = rows_of(checkpoint, (6,))
    visits = [3, 0, 5, 1, 4, 2]
    idx = torch.tensor([tokens, tokens, tokens])
    order = torch.tensor([visits, visits, visits])

    def nats(d, given):
        known = [p in given for p in range(6)]
        p = visits[d]
        return -float(by_hand(oracle, checkpoint.config, tokens, known)[p, tokens[p]])

    loss = model(idx, order, torch.tensor([0, 2, 5]))
    of_0 = [nats(d, []) for d in range(6)]
    of_2 = [6 / 4 * nats(d, visits[:2]) for d in range(2, 6)]
    assert loss[0].tolist() == pytest.approx(of_0, abs=1e-4)
    assert loss[1].tolist() == pytest.approx([0, 0, *of_2], abs=1e-4)
    whole = sum(nats(d, visits[:d]) for d in range(6))
    assert float(block_nll(model, idx[:1], order[:1], 1)) == pytest.approx(whole, abs=1e-4)
    logp = conditional_logprob(model, idx[:1], [3], [0, 1, 2, 4, 5])
    assert float(logp) == pytest.approx(-nats(0, [0, 1, 2, 4, 5]), abs=1e-4)


# ---- any callable


def count_calls(n_tokens=6, width=None):
    """A callable network of logits that say what it was given, and the calls."""
    calls = []

    def network(tokens):
        calls.append(tokens)
        one_hot = torch.nn.functional.one_hot(tokens, n_tokens).double()
        return SimpleNamespace(logits=3 * one_hot[..., :width])

    return network, calls


def test_a_callable_sees_prefix_masks_and_suffix_and_rows_of_one_length_at_a_time():
    network, calls = count_calls()
    config = MaskedConfig(4, 6, mask_id=5, banned=(0,), prefix=(0, 1), suffix=(2,))
    model = MaskedModel(network, config)
    idx = torch.tensor([[3, 4, 3, 4], [4, 4, 3, 3]])
    order = torch.tensor([[2, 0, 1, 3], [1, 0, 2, 3]])
    logits = model.predict(idx, order, 2)
    of_a_mask = torch.tensor([-torch.inf, 0, 0, 0, 0, -torch.inf])
    assert torch.equal(logits, of_a_mask.double().expand(2, 2, -1))
    model.predict(idx, order, torch.tensor([1, 2]), 2, n_visits=torch.tensor([4, 3]))
    model.predict(idx, order, 1, 1, n_visits=3)  # all rows end early
    assert [call.tolist() for call in calls] == [
        [[0, 1, 3, 5, 3, 5, 2], [0, 1, 4, 4, 5, 5, 2]],
        [[0, 1, 4, 4, 5, 2]],
        [[0, 1, 5, 5, 3, 5, 2]],
        [[0, 1, 5, 5, 3, 2], [0, 1, 5, 4, 5, 2]],
    ]
    with pytest.raises(ValueError, match='must be the positions from 0 on'):
        model.predict(idx, order, 1, n_visits=1)


@pytest.mark.parametrize('kind', ['Bert', 'FNet'])
def test_a_network_that_reads_padding_has_the_same_logits_beside_longer_rows(kind):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f'{kind}Config')(
        vocab_size=45, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    network = transformers.AutoModelForMaskedLM.from_config(config).double().eval()
    model = MaskedModel(network, MaskedConfig(11, 45, 3, prefix=(1,), suffix=(2,)))
    model.requires_grad_(False)
    idx = torch.randint(5, 45, (3, 11))
    order = torch.arange(11).expand(3, -1)
    lengths = [11, 7, 9]
    together = model.predict(idx, order, 5, 2, n_visits=torch.tensor(lengths))
    for r, n in enumerate(lengths):
        alone = model.predict(idx[r : r + 1, :n], order[r : r + 1, :n], 5, 2)
        torch.testing.assert_close(together[r], alone[0], rtol=0, atol=1e-12)


def test_the_shift_reads_the_logits_before_a_token():
    network, _ = count_calls()
    model = MaskedModel(network, MaskedConfig(3, 6, mask_id=5, shift=True, prefix=(4,)))
    idx = torch.tensor([[2, 3, 0]])
    order = torch.tensor([[0, 1, 2]])
    assert model.predict(idx, order, 2)[0, 0].argmax() == 3
    assert model.predict(idx, order, 0)[0, 0].argmax() == 4


def generate_lossless(model, idx, order):
    generate(model, idx, order, 0, unmask='lossless')


def predict_with_a_cache(model, idx, order):
    model.predict(idx, order, 1, cache=KVCache(make_model().config, 1))


def predict_a_part_of_the_order(model, idx, order):
    model.predict(idx, order[:, :2], 1)


def predict_by_few_logits(model, idx, order):
    network, _ = count_calls(width=5)
    MaskedModel(network, model.config).predict(idx, order, 1)


@pytest.mark.parametrize(
    'call, said',
    [
        (generate_lossless, 'wants a decoder'),
        (predict_with_a_cache, 'has no cache'),
        (predict_a_part_of_the_order, 'whole orders'),
        (predict_by_few_logits, r'got \(1, 4, 5\)'),
    ],
)
def test_what_cannot_be_is_said(call, said):
    network, _ = count_calls()
    model = MaskedModel(network, MaskedConfig(4, 6, mask_id=5))
    idx = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=said):
        call(model, idx, torch.arange(4)[None])


@pytest.mark.parametrize(
    'fields, said', [({'shift': True}, 'wants a prefix'), ({'block_size': 0}, 'at least 1')]
)
def test_a_config_that_cannot_be_is_said(fields, said):
    with pytest.raises(ValueError, match=said):
        MaskedConfig(**{'block_size': 4, 'n_tokens': 6, 'mask_id': 5} | fields)


def test_the_network_sets_the_mode():
    layer = torch.nn.Linear(2, 2)
    assert MaskedModel(layer, MaskedConfig(4, 6, 5)).training
    assert not MaskedModel(layer.eval(), MaskedConfig(4, 6, 5)).training
    assert not MaskedModel(count_calls()[0], MaskedConfig(4, 6, 5)).training


def test_a_network_of_another_config_json_is_another_one():
    """Its weights do not say how positions are scaled."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    configs = [MaskedConfig(4, 6, 5, file=file) for file in ('', 'a', 'b', 'a')]
    assert len({digest(MaskedModel(layer, config)) for config in configs}) == 3
    assert configs[0] == configs[1]
