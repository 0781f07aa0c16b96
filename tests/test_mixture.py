"""Several sets in one batch: whose a row is, what a run learns, keeps and says, wrong input."""

import os

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from oracle import chi2_of, limit
from toy_runs import assert_same_runs, log, resume, run

from anyorder.checkpoint import Checkpoint, load_checkpoint
from anyorder.datasets import name_of_run, names_of_run
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.likelihood.nll import blank_nll
from anyorder.tokens import prepared
from anyorder.tokens.blocks import random_blocks
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.mixture import Mixture, kind_of_all, n_read, shares_of, weights_in
from anyorder.tokens.sets import PADDING, Split
from anyorder.training.data import Part, read_as_one, set_shares
from anyorder.training.update import draw_batch
from configurator import Config

N = 9
SHARES = np.array([0.5, 0.3, 0.2])
OPTIONS = Config(batch_size=30, block_size=N, order='random', l2r_ratio=0.3)


def stream(first, n=40, marked=()):
    """A Split of n tokens from `first` on; those at the places `marked` are given."""
    tokens = np.arange(first, first + n, dtype='<u2')
    tokens[list(marked)] |= 1 << 15
    return Split(tokens, bool(marked))


def rows(first):
    return Split(np.arange(first, first + 4 * N, dtype='<u2').reshape(4, N))


def documents(first, *lengths):
    """Documents of these lengths, whose first token is given."""
    tokens = np.arange(first, first + sum(lengths), dtype='<u2')
    ends = np.cumsum(lengths)
    tokens[ends - lengths] |= 1 << 15
    return Split(tokens, True, np.array(lengths))


FORMS = {
    'streams': [stream(0), stream(100), stream(200)],
    'streams of which one is given in part': [stream(0), stream(100, marked=[5]), stream(200)],
    'rows': [rows(0), rows(100), rows(200)],
    'documents': [documents(0, 2, 6), documents(100, 3, 50, 9), documents(200, 5)],
}


def drawn(mixture, n):
    """Draw n rows; return their (tokens, given), and of which part each is."""
    torch.manual_seed(0)
    blocks = random_blocks(mixture, n, N)
    tokens, given = mixture.unpack(blocks)
    return tokens, given, tokens[:, 0] // 100


# whose a row is


@pytest.mark.parametrize('name', FORMS)
def test_rows_are_blocks_of_their_parts(name):
    mixture = Mixture(FORMS[name], SHARES, N)
    tokens, given, owner = drawn(mixture, 60)
    for k, part in enumerate(mixture.parts):
        alone = random_blocks(part, 300, N)
        own_tokens, own_given = part.unpack(alone)
        wanted = {(*row, *mask) for row, mask in zip(own_tokens.tolist(), own_given.tolist())}
        width = own_tokens.size(1)
        mine = owner == k
        found = zip(tokens[mine, :width].tolist(), given[mine, :width].tolist())
        assert mine.any()
        assert {(*row, *mask) for row, mask in found} <= wanted
        assert (tokens[mine, width:] == PADDING).all()


@pytest.mark.parametrize('name', FORMS)
def test_parts_have_their_shares_of_the_tokens(name):
    """Rows by chi-square; the tokens of documents, whose rows are unlike, by their mean."""
    mixture = Mixture(FORMS[name], SHARES, N)
    tokens, _, owner = drawn(mixture, 20_000)
    of_row = [n_read(part, N)[1] for part in mixture.parts]
    counts = np.bincount(owner, minlength=3)
    assert chi2_of(counts, shares_of(SHARES / of_row)) < limit(2)
    n = (tokens != PADDING).sum(1)
    for k, share in enumerate(SHARES):
        assert float(n[owner == k].sum() / n.sum()) == pytest.approx(share, abs=0.02)


def test_without_weights_sets_are_read_as_if_they_were_one():
    """Every document is as likely."""
    parts = [Part(str(k), None, split, None) for k, split in enumerate(FORMS['documents'])]
    set_shares(parts, dict.fromkeys('012'), N)
    mixture = read_as_one(parts, N)
    _, _, owner = drawn(mixture, 20_000)
    assert chi2_of(np.bincount(owner), np.array([2, 3, 1]) / 6) < limit(2)


def test_one_set_is_read_as_it_was():
    split = FORMS['streams'][0]
    assert read_as_one([Part('a', None, split, None)], N) is split


def test_a_large_vocabulary_has_room_for_the_mark():
    """40,000 is an id of the first set, and the mark and an id of the second."""
    large = Split(np.full(N, 40_000, '<u2'))
    small = Split(np.full(N, 1 << 15 | 7, '<u2'), True)
    tokens, given, _ = drawn(Mixture([large, small], SHARES[:1].repeat(2), N), 50)
    assert (tokens[given] == 7).all()
    assert (tokens[~given] == 40_000).all()
    assert given.any()
    assert not given.all()


