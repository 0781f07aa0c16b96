"""
Likelihood of a text under a trained model: left to right, bounds over random orders, context-order ensemble.

    python eval_ppl.py --ckpt=out/ckpt.pt
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=lambada,wikitext2,ptb,lm1b --estimates=l2r,any,ensemble,accuracy
    python eval_ppl.py --ckpt=out/ckpt.pt --datasets=ptb --estimates=ensemble --n_contexts=64 --n_positions=64
    torchrun --standalone --nproc_per_node=8 eval_ppl.py --estimates=any,iw --n_orders=16 --out=ppl.json

l2r       left to right: -log p(x), exact
own       the same in the order that a model was trained in, if it was neither random nor left to right; of a family
          that is drawn, one draw a block
any       any order: the mean of -log p(x | sigma) over n_orders uniform random orders sigma, a bound
iw        importance-weighted: -log 1/K sum_k p(x | sigma_k) over the same orders, K = 1, 2, 4, ..., a tighter bound
ensemble  sum_i -log 1/M sum_j p(x_i | perm_j(context of i)), M = 1, 2, 4, ...; member 1 is the first order of any
accuracy  of the last word of LAMBADA's passages, left to right, greedy and exact

A set is cut once into consecutive blocks of block_size, and its tail is dropped. Orders and contexts of a block are a
function of the seed and of the number of the block among those evaluated: neither the batch size nor the number of
processes changes them. Errors are standard errors over blocks, as if blocks were independent; blocks of one document
are not. The protocol `paper` reads the test splits, but of WikiText2 the train split, as SEDD and its successors do.
The protocol `clean` reads test splits only.
"""
from configurator import at_least, one_line_errors, read_options

# which model
ckpt = 'out/ckpt.pt'       # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'            # 'ema' or 'raw'
# on what
datasets = ''              # prepared sets by name and text files by path, with commas; '' is the set of the training
protocol = 'paper'         # splits of the zero-shot sets: 'paper' (test, but WikiText2 train) or 'clean' (test)
split = 'val'              # split of all other prepared sets
data_dir = ''              # where prepared sets are; '' is where the checkpoint's are
n_blocks = 0               # blocks of a set, spread evenly over it; 0 is all
# which estimates
estimates = ''             # names from the list above, with commas; '' is that of the training and, of a decoder, l2r
n_orders = 1               # any, iw: random orders a block
n_contexts = 16            # ensemble: members, the order itself included
n_positions = 0            # ensemble: visits of a block that are evaluated, a stratified sample; 0 is all
ensemble_block = 1         # ensemble: visits that share a context: b times cheaper, b = 1 is the paper's
seed = 1337                # of orders, contexts and sampled visits
# system
batch_size = 16            # blocks a forward pass, contexts of about as many tokens
device = 'auto'            # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'          # 'float32', 'bfloat16' or 'auto'
out = ''                   # a JSON file for the table; a killed run goes on from FILE.blocks.jsonl, its finished blocks

if __name__ == '__main__':   # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

from datetime import timedelta

import torch

from anyorder.checkpoint import Checkpoint, digest
from anyorder.fast import freeze
from anyorder.files import check_out, progress, write_json
from anyorder.journal import Journal
from anyorder.likelihood import (  # noqa: F401  (so that a program may take them from here)
    block_nll,
    check_ensemble,
    check_finite,
    conditional_logprob,
    context_logprobs,
    draw_known,
    ensemble_block_nll,
    ensemble_nll,
    ensemble_totals,
    estimate_of,
    last_word_hits,
    last_words,
    powers_of_two,
    sample_groups,
)
from anyorder.orders import derive_seed, draw_orders
from anyorder.processes import end_processes, first_process_first, gather, processes, start_processes
from anyorder.tables import format_table, share_error, summarize, unigram_row
from data.measured import PROTOCOLS, has_protocol, open_text

# ---------------------------------------------------------------------------------------------------------------------
# the estimates: to add another one, write a class and name it in ESTIMATES

