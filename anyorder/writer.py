"""How does a program fill the blanks of a text, and ask how likely a part of it is? Text in, text
out."""

import os
import sys
from collections.abc import Collection
from dataclasses import fields, replace
from functools import cached_property, partial
from pkgutil import resolve_name

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.checkpoint import open_checkpoint
from anyorder.fast import freeze
from anyorder.generation.limits import check_allowed
from anyorder.generation.prompts import each, parse_prompts, read_pattern
from anyorder.generation.scroll import Text, scroll
from anyorder.generation.way import Page, Way, check_types
from anyorder.likelihood.conditional import logprobs_of_parts
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.terminal import progress
from anyorder.seeds import seeds_of
from anyorder.tokens.shown import shown_text
from anyorder.tokens.tokenizer import tokens_of
from configurator import check_choice

PAGE = [field.name for field in fields(Page)]
LENGTHS = 'anyorder.extras.lengths:choose_lengths'  # imported where a blank finds its length


class Filled(str):
    """A text whose blanks were filled.

    logprob  nats of all that was written, each token given the known ones when it was drawn, by the
             law in Drawing; not the log-probability of a text that was revised
    sample   the dict of its tokens, order, steps and log-probabilities, see Text.sample"""

    @property
    def top_logprobs(self):
        """What its sample says of the likeliest tokens, None unless asked for."""
        return self.sample.get('top_logprobs')


