"""How likely is a text that a model wrote itself, from two sides?

A draw r of a sampler, an order say, gives a text the likelihood p(x | r). That of the text alone is
p(x) = E_r p(x | r). Of a held-out text only fresh draws are known, and these bound log p(x) from
below, as importance weights do (Burda et al. 2016, arXiv 1509.00519). The draw r_0 that wrote a
text is one from p(r | x), by which the bound turns round (Grosse et al. 2015, arXiv 1511.02543):

    E log 1/K sum_{k=1..K} p(x | r_k)  <=  log p(x)  <=  E log 1/K sum_{k=0..K-1} p(x | r_k)

where r_1, ..., r_K are fresh draws. Both sides hold for each text, and meet as K grows."""

from dataclasses import replace
from itertools import chain, repeat

import torch

from anyorder.generation import Canvas, Drawing, Given
from anyorder.generation.fill import fill
from anyorder.likelihood.ensemble import ensemble_nll
from anyorder.likelihood.nll import nll_of_blanks, visit_nll
from anyorder.likelihood.sampled import text_of
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch

PLAIN = Drawing(scores=True)
# nats a token between two computations of one likelihood, one of them in bfloat16
TOLERANCE = 0.1


def both_sides(nats, n):
    """Return (least, most), which enclose -log p(x) as means over draws: n draws each.

    nats  (..., 1 + K) of side_nats, K at least n"""
    own_and_fresh = nats[..., :n]
    fresh = nats[..., 1 : n + 1]
    return ensemble_nll(-own_and_fresh), ensemble_nll(-fresh)


def side_nats(model, written, law, numbers, n_fresh, seed, batch_size):
    """Return (len(numbers), 1 + n_fresh) float64: -log p(x | r) of texts that the model wrote.

    Column 0 is for the draw that wrote a text, the others for fresh draws, which are a function of
    the seed and the number of the text. What was known from the start is given.

    written  a Sampled
    law      its Way, see Sampled.law
    numbers  of the texts
    Raises ValueError unless this model wrote the texts by these draws"""
    samples = [written.samples[number] for number in numbers]
    texts = [text_of(sample) for sample in samples]
    own = own_nats(model, written, law, samples, batch_size)
    seeds = [derive_seed(seed, 'sides', b, k) for b in numbers for k in range(n_fresh)]
    repeated = [*chain.from_iterable(repeat(text, n_fresh) for text in texts)]
    fresh, _ = draw_nats(model, repeated, seeds, law, batch_size)
    return torch.cat([own.unsqueeze(1), fresh.view(-1, n_fresh)], 1)


def own_nats(model, written, law, samples, batch_size):
    """Return -log p(x | r) (n,) of samples under the draws that wrote them.

    Raises ValueError unless these are the draws and the log-probabilities that the file tells of,
    which are of the untempered model."""
    texts = [text_of(sample) for sample in samples]
    seeds = [sample['seed'] for sample in samples]
    plain = replace(law, drawing=replace(law.drawing, temperature=1.0))
    nats, orders = draw_nats(model, texts, seeds, plain, batch_size)
    if orders != [sample['order'] for sample in samples]:
        raise ValueError(
            f'{written.path} holds texts whose order is not the one that their seed draws: another '
            'version or another program wrote them; write them anew by sample.py'
        )
    if not differences(nats, samples).max() <= TOLERANCE:
        raise written.of_another()
    if law == plain:
        return nats
    return draw_nats(model, texts, seeds, law, batch_size)[0]


def differences(nats, samples):
    """Return by how many nats a token (n,) the nats of samples are not those of their file."""
    kept = torch.tensor([sample['nats'] for sample in samples], dtype=torch.float64)
    n_blanks = torch.tensor([sample['blanks'] for sample in samples])
    return (nats - kept).abs() / n_blanks


def draw_nats(model, texts, seeds, law, batch_size):
    """Return (-log p(x | r) (n,) float64, the orders [n]) of texts under the draws of seeds.

    texts  [(tokens, is_known)] as in Canvas.of_texts"""
    nats = []
    orders = []
    for start in range(0, len(texts), batch_size):
        rows = slice(start, start + batch_size)
        canvas = Canvas.of_texts(texts[rows], law.order, seeds[rows], model.device)
        score(model, canvas, law)
        nats.append(-canvas.logprob.sum(1).cpu().double())
        orders += [order for _, order, *_ in canvas.lists()]
    return torch.cat(nats), orders


@torch.no_grad()
def score(model, canvas, law):
    """Score the text of a canvas by the law, into canvas.logprob.

    A decoder that writes one token a step scores all of them in one pass."""
    if not is_one_pass(model, canvas, law):
        fill(model, canvas, law.unmasking, law.drawing)
        return
    n_given = canvas.n_prompt.to(model.device)
    every = Batch(canvas.idx, canvas.order, n_visits=canvas.n_visits, n_given=n_given)
    batch = every.rows(canvas.rows)
    nll = nll_of_blanks(visit_nll(model, batch), n_given, False)
    canvas.logprob.scatter_(1, canvas.order, -nll.to(canvas.logprob.dtype))


def is_one_pass(model, canvas, law):
    """Whether the model is a decoder, and writes the canvas by its own law one token a step."""
    way = law.unmasking
    if model.slots.masked_loss or type(way) is not Given or law.drawing != PLAIN:
        return False
    is_long = isinstance(way.schedule, str) and way.n_steps >= int(canvas.n_blanks.max())
    return is_long and not way.binomial
