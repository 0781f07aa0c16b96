"""anyorder/others/families.py: folders of others as commands name them, and what the commands ask of a model."""

import json
import math
import re
import shutil

import masked_kinds
import pytest
import torch
from conftest import one_line
from masked_kinds import KINDS, TEXT, write_tokenizer

pytest.importorskip('transformers')

from anyorder.checkpoint import digest, load_checkpoint, open_checkpoint
from anyorder.others import families
from anyorder.others.masked import MaskedConfig, MaskedModel
from anyorder.others.weights import read_weights
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.tokenizers import GPT2
from anyorder.writer import Writer
from model import Network

KNOWN = {  # the special tokens come last, in BERT's first
    'llada': MaskedConfig(40, 272, 271),
    'dream': MaskedConfig(2047, 273, 272, shift=True, banned=(271,), prefix=(271,)),
    'mdlm': MaskedConfig(38, 50257, 50257, prefix=(50256,), suffix=(50256,)),
    'bert': MaskedConfig(40, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)),
    'roberta': MaskedConfig(
        39, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)
    ),  # 42 - 1 - pad - [CLS] and [SEP]
    'modernbert': MaskedConfig(40, 45, 3, banned=(0, 1, 2), prefix=(1,), suffix=(2,)),
}


@pytest.mark.parametrize('kind', KINDS)
def test_a_folder_is_read_without_its_code_and_gives_the_logits_of_its_authors(folders, kind):
    oracle, folder = folders(kind)
    checkpoint = open_checkpoint(f'masked:{folder}')
    assert checkpoint.config == KNOWN[kind] and checkpoint.about('ema').startswith(
        f'masked:{folder}: '
    )
    network = checkpoint.model().network
    tokens = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(1))
    want = torch.stack([oracle(row) for row in tokens])
    torch.testing.assert_close(
        network(tokens).logits, want, atol=1e-5, rtol=0
    )  # Llama has float32 within
    assert digest(checkpoint.model()) == digest(open_checkpoint(f'masked:{folder}').model())


def test_kept_answers_are_of_one_config_json(tmp_path):
    KINDS['bert'](tmp_path)
    one = digest(open_checkpoint(f'masked:{tmp_path}').model())
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'layer_norm_eps': 0.1}))
    assert digest(open_checkpoint(f'masked:{tmp_path}').model()) != one


def test_an_encoder_that_ends_its_texts_does_not_write_the_end(tmp_path):
    """RoBERTa calls the token behind every text the end of text: a separator, which it never writes."""
    from transformers import AutoTokenizer

    KINDS['roberta'](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({'bos_token': '[CLS]', 'eos_token': '[SEP]'})
    tokenizer.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(f'masked:{tmp_path}')
    assert checkpoint.config == KNOWN['roberta'] and checkpoint.tokenizer.eos is None


def test_a_text_is_neither_cut_nor_padded_by_what_its_tokenizer_last_did(tmp_path):
    from transformers import AutoTokenizer

    KINDS['bert'](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    whole = open_checkpoint(f'masked:{tmp_path}').tokenizer
    texts = [tokenizer.decode(range(5, 30)), tokenizer.decode(range(5, 9))]
    tokenizer(texts, truncation=True, max_length=8, padding='max_length')
    tokenizer.save_pretrained(tmp_path)
    file = json.loads((tmp_path / 'tokenizer.json').read_text())
    assert file['truncation']['max_length'] == 8 and file['padding']  # as after training
    checkpoint = open_checkpoint(f'masked:{tmp_path}')
    assert checkpoint.config == KNOWN['bert']
    for text in texts:
        assert list(checkpoint.tokenizer.encode(text)) == list(whole.encode(text))
    lengths = [len(row) for row in checkpoint.tokenizer.encode_batch(texts)]
    assert (
        lengths == [len(row) for row in whole.encode_batch(texts)] and lengths[0] > 8 > lengths[1]
    )


def test_a_roberta_without_a_padding_token_has_the_positions_of_one(tmp_path):
    KINDS['roberta'](tmp_path)
    pad = json.loads((tmp_path / 'config.json').read_text())['pad_token_id']
    change_config(tmp_path, pad_token_id=None)
    assert (
        open_checkpoint(f'masked:{tmp_path}').config.block_size
        == KNOWN['roberta'].block_size + pad + 1 - 2
    )


def change_config(folder, **changes):
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(folder):
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1])


