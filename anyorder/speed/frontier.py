"""What do fewer passes cost? Every way of unmasking at several settings: its passes, slots and seconds, how likely
held-out text is under its law, and how good its samples are."""

import statistics
from dataclasses import replace

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.datasets import changed_since
from anyorder.fast import CountedTrunk, freeze
from anyorder.generation import (
    PROBABILITIES,
    SCORES,
    Adaptive,
    Canvas,
    Drawing,
    Given,
    Lossless,
    unmasking_of,
)
from anyorder.generation.canvas import sample_of
from anyorder.generation.fill import fill
from anyorder.generation.way import Way
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.judge import measure, open_judge, text_metrics
from anyorder.likelihood.measured import open_corpus
from anyorder.likelihood.tables import figure
from anyorder.likelihood.written import Written
from anyorder.machine.devices import autocast, seconds
from anyorder.machine.files import write_json
from anyorder.machine.terminal import progress
from anyorder.orders import Order

REFERENCE = 'one token a step'
# {way: (the option of unmasking_of that varies along its curve, the other options)}. Another way is one entry here
WAYS = {
    REFERENCE: ('n_steps', {}),
    'lossless': ('window', {'unmask': 'lossless'}),
    'fixed': ('n_steps', {}),
    'cosine': ('n_steps', {'schedule': 'cosine'}),
    'binomial': ('n_steps', {'unmask': 'binomial'}),
    **{policy: ('n_steps', {'policy': policy}) for policy in SCORES},
    **{f'{policy} threshold': ('threshold', {'policy': policy}) for policy in PROBABILITIES},
}