class Writer:
    """A trained model with its tokenizer, on its device.

    Programs and notebooks call infill, stream and logprob. Commands call what these are made of:
    way_and_page, read and samples. The weights are put into place when they are first needed."""

    def __init__(self, ckpt, weights=None, device='auto', dtype='float32', use_cache=True):
        """Open a checkpoint.

        ckpt      a path, hf:OWNER/REPO[/path.pt] or masked:FOLDER
        weights   'ema' or 'raw', by default the EMA if there is one
        device, dtype  as in sample.py
        use_cache  False runs every slot anew, up to rounding the same

        Raises ValueError when it is no checkpoint, or the device not there."""
        if weights is not None:
            check_choice('weights', weights, 'ema', 'raw')
        self.checkpoint = open_checkpoint(os.fspath(ckpt))
        self.weights = weights or self.checkpoint.weights
        self.use_cache = use_cache
        self.tokenizer = self.checkpoint.tokenizer
        if self.tokenizer.why_no_parts:
            print(
                f'a part of a text may be shown otherwise than it ends with {self.tokenizer.name}: '
                f'{self.tokenizer.why_no_parts}',
                file=sys.stderr,
            )
        self.block_size = self.checkpoint.config.block_size
        self.prefix = getattr(self.checkpoint.config, 'prefix', ())  # the model's, before each text
        self.columns = (self.checkpoint.set.shape or (0, 0))[1]  # of a row that is a grid
        self.device, self.dtype = resolve_device(device, dtype)
        self.autocast = partial(autocast, self.device, self.dtype)

    @cached_property
    def model(self):
        return self.checkpoint.model(self.weights, self.device)

    @cached_property
    def network(self):
        """The model, made faster for inference."""
        network = self.model
        # a decoder without its cache runs every slot anew, as it was trained
        if self.use_cache or not self.model.slots_class.cached:
            with self.autocast():  # the tables of AdaLN are products, too
                network = freeze(self.model, getattr(torch, self.dtype))
        return network

    def infill(self, prompt, n=None, way=None, page=None, seed=1337, batch_size=32, **options):
        """Fill the blanks of the prompt. Return a Filled or Rows; with n a list of n, or n times
        the rows. Of a list of prompts return a list.

            writer.infill('If [[6]] is true, [[..]] is returned.', order='margin', seed=1)

        prompt     [[n]] is n blank tokens, [[?]] as many as fit best between the texts around it,
                   [[2-12]] so of 2 to 12; [[/P/]], [[n/P/]] and [[2-12/P/]] match the regular
                   expression P; [[..]] is what is left of the length, and without a blank the text
                   is continued. Or an array (N,) or (rows, N) of tokens, in which -1 is a
                   blank. A line on stderr says what the tokenizer cannot spell, and that a space
                   before a blank is a token by itself; of [[=text]] it goes into the blank
        way        how the text is written, a Way; or its parts among the options: order, n_steps,
                   schedule, unmask, revise,
                   temperature, top_k, top_p, min_p, presence_penalty, cfg_scale, score
        page       what it is written on, a Page; or its fields among the options: length, context,
                   stop, allowed, blank_length, pattern
        seed       text r of all that is returned is a function of seed + r alone
        order      'own', as the model was trained; one of orders.ORDERS, as 'l2r'; FILE.py:NAME; a
                   list of positions; or the model's choice by one of scores.SCORES, as 'margin',
                   or by FILE.py:NAME, a score, and as 'margin/32:0.9+0.5' in blocks of 32, by
                   a threshold and with noise; or a rule of rules.RULES, as 'klass:0.9'
        n_steps    forward passes of a stretch, by default one for each token
        score      instead of writing, score the text of the blanks, each of which is [[=text]]
        top_logprobs  so many likeliest tokens of the law that wrote, for each token: see
                   top_logprobs of the Filled or the Rows
        pattern    what the whole text matches: a regular expression, or a Pattern"""
        way, page = self.way_and_page(way, page, options)
        n_each = 1 if n is None else n
        check_types({'n': n_each, 'batch_size': batch_size})
        if min(n_each, batch_size) < 1:
            raise ValueError(f'n and batch_size must be at least 1, got {n} and {batch_size}')
        prompts = prompts_of(prompt)
        is_text = any(isinstance(one, str) for one in prompts)
        # of rows n times all of them, an array (n, ...); of texts n of each, as lists
        numbers = np.tile(range(len(prompts)), n_each).tolist()
        if is_text:
            numbers.sort()
        texts = self.read(prompts, way, page, seed, numbers)
        samples = [*self.samples(texts, way, batch_size)]
        if not is_text:
            shape = np.shape(prompt)[:-1]
            return Rows(samples, shape if n is None else (n, *shape))
        found = [as_text(sample) for sample in samples]
        if n is not None:
            found = [found[i : i + n] for i in range(0, len(found), n)]
        return found[0] if isinstance(prompt, str) else found

    def stream(self, prompt, way=None, page=None, seed=1337, **options):
        """Yield after each forward pass a str, the text with dots for blanks, and at the end what
        infill gives."""
        if not isinstance(prompt, str):
            raise ValueError(f'stream writes one text: give it a str, got {prompt!r:.60}')
        way, page = self.way_and_page(way, page, options)
        (text,) = self.read([prompt], way, page, seed, [0])
        for _ in self.write([text], way, is_seen=True):
            tokens, *_ = text.seen()
            yield shown_text(tokens, self.tokenizer, 0)
        yield as_text(text.sample())

    def way_and_page(self, way, page, options):
        """Return the Way and the Page that infill's arguments name."""
        of_way = dict(options)
        of_page = {name: of_way.pop(name) for name in PAGE if name in options}
        if way is None:
            if of_way.get('n_steps') is None:
                of_way['n_steps'] = self.block_size
            way = Way.of(self.checkpoint.run, **of_way)
        elif of_way:
            raise ValueError(f'way has parts of its own: leave out {", ".join(of_way)}')
        page = replace(page or Page(), **of_page)
        page.check(self.checkpoint)
        pattern = read_pattern(page.pattern)
        return way, replace(page, stop=self.stops(page.stop), pattern=pattern)

    def stops(self, stop):
        """Return the stops in a text or a list of texts, as they are decoded.

        Tokens of one's own may be written in more ways, as the end of a document is. Raises
        ValueError for a text that the model never writes."""
        if isinstance(stop, str):
            stop = [stop] if stop else []
        decoded = []
        for one in stop:
            spans = self.tokenizer.shown_spans(one) if isinstance(one, str) else []
            if not spans or self.tokenizer.unspelt(one, spans):
                raise ValueError(
                    f'stop must be a text, or a list of texts, that {self.tokenizer.name} can '
                    f'write, got {one!r:.60}: leave out what is empty'
                )
            if self.tokenizer.separator:
                one = self.tokenizer.decode(tokens_of(spans))
            decoded.append(one)
        return decoded

    def read(self, prompts, way, page, seed, numbers):
        """Return the Text of each that is to be written, its blanks with their lengths, checked
        before any work.

        Text r is of prompt numbers[r], and a function of seed + r, or, if `seed` is a list, of
        seed[r].

        Raises ValueError for what fits neither the model nor the way; to be scored all blanks must
        have a text."""
        n_row = self.checkpoint.set.row_length or 0
        length = page.length or n_row or self.block_size
        templates = parse_prompts(prompts, self.tokenizer, length, self.prefix, page.pattern)
        for prompt, template in zip(prompts, templates):
            n = len(template)
            if n < n_row and not isinstance(prompt, str):
                raise ValueError(f'the rows of this model have {n_row} tokens, got a row of {n}')
        check_templates(templates, way, page, self.checkpoint.config)
        templates = [templates[number] for number in numbers]
        seeds = seeds_of(seed, len(templates))
        if any(template.unknown for template in templates):
            chosen = resolve_name(LENGTHS)(self.network, templates, seeds, page.blank_length)
            bar = progress(chosen, total=len(templates), unit='text', desc='lengths', leave=False)
            with self.autocast():
                templates = [*bar]

        # What may stand in the blanks, whose lengths are found: a scored text is there already
        check_allowed(page.allowed, max(map(len, templates)), self.tokenizer.n_tokens)
        for number, template in dict.fromkeys(zip(numbers, templates)):
            is_there = way.drawing.forced | template.is_known
            which = f'prompt {1 + number} of {len(prompts)}'
            for start, end, pattern in template.patterns:
                tokens = np.where(is_there, template.tokens, -1)[start:end]
                pattern.check(tokens.tolist(), self.tokenizer, which)
        rows = zip(templates, seeds)
        return [Text(*row, page, self.checkpoint, r) for r, row in enumerate(rows)]

    def logprob(self, prompt, n_orders=0, seed=1337, order='l2r', **options):
        """Return log p(A | B) in nats of two parts of a text: A is all [[=text]] of the prompt, B
        the text around them.

            writer.logprob('The [[=value]] is returned')
            writer.logprob('The [[=value]] is [[=returned]]', order='margin', n_steps=4)

        What stands in blanks [[n]] is in neither. A is read from left to right. Each order gives
        another value, exact for that order by the chain rule. With n_orders the probabilities under
        so many random orders, a function of the seed, are averaged, see
        likelihood.conditional_logprob. Of a list of prompts a list, prompt r by seed + r.

        With another order, or any of infill's other options, it is log p of A as infill with these
        would write it. All that is not B must then be in A."""
        check_types({'n_orders': n_orders})
        is_l2r = isinstance(order, str) and order == 'l2r'
        is_plain = is_l2r and not options
        if n_orders < 0 or n_orders and not is_plain:
            raise ValueError(
                'n_orders is 0, left to right alone, or how many orders are drawn, and then leave '
                f'out order and the options behind it, got {n_orders}'
            )
        if is_plain:
            found = self.conditional(prompt, n_orders, seed)
            return found[0] if isinstance(prompt, str) else found
        if options.get('way') is None or not is_l2r:
            options |= {'order': order, 'score': True}
        else:  # which has an order
            options['way'] = options['way'].to_score
        found = self.infill(prompt, None, seed=seed, **options)
        return found.logprob if isinstance(prompt, str) else [text.logprob for text in found]

    def conditional(self, prompt, n_orders, seed):
        """Return [log p] of the [[=text]] of each prompt given its other text, see logprob."""
        texts = parse_prompts(prompts_of(prompt), self.tokenizer, self.block_size, self.prefix)
        rows = []
        for text, own in zip(texts, seeds_of(seed, len(texts))):
            if text.unknown or text.patterns or 'answer' not in text.kinds:
                raise ValueError(
                    'logprob scores the text that is written as [[=text]], beside which are blanks '
                    'of known lengths without a pattern: write [[n]] in place of [[?]] and '
                    '[[/pattern/]]'
                )
            of_kinds = [np.flatnonzero(text.kinds == kind) for kind in ('given', 'answer')]
            rows.append((text.tokens, *of_kinds, own))
        with self.autocast():
            return [*map(float, logprobs_of_parts(self.network, rows, n_orders))]

    def samples(self, texts, way, batch_size, watch=None):
        """Write texts of `read` in batches. Yield the sample of each, see Text.sample.

        A Watch is shown the first text of each batch after each of its steps."""
        n_blanks = sum(int(text.is_blank.sum()) for text in texts)
        is_seen = watch is not None
        with progress(total=n_blanks, unit='token', leave=False, disable=is_seen) as bar:
            for r in range(0, len(texts), batch_size):
                batch = texts[r : r + batch_size]
                step = -1  # the last one that was shown
                for n_new in self.write(batch, way, is_seen):
                    bar.update(n_new)
                    if is_seen and batch[0].last_step > step:
                        step = batch[0].last_step
                        watch(*batch[0].seen())
                yield from map(Text.sample, batch)

    def write(self, texts, way, is_seen=False):
        """Write texts of `read`. Yield after each step the number of tokens that it revealed, see
        scroll."""
        steps = scroll(texts, self.network, way, self.use_cache, is_seen)
        # autocast ends with each step: between two a caller may write another text
        step = self.autocast()(lambda: next(steps, None))
        yield from iter(step, None)


