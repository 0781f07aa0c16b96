"""How far is an estimate of log p from the exact value, and its gradient from the exact one?

    python results/grpo/compare.py --out=compare.json

All estimates are of the same completions, which the model writes in random orders. Rows, ± the
standard error over completions or batches:

bias      mean of estimate - exact, nats a completion
draws     standard deviation of the draws for one completion
texts     standard deviation over completions of (mean of the draws - exact)
cosine    of the gradients of GRPO's loss by one draw and by the exact value, on one batch
norm      the length of the first by that of the second
ahead     cosine of the gradient of a batch and the mean exact gradient of all other batches"""

import sys

sys.path.append('.')  # the project's folder, from which it is run

from dataclasses import dataclass

import torch

from anyorder.generation.way import Way
from anyorder.likelihood.tables import standard_error
from anyorder.machine.files import check_out, need_extra, write_json
from anyorder.machine.terminal import one_line_errors
from anyorder.seeds import stream
from configurator import at_least, configure
from results.grpo.grpo import REWARDS, prompts_of

folder = 'out/quickstart/hf'  # an exported model
data_dir = 'data'  # where its set is, from which prompts are taken
order = 'random'  # in which completions are written, as in sample.py
reward = 'alternating'  # grpo.py:REWARDS
length = 32  # tokens of a completion
n_batches = 16
n_prompts = 8  # of a batch
n_generations = 16  # of a prompt
n_draws = 32  # of each estimate for a completion
seed = 1
out = ''  # a JSON file of the rows

FIGURES = ('bias', 'draws', 'texts', 'cosine', 'norm', 'ahead')


def main(config):
    at_least(config, 2, 'n_batches', 'n_generations', 'n_draws')  # whose spread is measured
    check_out('out', config.out, '.json')
    need_extra('transformers')
    need_extra('trl')
    from transformers import AutoModel, AutoTokenizer

    from results.grpo.estimates import ESTIMATES

    model = AutoModel.from_pretrained(config.folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(config.folder, trust_remote_code=True)
    batches = [written_batch(model, tokenizer, config, i) for i in range(config.n_batches)]
    rows = {}
    true = gradients(model, batches, exact)
    for name, way in ({'exact': exact} | ESTIMATES).items():
        row = nats_row(model, batches, way)
        rows[name] = row | gradient_row(gradients(model, batches, way), true)
    show(rows)
    if config.out:
        write_json(config.out, rows)


@dataclass(frozen=True)
class Batch:
    """Completions of some prompts.

    written     the Written texts, B of them
    advantages  (B,): (reward - mean) / (standard deviation + 1e-4) over those of its prompt
    keys        (n_draws, B) int64, of the draws of an estimate"""

    written: object
    advantages: torch.Tensor
    keys: torch.Tensor


def written_batch(model, tokenizer, config, number):
    """Return the Batch of this number."""
    from results.grpo.any_order import write

    prompts = prompts_of(config.folder, config.data_dir)
    generator = stream(config.seed, 'batch', number)
    chosen = torch.randperm(len(prompts), generator=generator)[: config.n_prompts]
    ids = tokenizer([prompts[i] for i in chosen])['input_ids']
    rows = [one for one in ids for _ in range(config.n_generations)]
    seeds = torch.randint(2**62, (len(rows),), generator=generator).tolist()
    way = Way.of(getattr(model.config, 'training', {}), config.order, n_steps=config.length)
    written = write(model.network, rows, config.length, way, seeds)
    texts = tokenizer.batch_decode(
        written.completions(written.idx, config.length), skip_special_tokens=True
    )
    rewards = torch.tensor(REWARDS[config.reward](config.length)(texts)).view(
        -1, config.n_generations
    )
    spread = rewards.std(1, keepdim=True) + 1e-4
    advantages = (rewards - rewards.mean(1, keepdim=True)) / spread
    keys = torch.randint(2**62, (config.n_draws, len(rows)), generator=generator)
    return Batch(written, advantages.flatten(), keys)


def exact(model, written, keys):
    """Return (B, N) log p by position, in the order that wrote: no key is asked."""
    return written.logprobs(model, written.order)


def nats(model, written, way, keys):
    """Return (B,) log-probabilities of the completions by a way."""
    return written.completions(way(model, written, keys), written.length).sum(1)


# --------------------------------------------------------------------------------------------------
# log p


@torch.no_grad()
def nats_row(model, batches, estimate):
    """Return {figure: (value, standard error)} of an estimate's nats a completion."""
    errors = []  # of a batch each, (n_draws, B)
    for batch in batches:
        true = nats(model, batch.written, exact, None)
        drawn = [nats(model, batch.written, estimate, keys) for keys in batch.keys]
        errors.append(torch.stack(drawn) - true)
    errors = torch.cat(errors, 1).double()
    means = errors.mean(0)
    variance = errors.var(0)
    of_texts = (means - means.mean()).square() - variance / len(errors)
    return {
        'bias': mean_and_error(means),
        'draws': root_and_error(variance),
        'texts': root_and_error(of_texts),
    }


def mean_and_error(x):
    """Return the mean of x (n,) and its standard error."""
    return float(x.mean()), standard_error(x.tolist())


def root_and_error(x):
    """Return the root of the mean of x (n,) and its standard error; of a mean below 0 it is 0."""
    mean, error = mean_and_error(x)
    root = max(mean, 0.0) ** 0.5
    return root, error / max(2 * root, 1e-9)


# --------------------------------------------------------------------------------------------------
# gradients


def gradients(model, batches, way):
    """Return (n, P) the `gradient` of each batch, float64."""
    return torch.stack([gradient(model, batch, way) for batch in batches]).double()


def gradient(model, batch, way):
    """Return (P,) the gradient of GRPO's loss where all ratios are 1, by one draw."""
    table = way(model, batch.written, batch.keys[0])
    logprobs = batch.written.completions(table, batch.written.length)
    loss = -(batch.advantages.unsqueeze(1) * logprobs).mean()
    parts = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([part.flatten() for part in parts])


def gradient_row(found, true):
    """Return {figure: (value, standard error)} of gradients (n, P) of batches and exact ones."""
    both = found @ true.T  # (n, n) products
    own = found @ found.T
    exact_own = true @ true.T
    lengths = own.diagonal().sqrt()
    exact_lengths = exact_own.diagonal().sqrt()
    # the sum of the exact gradients of all other batches
    ahead = both.sum(1) - both.diagonal()
    of_others = exact_own.sum() - 2 * exact_own.sum(1) + exact_own.diagonal()
    return {
        'cosine': mean_and_error(both.diagonal() / lengths / exact_lengths),
        'norm': mean_and_error(lengths / exact_lengths),
        'ahead': mean_and_error(ahead / lengths / of_others.sqrt()),
    }


def show(rows):
    """Print a table, a line for each way."""
    print(f'| | {" | ".join(FIGURES)} |\n|---|---|---|---|---|---|---|')
    for way, found in rows.items():
        cells = [f'{value:.3f} ± {error:.3f}' for value, error in map(found.get, FIGURES)]
        print(f'| {way} | {" | ".join(cells)} |')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
