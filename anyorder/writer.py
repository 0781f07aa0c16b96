"""Text in, text out: how does a program fill the blanks of a text, and ask how likely a part of it is?"""

import os
from collections.abc import Collection
from functools import cached_property, partial
from inspect import signature

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from anyorder.checkpoint import open_checkpoint
from anyorder.fast import freeze, graphed
from anyorder.generation.constraint import check_allowed
from anyorder.generation.drawing import Drawing
from anyorder.generation.options import check_keywords, unmasking_of
from anyorder.generation.scroll import Scroll
from anyorder.generation.unmasking import SCORES, Revised
from anyorder.likelihood.lengths import Lengths, read_prior
from anyorder.likelihood.nll import conditional_logprob
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.terminal import progress
from anyorder.orders import check_order, order_of, read_order
from anyorder.pictures.texts import token_texts
from anyorder.seeds import seeds_of, stream
from anyorder.tokens.prompts import Spelling, parse_prompts, spans


class Text(str):
    """A text that was written. `logprob` are the nats of all that was written, each token given the known ones when it
    was drawn, by the law in Drawing; not the log-probability of a text that was revised. `sample` is the dict of its
    tokens, order, steps and log-probabilities, see Scroll.samples."""


def order_and_policy(order, block_length=None):
    """(order for order_of, policy for unmasking_of) that `order` says, an option of sample.py or positions."""
    if (
        isinstance(order, str) and order in SCORES
    ):  # the given order decides among equal scores, and makes the blocks
        return 'random' if block_length is None else 'l2r', order
    order = read_order(order, 'own', *SCORES) if isinstance(order, str) else order
    return None if order == 'own' else order, 'given'


