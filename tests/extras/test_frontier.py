"""What fewer passes cost: a row of the frontier against eval_ppl.py and the judge."""

import json
import math

import pytest
import torch
from conftest import make_model

from anyorder import Writer
from anyorder.checkpoint import model_from_checkpoint, save_checkpoint
from anyorder.likelihood.judge import generative_perplexity, text_metrics

SIZES = {'block_size': 8, 'vocab_size': 320, 'n_tokens': 257, 'n_layer': 1}
HOW = ('--dtype=float32', '--device=cpu', '--n_blocks=6', '--n_samples=3', '--batch_size=2')


def save(path, order='random', **network):
    words = path.parent / 'words.txt'
    words.write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    run = {'order': order, 'dataset': str(words)}
    save_checkpoint(path, make_model(**SIZES | network).float(), tokenizer='bytes', config=run)
    return str(path)


@pytest.fixture
def rows(script, tmp_path):
    """rows(*options) runs the command and returns the rows of its file."""
    ckpt = save(tmp_path / 'ckpt.pt')

    def run(*options):
        script(
            'anyorder.extras.speed', 'frontier', f'--ckpt={ckpt}', *HOW, *options, '--out=f.json'
        )
        return json.loads((tmp_path / 'f.json').read_text())['results']

    return run


WAYS = '--ways=random,lossless,lossless:1,margin,margin/4,margin:.1,dilated:4,binomial'


def test_every_way_has_a_row_for_each_number_of_steps_that_it_takes(rows):
    found = rows(WAYS, '--n_steps=0,2')
    by_steps = ('random', 'margin', 'margin/4', 'binomial')
    expected = []
    for way in WAYS.removeprefix('--ways=').split(','):
        expected += [(way, 8), (way, 2)] if way in by_steps else [(way, None)]
    assert [(row['way'], row['n_steps']) for row in found] == expected
    passes = {(row['way'], row['n_steps']): row['passes'] for row in found}
    assert passes['random', 8] == passes['lossless:1', None] == passes['margin', 8] == 8
    assert passes['random', 2] == passes['margin/4', 2] == 2
    assert 'judge' not in found[0]
    assert all(row['seconds'] > 0 for row in found)

    # drafts change no text and no law
    nats = {(row['way'], row['n_steps']): row['nats'] for row in found}
    assert nats['lossless', None] == nats['lossless:1', None] == nats['random', 8]


def test_eval_ppl_finds_the_same_nats(rows, script, tmp_path):
    found = {(row['way'], row['n_steps']): row for row in rows('--n_steps=0,2')}
    how = ('--orders=random,margin', '--n_steps=0,2', '--weights=raw', *HOW[:3])
    script('eval_ppl.py', f'--ckpt={tmp_path}/ckpt.pt', *how, '--out=ppl.json')
    of_text = json.loads((tmp_path / 'ppl.json').read_text())['results']
    same = {
        'any order x 1': ('own', 8),
        'any order in 2 x 1': ('own', 2),
        'margin': ('margin', 8),
        'margin in 2': ('margin', 2),
    }
    assert same.keys() <= {row['estimate'] for row in of_text}
    for row in of_text:
        if row['estimate'] in same:
            there = found[same[row['estimate']]]
            assert math.isclose(row['nats_per_token'], there['nats'], rel_tol=1e-6)
            assert math.isclose(row['stderr'], there['nats_error'], rel_tol=1e-4)


def test_a_judge_reads_the_samples(rows, tmp_path):
    ckpt = str(tmp_path / 'ckpt.pt')
    (row,) = rows(f'--judge={ckpt}', '--ways=own', '--n_steps=2', '--seed=5')
    blanks = torch.full((3, 8), -1).numpy()
    written = Writer(ckpt).infill(blanks, n_steps=2, seed=5, batch_size=2).tolist()
    counted = [[True] * 8] * 3
    verdict = generative_perplexity(model_from_checkpoint(ckpt, 'raw'), written, counted)
    assert row['judge'] == pytest.approx(verdict['perplexity'])
    assert row['entropy'] == pytest.approx(text_metrics(written, counted)['entropy'])


@pytest.mark.parametrize(
    'args, said',
    [
        (['--ckpt=none.pt'], 'no checkpoint file none.pt'),
        (['--ways=lossless:0'], 'window'),
        (['--ways=margin+0.5'], 'noise'),
        (['--ways=best'], 'best'),
        (['--n_steps=4,x'], "got '4,x'"),
        (['--n_blocks=-1'], 'n_blocks must be at least 0'),
        (['--dataset=none.txt'], 'none.txt'),
        (['--out=ckpt.pt'], 'would overwrite a file of this run'),
        (['--ckpt=encoder.pt', '--ways=lossless'], 'wants a decoder'),
        (['--judge=r2l.pt'], 'a judge reads left to right'),
        (['--judge=none.pt'], 'none.pt'),
    ],
)
def test_wrong_input_is_one_line_before_the_work(script, tmp_path, args, said):
    save(tmp_path / 'ckpt.pt')
    save(tmp_path / 'r2l.pt', order='r2l')
    save(tmp_path / 'encoder.pt', attention='bidirectional')
    finished = script('anyorder.extras.speed', 'frontier', '--ckpt=ckpt.pt', *args, code=1)
    assert said in finished.stderr
    assert finished.stderr.count('\n') == 1
    assert not finished.stdout
