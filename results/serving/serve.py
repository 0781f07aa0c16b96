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
from configurator import at_least

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
import itertools
import json
import logging
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from anyorder.tokens.prompts import has_rest, typed_blanks
from anyorder.tokens.tokenizer import END_OF_TEXT
from anyorder.writer import Writer, listed
from results.serving.protocol import Asked, Choice, Job, OfWay, error_of, status_of

BATCH = 32  # texts that are written at once
MOST_TEXTS = 128  # of an answer
MOST_BYTES = 2**20  # of a request


def main(config):
    at_least(config, 0, 'port', 'length', 'wait')
    if config.port > 65535:
        raise ValueError(f'port must be at most 65535, got {config.port}')
    writer = Writer(config.ckpt, device=config.device, dtype=config.dtype)
    folder = os.path.dirname(os.path.abspath(config.ckpt))
    answers = Answers(writer, config.name or os.path.basename(folder), config.length)
    Server(answers, config).run()
    answers.thread.shutdown(cancel_futures=True)


class Server(uvicorn.Server):
    """The server, which gives texts some seconds to end once it is asked to stop."""

    def __init__(self, answers, config):
        super().__init__(uvicorn.Config(answers.app(), config.host, config.port))
        self.answers = answers
        self.wait = config.wait

    def handle_exit(self, number, frame):
        """Stop; at the second signal wait for no text, at the next one for nothing."""
        wait = 0 if self.should_exit else self.wait
        self.force_exit = self.answers.end < time.monotonic()
        self.answers.end = min(self.answers.end, time.monotonic() + wait)
        self.should_exit = True


class Answers:
    """What the addresses answer.

    thread  where the network runs
    end     when texts that are being written are given up, on the clock time.monotonic"""

    def __init__(self, writer, name, length=0):
        self.writer = writer
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
        kinds = (ValueError, HTTPException, ClientDisconnect, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, failed))

    async def models(self, request):
        return JSONResponse({'object': 'list', 'data': [self.about]})

    async def model(self, request):
        self.check(request.path_params['name'])
        return JSONResponse(self.about)

    def check(self, name):
        if name != self.name:
            raise HTTPException(404, f'there is no model {name!r:.60}, but {self.name!r}')

    async def completions(self, request):
        asked = Asked.model_validate_json(await body_of(request))
        self.check(asked.model)
        jobs = await self.turn(self.jobs, asked)
        if asked.stream:
            return StreamingResponse(self.events(asked, jobs), media_type='text/event-stream')
        choices = []
        n_written = 0
        async for found, n in self.written(asked, jobs):
            if await request.is_disconnected():
                return Response()  # which nobody reads
            choices += found
            n_written += n
        n_known = sum(job.texts[0].known.count(True) for job in jobs)
        usage = {'prompt_tokens': n_known, 'completion_tokens': n_written}
        usage['total_tokens'] = n_known + n_written
        return JSONResponse(self.answer(asked, choices) | {'usage': usage})

    async def events(self, asked, jobs):
        """Yield the events of a stream: its texts one after the other."""
        try:
            async for found, _ in self.written(asked, jobs):
                for choice in found:
                    yield event(self.answer(asked, [choice]))
        except Exception as e:  # by now the head of the answer is sent
            if status_of(e) == 500:
                logging.getLogger('uvicorn.error').exception('a stream has failed')
            yield event(error_of(e))
        yield 'data: [DONE]\n\n'

    async def written(self, asked, jobs):
        """Yield after each pass what is told by now, choices of OpenAI's, and how many tokens they
        have: of a stream the news of a pass, and of all the texts that are written."""
        batch_size = 1 if asked.stream else BATCH
        index = itertools.count()
        for job in jobs:
            for scroll in self.writer.scrolls(job.texts, job.seed, batch_size, job.page):
                choices = [Choice(next(index), job, self.writer.tokenizer) for _ in scroll.rows]
                async for _ in self.passes(scroll, job.way):
                    news = [choices[0].news(*scroll.first())] if asked.stream else []
                    yield news, 0
                for choice, sample in zip(choices, scroll.samples()):
                    yield [choice.end(sample)], sample['blanks']

    async def passes(self, scroll, way):
        """Yield after each pass that writes the texts of a Scroll."""
        steps = self.writer.write(scroll, way)
        while await self.turn(next, steps, None) is not None:
            if time.monotonic() > self.end:
                raise HTTPException(503, 'the server stops')
            yield

    def turn(self, call, *args):
        """Have the one thread call this, after all that waits there already."""
        return asyncio.get_running_loop().run_in_executor(self.thread, call, *args)

    def jobs(self, asked):
        """Return the Job of each prompt. Raises ValueError for what this model cannot write."""
        prompts = asked.prompts()
        if len(prompts) * asked.n > MOST_TEXTS:
            raise ValueError(
                f'an answer has at most {MOST_TEXTS} texts: n times the prompts is '
                f'{len(prompts) * asked.n}'
            )
        seeds = range(asked.seed, asked.seed + len(prompts) * asked.n, asked.n)
        return [self.job(asked, prompt, seed) for prompt, seed in zip(prompts, seeds)]

    def job(self, asked, prompt, seed):
        is_plain = not typed_blanks(prompt) and not typed_blanks(asked.suffix)
        stops = listed(asked.stop) if asked.stop else []
        if asked.suffix:
            prompt = f'{prompt}[[1-{asked.max_tokens}]]{asked.suffix}'
        elif is_plain:
            prompt = f'{prompt}[[..]]'
            if self.writer.tokenizer.eos is not None:
                stops.append(END_OF_TEXT)
        options = asked.model_dump(include=OfWay.model_fields.keys())
        options |= {'stop': stops or '', 'length': self.length}
        if asked.logprobs is not None:
            options['top_logprobs'] = max(1, asked.logprobs)
        way, page = self.writer.asked(None, None, options)
        if has_rest(prompt):
            (template,) = self.writer.templates([prompt], way, page)
            page = replace(page, length=self.with_rest(template, asked.max_tokens))
        texts = self.writer.read(prompt, way, page, asked.n, seed)
        return Job(asked, texts, way, page, seed, is_plain)

    def with_rest(self, template, max_tokens):
        """Return the length of a text with so many tokens in its [[..]]."""
        n = sum(template.sizes()) + max_tokens
        if n > self.length:
            raise ValueError(
                f'the prompt and its completion have {n} tokens, {max_tokens} of them '
                f'max_tokens, and do not fit into {self.length}'
            )
        return n

    def answer(self, asked, choices):
        about = {'id': f'cmpl-{asked.seed}', 'object': 'text_completion', 'created': now()}
        return about | {'model': self.name, 'choices': choices}


async def body_of(request):
    """Return the body. One that is too large is read to its end, so that the error arrives, and not
    kept."""
    body = b''
    n = 0
    async for part in request.stream():
        n += len(part)
        if n <= MOST_BYTES:
            body += part
    if n > MOST_BYTES:
        raise HTTPException(413, f'a request has at most {MOST_BYTES:,} bytes, got {n:,}')
    return body


async def failed(request, e):
    headers = getattr(e, 'headers', None)  # of 405: the methods that are allowed
    return JSONResponse(error_of(e), status_of(e), headers)


def now():
    return int(time.time())


def event(value):
    return f'data: {json.dumps(value)}\n\n'


if __name__ == '__main__':
    with one_line_errors():
        main(options)
