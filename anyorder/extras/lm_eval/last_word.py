"""Which last words of LAMBADA's passages does a model write? An estimate of eval_ppl.py."""

import torch

from anyorder.extras.lm_eval.reading import continuation_scores
from anyorder.likelihood.estimates import Estimate
from anyorder.likelihood.tables import share_error, summarize
from anyorder.tokens.documents import split_documents


def last_word(config, checkpoint):
    """Return the Estimate of the share of passages whose last word greedy decoding writes, and of
    the perplexity of the word.

    Left to right. A word sees what fits into a block. Networks with a masked loss take a pass for
    each token."""

    def items(corpus):
        """Return the last words of all passages, the longest passage first."""
        words = [*last_words(corpus.split.packed, checkpoint.tokenizer)]
        if not words:
            raise ValueError('accuracy needs rows of two words or more: the set has none')
        return sorted(words, key=lambda pair: -len(pair[0]))

    def nats(model, items, numbers):
        """Return (len(numbers), 2): the nats of a word, and 1 where it is right."""
        words = [items[n] for n in numbers]
        scores = continuation_scores(model, words, config.batch_size, config.block_size)
        return torch.tensor(sorted(scores), dtype=torch.float64)[:, 1:]

    size = config.batch_size
    name = 'accuracy'
    return Accuracy(name, name, name, nats, items=items, n_at_once=size, dataset='lambada')


class Accuracy(Estimate):
    """An Estimate whose row has no nats of blocks."""

    def rows(self, measured, corpus, of_baseline=None):
        nats, hits = measured.T
        words = summarize('', nats, 1, None)
        n = len(measured)
        row = {
            'kind': self.kind,
            'estimate': 'last word',
            'accuracy': float(hits.mean()),
            'rows': n,
            'stderr': share_error(int(hits.sum()), n),
            'word_perplexity': words['perplexity'],
            'word_perplexity_stderr': words['perplexity_stderr'],
        }
        return [row]


def last_words(tokens, tokenizer):
    """Yield (context tokens, last-word tokens) of the documents of a stream (LAMBADA's task).

    Documents end in end-of-text. The blank before a word is part of the word. A document of one
    word is left out, and so is one whose tokens do not part before the last word."""
    for ids in split_documents(tokens, tokenizer.eos):
        context, blank, word = tokenizer.decode(ids).rpartition(' ')
        ((_, word_ids),) = tokenizer.encode_pairs([(context, blank + word)])
        word_ids = [*map(int, word_ids)]
        n = len(word_ids)
        if context and word and ids[-n:] == word_ids:
            yield ids[:-n], word_ids
