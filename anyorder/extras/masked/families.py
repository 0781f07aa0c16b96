"""Which folders of others hold a masked model?

`masked:FOLDER` or `masked:OWNER/REPO` on the hub names one; its config.json says which. Weights go
into networks of transformers or of mdlm.py. No code of a folder is ever run."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from anyorder.checkpoint import set_exempt
from anyorder.extras.hub.folders import read_weights, weight_files
from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.extras.masked.mdlm import MDLM
from anyorder.extras.masked.tokenizer import HuggingFace
from anyorder.machine.files import MASKED, is_out_of_memory
from anyorder.orders import Order
from anyorder.tokens.meta import Meta
from anyorder.tokens.tokenizers import get_tokenizer
from anyorder.weights import WithoutDraws, local_path, read_json

FILES = (
    'config.json',
    'tokenizer*.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'vocab.*',
    'merges.txt',
    'chat_template.jinja',
)
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
            # before, decoders stay causal without a word, see fill_in
            raise ValueError(f'masked models need transformers 5.2 or newer, {version} is there')
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.name = name
        self.folder = name.removeprefix(MASKED)
        if not os.path.isdir(self.folder):
            self.folder = local_path(f'hf:{self.folder}', FILES)
        path = os.path.join(self.folder, 'config.json')
        self.file = File(read_json(path))
        self.kind = self.file.get('model_type')
        self.family = masked_family(self.kind, path)
        if not weight_files(self.folder):
            raise ValueError(
                f'{self.folder} holds no weights: neither model.safetensors nor pytorch_model.bin'
            )
        self.tokenizer, special = self.open_tokenizer()
        self.config = self.what_is_known(special)

    def open_tokenizer(self):
        """Return the tokenizer, and {what: token} of its special tokens, see open_tokenizer."""
        if self.family.tokenizer == 'gpt2':
            tokenizer = get_tokenizer('gpt2')
            around = (tokenizer.eos,)  # as in the blocks of MDLM's training
            return tokenizer, {'prefix': around, 'suffix': around}
        backend, special, chat = open_tokenizer(self.family.tokenizer, self.folder)
        end = None
        if self.family.writes_end:
            end = special.get('eos')
        name = f'{self.kind}:{os.path.basename(os.path.normpath(self.folder))}'
        return HuggingFace(name, backend, end, chat), special

    def what_is_known(self, special):
        """Return the MaskedConfig, from config.json and {what: token} of the special tokens."""
        mask_id = self.mask_id(special)
        prefix = self.prefix(special)
        suffix = special.get('suffix', ())
        banned = {special.get(what) for what in ('pad', 'cls', 'sep', 'bos')}
        banned |= {*prefix, *suffix}
        banned -= {None, self.tokenizer.eos}
        said = json.dumps(self.file, sort_keys=True)
        return MaskedConfig(
            block_size=self.n_positions() - len(prefix) - len(suffix),
            n_tokens=self.tokenizer.n_tokens,
            mask_id=mask_id,
            shift=self.family.shift,
            banned=tuple(sorted(banned)),
            prefix=prefix,
            suffix=suffix,
            file=hashlib.sha256(said.encode()).hexdigest()[:16],
        )

    def mask_id(self, special):
        """Return the token of a blank, by the tokenizer, by config.json or by the family."""
        named = (special.get('mask'), self.file.get('mask_token_id'), self.family.mask_id)
        for token in named:
            if token is not None:
                return token
        raise ValueError(
            f'{self.folder} names no mask token, in its tokenizer or as mask_token_id of '
            'config.json'
        )

    def prefix(self, special):
        """Return the tokens before every text. A family that shifts its logits wants one."""
        prefix = special.get('prefix', ())
        if prefix or not self.family.shift:
            return prefix
        return (special.get('bos', self.tokenizer.eos),)

    def n_positions(self):
        """Return how many positions the network has for a text and what stands around it."""
        rows = self.family.positions
        if isinstance(rows, str):
            rows = self.file[rows]
        return rows

    def model(self, weights='raw', device='cpu'):
        """Return the MaskedModel in evaluation mode, in the dtype of its file.

        The file has one set of weights, by any name."""
        found = read_weights(self.folder)
        with explained(self.folder, f'makes no {self.kind}', 'name another, or fetch it again'):
            check_form(self.file, {'quantization_config': None})
            network = self.family.load(self.file, found)
        model = MaskedModel(network, self.config).to(device)
        set_exempt(model, self.tokenizer)
        return model

    def about(self, weights):
        return f'{self.name}: {self.kind}, mask token {self.config.mask_id}'


class File(dict):
    """What config.json says."""

    def __missing__(self, name):
        raise ValueError(f'config.json of a {self.get("model_type")} model lacks {name}')


@contextlib.contextmanager
def explained(folder, what, way_out):
    """Make one line, a ValueError, of whatever transformers raises in the body."""
    try:
        yield
    except Exception as e:
        if is_out_of_memory(e):
            raise
        lines = str(e).strip().splitlines()
        why = lines[0][:300] if lines else ''
        raise ValueError(f'{folder} {what} ({type(e).__name__}: {why}): {way_out}') from None


def open_tokenizer(kind, folder):
    """Open the tokenizer of a folder by this class of transformers.

    Returns the tokenizer of the package tokenizers; {what: token} of its special tokens, where
    `prefix` and `suffix` are the tokens that it puts around a text; its chat template or None."""
    tokenizer = tokenizer_of_transformers(kind, folder)
    backend = tokenizer.backend_tokenizer
    special = {}
    for what in ('mask', 'pad', 'cls', 'sep', 'bos', 'eos'):
        token = getattr(tokenizer, f'{what}_token_id', None)
        if token is not None:
            special[what] = token
    special['prefix'], special['suffix'] = tokens_around(backend, special, folder)
    return backend, special, chat_of(tokenizer, folder)


def tokenizer_of_transformers(kind, folder):
    """Return the tokenizer of transformers of a folder, which cuts and fills up no text."""
    import transformers

    there = [name for name in VOCABULARIES if os.path.isfile(os.path.join(folder, name))]
    if not there:  # transformers would make one of no words
        raise ValueError(f'{folder} has no vocabulary: {", ".join(VOCABULARIES)} is missing')
    file = read_json(os.path.join(folder, 'config.json'))
    known = {}
    # AutoTokenizer looks into config.json, and fails at a model_type that transformers lacks
    if kind == 'AutoTokenizer' and file.get('model_type') not in list(transformers.CONFIG_MAPPING):
        known['config'] = transformers.PreTrainedConfig()
    with explained(
        folder, 'has no tokenizer that can be read without running its code', 'add a tokenizer.json'
    ):
        tokenizer = getattr(transformers, kind).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **known
        )
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # of the text that it last read, which a tokenizer.json keeps
        backend.no_padding()
    return tokenizer


def tokens_around(backend, special, folder):
    """Return the tokens that a tokenizer puts before and behind a text, one each at most."""
    around = tuple(backend.encode('').ids)
    if len(around) > 2:
        raise ValueError(
            f'{folder} puts {len(around)} tokens around a text: one before and one behind are '
            'understood'
        )
    if len(around) == 2:
        return around[:1], around[1:]
    if around and around[0] in (special.get('cls'), special.get('bos')):
        return around, ()
    return (), around


def chat_of(tokenizer, folder):
    """Return messages -> prompt by the chat template of a tokenizer of transformers, or None."""
    if not tokenizer.chat_template:
        return None

    def chat(messages, **options):
        with explained(folder, 'has a chat template that fails', 'leave out --apply_chat_template'):
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
    tokenizer: str = 'AutoTokenizer'


def masked_family(kind, path):
    """Return the MaskedFamily of a model_type. Raises ValueError for one that is not understood."""
    if kind in list(FAMILIES):  # a list: a model_type may be any value of JSON
        return FAMILIES[kind]
    raise ValueError(
        f'{path} has model_type={kind!r}, which is not understood: FOLDER may be aogpt, or gpt2, '
        f'which train.py --init_from adapts; {MASKED}FOLDER may be {", ".join(FAMILIES)}; in '
        'Python anyorder.extras.masked.masked.MaskedModel takes any callable that sees all tokens'
    )


# entries of Dream's config.json that change the network, and the values that are understood
DREAM_IS = {'tie_word_embeddings': False, 'rope_scaling': None, 'rope_parameters': None}


def load_dream(config, weights):
    """Return a Qwen2 of transformers with the weights of a Dream."""
    import transformers

    check_form(config, DREAM_IS)
    left_out = ('model_type', 'auto_map', 'layer_types')
    config = {name: value for name, value in config.items() if name not in left_out}
    config['use_sliding_window'] = False  # the code of their authors has none
    qwen = transformers.Qwen2Config.from_dict(config)
    return fill_in(transformers.Qwen2ForCausalLM, qwen, weights)


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


def load_llada(config, weights):
    """Return a Llama of transformers with the weights of a LLaDA."""
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
    renamed = {llama_name(name): p for name, p in weights.items()}
    return fill_in(transformers.LlamaForCausalLM, llama, renamed)


def check_form(config, form):
    """Raise ValueError if an entry of config.json, where it is said, differs from this form."""
    for name, value in form.items():
        if config.get(name) not in (None, value):
            raise ValueError(f'{name}={config[name]!r} is not understood: it must be {value}')


def llama_name(name):
    """Return Llama's name of a weight of LLaDA."""
    path = name.removeprefix('model.').removeprefix('transformer.').split('.')
    if path[0] == 'blocks' and path[2] in LLADA_PARTS:
        return '.'.join(['model.layers', path[1], LLADA_PARTS[path[2]], *path[3:]])
    return '.'.join([LLADA_REST.get(path[0], path[0]), *path[1:]])