def check_templates(templates, way, page, config):
    """Raise ValueError for Templates that a model of this config cannot write in this way on this
    page, or cannot score.

    Where the rules stand:
    of one thing alone             in its class, as Template, Drawing, Order, Given
    of a way and a model           Way.check
    of a page and a model          Page.check
    of what is asked for together  here
    of lengths that are found      Writer.read"""
    forced = way.drawing.forced
    if page.stop and (forced or way.unmasking.revise):
        raise ValueError(
            'a text is scored, and revised, as a whole: leave out stop, or else score and revise'
        )
    if all(template.is_known.all() for template in templates):
        raise ValueError('there is no blank to write or score in the prompt')
    for n in {min(len(template), config.block_size) for template in templates}:
        way.order.check(n, config.block_size)
    matches = any(template.patterns for template in templates)
    way.check(config, matches, forced)

    def check(template):
        if forced and not np.isin(template.kinds, ('given', 'answer')).all():
            raise ValueError(
                'a score by steps wants the text of every blank: [[=text]] in place of [[n]], '
                '[[?]], ...'
            )
        # On a second canvas what was written on the first one would count as the prompt
        N = config.block_size
        is_whole = template.longest <= N and len(template.sections(page.stop)) == 1
        if way.drawing.cfg_scale and not is_whole:
            raise ValueError(
                f'cfg_scale wants a text that is written as a whole: of at most {N} tokens with '
                f'what is to be written, got {template.longest}; and leave out stop where text '
                'stands behind a [[..]]'
            )
        has_whole = page.pattern is not None
        if has_whole and any(piece.pattern for piece in template.pieces):
            raise ValueError(
                'a text has a pattern as a whole, or in its blanks: leave out pattern, or write '
                '[[n]] in place of [[/pattern/]]'
            )
        if page.stop and template.patterns and (has_whole or not template.open):
            raise ValueError(
                'a stop would cut what is to match a pattern: leave out stop, or write the pattern '
                'as [[/pattern/]] beside a [[..]], which alone is searched for the stop'
            )

    each(check, templates)


