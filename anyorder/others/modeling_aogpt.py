"""What is AO-GPT in the classes of transformers? export_hf.py puts this file into a folder, with model.py beside it.

    AutoModel              the network: its forward is -log p of every visit of an order, predict gives logits
    AutoModelForCausalLM   left to right: logits[:, i] predict token i + 1 given tokens 0 to i
    AutoModelForMaskedLM   blanks, written as the id of [MASK], in parallel, given all other tokens"""
import torch
import torch.nn.functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput

from .model import AOGPT, AOGPTConfig, KVCache, float32_or_better, take


class AOGPTHubConfig(PreTrainedConfig):
    """config.json: `model_args` are the arguments of AOGPTConfig, the other names say how the weights were made."""
    model_type = 'aogpt'

    def __init__(self, model_args=None, **kwargs):
        self.model_args = model_args or {}
        kwargs['tie_word_embeddings'] = self.sizes.gpt2_blocks
        super().__init__(**kwargs)

    sizes = property(lambda self: AOGPTConfig(**self.model_args))
    vocab_size = property(lambda self: self.sizes.vocab_size)
    mask_token_id = property(lambda self: self.sizes.n_real)
    hidden_size = property(lambda self: self.sizes.n_embd)
    num_hidden_layers = property(lambda self: self.sizes.n_layer)
    num_attention_heads = property(lambda self: self.sizes.n_head)
    # left to right the last position is predicted and never read
    max_position_embeddings = property(lambda self: self.sizes.block_size - 1)


class AOGPTView(PreTrainedModel):
    """What the three views share: the network, under the names of its weights."""
    config_class = AOGPTHubConfig
    base_model_prefix = 'network'
    _tied_weights_keys = {'network.lm_head.weight': 'network.transformer.wte.weight'}   # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.network = AOGPT(config.sizes)
        self.post_init()

    def _init_weights(self, module):
        """AOGPT has drawn its own."""

    def get_input_embeddings(self):
        return self.network.transformer.wte

    def get_output_embeddings(self):
        return self.network.lm_head

    def predict(self, *args, **kwargs):
        """AOGPT.predict."""
        return self.network.predict(*args, **kwargs)


class AOGPTModel(AOGPTView):
    def forward(self, input_ids, order, n_known=None, columns=None):
        """AOGPT.forward: nll (B, n) in nats of the tokens (B, N), in the order (B, T) of positions."""
        return self.network(input_ids, order, n_known, columns)


def without_padding(input_ids, attention_mask):
    """(idx (B, n), lengths (B,), place (B, T)): rows without the padding at their ends, a column's place in idx."""
    B, T = input_ids.shape
    columns = torch.arange(T, device=input_ids.device)
    if attention_mask is None:
        return input_ids, input_ids.new_full((B,), T), columns.expand(B, T)
    shown = attention_mask.bool()
    lengths, place = shown.sum(1), shown.cumsum(1) - 1
    start = shown.int().argmax(1, keepdim=True)
    if not torch.equal(shown, (columns >= start) & (columns < start + lengths.unsqueeze(1))) or not lengths.all():
        raise ValueError('attention_mask must leave tokens in every row, and hide the ends of rows alone')
    idx = input_ids.gather(1, (start + columns[:int(lengths.max())]).clamp(max=T - 1))
    return idx, lengths, place.clamp(min=0)


class BeamCache(KVCache):
    def reorder_cache(self, rows):
        """Row r becomes what row rows[r] was."""
        self.k, self.v, self.length = self.k[:, rows], self.v[:, rows], self.length[rows.cpu()]


