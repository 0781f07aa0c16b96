"""How is somebody else's masked model one of ours? It is an encoder whose trunk they made.

Blanks are mask tokens:

from anyorder.extras.masked.masked import MaskedConfig, MaskedModel

model = MaskedModel(network, MaskedConfig(block_size=4096, n_tokens=126349, mask_id=126336))
idx = generate(model, idx, order, n_known, n_steps=64, policy='margin')"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from anyorder.fast import split_rows
from model import EncoderSlots, Head, Network, take


@dataclass(frozen=True)
class MaskedConfig:
    """What must be known of a masked model.

    block_size  positions of a text, without prefix and suffix
    n_tokens    the vocabulary; logits behind it are padding
    mask_id     the token that stands in a blank, never written
    shift       the logits of a token stand one token before it (Dream): the first wants a prefix
    banned      further tokens that are never written
    prefix      tokens before every text, as [CLS] of BERT; idx and order know nothing of them
    suffix      tokens behind every text, as [SEP]
    file        a hash of the network's config.json: kept answers are of a network with these scales
                and positions, too"""

    block_size: int
    n_tokens: int
    mask_id: int
    shift: bool = False
    banned: tuple = ()
    prefix: tuple = ()
    suffix: tuple = ()
    file: str = field(default='', compare=False)
    slots_class: ClassVar = EncoderSlots
    attention: ClassVar = 'bidirectional'
    vocab_size = n_real = property(lambda self: self.n_tokens)

    def __post_init__(self):
        if self.shift and not self.prefix:
            raise ValueError(
                'shift wants a prefix: the logits of the first token of a text stand one token '
                'before it'
            )


class MaskedModel(Network):
    """Somebody else's network as one of ours.

    network  a module, or any callable, that takes tokens (B, S) and gives `logits` (B, S, at least
             n_tokens)
    config   MaskedConfig

    Texts of unequal length take a call each, as some networks read padding. A step is a call on
    whole rows: there is no cache and no lossless unmasking. Commands ask for forward, predict,
    answer, trunk, lm_head, n_parameters, device, config, slots_class, training and parameters,
    whether it has a dtype, graphs and a workspace, and for nothing else."""

    def __init__(self, network, config):
        super().__init__(config)
        self.network = network
        # the network stays where it is
        device = next((p.device for p in self.parameters()), 'cpu')
        self.lm_head = Allowed(config).to(device)
        for name in ('prefix', 'suffix'):  # on the device, so that no step copies them
            tokens = torch.tensor(getattr(config, name), dtype=torch.long, device=device)
            self.register_buffer(name, tokens, persistent=False)
        self.train(getattr(network, 'training', False))

    @property
    def device(self):
        return self.lm_head.banned.device

    def trunk(self, idx, order, slots, cache=None):
        """Return logits (B, n, at least n_tokens) for the slots that answer."""
        c = self.config
        token = idx.gather(1, slots.target).masked_fill(slots.reads < 0, c.mask_id)  # (B, S)
        text = torch.full_like(idx, -1).scatter(1, slots.target, token)  # (B, N); -1 is padding
        place = len(c.prefix) - c.shift + take(slots.target, slots.answering)  # (B, n)
        # Of whole rows nothing waits for the device
        if slots.sees is None and slots.target.size(1) == idx.size(1):
            return self.logits(text, place)
        lengths = (text >= 0).sum(1)
        if not torch.equal(lengths, slots.target.amax(1) + 1):
            raise ValueError(
                'the visits of a row must be the positions from 0 on, and padding the positions '
                'behind'
            )

        # A call for the rows of each length
        rows = []
        found = []
        for length in lengths.unique().tolist():
            here = (lengths == length).nonzero()[:, 0]
            rows.append(here)
            found.append(self.logits(text[here, :length], place[here]))
        return torch.cat(found)[torch.cat(rows).argsort()]

    def logits(self, text, place):
        """Return logits (B, n, at least n_tokens) at `place` (B, n) of `text` (B, S).

        A place counts what stands before the text."""
        B = len(text)
        text = torch.cat([self.prefix.expand(B, -1), text, self.suffix.expand(B, -1)], 1)
        logits = self.network(text).logits
        if logits.shape[:2] != text.shape or logits.size(2) < self.config.n_tokens:
            raise ValueError(
                f'the network must give logits {(*text.shape, self.config.n_tokens)} of tokens '
                f'{tuple(text.shape)}, got {tuple(logits.shape)}'
            )
        return take(logits, place)


class Allowed(nn.Module):
    """The logits of the vocabulary without its padding; -inf for tokens that are never written."""

    def __init__(self, config):
        super().__init__()
        tokens = torch.tensor([*config.banned, config.mask_id])
        banned = torch.isin(torch.arange(config.n_tokens), tokens)
        self.register_buffer('banned', banned, persistent=False)

    def forward(self, x):
        return x[..., : len(self.banned)].masked_fill(self.banned, -torch.inf)

    def nll(self, x, tokens):
        """Return what Head.nll does, some rows at a time.

        A large vocabulary is not twice in float32."""
        parts = zip(*split_rows(x.size(-1), x, tokens))
        return torch.cat([Head.nll(self, *part) for part in parts])