def pickle_more(folder):
    torch.save({'weight': torch.zeros(1), 'what': json.loads}, folder / 'pytorch_model.bin')
    (folder / 'model.safetensors').unlink()


@pytest.mark.parametrize(
    'kind, spoil, said',
    [
        (
            'llada',
            lambda folder: change_config(folder, n_layers=3),
            'weights do not fit config.json',
        ),
        ('llada', lambda folder: change_config(folder, include_qkv_bias=True), 'include_qkv_bias'),
        ('mdlm', lambda folder: change_config(folder, time_conditioning=True), 'time_conditioning'),
        (
            'bert',
            lambda folder: change_config(folder, num_hidden_layers=3),
            '16 weights do not fit config.json',
        ),
        (
            'bert',
            lambda folder: change_config(folder, intermediate_size=20),
            '6 weights do not fit config.json',
        ),
        (
            'bert',
            lambda folder: change_config(folder, hidden_size=15),
            'makes no bert .ValueError: The hidden size',
        ),
        (
            'dream',
            lambda folder: change_config(folder, hidden_size='x'),
            "makes no Dream .* 'hidden_size'",
        ),
        (
            'bert',
            lambda folder: change_config(
                folder, quantization_config={'quant_method': 'bitsandbytes'}
            ),
            "quantization_config={'quant_method': 'bitsandbytes'}: only weights",
        ),
        ('bert', cut, 'model.safetensors cannot be read as weights'),
        ('bert', pickle_more, 'pytorch_model.bin cannot be read as weights'),
    ],
)
def test_a_folder_that_is_not_whole_is_one_line(folders, tmp_path, kind, spoil, said):
    there = shutil.copytree(folders(kind)[1], tmp_path / kind)
    spoil(there)
    with pytest.raises(ValueError, match=said) as e:
        open_checkpoint(f'masked:{there}').model()
    assert '\n' not in str(e.value) and str(there) in str(e.value)


def test_older_names_of_weights_are_known(folders, tmp_path):
    _, folder = folders('bert')
    weights = {
        name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace(
            'LayerNorm.bias', 'LayerNorm.beta'
        ): p
        for name, p in read_weights(folder).items()
    }
    there = shutil.copytree(folder, tmp_path / 'bert')
    (there / 'model.safetensors').unlink()
    torch.save(weights, there / 'pytorch_model.bin')
    assert digest(open_checkpoint(f'masked:{there}').model()) == digest(
        open_checkpoint(f'masked:{folder}').model()
    )


@pytest.mark.parametrize(
    'template, said',
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", 'SecurityError'),
        ('{% for m in messages %}', 'SyntaxError'),
        ("{{ raise_exception('no system role') }}", 'no system role'),
        ('{{ messages[0].name.first }}', 'UndefinedError'),
    ],
)
def test_a_chat_template_that_fails_is_one_line(folders, tmp_path, template, said):
    there = shutil.copytree(folders('bert')[1], tmp_path / 'bert')
    (there / 'chat_template.jinja').write_text(template)
    with pytest.raises(
        ValueError, match=f'{there} has a chat template .*{said}.*--apply_chat_template'
    ) as e:
        open_checkpoint(f'masked:{there}').tokenizer.chat([{'role': 'user', 'content': 'x'}])
    assert '\n' not in str(e.value)


