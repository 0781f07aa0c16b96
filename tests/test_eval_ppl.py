"""Likelihood: totals, errors and ensembles against slow versions, and a table that does not depend on the batch."""
import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model

from data.hub import GPT2
from data.prepare import prepare
from eval_ppl import block_nll, context_logprobs, draw_orders, ensemble_nll, generative_perplexity, summarize, text_metrics
from model import sample_order, save_checkpoint


def test_one_context_is_the_plain_nll(batch):
    model, (idx, order) = make_model(), batch
    nll = model(idx, order)
    for i in range(9):
        logprobs = context_logprobs(model, idx, order, i, 1)
        torch.testing.assert_close(ensemble_nll(logprobs), nll[:, i], rtol=0, atol=1e-10)


def test_contexts_are_shuffles_of_the_prefix(batch):
    model, (idx, order), i = make_model(), batch, 3
    logprobs = context_logprobs(model, idx, order, i, 200, torch.Generator().manual_seed(0))
    for r in range(5):
        possible = []
        for prefix in itertools.permutations(order[r, :i].tolist()):
            o = torch.tensor([[*prefix, int(order[r, i])]])
            possible.append(-model(idx[r:r + 1], o)[0, i])
        torch.testing.assert_close(logprobs[r, 0], possible[0], rtol=0, atol=1e-10)
        distance = (logprobs[r, :, None] - torch.stack(possible)).abs()
        assert distance.min(1).values.max() < 1e-10 and len(distance.argmin(1).unique()) == 6
    with pytest.raises(ValueError, match='visit i'):
        context_logprobs(model, idx, order, 9, 2)


def test_ensemble_averages_probabilities():
    logprobs = -1000 * torch.rand(4, 8, dtype=torch.float64)     # exp of most of them is 0
    for row, nll in zip(logprobs, ensemble_nll(logprobs)):
        top = float(row.max())
        assert math.isclose(nll, -top - math.log(sum(math.exp(x - top) for x in row.tolist()) / 8))
    p = torch.tensor([[0.2, 0.4]]).log()
    torch.testing.assert_close(ensemble_nll(p), -torch.tensor([0.3]).log())
    assert (ensemble_nll(logprobs) <= -logprobs.mean(-1)).all()      # Jensen


def test_totals_do_not_depend_on_the_batch(batch):
    model, (idx, order) = make_model(), batch
    expected = model(idx, order).sum(1)
    for batch_size in (1, 2, 5, 9):
        torch.testing.assert_close(block_nll(model, idx, order, batch_size), expected, rtol=0, atol=1e-10)


def test_orders_of_an_estimate():
    assert torch.equal(draw_orders(3, 5, 'l2r', 4)[0], torch.arange(5).expand(3, 5)) and len(draw_orders(3, 5, 'l2r', 4)) == 1
    a, b = draw_orders(3, 50, 'any', 2, seed=1)
    assert not torch.equal(a, b) and torch.equal(a, draw_orders(3, 50, 'any', 1, seed=1)[0])
    for wrong in (dict(kind='r2l'), dict(kind='any', n_orders=0)):
        with pytest.raises(ValueError):
            draw_orders(3, 5, **wrong)


def test_summary_by_hand():
    row = summarize('x', torch.tensor([2.0, 4.0], dtype=torch.float64), torch.zeros(2, 4), 6)
    assert row['nats_per_token'] == 6 / 8 and row['tokens'] == 8 and row['blocks'] == 2
    assert math.isclose(row['stderr'], math.sqrt(2) / math.sqrt(2) / 4)          # std of (2, 4) is sqrt 2
    assert math.isclose(row['bits_per_byte'], 6 / 6 / math.log(2)) and math.isclose(row['perplexity'], math.exp(0.75))
    assert summarize('x', torch.tensor([2.0]), torch.zeros(1, 4), 6)['stderr'] is None


def test_metrics_by_hand():
    m = text_metrics([[1, 2, 1, 2, 1, 2, 1, 2], [3, 3, 3, 3, 3, 3, 3, 3]])
    assert math.isclose(m['entropy'], math.log(2) / 2) and [m[f'distinct_{n}'] for n in (1, 2, 3)] == [3 / 16, 3 / 14, 3 / 12]
    assert m['repetition'] == 1 - 3 / 10      # 4-grams: two different of five, one of five
    assert text_metrics([list(range(50))])['repetition'] == 0


