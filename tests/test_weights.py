"""Files of weights of Hugging Face: every dtype, and parts. What is not whole is one line."""

import json
import os

import pytest
import torch
from conftest import make_model, one_line

from anyorder.extras.hub.exported import write_exported
from anyorder.extras.hub.folders import read_weights
from anyorder.weights import local_path, tie, unwrapped

save_file = pytest.importorskip('safetensors.torch').save_file

TENSORS = {
    'a': torch.tensor([[1.5, -2.0, 3.0]]),
    'scale': torch.tensor(0.25, dtype=torch.bfloat16),
    'half': torch.tensor([-1.0, 65504.0], dtype=torch.float16),
    'double': torch.tensor([1 / 3]).double(),
    'ids': torch.tensor([[3, -1], [2**40, 0]]),
    'int': torch.tensor([7, -8], dtype=torch.int32),
    'mask': torch.tensor([True, False, True]),
    'empty': torch.zeros(0, 4),
}


def is_same(found, expected):
    if found.keys() != expected.keys():
        return False
    pairs = [(found[name], p) for name, p in expected.items()]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_safetensors_come_before_pickles_and_both_give_the_tensors(tmp_path):
    assert read_weights(tmp_path) == {}
    torch.save({'a': torch.zeros(1), 'step': 3}, tmp_path / 'pytorch_model.bin')
    assert is_same(read_weights(tmp_path), {'a': torch.zeros(1)})
    save_file(TENSORS, tmp_path / 'model.safetensors')
    assert is_same(read_weights(tmp_path), TENSORS)


