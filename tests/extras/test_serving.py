"""The endpoint of results/serving, asked by the openai package and by curl."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, make_model

from anyorder import Writer
from anyorder.checkpoint import save_checkpoint

pytest.importorskip('starlette')
openai = pytest.importorskip('openai')

from starlette.testclient import TestClient

from results.serving import serve

pytestmark = pytest.mark.slow

LONG = {'model': 'toy', 'prompt': '[[63]]', 'n': 128}


class Running:
    """The server as a process of its own, and a client of it."""

    def __init__(self, folder, wait=0):
        model = make_model(block_size=64, vocab_size=320, n_tokens=257).float()
        self.ckpt = str(folder / 'toy' / 'ckpt.pt')
        os.makedirs(os.path.dirname(self.ckpt))
        save_checkpoint(self.ckpt, model, tokenizer='bytes', config={})
        program = os.path.join('results', 'serving', 'serve.py')
        command = [sys.executable, program, f'--ckpt={self.ckpt}', '--port=0', f'--wait={wait}']
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        lines = iter(self.process.stderr.readline, '')
        self.url = next(found[0] for found in map(at_address, lines) if found) + '/v1'
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.client = openai.OpenAI(base_url=self.url, api_key='none', max_retries=0)

    def ask(self, prompt, **fields):
        """The choices of an answer, or those of the chunks of a stream."""
        names = ('order', 'n_steps', 'top_k')
        ours = {name: fields.pop(name) for name in names if name in fields}
        create = self.client.completions.create
        answer = create(model='toy', prompt=prompt, extra_body=ours, **fields)
        if not fields.get('stream'):
            return answer.choices
        return (chunk.choices[0] for chunk in answer)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(60)


def at_address(line):
    return re.search(r'http://127\.0\.0\.1:\d+', line)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp('served'))
    yield running
    assert running.end(signal.SIGINT) == 0


@pytest.fixture(scope='module')
def writer(server):
    return Writer(server.ckpt, device='cpu')


def test_models_are_listed(server):
    assert [model.id for model in server.client.models.list()] == ['toy']
    assert server.client.models.retrieve('toy').id == 'toy'
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve('boy')


def test_an_answer_is_what_the_writer_writes(server, writer):
    asked = {'n': 2, 'seed': 3, 'temperature': 0.5, 'presence_penalty': 0.1, 'top_p': 0.9}
    choices = server.ask(['The ', 'A [[3]]-[[..]]!'], order='margin', max_tokens=9, **asked)
    given = asked | {'order': 'margin'}
    plain = writer.infill('The [[9]]', **given)
    asked['seed'] += 2
    template = writer.infill('A [[3]]-[[..]]!', length=16, **given | asked)
    assert [choice.text for choice in choices[:2]] == [text[4:] for text in plain]
    assert [choice.text for choice in choices[2:]] == [text[2:-1] for text in template]
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    assert server.ask('', max_tokens=3, seed=1)[0].text == writer.infill(
        '[[3]]', order='l2r', seed=1
    )


def test_a_middle_finds_its_length_before_its_suffix(server, writer):
    (choice,) = server.ask('The val', suffix=' is', max_tokens=5, seed=4)
    assert f'The val{choice.text} is' == writer.infill('The val[[1-5]] is', order='l2r', seed=4)
    (choice,) = server.ask('The val', suffix=' is', max_tokens=1)
    assert choice.finish_reason == 'length'


def test_a_stop_is_left_out_of_a_text_that_goes_on(server, writer):
    whole = writer.infill('The [[20]]', order='l2r', seed=1)[4:]
    stop = next(letter for letter in whole[3:] if letter.isascii())
    (choice,) = server.ask('The ', max_tokens=20, seed=1, stop=[stop], logprobs=0)
    assert choice.text == whole.partition(stop)[0]
    assert choice.finish_reason == 'stop'
    assert ''.join(choice.logprobs.tokens) == choice.text


def test_probabilities_are_those_of_the_writer(server, writer):
    (choice,) = server.ask('A[[2]]b[[2]]', order='margin', seed=2, logprobs=3, top_k=2)
    known = writer.infill('A[[2]]b[[2]]', order='margin', seed=2, top_logprobs=3, top_k=2)
    found = choice.logprobs
    for said, nats, top in zip(known.top_logprobs[1:], found.token_logprobs, found.top_logprobs):
        if said is None:
            assert nats is top is None
            continue
        assert nats == pytest.approx(said['logprob'])
        assert top == {one['text']: pytest.approx(one['logprob']) for one in reversed(said['top'])}
    sizes = [len(text) for text in found.tokens]
    assert found.text_offset == [0, *itertools.accumulate(sizes)][:5]


@pytest.mark.parametrize('order', ['l2r', 'margin'])
@pytest.mark.parametrize('stop', [None, ['th', 'q']])
def test_a_stream_tells_the_same_text(server, writer, order, stop):
    asked = {'order': order, 'n': 2, 'seed': 7, 'stop': stop, 'max_tokens': 30, 'logprobs': 1}
    whole = server.ask('The ', **asked)
    texts = ['', '']
    written = [{}, {}]
    for chunk in server.ask('The ', stream=True, **asked):
        texts[chunk.index] += chunk.text
        for one in getattr(chunk, 'written', ()):
            assert one['position'] not in written[chunk.index]
            written[chunk.index][one['position']] = one['token']
        if chunk.finish_reason:
            assert chunk.finish_reason == whole[chunk.index].finish_reason
            nats = whole[chunk.index].logprobs.token_logprobs
            assert chunk.logprobs.token_logprobs == pytest.approx(nats, abs=1e-4)
    assert texts == [choice.text for choice in whole]
    for text, tokens in zip(texts, written):
        from_left = itertools.takewhile(tokens.__contains__, itertools.count(4))
        assert writer.tokenizer.decode([tokens[p] for p in from_left]).startswith(text)


@pytest.mark.parametrize(
    'fields, param',
    [
        ({'max_token': 3}, 'max_token'),
        ({'temperature': 'hot'}, 'temperature'),
        ({'temperature': float('nan')}, 'temperature'),
        ({'temperature': -1.0}, None),
        ({'top_p': 2.0}, None),
        ({'n': 0}, 'n'),
        ({'seed': 0.5}, 'seed'),
        ({'prompt': None}, 'prompt'),
        ({'prompt': []}, 'prompt'),
        ({'prompt': 'a' * 65}, None),
        ({'prompt': 'a' * 10**6}, None),
        ({'prompt': 'a' * 49}, None),
        ({'prompt': 'The [[x]]'}, None),
        ({'prompt': 'The [[65]]'}, None),
        ({'prompt': '\ud800'}, None),
        ({'stop': ['a', '']}, 'stop'),
        ({'stop': 3}, 'stop'),
        ({'n': 129}, None),
        ({'n': 2, 'prompt': ['a'] * 65}, None),
        ({'echo': True}, 'echo'),
        ({'best_of': 2}, 'best_of'),
        ({'frequency_penalty': 0.5}, 'frequency_penalty'),
        ({'logit_bias': {'5': 1}}, 'logit_bias'),
        ({'order': 'steps.py:law'}, 'order'),
        ({'order': 'order.json'}, 'order'),
        ({'order': 'merge'}, None),
        ({'order': 'few:99999'}, 'order'),
        ({'unmask': 'lossless:99999999999999999999'}, 'unmask'),
        ({'n_steps': 0}, None),
    ],
)
def test_what_is_wrong_is_one_error(server, fields, param):
    body = json.dumps({'model': 'toy', 'prompt': 'The '} | fields)
    said = asked_raw(server, body.encode())
    assert said.status_code == 400
    assert said.json()['error'].keys() == {'message', 'type', 'param', 'code'}
    assert said.json()['error']['param'] == param
    assert '\n' not in said.json()['error']['message']
    assert server.client.models.list().data


@pytest.mark.parametrize('body', [b'', b'{', b'[]', b'"The "', b'\xff', b'{"model": "toy",}'])
def test_what_is_no_request_is_one_error(server, body):
    said = asked_raw(server, body)
    assert said.status_code == 400
    assert said.json()['error']['type'] == 'invalid_request_error'


def test_a_request_that_is_too_large_is_one_error(server):
    body = b'{"model": "toy", "prompt": "%s"}' % (b'a' * 2**23)
    for content in (body, iter([body[:9], body[9:]])):  # and without its length in the head
        said = asked_raw(server, content)
        assert said.status_code == 413
        assert said.json()['error']['type'] == 'invalid_request_error'


def test_an_address_says_how_it_is_asked(server):
    said = server.client._client.get(f'{server.url}/completions')
    assert said.status_code == 405
    assert said.headers['allow'] == 'POST'
    assert said.json()['error']['type'] == 'invalid_request_error'


def test_what_changes_nothing_is_taken(server):
    """As clients send it that name every field."""
    asked = {'seed': 1, 'max_tokens': 5}
    nothing = {'best_of': 1, 'echo': False, 'frequency_penalty': 0.0, 'logit_bias': {}}
    (choice,) = server.ask('The ', **asked, **nothing, user='me')
    assert choice.text == server.ask('The ', **asked)[0].text


def test_a_failure_is_told_also_amid_a_stream(writer, monkeypatch):
    """As without memory: status 500, or an event behind those of the texts."""
    write = Writer.write

    def failing(self, *args):
        steps = write(self, *args)
        yield next(steps)
        raise RuntimeError('out of memory')

    monkeypatch.setattr(Writer, 'write', failing)
    app = serve.Answers(writer, 'toy').app()
    body = {'model': 'toy', 'prompt': 'The '}
    with TestClient(app, raise_server_exceptions=False) as client:
        said = client.post('/v1/completions', json=body)
        stream = client.post('/v1/completions', json=body | {'stream': True}).text.split('\n\n')
    assert said.status_code == 500
    assert 'choices' in json.loads(stream[0][6:])
    assert json.loads(stream[1][6:]) == said.json()
    assert said.json()['error']['type'] == 'server_error'
    assert stream[2:] == ['data: [DONE]', '']


def asked_raw(server, body):
    http = server.client._client
    return http.post(f'{server.url}/completions', content=body)


@pytest.mark.skipif(shutil.which('curl') is None, reason='there is no curl')
def test_curl_reads_events(server):
    body = json.dumps({'model': 'toy', 'prompt': 'The [[2]]', 'stream': True})
    command = ['curl', '-sN', f'{server.url}/completions', '-d', body]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    events = said.split('\n\n')
    assert [event[:7] for event in events[:3]] == ['data: {', 'data: {', 'data: {']
    assert events[3:] == ['data: [DONE]', '']


def test_requests_take_turns(server):
    alone = server.ask('The [[9]]', seed=1)[0].text
    chunks = server.ask('[[63]]', n=4, stream=True)
    seen = [next(chunks)]
    reads = threading.Thread(target=seen.extend, args=(chunks,))
    reads.start()
    assert server.ask('The [[9]]', seed=1)[0].text == alone
    n_before = len(seen)
    reads.join()
    assert n_before < len(seen) == 4 * 64


def test_who_hangs_up_takes_nothing_from_others(server):
    alone = server.ask('The [[9]]', seed=1)[0].text
    for _ in range(3):
        long = server.client.completions.create(stream=True, **LONG)
        next(iter(long))
        long.close()
    with pytest.raises(openai.APITimeoutError):
        server.client.with_options(timeout=0.1).completions.create(**LONG)
    begun = time.monotonic()
    assert server.ask('The [[9]]', seed=1)[0].text == alone
    assert time.monotonic() - begun < 20  # and their texts, of minutes, are not written


@pytest.mark.parametrize(
    'wait, signals', [(0, [signal.SIGTERM]), (999, [signal.SIGTERM, signal.SIGINT])]
)
def test_texts_are_given_up_when_it_is_to_stop(tmp_path, wait, signals):
    running = Running(tmp_path, wait)
    long = iter(running.client.completions.create(stream=True, **LONG))
    next(long)
    for number in signals:
        running.process.send_signal(number)
        time.sleep(0.2)  # two signals at once may be taken in either order
    with pytest.raises(openai.APIError, match='stops'):
        list(long)
    assert running.process.wait(60) == 0
