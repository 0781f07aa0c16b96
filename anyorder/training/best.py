"""Which validation of a run is its best, and when does a run stop to wait for a better one?"""

import math
from dataclasses import dataclass


@dataclass
class Best:
    """The lowest validation loss of a run so far, which `keep_best` and `patience` watch.

    loss      its name in the log, as val_any; '': neither option watches one
    keeps     whether ckpt_best.pt holds the weights that reached it
    patience  the run ends after so many validations in a row that are not lower; 0: it does not
    measures  what a validation depends on beside the weights
    iter_num  iteration of the lowest; None: there was no validation yet
    value     the lowest, in nats a token
    n_waited  validations in a row since then"""

    loss: str = ''
    keeps: bool = False
    patience: int = 0
    measures: tuple = ()
    iter_num: int | None = None
    value: float = math.inf
    n_waited: int = 0

    def compare(self, iter_num, losses):
        """Compare the losses of a validation, {name: nats a token}, with the lowest so far.

        Returns what the log says of the lowest."""
        if not self.loss:
            return {}
        self.n_waited += 1
        if losses[self.loss] < self.value:
            self.iter_num = iter_num
            self.value = losses[self.loss]
            self.n_waited = 0
        return {'best': self.value, 'best_iter': self.iter_num}

    @property
    def is_over(self):
        """Whether the patience of the run is at its end."""
        return 0 < self.patience <= self.n_waited

    @property
    def why_over(self):
        """Why such a run ends, and how it goes on."""
        return (
            f'finished: {self.n_waited} validations in a row were not below {self}; '
            f'to go on, raise --patience={self.patience}, or set it to 0'
        )

    def __str__(self):
        return f'{self.loss} {self.value:.4f} at iteration {self.iter_num}'


def best_of(config, validation, splits, before):
    """Return the Best of a run: as of that which it goes on with, or a new one.

    The lowest loss counts no more where the run validates otherwise than before, or kept no file of
    it and does now.

    splits  {name of a set: what meta.json says of its splits}
    before  the entries of the run that it goes on with, {} of a new run"""
    loss = config.keep_best
    if config.patience and not loss:
        loss = [*validation.order_of][0]
    watched = loss and validation.order_of[loss].kept
    hashes = {name: of_set['val']['sha256'] for name, of_set in splits.items()}
    measures = (hashes, validation.n_blocks, watched, config.dataset, config.documents)
    best = {'loss': loss, 'measures': measures}
    earlier = before.get('best', {})
    has_file = earlier.get('keeps') or not config.keep_best
    if has_file and best.items() <= earlier.items():
        best = earlier
    return Best(**best | {'keeps': bool(config.keep_best), 'patience': config.patience})
