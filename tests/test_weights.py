"""Files of weights as Hugging Face writes them: every dtype, odd bytes, parts; what is not whole is one line."""
import json
import os

import pytest
import torch
from conftest import write_safetensors

from anyorder.others.weights import local_path, read_weights
from anyorder.others.weights import write_safetensors as write_file

TENSORS = {'a': torch.tensor([[1.5, -2.0, 3.0]]), 'scale': torch.tensor(0.25, dtype=torch.bfloat16),
           'half': torch.tensor([-1.0, 65504.0], dtype=torch.float16), 'double': torch.tensor([1 / 3]).double(),
           'ids': torch.tensor([[3, -1], [2 ** 40, 0]]), 'int': torch.tensor([7, -8], dtype=torch.int32),
           'mask': torch.tensor([True, False, True]), 'empty': torch.zeros(0, 4)}


def is_same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == p.dtype and torch.equal(found[name], p) for name, p in expected.items())


def test_safetensors_come_before_pickles_and_both_give_the_tensors(tmp_path):
    assert read_weights(tmp_path) == {}
    torch.save({'a': torch.zeros(1), 'step': 3}, tmp_path / 'pytorch_model.bin')
    assert is_same(read_weights(tmp_path), {'a': torch.zeros(1)})
    write_safetensors(tmp_path / 'model.safetensors', TENSORS)
    assert is_same(read_weights(tmp_path), TENSORS)


def test_parts_are_read_from_the_folder_alone(tmp_path):
    parts = {name: f'../elsewhere/model-{len(name) % 2}.safetensors' for name in TENSORS}
    (tmp_path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': parts}))
    for part in set(parts.values()):
        mine = {name: p for name, p in TENSORS.items() if parts[name] == part}
        write_safetensors(tmp_path / part.split('/')[-1], mine)
    assert is_same(read_weights(tmp_path), TENSORS)


@pytest.mark.parametrize('parts, said', [
    (['a'], 'must say by weight_map'), (None, 'must say by weight_map'), ({'a': 5}, 'must say by weight_map'),
    ({'a': 'there', 'b': '/etc/passwd', 'c': '..'}, 'lacks 2 of its 3 files of weights, the first is [.][.]'),
    ({'a': 'there', 'b': 'model-00002-of-00002.safetensors'}, 'lacks 1 of its 2 .* model-00002-of-00002.safetensors')])
def test_parts_that_are_not_there_are_one_line(tmp_path, parts, said):
    (tmp_path / 'there').write_bytes(b'')
    (tmp_path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': parts}))
    with pytest.raises(ValueError, match=said) as e:
        read_weights(tmp_path)
    assert '\n' not in str(e.value)


def test_what_is_written_is_read(tmp_path):
    turned = TENSORS | {'a': TENSORS['a'].T}   # not contiguous
    write_file(tmp_path / 'model.safetensors', turned)
    assert is_same(read_weights(tmp_path), turned)
    head = int.from_bytes((tmp_path / 'model.safetensors').read_bytes()[:8], 'little')
    assert head % 8 == 0   # readers that map the file want numbers that are aligned


def test_files_are_those_of_safetensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    safetensors.save_file(TENSORS, tmp_path / 'model.safetensors')
    assert is_same(read_weights(tmp_path), TENSORS)
    write_file(tmp_path / 'ours.safetensors', TENSORS)
    assert is_same(safetensors.load_file(tmp_path / 'ours.safetensors'), TENSORS)


@pytest.mark.parametrize('spoil', [lambda whole: whole[:-1], lambda whole: b'', lambda whole: b'\xff' * 8 + whole[8:],
                                   lambda whole: whole.replace(b'"F32"', b'"F12"')])
def test_a_file_that_is_not_whole_is_one_line(tmp_path, spoil):
    write_safetensors(tmp_path / 'model.safetensors', {'b': TENSORS['ids'], 'a': TENSORS['a']})
    path = tmp_path / 'model.safetensors'
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match='model.safetensors is not a whole file of weights') as e:
        read_weights(tmp_path)
    assert '\n' not in str(e.value)


def test_names_of_the_hub(monkeypatch):
    import huggingface_hub
    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', lambda repo, file: f'{repo}|{file}')
    assert local_path('a/b.pt') == 'a/b.pt' and local_path('hf:me/it/124M/x.pt') == 'me/it|124M/x.pt'
    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', lambda *a: (_ for _ in ()).throw(OSError('a\nb')))
    for name in ('hf:me/it/x.pt', 'hf:x.pt'):
        with pytest.raises(ValueError, match=name) as e:
            local_path(name)
        assert '\n' not in str(e.value)


def test_names_of_gpt2_on_the_hub(tmp_path, monkeypatch):
    import huggingface_hub
    asked = []

    def snapshot(repo, allow_patterns):
        asked.append((repo, *allow_patterns))
        folder = tmp_path / repo.replace('/', '_')
        folder.mkdir(exist_ok=True)
        if repo == 'openai-community/gpt2-xl' or 'pytorch' in allow_patterns[1]:
            (folder / ('model.safetensors' if 'xl' in repo else 'pytorch_model.bin')).touch()
        return str(folder)
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot)
    assert local_path('gpt2-xl').endswith('openai-community_gpt2-xl') and len(asked) == 1
    assert local_path('hf:me/mine').endswith('me_mine')
    assert asked[1:] == [('me/mine', 'config.json', 'model*.safetensors*'),
                         ('me/mine', 'config.json', 'pytorch_model*.bin*')]
    monkeypatch.chdir(tmp_path)
    os.makedirs('gpt2')   # what is here comes first
    assert local_path('gpt2') == 'gpt2'
