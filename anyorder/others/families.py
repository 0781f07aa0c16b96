"""Which folders of others hold a masked model? `masked:FOLDER` or `masked:OWNER/REPO` on the hub names one; its
config.json says which. Weights go into networks of transformers or of mdlm.py. No code of a folder is ever run."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from anyorder.machine.files import MASKED, is_out_of_memory, need_extra
from anyorder.orders import order_of
from anyorder.others.masked import MaskedConfig, MaskedModel
from anyorder.others.mdlm import MDLM
from anyorder.others.weights import (
    WithoutDraws,
    is_same,
    local_path,
    read_json,
    read_weights,
    weight_files,
)
from anyorder.tokens.tokenizers import HuggingFace, get_tokenizer

FILES = (
    'config.json',
    'tokenizer*.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'vocab.*',
    'merges.txt',
    'chat_template.jinja',
)
VOCABULARIES = 'tokenizer.json', 'vocab.json', 'vocab.txt'

# masked models of transformers whose table of positions begins behind the id of the padding token
OFFSET = (
    'camembert',
    'data2vec-text',
    'esm',
    'ibert',
    'longformer',
    'luke',
    'mpnet',
    'roberta',
    'roberta-prelayernorm',
    'xlm-roberta',
    'xlm-roberta-xl',
    'xmod',
)


@dataclass(frozen=True)
class MaskedFamily:
    """One kind of masked model."""

    load: Callable  # (config.json as a dict, {name: weight}) -> the network
    positions: str | int = (
        'max_position_embeddings'  # the key of config.json that bounds a text, or the number
    )
    shift: bool = False  # the logits of a token stand one token before it
    mask_id: int | None = None  # if neither tokenizer nor config.json names it
    writes_end: bool = True  # whether the model writes the token that ends a document
    tokenizer: str = 'AutoTokenizer'  # in transformers; where the folder names code, maybe ours


def decoder(kind):
    """The loader of a network that was trained to see all tokens, and that transformers has as the decoder `kind`."""

    def load(config, weights):
        import transformers

        others = 'model_type', 'auto_map', 'layer_types', *POSITIONS
        # the code of their authors has no sliding window
        config = {
            **without(config, *others),
            'use_sliding_window': False,
            'rope_parameters': rotary(config),
        }
        config = getattr(transformers, f'{kind}Config').from_dict(config)
        return fill_in(getattr(transformers, f'{kind}ForCausalLM'), config, weights)

    return load


# entries of config.json about rotary positions, in either spelling
ORIGINAL = 'original_max_position_embeddings'
POSITIONS = 'rope_scaling', 'rope_parameters', 'rope_theta', ORIGINAL
# how rotary positions may be scaled: what each way must say, and what else it may
# (`dynamic` scales texts that are longer than any here)
ROTARY = {
    'default': ([], []),
    'linear': (['factor'], []),
    'dynamic': (['factor'], []),
    'llama3': (['factor', 'low_freq_factor', 'high_freq_factor', ORIGINAL], []),
    'yarn': (
        ['factor'],
        [
            ORIGINAL,
            'attention_factor',
            'beta_fast',
            'beta_slow',
            'mscale',
            'mscale_all_dim',
            'truncate',
        ],
    ),
    'longrope': (['short_factor', 'long_factor'], [ORIGINAL, 'factor', 'attention_factor']),
}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def entries_of(name, config):
    """The entries of a table of config.json, {} where there is none."""
    table = config.get(name)
    if table is None or isinstance(table, dict):
        return table or {}
    raise ValueError(f'{name} must be names and values, got {table!r}')


def with_rope_type(scaling):
    """The scaling, with its kind under the name that it has today."""
    return {'rope_type': scaling.get('type', 'default')} | without(scaling, 'type')


def rotary(config):
    """rope_parameters as transformers 5 has them, of a config.json that transformers 4 or 5 wrote. Whatever is not
    understood is a ValueError: it would be left out, and the network another one."""
    found = {}
    for name in ('rope_parameters', 'rope_scaling'):
        scaling = with_rope_type(entries_of(name, config))
        if scaling['rope_type'] == 'default':  # it may be scaled by the other one
            del scaling['rope_type']
        add_entries(found, scaling)
    found.setdefault('rope_type', 'default')
    kind = found['rope_type']
    if kind not in list(ROTARY):
        raise ValueError(f'rope_type={kind!r} is not understood: it may be {", ".join(ROTARY)}')
    needed, more = ROTARY[kind]
    beside = {
        name: config[name] for name in ('rope_theta', ORIGINAL) if config.get(name) is not None
    }
    if ORIGINAL not in (*needed, *more):
        beside.pop(ORIGINAL, None)
    add_entries(found, beside)
    given = found.keys() - {'rope_type', 'rope_theta'}
    if not {*needed} <= given <= {*needed, *more}:
        raise ValueError(f'rope_type={kind!r} must say {needed}, and may say {more}, got {found}')
    return found


def add_entries(found, more):
    """Add entries to those of `found`. Raises ValueError where the two say different things of one name."""
    for name, value in more.items():
        if found.setdefault(name, value) != value:
            raise ValueError(f'{name} is {value} and {found[name]}: leave one of them')


# Llama's names of the parts of a block, by LLaDA's
LLADA_PARTS = {
    'attn_norm': 'input_layernorm',
    'q_proj': 'self_attn.q_proj',
    'k_proj': 'self_attn.k_proj',
    'v_proj': 'self_attn.v_proj',
    'attn_out': 'self_attn.o_proj',
    'ff_norm': 'post_attention_layernorm',
    'ff_proj': 'mlp.gate_proj',
    'up_proj': 'mlp.up_proj',
    'ff_out': 'mlp.down_proj',
}
# and outside of the blocks
LLADA_REST = {'wte': 'model.embed_tokens', 'ln_f': 'model.norm', 'ff_out': 'lm_head'}
# entries of LLaDA's config.json that change the network, and the values that make it a Llama
LLADA_IS = {
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
}


def load_llada(config, weights):
    import transformers

    wrong = {
        name: config[name]
        for name, value in LLADA_IS.items()
        if config.get(name) not in (None, value)
    }
    if wrong:
        raise ValueError(f'another LLaDA than the one that is understood has {wrong}')
    positions = {'rope_theta': 10000.0} | rotary(config)
    if positions['rope_type'] != 'default':
        raise ValueError(f'a LLaDA does not scale its positions, and this one has {positions}')
    d, n = config['d_model'], config['n_heads']
    llama = transformers.LlamaConfig(
        vocab_size=config.get('embedding_size') or config['vocab_size'],
        hidden_size=d,
        intermediate_size=config.get('mlp_hidden_size') or config['mlp_ratio'] * d,
        num_hidden_layers=config['n_layers'],
        num_attention_heads=n,
        num_key_value_heads=config.get('n_kv_heads') or n,
        rms_norm_eps=config.get('rms_norm_eps', 1e-5),
        tie_word_embeddings=config.get('weight_tying', False),
        max_position_embeddings=config['max_sequence_length'],
        rope_parameters=positions,
    )
    return fill_in(
        transformers.LlamaForCausalLM, llama, {llama_name(name): p for name, p in weights.items()}
    )


def llama_name(name):
    """Llama's name of a weight of LLaDA."""
    path = name.removeprefix('model.').removeprefix('transformer.').split('.')
    if path[0] == 'blocks' and path[2] in LLADA_PARTS:
        return '.'.join(['model.layers', path[1], LLADA_PARTS[path[2]], *path[3:]])
    return '.'.join([LLADA_REST.get(path[0], path[0]), *path[1:]])


