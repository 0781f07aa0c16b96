"""Serve a model by OpenAI's protocol for completions: /v1/completions and /v1/models.

    python results/serving/serve.py --ckpt=out/quickstart/ckpt.pt
    curl localhost:8000/v1/completions \\
        -d '{"model": "quickstart", "prompt": "The [[6]] is returned", "order": "margin"}'

docs/serving.md says what a request may hold, and what comes back. All passes of the network run on
one thread: requests that are there at once take turns, pass by pass."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

from anyorder.machine.files import need_extra
from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, nearest

ckpt = 'out/quickstart/ckpt.pt'  # as in sample.py
name = ''  # the model's for clients; by default that of its folder
host = '127.0.0.1'  # 0.0.0.0 lets other machines ask; there are no keys
port = 8000  # 0 is one that is free
length = 0  # tokens of a text, prompt included, at most; 0 is as many as the model has positions
wait = 5  # seconds that texts have to end once the server is to stop
device = 'auto'  # 'cpu', 'cuda', ...
dtype = 'float32'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())
    with one_line_errors():
        need_extra('starlette')

import asyncio
import json
import math
import os
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, NamedTuple

import uvicorn
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from anyorder.generation.way import Page, Way
from anyorder.tokens.prompts import has_rest, typed_blanks
from anyorder.tokens.shown import PART, token_texts
from anyorder.tokens.tokenizer import END_OF_TEXT
from anyorder.writer import Writer, listed

ORDER = r'^[a-z0-9_]+([/:+@][0-9.]+)*$'  # a name and numbers: no file of the server
OF_WAY = (
    'temperature',
    'top_p',
    'top_k',
    'min_p',
    'presence_penalty',
    'order',
    'n_steps',
    'unmask',
)
BATCH = 32  # texts that are written at once
LETTERS = 128  # of a token, at most: what is longer than its text can be is not read


class Asked(BaseModel, extra='forbid', strict=True, allow_inf_nan=False):
    """A request: the fields of OpenAI that are known here, then those of sample.py. A field that is
    null is one that was left out."""

    model: str
    prompt: str | Annotated[list[str], Field(min_length=1)]
    suffix: str = ''
    max_tokens: int = Field(16, ge=1)
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    n: int = Field(1, ge=1, le=128)
    stop: str | list[str] = ''
    seed: int = Field(default_factory=lambda: secrets.randbits(32))
    logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool = False
    user: str = ''
    order: str = Field('l2r', pattern=ORDER)
    n_steps: int | None = None
    unmask: str = 'fixed'
    top_k: int = 0
    min_p: float = 0.0

    @model_validator(mode='before')
    @classmethod
    def without_null(cls, fields):
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class Job(NamedTuple):
    """What is to be written for a prompt of a request.

    texts      the LaidOut prompt, n times
    is_plain   whether it had no blanks: its text ends before a stop, as OpenAI's do"""

    texts: list
    way: Way
    page: Page
    seed: int
    is_plain: bool


def main(config):
    at_least(config, 0, 'port', 'length', 'wait')
    writer = Writer(config.ckpt, device=config.device, dtype=config.dtype)
    folder = os.path.dirname(os.path.abspath(config.ckpt))
    answers = Answers(writer, config.name or os.path.basename(folder), config.length)
    server = Server(answers, config)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # the server has its own, and raises it again at its end
    server.run()
    answers.thread.shutdown(cancel_futures=True)


class Server(uvicorn.Server):
    """The server, which gives texts some seconds to end once it is asked to stop."""

    def __init__(self, answers, config):
        super().__init__(uvicorn.Config(answers.app(), config.host, config.port))
        self.answers = answers
        self.wait = config.wait

    def handle_exit(self, number, frame):
        self.answers.end = time.monotonic() + self.wait
        super().handle_exit(number, frame)