def test_what_is_not_understood_is_said(tmp_path, folders, monkeypatch):
    for kind, name in (
        ('gpt2', f'masked:{tmp_path}'),
        (['bert'], f'masked:{tmp_path}'),
        ('llama', f'masked:{tmp_path}'),
        ('llama', str(tmp_path)),
        ('qwen2', tmp_path),
    ):
        (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind}))
        with one_line(
            re.escape(f'model_type={kind!r}')
            + ', which is not understood: FOLDER may be aogpt, or gpt2, .*'
            'masked:FOLDER may be llada, Dream, .* causal network must first .* a2d-llama'
        ):
            open_checkpoint(name)
    (tmp_path / 'config.json').write_text('{"model_type": "a2d-llama"}')
    with one_line(f"model_type='a2d-llama': its name as a masked model is masked:{tmp_path}$"):
        open_checkpoint(tmp_path)
    (tmp_path / 'config.json').write_text('{"model_type": "llada"}')
    with pytest.raises(ValueError, match='holds no weights'):
        open_checkpoint(f'masked:{tmp_path}')
    (tmp_path / 'model.safetensors').write_bytes(b'')
    for name, said in (
        ('tokenizer_config.json', 'has no vocabulary'),
        ('tokenizer.json', 'no tokenizer that can be'),
    ):
        (tmp_path / name).write_text('{}')
        with pytest.raises(ValueError, match=said):
            open_checkpoint(f'masked:{tmp_path}')
    write_tokenizer(tmp_path, eos='<|endoftext|>')
    for kind, said in (
        ('a2d-qwen3', 'names no mask token'),
        ('llada', 'a llada model lacks max_sequence_length'),
    ):
        (tmp_path / 'config.json').write_text(
            json.dumps({'model_type': kind, 'max_position_embeddings': 9})
        )
        with pytest.raises(ValueError, match=said):
            open_checkpoint(f'masked:{tmp_path}')
    for name in (f'masked:{tmp_path}/none', 'masked:', f'masked:{tmp_path / "tokenizer.json"}'):
        with pytest.raises(ValueError, match=r'folder with a config\.json'):
            open_checkpoint(name)
    with pytest.raises(ValueError, match='masked model of others'):
        load_checkpoint(f'masked:{folders("bert")[1]}')
    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match=r'5\.2 or newer, 5\.1\.0 is there'),
    ):
        patch.setattr(
            'importlib.metadata.version', lambda name: '5.1.0'
        )  # whose decoders stay causal
        open_checkpoint(f'masked:{folders("bert")[1]}')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ValueError, match='pip install -r requirements-extra.txt'):
        open_checkpoint(f'masked:{folders("bert")[1]}')