def test_parts_are_read_from_the_folder_alone(tmp_path):
    parts = {name: f'../elsewhere/model-{len(name) % 2}.safetensors' for name in TENSORS}
    (tmp_path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': parts}))
    for part in set(parts.values()):
        mine = {name: p for name, p in TENSORS.items() if parts[name] == part}
        save_file(mine, tmp_path / part.split('/')[-1])
    assert is_same(read_weights(tmp_path), TENSORS)


@pytest.mark.parametrize(
    'parts, said',
    [
        (['a'], 'must say by weight_map'),
        (None, 'must say by weight_map'),
        ({'a': 5}, 'must say by weight_map'),
        (
            {'a': 'there', 'b': '/etc/passwd', 'c': '..'},
            'lacks 2 of its 3 files of weights, the first is [.][.]',
        ),
        (
            {'a': 'there', 'b': 'model-00002-of-00002.safetensors'},
            'lacks 1 of its 2 .* model-00002-of-00002.safetensors',
        ),
    ],
)
def test_parts_that_are_not_there_are_one_line(tmp_path, parts, said):
    (tmp_path / 'there').write_bytes(b'')
    (tmp_path / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': parts}))
    with one_line(said):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    'wrapped',
    [
        'module.h.0.weight',
        '_orig_mod.h.0.weight',
        '_orig_mod.module.h.0.weight',
        'module._orig_mod.h.0.weight',
        'module.module.h.0.weight',
        'h.0._orig_mod.weight',
        '_fsdp_wrapped_module.h.0._checkpoint_wrapped_module.weight',
    ],
)
def test_what_wrappers_put_into_names_is_left_out(tmp_path, wrapped):
    weights = {wrapped: torch.arange(3.0), 'modules.weight': torch.ones(1)}
    assert list(unwrapped(weights)) == ['h.0.weight', 'modules.weight']
    save_file(weights, tmp_path / 'model.safetensors')
    expected = {'h.0.weight': torch.arange(3.0), 'modules.weight': torch.ones(1)}
    assert is_same(read_weights(tmp_path), expected)
    unwrapped(weights | {'h.0.weight': torch.arange(3.0)})  # twice, and the same
    with one_line('two different weights h.0.weight'):
        unwrapped(weights | {'h.0.weight': torch.ones(3)})


@pytest.mark.parametrize('names', [['wte'], ['head'], ['wte', 'head'], []])
def test_a_tied_matrix_has_one_name_or_two(names):
    weights = {name: torch.tensor([1.0, 2.0]) for name in names}
    found = tie(weights, 'head', 'wte', '/x')
    if names:
        assert found.keys() == {'wte'}
        assert found['wte'].tolist() == [1.0, 2.0]
    else:
        assert found == {}
    assert [*weights] == names


@pytest.mark.parametrize('head', [[1.0, 2.5], [1.0, 2.0, 0.0]])
def test_a_tied_matrix_has_one_value(head):
    weights = {'wte': torch.tensor([1.0, 2.0]), 'head': torch.tensor(head)}
    with one_line('/x has a head of its own'):
        tie(weights, 'head', 'wte', '/x')


def test_a_tied_matrix_may_be_stored_in_two_dtypes_and_hold_nan():
    """Of a run that diverged model_from_checkpoint says so."""
    wte = torch.tensor([1.5, float('nan')])
    assert tie({'wte': wte, 'head': wte.double()}, 'head', 'wte', '/x').keys() == {'wte'}


@pytest.mark.parametrize(
    'value, said',
    [
        (3, 'int'),
        (None, 'NoneType'),
        (torch.empty(3, device='meta'), 'meta'),
        (torch.ones(3).to_sparse(), 'sparse'),
        (torch.ones(3, dtype=torch.complex64), 'complex64'),
    ],
)
def test_a_weight_is_a_tensor_of_real_numbers(value, said):
    with one_line(f'module.head .*{said}'):
        unwrapped({'head': torch.ones(3), 'module.head': value})


def test_a_tied_matrix_in_eight_bits_differs_from_one_in_more():
    wte = torch.tensor([0.5, 1.1])
    eight = wte.to(torch.float8_e4m3fn)
    assert tie({'wte': eight.float(), 'head': eight}, 'head', 'wte', '/x').keys() == {'wte'}
    with one_line('/x has a head of its own'):
        tie({'wte': wte, 'head': eight}, 'head', 'wte', '/x')


def header(*parts):
    """The JSON of tensors of bytes, each a name and where its numbers start and end."""
    entries = []
    for name, start, end in parts:
        entry = f'{{"dtype": "U8", "shape": [{end - start}], "data_offsets": [{start}, {end}]}}'
        entries.append(f'"{name}": {entry}')
    return f'{{{", ".join(entries)}}}'


WHOLE = header(('a', 0, 8))
BROKEN = {
    'negative offset': header(('a', -8, -4)),
    'overlap': header(('a', 0, 4), ('b', 2, 8)),
    'the same numbers': header(('a', 0, 8), ('b', 0, 8)),
    'hole': header(('a', 0, 2), ('b', 4, 8)),
    'hole at the start': header(('a', 2, 8)),
    'trailing bytes': header(('a', 0, 6)),
    'no tensor': '{}',
    'cut': header(('a', 0, 9)),
    'end before start': header(('a', 0, 8), ('b', 8, 4)).replace('[-4]', '[0]'),
    'two of a name': header(('a', 0, 4), ('a', 4, 8)),
    'shape': WHOLE.replace('[8]', '[2, -1]'),
    'dtype': WHOLE.replace('U8', 'U12'),
    'metadata': WHOLE.replace('"a"', '"__metadata__": [], "a"'),
    'letters before it': '\ufeff' + WHOLE,
    'nothing': '',
}


@pytest.mark.parametrize('name', BROKEN)
def test_a_header_that_does_not_give_each_number_to_one_tensor_is_refused(tmp_path, name):
    def read(head):
        length = len(head).to_bytes(8, 'little')
        numbers = bytes(range(8))
        (tmp_path / 'model.safetensors').write_bytes(length + head + numbers)
        return read_weights(tmp_path)

    assert read(WHOLE.encode())['a'].tolist() == [*range(8)]
    with pytest.raises(ValueError, match='cannot be read as weights'):
        read(BROKEN[name].encode())


def test_weights_stay_when_their_file_is_overwritten(tmp_path):
    path = tmp_path / 'model.safetensors'
    save_file(TENSORS, path)
    weights = read_weights(tmp_path)
    with open(path, 'rb+') as f:
        f.write(b'\xff' * path.stat().st_size)
    assert is_same(weights, TENSORS)


def test_without_the_library_it_is_one_line(tmp_path, monkeypatch):
    save_file(TENSORS, tmp_path / 'model.safetensors')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    said = 'needs safetensors: pip install -r requirements-extra.txt'
    with pytest.raises(ValueError, match=said):
        read_weights(tmp_path)
    with pytest.raises(ValueError, match=said):
        write_exported(tmp_path, make_model(), {}, None, 'raw')


def test_names_of_the_hub(monkeypatch):
    import huggingface_hub

    def fail(repo, file):
        raise OSError('a\nb')

    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', lambda repo, file: f'{repo}|{file}')
    assert local_path('a/b.pt') == 'a/b.pt'
    assert local_path('hf:me/it/124M/x.pt') == 'me/it|124M/x.pt'
    monkeypatch.setattr(huggingface_hub, 'hf_hub_download', fail)
    for name in ('hf:me/it/x.pt', 'hf:x.pt'):
        with one_line(name):
            local_path(name)


def test_names_of_gpt2_on_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(repo, allow_patterns):
        asked.append((repo, *allow_patterns))
        assert {'config.json', 'tokenizer.json', 'merges.txt'} <= {*allow_patterns}
        folder = tmp_path / repo.replace('/', '_')
        folder.mkdir(exist_ok=True)
        if repo == 'openai-community/gpt2-xl':
            (folder / 'model.safetensors').touch()
        elif 'pytorch' in allow_patterns[-1]:
            (folder / 'pytorch_model.bin').touch()
        return str(folder)

    monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot)
    assert local_path('gpt2-xl').endswith('openai-community_gpt2-xl')
    assert len(asked) == 1
    assert local_path('hf:me/mine').endswith('me_mine')
    assert [(names[0], names[-1]) for names in asked[1:]] == [
        ('me/mine', 'model*.safetensors*'),
        ('me/mine', 'pytorch_model*.bin*'),
    ]
    monkeypatch.chdir(tmp_path)
    os.makedirs('gpt2')  # what is here comes first
    assert local_path('gpt2') == 'gpt2'
