"""How does a program fill the blanks of a text, and ask how likely a part of it is? Text in, text
out."""

import os
import sys
from collections.abc import Collection
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.checkpoint import open_checkpoint
from anyorder.fast import freeze
from anyorder.generation.constraint import check_allowed
from anyorder.generation.fill import check_turns
from anyorder.generation.revise import Revised
from anyorder.generation.scroll import Row, Scroll, check_at_once
from anyorder.generation.way import Page, Way
from anyorder.likelihood.conditional import conditional_logprob
from anyorder.likelihood.lengths import Lengths
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.terminal import progress
from anyorder.seeds import seeds_of
from anyorder.tokens.prompts import has_pattern, has_rest, parse_prompts, read_pattern
from anyorder.tokens.shown import shown_text

PAGE = [field.name for field in fields(Page)]
WRONG_STOP = 'stop must be a text or a list of texts, got {!r:.60}: leave out what is empty'


class LaidOut(NamedTuple):
    """A prompt whose blanks have their lengths."""

    tokens: list  # what stands in blanks means nothing
    known: list  # of bools
    open_blanks: list  # [start, end] of each [[..]]
    lengths: list  # what its sample says of the [[?]]
    patterns: list  # (start, end, Pattern) of each part that matches one


class Text(str):
    """A text that was written.

    logprob  nats of all that was written, each token given the known ones when it was drawn, by the
             law in Drawing; not the log-probability of a text that was revised
    sample   the dict of its tokens, order, steps and log-probabilities, see Scroll.samples
    top_logprobs  what it says of the likeliest tokens, None unless asked for"""


