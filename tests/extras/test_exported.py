"""A folder of hub: whole or not at all, what its checkpoint is, read without its code."""

import json
import os

import huggingface_hub
import pytest
import torch
from conftest import REFERENCE, ROOT, make_model, one_line

import train
from anyorder.checkpoint import (
    Checkpoint,
    digest,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from anyorder.extras.hub.exported import write_exported
from anyorder.extras.hub.folders import read_weights
from anyorder.orders import Order
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training.start import start_checkpoint, start_model
from anyorder.writer import Writer
from configurator import configure
from model import EMA

save_file = pytest.importorskip('safetensors.torch').save_file

SIZES = dict(vocab_size=64, n_tokens=4)  # as sudoku4 has them
CONFIG = {
    'out_dir': '/home/me/runs/x',
    'data_dir': '/home/me/data',
    'dataset': 'mine',
    'documents': 'apart',
    'order': 'block:3@7',
    'l2r_ratio': 0.25,
    'block_size': 9,
    'device': 'cuda:1',
    'source': 'hf:me/mine.2/en, fingerprint 12',
    'started_from': [{'name': 'gpt2'}, {'name': 'hf:me/one/ckpt.pt'}, {'name': 'ckpt.pt'}],
}
ENTRIES = {'iter_num': 20, 'config': CONFIG, 'tokenizer': 'sudoku4'}
ENTRIES['counts'] = torch.tensor([5, 0, 2**40, 1])


@pytest.fixture
def checkpoint(tmp_path):
    """checkpoint(**sizes) writes run/ckpt.pt of a small model, and returns its path.

    The average differs from the weights."""

    def write(**sizes):
        model = make_model(**SIZES | sizes).float()
        ema = EMA(model, 0.9)
        with torch.no_grad():
            for p in ema.model.parameters():
                p.add_(0.1)
        (tmp_path / 'run').mkdir(exist_ok=True)
        path = tmp_path / 'run' / 'ckpt.pt'
        save_checkpoint(path, model, ema, **ENTRIES)
        return str(path)

    return write


@pytest.fixture
def export(script):
    """export(ckpt, folder, *options) writes the folder and returns what the command says."""

    def write(ckpt, folder, *options):
        return script('anyorder.extras.hub', f'--ckpt={ckpt}', f'--out={folder}', *options).stdout

    return write


@pytest.fixture
def refusal(script):
    """refusal(ckpt, folder, *options) is the error of the command."""

    def write(ckpt, folder, *options):
        ran = script('anyorder.extras.hub', f'--ckpt={ckpt}', f'--out={folder}', *options, code=1)
        return ran.stderr

    return write


def same_model(a, b, weights='ema'):
    return digest(model_from_checkpoint(a, weights)) == digest(model_from_checkpoint(b, weights))


@pytest.mark.parametrize(
    'sizes',
    [
        dict(),
        dict(bias=False),
        dict(attention='bidirectional'),
        dict(attention='mixed'),
        dict(target_position='two_stream'),
        dict(target_position='input', gpt2_blocks=True),
        dict(rotary=True),
        dict(target_position='layer'),
        dict(target_position='layer_shared'),
    ],
)
def test_a_folder_is_the_model_of_its_checkpoint(checkpoint, export, tmp_path, sizes):
    path = checkpoint(**sizes)
    export(path, tmp_path / 'hf')
    assert same_model(tmp_path / 'hf', path)
    tied = sizes.get('gpt2_blocks', False)
    assert ('lm_head.weight' in read_weights(tmp_path / 'hf')) is not tied


def test_a_folder_keeps_what_commands_ask_of_a_checkpoint(checkpoint, export, tmp_path):
    path = checkpoint()
    folder = str(tmp_path / 'hf')
    said = export(path, folder)
    assert digest(model_from_checkpoint(path)) in said
    old = Checkpoint(path)
    new = Checkpoint(folder)
    assert new.order == old.order == Order('block', 3, seed=7, length=9)
    assert new.config == old.config
    assert new.tokenizer == old.tokenizer
    assert new.weights == 'ema'
    assert new.iter_num == 20
    assert new.run['l2r_ratio'] == 0.25
    for option in ('dataset', 'documents'):
        assert new.run[option] == CONFIG[option]
    assert torch.equal(new.counts, old.counts)


def test_a_folder_shows_nothing_of_a_machine_and_has_model_py(checkpoint, export, tmp_path):
    folder = tmp_path / 'hf'
    export(checkpoint(), folder)
    for file in folder.iterdir():
        shown = file.read_text(encoding='utf-8', errors='replace')
        for private in ('/home/me', str(tmp_path), 'cuda:1'):
            assert private not in shown
    with open(os.path.join(ROOT, 'model.py'), 'rb') as f:
        assert (folder / 'model.py').read_bytes() == f.read()


def test_raw_weights_are_no_average(checkpoint, export, tmp_path):
    path = checkpoint()
    folder = tmp_path / 'hf'
    export(path, folder, '--weights=raw')
    assert same_model(folder, path, 'raw')
    assert digest(model_from_checkpoint(path, 'raw')) != digest(model_from_checkpoint(path))
    assert Checkpoint(str(folder)).weights == 'raw'
    with pytest.raises(ValueError, match="holds no EMA of its .* ask for weights='raw'"):
        model_from_checkpoint(folder)


def test_an_average_is_not_exported_as_raw_weights(checkpoint, export, refusal, tmp_path):
    export(checkpoint(), tmp_path / 'hf')
    said = refusal(tmp_path / 'hf', tmp_path / 'raw', '--weights=raw')
    assert 'they are not raw' in said
    assert not (tmp_path / 'raw').exists()


@pytest.mark.parametrize('name', ['adaln_small', 'adaln_1024', 'sigma_small'])
def test_published_files_come_back_with_the_same_digest(export, tmp_path, name):
    path = os.path.join(REFERENCE, f'{name}.ckpt.pt')
    folder = tmp_path / 'hf'
    assert 'left out' in export(path, folder)
    assert same_model(folder, path)
    assert not (folder / 'tokenizer.json').exists()


def test_commands_take_a_folder(checkpoint, export, script, tmp_path, monkeypatch):
    path = checkpoint()
    folder = f'{tmp_path}/hf'
    export(path, folder)

    def texts(ckpt):
        out = tmp_path / 's.json'
        script('sample.py', f'--ckpt={ckpt}', f'--out={out}', '--order=own', '--n_samples=2')
        return [sample['tokens'] for sample in json.loads(out.read_text())['samples']]

    assert texts(path) == texts(folder)
    opened, config, _ = start_checkpoint(configure(vars(train), [f'--init_from={folder}']))
    assert config.block_size == 9
    assert digest(start_model(config, opened, opened.tokenizer)) == digest(opened.model())
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', lambda repo, allow_patterns: folder)
    assert digest(Writer('hf:me/mine').model) == digest(opened.model())


@pytest.mark.slow
def test_the_commands_of_the_page_say_the_same_of_a_folder_and_its_checkpoint(
    ckpt, export, script, tmp_path
):
    folder = f'{tmp_path}/hf'
    export(ckpt, folder, '--weights=raw')
    (tmp_path / 'text.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 20)
    found = {}
    for name in (ckpt, folder):
        which = (f'--ckpt={name}', '--weights=raw')
        prompt = '--prompt=If [[6]] is [[..]].'
        script('sample.py', *which, '--order=margin', prompt, '--out=s.json')
        script('eval_ppl.py', *which, '--datasets=text.txt', '--n_blocks=4', '--out=ppl.json')
        samples = json.loads((tmp_path / 's.json').read_text())['samples']
        rows = json.loads((tmp_path / 'ppl.json').read_text())['results']
        texts = [sample['tokens'] for sample in samples]
        nats = [row['nats_per_token'] for row in rows]
        assert len(nats) > 1
        found[name] = texts, nats
    assert found[ckpt] == found[folder]


def test_a_folder_that_holds_files_stays(checkpoint, refusal, tmp_path):
    mine = tmp_path / 'mine'
    mine.mkdir()
    (mine / 'notes.txt').write_text('mine')
    said = refusal(checkpoint(), mine)
    assert f'out must name a new folder, and {mine} holds files' in said
    assert os.listdir(mine) == ['notes.txt']


def test_a_folder_wants_a_name(checkpoint, refusal):
    assert 'out must name a folder' in refusal(checkpoint(), '')


def test_a_folder_appears_whole_or_not_at_all(checkpoint, refusal, tmp_path, monkeypatch):
    def full(*args):
        raise OSError('No space left on device')

    monkeypatch.setattr('shutil.copyfile', full)
    assert 'No space left' in refusal(checkpoint(), tmp_path / 'hf')
    assert os.listdir(tmp_path) == ['run']


def test_the_code_of_a_folder_does_not_run(tmp_path):
    model = make_model().float()
    write_exported(tmp_path, model, {}, None, 'raw')
    for name in ('modeling_aogpt.py', 'model.py'):
        (tmp_path / name).write_text('raise SystemExit("code of the folder has run")')
    assert digest(model_from_checkpoint(tmp_path, 'raw')) == digest(model)


END = {'tokenizer': 'own', 'n_tokens': 4, 'eos': 2, 'vocabulary': ['a', 'b', 'end', 'aa']}


@pytest.mark.parametrize(
    'kind, attention',
    [
        ({'tokenizer': 'bytes'}, 'causal'),
        ({'tokenizer': 'sudoku4'}, 'causal'),
        (END, 'causal'),
        ({'tokenizer': 'bytes'}, 'bidirectional'),
    ],
)
def test_a_folder_says_how_to_draw_and_that_padding_is_no_end(tmp_path, kind, attention):
    tokenizer = tokenizer_of_set(kind)
    n = tokenizer.n_tokens
    model = make_model(vocab_size=n, attention=attention)
    write_exported(tmp_path, model, {'set': kind}, tokenizer, 'raw')
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.glob('*.json')}

    special = {'pad_token_id': n + 1}
    if tokenizer.eos is not None:
        special |= {'bos_token_id': tokenizer.eos, 'eos_token_id': tokenizer.eos}
    config = files['config.json']
    assert {name: config[name] for name in config if name.endswith('token_id')} == special
    law = {'do_sample': True, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'max_length': 9}
    if attention == 'causal':
        assert files['generation_config.json'] == law | special
    else:
        assert 'generation_config.json' not in files

    added = {token['content']: token['id'] for token in files['tokenizer.json']['added_tokens']}
    named = files['tokenizer_config.json']
    assert added[named['mask_token']] == n
    assert added[named['pad_token']] == n + 1
    assert named['pad_token'] != named.get('eos_token')


def test_a_config_that_is_broken_is_one_line(checkpoint, export, tmp_path):
    folder = tmp_path / 'hf'
    export(checkpoint(), folder)
    config = json.loads((folder / 'config.json').read_text())
    shorter = config['model_args'] | {'block_size': 8}
    for change, said in (
        ({'model_args': None}, 'it has no model_args'),
        ({'model_args': shorter}, 'weights differ in name or shape'),
        ({'tokenizer': 'char'}, "the tokenizer 'char'"),
        ({'tokenizer': 'bytes'}, 'bytes has 257'),
        ({'model_type': 'bert'}, f'masked:{folder}'),
    ):
        (folder / 'config.json').write_text(json.dumps(config | change))
        with one_line(said):
            Checkpoint(str(folder)).model()


def test_weights_that_are_broken_are_one_line(checkpoint, export, tmp_path):
    folder = tmp_path / 'hf'
    export(checkpoint(), folder)
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match='cannot be read as weights'):
        load_checkpoint(folder)
    path.unlink()
    with pytest.raises(ValueError, match='holds no weights of an AO-GPT'):
        load_checkpoint(folder)


