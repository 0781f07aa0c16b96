"""Which folders of others hold a masked model?

`masked:FOLDER` or `masked:OWNER/REPO` on the hub names one; its config.json says which. Weights go
into networks of transformers. No code of a folder is ever run."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from anyorder.checkpoint import MASKED, set_exempt
from anyorder.extras.hub.folders import check_form, read_weights
from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.extras.masked.tokenizer import HuggingFace
from anyorder.machine.files import read_json, reading
from anyorder.orders import Order
from anyorder.tokens.meta import Meta
from anyorder.tokens.tokenizer import get_tokenizer
from anyorder.weights import local_path

VOCABULARIES = ('tokenizer.json', 'vocab.json', 'vocab.txt')


class MaskedCheckpoint:
    """An opened folder of somebody else's masked model, with the names of a Checkpoint.

    Its training is not known."""

    entries = {}
    run = {}
    set = Meta()
    order = Order()
    iter_num = '?'
    weights = 'raw'
    counts = None

    def __init__(self, name):
        """Open masked:FOLDER or masked:OWNER/REPO. Raises ValueError unless it is understood."""
        import transformers

        version = transformers.__version__
        if version.startswith(('4.', '5.0.', '5.1.')):
            # before, decoders stay causal without a word, see filled
            raise ValueError(f'masked models need transformers 5.2 or newer, {version} is there')
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.name = name
        self.folder = name.removeprefix(MASKED)
        if not os.path.isdir(self.folder):
            self.folder = local_path(f'hf:{self.folder}')
        path = os.path.join(self.folder, 'config.json')
        self.file = read_json(path)
        self.kind = self.file.get('model_type')
        if self.kind not in list(FAMILIES):  # a list: a model_type may be any value of JSON
            raise ValueError(
                f'{path} has model_type={self.kind!r}, which is not understood: FOLDER may be '
                'aogpt, or gpt2, which train.py --init_from adapts; '
                f'{MASKED}FOLDER may be {", ".join(FAMILIES)}; in Python '
                'anyorder.extras.masked.masked.MaskedModel takes any callable that sees all tokens'
            )
        self.family = FAMILIES[self.kind]
        self.tokenizer, special = open_tokenizer(self.kind, self.family, self.folder)
        with self.reading():
            self.config = self.what_is_known(special)

    def reading(self):
        """Return the context in which its files are read, whatever they lack."""
        way_out = 'name another, or fetch it again'
        return reading(self.folder, f'a model of the kind {self.kind}', way_out, n_letters=300)

    def what_is_known(self, special):
        """Return the MaskedConfig, by {what: token} of special tokens, see open_tokenizer."""
        prefix = special['prefix']
        suffix = special['suffix']
        if self.family.shift and not prefix:  # the first logits stand on a token before the text
            bos = special.get('bos')
            prefix = (self.tokenizer.eos if bos is None else bos,)
        n_positions = self.family.positions
        if isinstance(n_positions, str):
            n_positions = self.file[n_positions]
        never = {*prefix, *suffix, *map(special.get, ('pad', 'cls', 'sep', 'bos'))}
        said = json.dumps(self.file, sort_keys=True)
        return MaskedConfig(
            block_size=n_positions - len(prefix) - len(suffix),
            n_tokens=self.tokenizer.n_tokens,
            mask_id=self.mask_id(special),
            shift=self.family.shift,
            banned=tuple(sorted(never - {None, self.tokenizer.eos})),
            prefix=prefix,
            suffix=suffix,
            file=hashlib.sha256(said.encode()).hexdigest()[:16],
        )

    def mask_id(self, special):
        """Return the token of a blank, by the tokenizer, by config.json or by the family."""
        for token in (special.get('mask'), self.file.get('mask_token_id'), self.family.mask_id):
            if token is not None:
                return token
        raise ValueError('no mask token, in its tokenizer or as mask_token_id of config.json')

    def model(self, weights='raw', device='cpu'):
        """Return the MaskedModel in evaluation mode, in the dtype of its file.

        The file has one set of weights, by any name."""
        found = read_weights(self.folder)
        with self.reading():
            check_form(self.file, {'quantization_config': None})
            network = self.family.load(self.file, found)
        model = MaskedModel(network, self.config).to(device)
        set_exempt(model, self.tokenizer)
        return model

    def about(self, weights):
        return f'{self.name}: {self.kind}, mask token {self.config.mask_id}'


def open_tokenizer(kind, family, folder):
    """Return the tokenizer of a folder as one of ours, and {what: token} of its special tokens.

    `prefix` and `suffix` are the tokens before and behind a text. No code of the folder is run."""
    if family.tokenizer == 'gpt2':
        tokenizer = get_tokenizer('gpt2')
        around = (tokenizer.eos,)  # as in the blocks of MDLM's training
        return tokenizer, {'prefix': around, 'suffix': around}

    if not any(os.path.isfile(os.path.join(folder, name)) for name in VOCABULARIES):
        # transformers would make one of no words
        raise ValueError(f'{folder} has no vocabulary: {", ".join(VOCABULARIES)} is missing')
    import transformers

    way_out = 'add a tokenizer.json'
    with reading(folder, 'a tokenizer without running its code', way_out, n_letters=300):
        theirs = getattr(transformers, family.tokenizer).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        backend = theirs.backend_tokenizer
        backend.no_padding()  # as of the text that it last read, which a tokenizer.json keeps
        one = backend.encode('a')
        inside = [i for i, is_special in enumerate(one.special_tokens_mask) if not is_special]
        special = {
            'prefix': tuple(one.ids[: inside[0]]),
            'suffix': tuple(one.ids[inside[-1] + 1 :]),
        }
    for what in ('mask', 'pad', 'cls', 'sep', 'bos', 'eos'):
        special[what] = getattr(theirs, f'{what}_token_id', None)
    end = special['eos'] if family.writes_end else None
    name = f'{kind}:{os.path.basename(os.path.normpath(folder))}'
    return HuggingFace(name, backend, end, chat_of(theirs, folder)), special


def chat_of(tokenizer, folder):
    """Return messages -> prompt by the chat template of a tokenizer of transformers, or None."""
    if not tokenizer.chat_template:
        return None

    @reading(folder, 'a chat by its template', 'leave out --apply_chat_template', n_letters=300)
    def chat(messages, **options):
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)

    chat.template = tokenizer.chat_template
    return chat


@dataclass(frozen=True)
class MaskedFamily:
    """One kind of masked model.

    load        (config.json as a dict, {name: weight}) -> the network
    positions   the entry of config.json that bounds a text, or the number
    shift       the logits of a token stand one token before it
    mask_id     if neither tokenizer nor config.json names it
    writes_end  whether the model writes the token that ends a document
    tokenizer   its class in transformers; where the folder names code, or 'gpt2', which is ours"""

    load: Callable
    positions: str | int = 'max_position_embeddings'
    shift: bool = False
    mask_id: int | None = None
    writes_end: bool = True
    tokenizer: str = 'PreTrainedTokenizerFast'


# --------------------------------------------------------------------------------------------------
# the families: networks of transformers in which every token sees every token

# entries of Dream's config.json that change the network, and the values that are understood
DREAM_IS = {'tie_word_embeddings': False, 'rope_scaling': None, 'rope_parameters': None}


def load_dream(config, weights):
    """Return a Qwen2 with the weights of a Dream."""
    import transformers

    check_form(config, DREAM_IS)
    left_out = ('model_type', 'auto_map', 'layer_types')
    config = {name: value for name, value in config.items() if name not in left_out}
    config['use_sliding_window'] = False  # the code of their authors has none
    qwen = transformers.Qwen2Config.from_dict(config)
    return filled(transformers.Qwen2ForCausalLM, qwen, weights)


# entries of LLaDA's config.json that change the network, and the values that make it a Llama
LLADA_IS = {
    'weight_tying': False,
    'block_type': 'llama',
    'layer_norm_type': 'rms',
    'activation_type': 'silu',
    'include_bias': False,
    'include_qkv_bias': False,
    'rope': True,
    'alibi': False,
    'attention_layer_norm': False,
    'input_emb_norm': False,
    'scale_logits': False,
    'block_group_size': 1,
    'clip_qkv': None,
    'multi_query_attention': False,
    'rope_scaling': None,
    'rope_parameters': None,
}
# Llama's names, by expressions of LLaDA's
LLADA_NAMES = {
    r'^(model\.)?(transformer\.)?': '',
    r'^blocks\.': 'model.layers.',
    '^wte': 'model.embed_tokens',
    '^ln_f': 'model.norm',
    '^ff_out': 'lm_head',
    'attn_norm': 'input_layernorm',
    '([qkv]_proj)': r'self_attn.\1',
    'attn_out': 'self_attn.o_proj',
    'ff_norm': 'post_attention_layernorm',
    'ff_proj': 'mlp.gate_proj',
    'up_proj': 'mlp.up_proj',
    'ff_out': 'mlp.down_proj',
}


def load_llada(config, weights):
    """Return a Llama with the weights of a LLaDA."""
    import transformers

    check_form(config, LLADA_IS)
    C = config['d_model']
    n_head = config['n_heads']
    llama = transformers.LlamaConfig(
        vocab_size=config.get('embedding_size') or config['vocab_size'],
        hidden_size=C,
        intermediate_size=config.get('mlp_hidden_size') or config['mlp_ratio'] * C,
        num_hidden_layers=config['n_layers'],
        num_attention_heads=n_head,
        num_key_value_heads=config.get('n_kv_heads') or n_head,
        rms_norm_eps=config.get('rms_norm_eps', 1e-5),
        max_position_embeddings=config['max_sequence_length'],
        rope_parameters={'rope_theta': config.get('rope_theta', 10000.0)},
    )
    return filled(transformers.LlamaForCausalLM, llama, renamed(weights, LLADA_NAMES))


# GPT-NeoX's names, by expressions of MDLM's
MDLM_NAMES = {
    '^vocab_embed.embedding': 'embed_in.weight',
    '^output_layer.norm_final': 'final_layer_norm',
    '^blocks': 'layers',
    'norm1': 'input_layernorm',
    'attn_qkv': 'attention.query_key_value',
    'attn_out': 'attention.dense',
    'norm2': 'post_attention_layernorm',
    r'mlp\.0': 'mlp.dense_h_to_4h',
    r'mlp\.2': 'mlp.dense_4h_to_h',
}


def load_mdlm(config, weights):
    """Return a GPT-NeoX with the weights of MDLM's release (Sahoo et al., arXiv 2406.07524).

    Its AdaLN reads the time, which is always 0 where the network was trained without it: what
    AdaLN shifts, scales and gates by are constants, here in norms and products."""
    import transformers

    check_form(config, {'time_conditioning': False})  # the order of tokens gives no time
    C = config['hidden_dim']
    neox = transformers.GPTNeoXConfig(
        vocab_size=config['vocab_size'],
        hidden_size=C,
        intermediate_size=4 * C,
        num_hidden_layers=config['n_blocks'],
        num_attention_heads=config['n_heads'],
        max_position_embeddings=config['model_length'],
        hidden_act='gelu_pytorch_tanh',
        attention_bias=False,
        use_parallel_residual=False,
        rope_parameters={'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    )
    head = torch.nn.Linear(C, config['vocab_size'])  # theirs has a bias
    of_head, body = at_time_0(weights, config)
    head.load_state_dict(of_head, assign=True)
    with torch.device('meta'):
        network = transformers.GPTNeoXForCausalLM(neox)
    network.gpt_neox = filled(transformers.GPTNeoXModel, neox, renamed(body, MDLM_NAMES))
    network.set_output_embeddings(head)
    return network.eval()


def at_time_0(weights, config):
    """Return the weights of MDLM's head, and of its body, which take what AdaLN says at time 0."""
    w = {name.removeprefix('backbone.'): p for name, p in weights.items()}

    def linear(x, name):
        return F.linear(x, w.pop(f'{name}.weight'), w.pop(f'{name}.bias'))

    def modulate(norm, shift, scale):
        w[f'{norm}.weight'] *= 1 + scale
        w[f'{norm}.bias'] = shift

    cosines = w['vocab_embed.embedding'].new_ones(128)
    time = linear(F.pad(cosines, (0, 128)), 'sigma_map.mlp.0')  # the sines are 0
    time = F.silu(linear(F.silu(time), 'sigma_map.mlp.2'))
    modulate('output_layer.norm_final', *linear(time, 'output_layer.adaLN_modulation').chunk(2))
    for layer in range(config['n_blocks']):
        at = f'blocks.{layer}'
        six = linear(time, f'{at}.adaLN_modulation').chunk(6)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = six
        modulate(f'{at}.norm1', shift_a, scale_a)
        w[f'{at}.attn_out.weight'] *= gate_a.unsqueeze(1)
        modulate(f'{at}.norm2', shift_m, scale_m)
        w[f'{at}.mlp.2.weight'] *= gate_m.unsqueeze(1)
        w[f'{at}.mlp.2.bias'] *= gate_m
        # GPT-NeoX has query, key and value of a head beside each other
        qkv = w[f'{at}.attn_qkv.weight'].unflatten(0, (3, config['n_heads'], -1))
        w[f'{at}.attn_qkv.weight'] = qkv.transpose(0, 1).flatten(0, 2)
    return {kind: w.pop(f'output_layer.linear.{kind}') for kind in ('weight', 'bias')}, w


