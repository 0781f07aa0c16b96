"""Measures of samples by hand, and judges that weight every token equally."""
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model

from judge import GPT2, generative_perplexity, text_metrics
from model import sample_order


def test_metrics_by_hand():
    m = text_metrics([[1, 2, 1, 2, 1, 2, 1, 2], [3, 3, 3, 3, 3, 3, 3, 3]])
    assert math.isclose(m['entropy'], math.log(2) / 2) and [m[f'distinct_{n}'] for n in (1, 2, 3)] == [3 / 16, 3 / 14, 3 / 12]
    assert m['repetition'] == 1 - 3 / 10      # 4-grams: two different of five, one of five
    assert text_metrics([list(range(50))])['repetition'] == 0
    assert text_metrics([[1], [1]]) == {'entropy': 0, 'distinct_1': 0.5, 'distinct_2': 1, 'distinct_3': 1, 'repetition': 0}


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