@pytest.mark.parametrize('name', FORMS)
def test_the_gradient_is_the_sum_of_those_of_the_parts(name):
    """Each weighed by its share of what is learned."""
    model = make_model(vocab_size=320, n_tokens=300).requires_grad_()
    torch.manual_seed(1)
    batch = draw_batch(Mixture(FORMS[name], SHARES, N), OPTIONS, model)
    n = batch.n_blanks.sum()

    def gradient(batch):
        loss = blank_nll(model, batch).sum() / batch.n_blanks.sum()
        return torch.autograd.grad(loss, [*model.parameters()])

    whole = gradient(batch)
    parts = [torch.zeros_like(p) for p in whole]
    owner = batch.idx[:, 0] // 100
    for k in owner.unique():
        alone = batch.rows(owner == k)
        share = float(alone.n_blanks.sum()) / float(n)
        parts = [part + share * p for part, p in zip(parts, gradient(alone))]
    assert len(owner.unique()) == 3
    for part, p in zip(parts, whole):
        assert torch.allclose(part, p, atol=1e-12)


def test_counts_are_by_the_shares():
    parts = [Split(np.array([0] * 90 + [1] * 10, '<u2')), Split(np.array([2] * 99 + [3], '<u2'))]
    counts = Mixture(parts, np.array([0.9, 0.1]), N).counts(5)
    assert counts.tolist() == [162, 18, 20, 1, 0]


# a run


def prepare_text(name, text, tokenizer='bytes', n=20, **options):
    prepared.DATA_SETS['text'] = prepared.DataSet(lambda: [text * 30] * n, tokenizer, 0.1, '')
    prepared.prepare('text', 'data', name=name, **options)


@pytest.fixture
def two(data):
    """The working folder of `data`, which has a set `digits`, too."""
    prepare_text('digits', '3.1415926535 8979323846 ')
    return data


BOTH = '--dataset=pydocs:0.7,digits:0.3'


def test_each_set_is_validated_as_if_it_were_alone(two):
    run(BOTH, '--max_iters=4')
    last = log()[-1]
    for name, other in (('pydocs', 'digits'), ('digits', 'pydocs')):
        run('--init_from=out/ckpt.pt', f'--dataset={name}', '--max_iters=0', f'--out_dir={name}')
        assert f'val_{other}_any' in last
    for kind in ('any', 'l2r'):
        mean = 0.7 * last[f'val_pydocs_{kind}'] + 0.3 * last[f'val_digits_{kind}']
        assert last[f'val_{kind}'] == pytest.approx(mean, rel=1e-12)
    assert last['val_pydocs_any'] != last['val_digits_any']


def test_a_run_of_several_sets_is_resumed(two):
    options = [BOTH, '--max_iters=6', '--dropout=0.1', '--gradient_accumulation_steps=2']
    run(*options, '--out_dir=whole')
    run(*options, '--max_iters=4', '--lr_decay_iters=6')
    resume('--max_iters=6')
    assert_same_runs('whole', 'out')


def test_a_checkpoint_keeps_what_each_set_is(two):
    run(BOTH, '--max_iters=1')
    checkpoint = load_checkpoint('out/ckpt.pt')
    assert [*checkpoint['sets']] == ['pydocs', 'digits']
    for name, share in (('pydocs', 0.7), ('digits', 0.3)):
        meta = read_meta(f'data/{name}')
        of_set = checkpoint['sets'][name]
        assert of_set['share'] == pytest.approx(share)
        assert of_set['set'] == kind_of(meta)
        assert of_set['data'] == meta.splits['train'].sha256
        assert of_set['val_data'] == meta.splits['val'].sha256
    assert checkpoint['set']['tokenizer'] == 'bytes'
    counts = Checkpoint('out/ckpt.pt').counts
    digits = sum(counts[ord(digit)] for digit in '0123456789')
    assert float(digits / counts.sum()) == pytest.approx(0.3 * 21 / 24, abs=0.01)


def test_a_resume_says_which_set_is_another(two, capsys):
    run(BOTH, '--max_iters=1')
    prepare_text('digits', '2.7182818284 ', force=True)
    capsys.readouterr()
    run('--init_from=resume', '--dataset=pydocs:0.5,digits:0.5', '--max_iters=2')
    said = capsys.readouterr().out
    weights = 'dataset pydocs:0.7,digits:0.3 -> pydocs:0.5,digits:0.5'
    assert weights in said
    assert ', train and val of digits\n' in said


def test_the_first_order_of_names_is_no_other_data(two, capsys):
    run(BOTH, '--max_iters=1')
    capsys.readouterr()
    run('--init_from=resume', '--dataset=digits:0.3,pydocs:0.7', '--max_iters=1')
    assert 'train and val' not in capsys.readouterr().out


def test_eval_ppl_measures_every_set(two, script):
    run(BOTH, '--max_iters=1')
    run('--dataset=pydocs', '--max_iters=1', '--out_dir=one')
    said = script('eval_ppl.py', '--n_blocks=2').stdout
    assert said.index('pydocs (val)') < said.index('digits (val)')
    assert 'digits (val)' not in script('eval_ppl.py', '--n_blocks=2', '--ckpt=one/ckpt.pt').stdout