def load_mdlm(config, weights):
    if config.get('time_conditioning', False):
        raise ValueError(
            'it was trained with time_conditioning, and the order of tokens gives no time'
        )
    sizes = {
        name: config[name]
        for name in ('vocab_size', 'hidden_dim', 'cond_dim', 'n_blocks', 'n_heads')
    }
    return set_weights(MDLM(**sizes), weights)


def own_attention(config):
    """The config with transformers' own attention: config.json may name a kernel of the hub, which is code."""
    config._attn_implementation = config._experts_implementation = None
    return config


def fill_in(kind, config, weights):
    """A network of this class of transformers with these weights, in which every token sees every token."""
    config.is_causal, config.use_cache = False, False
    with WithoutDraws():
        network = kind(own_attention(config))
    names = 'model.embed_tokens.weight', 'lm_head.weight'
    there = [weights[name] for name in names if name in weights]
    # a head in the file that is not the embedding is the head
    tied = config.tie_word_embeddings and len(there) > 0 and is_same(there[0], there[-1])
    if tied:
        weights = weights | dict.fromkeys(names, there[0])
    set_weights(network, weights)
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    return network


def set_weights(network, weights):
    """The network with these weights, in the dtype of their file. Raises ValueError unless they are all that it has."""
    weights = {
        name: p for name, p in weights.items() if not name.endswith('inv_freq')
    }  # which are computed
    shapes = {name: p.shape for name, p in network.named_parameters(remove_duplicate=False)}
    check_weights(
        {
            name
            for name in shapes.keys() | weights.keys()
            if shapes.get(name) != getattr(weights.get(name), 'shape', None)
        }
    )
    network.load_state_dict(
        weights, strict=False, assign=True
    )  # names and shapes were compared above
    return network.eval()


