"""What is AO-GPT in the classes of transformers?

hub puts this file into a folder, with model.py beside it.

    AutoModel              the network: forward is -log p of every visit of an order, predict
                           gives logits
    AutoModelForCausalLM   left to right: logits[:, i] predict token i + 1 given tokens 0 to i
    AutoModelForMaskedLM   blanks, written as the id of [MASK], in parallel, given all other tokens

V is here the number of real tokens. The weights keep the padding of the vocabulary."""

import torch
import torch.nn.functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple

from .model import AOGPT, AOGPTConfig, Block, Head, KVCache, float32_or_better, take

# the Trainer shifts labels that it smooths for the classes of this table alone
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES['aogpt'] = 'AOGPTForCausalLM'
# what outputs and generate() call the cache: `past_key_values` until transformers 5.23
CACHE = 'cache' if 'cache' in CausalLMOutputWithPast.__dataclass_fields__ else 'past_key_values'
NEVER = -1e4  # a logit whose probability is 0, and 0 times its logarithm is 0 and not NaN


class AOGPTHubConfig(PreTrainedConfig):
    """config.json: `model_args` are AOGPTConfig's, the rest says how the weights were made."""

    model_type = 'aogpt'

    def __init__(self, model_args=None, pad_token_id=None, **kwargs):
        self.model_args = model_args or {}
        kwargs['tie_word_embeddings'] = self.sizes.gpt2_blocks
        super().__init__(**kwargs)
        # behind the vocabulary, of which transformers warns where it validates
        self.pad_token_id = pad_token_id

    def validate(self):
        """AOGPTConfig has checked the sizes."""

    sizes = property(lambda self: AOGPTConfig(**self.model_args))
    vocab_size = mask_token_id = property(lambda self: self.sizes.n_real)
    hidden_size = property(lambda self: self.sizes.n_embd)
    num_hidden_layers = property(lambda self: self.sizes.n_layer)
    num_attention_heads = property(lambda self: self.sizes.n_head)
    # left to right the last position is predicted and never read
    max_position_embeddings = property(lambda self: self.sizes.block_size - 1)


class HubBlock(GradientCheckpointingLayer, Block):
    """A block that after gradient_checkpointing_enable() keeps its input alone, computed twice."""


class HubHead(Head):
    """A head for callers who multiply by `weight` and add `bias` themselves.

    The bias rules out the padding."""

    @property
    def bias(self):
        own = self._parameters['bias']
        if own is not None and own.device != self.weight.device:
            return own  # accelerate moves one by one
        if own is None:
            own = self.weight.new_zeros(())
        row = torch.arange(self.out_features, device=self.weight.device)
        return torch.where(row < self.n_real, own, NEVER)


class AOGPTView(PreTrainedModel):
    """What the three views share: the network, under the names of its weights."""

    config_class = AOGPTHubConfig
    base_model_prefix = 'network'
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _tied_weights_keys = {'network.lm_head.weight': 'network.transformer.wte.weight'}
    network_class = AOGPT
    _no_split_modules = ('AOGPT', 'LeftToRight')  # which device_map='auto' keeps on one device

    def __init__(self, config):
        super().__init__(config)
        self.network = self.network_class(config.sizes)
        for block in self.network.transformer.h:
            block.__class__ = HubBlock
        self.network.lm_head.__class__ = HubHead
        self.post_init()

    def _init_weights(self, module):
        """AOGPT has drawn its own."""

    lm_head = property(lambda self: self.network.lm_head)  # which get_output_embeddings asks for
    predict = property(lambda self: self.network.predict)

    def get_input_embeddings(self):
        return self.network.transformer.wte

    def resize_token_embeddings(self, *size, **how):  # which cuts the weights before it sets them
        raise ValueError(
            f'the vocabulary must keep its {self.config.vocab_size} tokens: '
            'train with another tokenizer'
        )


class AOGPTModel(AOGPTView):
    def forward(self, input_ids, order, n_known=None):
        """Return nll (B, T) in nats of the tokens (B, N), in the order (B, T): AOGPT.forward."""
        return self.network(input_ids, order, n_known)


