"""Which validation of a run is its best, and when does a run stop to wait for a better one?"""

import math

from anyorder.machine.processes import gather
from anyorder.orders import Order
from anyorder.tokens.mixture import shares_of, weights_in
from configurator import nearest


class Best:
    """The lowest validation loss of a run so far, which `keep_best` and `patience` watch.

    loss      its name in the log, as val_any; '': neither option watches one
    keeps     whether ckpt_best.pt holds the weights that reached it
    patience  the run ends after so many validations in a row that are not lower; 0: it does not
    compares  whether a resumed run validates as the run did before
    iter_num  iteration of the lowest; None: there was no validation yet
    value     the lowest, in nats a token
    n_waited  validations in a row since then"""

    def __init__(self, loss='', keeps=False, patience=0):
        self.loss = loss
        self.keeps = keeps
        self.patience = patience
        self.compares = True
        self.forget()

    def forget(self):
        """Begin anew with the next validation."""
        self.iter_num = None
        self.value = math.inf
        self.n_waited = 0

    def compare(self, iter_num, losses):
        """Compare the losses of a validation, {name: nats a token}, with the lowest so far."""
        if not self.loss:
            return
        self.n_waited += 1
        value = losses[self.loss]
        if value < self.value:
            self.iter_num = iter_num
            self.value = value
            self.n_waited = 0

    @property
    def is_over(self):
        """Whether the patience of the run is at its end."""
        return 0 < self.patience <= self.n_waited

    @property
    def why_over(self):
        """Why such a run ends, and how it goes on."""
        return (
            f'{self.n_waited} validations in a row were not below {self}; '
            f'to go on, raise --patience={self.patience}, or set it to 0'
        )

    @property
    def shown(self):
        """What log and wandb say of it, {} where there is none."""
        if self.iter_num is None:
            return {}
        return {'best': self.value, 'best_iter': self.iter_num}

    @property
    def kept(self):
        """What a checkpoint keeps of it, {} where no option watches a loss."""
        if not self.loss:
            return {}
        names = ('loss', 'iter_num', 'value', 'n_waited')
        return {'best': {name: getattr(self, name) for name in names}}

    def go_on(self, kept):
        """Go on from what a checkpoint kept of the same loss; of another one this is nothing."""
        if kept.get('loss') == self.loss:
            self.iter_num = kept['iter_num']
            self.value = kept['value']
            self.n_waited = kept['n_waited']

    def share(self):
        """Have all processes know what the first one knows; all of them call it."""
        first = gather(self.kept)[0]
        self.go_on(first.get('best', {}))

    def __str__(self):
        return f'{self.loss} {self.value:.4f} at iteration {self.iter_num}'


def best_of(config, checkpoint, hashes):
    """Return the Best of a run: as the checkpoint says from which it goes on, or a new one.

    The lowest loss counts no more where the run validates otherwise than before; `hashes` are those
    of the splits."""
    loss = config.keep_best
    if config.patience and not loss:
        loss = estimate_of(config)
    best = Best(loss, bool(config.keep_best), config.patience)
    if config.init_from == 'resume':
        entries = checkpoint.entries
        before = measured(checkpoint.run, entries.get('val_data', hashes['val']))
        best.compares = before == measured(config, hashes['val'])
        if best.compares:
            best.go_on(entries.get('best', {}))
    return best


def estimate_of(config):
    """Return the name in the log of the validation in the order of the run."""
    return f'val_{Order.of("own", config).estimate}'


def measured(options, val_hash):
    """Return what a validation depends on beside the weights."""
    n_blocks = options['eval_iters'] * options['batch_size']
    weights = shares_in(options['dataset'])
    documents = options.get('documents', 'together')
    return [val_hash, n_blocks, Order.of('own', options).kept, weights, documents]


def shares_in(dataset):
    """Return {name: share of the tokens, or None} of several sets; {} of one, by whatever name."""
    weights = weights_in(dataset)
    if len(weights) == 1:
        return {}
    if None in weights.values():
        return weights
    return dict(zip(weights, shares_of([*weights.values()]).round(9).tolist()))


def losses_of(config, masked_loss):
    """Return the names in the log of all validation losses of a run."""
    names = [estimate_of(config)]
    if not masked_loss:
        names.append('val_l2r')
    found = list(dict.fromkeys(names))
    weights = weights_in(config.dataset)
    if len(weights) > 1:
        for name in weights:
            found += [of_all.replace('val_', f'val_{name}_') for of_all in names]
    return list(dict.fromkeys(found))


def check_best(config, masked_loss):
    """Raise ValueError unless keep_best names a validation loss, and patience has some to count.

    With max_iters=0 a run writes the weights it begins with, and a resume has the patience."""
    names = losses_of(config, masked_loss)
    name = config.keep_best
    if name and name not in names:
        why = ''
        if masked_loss and name == 'val_l2r':
            why = f' of network={config.network}, which has a masked loss and no left to right'
        raise ValueError(
            f'keep_best must name a validation loss{why} ({", ".join(names)}), got {name!r}'
            f'{nearest(name, names)}'
        )
    if config.patience and 0 < config.max_iters <= config.eval_interval:
        raise ValueError(
            f'patience={config.patience} counts validations, and this run has none before its end: '
            f'eval_interval must be below max_iters={config.max_iters}, got {config.eval_interval}'
        )


def never_over(config):
    """Return in words that a run is shorter than its patience; '' if it is not."""
    n = -(-config.max_iters // config.eval_interval)
    if not 0 < n <= config.patience:
        return ''
    return f'patience={config.patience} never ends this run, which validates {n} times'