class Answers:
    """What the addresses answer.

    thread  where the network runs
    end     when texts that are being written are given up, on the clock time.monotonic"""

    def __init__(self, writer, name, length=0):
        self.writer = writer
        self.tokenizer = writer.tokenizer
        self.name = name
        self.length = length or writer.checkpoint.set.get('row_length') or writer.block_size
        self.thread = ThreadPoolExecutor(1)
        self.end = math.inf
        self.about = {'id': name, 'object': 'model', 'created': now(), 'owned_by': 'anyorder'}

    def app(self):
        self.writer.network  # noqa: B018  (the weights are put into place)
        routes = [
            Route('/v1/completions', self.completions, methods=['POST']),
            Route('/v1/models', self.models),
            Route('/v1/models/{name:path}', self.model),
        ]
        errors = {ValueError: wrong, HTTPException: refused, Exception: broken}
        return Starlette(routes=routes, exception_handlers=errors)

    async def models(self, request):
        return JSONResponse({'object': 'list', 'data': [self.about]})

    async def model(self, request):
        self.check(request.path_params['name'])
        return JSONResponse(self.about)

    def check(self, name):
        if name != self.name:
            raise HTTPException(404, f'there is no model {name!r:.60}, but {self.name!r}')

    async def completions(self, request):
        asked = Asked.model_validate_json(await request.body())
        self.check(asked.model)
        jobs = await self.turn(self.jobs, asked)
        if asked.stream:
            return StreamingResponse(self.events(asked, jobs), media_type='text/event-stream')
        choices = []
        n_written = 0
        for job in jobs:
            for scroll in self.writer.scrolls(job.texts, job.seed, BATCH, job.page):
                async for _ in self.passes(job, scroll):
                    if await request.is_disconnected():
                        return Response()  # which nobody reads
                for sample in scroll.samples():
                    choices.append(self.choice(asked, job, sample, len(choices)))
                    n_written += sample['blanks']
        n_known = sum(job.texts[0].known.count(True) for job in jobs)
        usage = {'prompt_tokens': n_known, 'completion_tokens': n_written}
        usage['total_tokens'] = n_known + n_written
        return JSONResponse(self.answer(asked, choices) | {'usage': usage})

    def turn(self, call, *args):
        """Have the one thread call this, after all that waits there already."""
        return asyncio.get_running_loop().run_in_executor(self.thread, call, *args)

    async def passes(self, job, scroll):
        """Yield after each pass that writes the texts of a Scroll."""
        steps = self.writer.write(scroll, job.way)
        while await self.turn(next, steps, None) is not None:
            if time.monotonic() > self.end:
                raise HTTPException(503, 'the server stops')
            yield

    def jobs(self, asked):
        """Return the Job of each prompt. Raises ValueError for what this model cannot write."""
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        seeds = [asked.seed + i * asked.n for i in range(len(prompts))]
        return [self.job(asked, prompt, seed) for prompt, seed in zip(prompts, seeds)]

    def job(self, asked, prompt, seed):
        if len(prompt) + len(asked.suffix) > LETTERS * self.length:
            raise ValueError(f'the prompt does not fit into {self.length} tokens')
        is_plain = not typed_blanks(prompt) and not typed_blanks(asked.suffix)
        stops = listed(asked.stop) if asked.stop else []
        if asked.suffix:
            prompt = f'{prompt}[[1-{asked.max_tokens}]]{asked.suffix}'
        elif is_plain:
            prompt = f'{prompt}[[..]]'
            if self.tokenizer.eos is not None:
                stops.append(END_OF_TEXT)
        options = asked.model_dump(include=OF_WAY) | {'stop': stops or '', 'length': self.length}
        if asked.logprobs is not None:
            options['top_logprobs'] = max(1, asked.logprobs)
        way, page = self.writer.asked(None, None, options)
        (template,) = self.writer.templates([prompt], way, page)
        if has_rest(prompt):
            n = sum(template.sizes()) + asked.max_tokens
            if n > self.length:
                raise ValueError(
                    f'the prompt and its completion have {n} tokens, {asked.max_tokens} of them '
                    f'max_tokens, and do not fit into {self.length}'
                )
            page = replace(page, length=n)
        texts = self.writer.read(prompt, way, page, asked.n, seed)
        return Job(texts, way, page, seed, is_plain)

    async def events(self, asked, jobs):
        """Yield the events of a stream: its texts one after the other."""
        index = 0
        try:
            for job in jobs:
                for scroll in self.writer.scrolls(job.texts, job.seed, 1, job.page):
                    told = Told(job, self.tokenizer)
                    async for _ in self.passes(job, scroll):
                        chunk = {'index': index, 'logprobs': None, 'finish_reason': None}
                        chunk |= told.news(*scroll.first())
                        yield event(self.answer(asked, [chunk]))
                    last = self.choice(asked, job, scroll.samples()[0], index)
                    last['text'] = last['text'][told.n_letters :]
                    yield event(self.answer(asked, [last]))
                    index += 1
        except (ValueError, HTTPException) as e:  # by now the head of the answer is sent
            yield event(said_of(e))
        yield 'data: [DONE]\n\n'

    def choice(self, asked, job, sample, index):
        """Return what an answer says of a text that was written, see Scroll.samples."""
        first = job.texts[0].known.index(False)
        places = [p for p, step in enumerate(sample['step']) if step >= 0]
        places = range(first, places[-1] + 1)
        text = self.tokenizer.decode([sample['tokens'][p] for p in places])
        if job.is_plain:
            text = before_stop(text, job.page.stop)
        is_short = sample['blanks'] < asked.max_tokens
        finish = 'stop' if is_short or sample.get('stopped') else 'length'
        probabilities = None
        if asked.logprobs is not None:
            probabilities = self.probabilities(sample, places, len(text), asked.logprobs)
        return {'index': index, 'text': text, 'logprobs': probabilities, 'finish_reason': finish}

    def probabilities(self, sample, places, n_letters, n_top):
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
            table['top_logprobs'].append(said and likeliest(said['top'][:n_top]))
            offset += len(text)
        return table

    def answer(self, asked, choices):
        about = {'id': f'cmpl-{asked.seed}', 'object': 'text_completion', 'created': now()}
        return about | {'model': self.name, 'choices': choices}


