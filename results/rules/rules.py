"""What does a rule of parallel writing cost? Exact nats of held-out text, by passes.

    python results/rules/rules.py measure --ckpt=chain --dataset=chain --out=out/oracle.json
    python results/rules/rules.py measure --ckpt=out/chain_decoder/ckpt.pt --out=out/decoder.json
    python results/rules/rules.py measure --ckpt=masked:FOLDER --dataset=FILE.jsonl --n_steps=0,28,7
    python results/rules/rules.py table --files=out/oracle.json
    python results/rules/rules.py parts --files=out/oracle.json,out/decoder.json
    python results/rules/rules.py draw --files='the law=out/oracle.json,books=out/books.json'

`measure` writes the nats and the passes of each text by each rule; `chain` is the known law of
chain.py. `table` prints nats a token, and what they are above one token a step in random order.
`parts` divides these costs for networks that have read texts of the chain, by the exact law. `draw`
draws the costs."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import json
import re

import torch

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.extras.pictures.figures import PANELS, draw
from anyorder.fast import freeze
from anyorder.generation.rules import check_counts
from anyorder.generation.way import Way
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.tables import figure, ratio_error
from anyorder.likelihood.written import Written
from anyorder.machine.files import check_out, write_json
from anyorder.machine.terminal import one_line_errors
from configurator import Config, configure, names_in, numbers
from results.rules.chain import LENGTH, Law

WORDS = {
    'measure': 'nats of all rules by one model',
    'table': 'print what measure wrote',
    'parts': "divide costs into a rule's and a network's; the first file is of the law",
    'draw': 'draw a panel for each file',
}
# measure
ckpt = 'chain'  # a checkpoint, masked:FOLDER, or the known law: chain, chain:256
dataset = ''  # a prepared set or a file; '' is that of the training
data_dir = ''  # where prepared sets are; '' is where the checkpoint's are
n_blocks = 64  # texts, spread evenly over the set; 0 is all
rules = ''  # of RULES, with commas; '' is all
n_steps = '0,64,16,8'  # passes, where a rule is told how many; 0 is one token a step
block_length = 0  # blocks inside of which a rule that is told no number chooses; 0 is the text
batch_size = 64  # texts at a time
seed = 1337
out = 'out/rules.json'  # what measure or draw writes
# table, parts, draw
files = ''  # of measure, with commas; for draw NAME=PATH

ONE = 'one token a step'
# {rule: the one in whose order it writes one token a step}
SAME_ORDER = {
    'cosine': 'random',
    'binomial': 'random',
    'threshold': 'max probability',
    'factor': 'max probability',
    'EB': 'entropy',
    'KLASS': 'max probability',
    'dilated': 'random',
}
RANDOM = {'order': 'random'}
# {rule: options of Way.of}: each is told its number of passes
BY_STEPS = {
    'random': RANDOM,
    'cosine': RANDOM | {'schedule': 'cosine'},
    'binomial': RANDOM | {'unmask': 'binomial'},
    'left to right': {'order': 'l2r'},
    'max probability': {'order': 'top_prob'},
    'margin': {'order': 'margin'},
    'entropy': {'order': 'entropy'},
    'margin in blocks': {'order': 'margin/32'},
    'PC-Sampler': {'order': 'pc_sampler'},
    'drawn': {'order': 'drawn'},
}
# {rule: orders}: how many tokens a step writes follows from what the network says
BY_ORDERS = {
    'threshold': ('top_prob:.3', 'top_prob:.5', 'top_prob:.7', 'top_prob:.9'),
    'factor': ('factor:1', 'factor:2', 'factor:4', 'factor:8'),
    'EB': ('eb:.1', 'eb:.5', 'eb:1', 'eb:2', 'eb:4'),
    'KLASS': ('klass:.5', 'klass:.9'),
    'dilated': ('dilated:16', 'dilated:32', 'dilated:64', 'dilated:128', 'dilated:256'),
}
RULES = (*BY_STEPS, *BY_ORDERS)

MOST_DRAWN = 0.6  # nats a token


def main(config):
    (word,) = config.words
    if word == 'measure':
        measure(config)
        return
    files = [named.rpartition('=') for named in names_in(config.files)]
    if word == 'table':
        for _, _, path in files:
            print_table(path)
    elif word == 'parts':
        print_parts(*(path for _, _, path in files))
    else:
        draw_all(files, config.out)


# --------------------------------------------------------------------------------------------------
# the nats


def measure(config):
    """Write the nats and passes of all texts by every rule, each as soon as it is there."""
    check_out('out', config.out, '.json')
    c = Config(config, n_orders=1)
    checkpoint = open_law(c.ckpt) or open_checkpoint(c.ckpt)
    dataset = c.dataset or checkpoint.run['dataset']
    data_dir = c.data_dir or checkpoint.run.get('data_dir', 'data')
    cut = Cut(checkpoint.config.block_size, c.n_blocks)
    text = open_corpus(dataset, cut, checkpoint.tokenizer, data_dir, ckpt=c.ckpt)
    model = freeze(checkpoint.model(checkpoint.weights), torch.float32)
    n_tokens = torch.as_tensor(text.n_blanks).expand(len(text.blocks))
    # a killed run goes on from there
    journal = Journal(f'{c.out}.blocks.jsonl', {'model': digest(model), 'seed': c.seed})
    measured = []
    result = {'config': c, 'text': text.label, 'tokens': n_tokens.tolist(), 'rules': measured}
    for rule, setting, options in settings(c):
        way = Way.of(checkpoint.run, score=True, **options)
        try:
            way.unmasking.check_network(checkpoint.config.slots, checkpoint.config.block_size)
            check_counts(way.unmasking, checkpoint.counts)
        except ValueError as e:
            print(f'{rule}, {setting}: left out ({e})', flush=True)
            continue
        law = Written(c, checkpoint, (), f'{rule} {setting}', way)
        nats, n_cut, passes = law.means(law.measure(model, text, journal))
        assert not n_cut.any(), 'a token has the probability 0'
        entry = {'rule': rule, 'setting': setting, 'bound': law.bound}
        measured.append(entry | {'nats': nats.tolist(), 'passes': passes.tolist()})
        mean, _ = per_token(nats, n_tokens)
        print(f'{rule}, {setting}: {mean:.4f}', flush=True)
        write_json(c.out, result)


def open_law(name):
    """Return the Law of `chain`, texts of 64 tokens, or of chain:256; None of another name."""
    found = re.fullmatch(r'chain(?::([1-9]\d*))?', name)
    if not found:
        return None
    return Law(length=int(found[1] or LENGTH))


def settings(c):
    """Return [(rule, setting, options of Way.of)], one token a step in random order first."""
    chosen = names_in(c.rules) if c.rules else RULES
    found = [('random', ONE, RANDOM | {'n_steps': 2**31})]
    for rule in chosen:
        options = BY_STEPS.get(rule)
        if options is None:
            orders = [in_blocks(order, c.block_length) for order in BY_ORDERS[rule]]
            found += [(rule, order, {'order': order}) for order in orders]
            continue
        for n in numbers(c, 'n_steps'):
            if n:
                found.append((rule, str(n), options | {'n_steps': n}))
            elif options.keys() == {'order'} and rule != 'random':  # which is there
                found.append((rule, ONE, options | {'n_steps': 2**31}))
    return found


def in_blocks(order, length):
    """Return an order such as top_prob:.9, with blocks top_prob/32:.9."""
    if not length or order.startswith('dilated'):
        return order
    name, colon, number = order.partition(':')
    return f'{name}/{length}{colon}{number}'


# --------------------------------------------------------------------------------------------------
# what is said of them


def read(path):
    """Return ({(rule, setting): (nats (n,), passes (n,))}, tokens (n,)) of a file of `measure`."""
    with open(path) as f:
        result = json.load(f)
    found = {}
    for entry in result['rules']:
        columns = [torch.tensor(entry[name], dtype=torch.float64) for name in ('nats', 'passes')]
        found[entry['rule'], entry['setting']] = columns
    return found, torch.tensor(result['tokens'])


def per_token(nats, tokens):
    """Return the nats (n,) of texts as nats a token, and their standard error."""
    return float(nats.sum() / tokens.sum()), ratio_error(nats, tokens)


def costs(found):
    """Yield (rule, setting, nats, cost, mean passes).

    cost  (n,) nats above one token a step in random order"""
    one, _ = found['random', ONE]
    for (rule, setting), (nats, passes) in found.items():
        yield rule, setting, nats, nats - one, float(passes.mean())


def print_table(path):
    found, tokens = read(path)
    print(f'\n{path}, {len(tokens)} texts, {int(tokens.sum()):,} tokens\n')
    print('| | | passes | nats a token | cost |\n|---|---|---|---|---|')
    for rule, setting, nats, cost, passes in costs(found):
        print_row(rule, setting, passes, (nats, cost), tokens)


def print_row(rule, setting, passes, columns, tokens):
    """Print nats of texts, (n,) in each of the columns, as nats a token."""
    cells = [rule, setting, f'{passes:.1f}']
    cells += [figure(*per_token(nats, tokens), 3) for nats in columns]
    print('| ' + ' | '.join(cells) + ' |')


def print_parts(law_path, *paths):
    """Print where a cost above the exact -log p comes from, for each network.

    rule      the same rule by the known law: the price without a mistake
    network   one token a step by the network in the same order: its own mistakes
    together  the rest: the network chooses by its mistakes, and writes upon them"""
    law, tokens = read(law_path)
    exact, _ = law['random', ONE]
    for path in paths:
        found, _ = read(path)
        print(f'\n{path}\n\n| | | passes | above -log p | rule | network | together |')
        print('|---|---|---|---|---|---|---|')
        for (rule, setting), (nats, passes) in found.items():
            of_rule = law[rule, setting][0] - exact
            own = found[SAME_ORDER.get(rule, rule), ONE][0] - exact
            parts = [nats - exact, of_rule, own, nats - exact - of_rule - own]
            print_row(rule, setting, passes.mean(), parts, tokens)


def draw_all(files, out):
    """Draw a panel of costs by passes for each of the files (name, _, path), a line a rule.

    Costs above MOST_DRAWN are left out, under which all others would lie flat."""
    lines = {}
    panels = []
    for name, _, path in files:
        found, tokens = read(path)
        key = f'cost {name}'
        PANELS[key] = name
        panels.append(('passes', key))
        for rule, setting, _, cost, passes in costs(found):
            mean, error = per_token(cost, tokens)
            if mean > MOST_DRAWN:
                continue
            point = {'passes': passes, key: mean, f'{key}_error': error, 'setting': setting}
            lines.setdefault(rule, []).append(point)
    runs = []
    for rule, points in lines.items():
        runs.append((rule, sorted(points, key=lambda point: point['passes'])))
    draw(runs, panels, out)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