def test_gpt2_as_a_judge_reads_end_of_text_first():
    class Network(torch.nn.Module):   # of the interface of transformers' GPT2LMHeadModel: bigrams
        def __init__(self):
            super().__init__()
            self.lm_head, self.config = torch.nn.Linear(1, 1), SimpleNamespace(n_positions=6, bos_token_id=7)
            self.table = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))

        def forward(self, idx):
            return SimpleNamespace(logits=self.table[idx])
    judge, samples = GPT2(Network()), [[1, 2, 3, 4, 5, 6], [3, 0]]
    logp = judge.network.table.log_softmax(-1)
    nats = -sum(float(logp[a, b]) for tokens in samples for a, b in zip([7, *tokens], tokens))
    assert math.isclose(generative_perplexity(judge, samples)['perplexity'], math.exp(nats / 8), rel_tol=1e-6)
    with pytest.raises(ValueError, match='left to right only'):
        judge(torch.tensor([[1, 2]]), torch.tensor([[1, 0]]))


def test_judge_weights_tokens_and_cuts_at_its_context():
    judge = make_model()                     # reads 9 tokens
    samples = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1], [4, 4, 4], [7, 1, 9, 2, 2]]
    def nll(tokens):
        return float(judge(torch.tensor([tokens]), sample_order(1, len(tokens), 'l2r')).sum())
    nats = [nll(samples[0][:9]) + nll(samples[0][9:]), nll(samples[1]), nll(samples[2])]
    result = generative_perplexity(judge, samples)
    mean = sum(nats) / 20
    assert math.isclose(result['perplexity'], math.exp(mean))
    variance = sum((x - mean * len(s)) ** 2 for x, s in zip(nats, samples)) / 2 / 3 / (20 / 3) ** 2
    assert math.isclose(result['stderr'], math.exp(mean) * variance ** 0.5)
    assert generative_perplexity(judge, samples[:1])['stderr'] is None


@pytest.fixture
def ckpt(tmp_path):
    (tmp_path / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare('text', tmp_path / 'data', name='words', source=str(tmp_path / 'words.txt'), tokenizer='bytes')
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, tokenizer='bytes', iter_num=7, config={'dataset': 'words', 'data_dir': 'data'})
    return tmp_path / 'ckpt.pt'


def test_command_gives_the_same_numbers_for_any_batch_and_for_its_own_file(script, ckpt, tmp_path):
    for name, args in {'a': [], 'b': ['--batch_size=3']}.items():
        p = script('eval_ppl.py', f'--ckpt={ckpt}', '--weights=raw', '--datasets=words,words.txt', '--n_orders=2',
                   f'--out={name}.json', *args)
        assert 'unigram, whole set' in p.stdout and max(map(len, p.stdout.splitlines()[1:])) <= 80 and 'words (val)' in p.stdout
    a, b = (json.loads((tmp_path / f'{name}.json').read_text())['results'] for name in 'ab')
    assert [r['dataset'] for r in a] == ['words', 'words', 'words.txt', 'words.txt']
    for x, y in zip(a, b):
        assert math.isclose(x['nats_per_token'], y['nats_per_token'], rel_tol=1e-6)
    assert a[2]['tokens'] == (45 * 40 + 1) // 16 * 16 and a[2]['bytes'] in (a[2]['tokens'], a[2]['tokens'] - 1)
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    text = torch.tensor(list((tmp_path / 'words.txt').read_bytes()) + [256])[:a[2]['tokens']].view(-1, 16)
    nll = model(text, sample_order(len(text), 16, 'l2r'))
    assert math.isclose(a[2]['nats_per_token'], float(nll.double().mean()), rel_tol=1e-6)


@pytest.mark.parametrize('args, said', [
    (['--estimates=l2r,best'], "'best'"), (['--datasets=nosuch'], 'python data/prepare.py'), (['--datasets=no.txt'], 'no file no.txt'),
    (['--batch_size=0'], 'batch_size'), (['--n_orders=0'], 'n_orders'), (['--datset=x'], "'datasets'"), (['--ckpt=no.pt'], 'no.pt'),
    (['--datasets=short.txt'], 'block_size=16 is beyond the data'), (['--device=tpu'], 'device'),
    (['--datasets=void.txt'], 'no text'), (['--out=data'], '--out=data')])
def test_wrong_input_is_one_line(ckpt, tmp_path, monkeypatch, args, said):
    import eval_ppl
    from configurator import configure, one_line_errors
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'short.txt').write_text('short')
    (tmp_path / 'void.txt').write_text('')
    with pytest.raises(SystemExit) as e, one_line_errors():
        eval_ppl.main(configure(vars(eval_ppl), [f'--ckpt={ckpt}', '--weights=raw', *args]))
    assert said in e.value.code and '\n' not in e.value.code