def test_eval_ppl_says_that_a_set_was_prepared_anew(two, script):
    run(BOTH, '--max_iters=1')
    prepare_text('digits', '2.7182818284 ', force=True)
    said = script('eval_ppl.py', '--n_blocks=2').stdout
    assert 'train and val of digits;' in said
    assert 'of pydocs;' not in said


@pytest.mark.slow
def test_puzzles_are_mixed_and_each_is_solved(data, script, capsys):
    for name, seed in (('easy', 1), ('hard', 2)):
        prepare_puzzles(
            'sudoku4', 'data', name, n_rows={'train': 60, 'val': 20, 'test': 5}, seed=seed
        )
    run('--dataset=easy:1,hard:3', '--max_iters=2', '--l2r_ratio=0')
    said = capsys.readouterr().out
    for name in ('easy', 'hard'):
        command = f'-m anyorder.extras.puzzles solve --dataset={name} --ckpt=out/ckpt.pt'
        assert command in said
    words = ['anyorder.extras.puzzles', 'solve', '--ckpt=out/ckpt.pt', '--orders=random']
    assert 'hard (test)' in script('-m', *words, '--dataset=hard').stdout
    assert 'trained on easy and hard' in script('-m', *words, code=1).stderr


def test_a_mixture_of_one_is_this_set(data):
    run('--dataset=pydocs', '--max_iters=4', '--out_dir=whole')
    run('--dataset=pydocs:3', '--max_iters=4')
    assert_same_runs('whole', 'out')


# wrong input


@pytest.mark.parametrize(
    'text, said',
    [
        ('a:0.7,b', 'gives b no weight'),
        ('a,b:0.7', 'gives a no weight'),
        ('a:0,b:1', 'weight of a .* above 0'),
        ('a:-1,b:2', 'weight of a .* above 0'),
        ('a:nan,b:1', 'weight of a .* above 0'),
        ('a:1,b:inf', 'weight of b .* above 0'),
        ('a:1,b:x', 'weight of b .* above 0'),
        ('a:1_0,b:1', 'weight of a .* above 0'),
        ('a:1,b:', 'weight of b .* above 0'),
        ('a:1:2,b:1', 'weight of a .* above 0'),
        ('a:1,b:1,a:2', 'a twice'),
        ('a,a', 'a twice'),
        (',', 'plain name'),
        ('', 'plain name'),
        (':1', 'plain name'),
        ('a:1,../b:1', 'plain name'),
    ],
)
def test_weights_that_are_none_are_one_line(text, said):
    with one_line(said):
        weights_in(text)


def test_weights_are_shares():
    assert weights_in('a:2, b :6') == {'a': 2, 'b': 6}
    assert shares_of([2, 6]).tolist() == [0.25, 0.75]
    assert shares_of([1e308, 1e308]).tolist() == [0.5, 0.5]
    assert names_of_run({'dataset': 'a:2, b:6'}) == ['a', 'b']
    assert names_of_run({'dataset': 'a:of old,,../b'}) == ['a', '../b']
    assert name_of_run({'dataset': 'a'}) == 'a'
    assert name_of_run({}) == ''
    with one_line('trained on a and b'):
        name_of_run({'dataset': 'a,b'})


def test_sets_of_other_tokenizers_are_one_line(two):
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 60, 'val': 20, 'test': 5})
    with one_line('pydocs and sudoku4 cannot be mixed: their tokenizers differ, bytes and sudoku4'):
        run('--dataset=pydocs,sudoku4')
    assert not os.path.exists('out')


OWN = {'tokenizer': 'own', 'n_tokens': 3, 'eos': None, 'given': False}
OWN |= {'row_length': None, 'shape': None, 'vocabulary': None}
TEXT = {'tokenizer': 'bytes', 'n_tokens': 257, 'eos': 256, 'given': False}


@pytest.mark.parametrize(
    'one, other, said',
    [
        (OWN, {'vocabulary': ['a', 'b', 'c']}, 'tokenizers differ'),
        (OWN, {'n_tokens': 4}, 'tokenizers differ'),
        (OWN, {'row_length': 6}, 'a is a stream of tokens, b is rows of 6 tokens'),
        (OWN | {'row_length': 4}, {'row_length': 6}, 'a is rows of 4 tokens'),
        (TEXT, {'given': True, 'prompts': True}, 'b is documents'),
        (OWN, {'eos': 1}, 'meta.json differ in eos'),
        (OWN | {'row_length': 4}, {'shape': [2, 2]}, 'meta.json differ in shape'),
    ],
)
def test_sets_that_do_not_fit_are_one_line(one, other, said):
    with one_line(said):
        kind_of_all({'a': one, 'b': one | other})


def test_given_tokens_may_be_in_one_of_the_sets():
    kinds = {'a': OWN, 'b': OWN | {'given': True}}
    assert kind_of_all(kinds) == OWN | {'given': True}


def test_a_set_that_is_missing_is_one_line(data):
    with one_line('no data/digits/train.bin; make it with'):
        run(BOTH)