class AOGPTForCausalLM(AOGPTView, GenerationMixin):
    """The order from left to right, which a decoder of any order reads too. The network reads [None] before the first
    token. It predicts N positions given at most N - 1 tokens: for N tokens the last column of logits is NaN. `loss` is
    the mean over labels[:, 1:], as everywhere in transformers."""
    _is_stateful = True   # no assisted generation: a cache cannot go back

    def __init__(self, config):
        if config.sizes.slots.masked_loss:
            raise ValueError(f'attention={config.sizes.attention} has no left-to-right view, it predicts blanks: '
                             'load it with AutoModelForMaskedLM, or AutoModel')
        super().__init__(config)

    def forward(self, input_ids, attention_mask=None, labels=None, past_key_values=None, use_cache=None,
                logits_to_keep=0, return_dict=None):
        """Logits (B, T, V) for the tokens after each of input_ids (B, T), or after the last `logits_to_keep` of them.
        Padding at the ends of rows changes nothing. `past_key_values` is generate()'s cache, beside the whole text."""
        idx, lengths, place = without_padding(input_ids, attention_mask)
        if past_key_values is not None and not isinstance(past_key_values, BeamCache):
            raise ValueError('past_key_values must be the cache of generate(), which makes its own')
        N, width = self.network.config.block_size, idx.size(1)
        if width > N:
            raise ValueError(f'the model reads at most {N} tokens, got {width}')
        n_visits = min(width + 1, N)
        order = torch.arange(n_visits, device=idx.device).expand(len(idx), -1)
        place = place[:, -logits_to_keep:]
        first = place[:, :1]                                             # visit 0 is given one token
        column, known = place - first, lengths.cpu()
        logits = self.network.predict(F.pad(idx, (0, 1))[:, :n_visits], order, known,
                                      int(column.max()) + 1, past_key_values, first=first[:, 0].cpu() + 1)
        logits = logits if attention_mask is None else take(logits, column)
        if width == N:
            logits = logits.masked_fill((place == N - 1).unsqueeze(-1), torch.nan)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(float32_or_better(logits[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False   # the cache of transformers knows nothing of slots

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, use_cache=None,
                                      **ignored):
        N = self.network.config.block_size
        longest = input_ids.size(1) if attention_mask is None else int(attention_mask.sum(1).max())
        if longest >= N:
            raise ValueError(f'the text has {N} tokens, and the model no position left: generate with '
                             f'max_length={N}, or a smaller max_new_tokens')
        if use_cache and past_key_values is None:
            past_key_values = BeamCache(self.network.config, len(input_ids), self.device, self.dtype)
        return {'input_ids': input_ids, 'attention_mask': attention_mask, 'past_key_values': past_key_values,
                'logits_to_keep': 1}


class AOGPTForMaskedLM(AOGPTView):
    """Blanks in parallel, given all known tokens, which a decoder reads from left to right and an encoder at once. A
    blank is the id config.mask_token_id. A known token has logit 0 for itself and -inf for others."""

    def forward(self, input_ids, attention_mask=None, labels=None, return_dict=None):
        """Logits (B, T, V) of input_ids (B, T); `loss` is the mean over the blanks whose label is not -100."""
        idx, lengths, place = without_padding(input_ids, attention_mask)
        real = torch.arange(idx.size(1), device=idx.device) < lengths.unsqueeze(1)          # (B, n)
        blank = real & (idx == self.config.mask_token_id)
        order = (blank + 2 * ~real).argsort(dim=1, stable=True)                             # known, blanks, padding
        known, idx = (lengths - blank.sum(1)).cpu(), idx.masked_fill(blank | ~real, 0)
        logits = self.network.predict(idx, order, known, max(1, idx.size(1) - int(known.min())), n_visits=lengths.cpu())
        column = order.argsort(dim=1) - known.to(idx.device).unsqueeze(1)
        itself = torch.full_like(logits[:, :1], -torch.inf).expand(-1, idx.size(1), -1)
        itself = itself.scatter(-1, idx.unsqueeze(-1), 0.0)
        logits = torch.where(blank.unsqueeze(-1), take(logits, column.clamp(0, logits.size(1) - 1)), itself)
        logits = take(logits, place)
        loss = None
        if labels is not None:
            labels = labels.masked_fill(input_ids != self.config.mask_token_id, -100)
            loss = F.cross_entropy(float32_or_better(logits).flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)
