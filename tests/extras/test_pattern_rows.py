"""Rows of eval_ppl.py --pattern: held-out text is measured by the law given that it matches."""

import json
import math

import pytest
import torch
from conftest import make_model, one_line

import eval_ppl
from anyorder import Writer
from anyorder.checkpoint import save_checkpoint
from configurator import configure

pytest.importorskip('outlines_core')

TEXTS = ['In 1901 the', 'In 1977 the', 'In 2024 the']
PATTERN = r'In (19|20)[0-9]{2} t.*'


def measured(folder, orders, texts=TEXTS, **options):
    """The rows of some orders of the texts, by order."""
    (folder / 'texts.txt').write_text(''.join(texts))
    named = {
        'ckpt': str(folder / 'ckpt.pt'),
        'datasets': str(folder / 'texts.txt'),
        'out': str(folder / 'rows.json'),
        'orders': orders,
        'device': 'cpu',
        'weights': 'raw',
    }
    words = [f'--{name}={value}' for name, value in (named | options).items()]
    eval_ppl.main(configure(vars(eval_ppl), words))
    (folder / 'rows.json.blocks.jsonl').unlink(missing_ok=True)
    return json.loads((folder / 'rows.json').read_text())['results']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('rows')
    model = make_model(block_size=len(TEXTS[0]), vocab_size=320, n_tokens=257).float()
    save_checkpoint(path / 'ckpt.pt', model, tokenizer='bytes', counts=torch.arange(257))
    return path


def test_rows_are_what_the_writer_says_of_each_text(folder):
    """In a block of all blanks ties, as of tokens that a pattern leaves alone, go left to right."""
    rows = measured(folder, 'l2r,margin/11', n_steps='0,4', pattern=PATTERN)
    writer = Writer(folder / 'ckpt.pt', device='cpu')
    n = len(TEXTS[0])
    for row, (order, n_steps) in zip(
        rows, [('l2r', n), ('l2r', 4), ('margin/11', n), ('margin/11', 4)]
    ):
        prompts = [f'[[={text}]]' for text in TEXTS]
        how = {'order': order, 'n_steps': n_steps, 'length': n, 'pattern': PATTERN}
        logp = writer.logprob(prompts, **how)
        assert row['nats_per_token'] == pytest.approx(-sum(logp) / len(TEXTS) / n, rel=1e-5)
        free = writer.logprob(prompts, **how | {'pattern': ''})
        assert sum(logp) > sum(free) + 1


def test_a_pattern_that_leaves_one_text_costs_nothing(folder):
    rows = measured(folder, 'random', [TEXTS[0]], pattern='In 1901 the')
    assert rows[0]['nats_per_token'] == pytest.approx(0, abs=1e-6)
    assert math.isclose(rows[0]['perplexity'], 1, rel_tol=1e-6)


@pytest.mark.parametrize(
    'orders, pattern, said',
    [
        ('', PATTERN, 'pattern say how the rows of orders are written'),
        ('l2r', 'In 19.*', 'row 2 contradicts'),
        ('l2r', 'abc', 'nearest that can match: 3'),
        ('l2r', '(?=a)', 'look-around'),
    ],
)
def test_what_does_not_match_is_one_line(folder, orders, pattern, said):
    with one_line(said):
        measured(folder, orders, pattern=pattern)
