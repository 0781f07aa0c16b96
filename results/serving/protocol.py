"""How does OpenAI's protocol for completions say a request, a text, and an error?"""

import secrets
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from anyorder.generation.way import Page, Way
from anyorder.tokens.shown import PART, token_texts
from configurator import nearest

# a name, and numbers below 10,000: no file of the server, and nothing that takes it hours
NAMED = r'^[a-z0-9_]+([/:+@][0-9]{0,4}([.][0-9]+)?)*$'
NOT_EMPTY = Annotated[str, Field(min_length=1)]


class OfWay(BaseModel, extra='forbid', strict=True, allow_inf_nan=False):
    """The fields that sample.py has, too. A field that is null is one that was left out."""

    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    order: str = Field('l2r', pattern=NAMED)
    n_steps: int | None = None
    unmask: str = Field('fixed', pattern=NAMED)
    top_k: int = 0
    min_p: float = 0.0

    @model_validator(mode='before')
    @classmethod
    def without_null(cls, fields):
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class Asked(OfWay):
    """A request. The last fields are known, and must have the value that changes nothing: there are
    clients that always send them."""

    model: str
    prompt: str | Annotated[list[str], Field(min_length=1)]
    suffix: str = ''
    max_tokens: int = Field(16, ge=1)
    n: int = Field(1, ge=1)
    stop: str | list[NOT_EMPTY] = ''
    seed: int = Field(default_factory=lambda: secrets.randbits(32))
    logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool = False
    user: str = ''
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    frequency_penalty: Literal[0] = 0
    logit_bias: Annotated[dict, Field(max_length=0)] = {}

    def prompts(self):
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class Job(NamedTuple):
    """What is to be written for a prompt of a request.

    texts      the LaidOut prompt, n times
    is_plain   whether it had no blanks: its text ends before a stop, as OpenAI's do"""

    asked: Asked
    texts: list
    way: Way
    page: Page
    seed: int
    is_plain: bool


class Choice:
    """A text of an answer, which OpenAI calls a choice.

    n_told  letters that a stream has told of it: as far as it is known from its left"""

    def __init__(self, index, job, tokenizer):
        self.index = index
        self.job = job
        self.tokenizer = tokenizer
        self.first = job.texts[0].known.index(False)
        self.n_told = 0

    def news(self, tokens, steps, now, *_):
        """Return what the pass `now` tells, of what Scroll.first says: the text that follows, and
        the tokens that it has written."""
        written = []
        for p, step in enumerate(steps):
            if step == now:
                text = self.tokenizer.decode([tokens[p]])
                written.append({'position': p, 'token': tokens[p], 'text': text})
        text = self.text_until_now(tokens, steps)
        news = text[self.n_told :]
        self.n_told = max(self.n_told, len(text))
        return self.said(news) | {'written': written}

    def end(self, sample):
        """Return the rest of the text, or all of it, of what Scroll.samples says."""
        places = self.places(sample['step'])
        text = self.tokenizer.decode([sample['tokens'][p] for p in places])
        if self.job.is_plain:
            text = before_stop(text, self.job.page.stop)
        is_short = sample['blanks'] < self.job.asked.max_tokens
        finish = 'stop' if is_short or sample.get('stopped') else 'length'
        logprobs = None
        if self.job.asked.logprobs is not None:
            logprobs = self.logprobs(sample, places, len(text))
        return self.said(text[self.n_told :], logprobs, finish)

    def said(self, text, logprobs=None, finish=None):
        return {'index': self.index, 'text': text, 'logprobs': logprobs, 'finish_reason': finish}

    def places(self, steps):
        """Return the positions from the first blank to the last that is written."""
        written = [p for p, step in enumerate(steps) if step is not None and step >= 0]
        return range(self.first, written[-1] + 1)

    def text_until_now(self, tokens, steps):
        """Return the text from the first blank to the first that is left, as far as it will
        stay."""
        left = [*steps, None].index(None)
        known = [tokens[p] for p in self.places(steps) if p < left]
        text = self.tokenizer.decode(known)
        text = before_stop(text.rstrip(PART), self.job.page.stop)
        n_begun = max((begun(text, stop) for stop in self.job.page.stop), default=0)
        return text[: len(text) - n_begun]

    def logprobs(self, sample, places, n_letters):
        """Return OpenAI's table of the tokens at these places that begin before n_letters of their
        text; what was given between blanks has null."""
        table = {'tokens': [], 'token_logprobs': [], 'top_logprobs': [], 'text_offset': []}
        tokens = [sample['tokens'][p] for p in places]
        offset = 0
        for p, text in zip(places, token_texts(tokens, self.tokenizer)):
            if offset >= n_letters:
                break
            said = sample['top_logprobs'][p]
            table['tokens'].append(text)
            table['text_offset'].append(offset)
            table['token_logprobs'].append(said and said['logprob'])
            table['top_logprobs'].append(said and likeliest(said['top'], self.job.asked.logprobs))
            offset += len(text)
        return table


def before_stop(text, stops):
    """Return a text up to the first of the stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def begun(text, stop):
    """Return how many letters of a stop the text ends with."""
    sizes = range(min(len(stop), len(text)), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)


def likeliest(top, n):
    """Return {text: log p} of the n likeliest tokens, the likeliest of a text."""
    return {one['text']: one['logprob'] for one in reversed(top[:n])}


def status_of(e):
    """Return the HTTP status that an exception is answered with."""
    if isinstance(e, HTTPException):
        return e.status_code
    return 400 if isinstance(e, ValueError) else 500


def error_of(e):
    """Return the body that says what is wrong."""
    if status_of(e) == 500:
        return error('the server failed; its log says how', kind='server_error')
    if isinstance(e, ValidationError):
        return error_of_field(max(e.errors(), key=lambda found: len(found['loc'])))
    if isinstance(e, HTTPException):
        kind = 'server_error' if e.status_code > 500 else 'invalid_request_error'
        return error(e.detail, kind=kind)
    return error(str(e))


def error_of_field(found):
    """Return the body for an error that pydantic has found."""
    if not found['loc']:
        return error(found['msg'])
    field = str(found['loc'][0])[:60]
    if found['type'] == 'extra_forbidden':
        return error(f'{field!r} is no field here{nearest(field, Asked.model_fields)}', field)
    said = found['msg']
    if found['type'] == 'string_pattern_mismatch':
        said = 'it is a name and numbers below 10,000, as margin/32:0.9'
    return error(f'{field!r}: {said}', field)


def error(message, param=None, kind='invalid_request_error'):
    return {'error': {'message': message, 'type': kind, 'param': param, 'code': None}}
