"""A hidden Markov chain over tokens, whose conditionals are exact, as a network that makes no
mistake.

    python results/rules/chain.py

writes chain.npz, 40,000 texts of 64 tokens to train on and 1,024 for validation, and chain256.npy,
64 texts of 256 tokens. 64 hidden states follow each other and write one of 24 tokens each. From a
state few states follow, and it writes few tokens, as rows of a Dirichlet law have them; with 1 %
all of them are as likely."""

import sys
from types import SimpleNamespace

sys.path.append('.')  # the project's folder, from which it is run

import numpy as np
import torch

from anyorder.extras.masked.masked import MaskedConfig, MaskedModel
from anyorder.orders import Order
from anyorder.tokens.tokenizers import OWN, Symbols

N_STATES = 64
N_TOKENS = 24
LENGTH = 64  # tokens of a text
SEED = 1337


class Chain:
    """p(x) = sum_z start(z_1) prod_t step(z_t, z_t+1) prod_t emit(z_t, x_t)

    start  (S,) float64, the law of the first state
    step   (S, S) of the next state
    emit   (S, V) of the token
    A module of others for MaskedModel: texts in, `logits` out."""

    def __init__(self, start, step, emit):
        self.start = start
        self.step = step
        self.emit = emit

    @classmethod
    def drawn(cls, n_states=N_STATES, n_tokens=N_TOKENS, seed=SEED):
        """Return a chain of random rows, which begins in its stationary law."""
        rng = np.random.default_rng(seed)
        step = smooth(rng.dirichlet(np.full(n_states, 0.02), n_states))
        emit = smooth(rng.dirichlet(np.full(n_tokens, 0.01), n_states))
        start = np.linalg.matrix_power(step, 10_000)[0]
        return cls(*[torch.from_numpy(table) for table in (start, step, emit)])

    def __call__(self, text):
        """Return log p(x_t | the known ones among the others) of texts (B, N), `logits` (B, N, V).

        A token V is a blank, over which p is summed. Forward and backward over the states."""
        said = torch.cat([self.emit.T, torch.ones(1, len(self.start))])  # (V + 1, S)
        seen = said[text].unbind(1)  # N times (B, S)
        before = [self.start.expand_as(seen[0])]  # p(z_t | the known ones before t)
        for likelihood in seen[:-1]:
            before.append(normal(before[-1] * likelihood) @ self.step)
        after = [torch.ones_like(seen[0])]  # p(the known ones behind t | z_t), up to a factor
        for likelihood in reversed(seen[1:]):
            after.append(normal((after[-1] * likelihood) @ self.step.T))
        state = torch.stack(before, 1) * torch.stack(after[::-1], 1)
        return SimpleNamespace(logits=normal(state @ self.emit).log())

    def network(self, length=LENGTH):
        """Return the chain as a network of ours, for texts of so many tokens."""
        n_tokens = self.emit.size(1)
        return MaskedModel(self, MaskedConfig(length, n_tokens, mask_id=n_tokens))

    def nats(self, text):
        """Return -log p (B,) of whole texts (B, N)."""
        law = self.start
        nats = 0
        for token in text.T:
            joint = law * self.emit.T[token]  # (B, S)
            nats = nats - joint.sum(-1).log()
            law = normal(joint) @ self.step
        return nats

    def draw(self, n_texts, length, seed):
        """Return texts (n_texts, length)."""
        generator = torch.Generator().manual_seed(seed)
        state = self.start.multinomial(n_texts, True, generator=generator)
        tokens = []
        for _ in range(length):
            tokens.append(self.emit[state].multinomial(1, generator=generator)[:, 0])
            state = self.step[state].multinomial(1, generator=generator)[:, 0]
        return torch.stack(tokens, 1)


class Law:
    """A chain as an opened checkpoint, with the names of a Checkpoint that are asked for."""

    run = {}
    order = Order()
    weights = 'raw'

    def __init__(self, chain=None, length=LENGTH):
        chain = chain or Chain.drawn()
        self.network = chain.network(length)
        self.config = self.network.config
        share = chain.start @ chain.emit  # of each token
        self.counts = (1e9 * share).long()
        self.network.counts = self.counts  # where a rule looks for them
        names = [str(token) for token in range(self.config.n_tokens)]
        self.tokenizer = Symbols(OWN, names, ' ')

    def model(self, weights='raw', device='cpu'):
        return self.network


def smooth(rows):
    """Return rows of probabilities that are 0 nowhere."""
    return 0.99 * rows + 0.01 / rows.shape[1]


def normal(masses):
    return masses / masses.sum(-1, keepdim=True)


def main():
    chain = Chain.drawn()
    texts = chain.draw(41_024, LENGTH, SEED).numpy().astype(np.uint16)
    np.savez_compressed('chain.npz', train=texts[1024:], val=texts[:1024])
    np.save('chain256.npy', chain.draw(64, 256, SEED).numpy().astype(np.uint16))


if __name__ == '__main__':
    main()