def settings(checkpoint, values):
    """([(way, {option: value}, Unmasking)], {why: [way, ...] that are left out}) of a checkpoint.

    values   {'n_steps', 'window', 'threshold', 'blocks': [value, ...]}; without n_steps a sixteenth to a half of the
             tokens. A window holds at most all tokens. Margin has a way for each length of `blocks`. The curve of a
             policy begins at its own one token a step"""
    N, order, found, left_out = checkpoint.config.block_size, checkpoint.order.name, [], {}
    values = values | {
        'n_steps': values['n_steps'] or sorted({max(1, N // n) for n in (2, 4, 8, 16)}),
        'window': list(dict.fromkeys(min(window, N) for window in values['window'])),
    }
    blocks = {
        f'margin blocks of {n}': ('n_steps', {'policy': 'margin', 'block_length': n})
        for n in values['blocks']
    }
    for way, (option, others) in (WAYS | blocks).items():
        along = [N] if way == REFERENCE else values[option]
        if option == 'n_steps' and 'policy' in others:
            n_blocks = -(-N // others.get('block_length', N))  # each takes a pass at least
            along = dict.fromkeys([*(max(n, n_blocks) for n in along), N])
        of_way = [
            (way, {option: value}, unmasking_of(**{option: value}, **others)) for value in along
        ]
        try:
            for _, _, unmasking in of_way:
                if unmasking.adaptive and order != 'random':
                    raise ValueError(
                        f'the checkpoint was trained in the order {order} and knows no other'
                    )
                unmasking.check_network(checkpoint.config.slots, N)
            found += of_way
        except ValueError as e:
            left_out.setdefault(str(e), []).append(way)
    return found, left_out


class Frontier:
    """Held-out text, and samples under a judge, by every way of unmasking. Sample r is a function of seed + r."""

    def __init__(self, c, values, device, dtype):
        """c holds options of bench.py, and n_orders=1; values: see settings."""
        self.c, self.batch_size, self.device, self.dtype = (
            c,
            min(c.batch_size, c.n_samples),
            device,
            dtype,
        )
        self.checkpoint = checkpoint = Checkpoint(c.ckpt)
        self.drawing, self.journal = Drawing(c.temperature), Journal('', {})
        self.settings, self.left_out = settings(checkpoint, values)
        self.n_tokens, self.tokenizer = checkpoint.config.block_size, checkpoint.tokenizer
        name, data_dir = (c[key] or checkpoint.run.get(key, '') for key in ('dataset', 'data_dir'))
        self.text = (
            open_corpus(
                name,
                self.n_tokens,
                self.tokenizer,
                data_dir or 'data',
                n_blocks=c.n_blocks,
                ckpt=c.ckpt,
            )
            if name and c.temperature
            else None
        )
        self.anew = changed_since(checkpoint, data_dir or 'data', name)
        self.judge = open_judge(c.judge or c.ckpt, self.tokenizer)
        self.model = checkpoint.model(checkpoint.weights, device)
        with autocast(device, dtype):
            self.network = freeze(self.model)

    def order(self, unmasking):  # blocks, in which a policy chooses, are from left to right
        return (
            self.checkpoint.order
            if unmasking.block_length is None
            else Order.of('l2r', self.checkpoint.run)
        )

    def canvas(self, first, unmasking):
        """The blank canvas of the batch that begins with sample `first`."""
        blank = [0] * self.n_tokens, [False] * self.n_tokens
        return Canvas.of_texts(
            [blank] * min(self.batch_size, self.c.n_samples - first),
            self.order(unmasking),
            self.c.seed + first,
            self.device,
        )

    def likelihood(self, unmasking):
        """{'nats', 'cost', each with its error over blocks}, of the held-out text in float32.

        nats   nats a token by the law of this way of writing, which lossless has from one token a step
        cost   the nats less one token a step of the same order, block by block"""
        drawing = replace(self.drawing, scores=True)
        order = self.order(unmasking)
        policy, sequential = one_by_one(unmasking, self.n_tokens)
        how = self.c, self.checkpoint, (), policy
        law = sequential if isinstance(unmasking, Lossless) else unmasking
        one = Written(*how, Way(order, sequential, drawing))
        found = Written(*how, Way(order, law, drawing), one)
        (row,) = found.rows(found.measure(self.model, self.text, self.journal), self.text)
        return {
            'nats': row['nats_per_token'],
            'nats_error': row['stderr'],
            'cost': row['cost'],
            'cost_error': row['cost_stderr'],
        }

    def write(self, unmasking, name):
        """(samples, seconds, slots) of this way of unmasking. What a warm-up of a few tokens costs is not counted."""
        canvases = [
            self.canvas(first, unmasking) for first in range(0, self.c.n_samples, self.batch_size)
        ]
        warm_up, trunk = self.canvas(0, unmasking), CountedTrunk(self.network.trunk)
        warm_up.known = warm_up.first = warm_up.known + max(0, self.n_tokens - 8)
        with (
            autocast(self.device, self.dtype),
            progress(
                total=self.c.n_samples * self.n_tokens, unit='token', desc=name, leave=False
            ) as bar,
        ):

            def write_all():
                for canvas in canvases:
                    fill(self.network, canvas, unmasking, self.drawing, with_logprob=False, bar=bar)

            fill(self.network, warm_up, unmasking, self.drawing, with_logprob=False)
            self.network.trunk = trunk
            time = seconds(write_all, self.device, 1)
            self.network.trunk = trunk.trunk
        samples = [sample_of(*row, self.tokenizer) for canvas in canvases for row in canvas.lists()]
        return samples, time, int(trunk.n_slots)

    def point(self, way, setting, unmasking):
        """A dict: the way, its setting, and numbers; NAME_error is a standard error over samples.

        passes, tokens_per_pass    the passes that revealed a token of a sample, and what each revealed
        seconds, tokens_per_sec    generation of all samples; slots: of a token, without padding
        judge_nats                 nats a token under the judge, in float32, left to right
        nats, cost: see likelihood; entropy, distinct_2: see text_metrics"""
        samples, time, slots = self.write(unmasking, f'{way} {format_setting(setting)}')
        metrics, _ = measure(samples, self.tokenizer, self.judge, self.device)
        passes, n_tokens = (
            [sample['passes'] for sample in samples],
            sum(sample['blanks'] for sample in samples),
        )
        entropies = [
            text_metrics([sample['tokens']], [[True] * self.n_tokens])['entropy']
            for sample in samples
        ]
        return {
            'way': way,
            'setting': setting,
            **(self.likelihood(unmasking) if self.text else {}),
            'passes': statistics.fmean(passes),
            'passes_error': statistics.stdev(passes) / len(passes) ** 0.5,
            'samples': len(samples),
            'tokens_per_pass': n_tokens / sum(passes),
            'slots': slots / n_tokens,
            'seconds': time,
            'tokens_per_sec': n_tokens / time,
            'judge_nats': metrics['judge']['nats_per_token'],
            'judge_nats_error': metrics['judge']['stderr'],
            'entropy': metrics['entropy'],
            'entropy_error': statistics.stdev(entropies) / len(entropies) ** 0.5,
            'distinct_2': metrics['distinct_2'],
        }

    def measure(self, config, out=''):
        """Prints the table of all settings, a line as soon as it is there; the JSON file `out` has them too."""
        points, checkpoint, held_out = [], self.checkpoint, self.text and self.text.label
        result = {
            'config': config,
            'batch_size': self.batch_size,
            'order': checkpoint.order.entries,
            'tokens': self.n_tokens,
            'held_out': held_out,
            'judge': self.judge.name,
            'judge_tokenizer': self.judge.tokenizer.name,
            'device': str(self.device),
            'dtype': self.dtype,
            'torch': torch.__version__,
            'left_out': self.left_out,
            'reference': REFERENCE,
            'frontier': points,
        }
        order = checkpoint.order.name
        clues = ', given what the set gives' if self.text and self.text.given is not None else ''
        law = f'exact where the model chooses, in the order {order} a mean over orders, a bound'
        measured = (
            f'nats and cost: {held_out}, {len(self.text.blocks)} blocks{clues}, {law}'
            if held_out
            else 'neither nats nor cost: they want a '
            + ('--dataset' if self.c.temperature else 'temperature above 0')
        )
        measured += f'\n{self.anew}' if self.anew else ''
        left_out = ''.join(
            f'left out: {", ".join(ways)} ({why})\n' for why, ways in self.left_out.items()
        )
        print(
            f'{checkpoint.about(checkpoint.weights)}, {self.model.n_parameters():,} parameters, {self.device}, '
            f'{self.dtype}, torch {torch.__version__}\n{self.c.n_samples} samples of {self.n_tokens} '
            f'{self.tokenizer.name} tokens, {self.batch_size} at a time, order {order}, '
            f'temperature {self.c.temperature:g}, seed {self.c.seed}\n{measured}\nthe judge reads left to right: '
            f'{self.judge.name}, by {self.judge.tokenizer.name} tokens\n{left_out}\n'
            f'{"":<34}{"passes":>12}{"slots":>8}{"seconds":>8}{"nats a token":>14}{"cost":>15}{"judge":>14}'
            f'{"entropy":>14}',
            flush=True,
        )
        for way, setting, unmasking in self.settings:
            name = '' if points and points[-1]['way'] == way else way
            point = self.point(way, setting, unmasking)
            points.append(point)
            passes = figure(point['passes'], point['passes_error'], 1)
            nats, cost, judge, entropy = (
                figure(point[key], point[f'{key}_error'], 3) if key in point else ''
                for key in ('nats', 'cost', 'judge_nats', 'entropy')
            )
            print(
                f'{name:<20}{format_setting(setting):<14}{passes:>12}{point["slots"]:>8.1f}'
                f'{point["seconds"]:>8.2f}{nats:>14}{cost:>15}{judge:>14}{entropy:>14}',
                flush=True,
            )
            if out:
                write_json(out, result)
        if out:
            print(f'\nwritten: {out}')


def one_by_one(unmasking, n_tokens):
    """Return (its policy, the Unmasking that writes one token a step in the order of this one)."""
    if unmasking.adaptive:
        one = Adaptive(unmasking.score, n_tokens, block_length=unmasking.block_length)
        return unmasking.score, one
    return 'given', Given(n_tokens)


def format_setting(setting):
    return ', '.join(f'{option}={value:g}' for option, value in setting.items())