def load_mlm(config, weights):
    """Return a masked language model of transformers, which knows older names of weights too."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config = CONFIG_MAPPING[config['model_type']].from_dict(config)
    kind = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    return filled(kind, config, weights, MISFITS[:2])  # its file may have other heads, too


# which weights from_pretrained says not to fit
MISFITS = ('missing_keys', 'mismatched_keys', 'unexpected_keys')


def filled(kind, config, weights, misfits=MISFITS):
    """Return a network of transformers with these weights, in which every token sees every token.

    kind     its class, whose config is `config`
    misfits  those of MISFITS that are an error, a ValueError"""
    config.is_causal = False
    config.use_cache = False
    config._attn_implementation = None  # config.json may name a kernel of the hub, which is code
    network, info = kind.from_pretrained(
        None,
        config=config,
        # networks compute the frequencies of rotary positions
        state_dict={name: p for name, p in weights.items() if not name.endswith('inv_freq')},
        dtype='auto',
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    names = {
        key if isinstance(key, str) else key[0]  # else a tuple of a name and shapes
        for misfit in misfits
        for key in info[misfit]
    }
    if names:
        raise ValueError(f'{len(names)} weights do not fit config.json, the first is {min(names)}')
    return network


def renamed(weights, names):
    """Return {name: weight} with other names, by {expression of a part of a name: what it is}."""
    found = {}
    for name, p in weights.items():
        for theirs, its in names.items():
            name = re.sub(theirs, its, name)
        found[name] = p
    return found


# another family is a loader, and what must be known about it, named here
FAMILIES = {
    'llada': MaskedFamily(load_llada, 'max_sequence_length', mask_id=126336),
    'Dream': MaskedFamily(load_dream, 2048, shift=True, mask_id=151666, tokenizer='Qwen2Tokenizer'),
    'mdlm': MaskedFamily(load_mdlm, 'model_length', mask_id=50257, tokenizer='gpt2'),
    'bert': MaskedFamily(load_mlm, writes_end=False, tokenizer='AutoTokenizer'),
    'modernbert': MaskedFamily(load_mlm, writes_end=False, tokenizer='AutoTokenizer'),
}