def check_weights(wrong):
    if wrong:
        raise ValueError(f'{len(wrong)} weights do not fit config.json, the first is {min(wrong)}')


def load_mlm(config, weights):
    """A masked language model of transformers itself, which knows older names of the weights too."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if scaling := entries_of('rope_scaling', config):  # ModernBERT would not find the older name
        config = {**config, 'rope_scaling': with_rope_type(scaling)}
    config = own_attention(CONFIG_MAPPING[config['model_type']].from_dict({**config}))
    network, info = MODEL_FOR_MASKED_LM_MAPPING[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype='auto',
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    check_weights({*info['missing_keys'], *(name for name, *_ in info['mismatched_keys'])})
    return network.eval()


# another family is a loader, and what must be known about it, named here
FAMILIES = {
    'llada': MaskedFamily(load_llada, 'max_sequence_length', mask_id=126336),
    'Dream': MaskedFamily(
        decoder('Qwen2'), 2048, shift=True, mask_id=151666, tokenizer='Qwen2Tokenizer'
    ),
    'a2d-llama': MaskedFamily(decoder('Llama')),
    'a2d-qwen2': MaskedFamily(decoder('Qwen2')),
    'a2d-qwen3': MaskedFamily(decoder('Qwen3')),
    'mdlm': MaskedFamily(load_mdlm, 'model_length', mask_id=50257, tokenizer='gpt2'),
}


def masked_family(kind, path):
    """The MaskedFamily of a model_type. Raises ValueError for one that is not understood."""
    if kind in list(FAMILIES):  # a list: a model_type may be any value of JSON
        return FAMILIES[kind]
    need_extra('transformers', 5, 2)
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES as OF_TRANSFORMERS,
    )

    if kind in list(OF_TRANSFORMERS):
        return MaskedFamily(load_mlm, writes_end=False)
    raise ValueError(
        f'{path} has model_type={kind!r}, which is not understood: FOLDER may be aogpt, or gpt2, which '
        f'train.py --init_from adapts; {MASKED}FOLDER may be {", ".join(FAMILIES)} or a masked model of '
        'transformers, as bert; another causal network must first learn to fill blanks, as a2d-llama did; '
        'in Python anyorder.others.masked.MaskedModel takes any callable that sees all tokens'
    )


class File(dict):
    """What config.json says."""

    def __missing__(self, name):
        raise ValueError(f'config.json of a {self.get("model_type")} model lacks {name}')


class MaskedCheckpoint:
    """An opened folder of somebody else's masked model, with the names of a Checkpoint. Its training is not known."""

    entries, run, set, order, iter_num, weights = {}, {}, {}, order_of({}), '?', 'raw'

    def __init__(self, name):
        """Open masked:FOLDER or masked:OWNER/REPO. Raises ValueError when it is none, or not understood."""
        need_extra('transformers', 5, 2)  # before, decoders stay causal without a word, see fill_in
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.name, self.folder = name, name.removeprefix(MASKED)
        if not os.path.isdir(self.folder):
            self.folder = local_path(f'hf:{self.folder}', FILES)
        path = os.path.join(self.folder, 'config.json')
        self.file = File(read_json(path))
        self.kind = self.file.get('model_type')
        self.family = masked_family(self.kind, path)
        if 'quantization_config' in self.file:
            raise ValueError(
                f'{path} has quantization_config={self.file["quantization_config"]!r}: only weights that '
                'are not quantized are understood, name the model before it was'
            )
        if not weight_files(self.folder):
            raise ValueError(
                f'{self.folder} holds no weights: neither model.safetensors nor pytorch_model.bin'
            )
        if self.family.tokenizer == 'gpt2':
            self.tokenizer = get_tokenizer('gpt2')
            special = dict.fromkeys(
                ('prefix', 'suffix'), (self.tokenizer.eos,)
            )  # as in the blocks of MDLM's training
        else:
            backend, special, chat = open_tokenizer(self.family.tokenizer, self.folder)
            end = special.get('eos') if self.family.writes_end else None
            name = f'{self.kind}:{os.path.basename(os.path.normpath(self.folder))}'
            self.tokenizer = HuggingFace(name, backend, end, chat)
        self.config = self.what_is_known(special)

    def what_is_known(self, special):
        """MaskedConfig, from config.json and {what: token} of the special tokens."""
        family, file, n_tokens, end = (
            self.family,
            self.file,
            self.tokenizer.n_tokens,
            self.tokenizer.eos,
        )
        named = special.get('mask'), file.get('mask_token_id'), family.mask_id
        mask_id = next((token for token in named if token is not None), None)
        if mask_id is None:
            raise ValueError(
                f'{self.folder} names no mask token, in its tokenizer or as mask_token_id of config.json'
            )
        prefix, suffix = special.get('prefix', ()), special.get('suffix', ())
        if family.shift and not prefix:
            first = special.get('bos', file.get('bos_token_id'))
            prefix = (end if first is None else first,)
        rows = file[family.positions] if isinstance(family.positions, str) else family.positions
        if self.kind in OFFSET:
            rows -= 2 if (pad := file.get('pad_token_id')) is None else pad + 1
        around = {special.get(what) for what in ('pad', 'cls', 'sep', 'bos')} | {*prefix, *suffix}
        return MaskedConfig(
            rows - len(prefix) - len(suffix),
            n_tokens,
            mask_id,
            family.shift,
            tuple(sorted(around - {None, end})),
            prefix,
            suffix,
            hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest()[:16],
        )

    def model(self, weights='raw', device='cpu'):
        """The MaskedModel in evaluation mode, in the dtype of its file, which has one set of weights by any name."""
        found = read_weights(self.folder)
        with explained(self.folder, f'makes no {self.kind}', 'name another, or fetch it again'):
            network = self.family.load(self.file, found)
        return MaskedModel(network, self.config).to(device)

    def about(self, weights):
        return f'{self.name}: {self.kind}, mask token {self.config.mask_id}'