class Writer:
    """A trained model with its tokenizer, on its device.

    Programs and notebooks call infill, stream and logprob. Commands call what these are made of:
    templates, lay_out, scrolls and write. The weights are put into place when they are first
    needed."""

    def __init__(self, ckpt, weights=None, device='auto', dtype='float32', use_cache=True):
        """Open a checkpoint.

        ckpt      a path, hf:OWNER/REPO[/path.pt] or masked:FOLDER
        weights   'ema' or 'raw', by default the EMA if there is one; the others are as in sample.py

        Raises ValueError when it is no checkpoint, or the device not there."""
        if weights not in (None, 'ema', 'raw'):
            raise ValueError(f"weights must be 'ema' or 'raw', got {weights!r}")
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
        self.columns = (self.checkpoint.set.get('shape') or (0, 0))[1]  # of a row that is a grid
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
        if self.use_cache or not self.model.slots.cached:
            with self.autocast():  # the tables of AdaLN are products, too
                network = freeze(self.model, getattr(torch, self.dtype))
        return network

    def infill(self, prompt, n=None, way=None, page=None, seed=1337, batch_size=32, **options):
        """Fill the blanks of the prompt. Return a Text or Rows; with n a list of n, or n times the
        rows. Of a list of prompts return a list.

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
                   top_logprobs of the Text or the Rows
        pattern    what the whole text matches: a regular expression, or a Pattern"""
        way, page = self.asked(way, page, options)
        if n is not None and n < 1 or batch_size < 1:
            raise ValueError(f'n and batch_size must be at least 1, got {n} and {batch_size}')
        texts = self.read(prompt, way, page, n or 1, seed)
        n_blanks = sum(text.known.count(False) for text in texts)
        found = []
        with progress(total=n_blanks, unit='token', leave=False) as bar:
            for scroll in self.scrolls(texts, seed, batch_size, page):
                for n_new in self.write(scroll, way):
                    bar.update(n_new)
                found += scroll.samples()
        return as_asked(found, prompt, n)

    def stream(self, prompt, way=None, page=None, seed=1337, **options):
        """Yield after each forward pass a str, the text with dots for blanks, and at the end what
        infill gives."""
        if not isinstance(prompt, str) or options.pop('n', None) is not None:
            raise ValueError('stream writes one text: give it a str, and leave out n')
        options.pop('batch_size', None)
        way, page = self.asked(way, page, options)
        texts = self.read(prompt, way, page, 1, seed)
        (scroll,) = self.scrolls(texts, seed, 1, page)
        for _ in self.write(scroll, way):
            tokens, steps, *_ = scroll.first()
            seen = [None if step is None else token for token, step in zip(tokens, steps)]
            yield shown_text(seen, self.tokenizer, 0)
        yield as_text(*scroll.samples())

    def asked(self, way, page, options):
        """Return the Way and the Page that infill's arguments name."""
        of_page = {name: options[name] for name in PAGE if name in options}
        of_way = {name: value for name, value in options.items() if name not in of_page}
        for name, whole, parts in (('way', way, of_way), ('page', page, of_page)):
            if whole is not None and parts:
                raise ValueError(f'{min(parts)} is a part of {name}: leave out one of them')
        if way is None:
            if of_way.get('n_steps') is None:
                of_way['n_steps'] = self.block_size
            way = Way.of(self.checkpoint.run, **of_way)
        return way, self.with_decoded_stops(page or Page(**of_page))

    def with_decoded_stops(self, page):
        """Return the page, checked, with its stops as this model's tokens are decoded, and its
        Pattern."""
        page.check(self.block_size, self.checkpoint.config.n_real)
        return replace(page, stop=self.stops(page.stop), pattern=read_pattern(page.pattern))

    def read(self, prompt, way, page, n, seed):
        """Return the texts of infill's prompt, laid out; n of each text, or n times all rows."""
        prompts = prompts_of(prompt)
        templates = self.templates(prompts, way, page)
        if isinstance(prompts[0], str):
            templates = [template for template in templates for _ in range(n)]
        else:
            templates = templates * n
        return self.lay_out(templates, seed, Lengths(page.blank_length))

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
        if 'n' in options or 'score' in options:
            raise ValueError('logprob scores each text once: leave out n and score')
        if n_orders < 0:
            raise ValueError(
                f'n_orders must be at least 0 (0 is left to right alone), got {n_orders}'
            )
        stepwise = order != 'l2r' or bool(options)
        if stepwise and n_orders:
            raise ValueError(
                'n_orders draws orders of its own: leave it out, or order and the options behind it'
            )
        if stepwise:
            found = self.scored(prompt, order, seed, options)
        else:
            found = self.conditional(prompt, n_orders, seed)
        return found[0] if isinstance(prompt, str) else found

    def scored(self, prompt, order, seed, options):
        """Return [log p] of each prompt as infill with these options writes it."""
        way = options.pop('way', None)
        if way is None:
            found = self.infill(prompt, order=order, seed=seed, score=True, **options)
        elif order == 'l2r':
            found = self.infill(prompt, way=way.to_score, seed=seed, **options)
        else:
            raise ValueError('order is a part of way: leave out one of them')
        if isinstance(prompt, str):
            return [found.logprob]
        return [text.logprob for text in found]

    def conditional(self, prompt, n_orders, seed):
        """Return [log p] of the [[=text]] of each prompt given its other text, see logprob."""
        templates = parse_prompts(prompts_of(prompt), self.tokenizer, self.block_size, self.prefix)
        if any(template.unknown or template.matching for template in templates):
            raise ValueError(
                'a text that is scored has blanks of known lengths without a pattern: write [[n]] '
                'in place of [[?]] and [[/pattern/]]'
            )
        parsed = [template.lay_out()[:3] for template in templates]
        if not all(any(answer) for _, _, answer in parsed):
            raise ValueError(
                'logprob wants to know which part of the text it is to score: write it as [[=text]]'
            )
        nats = []
        with self.autocast():
            for (tokens, known, answer), own in zip(
                parsed, seeds_of(seed, len(parsed)), strict=True
            ):
                idx = torch.tensor([tokens], device=self.device)
                given = torch.tensor(known).nonzero()
                part = torch.tensor(answer).nonzero()
                logp = conditional_logprob(self.network, idx, part, given, n_orders, seed=own)
                nats.append(float(logp))
        return nats

    def templates(self, prompts, way, page):
        """Return the Templates of prompts, checked before any work.

        Raises ValueError for what fits neither the model nor the way; to be scored all blanks must
        have a text."""
        if page.stop and (way.drawing.scores or isinstance(way.unmasking, Revised)):
            raise ValueError(
                'a text is scored, and revised, as a whole: leave out stop, or else score and '
                'revise'
            )
        check_patterns(prompts, way.unmasking, page)
        n_row = self.checkpoint.set.get('row_length')
        length = page.length or n_row or self.block_size
        templates = parse_prompts(prompts, self.tokenizer, length, self.prefix, page.pattern)
        parsed = [template.lay_out()[:3] for template in templates]
        lengths = [
            template.length if template.unknown else len(tokens)
            for template, (tokens, _, _) in zip(templates, parsed)
        ]
        if n_row:
            check_rows(prompts, lengths, n_row)
        for n in {min(len(tokens), self.block_size) for tokens, _, _ in parsed}:
            way.order.check(n, self.block_size)
        longest = min(max(lengths), self.block_size)
        slots = self.checkpoint.config.slots
        way.unmasking.check_network(slots, longest, way.drawing.scores)
        check_blanks(parsed, way, page, self.tokenizer.n_tokens)
        check_guided(templates, lengths, way, page, self.block_size)
        check_matches(templates, self.tokenizer, way.drawing.scores)
        return templates

    def lay_out(self, templates, seed, lengths):
        """Return the LaidOut of each of the Templates.

        Row r is a function of seed + r, or, if `seed` is a list, of seed[r]; `lengths` is a
        Lengths."""
        seeds = seeds_of(seed, len(templates))
        network = None
        if any(template.unknown for template in templates):
            network = self.network
        bar = progress(total=len(templates), unit='text', desc='lengths', leave=False)
        texts = []
        with self.autocast(), bar:
            chosen = lengths.choose(network, templates, seeds)
            for row, (template, (chosen_lengths, said)) in enumerate(zip(templates, chosen)):
                text = template.lay_out(chosen_lengths)
                if chosen_lengths:
                    check_match(text, self.tokenizer, row)
                texts.append(LaidOut(text.tokens, text.known, text.rest, said, text.patterns))
                bar.update()
        return texts

    def stops(self, stop):
        """Return the stops in a text or a list of texts, as they are decoded.

        Tokens of one's own may be written in more ways, as the end of a document is. Raises
        ValueError for a text that the model never writes."""
        stops = listed(stop)
        found = [self.tokenizer.shown_spans(one) for one in stops]
        if not all(found):
            raise ValueError(WRONG_STOP.format(stop))
        for one, tokens in zip(stops, found):
            unknown = self.tokenizer.unspelt(one, tokens)
            if unknown:
                raise ValueError(
                    f'stop must be what the model can write, got {stop!r:.60}: {unknown[0]!r:.20} '
                    f'is unknown to {self.tokenizer.name}'
                )
        if not self.tokenizer.separator:
            return stops
        decoded = []
        for tokens in found:
            ids = [token for token, _, _ in tokens]
            decoded.append(self.tokenizer.decode(ids))
        return decoded

    def scrolls(self, texts, seed, batch_size, page):
        """Yield the Scroll of each batch of texts, to be written in turn.

        Text r is a function of seed + r, or, if `seed` is a list, of seed[r]."""
        seeds = seeds_of(seed, len(texts))
        for r in range(0, len(texts), batch_size):
            batch = slice(r, r + batch_size)
            yield Scroll(texts[batch], seeds[batch], self.checkpoint, page, r)

    def write(self, scroll, way):
        """Write the texts of a Scroll. Yield after each step the number of tokens that it
        revealed."""
        with self.autocast():
            steps = scroll.steps(self.network, way, self.use_cache, self.device)
        # autocast ends with each step: between two a caller may write another text
        step = self.autocast()(lambda: next(steps, None))
        yield from iter(step, None)


