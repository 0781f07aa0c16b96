"""How are pairs of bytes learned from a text?"""

import threading
from concurrent.futures import Future
from functools import partial

from tokenizers import models, trainers

from anyorder.extras.tokenizers.library import BYTE_OF, Library, byte_level
from anyorder.extras.tokenizers.words import SPLIT_IN_WORDS, cut_of_words
from anyorder.machine.terminal import progress
from anyorder.tokens.documents import cut_anew
from anyorder.tokens.tokenizer import Tokenizer


class Untrained(Tokenizer):
    """A tokenizer that is still to be trained, bpe:N."""

    def __init__(self, name, n_tokens):
        self.name = name
        self.n_tokens = n_tokens

    def trained(self, source):
        if 'train' not in source.splits:
            raise ValueError(
                f'{self.name} is trained on a train split: name the folder of a set that was '
                'prepared with it, as --tokenizer=data/NAME'
            )
        bar = progress(texts_of(source.of_train()), desc=self.name, unit=' pieces')
        return train_bpe(self.name, self.n_tokens, bar)


def texts_of(documents):
    """Yield the texts of documents, prompts too, in pieces between which no word is cut."""
    for document in cut_anew(documents, partial(cut_of_words, SPLIT_IN_WORDS)):
        if isinstance(document, tuple):
            yield from document
        else:
            yield str(document)


def heard(learn, texts):
    """Return learn(texts), run in a thread: the package itself hears no Ctrl-C while it learns.

    After a signal the thread ends with the next text; once all are read, with the process alone."""
    done = Future()
    given_up = threading.Event()

    def until_given_up():
        for text in texts:
            if given_up.is_set():
                raise InterruptedError
            yield text

    def run():
        try:
            done.set_result(learn(until_given_up()))
        except BaseException as e:
            done.set_exception(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return done.result()
    finally:
        given_up.set()
        thread.join(1)  # seconds


def train_bpe(name, n_tokens, texts):
    """Return a Library of byte pairs, of which there are n_tokens at most.

    The pairs are learned from the texts, as GPT-2's: words are cut by its expression, long ones
    anew after LONG_WORD letters, and the most frequent pair of tokens becomes a token, again and
    again (Sennrich et al. 2016). A pair that stands once becomes none. Texts are read once and not
    kept. The last token ends a document. The same texts make the same tokens."""
    backend = byte_level(models.BPE(), SPLIT_IN_WORDS)
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens - 1,
        min_frequency=2,
        initial_alphabet=[*BYTE_OF],
        special_tokens=[],
        show_progress=False,
    )
    heard(partial(backend.train_from_iterator, trainer=trainer), texts)
    return Library.of_file(name, backend.to_str())