class Estimate:
    """One way to measure a text: nats of its blocks, and the rows that the table makes of them.

    name          in --estimates and in the rows
    work          name of the nats in the journal; estimates whose `nats` are the same share this name
    options       the options of this command that the nats depend on
    dataset       the only data set that it is of; None: it is of all
    decoder_only  why an encoder has no such estimate; '': it has"""
    name = work = ''
    options, dataset, decoder_only = (), None, ''

    def __init__(self, config, checkpoint, asked=()):
        """For an opened Checkpoint; `asked` are the names of all estimates of this evaluation."""
        self.c, self.checkpoint, self.asked = config, checkpoint, asked

    @staticmethod
    def check(config):
        """Raise ValueError for wrong `options`."""

    def n_at_once(self):
        """Blocks of one call of `nats`."""
        return self.c.batch_size

    def n_tokens(self, block, N):
        """Tokens that are run for a block, given by its number."""
        return N

    def nats(self, model, blocks, numbers, bar):
        """(len(numbers), m) float64 of the blocks (n, N) of these numbers."""
        raise NotImplementedError

    def rows(self, nats, text):
        """Rows of the table from the nats (n, m) of all blocks of a Text."""
        raise NotImplementedError

    def remarks(self, rows, text):
        """Lines to print below the table."""
        return []

    def measure(self, model, text, journal):
        """nats (n, m) of all blocks of a Text; those in the journal are not run again."""
        (n, N), (rank, world_size) = text.blocks.shape, processes()
        name = text.label, text.digest, self.work
        total = sum(self.n_tokens(block, N) for block in journal.missing(name, n)) // world_size
        how = {'unit': 'tok', 'unit_scale': True, 'leave': False, 'disable': rank > 0 or total == 0}
        with progress(total=total, desc=f'{text.label} {self.work}', **how) as bar:
            def work(numbers):
                return check_finite(self.nats(model, text.blocks, numbers, bar))
            return journal.complete(name, n, self.n_at_once(), work)

    def row(self, label, nats, text, n=1):
        """The row of nats (n,), each of a block by n orders or contexts."""
        return {'kind': self.name, 'n': n} | summarize(label, nats, text.blocks.size(1), text.n_bytes)


class LeftToRight(Estimate):
    """-log p(x) from left to right, exact."""
    name = work = 'l2r'
    label, order = 'left to right', {'kind': 'l2r'}

    def nats(self, model, blocks, numbers, bar):
        orders = draw_orders(numbers, blocks.size(1), 1, self.c.seed, self.order)[:, 0]
        return block_nll(model, blocks[numbers], orders, self.c.batch_size, bar=bar).unsqueeze(1)

    def rows(self, nats, text):
        return [self.row(self.label, nats[:, 0], text)]


class OwnOrder(LeftToRight):
    """-log p(x | sigma) in the order sigma of the training; of a family that is drawn, in one draw a block."""
    name = work = 'own'

    def __init__(self, config, checkpoint, asked=()):
        super().__init__(config, checkpoint, asked)
        self.order = checkpoint.order
        self.label = f"own order ({self.order['kind']})"
        if estimate_of(self.order) != self.name:
            raise ValueError("own is of a model trained neither in random order nor left to right, this one's is "
                             f"{self.order['kind']}: take {estimate_of(self.order)}")


