"""Train a left-to-right model to fill in a middle (Bavarian et al. 2022, arXiv 2207.14255).

    python results/infilling/fim.py config/quickstart.py --order=l2r --l2r_ratio=0 \\
        --fim_ratio=0.5 --out_dir=out/fim

is train.py with its options, for a set that is a stream of text. In a share `fim_ratio` of the
blocks the middle is moved to the end: mark, prefix, mark, suffix, mark, middle. Marks are read and
never predicted. A middle ends with its block: the place of its mark tells how long it is."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import torch

import train
from anyorder.likelihood.nll import blank_nll
from anyorder.machine.devices import widest
from anyorder.machine.terminal import one_line_errors
from anyorder.training.update import draw_batch, update
from configurator import configure

N_MARKS = 3


def update_with_middles(state, split, lr, config):
    """Make an update, see `update`, on blocks of which a share has the middle last."""
    first = state.model.config.n_real  # the first mark
    check(state.model, split, config)

    def draw(split, config, model):
        batch = draw_batch(split, config, model)
        idx = middle_last(batch.idx, config.fim_ratio, first)
        n_marks = (idx >= first).sum(1)
        return batch._replace(idx=idx, n_blanks=batch.n_blanks - n_marks)

    def loss(model, batch):
        is_mark = batch.idx >= first  # by visit too, which is from left to right
        return blank_nll(model, batch).masked_fill(is_mark, 0)

    update(state, split, lr, config, draw, loss)


def check(model, split, config):
    """Raise ValueError unless this model can learn middles of these blocks."""
    n_rows = model.config.vocab_size - model.config.n_real
    is_text = not split.marked and split.packed.ndim == 1 and config.get('documents') != 'apart'
    is_left_to_right = config.order == 'l2r' and model.config.attention == 'causal'
    has_room = config.block_size > N_MARKS and n_rows >= N_MARKS
    if not (0 <= config.fim_ratio <= 1 and is_text and is_left_to_right and has_room):
        raise ValueError(
            'fim_ratio, from 0 to 1, wants a text whose documents see each other, order l2r, a '
            f'causal network, blocks of more than {N_MARKS} tokens and {N_MARKS} rows beside the '
            'tokens of the vocabulary, got '
            f'{config.fim_ratio}, {config.order}, {config.block_size} tokens and {n_rows} rows: '
            'take train.py'
        )


def middle_last(blocks, fim_ratio, first):
    """Return blocks (B, N), a share of them as marked_middle of their first N - 3 tokens.

    They are cut at two uniform places."""
    B, N = blocks.shape
    device = blocks.device
    u = torch.rand(B, 3, device=device, dtype=widest(device))
    cut = (u[:, :2] * (N - N_MARKS + 1)).long().sort(-1).values  # 0 to N - 3
    marked = marked_middle(blocks[:, :-N_MARKS], cut, first)
    return torch.where(u[:, 2:] < fim_ratio, marked, blocks)


def marked_middle(texts, cut, first):
    """Return (B, T + 3): texts (B, T) with the positions from cut[:, 0] to before cut[:, 1] last.

    The marks, the ids from `first` on, stand before prefix, suffix and middle. `first` is the
    n_real of the model."""
    B, T = texts.shape
    start, end = cut.unsqueeze(-1).unbind(1)  # (B, 1) each
    position = torch.arange(T, device=texts.device)
    is_middle = (position >= start) & (position < end)
    part = (position >= end).long().masked_fill(is_middle, 2)  # 0 prefix, 1 suffix, 2 middle
    marks = torch.arange(N_MARKS, device=texts.device).expand(B, -1)
    place = torch.cat([marks, part], 1).argsort(stable=True)  # (B, T + 3)
    return torch.cat([first + marks, texts], 1).gather(1, place)


def main(config):
    train.train(config, update_with_middles)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(vars(train) | {'__doc__': __doc__, 'fim_ratio': 0.5}))
