"""GPT-2's weights: left to right the network is GPT-2, from every form of file.

What is no GPT-2 is one line."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import one_line

from anyorder.checkpoint import digest, load_checkpoint, model_from_checkpoint
from anyorder.orders import sample_order
from anyorder.weights import GPT2_N_TOKENS

save_file = pytest.importorskip('safetensors.torch').save_file
N = 7
C = 8
H = 2
L = 2
CONFIG = {'model_type': 'gpt2', 'n_positions': N, 'n_embd': C, 'n_head': H, 'n_layer': L}


@pytest.fixture
def weights():
    """{name: tensor} of a small GPT-2 as Hugging Face names them, large and random.

    Layer norms start at about 1."""
    torch.manual_seed(0)
    shapes = {
        'wte.weight': (GPT2_N_TOKENS, C),
        'wpe.weight': (N, C),
        'ln_f.weight': (C,),
        'ln_f.bias': (C,),
    }
    for i in range(L):
        h = f'h.{i}'
        shapes |= {
            f'{h}.ln_1.weight': (C,),
            f'{h}.ln_1.bias': (C,),
            f'{h}.ln_2.weight': (C,),
            f'{h}.ln_2.bias': (C,),
            f'{h}.attn.c_attn.weight': (C, 3 * C),
            f'{h}.attn.c_attn.bias': (3 * C,),
            f'{h}.attn.c_proj.weight': (C, C),
            f'{h}.attn.c_proj.bias': (C,),
            f'{h}.mlp.c_fc.weight': (C, 4 * C),
            f'{h}.mlp.c_fc.bias': (4 * C,),
            f'{h}.mlp.c_proj.weight': (4 * C, C),
            f'{h}.mlp.c_proj.bias': (C,),
        }
    weights = {}
    for name, shape in shapes.items():
        center = 1 if 'ln_' in name and 'weight' in name else 0
        weights[name] = torch.randn(shape) * 0.5 + center
    return weights


def gpt2(w, tokens):
    """The logits (T, V) that GPT-2 gives tokens (T,), as its paper has it, in float64."""
    w = {name: p.double() for name, p in w.items()}
    T = len(tokens)
    x = w['wte.weight'][tokens] + w['wpe.weight'][:T]
    causal = torch.ones(T, T).tril()

    def norm(x, name):
        return F.layer_norm(x, (C,), w[f'{name}.weight'], w[f'{name}.bias'])

    def linear(x, name):
        return x @ w[f'{name}.weight'] + w[f'{name}.bias']

    for i in range(L):
        h = f'h.{i}'
        qkv = linear(norm(x, f'{h}.ln_1'), f'{h}.attn.c_attn').split(C, 1)
        q, k, v = (part.view(-1, H, C // H).transpose(0, 1) for part in qkv)
        scores = (q @ k.mT / (C // H) ** 0.5).masked_fill(causal == 0, -torch.inf)
        y = scores.softmax(-1) @ v
        x = x + linear(y.transpose(0, 1).flatten(1), f'{h}.attn.c_proj')
        y = linear(norm(x, f'{h}.ln_2'), f'{h}.mlp.c_fc')
        y = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
        x = x + linear(y, f'{h}.mlp.c_proj')
    return norm(x, 'ln_f') @ w['wte.weight'].T


def nll_of(logits, text):
    return F.cross_entropy(logits.double(), text, reduction='none')


TEXT = torch.tensor([464, 50256, 11, 0, 50255, 464, 7])  # as long as the block, with an end of text
START = torch.cat([torch.tensor([50256]), TEXT[:-1]])


def left_to_right(folder):
    model = model_from_checkpoint(folder).double()
    with torch.no_grad():
        return model(TEXT[None], sample_order(1, N, 'l2r'))[0].double()


def write_folder(folder, weights, form='safetensors', **config):
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(CONFIG | config))
    if form == 'bin':
        torch.save(weights, folder / 'pytorch_model.bin')
    else:
        save_file(weights, folder / 'model.safetensors')
    return folder


@pytest.mark.parametrize('form', ['safetensors', 'bin'])
@pytest.mark.parametrize(
    'prefix, dtype',
    [('', torch.float32), ('transformer.', torch.bfloat16), ('transformer.', torch.float16)],
)
def test_left_to_right_it_is_gpt2(weights, tmp_path, form, prefix, dtype):
    weights = {name: p.to(dtype) for name, p in weights.items()}
    files = {prefix + name: p for name, p in weights.items()}
    files |= {f'{prefix}h.0.attn.bias': torch.ones(1, 1, dtype=torch.bool)}
    files |= {'lm_head.weight': weights['wte.weight'].clone()}
    folder = write_folder(tmp_path / 'gpt2', files, form)
    expected = nll_of(gpt2(weights, START), TEXT)
    torch.testing.assert_close(left_to_right(folder), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    'wrapper, form',
    [
        ('', 'bin'),
        ('transformer.', 'safetensors'),
        ('_orig_mod.module.', 'bin'),
        ('module.transformer.', 'safetensors'),
    ],
)
def test_a_head_may_be_stored_alone_and_in_a_wrapper(weights, tmp_path, form, wrapper):
    usual = model_from_checkpoint(write_folder(tmp_path / 'usual', weights))
    files = {wrapper + name: p for name, p in weights.items() if name != 'wte.weight'}
    files[wrapper.replace('transformer.', '') + 'lm_head.weight'] = weights['wte.weight']
    model = model_from_checkpoint(write_folder(tmp_path / 'gpt2', files, form))
    assert digest(model) == digest(usual)


def test_any_order_begins_as_gpt2_that_is_told_no_target(weights, tmp_path):
    """Two orders that begin alike predict other positions alike.

    The made-up row of positions is the last one's."""
    model = model_from_checkpoint(write_folder(tmp_path / 'gpt2', weights), 'raw')
    assert model.config.block_size == N
    assert model.config.n_real == GPT2_N_TOKENS
    with torch.no_grad():
        a = model.predict(TEXT[None], torch.tensor([[6, 2, 4]]), 2)
        b = model.predict(TEXT[None], torch.tensor([[6, 2, 0]]), 2)
        assert torch.equal(a, b)
        row = model.transformer.wpe.weight
        assert torch.equal(row[N], row[N - 1])
        assert torch.equal(row[:N], weights['wpe.weight'])
        row[N] = torch.nan  # left to right nobody reads it
        assert model(TEXT[None], sample_order(1, N, 'l2r')).isfinite().all()


