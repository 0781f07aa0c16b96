"""Which texts did a model write itself, and by which draws? Those of a FILE.json of sample.py.

A text x is drawn in two parts: first a draw r, which its seed fixes alone, then the tokens given r.
The draw is all that is by chance and is no token: the order, how many tokens each step reveals,
noise on the scores. Hence the file knows one draw from p(r | x), the one that wrote the text."""

import hashlib
import json
from dataclasses import dataclass, replace

from anyorder.generation import Lossless, unmasking_of
from anyorder.generation.way import Way
from anyorder.machine.files import read_text, reading

ENDING = '.json'
ONE_BY_ONE = 2**31  # passes: more than a text has tokens
OF_CUT = 'in most other orders it would cut the text, whose probability is 0 there'
# what a file says of its samples, most of it options of sample.py, and the types
NEEDED = {
    'dtype': str,
    'ckpt': str,
    'weights': str,
    'order': str,
    'n_steps': int,
    'schedule': str,
    'unmask': str,
    'temperature': int | float,
}
# options of sample.py that leave a text without a likelihood, and why
REFUSED = {
    'score': 'its texts were scored, and the model did not write them',
    'revise': 'tokens that were written over are not in the file',
    'stop': 'what was written behind a stop is not in the file',
    'allowed': 'the file does not say which tokens may stand where',
    'top_k': OF_CUT,
    'top_p': OF_CUT,
    'min_p': OF_CUT,
}