def check_patterns(prompts, unmasking, page):
    """Raise ValueError where these prompts, or the page, have patterns that cannot be kept to."""
    in_blanks = [prompt for prompt in prompts if has_pattern(prompt)]
    if not in_blanks and page.pattern is None:
        return
    check_turns(unmasking)
    if in_blanks and page.pattern is not None:
        raise ValueError(
            'a text has a pattern as a whole, or in its blanks: leave out pattern, or write [[n]] '
            'in place of [[/pattern/]]'
        )
    if page.stop and not (in_blanks and all(map(has_rest, in_blanks))):
        raise ValueError(
            'a stop would cut what is to match a pattern: leave out stop, or write the pattern as '
            '[[/pattern/]] beside a [[..]], which alone is searched for the stop'
        )


def check_guided(templates, lengths, way, page, block_size):
    """Raise ValueError where guidance is asked for, but one of the Templates gives nothing, or is
    not written at once."""
    if not way.drawing.cfg_scale:
        return
    for number, (template, length) in enumerate(zip(templates, lengths), 1):
        text = template.lay_out()
        if not any(text.known):
            which = f'prompt {number} of {len(templates)}' if len(templates) > 1 else 'the prompt'
            raise ValueError(
                f'cfg_scale has a text depend more on what is given, and {which} gives nothing: '
                'write some text beside its blanks, or leave out cfg_scale'
            )
        row = Row(text.tokens, text.known, 0, text.rest if page.stop else ())
        check_at_once(length, row.parts, block_size)