class Writer:
    """A trained model with its tokenizer, on its device. infill, stream and logprob are for programs and notebooks;
    commands take the parts that these are made of: texts, scrolls and write. The weights are put into place when they
    are first needed."""

    def __init__(
        self, ckpt, weights=None, device='auto', dtype='float32', use_cache=True, cuda_graphs=False
    ):
        """ckpt is a path, hf:OWNER/REPO[/path.pt] or masked:FOLDER; weights 'ema' or 'raw', by default the EMA if there
        is one; the others are as in sample.py. Raises ValueError when it is no checkpoint, or the device not there."""
        if cuda_graphs and not use_cache:
            raise ValueError(
                'cuda_graphs is for a decoder with a cache on a GPU: use_cache is False'
            )
        if weights not in (None, 'ema', 'raw'):
            raise ValueError(f"weights must be 'ema' or 'raw', got {weights!r}")
        self.checkpoint = open_checkpoint(os.fspath(ckpt))
        self.weights, self.use_cache, self.cuda_graphs = (
            weights or self.checkpoint.weights,
            use_cache,
            cuda_graphs,
        )
        self.tokenizer, self.block_size = (
            self.checkpoint.tokenizer,
            self.checkpoint.config.block_size,
        )
        self.prefix = getattr(
            self.checkpoint.config, 'prefix', ()
        )  # tokens that the model puts before every text
        self.columns = (self.checkpoint.set.get('shape') or (0, 0))[1]  # of a row that is a grid
        self.device, self.dtype = resolve_device(device, dtype)
        self.autocast = partial(autocast, self.device, self.dtype)

    @cached_property
    def model(self):
        return self.checkpoint.model(self.weights, self.device)

    @cached_property
    def network(self):
        """The model, made faster for inference."""
        frozen = (
            self.use_cache or not self.model.slots.cached
        )  # without a cache there is nothing to run anew
        network = freeze(self.model, getattr(torch, self.dtype)) if frozen else self.model
        return graphed(network) if self.cuda_graphs else network

    def infill(
        self,
        prompt,
        n=None,
        order='own',
        seed=1337,
        length=0,
        context=0,
        stop='',
        n_steps=None,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        batch_size=32,
        allowed=None,
        score=False,
        blank_length='likely',
        length_prior='uniform',
        **unmasking,
    ):
        """The prompt with its blanks filled, a Text or Rows; with n a list of n, or n times the rows. Of a list a list.

            writer.infill('If [[6]] is true, [[..]] is returned.', order='margin', seed=1)

        prompt     [[n]] is n blank tokens, [[?]] as many as fit best between the texts around it, [[2-12]] so of 2 to
                   12; [[..]] is what is left of the length, and without a blank the text is continued. Or an array
                   (N,) or (rows, N) of tokens, in which -1 is a blank. A line on stderr says what the tokenizer cannot
                   spell, and that a space before a blank is a token by itself; of [[=text]] it goes into the blank
        order      'own', as the model was trained; one of orders.ORDERS, as 'l2r'; FILE.py:NAME; a list of positions;
                   or the model's choice: 'margin', 'top_prob', 'entropy'
        seed       text r of all that is returned is a function of seed + r alone
        length     tokens of a text, 0 is block_size; a longer text slides on, with `context`, see scroll.Scroll
        stop       [[..]] ends with this string, or with the first of a list of strings, and what stands behind it
                   follows, see scroll.Scroll; '<|endoftext|>' is the end of a document
        n_steps    forward passes of a stretch, by default one for each token
        allowed    which tokens may stand at the positions of text r, see Constraint: the law is renormalised to these
        blank_length, length_prior   how [[?]] finds its length: see lengths.Lengths and lengths.read_prior
        unmasking  schedule, unmask, window, threshold, order_noise, block_length, revise: see options.Options
        temperature, top_k, top_p, score   see drawing.Drawing; to be scored every blank is [[=text]]"""
        scrolls, how, n_blanks = self.prepared(
            prompt,
            n,
            order,
            seed,
            length,
            context,
            stop,
            n_steps,
            temperature,
            top_k,
            top_p,
            batch_size,
            allowed,
            score,
            blank_length,
            length_prior,
            **unmasking,
        )
        with progress(
            total=n_blanks, unit='token', leave=False, delay=2
        ) as bar:  # seconds: a short text shows none
            found = []
            for scroll in scrolls:
                for n_new in self.write(scroll, *how):
                    bar.update(n_new)
                found += scroll.samples()
        if not isinstance(prompts_of(prompt)[0], str):
            return Rows(found, np.shape(prompt)[:-1] if n is None else (n, *np.shape(prompt)[:-1]))
        texts = [as_text(sample) for sample in found]
        texts = texts if n is None else [texts[i : i + n] for i in range(0, len(texts), n)]
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt, **options):
        """Yields after each forward pass a str, the text with dots for blanks, and at the end what infill gives."""
        if not isinstance(prompt, str) or options.get('n') is not None:
            raise ValueError('stream writes one text: give it a str, and leave out n')
        asked = signature(self.infill).bind(prompt, **options)
        asked.apply_defaults()
        (scroll,), how, _ = self.prepared(*asked.args, **asked.kwargs)
        for _ in self.write(scroll, *how):
            seen = [None if step is None else token for token, step in zip(*scroll.first()[:2])]
            yield self.tokenizer.separator.join(token_texts(seen, self.tokenizer))
        yield as_text(*scroll.samples())

    def prepared(
        self,
        prompt,
        n,
        order,
        seed,
        length,
        context,
        stop,
        n_steps,
        temperature,
        top_k,
        top_p,
        batch_size,
        allowed,
        score,
        blank_length,
        length_prior,
        **unmasking,
    ):
        """(Scroll of each batch, what write wants to know of how, number of blanks) of infill's arguments, checked."""
        check_keywords(unmasking, self.infill)
        order, policy = order_and_policy(order, unmasking.get('block_length'))
        n_steps = self.block_size if n_steps is None else n_steps
        unmasking = unmasking_of(n_steps=n_steps, policy=policy, **unmasking)
        how = (
            order_of(self.checkpoint.run, order),
            unmasking,
            Drawing(temperature, top_k, top_p, score),
        )
        if n is not None and n < 1 or batch_size < 1:
            raise ValueError(f'n and batch_size must be at least 1, got {n} and {batch_size}')
        prompts, stops = prompts_of(prompt), self.stops(stop)
        texts = self.texts(prompts, *how, length, context, stops, allowed)
        texts = (
            [text for text in texts for _ in range(n or 1)]
            if isinstance(prompts[0], str)
            else texts * (n or 1)
        )
        texts = self.laid_out(
            texts, seed, Lengths(blank_length, read_prior(length_prior, self.checkpoint))
        )
        scrolls = self.scrolls(texts, seed, batch_size, context, stops, allowed=allowed)
        return scrolls, how, sum(known.count(False) for _, known, *_ in texts)

    def logprob(self, prompt, n_orders=0, seed=1337, order='l2r', **options):
        """log p(A | B) in nats of two parts of a text: A is all [[=text]] of the prompt, B the text around them.

            writer.logprob('The [[=value]] is returned')
            writer.logprob('The [[=value]] is [[=returned]]', order='margin', n_steps=4)

        What stands in blanks [[n]] is in neither. A is read from left to right. Each order gives another value, exact
        for that order by the chain rule. With n_orders the probabilities under so many random orders, a function of the
        seed, are averaged, see likelihood.conditional_logprob. Of a list of prompts a list, prompt r by seed + r.

        With another order, or any of infill's other options, it is log p of A as infill with these would write it. All
        that is not B must then be in A."""
        check_keywords(options, self.logprob, self.infill)
        if 'n' in options or 'score' in options:
            raise ValueError('logprob scores each text once: leave out n and score')
        if n_orders < 0:
            raise ValueError(
                f'n_orders must be at least 0 (0 is left to right alone), got {n_orders}'
            )
        if order != 'l2r' or options:
            if n_orders:
                raise ValueError(
                    'n_orders draws orders of its own: leave it out, or order and the options behind it'
                )
            found = self.infill(prompt, order=order, seed=seed, score=True, **options)
            return found.logprob if isinstance(prompt, str) else [text.logprob for text in found]
        nats, templates = (
            [],
            parse_prompts(prompts_of(prompt), self.tokenizer, self.block_size, self.prefix),
        )
        if any(template.unknown for template in templates):
            raise ValueError(
                'a text that is scored has blanks of known lengths: write [[n]] in place of [[?]]'
            )
        parsed = [template.lay_out()[:3] for template in templates]
        if not all(any(answer) for _, _, answer in parsed):
            raise ValueError(
                'logprob wants to know which part of the text it is to score: write it as [[=text]]'
            )
        with self.autocast():
            for (tokens, *parts), own in zip(parsed, seeds_of(seed, len(parsed)), strict=True):
                given, part = (torch.tensor(where).nonzero() for where in parts)
                idx, rng = torch.tensor([tokens], device=self.device), stream(own, 'conditional')
                nats.append(
                    float(conditional_logprob(self.network, idx, part, given, n_orders, rng))
                )
        return nats[0] if isinstance(prompt, str) else nats

    def texts(
        self, prompts, visits, unmasking, drawing, length=0, context=0, stops=(), allowed=None
    ):
        """The Templates of prompts, checked before any work; visits are the arguments of sample_order, and to be
        scored all blanks must have a text. Raises ValueError for what fits neither model nor task."""
        if length < 0:
            raise ValueError(
                f'length must be at least 1 (0 is block_size={self.block_size}), got {length}'
            )
        self.check_context(context)
        if stops and (drawing.scores or isinstance(unmasking, Revised)):
            raise ValueError(
                'a text is scored, and revised, as a whole: leave out stop, or else score and revise'
            )
        n_row = self.checkpoint.set.get('row_length')
        templates = parse_prompts(
            prompts, self.tokenizer, length or n_row or self.block_size, self.prefix
        )
        parsed = [template.lay_out()[:3] for template in templates]
        most = [
            one.length if one.unknown else len(tokens)
            for one, (tokens, *_) in zip(templates, parsed)
        ]
        for prompt, n in zip(prompts, most):
            if n_row and (n > n_row or n < n_row and not isinstance(prompt, str)):
                raise ValueError(f'the rows of this model have {n_row} tokens, got a row of {n}')
        for n in {min(len(tokens), self.block_size) for tokens, _, _ in parsed}:
            check_order(visits, n, self.block_size)
        unmasking.check_network(
            self.checkpoint.config.slots, min(max(most), self.block_size), drawing.scores
        )
        if drawing.scores and any(
            not k and not a for _, known, answer in parsed for k, a in zip(known, answer)
        ):
            raise ValueError(
                'a score by steps wants the text of every blank: [[=text]] in place of [[n]], [[?]], ...'
            )
        if all(all(known) for _, known, _ in parsed):
            raise ValueError('there is no blank to write or score in the prompt')
        blanks = (p for _, known, _ in parsed for p, is_known in enumerate(known) if not is_known)
        check_allowed(allowed, blanks, self.tokenizer.n_tokens)
        return templates

    def laid_out(self, templates, seed, lengths):
        """[(tokens, known, open blanks, what a sample says of its lengths)] of Templates, row r by seed + r or seed[r];
        `lengths` is a Lengths."""
        seeds, texts = seeds_of(seed, len(templates)), []
        network = self.network if any(template.unknown for template in templates) else None
        with (
            self.autocast(),
            progress(
                total=len(templates), unit='text', desc='lengths', leave=False, delay=2
            ) as bar,
        ):
            for template, (chosen, said) in zip(
                templates, lengths.choose(network, templates, seeds)
            ):
                tokens, known, _, _, open_blanks = template.lay_out(chosen)
                texts.append((tokens, known, open_blanks, said))
                bar.update()
        return texts

    def stops(self, stop):
        """The stops in a text or a list of texts, as they are decoded: tokens of one's own may be written in more ways,
        as the end of a document is. Raises ValueError for a text that the model never writes."""
        stops = [stop] * bool(stop) if isinstance(stop, str) else stop
        texts = isinstance(stops, list | tuple) and all(isinstance(one, str) for one in stops)
        found = [spans(one, self.tokenizer) for one in stops] if texts else []
        if not texts or not all(found) or not found and stop != '':
            raise ValueError(
                f'stop must be a text or a list of texts, got {stop!r:.60}: leave out what is empty'
            )
        spelling = Spelling(self.tokenizer)
        for one, tokens in zip(stops, found):
            spelling.add(one, tokens)
        if spelling.unknown:
            raise ValueError(
                f'stop must be what the model can write, got {stop!r:.60}: {spelling.unknown[0]!r:.20} is '
                f'unknown to {self.tokenizer.name}'
            )
        if not self.tokenizer.separator:
            return list(stops)
        return [self.tokenizer.decode([token for token, _, _ in tokens]) for tokens in found]

    def check_context(self, context):
        if not 0 <= context < self.block_size:
            raise ValueError(
                f'context must be 1 to {self.block_size - 1}, below block_size={self.block_size} '
                f'(0 is half of it), got {context}'
            )

    def scrolls(
        self, texts, seed, batch_size, context=0, stops=(), with_drafts=False, allowed=None
    ):
        """The Scroll of each batch of texts, to be written in turn. Text r is a function of seed + r, or, if `seed` is
        a list, of seed[r]."""
        seeds = seeds_of(seed, len(texts))
        for r in range(0, len(texts), batch_size):
            at = slice(r, r + batch_size)
            yield Scroll(
                texts[at],
                seeds[at],
                self.tokenizer,
                self.block_size,
                context,
                stops,
                with_drafts,
                allowed,
                r,
            )

    def write(self, scroll, visits, unmasking, drawing):
        """Write the texts of a Scroll. Yields after each step the number of tokens that it revealed."""
        with self.autocast():
            steps = scroll.steps(
                self.network, visits, unmasking, drawing, self.use_cache, self.device
            )
        step = self.autocast()(lambda: next(steps, None))
        yield from iter(
            step, None
        )  # autocast ends with each step: between two a caller may write another text


