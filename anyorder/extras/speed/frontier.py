"""What do fewer passes cost a trained model?

    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --out=frontier.json
    python -m anyorder.extras.speed frontier --ckpt=out/ckpt.pt --judge=other/ckpt.pt --n_steps=8,16

Every way and rule of unmasking at several settings: passes, slots a token and seconds of
generation; nats a token of held-out text by its law, as by eval_ppl.py --orders; cost, the nats
less one token a step of the same order, block by block; nats of samples under a judge, and their
entropy. Every way has the same seeds. Lossless unmasking has random numbers of its own, and writes
one text for all windows."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import Config, at_least

ckpt = ''  # a trained model: a path, or hf:OWNER/REPO[/path.pt]
judge = ''  # a checkpoint or gpt2-large; '' is the model's own left-to-right reading
# held-out text
dataset = ''  # the val split of a set, or a file; '' is the set of the training
data_dir = ''  # where prepared sets are; '' is where the checkpoint's are
n_blocks = 64  # blocks of the text, spread evenly over it; 0 is all
# ways of unmasking, with commas
n_steps = ''  # numbers of passes; '' is a sixteenth to a half of the tokens
windows = '4,8,16,32,64'  # of lossless unmasking; '' leaves it out
thresholds = '.5,.7,.9'  # of adaptive policies, and of klass; '' leaves them out
factors = '.5,1,2'  # of factor; '' leaves it out
gammas = '.1,.3,1'  # of eb, nats; '' leaves it out
dilations = '16,32,64'  # lengths of the blocks of dilated; '' leaves it out
block_lengths = '8,32'  # margin inside blocks of so many tokens; '' leaves them out
# samples
n_samples = 64  # of every way
batch_size = 32  # samples at a time
temperature = 1.0  # 0 takes the most likely token
out = ''  # a JSON file for the figures, which pictures draws
# system
seed = 1337  # sample r is a function of seed + r
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=('',))

import statistics
from dataclasses import replace

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.datasets import name_of_run, prepared_anew
from anyorder.extras.speed.models import numbers_or_none
from anyorder.fast import CountedTrunk, freeze
from anyorder.generation import (
    PROBABILITIES,
    SCORES,
    Canvas,
    Drawing,
    Given,
    Lossless,
    unmasking_of,
)
from anyorder.generation.canvas import sample_of
from anyorder.generation.fill import fill
from anyorder.generation.rules import Dilated, PcSampler, check_counts
from anyorder.generation.unmasking import Adaptive
from anyorder.generation.way import Way
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.judge import measure, open_judge, text_metrics
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.tables import figure, standard_error
from anyorder.likelihood.written import Written
from anyorder.machine.devices import autocast, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.machine.terminal import progress
from anyorder.orders import Order

REFERENCE = 'one token a step'
# {way: (the option of unmasking_of that varies along its curve, the other options)}. Another way is
# one entry here
WAYS = {
    REFERENCE: ('n_steps', {}),
    'lossless': ('window', {'unmask': 'lossless'}),
    'fixed': ('n_steps', {}),
    'cosine': ('n_steps', {'schedule': 'cosine'}),
    'binomial': ('n_steps', {'unmask': 'binomial'}),
    **{policy: ('n_steps', {'policy': policy}) for policy in SCORES},
    **{f'{policy} threshold': ('threshold', {'policy': policy}) for policy in PROBABILITIES},
    'factor': ('factor', {'policy': 'factor'}),
    'eb': ('gamma', {'policy': 'eb'}),
    'klass': ('threshold', {'policy': 'klass'}),
    'pc_sampler': ('n_steps', {'policy': 'pc_sampler'}),
    'dilated': ('dilation', {'policy': 'dilated'}),
    'drawn': ('n_steps', {'policy': 'drawn'}),
}
# options of unmasking_of that have another name along the curve of a rule
NAMES = {'factor': 'threshold', 'gamma': 'threshold', 'dilation': 'block_length'}

HEADINGS = ('passes', 'slots', 'seconds', 'nats a token', 'cost', 'judge', 'entropy')
WIDTHS = (12, 8, 8, 15, 15, 14, 14)


def main(config):
    at_least(config, 2, 'n_samples')  # whose spread gives the errors
    at_least(config, 0, 'n_blocks')
    at_least(config, 1, 'batch_size')
    if not config.ckpt:
        raise ValueError('frontier wants a trained model: name one by --ckpt=out/ckpt.pt')
    check_out('out', config.out, '.json', config.ckpt, config.judge)
    values = {
        'n_steps': numbers_or_none(config, 'n_steps'),
        'threshold': numbers_or_none(config, 'thresholds', float, 0, 1),
        'window': numbers_or_none(config, 'windows'),
        'factor': numbers_or_none(config, 'factors', float, 0, 1000),
        'gamma': numbers_or_none(config, 'gammas', float, 0, 1000),
        'dilation': numbers_or_none(config, 'dilations'),
        'blocks': numbers_or_none(config, 'block_lengths'),
    }
    device, dtype = resolve_device(config.device, config.dtype)
    c = Config(config, n_orders=1)
    Frontier(c, values, device, dtype).measure(config, config.out)


def settings(checkpoint, values):
    """Return ([(way, {option: value}, Unmasking)], {why: [way, ...] that are left out}).

    values   {'n_steps', 'window', 'threshold', 'factor', 'gamma', 'dilation', 'blocks': [value,
             ...]}; without n_steps a sixteenth to a half of the tokens. A window, and a block of
             dilated, holds at most all tokens. Margin has a way for each length of `blocks`. The
             curve of a policy begins at its own one token a step"""
    N = checkpoint.config.block_size
    n_steps = values['n_steps'] or sorted({max(1, N // n) for n in (2, 4, 8, 16)})
    values = values | {'n_steps': n_steps}
    for name in ('window', 'dilation'):
        values[name] = dict.fromkeys(min(value, N) for value in values[name])
    ways = dict(WAYS)
    for n in values['blocks']:
        ways[f'margin blocks of {n}'] = ('n_steps', {'policy': 'margin', 'block_length': n})
    found = []
    left_out = {}
    for way, (option, others) in ways.items():
        along = values[option]
        if way == REFERENCE:
            along = [N]
        elif option == 'n_steps' and 'policy' in others:
            along = steps_of_policy(along, N, others.get('block_length', N))
        of_way = []
        for value in along:
            unmasking = unmasking_of(**{NAMES.get(option, option): value}, **others)
            of_way.append((way, {option: value}, unmasking))
        try:
            for _, _, unmasking in of_way:
                check_way(unmasking, checkpoint)
            found += of_way
        except ValueError as e:
            left_out.setdefault(str(e), []).append(way)
    return found, left_out


def steps_of_policy(n_steps, n_tokens, block_length):
    """Return the numbers of steps of a policy, each once, and last its own one token a step."""
    n_blocks = -(-n_tokens // block_length)  # each takes a pass at least
    return dict.fromkeys([*(max(n, n_blocks) for n in n_steps), n_tokens])


def check_way(unmasking, checkpoint):
    """Raise ValueError for a way that the checkpoint does not have."""
    order = checkpoint.order.name
    if unmasking.adaptive and order != 'random':
        raise ValueError(f'the checkpoint was trained in the order {order} and knows no other')
    unmasking.check_network(checkpoint.config.slots, checkpoint.config.block_size)
    check_counts(unmasking, checkpoint.counts)


class Frontier:
    """Held-out text, and samples under a judge, by every way of unmasking.

    Sample r is a function of seed + r."""

    def __init__(self, c, values, device, dtype):
        """c holds the options, and n_orders=1; values: see settings."""
        checkpoint = Checkpoint(c.ckpt)
        self.c = c
        self.batch_size = min(c.batch_size, c.n_samples)
        self.device = device
        self.dtype = dtype
        self.checkpoint = checkpoint
        self.drawing = Drawing(c.temperature)
        self.journal = Journal('', {})
        self.settings, self.left_out = settings(checkpoint, values)
        self.n_tokens = checkpoint.config.block_size
        self.tokenizer = checkpoint.tokenizer
        dataset = c.dataset or name_of_run(checkpoint.run)
        data_dir = c.data_dir or checkpoint.run.get('data_dir', '') or 'data'
        self.text = None
        if dataset and c.temperature:
            cut = Cut(self.n_tokens, c.n_blocks)
            self.text = open_corpus(dataset, cut, self.tokenizer, data_dir, ckpt=c.ckpt)
        self.anew = prepared_anew(checkpoint, data_dir, dataset)
        self.judge = open_judge(c.judge or c.ckpt, self.tokenizer)
        self.model = checkpoint.model(checkpoint.weights, device)
        with autocast(device, dtype):
            self.network = freeze(self.model)

    def measure(self, config, out=''):
        """Print the table of all settings, a line as soon as it is there.

        The JSON file `out` has them too."""
        points = []
        result = self.about(config) | {'results': points}
        print('\n'.join(self.heading()), flush=True)
        for way, setting, unmasking in self.settings:
            name = '' if points and points[-1]['way'] == way else way
            point = self.point(way, setting, unmasking)
            points.append(point)
            print(format_point(point, name), flush=True)
            if out:
                write_json(out, result)
        if out:
            print(f'\nwritten: {out}')

    def about(self, config):
        """Return what the JSON file says of the run."""
        return {
            'config': config,
            'batch_size': self.batch_size,
            'order': self.checkpoint.order.entries,
            'tokens': self.n_tokens,
            'held_out': self.text and self.text.label,
            'judge': self.judge.name,
            'judge_tokenizer': self.judge.tokenizer.name,
            'device': str(self.device),
            'dtype': self.dtype,
            'torch': torch.__version__,
            'left_out': self.left_out,
            'reference': REFERENCE,
        }

    def heading(self):
        """Return the lines above the table."""
        c = self.c
        checkpoint = self.checkpoint
        lines = [
            f'{checkpoint.about(checkpoint.weights)}, {self.model.n_parameters():,} parameters, '
            f'{self.device}, {self.dtype}, torch {torch.__version__}',
            f'{c.n_samples} samples of {self.n_tokens} {self.tokenizer.name} tokens, '
            f'{self.batch_size} at a time, order {checkpoint.order.name}, '
            f'temperature {c.temperature:g}, seed {c.seed}',
            self.what_is_measured(),
        ]
        if self.anew:
            lines.append(self.anew)
        judge = self.judge
        lines.append(
            f'the judge reads left to right: {judge.name}, by {judge.tokenizer.name} tokens'
        )
        for why, ways in self.left_out.items():
            lines.append(f'left out: {", ".join(ways)} ({why})')
        return [*lines, '', format_line('', '', HEADINGS)]

    def what_is_measured(self):
        """Return a line on the held-out text."""
        if not self.text:
            wanted = '--dataset' if self.c.temperature else 'temperature above 0'
            return f'neither nats nor cost: they want a {wanted}'
        clues = ''
        if self.text.given is not None:
            clues = ', given what the set gives'
        order = self.checkpoint.order.name
        law = f'exact where the model chooses, in the order {order} a mean over orders, a bound'
        text = f'{self.text.label}, {len(self.text.blocks)} blocks{clues}'
        return f'nats and cost: {text}, {law}'

    def point(self, way, setting, unmasking):
        """Return a dict: the way, its setting, and numbers.

        NAME_error is a standard error over samples.

        passes, tokens_per_pass    the passes that revealed a token, and what each revealed
        seconds, tokens_per_sec    generation of all samples; slots: of a token, without padding
        judge_nats                 nats a token under the judge, in float32, left to right
        nats, cost: see likelihood; entropy, distinct_2: see text_metrics"""
        samples, time, n_slots = self.write(unmasking, f'{way} {format_setting(setting)}')
        metrics, _ = measure(samples, self.tokenizer, self.judge, self.device)
        passes = [sample['passes'] for sample in samples]
        n_tokens = sum(sample['blanks'] for sample in samples)
        counted = [True for _ in range(self.n_tokens)]
        entropies = []
        for sample in samples:
            entropies.append(text_metrics([sample['tokens']], [counted])['entropy'])
        likelihood = self.likelihood(unmasking) if self.text else {}
        return {
            'way': way,
            'setting': setting,
            **likelihood,
            'passes': statistics.fmean(passes),
            'passes_error': standard_error(passes),
            'samples': len(samples),
            'tokens_per_pass': n_tokens / sum(passes),
            'slots': n_slots / n_tokens,
            'seconds': time,
            'tokens_per_sec': n_tokens / time,
            'judge_nats': metrics['judge']['nats_per_token'],
            'judge_nats_error': metrics['judge']['stderr'],
            'entropy': metrics['entropy'],
            'entropy_error': standard_error(entropies),
            'distinct_2': metrics['distinct_2'],
        }

    def write(self, unmasking, name):
        """Return (samples, seconds, slots) of this way of unmasking.

        What a warm-up of a few tokens costs is not counted."""
        starts = range(0, self.c.n_samples, self.batch_size)
        canvases = [self.canvas(first, unmasking) for first in starts]
        warm_up = self.canvas(0, unmasking)
        warm_up.known = warm_up.n_prompt = warm_up.known + max(0, self.n_tokens - 8)
        trunk = self.network.trunk
        counted = CountedTrunk(trunk)
        n_tokens = self.c.n_samples * self.n_tokens
        bar = progress(total=n_tokens, unit='token', desc=name, leave=False)
        with autocast(self.device, self.dtype), bar:

            def write_one(canvas, bar=None):
                fill(self.network, canvas, unmasking, self.drawing, with_logprob=False, bar=bar)

            def write_all():
                for canvas in canvases:
                    write_one(canvas, bar)

            write_one(warm_up)
            self.network.trunk = counted
            time = seconds(write_all, self.device, 1)
            self.network.trunk = trunk
        samples = []
        for canvas in canvases:
            samples += [sample_of(*row, self.tokenizer) for row in canvas.lists()]
        return samples, time, int(counted.n_slots)

    def canvas(self, first, unmasking):
        """Return the blank canvas of the batch that begins with sample `first`."""
        n = min(self.batch_size, self.c.n_samples - first)
        tokens = [0 for _ in range(self.n_tokens)]
        known = [False for _ in range(self.n_tokens)]
        texts = [(tokens, known) for _ in range(n)]
        return Canvas.of_texts(texts, self.order(unmasking), self.c.seed + first, self.device)

    def order(self, unmasking):
        """Return the Order; blocks, in which a policy chooses, are from left to right."""
        if unmasking.block_length is None:
            return self.checkpoint.order
        return Order.of('l2r', self.checkpoint.run)

    def likelihood(self, unmasking):
        """Return {'nats', 'cost', each with its error}, of the held-out text in float32.

        nats   nats a token by the law of this way of writing; lossless has that of one token a step
        cost   the nats less one token a step of the same order, block by block"""
        drawing = replace(self.drawing, scores=True)
        order = self.order(unmasking)
        policy, sequential = one_by_one(unmasking, self.n_tokens)
        law = sequential if isinstance(unmasking, Lossless) else unmasking
        how = self.c, self.checkpoint, (), policy
        one = Written(*how, Way(order, sequential, drawing))
        found = Written(*how, Way(order, law, drawing), one)
        (row,) = found.rows(found.measure(self.model, self.text, self.journal), self.text)
        return {
            'nats': row['nats_per_token'],
            'nats_error': row['stderr'],
            'cost': row['cost'],
            'cost_error': row['cost_stderr'],
        }


def one_by_one(unmasking, n_tokens):
    """Return (its policy, the Unmasking that writes one token a step in the order of this one)."""
    if not unmasking.adaptive or isinstance(unmasking, Dilated):
        return 'given', Given(n_tokens)
    options = {'n_steps': n_tokens, 'block_length': unmasking.block_length}
    if isinstance(unmasking, PcSampler):
        return 'pc_sampler', PcSampler(**options)
    return unmasking.score, Adaptive(unmasking.score, **options)


def format_point(point, name):
    """Return a line of the table; what a point does not have stays empty."""
    cells = [figure(point['passes'], point['passes_error'], 1)]
    cells += [f'{point["slots"]:.1f}', f'{point["seconds"]:.2f}']
    for key in ('nats', 'cost', 'judge_nats', 'entropy'):
        cell = ''
        if key in point:
            cell = figure(point[key], point[f'{key}_error'], 3)
        cells.append(cell)
    return format_line(name, format_setting(point['setting']), cells)


def format_line(name, setting, cells):
    aligned = [f'{cell:>{width}}' for cell, width in zip(cells, WIDTHS)]
    return f'{name:<20}{setting:<14}{"".join(aligned)}'


def format_setting(setting):
    return ', '.join(f'{option}={value:g}' for option, value in setting.items())


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
