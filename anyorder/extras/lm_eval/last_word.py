"""Which last words of LAMBADA's passages does a model write? An estimate of eval_ppl.py."""

from itertools import chain

import torch

from anyorder.extras.lm_eval.reading import continuation_scores
from anyorder.likelihood.estimates import Estimate
from anyorder.likelihood.tables import share_error, summarize
from anyorder.machine.processes import gather, processes
from anyorder.machine.terminal import progress
from anyorder.tokens.tokenizers import split_documents


class LastWord(Estimate):
    """The share of passages whose last word greedy decoding writes, and the perplexity of the word.

    Left to right. A word sees what fits into a block. Networks with a masked loss take a pass for
    each token."""

    name = label = 'accuracy'
    dataset = 'lambada'

    def __init__(self, config, checkpoint):
        self.c = config
        self.checkpoint = checkpoint

    def measure(self, model, text, journal):
        """Return [(nats of the last word, whether it is right)] of all passages."""
        rank, world_size = processes()
        rows = last_words(text.tokens, self.checkpoint.tokenizer)
        if not rows:
            raise ValueError('accuracy needs rows of two words or more: the set has none')
        mine = rows[rank::world_size]
        N = text.blocks.size(1)
        size = self.c.batch_size
        scores = []
        how = {'total': len(mine), 'unit': 'row', 'desc': 'last words'}
        with progress(**how, leave=False, disable=rank > 0) as bar:
            for _, *score in continuation_scores(model, mine, batch_size=size, length=N):
                scores.append(score)
                bar.update()
        return list(chain.from_iterable(gather(scores)))

    def rows(self, measured, text, of_one=None):
        nats, hits = torch.tensor(measured, dtype=torch.float64).T
        words = summarize('', nats, 1, None)
        n = len(measured)
        row = {
            'kind': self.name,
            'estimate': 'last word',
            'accuracy': float(hits.mean()),
            'rows': n,
            'stderr': share_error(int(hits.sum()), n),
            'word_perplexity': words['perplexity'],
            'word_perplexity_stderr': words['perplexity_stderr'],
        }
        return [row]


def last_words(tokens, tokenizer):
    """Return [(context tokens, last-word tokens)] of the documents of a stream (LAMBADA's task).

    Documents end in end-of-text. The blank before a word is part of the word. A document of one
    word is left out, and so is one whose tokens do not part before the last word."""
    rows = []
    for ids in split_documents(tokens, tokenizer.eos):
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        ((_, word_ids),) = tokenizer.encode_pairs([(context, blank + word)])
        word_ids = [*map(int, word_ids)]
        n = len(word_ids)
        if context and word and ids[-n:] == word_ids:
            rows.append((ids[:-n], word_ids))
    return rows