class Told:
    """What a stream has told of a text.

    places     of tokens that were told as they were written
    n_letters  of the text, which is told as far as it is known from its left"""

    def __init__(self, job, tokenizer):
        self.first = job.texts[0].known.index(False)
        self.stops = job.page.stop
        self.tokenizer = tokenizer
        self.places = set()
        self.n_letters = 0

    def news(self, tokens, steps, *_):
        """Return the text that follows what was told, and the tokens that the pass has written."""
        written = []
        for p, step in enumerate(steps):
            if step is not None and step >= 0 and p not in self.places:
                self.places.add(p)
                text = self.tokenizer.decode([tokens[p]])
                written.append({'position': p, 'token': tokens[p], 'text': text})
        known = self.known(tokens, steps)
        text = known[self.n_letters :]
        self.n_letters = max(self.n_letters, len(known))
        return {'text': text, 'written': written}

    def known(self, tokens, steps):
        """Return the text from the first blank to the first that is left, as far as it will
        stay."""
        end = [*steps, None].index(None)
        last = max(self.places) + 1
        text = self.tokenizer.decode(tokens[self.first : min(end, last)])
        text = before_stop(text.rstrip(PART), self.stops)
        n_begun = max((begun(text, stop) for stop in self.stops), default=0)
        return text[: len(text) - n_begun]


def before_stop(text, stops):
    """Return a text up to the first of the stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def begun(text, stop):
    """Return how many letters of a stop the text ends with."""
    sizes = range(min(len(stop), len(text)), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)


def likeliest(top):
    """Return {text: log p} of the likeliest tokens, the likeliest of a text."""
    return {one['text']: one['logprob'] for one in reversed(top)}


def now():
    return int(time.time())


def event(value):
    return f'data: {json.dumps(value)}\n\n'


# --------------------------------------------------------------------------------------------------
# errors, as OpenAI says them


async def wrong(request, e):
    return JSONResponse(said_of(e), 400)


async def refused(request, e):
    return JSONResponse(said_of(e), e.status_code)


async def broken(request, e):
    return JSONResponse(error('the server failed; its log says how', None, 'server_error'), 500)


def said_of(e):
    """Return the body that says what is wrong."""
    if isinstance(e, HTTPException):
        kind = 'server_error' if e.status_code >= 500 else 'invalid_request_error'
        return error(e.detail, None, kind)
    if not isinstance(e, ValidationError):
        return error(str(e), None)
    first = e.errors()[0]
    if not first['loc']:
        return error(first['msg'], None)
    field = str(first['loc'][0])
    said = f'{field!r:.60}: {first["msg"]}'
    if first['type'] == 'extra_forbidden':
        said = f'{field!r:.60} is no field here{nearest(field, Asked.model_fields)}'
    return error(said, field)


def error(message, param, kind='invalid_request_error'):
    return {'error': {'message': message, 'type': kind, 'param': param, 'code': None}}


if __name__ == '__main__':
    with one_line_errors():
        main(options)
