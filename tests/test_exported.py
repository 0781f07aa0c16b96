"""A folder of export_hf.py: whole or not at all, the model and order of its checkpoint, read without its code."""

import importlib.util
import json
import os

import huggingface_hub
import pytest
import torch
from conftest import ROOT, make_model, one_line

import train
from anyorder.checkpoint import (
    Checkpoint,
    digest,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from anyorder.orders import Order
from anyorder.others.exported import write_exported
from anyorder.others.tokenizer_files import byte_letters
from anyorder.others.weights import read_weights
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training.start import start_checkpoint, start_model
from anyorder.writer import Writer
from configurator import configure
from model import EMA

pytest.importorskip('safetensors')
TRANSFORMERS = importlib.util.find_spec('transformers')  # knows which models are masked

REFERENCE = os.path.join(os.path.dirname(__file__), 'reference')
SIZES = dict(vocab_size=64, n_tokens=4)  # as sudoku4 has them
CONFIG = {
    'out_dir': '/home/me/runs/x',
    'data_dir': '/home/me/data',
    'dataset': 'mine',
    'order': 'block:3',
    'order_seed': 7,
    'l2r_ratio': 0.25,
    'block_size': 9,
    'device': 'cuda:1',
    'source': 'hf:me/mine.2/en, fingerprint 12',
    'started_from': [
        {'name': name, 'digest': '12'} for name in ('gpt2', 'hf:me/one/ckpt.pt', 'ckpt.pt')
    ],
}
PUZZLE = {'task': 'sudoku', 'rows': 2, 'columns': 2}


@pytest.fixture
def checkpoint(tmp_path):
    """checkpoint(**sizes) writes run/ckpt.pt of a small model, whose average differs from its weights; its path."""

    def write(**sizes):
        model = make_model(**SIZES | sizes).float()
        ema = EMA(model, 0.9)
        with torch.no_grad():
            for p in ema.model.parameters():
                p.add_(0.1)
        (tmp_path / 'run').mkdir(exist_ok=True)
        path = tmp_path / 'run' / 'ckpt.pt'
        save_checkpoint(
            path, model, ema, iter_num=20, config=CONFIG, tokenizer='sudoku4', puzzle=PUZZLE
        )
        log = [{'iter': 10, 'val_any': 9.0}, {'iter': 20, 'val_any': 1.25, 'val_l2r': 0.5}]
        (tmp_path / 'run' / 'log.jsonl').write_text(
            ''.join(json.dumps(entry) + '\n' for entry in log)
        )
        return str(path)

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
def test_a_folder_is_the_model_of_its_checkpoint(checkpoint, script, tmp_path, sizes):
    path = checkpoint(**sizes)
    script('export_hf.py', f'--ckpt={path}', f'--out={tmp_path}/hf')
    assert same_model(tmp_path / 'hf', path)
    tied = sizes.get('gpt2_blocks', False)
    assert ('lm_head.weight' in read_weights(tmp_path / 'hf')) is not tied


def test_a_folder_keeps_what_commands_ask_of_a_checkpoint(checkpoint, script, tmp_path):
    path, folder = checkpoint(), str(tmp_path / 'hf')
    said = script('export_hf.py', f'--ckpt={path}', f'--out={folder}').stdout
    assert 'any order (bound) 1.2500 nats a token, left to right 0.5000' in said
    assert digest(model_from_checkpoint(path)) in said
    old, new = Checkpoint(path), Checkpoint(folder)
    assert new.order == old.order == Order('block', 3, seed=7, length=9)
    assert (new.config, new.tokenizer, new.weights, new.iter_num) == (
        old.config,
        old.tokenizer,
        'ema',
        20,
    )
    assert (
        new.run['l2r_ratio'] == 0.25
        and new.run['dataset'] == 'mine'
        and new.entries['puzzle'] == PUZZLE
    )
    shown = ''.join(
        open(os.path.join(folder, name), encoding='utf-8', errors='replace').read()
        for name in os.listdir(folder)
    )
    assert '/home/me' not in shown and str(tmp_path) not in shown and 'cuda:1' not in shown
    card = (tmp_path / 'hf' / 'README.md').read_text()
    assert (
        '| started from | gpt2, digest 12; hf:me/one/ckpt.pt, digest 12; ckpt.pt, digest 12 |'
        in card
    )
    assert '\ndatasets: [me/mine.2]\nbase_model: [me/one]\n#' in card  # what is on the hub, alone
    assert (
        '| any order (bound) | 1.2500 | 3.49 |' in card
        and '| left to right | 0.5000 | 1.65 |' in card
    )
    assert (tmp_path / 'hf' / 'model.py').read_bytes() == open(
        os.path.join(ROOT, 'model.py'), 'rb'
    ).read()


def test_raw_weights_are_no_average_and_have_no_validation(checkpoint, script, tmp_path):
    path, folder = checkpoint(), tmp_path / 'hf'
    script('export_hf.py', f'--ckpt={path}', f'--out={folder}', '--weights=raw')
    assert same_model(folder, path, 'raw')
    assert digest(model_from_checkpoint(path, 'raw')) != digest(model_from_checkpoint(path))
    assert Checkpoint(str(folder)).weights == 'raw' and 'Validation' not in (
        card := (folder / 'README.md').read_text()
    )
    assert 'python sample.py --ckpt=DIR --weights=raw' in card
    with pytest.raises(ValueError, match="holds no EMA of its .* ask for weights='raw'"):
        model_from_checkpoint(folder)


def test_an_average_is_not_exported_as_raw_weights(checkpoint, script, tmp_path):
    path, folder = checkpoint(), tmp_path / 'hf'
    script('export_hf.py', f'--ckpt={path}', f'--out={folder}')
    said = script(
        'export_hf.py', f'--ckpt={folder}', f'--out={tmp_path}/raw', '--weights=raw', code=1
    ).stderr
    assert 'they are not raw' in said and not (tmp_path / 'raw').exists()


def test_a_checkpoint_that_was_moved_aside_has_no_validation_of_the_new_run(
    checkpoint, script, tmp_path
):
    path = checkpoint()
    os.rename(path, f'{path}.old-1')
    assert (
        'validation'
        not in script('export_hf.py', f'--ckpt={path}.old-1', f'--out={tmp_path}/hf').stdout
    )


@pytest.mark.parametrize('name', ['adaln_small', 'adaln_1024', 'sigma_small'])
def test_published_files_come_back_with_the_same_digest(script, tmp_path, name):
    path = os.path.join(REFERENCE, f'{name}.ckpt.pt')
    assert 'left out' in script('export_hf.py', f'--ckpt={path}', f'--out={tmp_path}/hf').stdout
    assert same_model(tmp_path / 'hf', path) and not (tmp_path / 'hf' / 'tokenizer.json').exists()
    assert (
        'None' not in (tmp_path / 'hf' / 'README.md').read_text().partition('##')[0]
    )  # nothing is known of the run


def test_commands_take_a_folder(checkpoint, script, tmp_path, monkeypatch):
    path, folder = checkpoint(), f'{tmp_path}/hf'
    script('export_hf.py', f'--ckpt={path}', f'--out={folder}')
    texts = []
    for name in (path, folder):
        script(
            'sample.py',
            f'--ckpt={name}',
            f'--out={tmp_path}/s.json',
            '--order=own',
            '--n_samples=2',
        )
        texts.append(
            [s['tokens'] for s in json.loads((tmp_path / 's.json').read_text())['samples']]
        )
    assert texts[0] == texts[1]
    opened, config, _ = start_checkpoint(configure(vars(train), [f'--init_from={folder}']))
    assert config.block_size == 9 and digest(start_model(config, opened, 4)) == digest(
        opened.model()
    )
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', lambda repo, allow_patterns: folder)
    assert digest(Writer('hf:me/mine').model) == digest(opened.model())


@pytest.mark.slow
def test_the_commands_of_the_page_say_the_same_of_a_folder_and_its_checkpoint(
    ckpt, script, tmp_path
):
    folder, found = f'{tmp_path}/hf', {}
    script('export_hf.py', f'--ckpt={ckpt}', f'--out={folder}', '--weights=raw')
    (tmp_path / 'text.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 20)
    for name in (ckpt, folder):
        which = f'--ckpt={name}', '--weights=raw'
        script(
            'sample.py', *which, '--order=margin', '--prompt=If [[6]] is [[..]].', '--out=s.json'
        )
        script('eval_ppl.py', *which, '--datasets=text.txt', '--n_blocks=4', '--out=ppl.json')
        samples = json.loads((tmp_path / 's.json').read_text())['samples']
        rows = json.loads((tmp_path / 'ppl.json').read_text())['results']
        found[name] = (
            [sample['tokens'] for sample in samples],
            [row['nats_per_token'] for row in rows],
        )
    assert found[ckpt] == found[folder] and len(found[ckpt][1]) > 1


def test_a_folder_appears_whole_or_not_at_all(checkpoint, script, tmp_path, monkeypatch):
    path = checkpoint()
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'notes.txt').write_text('mine')
    said = script('export_hf.py', f'--ckpt={path}', f'--out={tmp_path}/mine', code=1).stderr
    assert f'out must name a new folder, and {tmp_path}/mine holds files' in said
    assert 'out must name a folder' in script('export_hf.py', f'--ckpt={path}', code=1).stderr

    def full(*args):
        raise OSError('No space left on device')

    monkeypatch.setattr('shutil.copyfile', full)
    assert (
        'No space left'
        in script('export_hf.py', f'--ckpt={path}', f'--out={tmp_path}/hf', code=1).stderr
    )
    assert sorted(os.listdir(tmp_path)) == ['mine', 'run'] and os.listdir(tmp_path / 'mine') == [
        'notes.txt'
    ]


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
    write_exported(
        tmp_path, make_model(vocab_size=n, attention=attention), {'set': kind}, tokenizer, 'raw'
    )
    files = {
        name: json.loads((tmp_path / name).read_text())
        for name in os.listdir(tmp_path)
        if name.endswith('.json')
    }
    config, drawing = files['config.json'], files.get('generation_config.json')
    ends = (
        {}
        if tokenizer.eos is None
        else {'bos_token_id': tokenizer.eos, 'eos_token_id': tokenizer.eos}
    )
    special = ends | {'pad_token_id': n + 1}
    assert {name: config[name] for name in config if name.endswith('token_id')} == special
    law = {'do_sample': True, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'max_length': 9}
    assert drawing == (law | special if attention == 'causal' else None)
    added = {token['content']: token['id'] for token in files['tokenizer.json']['added_tokens']}
    named = files['tokenizer_config.json']
    assert (added[named['mask_token']], added[named['pad_token']]) == (n, n + 1)
    assert named['pad_token'] != named.get('eos_token')


def test_a_broken_folder_is_one_line(checkpoint, script, tmp_path):
    folder = tmp_path / 'hf'
    script('export_hf.py', f'--ckpt={checkpoint()}', f'--out={folder}')
    config, weights = (
        json.loads((folder / 'config.json').read_text()),
        (folder / 'model.safetensors').read_bytes(),
    )
    for change, said in (
        ({'model_args': None}, 'it has no model_args'),
        (
            {'model_args': config['model_args'] | {'block_size': 8}},
            'weights differ in name or shape',
        ),
        ({'tokenizer': 'char'}, "the tokenizer 'char'"),
        ({'tokenizer': 'bytes'}, 'bytes has 257'),
        ({'model_type': 'bert'}, f'masked:{folder}' if TRANSFORMERS else 'needs transformers'),
    ):
        (folder / 'config.json').write_text(json.dumps(config | change))
        with one_line(said):
            Checkpoint(str(folder)).model()
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'model.safetensors').write_bytes(weights[:-1])
    with pytest.raises(ValueError, match='cannot be read as weights'):
        load_checkpoint(folder)
    (folder / 'model.safetensors').unlink()
    with pytest.raises(ValueError, match='holds no weights of an AO-GPT'):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    'prefix, stored',
    [
        ('network.', 'head'),
        ('network.', 'both'),
        ('network.', 'apart'),
        ('module.network.', 'head'),
        ('network._orig_mod.', 'apart'),
        ('', 'head'),
    ],
)
def test_a_tied_head_of_a_folder(tmp_path, prefix, stored):
    from safetensors.torch import save_file

    model = make_model(target_position='input', gpt2_blocks=True).float()
    write_exported(tmp_path, model, {}, None, 'raw')
    weights = {
        prefix + name.removeprefix('network.'): p for name, p in read_weights(tmp_path).items()
    }
    embedding, head = f'{prefix}transformer.wte.weight', f'{prefix}lm_head.weight'
    weights[head] = weights[embedding] + (stored == 'apart')
    if stored == 'head':
        weights.pop(embedding)
    save_file(weights, tmp_path / 'model.safetensors', {'format': 'pt'})
    if stored == 'apart':
        with one_line(f'{tmp_path} has a head of its own'):
            load_checkpoint(tmp_path)  # before anything is computed
        return
    assert digest(model_from_checkpoint(tmp_path, 'raw')) == digest(model)


def test_bytes_have_the_letters_of_gpt2():
    """Its first ids are the bytes that print, its last of 256 the soft hyphen; a space is the letter Ġ."""
    letters = byte_letters()
    assert list(letters)[::255] == [ord('!'), 0xAD] and letters[32] == 'Ġ' and letters[10] == 'Ċ'
    assert sorted(letters) == list(range(256)) and len(set(letters.values())) == 256
