"""
What do fewer passes cost? Every way of unmasking at several settings: its passes and seconds, and how good its text is.
"""
import statistics

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas, sample_of
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, steps
from anyorder.generation.unmasking import PROBABILITIES, SCORES, Unmasking
from anyorder.likelihood.judge import distinct_2_error, measure, open_judge, text_metrics
from anyorder.likelihood.tables import figure
from anyorder.machine.devices import autocast, seconds
from anyorder.machine.files import write_json
from anyorder.machine.terminal import progress
from anyorder.orders import name_of

REFERENCE = 'one token a step'
# {way: (the option of Unmasking that varies along its curve, the other options)}. Another way is one entry here
WAYS = {REFERENCE: ('n_steps', {}),
        'lossless': ('window', {'unmask': 'lossless'}),
        'fixed': ('n_steps', {}),
        'cosine': ('n_steps', {'schedule': 'cosine'}),
        'binomial': ('n_steps', {'unmask': 'binomial'}),
        **{policy: ('n_steps', {'policy': policy}) for policy in SCORES},
        **{f'{policy} threshold': ('threshold', {'policy': policy}) for policy in PROBABILITIES}}


def settings(checkpoint, values):
    """([(way, {option: value}, Unmasking)], {why: [way, ...] that are left out}) of a checkpoint.

    values   {'n_steps', 'window', 'threshold': [value, ...]}; without n_steps a sixteenth to a half of the tokens. A
             window holds at most all tokens"""
    N, order, found, left_out = checkpoint.config.block_size, name_of(checkpoint.order), [], {}
    values = values | {'n_steps': values['n_steps'] or sorted({max(1, N // n) for n in (2, 4, 8, 16)}),
                       'window': list(dict.fromkeys(min(window, N) for window in values['window']))}
    for way, (option, others) in WAYS.items():
        along = [N] if way == REFERENCE else values[option]
        of_way = [(way, {option: value}, Unmasking(**{option: value}, **others)) for value in along]
        try:
            for _, _, unmasking in of_way:
                if unmasking.adaptive and order != 'random':
                    raise ValueError(f'the checkpoint was trained in the order {order} and knows no other')
                unmasking.check_network(checkpoint.config.slots, N)
            found += of_way
        except ValueError as e:
            left_out.setdefault(str(e), []).append(way)
    return found, left_out


class Frontier:
    """The samples of a checkpoint by every way of unmasking, under a judge. Sample r is a function of seed + r."""

    def __init__(self, ckpt, judge, values, temperature, n_samples, batch_size, seed, device, dtype):
        """ckpt and judge are names, see open_judge; '' is the model itself as the judge. values: see settings."""
        self.drawing, self.n_samples, self.seed = Drawing(temperature), n_samples, seed
        self.batch_size = min(batch_size, n_samples)
        self.device, self.dtype, self.checkpoint = device, dtype, Checkpoint(ckpt)
        self.settings, self.left_out = settings(self.checkpoint, values)
        self.n_tokens, self.tokenizer = self.checkpoint.config.block_size, self.checkpoint.tokenizer
        self.judge = open_judge(judge or ckpt)
        self.model = self.checkpoint.model(self.checkpoint.weights, device)
        with autocast(device, dtype):
            self.network = freeze(self.model)

    def canvas(self, first):
        """The blank canvas of the batch that begins with sample `first`."""
        blank = [0] * self.n_tokens, [False] * self.n_tokens
        return Canvas.of_texts([blank] * min(self.batch_size, self.n_samples - first), self.checkpoint.order,
                               self.seed + first, self.device)

    def write(self, unmasking, name):
        """(samples, seconds) of this way of unmasking. Only the writing is timed, after a warm-up of a few tokens."""
        canvases = [self.canvas(first) for first in range(0, self.n_samples, self.batch_size)]
        warm_up = self.canvas(0)
        warm_up.known = warm_up.known + max(0, self.n_tokens - 8)
        with (autocast(self.device, self.dtype),
              progress(total=self.n_samples * self.n_tokens, unit='token', desc=name, leave=False) as bar):
            def write_all():
                for canvas in canvases:
                    for _, n_new, _ in steps(self.network, canvas, unmasking, self.drawing, with_logprob=False):
                        bar.update(int(n_new.sum()))
            fill(self.network, warm_up, unmasking, self.drawing, with_logprob=False)
            time = seconds(write_all, self.device, 1)
        return [sample_of(*row, self.tokenizer) for canvas in canvases for row in canvas.lists()], time

    def point(self, way, setting, unmasking):
        """A dict: the way, its setting, and numbers. NAME_error is a standard error over samples.

        passes, tokens_per_pass    the passes that revealed a token of a sample, and what each revealed
        seconds, tokens_per_sec    generation of all samples
        judge_nats                 nats a token under the judge, in float32, left to right
        entropy, distinct_2        see text_metrics"""
        samples, time = self.write(unmasking, f'{way} {format_setting(setting)}')
        metrics, _ = measure(samples, self.tokenizer, self.judge, self.device)
        passes, n_tokens = [sample['passes'] for sample in samples], sum(sample['blanks'] for sample in samples)
        entropies = [text_metrics([sample['tokens']], [[True] * self.n_tokens])['entropy'] for sample in samples]
        return {'way': way, 'setting': setting, 'samples': len(samples),
                'passes': statistics.fmean(passes), 'passes_error': statistics.stdev(passes) / len(passes) ** 0.5,
                'tokens_per_pass': n_tokens / sum(passes), 'seconds': time, 'tokens_per_sec': n_tokens / time,
                'judge_nats': metrics['judge']['nats_per_token'], 'judge_nats_error': metrics['judge']['stderr'],
                'entropy': metrics['entropy'], 'entropy_error': statistics.stdev(entropies) / len(entropies) ** 0.5,
                'distinct_2': metrics['distinct_2'],
                'distinct_2_error': distinct_2_error([sample['tokens'] for sample in samples])}

    def measure(self, config, out=''):
        """Prints the table of all settings, a line as soon as it is there; the JSON file `out` has them too."""
        points = []
        result = {'config': config, 'batch_size': self.batch_size, 'order': self.checkpoint.order,
                  'tokens': self.n_tokens, 'judge': self.judge.name, 'judge_tokenizer': self.judge.tokenizer.name,
                  'device': str(self.device), 'dtype': self.dtype, 'torch': torch.__version__,
                  'left_out': self.left_out, 'reference': REFERENCE, 'frontier': points}
        left_out = ''.join(f"left out: {', '.join(ways)} ({why})\n" for why, ways in self.left_out.items())
        print(f'{self.checkpoint.about(self.checkpoint.weights)}, {self.model.n_parameters():,} parameters, '
              f'{self.device}, {self.dtype}, torch {torch.__version__}\n'
              f'{self.n_samples} samples of {self.n_tokens} {self.tokenizer.name} tokens, {self.batch_size} at a time, '
              f'order {name_of(self.checkpoint.order)}, temperature {self.drawing.temperature:g}, seed {self.seed}\n'
              f'the judge reads left to right: {self.judge.name}, by {self.judge.tokenizer.name} tokens\n'
              f'{left_out}\n{HEAD}', flush=True)
        for way, setting, unmasking in self.settings:
            name = '' if points and points[-1]['way'] == way else way
            points.append(self.point(way, setting, unmasking))
            print(format_point(points[-1], name), flush=True)
            if out:
                write_json(out, result)
        if out:
            print(f'\nwritten: {out}')


HEAD = (f"{'':<33}{'passes':>13}{'tokens/pass':>12}{'seconds':>9}{'tokens/s':>9}{'nats a token':>15}{'entropy':>15}"
        f"{'distinct-2':>14}")


def format_point(point, name):
    """The line of the table under HEAD of a point, whose way is called `name` there."""
    passes = figure(point['passes'], point['passes_error'], 1)
    nats, entropy, distinct = (figure(point[key], point[f'{key}_error'], 3)
                               for key in ('judge_nats', 'entropy', 'distinct_2'))
    return (f"{name:<19}{format_setting(point['setting']):<14}{passes:>13}{point['tokens_per_pass']:>12.2f}"
            f"{point['seconds']:>9.2f}{point['tokens_per_sec']:>9,.0f}{nats:>15}{entropy:>15}{distinct:>14}")


def format_setting(setting):
    return ', '.join(f'{option}={value:g}' for option, value in setting.items())
