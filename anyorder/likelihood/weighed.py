"""How likely is it that a text of the model matches a pattern? By weights of samples that do."""

import math

import torch

from anyorder.generation.drawing import Drawing
from anyorder.tokens.prompts import has_pattern


def check_weigh(prompts, page, drawing, config):
    """Raise ValueError where weights are asked for and samples would have none."""
    if not config.weigh:
        return
    if page.pattern is None and not all(map(has_pattern, prompts)):
        raise ValueError(
            'weigh is for texts that match a pattern: add --pattern, or a blank '
            '[[/pattern/]] to each prompt'
        )
    if drawing != Drawing() or config.revise:
        raise ValueError(
            'weigh compares the law of the model with that of the samples: leave out temperature, '
            'top_k, top_p, min_p, presence_penalty, cfg_scale, revise and score'
        )
    if config.n_samples < 2:
        raise ValueError(f'weigh needs 2 samples of a prompt, got n_samples={config.n_samples}')


def weigh_samples(samples, n_each):
    """Return probability_of_match by the samples of each prompt, n_each that follow each other."""
    found = []
    for first in range(0, len(samples), n_each):
        of_prompt = samples[first : first + n_each]
        found.append(probability_of_match([sample['log_weight'] for sample in of_prompt]))
    return found


def probability_of_match(log_weights):
    """Return what the log-weights [n] of samples x of q, log p(x) - log q(x) in nats, say of p.

    q is the law by which texts that match are written, p(x) the model's own probability of the
    same tokens in the same steps. Of a text that matches q is above zero where p is, of others it
    is zero. So the mean of the weights w = p / q is p(match), and samples that are drawn again in
    proportion to w have, as n grows, the law p(x | match).

    returns  {'log_p_match': of the mean of w, 'standard_error': of log_p_match, which is that of
             the mean over the mean, 'effective_share': (sum w)^2 / (n sum w^2) (Kish 1965)}"""
    log_w = torch.tensor(log_weights, dtype=torch.float64)
    n = len(log_w)
    log_mean = log_w.logsumexp(0) - math.log(n)
    w = (log_w - log_mean).exp()  # of mean 1
    return {
        'log_p_match': float(log_mean),
        'standard_error': float(w.std() / math.sqrt(n)),
        'effective_share': float(1 / w.square().mean()),
    }


def weights_in_words(weights):
    """Return in words what weigh_samples has found, the mean of several prompts."""
    n = len(weights)
    p = [math.exp(of_prompt['log_p_match']) for of_prompt in weights]
    errors = [one * of_prompt['standard_error'] for one, of_prompt in zip(p, weights)]
    mean = sum(p) / n
    error = math.hypot(*errors) / n
    share = sum(of_prompt['effective_share'] for of_prompt in weights) / n
    of_prompts = f', means of {n} prompts' if n > 1 else f' ({weights[0]["log_p_match"]:.3f} nats)'
    said = f'{mean:.3g}, standard error {error:.2g}{of_prompts}'
    return f'{said}; effective share of the samples {share:.2f}'
