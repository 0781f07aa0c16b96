"""What do fewer passes cost a trained model?

    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --out=frontier.json
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --ways=random,lossless,margin:.9 \\
        --n_steps=0,16,64 --judge=gpt2-large

A row is a way of writing: its passes, the seconds of all samples, and the exact nats a token of
held-out text by its law, as by eval_ppl.py --orders; in a random order they are the mean over
orders, a bound. With a judge come the perplexity of the samples, left to right, and their entropy.
A way is an order in n_steps, a choice of the model with a threshold in its name, or in the order of
the training binomial numbers of tokens, or drafts: lossless, whose law is that of one token a step.
"""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least, names_in, numbers

ckpt = 'out/ckpt.pt'  # a trained model: a path, or hf:OWNER/REPO[/path.pt]
judge = ''  # a checkpoint or gpt2-large, which reads the samples; '' is none
# what is compared, with commas
ways = 'own,lossless,margin'  # as --order of sample.py, or as --unmask: binomial, lossless:64, ...
n_steps = '0,16,64'  # numbers of passes; 0 writes one token a step
# held-out text
dataset = ''  # the val split of a set, or a file; '' is the set of the training
n_blocks = 64  # blocks of the text, spread evenly over it; 0 is all
# samples
n_samples = 64  # of every way
batch_size = 32  # samples at a time
out = ''  # a JSON file for the rows, which pictures draws
# system
seed = 1337  # sample r is a function of seed + r
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import itertools
import statistics
import time

import numpy as np

from anyorder.datasets import only_set_of
from anyorder.extras.judge import measure, open_judge
from anyorder.extras.table import Table
from anyorder.generation.way import Way
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import open_corpus
from anyorder.likelihood.written import written
from anyorder.machine.files import check_out
from anyorder.writer import Writer

# see bench.TIMES
COLUMNS = {
    'way': ('', ''),
    'n_steps': ('steps', ''),
    'passes': ('passes', '.1f'),
    'seconds': ('seconds', '.2f'),
    'nats': ('nats', '.4f'),
    'nats_error': ('±', '.4f'),
    'judge': ('judge', '.2f'),
    'entropy': ('entropy', '.3f'),
}


def main(config):
    at_least(config, 1, 'batch_size', 'n_samples')
    at_least(config, 0, 'n_blocks')
    check_out('out', config.out, '.json', config.ckpt, config.judge)
    writer = Writer(config.ckpt, device=config.device, dtype=config.dtype)
    ways = ways_of(config, writer.checkpoint)
    judge = open_judge(config.judge, writer.tokenizer) if config.judge else None
    run = writer.checkpoint.run
    dataset = config.dataset or only_set_of(run)
    if not dataset:
        raise ValueError('the checkpoint does not name its data set: say which with --dataset=')
    text = open_corpus(
        dataset,
        writer.block_size,
        writer.tokenizer,
        run.get('data_dir', 'data'),
        n_blocks=config.n_blocks,
    )
    title = f'{writer.device}, {writer.dtype}; {len(text.blocks)} blocks of {text.label}'
    table = Table(title, COLUMNS, config)
    blanks = np.full((config.n_samples, writer.block_size), -1)
    writer.infill(blanks[:1], n_steps=1)  # warms up
    for (name, n_steps), (way, law) in ways.items():
        start = time.perf_counter()
        samples = writer.infill(
            blanks, way=way, seed=config.seed, batch_size=config.batch_size
        ).samples
        row = {
            'way': name,
            'n_steps': n_steps,
            'seconds': time.perf_counter() - start,
            'passes': statistics.fmean(sample['passes'] for sample in samples),
        }
        how = Config(config, n_orders=1, block_size=writer.block_size, estimates='', pattern='')
        estimate = written(how, writer.checkpoint, law, name=name)
        (of_text,) = estimate.rows(estimate.measure(writer.model, text, Journal('', {})), text)
        row |= {'nats': of_text['nats_per_token'], 'nats_error': of_text['stderr']}
        if judge:
            found, _ = measure(samples, writer.tokenizer, judge, writer.device)
            row |= {'judge': found['judge']['perplexity'], 'entropy': found['entropy']}
        table.add(row)


def ways_of(c, checkpoint):
    """Return {(name, number of steps): (Way, the Way whose law it has)}.

    A way that says itself how many tokens a step writes has None steps, and one row."""
    N = checkpoint.config.block_size
    found = {}
    for text, number in itertools.product(names_in(c.ways), numbers(c, 'n_steps')):
        n = number or N
        drafts = text.partition(':')[0] == 'lossless'
        option = 'unmask' if drafts or text == 'binomial' else 'order'
        way = Way.of(checkpoint.run, n_steps=n, **{option: text})
        way.check(checkpoint.config, exact=not drafts)
        law = Way.of(checkpoint.run, n_steps=N) if drafts else way
        if drafts or way.unmasking.threshold is not None:
            n = None
        found[text, n] = way, law.to_score
    if not found:
        raise ValueError(f'ways must name at least one, as own or lossless, got {c.ways!r}')
    return found


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