def refuse(others):
    """Raise ValueError for arguments of other models, which mean nothing here.

    peft and trainers pass some as None or False."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise ValueError(
                f'{name} must be left out: an AO-GPT reads input_ids, one text a row, '
                'and gives logits'
            )


def without_padding(input_ids, attention_mask):
    """Return input_ids (B, T) without what attention_mask (B, T) or None hides at the ends of rows.

    returns  (tokens (B, n), behind the end of a row any; their number (B,); place (B, T), where the
             token of a column stands now, else the last one before it, or -1)"""
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    shown = attention_mask.bool()
    columns = torch.arange(input_ids.size(1), device=input_ids.device)
    n_shown = shown.cumsum(1)
    start = (n_shown == 0).sum(1, keepdim=True)
    lengths = shown.sum(1)
    inside = (columns >= start) & (columns < start + lengths.unsqueeze(1))
    if not torch.equal(shown, inside):
        raise ValueError(
            'attention_mask must have a column for each token, in past_key_values too, and '
            'hide the ends of rows alone: to generate, pad on the left'
        )
    column = start + columns[: int(lengths.max())]
    idx = input_ids.gather(1, column.clamp(max=len(columns) - 1))
    return idx, lengths, n_shown - 1


class TextCache(KVCache):
    """Keys and values of `text` (B, T), the columns that were read.

    generate() gives all columns again."""

    # transformers asks
    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def get_seq_length(self):
        return self.text.size(1)

    def reorder_cache(self, rows):
        """Make row r what row rows[r] was."""
        self.k = self.k[:, rows]
        self.v = self.v[:, rows]
        self.length = self.length[rows.cpu()]
        self.text = self.text[rows]


class LeftToRight(AOGPT):
    """The network as transformers has a model without its head: it gives what the head reads."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        use_cache=None,
        logits_to_keep=0,
        **others,
    ):
        """Return last_hidden_state (B, T, C), for the tokens after each of input_ids (B, T).

        See AOGPTForCausalLM.forward."""
        refuse(others)
        T = input_ids.size(1)
        N = self.config.block_size
        cache = past_key_values
        if cache is None and use_cache:
            cache = TextCache(self.config, len(input_ids), self.device, self.dtype)
            cache.text = input_ids[:, :0]
        if cache is not None:
            if not isinstance(cache, TextCache) or len(cache.text) != len(input_ids):
                raise ValueError(
                    'past_key_values must be the cache that this model made for '
                    f'{len(input_ids)} texts'
                )
            input_ids = torch.cat([cache.text, input_ids], 1)
        idx, lengths, place = without_padding(input_ids, attention_mask)
        n = idx.size(1)
        if n > N:
            raise ValueError(f'the model reads at most {N} tokens, got {n}')

        # From the visit after the first of these places on; visit 0 is given [None] alone
        place = place[:, -T:] if T else lengths.unsqueeze(1) - 1
        place = place[:, -logits_to_keep:]
        first = place.amin(1, keepdim=True)
        padding = self.config.n_real + 1  # which generate() shows behind an end
        idx = F.pad(idx.masked_fill(idx == padding, 0), (0, 1))
        order = torch.arange(min(n + 1, N), device=idx.device).expand(len(idx), -1)
        x = self.predict(
            idx[:, :N],
            order,
            lengths.cpu(),
            int((place - first).max()) + 1,
            cache,
            first=first[:, 0].cpu() + 1,
            head=torch.nn.Identity(),
        )
        if cache is not None:
            cache.text = input_ids
        has_no_next = (place == N - 1).unsqueeze(-1)
        x = take(x, place - first).masked_fill(has_no_next, 0)
        return BaseModelOutputWithPast(last_hidden_state=x, **{CACHE: cache})