def fill_in(kind, config, weights):
    """Return a decoder of transformers with these weights, in which every token sees every token.

    kind  its class, whose config is `config`"""
    config.is_causal = False
    config.use_cache = False
    with WithoutDraws():
        network = kind(own_attention(config))
    return set_weights(network, weights)


def own_attention(config):
    """Have transformers' own attention: config.json may name a kernel of the hub, which is code."""
    config._attn_implementation = None
    return config


def set_weights(network, weights):
    """Return the network with these weights, in the dtype of their file.

    Raises ValueError unless they are all that it has."""
    # networks compute the frequencies of rotary positions
    weights = {name: p for name, p in weights.items() if not name.endswith('inv_freq')}
    shapes = {name: p.shape for name, p in network.named_parameters(remove_duplicate=False)}
    found = {name: p.shape for name, p in weights.items()}
    names = shapes.keys() | found.keys()
    check_weights({name for name in names if shapes.get(name) != found.get(name)})
    network.load_state_dict(weights, strict=False, assign=True)  # names and shapes were compared
    return network.eval()


def check_weights(wrong):
    """Raise ValueError if there are names of weights that do not fit."""
    if wrong:
        raise ValueError(f'{len(wrong)} weights do not fit config.json, the first is {min(wrong)}')


def load_mdlm(config, weights):
    """Return the network of MDLM's release."""
    check_form(config, {'time_conditioning': False})  # the order of tokens gives no time
    names = ('vocab_size', 'hidden_dim', 'cond_dim', 'n_blocks', 'n_heads')
    sizes = {name: config[name] for name in names}
    return set_weights(MDLM(**sizes), weights)


def load_mlm(config, weights):
    """Return a masked language model of transformers, which knows older names of weights too."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config = own_attention(CONFIG_MAPPING[config['model_type']].from_dict(config))
    network, info = MODEL_FOR_MASKED_LM_MAPPING[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype='auto',
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    mismatched = {name for name, *_ in info['mismatched_keys']}
    check_weights({*info['missing_keys']} | mismatched)
    return network.eval()


# another family is a loader, and what must be known about it, named here
FAMILIES = {
    'llada': MaskedFamily(load_llada, 'max_sequence_length', mask_id=126336),
    'Dream': MaskedFamily(load_dream, 2048, shift=True, mask_id=151666, tokenizer='Qwen2Tokenizer'),
    'mdlm': MaskedFamily(load_mdlm, 'model_length', mask_id=50257, tokenizer='gpt2'),
    'bert': MaskedFamily(load_mlm, writes_end=False),
    'modernbert': MaskedFamily(load_mlm, writes_end=False),
}