@contextlib.contextmanager
def explained(folder, what, way_out):
    """Whatever transformers raises in the body, each time another class, is a ValueError of one line."""
    try:
        yield
    except Exception as e:
        if is_out_of_memory(e):
            raise
        why = (str(e).strip().splitlines() or [''])[0][:300]
        raise ValueError(f'{folder} {what} ({type(e).__name__}: {why}): {way_out}') from None


def open_tokenizer(kind, folder):
    """(tokenizer of the package tokenizers, {what: token} of its special tokens, its chat template or None) of a
    folder, by this class of transformers. `prefix` and `suffix` are the tokens that it puts around a text."""
    import transformers

    if not any(
        os.path.isfile(os.path.join(folder, name)) for name in VOCABULARIES
    ):  # else one of no words is made
        raise ValueError(f'{folder} has no vocabulary: {", ".join(VOCABULARIES)} is missing')
    file = read_json(os.path.join(folder, 'config.json'))
    known = {}
    # AutoTokenizer looks into config.json, and fails at a model_type that transformers does not have
    if kind == 'AutoTokenizer' and file.get('model_type') in list(FAMILIES):
        known['config'] = transformers.PreTrainedConfig.from_dict(without(file, *POSITIONS))
    with explained(
        folder, 'has no tokenizer that can be read without running its code', 'add a tokenizer.json'
    ):
        tokenizer = getattr(transformers, kind).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **known
        )
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # of the text that it last read, which a tokenizer.json keeps
        backend.no_padding()
    special = {
        what: token
        for what in ('mask', 'pad', 'cls', 'sep', 'bos', 'eos')
        if (token := getattr(tokenizer, f'{what}_token_id', None)) is not None
    }
    around = backend.encode('').ids
    if len(around) > 2:
        raise ValueError(
            f'{folder} puts {len(around)} tokens around a text: one before and one behind are understood'
        )
    n_before = (
        1 if len(around) == 2 or around[:1] in ([special.get('cls')], [special.get('bos')]) else 0
    )

    def chat(messages, **options):
        with explained(folder, 'has a chat template that fails', 'leave out --apply_chat_template'):
            return tokenizer.apply_chat_template(messages, tokenize=False, **options)

    chat.template = tokenizer.chat_template
    special |= {'prefix': tuple(around[:n_before]), 'suffix': tuple(around[n_before:])}
    return backend, special, chat if tokenizer.chat_template else None