def prompts_of(prompt):
    """The list of prompts in a text, a list or a column of texts, or rows (N,) or (rows, N) of integers."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    kinds = (
        {isinstance(one, str) for one in prompts} if isinstance(prompts, Collection) else {False}
    )
    if len(kinds) != 1:
        raise ValueError(
            f'a list of prompts must hold texts alone, or rows of integers alone, got {prompts!r:.40}'
        )
    return [*prompts] if True in kinds else [*np.atleast_2d(prompts)]


class Rows(np.ndarray):
    """Rows (..., N) that were written, integers. A row that ended early is filled up with -1.

    logprob  (...) nats of all that was written, as of a Text; None of a part of the rows
    samples  the dict of each row, see Scroll.samples"""

    logprob, samples = None, ()

    def __new__(cls, samples, shape):
        rows = as_rows(samples).reshape(*shape, -1).view(cls)
        rows.samples, rows.logprob = (
            samples,
            -np.array([sample['nats'] for sample in samples]).reshape(shape),
        )
        return rows


def as_rows(samples):
    """(n, N) the tokens of samples, -1 behind the end of shorter ones."""
    rows = [torch.tensor(sample['tokens'], dtype=torch.long) for sample in samples]
    return pad_sequence(rows, batch_first=True, padding_value=-1).numpy()


def as_text(sample):
    text = Text(sample['text'])
    text.logprob, text.sample = -sample['nats'], sample
    return text