def write_decoder(folder, kind, **config):
    """A folder of dLLM's, whose network transformers has as the decoder of this kind."""
    import transformers

    write_tokenizer(folder, eos='<|endoftext|>', mask='<|mask|>')
    config = transformers.CONFIG_MAPPING[kind](
        **{
            'vocab_size': 272,
            'hidden_size': 16,
            'num_hidden_layers': 2,
            'num_attention_heads': 2,
            'head_dim': 8,
            'num_key_value_heads': 1,
            'intermediate_size': 24,
            'max_position_embeddings': 20,
            'initializer_range': 0.3,
            'tie_word_embeddings': False,
        }
        | config
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    change_config(folder, model_type=f'a2d-{kind}')


@pytest.mark.parametrize('kind', ['llama', 'qwen2', 'qwen3'])
def test_a_tied_decoder_sees_all_tokens(kind, tmp_path):
    window = (
        {}
        if kind == 'llama'
        else {'use_sliding_window': True, 'sliding_window': 2, 'max_window_layers': 0}
    )
    write_decoder(tmp_path, kind, tie_word_embeddings=True, **window)
    checkpoint = open_checkpoint(f'masked:{tmp_path}')
    network = checkpoint.model().network
    assert checkpoint.config == MaskedConfig(20, 272, 271)
    assert network.lm_head.weight is network.model.embed_tokens.weight
    tokens = torch.arange(8).expand(9, -1).clone()
    tokens[range(8), range(8)] = 30  # row r differs from the last row at position r
    logits = network(tokens).logits
    assert (logits[:8] != logits[8]).any(-1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind, head, embedding',
    [
        ('llama', 'lm_head.weight', 'model.embed_tokens.weight'),
        ('qwen3', 'lm_head.weight', 'model.embed_tokens.weight'),
        ('llada', 'model.transformer.ff_out.weight', 'model.transformer.wte.weight'),
        ('bert', 'cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
        ('roberta', 'lm_head.decoder.weight', 'roberta.embeddings.word_embeddings.weight'),
        ('modernbert', 'decoder.weight', 'model.embeddings.tok_embeddings.weight'),
    ],
)
def test_a_tied_head_is_read_as_it_is_stored(kind, head, embedding, folders, tmp_path):
    """Under either name, under both, in a wrapper, and as a head of its own where it differs from the embedding."""
    from safetensors.torch import save_file

    if kind in KINDS:
        shutil.copytree(folders(kind)[1], tmp_path, dirs_exist_ok=True)
        change_config(tmp_path, weight_tying=True)
    else:
        write_decoder(tmp_path, kind, tie_word_embeddings=True)
    tokens, weights = torch.arange(5, 14).unsqueeze(0), read_weights(tmp_path)
    weights.pop(head, None)

    def opened(weights):
        save_file(
            {name: p.clone() for name, p in weights.items()},
            tmp_path / 'model.safetensors',
            {'format': 'pt'},
        )
        return open_checkpoint(f'masked:{tmp_path}').model()

    usual, both = opened(weights), weights | {head: weights[embedding]}
    right = usual.network(tokens).logits
    wrapped = {f'module._orig_mod.{name}': p for name, p in weights.items()}
    for stored in (both, {name: both[name] for name in both if name != embedding}, wrapped):
        found = opened(stored)
        assert torch.equal(found.network(tokens).logits, right)
        assert (
            digest(found) == digest(usual) or stored is both
        )  # of which transformers 5.2 makes two weights
    apart = opened(weights | {head: 2 * weights[embedding]}).network
    assert apart.get_output_embeddings().weight.equal(2 * apart.get_input_embeddings().weight)
    assert apart.get_input_embeddings().weight.equal(weights[embedding])


# ---- scaled rotary positions

ORIGINAL = 'original_max_position_embeddings'
YARN = {'factor': 4.0, 'original_max_position_embeddings': 16}
LLAMA3 = {
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8,
}
LONG = {
    'short_factor': [1.0, 1.1, 1.2, 1.3],
    'long_factor': [2.0, 3.0, 4.0, 5.0],
    'original_max_position_embeddings': 16,
}
THETA, HEAD = 300.0, 8
PLAIN = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)


def yarn(
    factor,
    original_max_position_embeddings,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=None,
    **more,
):
    """The frequencies and the factor of cos and sin. (Peng et al., arXiv 2309.00071, section 3)"""

    def dim(rotations):
        """The pair whose angle makes so many turns in the original length."""
        return (
            HEAD
            * math.log(original_max_position_embeddings / (rotations * 2 * math.pi))
            / (2 * math.log(THETA))
        )

    low, high = max(math.floor(dim(beta_fast)), 0), min(math.ceil(dim(beta_slow)), HEAD - 1)
    ramp = ((torch.arange(HEAD // 2).double() - low) / (high - low)).clamp(0, 1)
    m = [0.1 * more.get(name, 1.0) * math.log(factor) + 1 for name in ('mscale', 'mscale_all_dim')]
    scale = attention_factor or (m[0] / m[1] if 'mscale' in more else m[0])
    return PLAIN * (1 - ramp) + PLAIN / factor * ramp, scale


def llama3(factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """Long waves are stretched, short ones stay, and those between are mixed. (the code of Llama 3.1)"""
    turns = original_max_position_embeddings * PLAIN / (2 * math.pi)
    smooth = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return PLAIN * smooth + PLAIN / factor * (1 - smooth), 1.0


def longrope(n, factor=4.0):
    """Of texts of n tokens. (Ding et al., arXiv 2402.13753)"""
    by = torch.tensor(LONG['long_factor' if n > 16 else 'short_factor'], dtype=torch.float64)
    return PLAIN / by, math.sqrt(1 + math.log(factor) / math.log(16))


SCALED = [
    ('default', {}, lambda n: (PLAIN, 1.0)),
    ('linear', {'factor': 4.0}, lambda n: (PLAIN / 4, 1.0)),
    ('dynamic', {'factor': 4.0}, lambda n: (PLAIN, 1.0)),
    ('llama3', LLAMA3, lambda n: llama3(**LLAMA3)),
    *(
        ('yarn', YARN | more, lambda n, more=more: yarn(**YARN | more))
        for more in (
            {},
            {'factor': 2.0},
            {'beta_fast': 4.0, 'beta_slow': 0.5},
            {'attention_factor': 1.5},
            {'mscale': 0.7, 'mscale_all_dim': 0.3},
        )
    ),
    ('yarn', {'factor': 4.0}, lambda n: yarn(4.0, 64)),
    ('longrope', LONG, longrope),
    ('longrope', LONG | {'factor': 2.0}, lambda n: longrope(n, 2.0)),
]
SPELLINGS = {
    'transformers 4, type': lambda kind, scaling: {
        'rope_scaling': scaling | {'type': kind},
        'rope_theta': THETA,
    },
    'transformers 4': lambda kind, scaling: {
        'rope_scaling': scaling | {'rope_type': kind},
        'rope_theta': THETA,
    },
    'transformers 4, both': lambda kind, scaling: {
        'rope_scaling': scaling | {'rope_type': kind, 'type': kind},
        'rope_theta': THETA,
        'rope_parameters': None,
    },
    'transformers 5': lambda kind, scaling: {
        'rope_parameters': scaling | {'rope_type': kind, 'rope_theta': THETA},
        'rope_scaling': None,
    },
    'theta beside it': lambda kind, scaling: {
        'rope_parameters': scaling | {'rope_type': kind},
        'rope_theta': THETA,
    },
    'scaled later': lambda kind, scaling: {
        'rope_parameters': {'rope_type': 'default', 'rope_theta': THETA},
        'rope_scaling': scaling | {'type': kind},
    },
    'both, where one says less': lambda kind, scaling: {
        'rope_parameters': scaling | {'rope_type': kind, 'rope_theta': THETA},
        'rope_scaling': scaling | {'type': kind},
    },
    'the length beside it': lambda kind, scaling: {
        'rope_scaling': {name: value for name, value in scaling.items() if name != ORIGINAL}
        | {'type': kind},
        'rope_theta': THETA,
        **{name: value for name, value in scaling.items() if name == ORIGINAL},
    },
}


def write_scaled(folder, kind, said):
    write_decoder(folder, kind, head_dim=HEAD, max_position_embeddings=64)
    path = folder / 'config.json'
    file = json.loads(path.read_text())
    file.pop('rope_parameters')
    path.write_text(json.dumps(file | said))


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind, spelling',
    [
        *(('llama', spelling) for spelling in SPELLINGS),
        ('qwen2', 'transformers 4, type'),
        ('qwen3', 'transformers 5'),
    ],
)
def test_rotary_positions_are_scaled_by_the_formula_in_every_spelling(tmp_path, kind, spelling):
    for way, scaling, formula in SCALED:
        write_scaled(tmp_path, kind, SPELLINGS[spelling](way, scaling))
        rotary = open_checkpoint(f'masked:{tmp_path}').model().network.model.rotary_emb
        for n in (30, 10):  # a text is not the worse for a longer one before
            frequency, scale = formula(n)
            angle = torch.arange(n).double()[:, None] * torch.cat([frequency, frequency])
            for found, right in zip(
                rotary(torch.zeros(1), torch.arange(n)[None]), (angle.cos(), angle.sin())
            ):
                torch.testing.assert_close(found[0].double(), right * scale, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'way, scaling, formula',
    [('llama3', LLAMA3, lambda: llama3(**LLAMA3)), ('yarn', YARN, lambda: yarn(**YARN))],
)
def test_a_scaled_decoder_gives_the_logits_of_the_formula(
    tmp_path, monkeypatch, way, scaling, formula
):
    write_scaled(tmp_path, 'llama', SPELLINGS['transformers 4'](way, scaling))
    frequency, scale = formula()

    def rotate(x, theta):
        angle = torch.arange(len(x)).double()[:, None, None] * frequency
        a, b = x.chunk(2, -1)
        return scale * torch.cat(
            [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1
        )

    monkeypatch.setattr(masked_kinds, 'rotate', rotate)
    names = masked_kinds.by_table('model.layers', masked_kinds.LLAMA, masked_kinds.LLAMA_REST)
    w = {name: p.double() for name, p in read_weights(tmp_path).items()}
    tokens = torch.randint(5, 270, (30,), generator=torch.Generator().manual_seed(1))
    found = open_checkpoint(f'masked:{tmp_path}').model().double().network(tokens[None]).logits[0]
    torch.testing.assert_close(
        found, masked_kinds.llama(w, names, tokens, THETA, 1e-6), rtol=0, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    'scaling', [{'type': 'linear', 'factor': 4.0}, {'rope_type': 'linear', 'factor': 4.0}]
)
def test_a_scaled_encoder_of_transformers_is_scaled_in_either_spelling(folders, tmp_path, scaling):
    there = shutil.copytree(folders('modernbert')[1], tmp_path / 'modernbert')
    change_config(
        there,
        rope_parameters=None,
        global_rope_theta=THETA,
        local_rope_theta=10.0,
        rope_scaling=scaling,
    )
    rotary = open_checkpoint(f'masked:{there}').model().network.model.rotary_emb
    torch.testing.assert_close(
        rotary.full_attention_inv_freq.double(), PLAIN / 4, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(
    'said, error',
    [
        (
            {'rope_scaling': {'type': 'su', 'short_factor': [1.0], 'long_factor': [1.0]}},
            "rope_type='su'",
        ),
        ({'rope_parameters': {'rope_type': 'proportional'}}, "rope_type='proportional'"),
        ({'rope_scaling': {'type': ['yarn']}}, 'rope_type='),
        ({'rope_scaling': {'rope_type': None}}, 'rope_type=None'),
        ({'rope_scaling': {'type': 'yarn'}}, "'factor'"),
        ({'rope_scaling': {'type': 'linear'}}, "'factor'"),
        ({'rope_scaling': {'type': 'default', 'mrope_section': [1, 2]}}, 'mrope_section'),
        ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0, 'alpha': 3.0}}, 'alpha'),
        ({'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0}}, 'low_freq_factor'),
        (
            {'rope_parameters': {'full_attention': {'rope_type': 'yarn', 'factor': 4.0}}},
            'full_attention',
        ),
        (
            {
                'rope_parameters': {'rope_type': 'linear', 'factor': 2.0},
                'rope_scaling': {'type': 'linear', 'factor': 4.0},
            },
            'factor is 4.0 and 2.0',
        ),
        (
            {
                'rope_parameters': {'rope_type': 'linear', 'factor': 2.0},
                'rope_scaling': {'type': 'dynamic', 'factor': 2.0},
            },
            'rope_type is dynamic and linear',
        ),
        ({'rope_scaling': ['linear', 2.0]}, 'rope_scaling must be'),
        ({'rope_parameters': 'yarn'}, 'rope_parameters must be'),
        (
            {'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e4}, 'rope_theta': 1e6},
            'rope_theta is 1',
        ),
        ({'rope_scaling': {'type': 'yarn', **YARN}, ORIGINAL: 32}, f'{ORIGINAL} is 32 and 16'),
    ],
)
def test_a_scaling_that_is_not_understood_is_named(said, error):
    with one_line(error):
        families.rotary(said)


@pytest.mark.slow
def test_a_scaling_that_the_authors_code_does_not_have_is_refused(folders, tmp_path):
    there = shutil.copytree(folders('llada')[1], tmp_path / 'llada')
    change_config(there, rope_scaling={'type': 'linear', 'factor': 2.0})
    with one_line("a LLaDA does not scale .*'linear'"):
        open_checkpoint(f'masked:{there}').model()


# ---- the commands


@pytest.mark.slow
def test_a_writer_says_what_is_unknown_and_begins_once(folders, capsys):
    writer = Writer(f'masked:{folders("bert")[1]}', device='cpu')
    how = {'length': 9, 'n_steps': 2, 'temperature': 0}
    texts = writer.infill(['aÄ[[2]]', 'b[[1]]c', 'Ö[[1]]'], **how)
    assert (
        '2 of 5 tokens are unknown' in (said := capsys.readouterr().err)
        and "'Ä'" in said
        and said.count('\n') == 1
    )
    assert writer.infill('[CLS]b[[1]]c', **how) == texts[1]
    assert writer.logprob('[CLS]b[[=d]]') == writer.logprob('b[[=d]]')
    assert not capsys.readouterr().err
    with one_line("'Ä' is unknown"):
        writer.infill('a[[..]]', stop=['.', 'aÄ'])


class Spied:
    """A model that writes down what is asked of it; so does its config."""

    def __init__(self, model, asked, prefix=''):
        vars(self).update(_model=model, _asked=asked, _prefix=prefix)

    def __getattr__(self, name):
        self._asked.add(self._prefix + name)
        found = getattr(self._model, name)
        return Spied(found, self._asked, 'config.') if name == 'config' else found

    def __setattr__(self, name, value):
        self._asked.add(name)
        setattr(self._model, name, value)

    def __call__(self, *args, **options):
        self._asked.add('forward')
        return self._model(*args, **options)

    def __repr__(self):
        return repr(self._model)


@pytest.fixture
def asked(monkeypatch):
    """The names that are asked of masked models and of their configs."""
    names, model = set(), families.MaskedCheckpoint.model
    monkeypatch.setattr(
        families.MaskedCheckpoint, 'model', lambda *args: Spied(model(*args), names)
    )
    return names


def test_the_commands_ask_for_what_is_documented_alone(script, folders, asked, tmp_path):
    _, llada = folders('llada')
    _, bert = folders('bert')
    (tmp_path / 'text.txt').write_text(TEXT * 3)
    prepare_puzzles('sudoku4', tmp_path / 'data', n_rows={'train': 20, 'val': 5, 'test': 6})
    said = script(
        'sample.py',
        f'--ckpt=masked:{llada}',
        '--prompt=the [[3]] value is [[2]].',
        '--order=margin',
        '--html=replay.html',
        '--out=samples.json',
        '--metrics',
    ).stdout
    assert '5 steps for 5 tokens' in said
    samples = json.loads((tmp_path / 'samples.json').read_text())['samples']
    assert all('the ' in s['text'] and ' value is ' in s['text'] for s in samples)
    assert json.loads(
        re.search(r'<script.*?>(\{.*\})</script>', (tmp_path / 'replay.html').read_text())[1]
    )['samples']
    script(
        'sample.py',
        f'--ckpt=masked:{bert}',
        '--prompt=the [[=qu]] fox',
        '--score',
        '--dtype=bfloat16',
    )
    said = script(
        'eval_ppl.py',
        f'--ckpt=masked:{bert}',
        '--datasets=text.txt',
        '--estimates=any,iw',
        '--orders=l2r',
        '--n_orders=2',
        '--n_blocks=2',
        '--out=ppl.json',
    ).stdout
    row, *_ = json.loads((tmp_path / 'ppl.json').read_text())['results']
    assert row['bits_per_byte'] is None and row['nats_per_token'] > 0 and 'left to right' in said
    said = script(
        'eval_puzzle.py',
        f'--ckpt=masked:{bert}',
        '--dataset=sudoku4',
        '--data_dir=data',
        '--policies=random,margin',
        '--n_steps=0,3',
        '--html=puzzles.html',
    ).stdout
    assert said.count('margin') == 2
    (about,) = re.findall(
        r'Commands ask for (.*?), and for nothing else', MaskedModel.__doc__, re.DOTALL
    )
    wanted = {*re.findall(r'\w+', about)}
    assert {name for name in asked if '.' not in name} <= wanted
    (config,) = re.findall(r'config +(.*?), as', Network.__doc__)
    assert {name for name in asked if '.' in name} <= {
        f'config.{name}' for name in re.findall(r'\w+', config)
    }


def test_the_option_sets_the_dtype_and_without_it_the_file(folders):
    _, folder = folders('bert')
    writer = Writer(f'masked:{folder}', dtype='float32', device='cpu')
    assert {p.dtype for p in writer.network.parameters()} == {torch.float32}
    assert {p.dtype for p in open_checkpoint(f'masked:{folder}').model().parameters()} == {
        torch.float64
    }
    assert writer.infill('the [[3]] fox', seed=3, n=2)[0].startswith('the ')
    assert Writer(f'masked:{folder}').logprob('the [[=q]]') < 0
    without = Writer(f'masked:{folder}', dtype='float32', device='cpu', use_cache=False)
    assert {p.dtype for p in without.network.parameters()} == {torch.float32}


def test_puzzles_are_judged_in_the_symbols_of_the_task(folders, tmp_path):
    from anyorder.tokens.puzzles import prepare_puzzles
    from anyorder.tokens.tokenizers import get_tokenizer
    from configurator import Config
    from eval_puzzle import ids_of, open_puzzles

    checkpoint = open_checkpoint(f'masked:{folders("bert")[1]}')
    tokenizer = checkpoint.tokenizer
    assert ids_of(get_tokenizer('sudoku4'), tokenizer).tolist() == [
        6,
        7,
        8,
        9,
    ]  # 1 to 4, behind five and 0
    assert (
        ids_of(get_tokenizer('zebra4'), tokenizer) is None
        and ids_of(get_tokenizer('sudoku4'), GPT2) is None
    )
    prepare_puzzles(
        'nae_sat', tmp_path, n_rows={'train': 1, 'val': 1, 'test': 4}, n_latents=3, n_observations=1
    )
    options = Config(dataset='nae_sat', data_dir=tmp_path, split='test', n_puzzles=0, blanks='')
    puzzles = open_puzzles(checkpoint, options)
    zero, one = ids_of(get_tokenizer('nae_sat'), tokenizer).tolist()
    assert (
        puzzles.tokens.unique().tolist() == [zero, one]
        and puzzles.check_answer(puzzles.tokens)[1][:, 3].all()
    )
    answers = [
        [zero] * 4,
        [zero, one, zero, one],
        [zero] * 3 + [one],
        [zero, one, tokenizer.encode('x')[0], one],
    ]  # a latent that is no bit
    assert puzzles.check_answer(torch.tensor(answers))[1][:, 3].tolist() == [
        True,
        True,
        False,
        False,
    ]