def check_matches(templates, tokenizer, scores):
    """Raise ValueError unless check_match finds nothing wrong with the Templates whose blanks have
    their lengths."""
    for row, template in enumerate(templates):
        if not template.unknown:
            check_match(template.lay_out(), tokenizer, row, scores)


def check_match(text, tokenizer, row, scores=False):
    """Raise ValueError where a part of the Layout cannot match its pattern, or, if the text in the
    blanks is scored, does not. Errors name the row."""
    for start, end, pattern in text.patterns:
        tokens = text.tokens[start:end]
        if not scores:
            known = text.known[start:end]
            tokens = [token if is_known else -1 for token, is_known in zip(tokens, known)]
        pattern.check(tokens, tokenizer, row)


def check_rows(prompts, lengths, n_row):
    """Raise ValueError unless each prompt fits into a row of n_row tokens; rows of tokens fill
    it."""
    for prompt, n in zip(prompts, lengths):
        is_short = n < n_row and not isinstance(prompt, str)
        if n > n_row or is_short:
            raise ValueError(f'the rows of this model have {n_row} tokens, got a row of {n}')


def check_blanks(parsed, way, page, n_tokens):
    """Raise ValueError unless the (tokens, known, answer) have blanks that this way can write, or
    score."""
    if way.drawing.scores:
        for _, known, answer in parsed:
            if any(not k and not a for k, a in zip(known, answer)):
                raise ValueError(
                    'a score by steps wants the text of every blank: [[=text]] in place of [[n]], '
                    '[[?]], ...'
                )
    blanks = [p for _, known, _ in parsed for p, is_known in enumerate(known) if not is_known]
    if not blanks:
        raise ValueError('there is no blank to write or score in the prompt')
    check_allowed(page.allowed, blanks, n_tokens)


def listed(stop):
    """Return the texts of a stop, which is a text or a list of texts; '' is none."""
    if isinstance(stop, str):
        return [stop] if stop else []
    is_list = isinstance(stop, list | tuple) and len(stop) > 0
    if not is_list or not all(isinstance(one, str) for one in stop):
        raise ValueError(WRONG_STOP.format(stop))
    return [*stop]


def prompts_of(prompt):
    """Return the list of prompts in a text, a list or a column of texts, or rows (N,) or (rows, N)
    of integers."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {False}
    if isinstance(prompt, Collection):
        kinds = {isinstance(one, str) for one in prompt}
    if len(kinds) != 1:
        raise ValueError(
            'a list of prompts must hold texts alone, or rows of integers alone, got '
            f'{prompt!r:.40}'
        )
    return [*prompt] if True in kinds else [*np.atleast_2d(prompt)]


def as_asked(samples, prompt, n):
    """Return the samples in the form of the prompt: a Text, Rows, or lists of them, n of each
    unless n is None."""
    if not isinstance(prompts_of(prompt)[0], str):
        shape = np.shape(prompt)[:-1]
        return Rows(samples, shape if n is None else (n, *shape))
    texts = [as_text(sample) for sample in samples]
    if n is not None:
        texts = [texts[i : i + n] for i in range(0, len(texts), n)]
    return texts[0] if isinstance(prompt, str) else texts


class Rows(np.ndarray):
    """Rows (..., N) that were written, integers. A row that ended early is filled up with -1.

    logprob  (...) nats of all that was written, as of a Text; None of a part of the rows
    samples  the dict of each row, see Scroll.samples
    top_logprobs  [rows] as of a Text"""

    logprob = None
    samples = ()
    top_logprobs = None

    def __new__(cls, samples, shape):
        rows = as_rows(samples).reshape(*shape, -1).view(cls)
        nats = np.array([sample['nats'] for sample in samples])
        rows.samples = samples
        rows.top_logprobs = [sample.get('top_logprobs') for sample in samples]
        rows.logprob = -nats.reshape(shape)
        return rows


def as_rows(samples):
    """Return (n, N) the tokens of samples, -1 behind the end of shorter ones."""
    rows = [torch.tensor(sample['tokens'], dtype=torch.long) for sample in samples]
    return pad_sequence(rows, batch_first=True, padding_value=-1).numpy()


def as_text(sample):
    text = Text(sample['text'])
    text.logprob = -sample['nats']
    text.sample = sample
    text.top_logprobs = sample.get('top_logprobs')
    return text
