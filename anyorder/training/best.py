"""Which validation of a run is its best, and when does a run stop to wait for a better one?"""

import math
from dataclasses import asdict, dataclass

from anyorder.machine.processes import gather
from anyorder.orders import Order
from anyorder.tokens.mixture import weights_in
from configurator import check_choice


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
        """Compare the losses of a validation, {name: nats a token}, with the lowest so far."""
        if not self.loss:
            return
        self.n_waited += 1
        if losses[self.loss] < self.value:
            self.iter_num = iter_num
            self.value = losses[self.loss]
            self.n_waited = 0

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

    @property
    def shown(self):
        """What log and wandb say of it, {} where there is none."""
        if self.iter_num is None:
            return {}
        return {'best': self.value, 'best_iter': self.iter_num}

    def share(self):
        """Have all processes know what the first one knows; all of them call it."""
        vars(self).update(gather(asdict(self))[0])

    def __str__(self):
        return f'{self.loss} {self.value:.4f} at iteration {self.iter_num}'


def best_of(config, checkpoint, hashes):
    """Return the Best of a run: as the checkpoint says from which it goes on, or a new one.

    The lowest loss counts no more where the run validates otherwise than before; `hashes` are those
    of the splits."""
    loss = config.keep_best
    if config.patience and not loss:
        loss = f'val_{Order.of("own", config).estimate}'
    n_blocks = config.eval_iters * config.batch_size
    weights = weights_in(config.dataset)
    shares = tuple(weights.items()) if len(weights) > 1 else tuple(weights)
    measures = (hashes['val'], n_blocks, config.order, shares, config.documents)
    best = Best(loss, bool(config.keep_best), config.patience, measures)
    if config.init_from == 'resume':
        kept = checkpoint.entries['best']
        if (kept['loss'], kept['measures']) == (loss, measures):
            vars(best).update({name: kept[name] for name in ('iter_num', 'value', 'n_waited')})
    return best


def check_best(config, masked_loss):
    """Raise ValueError unless keep_best names a validation loss of the run."""
    kinds = {Order.of('own', config).estimate}
    if not masked_loss:
        kinds.add('l2r')
    names = weights_in(config.dataset)
    begins = ['val_']
    if len(names) > 1:
        begins += [f'val_{name}_' for name in names]
    losses = [begin + kind for begin in begins for kind in sorted(kinds)]
    check_choice('keep_best', config.keep_best, *losses, '')