class AOGPTForCausalLM(AOGPTView, GenerationMixin):
    """The order from left to right, which a decoder of any order reads too.

    The network reads [None] before the first token. It predicts N positions given at most N - 1
    tokens: for N tokens the last column of logits says nothing, and is finite. `loss` is the mean
    over labels[:, 1:], as everywhere in transformers."""

    _is_stateful = True  # no assisted generation: a cache cannot go back
    # the cache of transformers knows nothing of slots
    _supports_default_dynamic_cache = classmethod(lambda cls: False)
    network_class = LeftToRight

    def __init__(self, config):
        if config.sizes.slots_class.masked_loss:
            raise ValueError(
                f'attention={config.sizes.attention} has no left-to-right view, it predicts '
                'blanks: load it with AutoModelForMaskedLM, or AutoModel'
            )
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        labels=None,
        past_key_values=None,
        use_cache=None,
        logits_to_keep=0,
        num_items_in_batch=None,
        cache=None,
        **others,
    ):
        """Return logits (B, T, V) for the tokens after each of input_ids (B, T).

        With `logits_to_keep` only after the last so many. Padding at the ends of rows changes
        nothing; before the first token it predicts the first. The cache, also named
        past_key_values, is from generate() or use_cache=True and comes before input_ids;
        attention_mask covers both."""
        if cache is None:
            cache = past_key_values  # the other name of it
        read = self.network(input_ids, attention_mask, cache, use_cache, logits_to_keep, **others)
        logits = self.lm_head(read.last_hidden_state)[..., : self.config.vocab_size]
        loss = None
        if labels is not None:
            loss = fixed_cross_entropy(
                float32_or_better(logits[:, :-1]).flatten(0, 1),
                labels[:, 1:].flatten(),
                num_items_in_batch,
            )
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: read.get(CACHE)})

    def _prepare_generated_length(self, generation_config, *args, **kwargs):
        """Leave out the max_length of generation_config.json where max_new_tokens says more.

        It is for texts of no length, and transformers would warn of both."""
        is_default = generation_config.max_length == self.generation_config.max_length
        if generation_config.max_new_tokens and is_default:
            generation_config.max_length = None
        return super()._prepare_generated_length(generation_config, *args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids,
        past_key_values=None,
        attention_mask=None,
        use_cache=None,
        cache=None,
        **ignored,
    ):
        """Return what forward is given for the next token: the columns behind the cache."""
        if cache is None:
            cache = past_key_values
        N = self.network.config.block_size
        longest = input_ids.size(1)
        if attention_mask is not None:
            longest = int(attention_mask.sum(1).max())
        if longest >= N:
            raise ValueError(
                f'the text has {N} tokens, and the model no position left: generate with '
                f'max_length={N}, or a smaller max_new_tokens'
            )
        text = getattr(cache, 'text', input_ids[:, :0])
        if not torch.equal(text, input_ids[:, : text.size(1)]):
            raise ValueError(
                'generate() must be given the whole text of the cache, and what is new behind it'
            )
        return {
            'input_ids': input_ids[:, text.size(1) :],
            'attention_mask': attention_mask,
            'use_cache': use_cache,
            CACHE: cache,
            'logits_to_keep': 1,
        }


class AOGPTForMaskedLM(AOGPTView):
    """Blanks in parallel, given all known tokens.

    A decoder reads the known tokens from left to right, an encoder at once. A blank is the id
    config.mask_token_id. A known token has logit 0 for itself and NEVER for others."""

    accepts_loss_kwargs = False  # the Trainer counts labels of known tokens too

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, **others):
        """Return logits (B, T, V) of input_ids (B, T).

        `loss` is the mean over the blanks whose label is not -100."""
        refuse(others)
        idx, lengths, place = without_padding(input_ids, attention_mask)
        logits = take(self.fill(idx, lengths), place.clamp(min=0))
        loss = None
        if labels is not None:
            labels = labels.masked_fill(input_ids != self.config.mask_token_id, -100)
            loss = F.cross_entropy(float32_or_better(logits).flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)

    def fill(self, idx, lengths):
        """Return logits (B, n, V) for all places of texts (B, n) of these lengths."""
        columns = torch.arange(idx.size(1), device=idx.device)
        is_real = columns < lengths.unsqueeze(1)  # (B, n)
        is_blank = is_real & (idx == self.config.mask_token_id)
        kind = is_blank.long().masked_fill(~is_real, 2)  # known, blanks, padding
        order = kind.argsort(dim=1, stable=True)
        n_blanks = is_blank.sum(1)
        n_known = lengths - n_blanks
        n_targets = max(1, idx.size(1) - int(n_known.min()))
        idx = idx.masked_fill(kind > 0, 0)
        logits = self.predict(idx, order, n_known.cpu(), n_targets, n_visits=lengths.cpu())
        logits = logits[..., : self.config.vocab_size]

        found = (1 - F.one_hot(idx, logits.size(-1)).to(logits.dtype)) * NEVER  # of known ones
        found[is_blank] = logits[columns[:n_targets] < n_blanks.unsqueeze(1)]  # both by position
        return found