class AnyOrder(Estimate):
    """1/K sum_k -log p(x | sigma_k) over K = n_orders uniform random orders: a bound."""
    name, work = 'any', 'orders'
    options = ('n_orders',)

    @staticmethod
    def check(config):
        at_least(config, 1, 'n_orders')

    def n_at_once(self):
        return max(1, self.c.batch_size // self.c.n_orders)

    def n_tokens(self, block, N):
        return N * self.c.n_orders

    def nats(self, model, blocks, numbers, bar):
        """A column for each order. An encoder's are unbiased draws, but iw wants the nats of the orders themselves."""
        N, K, known = blocks.size(1), self.c.n_orders, None
        orders = draw_orders(numbers, N, K, self.c.seed).flatten(0, 1)                       # (len(numbers) K, N)
        if model.slots.masked_loss and ImportanceWeighted.name not in self.asked:
            known = draw_known(numbers, N, K, self.c.seed).flatten()
        repeated = blocks[numbers].repeat_interleave(K, 0)
        return block_nll(model, repeated, orders, self.c.batch_size, bar=bar, n_known=known).view(-1, K)

    def rows(self, nats, text):
        return [self.row(f'any order x {self.c.n_orders}', nats.mean(1), text, self.c.n_orders)]


class ImportanceWeighted(AnyOrder):
    """-log 1/K sum_k p(x | sigma_k) over the orders of AnyOrder, for K = 1, 2, 4, ...: a tighter bound."""
    name = 'iw'

    def rows(self, nats, text):
        return [self.row(f'iw x {k}', ensemble_nll(-nats[:, :k]), text, k) for k in powers_of_two(self.c.n_orders)]


class Ensemble(Estimate):
    """sum_i -log 1/M sum_j p(x_i | perm_j(context of i)) for M = 1, 2, 4, ..., see ensemble_block_nll."""
    name = work = 'ensemble'
    options = ('n_contexts', 'n_positions', 'ensemble_block')
    decoder_only = 'what an encoder says does not depend on the order of the context'

    @staticmethod
    def check(config):
        check_ensemble(config.n_contexts, config.n_positions, config.ensemble_block)

    def groups(self, block, N):
        """sample_groups of a block, given by its number."""
        return sample_groups(N, self.c.ensemble_block, self.c.n_positions, derive_seed(self.c.seed, 'positions', block))

    def n_at_once(self):
        return 1

    def n_tokens(self, block, N):
        groups, _ = self.groups(block, N)
        return N + (self.c.n_contexts - 1) * sum(min(N, (g + 1) * self.c.ensemble_block) for g in groups)

    def nats(self, model, blocks, numbers, bar):
        """A column for each of 1, 2, 4, ... members."""
        N, totals = blocks.size(1), []
        for b in numbers:
            groups, weights = self.groups(b, N)
            order = draw_orders([b], N, 1, self.c.seed)[0, 0]
            seed = derive_seed(self.c.seed, 'contexts', b)
            own, members = ensemble_block_nll(model, blocks[b], order, self.c.n_contexts, groups, self.c.ensemble_block,
                                              seed, self.c.batch_size * N, bar)
            totals.append(ensemble_totals(own, members, weights))
        return torch.stack(totals)

    def rows(self, nats, text):
        rows = []
        for m, column in zip(powers_of_two(self.c.n_contexts), nats.T, strict=True):
            gain = self.row('', nats[:, 0] - column, text)   # of each block: the spread of the blocks does not hide it
            rows.append(self.row(f'ensemble x {m}', column, text, m)
                        | {'gain': gain['nats_per_token'], 'gain_stderr': gain['stderr']})
        return rows

    def remarks(self, rows, text):
        N = text.blocks.size(1)
        n_visits = min(N, len(self.groups(0, N)[0]) * self.c.ensemble_block)
        lines = [f'ensemble on {n_visits} of {N} visits a block'] if n_visits < N else []
        gain = 'gain of {estimate} over x 1, block by block: {gain:.4f} ± {gain_stderr:.4f} nats/token'
        return lines + [gain.format(**row) for row in rows if row['gain_stderr']]


class LastWord(Estimate):
    """The share of passages whose last word greedy decoding writes, see last_word_hits."""
    name = work = 'accuracy'
    dataset, decoder_only = 'lambada', 'an encoder would need a pass for every token'

    def measure(self, model, text, journal):
        """(number of last words that are right, number of passages)."""
        rank, world_size = processes()
        rows = last_words(text.tokens, self.checkpoint.tokenizer)
        mine = rows[rank::world_size]
        if not rows:
            raise ValueError('accuracy needs rows of two words or more: the set has none')
        with progress(total=len(mine), desc='last words', unit='row', leave=False, disable=rank > 0) as bar:
            n_hits = sum(last_word_hits(model, mine, self.c.batch_size, bar))
        return sum(gather(n_hits)), len(rows)

    def rows(self, measured, text):
        n_hits, n = measured
        return [{'kind': self.name, 'estimate': 'last word', 'accuracy': n_hits / n, 'stderr': share_error(n_hits, n),
                 'rows': n}]

    def remarks(self, rows, text):
        return ['last word, greedy: {accuracy:.2%} ± {stderr:.2%} of {rows:,} passages'.format(**row) for row in rows]


ESTIMATES = {estimate.name: estimate
             for estimate in (LeftToRight, OwnOrder, AnyOrder, ImportanceWeighted, Ensemble, LastWord)}


# ---------------------------------------------------------------------------------------------------------------------
# the evaluation

def check_options(c):
    """The names of the estimates that are asked for. Raises ValueError for options that no checkpoint could serve."""
    names = c.estimates.split(',') if c.estimates else []
    if any(name not in ESTIMATES for name in names):
        raise ValueError(f'estimates must be of {", ".join(ESTIMATES)}, got {c.estimates!r}')
    if c.protocol not in PROTOCOLS:
        raise ValueError(f'protocol must be {" or ".join(PROTOCOLS)}, got {c.protocol!r}')
    at_least(c, 1, 'batch_size')
    at_least(c, 0, 'n_blocks')
    for estimate in ESTIMATES.values():
        estimate.check(c)
    check_out('out', c.out, '.json', c.ckpt, *c.datasets.split(','))
    return names


def choose_datasets(c, checkpoint):
    """The names of the sets and files that are asked for; by default the set of the training."""
    names = [name.strip() for name in (c.datasets or checkpoint.run.get('dataset', '')).split(',')]
    names = list(dict.fromkeys(name for name in names if name))
    if not names:
        raise ValueError('the checkpoint does not name its data set: say which with --datasets=')
    return names


def choose_estimates(names, datasets, c, checkpoint):
    """The estimates of these names; by default that of the order of the training and, of a decoder, l2r.

    Raises ValueError for estimates that are not of such a network or of such data sets."""
    is_decoder = not checkpoint.config.slots.masked_loss
    if not names:
        own = estimate_of(checkpoint.order)
        names = ['l2r', own] if is_decoder else [own]
    for name in names:
        dataset = ESTIMATES[name].dataset
        if dataset and dataset not in datasets:
            raise ValueError(f'{name} is of the set {dataset}, which is not among {", ".join(datasets)}')
        if not is_decoder and ESTIMATES[name].decoder_only:
            raise ValueError(f"{name} is a decoder's: {ESTIMATES[name].decoder_only}")
    return [estimate(c, checkpoint, names) for name, estimate in ESTIMATES.items() if name in names]


def open_journal(c, checkpoint, estimates, model, dtype):
    """The Journal beside --out, of this model and these options."""
    if not c.out:
        return Journal('', {})
    options = [name for estimate in ESTIMATES.values() for name in estimate.options]
    evaluation = {'model': digest(model), 'dtype': dtype} | {name: c[name] for name in ('weights', 'seed', *options)}
    if checkpoint.config.slots.masked_loss:
        evaluation['one_by_one'] = any(estimate.name == 'iw' for estimate in estimates)
    if estimate_of(checkpoint.order) == 'own':
        evaluation['order'] = checkpoint.order
    return Journal(f'{c.out}.blocks.jsonl', evaluation)


def evaluate(model, text, estimates, journal):
    """{estimate: its rows} of one text. Estimates of the same work share its nats, by way of the journal."""
    return {estimate: estimate.rows(estimate.measure(model, text, journal), text)
            for estimate in estimates if estimate.dataset in (None, text.name)}


def report(text, rows, tokenizer):
    """What to print of {estimate: its rows} of a text: the table of likelihoods, then the remarks."""
    lines = [f"\n{text.label}, from {text.origin['source']}"]
    table = [row for part in rows.values() for row in part if 'perplexity' in row]
    if table:
        lines.append(format_table([*table, unigram_row(text.tokens, tokenizer, text.blocks.size(1))]))
    for estimate, part in rows.items():
        lines += estimate.remarks(part, text)
    return '\n'.join(lines)


def main(config):
    names = check_options(config)
    checkpoint = Checkpoint(config.ckpt)
    tokenizer, N = checkpoint.tokenizer, checkpoint.config.block_size
    datasets = choose_datasets(config, checkpoint)
    estimates = choose_estimates(names, datasets, config, checkpoint)
    device, dtype = start_processes(config.device, config.dtype, timedelta(days=7))   # all wait for the longest block
    with first_process_first():   # a text that is missing costs nothing before the model is there
        data_dir = config.data_dir or checkpoint.run.get('data_dir', 'data')
        texts = [open_text(name, N, tokenizer, data_dir, config.protocol, config.split, config.n_blocks)
                 for name in datasets]
    model = checkpoint.model(config.weights, device)
    journal = open_journal(config, checkpoint, estimates, model, dtype)

    rank, world_size = processes()
    say = print if rank == 0 else lambda *a, **k: None
    say(f'{checkpoint.about(config.weights)}, {model.n_parameters():,} parameters')
    there = f'; {len(journal.done):,} results are there already' if journal.done else ''
    say(f'blocks of {N} {tokenizer.name} tokens, {device}, {dtype}, seed {config.seed}, {world_size} processes{there}')
    if N != 1024 and any(map(has_protocol, datasets)):
        say(f'published numbers are of context 1024: those of context {N} below are not comparable with them')

    model, results = freeze(model, getattr(torch, dtype)), []
    for text in texts:
        rows = evaluate(model, text, estimates, journal)
        say(report(text, rows, tokenizer), flush=True)
        origin = {'dataset': text.name, 'set': text.label, 'block_size': N, **text.origin}
        results += [origin | row for part in rows.values() for row in part]
    if config.out and rank == 0:
        result = {'config': config, 'iter_num': checkpoint.entries.get('iter_num'), 'dtype': dtype, 'results': results}
        write_json(config.out, result)
        print(f'\nwritten: {config.out}')
    end_processes()


if __name__ == '__main__':
    with one_line_errors():
        main(options)
