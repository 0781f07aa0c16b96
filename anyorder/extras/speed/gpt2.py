"""GPT-2 as nanoGPT trains it, to stand beside an update of ours: no biases, and the head is the
embedding. nanoGPT's own MFU counts the half of the attention, too, that causality leaves out."""

import torch
import torch.nn.functional as F
from torch import nn

from anyorder.machine.devices import autocast
from anyorder.training.update import make_optimizers, send
from configurator import Config
from model import AOGPTConfig, Block, Network, Parts, Slots, make_norm


class GPT2(Network):
    def __init__(self, sizes):
        config = AOGPTConfig(**sizes, bias=False, target_position='input', gpt2_blocks=True)
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = make_norm(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        """Return the mean nats of targets (B, N) given idx (B, N)."""
        order = torch.arange(idx.size(1), device=idx.device).expand(idx.shape)
        slots = Slots(order, order[:, -1:], Parts.of(order, None, None))
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x, None, slots, None, None, None)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt2_step(model, run_model, run):
    """Return a function that makes an update of a GPT2 by the optimizers of train.py, whose groups
    are nanoGPT's. `run_model` is the model, or the model compiled."""
    optimizers = make_optimizers(model, Config(run, learning_rate=6e-4, weight_decay=0.1))

    def step():
        tokens = torch.randint(run.n_tokens, (2, run.batch_size, run.block_size))
        idx, targets = send(tokens, model.device)
        with autocast(model.device, run.dtype):
            loss = run_model(idx, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.grad_clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step