def write_tied(folder, prefix, model):
    """Write the folder of a model; returns its weights with a head, by names with the prefix."""
    write_exported(folder, model, {}, None, 'raw')
    weights = {prefix + name: p for name, p in read_weights(folder).items()}
    embedding = weights[f'{prefix}transformer.wte.weight']
    return weights | {f'{prefix}lm_head.weight': embedding.clone()}


@pytest.fixture
def tied():
    return make_model(target_position='input', gpt2_blocks=True).float()


@pytest.mark.parametrize('prefix', ['network.', 'module.network.', ''])
def test_a_tied_head_may_be_stored_alone(tied, tmp_path, prefix):
    weights = write_tied(tmp_path, prefix, tied)
    del weights[f'{prefix}transformer.wte.weight']
    save_file(weights, tmp_path / 'model.safetensors', {'format': 'pt'})
    assert digest(model_from_checkpoint(tmp_path, 'raw')) == digest(tied)


def test_a_tied_head_may_be_stored_twice(tied, tmp_path):
    weights = write_tied(tmp_path, 'network.', tied)
    save_file(weights, tmp_path / 'model.safetensors', {'format': 'pt'})
    assert digest(model_from_checkpoint(tmp_path, 'raw')) == digest(tied)


@pytest.mark.parametrize('prefix', ['network.', 'network._orig_mod.'])
def test_a_head_that_was_trained_apart_is_refused(tied, tmp_path, prefix):
    weights = write_tied(tmp_path, prefix, tied)
    weights[f'{prefix}lm_head.weight'] += 1
    save_file(weights, tmp_path / 'model.safetensors', {'format': 'pt'})
    with one_line(f'{tmp_path} has a head of its own'):
        load_checkpoint(tmp_path)  # before anything is computed


