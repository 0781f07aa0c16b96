"""Exported models are sent to the hub and come back: huggingface_hub asks a hub of this machine."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import ROOT, make_model

from anyorder import Writer
from anyorder.extras.hub.exported import write_exported
from anyorder.tokens.tokenizers import get_tokenizer

pytest.importorskip('transformers')
pytest.importorskip('huggingface_hub')
pytestmark = pytest.mark.slow

COMMIT = 'c' * 40  # each repository has one


class Hub(BaseHTTPRequestHandler):
    """What of the hub's HTTP API is asked for here; no file goes to another store."""

    protocol_version = 'HTTP/1.1'
    repos = {}  # {name: {path: bytes}}

    def log_message(self, *args):
        """Say nothing."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        if self.path == '/api/validate-yaml':
            self.say({'errors': [], 'warnings': []})
        elif self.path == '/api/repos/create':
            asked = json.loads(body)
            name = f'me/{asked["name"]}'
            self.repos.setdefault(name, {})
            self.say({'url': self.address(name), 'name': name, 'id': name})
        elif self.path.endswith('/preupload/main'):
            paths = [file['path'] for file in json.loads(body)['files']]
            how = {'uploadMode': 'regular', 'shouldIgnore': False, 'oid': None}
            self.say({'files': [how | {'path': path} for path in paths]})
        else:
            assert self.path.endswith('/commit/main')
            self.commit(map(json.loads, body.splitlines()))
            url = self.address(f'{self.repo()}/commit/{COMMIT}')
            self.say({'commitOid': COMMIT, 'commitUrl': url, 'hookOutput': ''})

    def commit(self, lines):
        for line in lines:
            value = line['value']
            if line['key'] == 'file':
                self.repos[self.repo()][value['path']] = base64.b64decode(value['content'])

    def do_GET(self):
        files = self.repos.get(self.repo())
        if files is None:
            self.say({'error': 'Repository not found'}, 404, {'X-Error-Code': 'RepoNotFound'})
        elif '/resolve/' in self.path:
            _, _, path = self.path.partition('/resolve/')[2].partition('/')
            self.say_file(files.get(path))
        elif '/tree/' in self.path:
            self.say([entry_of(path, data) for path, data in files.items()])
        else:
            siblings = [{'rfilename': path} for path in files]
            self.say({'id': self.repo(), 'sha': COMMIT, 'siblings': siblings})

    do_HEAD = do_GET

    def repo(self):
        names = self.path.removeprefix('/api/models').split('/')
        return '/'.join(names[1:3])

    def address(self, path):
        return f'http://{self.headers["Host"]}/{path}'

    def say_file(self, data):
        head = {'X-Repo-Commit': COMMIT}
        if data is None:
            self.say(b'', 404, head | {'X-Error-Code': 'EntryNotFound'})
        else:
            self.say(data, 200, head | {'ETag': f'"{digest_of(data)}"'})

    def say(self, value, status=200, head=()):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**dict(head), 'Content-Length': len(data)}.items():
            self.send_header(name, str(text))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)


def digest_of(data):
    return hashlib.sha1(data).hexdigest()


def entry_of(path, data):
    return {'type': 'file', 'path': path, 'size': len(data), 'oid': digest_of(data)}


@pytest.fixture
def asks_hub(tmp_path):
    """asks_hub(*command) runs a program for which our hub is the hub. Returns its output."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    of_hub = {
        'HF_ENDPOINT': f'http://127.0.0.1:{server.server_port}',
        'HF_HOME': str(tmp_path / 'cache'),
        'HF_TOKEN': 'hf_any',
        'HF_HUB_OFFLINE': '0',
        'NO_PROXY': '127.0.0.1',
    }

    def run(*command):
        env = os.environ | of_hub
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    server.shutdown()
    Hub.repos.clear()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / 'hf'
    path.mkdir()
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    write_exported(path, model, {'tokenizer': 'bytes'}, get_tokenizer('bytes'), 'ema')
    return str(path)


PUSH = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
for kind in (AutoModelForCausalLM, AutoTokenizer):
    kind.from_pretrained(sys.argv[1], trust_remote_code=True).push_to_hub('me/toy')
"""
WRITE = """
from anyorder import Writer
from transformers import AutoModelForCausalLM, AutoTokenizer
for kind in (AutoModelForCausalLM, AutoTokenizer):
    kind.from_pretrained('me/toy', trust_remote_code=True)
print(repr(str(Writer('hf:me/toy', device='cpu').infill('A[[5]]'))))
"""


def test_push_to_hub_sends_a_model_that_comes_back(asks_hub, folder):
    asks_hub(sys.executable, '-c', PUSH, folder)
    assert {'model.safetensors', 'config.json', 'model.py'} <= Hub.repos['me/toy'].keys()
    found = asks_hub(sys.executable, '-c', WRITE).splitlines()
    assert found[-1] == repr(str(Writer(folder, device='cpu').infill('A[[5]]')))


def test_hf_upload_sends_the_folder_as_it_is(asks_hub, folder):
    hf = shutil.which('hf') or os.path.join(os.path.dirname(sys.executable), 'hf')
    asks_hub(hf, 'upload', 'me/toy', folder)
    for path, data in Hub.repos['me/toy'].items():
        with open(os.path.join(folder, path), 'rb') as f:
            assert f.read() == data
    assert {*os.listdir(folder)} <= {*Hub.repos['me/toy'], '.cache'}