def test_exact_gelu_is_another_network(weights, tmp_path):
    new = write_folder(tmp_path / 'new', weights, activation_function='gelu_new')
    old = write_folder(tmp_path / 'old', weights, activation_function='gelu')
    tanh = left_to_right(new)
    exact = left_to_right(old)
    assert 1e-5 < (tanh - exact).abs().max() < 0.1


def test_it_is_the_gpt2_of_transformers(tmp_path):
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_positions=N, n_embd=C, n_head=H, n_layer=L)
    network = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
        expected = nll_of(network.double()(START[None]).logits[0], TEXT)
    network.float().save_pretrained(tmp_path / 'whole')
    network.save_pretrained(tmp_path / 'parts', max_shard_size='1MB')
    assert os.path.isfile(tmp_path / 'parts' / 'model.safetensors.index.json')
    for folder in ('whole', 'parts'):
        torch.testing.assert_close(left_to_right(tmp_path / folder), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    'change, said',
    [
        (dict(model_type='llama'), "'llama'"),
        (
            dict(activation_function='relu'),
            "'relu': it must be gelu_new or gelu_pytorch_tanh or gelu",
        ),
        (dict(n_embd=12), 'weights differ in name or shape'),
        (dict(n_positions=8), 'the first is transformer.wpe'),
        (dict(n_layer='2'), 'n_layer must be of type int'),
    ],
)
def test_another_network_is_one_line(weights, tmp_path, change, said):
    with one_line(said):
        left_to_right(write_folder(tmp_path / 'gpt2', weights, **change))


def test_other_tokens_are_one_line(weights, tmp_path):
    folder = write_folder(tmp_path / 'gpt2', weights)
    (folder / 'vocab.json').write_text(json.dumps({'a': 0, 'b': 1}))
    with one_line('other tokens'):
        load_checkpoint(str(folder))
    more = torch.zeros(47, C)
    larger = weights | {'wte.weight': torch.cat([weights['wte.weight'], more])}
    with one_line('50,304 rows'):
        load_checkpoint(str(write_folder(tmp_path / 'larger', larger, vocab_size=50304)))


def test_folders_that_are_not_whole_are_one_line(weights, tmp_path):
    folder = write_folder(tmp_path / 'gpt2', weights)
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match='model.safetensors cannot be read as weights'):
        load_checkpoint(folder)
    path.unlink()
    with pytest.raises(ValueError, match='holds no weights of a GPT-2'):
        load_checkpoint(folder)
    write_folder(folder, weights | {'lm_head.weight': weights['wte.weight'] + 1})
    with pytest.raises(ValueError, match='a head of its own'):
        load_checkpoint(folder)
    (folder / 'config.json').write_text('[1]')
    with pytest.raises(ValueError, match='config.json cannot be read as names and values'):
        load_checkpoint(folder)
    (folder / 'config.json').unlink()
    with pytest.raises(ValueError, match='no checkpoint file'):
        load_checkpoint(folder)


def test_a_checkpoint_of_gpt2_starts_a_run(weights, tmp_path, monkeypatch):
    import train
    from anyorder.training.start import start_checkpoint, start_model, started_from
    from configurator import configure

    # the vocabulary of GPT-2 is a download
    tokenizer = SimpleNamespace(name='gpt2', n_tokens=GPT2_N_TOKENS, eos=50256, identity='')
    monkeypatch.setattr('anyorder.checkpoint.tokenizer_of_set', lambda kind: tokenizer)
    folder = str(write_folder(tmp_path / 'gpt2', weights))
    options = configure(vars(train), [f'--init_from={folder}', '--dropout=0.1'])
    checkpoint, config, _ = start_checkpoint(options)
    assert config.network.startswith('sigma_gpt,gelu_tanh')
    assert config.block_size == N
    model = start_model(config, checkpoint, tokenizer)
    (start,) = started_from(config, checkpoint)  # its name but not its path
    assert start == {'name': 'gpt2'}
    assert model.config.dropout == 0.1
    assert torch.equal(model.transformer.wte.weight[:-47], weights['wte.weight'])