def test_a_model_of_a_learned_tokenizer_is_exported_with_it(tmp_path, export, hub_modules):
    """transformers reads the same ids, and a set prepared with the folder fits the model."""
    transformers = pytest.importorskip('transformers')
    from anyorder.checkpoint import open_checkpoint
    from anyorder.tokens.choices import of_folder
    from anyorder.tokens.libraries import train_bpe

    text = 'the rain and the wind, né 日本'
    ours = train_bpe('bpe:280', 280, [text] * 3)
    kind = {'tokenizer': ours.name, 'n_tokens': ours.n_tokens, 'eos': ours.eos, 'given': False}
    entries = {'tokenizer': ours.name, 'set': kind | {'tokenizer_file': ours.file}}
    model = make_model(vocab_size=320, n_tokens=ours.n_tokens).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, EMA(model, 0.9), **entries)
    folder = str(tmp_path / 'hf')
    export(str(tmp_path / 'ckpt.pt'), folder)

    theirs = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = ours.encode(text)
    assert theirs(text)['input_ids'] == ids
    assert theirs.decode(ids) == text
    assert theirs.eos_token_id == ours.eos
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tokenizer.identity == ours.identity
    assert digest(checkpoint.model()) == digest(model)
    assert of_folder(folder, 'hf/').identity == ours.identity