def prompts_of(prompt):
    """Return the list of prompts in a text, a list or a column of texts, or rows (N,) or (rows, N)
    of integers."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, Collection) and any(isinstance(one, str) for one in prompt):
        return [*prompt]
    try:
        prompts = [*np.atleast_2d(prompt)]
    except ValueError:  # rows of several lengths
        prompts = []
    if not prompts:
        raise ValueError(
            'there must be a prompt: a text, a list of texts, or rows (rows, N) of one length, got '
            f'{prompt!r:.60}'
        )
    return prompts


class Rows(np.ndarray):
    """Rows (..., N) that were written, integers. A row that ended early is filled up with -1.

    logprob  (...) nats of all that was written, as of a Filled; None of a part of the rows
    samples  the dict of each row, see Text.sample"""

    logprob = None
    samples = ()

    @property
    def top_logprobs(self):
        """[rows] as of a Filled; None of a part of the rows."""
        return [sample.get('top_logprobs') for sample in self.samples] or None

    def __new__(cls, samples, shape):
        rows = as_rows(samples).reshape(*shape, -1).view(cls)
        nats = np.array([sample['nats'] for sample in samples])
        rows.samples = samples
        rows.logprob = -nats.reshape(shape)
        return rows


def as_rows(samples):
    """Return (n, N) the tokens of samples, -1 behind the end of shorter ones."""
    rows = [torch.tensor(sample['tokens'], dtype=torch.long) for sample in samples]
    return pad_sequence(rows, batch_first=True, padding_value=-1).numpy()


def as_text(sample):
    text = Filled(sample['text'])
    text.logprob = -sample['nats']
    text.sample = sample
    return text