@dataclass(frozen=True)
class Sampled:
    """Texts that a model wrote.

    path     of the file
    sha256   of what it holds
    entries  all of it but the samples, see report.begin_result
    samples  a dict of each text, see canvas.sample_of, and its seed"""

    path: str
    sha256: str
    entries: dict
    samples: list

    @classmethod
    def read(cls, path):
        """Read the file of sample.py. Raises ValueError for a file of anything else."""
        way_out = f'sample.py --out=FILE{ENDING} writes one'
        with reading(path, 'texts with the orders that wrote them', way_out):
            text = read_text(path)
            entries = json.loads(text)
            samples = entries.pop('samples')
            if not samples or not has_options(entries):
                raise ValueError('no samples with their options')
            if not all(map(is_written, samples)):
                raise ValueError('no order')
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        return cls(path, sha256, entries, samples)

    def spread(self, n):
        """Return n of the texts, spread evenly, or all of them if there are no more, or n is 0."""
        n_all = len(self.samples)
        n = min(n, n_all) or n_all
        chosen = [self.samples[i * n_all // n] for i in range(n)]
        return replace(self, samples=chosen)

    def check_tokens(self, tokenizer, most):
        """Raise ValueError unless a model of this tokenizer and of `most` positions wrote them."""
        tokens = [sample['tokens'] for sample in self.samples]
        largest = max(map(max, tokens))
        longest = max(map(len, tokens))
        kind = self.entries.get('tokenizer')
        if kind != tokenizer.name or largest >= tokenizer.n_tokens:
            raise ValueError(
                f'{self.path} holds {kind} tokens up to {largest}, the model has '
                f'{tokenizer.n_tokens} {tokenizer.name} tokens: name the checkpoint that wrote it'
            )
        if longest > most:
            raise ValueError(
                f'{self.path} has a text of {longest} tokens, and a block has {most}: write '
                f'texts of at most {most} tokens, which are one stretch'
            )

    def check(self, checkpoint, weights):
        """Raise ValueError unless this model wrote the texts, and a draw of it gives each text a
        likelihood. Where nothing is drawn the likelihood is exact, and another command has it."""
        config = self.entries['config']
        iter_num = checkpoint.entries.get('iter_num')
        if (self.entries.get('iter_num'), config['weights']) != (iter_num, weights):
            raise self.of_another()
        self.check_options()
        way = self.way(checkpoint)
        if way.unmasking.has_bound:
            raise ValueError(
                f'{self.path} was written in order={config["order"]}, which chooses by tokens that '
                f'are not in the file: {command_of(config)} measures a bound'
            )
        if not is_drawn(way):
            raise ValueError(
                f'{self.path} was written in order={config["order"]}, which draws nothing but '
                f'tokens, so that each text has one exact likelihood: {command_of(config)} '
                'measures it'
            )

    def check_options(self):
        """Raise ValueError if the texts were written by options that leave them no likelihood."""
        config = self.entries['config']
        for name, why in REFUSED.items():
            value = config.get(name)
            is_whole = name == 'top_p' and value == 1
            if value and not is_whole:
                raise ValueError(
                    f'{self.path} was written with {name}={value!r:.40}: {why}; write texts '
                    f'without {name}'
                )
        if any('log_weight' in sample for sample in self.samples):
            raise ValueError(
                f'{self.path} holds texts that match a pattern, whose law is not measured here: '
                'write texts without one'
            )

    def law(self, checkpoint):
        """Return the Way by which this model writes the texts, to score them.

        Lossless unmasking has the law of one token a step."""
        way = self.way(checkpoint)
        if isinstance(way.unmasking, Lossless):
            way = replace(way, unmasking=unmasking_of(n_steps=ONE_BY_ONE))
        return way

    def way(self, checkpoint):
        """Return the Way that the options of sample.py name, to score."""
        config = self.entries['config']
        order = config['order']
        if isinstance(self.entries['order'], list):  # the positions of a file
            order = self.entries['order']
        if '.py:' in order:
            raise ValueError(
                f'{self.path} was written in order={order}: a file of samples runs no code; write '
                'texts in another order'
            )
        names = ('n_steps', 'schedule', 'unmask', 'temperature', 'presence_penalty', 'cfg_scale')
        options = {name: config[name] for name in names if name in config}
        return Way.of(checkpoint.run, order, score=True, **options)

    @property
    def said(self):
        """How the texts were written, in words."""
        config = self.entries['config']
        said = f'order={config["order"]}, n_steps={config["n_steps"]}, unmask={config["unmask"]}'
        if config['temperature'] != 1:
            said += f', temperature={config["temperature"]:g}'
        for name in ('presence_penalty', 'cfg_scale'):
            if config.get(name):
                said += f', {name}={config[name]:g}'
        return said

    def of_another(self):
        """Return the ValueError that says that another model wrote the texts."""
        config = self.entries['config']
        return ValueError(
            f'{self.path} was written by other weights: name them as --ckpt={config["ckpt"]} '
            f'--weights={config["weights"]}, of iteration {self.entries.get("iter_num")}'
        )


def is_sampled(name):
    """Return whether a data set of this name is a file of samples."""
    return name.lower().endswith(ENDING)


def has_options(entries):
    """Return whether the entries of a file say how its samples were written."""
    known = entries | entries['config']
    return all(isinstance(known[name], kind) for name, kind in NEEDED.items())


def is_written(sample):
    """Return whether a sample says what was written, in which order and by which seed."""
    tokens = sample['tokens']
    steps = sample['step']
    numbers = [*tokens, *steps, sample['seed'], sample['blanks']]
    if {*map(type, numbers)} != {int} or type(sample['nats']) is not float:
        return False
    if len(steps) != len(tokens) or min(tokens) < 0:
        return False
    is_permutation = sorted(sample['order']) == list(range(len(tokens)))
    n_blanks = sum(step >= 0 for step in steps)
    return is_permutation and n_blanks == sample['blanks'] > 0


def text_of(sample):
    """Return (tokens, is_known) of a sample: which of them were known from the start."""
    return sample['tokens'], [step < 0 for step in sample['step']]


def is_drawn(way):
    """Return whether a Way draws anything but tokens; among equal scores an order decides."""
    unmasking = way.unmasking
    if unmasking.binomial or getattr(unmasking, 'noise', 0):
        return True
    return not unmasking.adaptive and way.order.drawn and way.order.law != 'one'


def command_of(config):
    """Return in words how the likelihood of texts of these options is measured without draws."""
    changed = config.get('presence_penalty') or config.get('cfg_scale')
    if config['schedule'] != 'linear' or changed:
        return 'sample.py --score, with the same options,'
    n_steps = config['n_steps']
    if config['unmask'] != 'fixed':  # lossless, of the law of one token a step
        n_steps = 0
    return f'--orders={config["order"]} --n_steps={n_steps}'
