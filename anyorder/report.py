"""What does sample.py say? Its samples, a table of how they were made, and a file of results."""

import io
import json
import math
import pkgutil
from itertools import zip_longest

import numpy as np

from anyorder.machine.files import plain_json, replace_file
from anyorder.tokens.shown import columns_of, shown_text, to_the_right, visible
from anyorder.writer import as_rows

# options of sample.py that do not say how a text is written, or on what
AROUND = ('ckpt', 'weights', 'prompt', 'n_samples', 'seed', 'batch_size')
AROUND += ('device', 'dtype', 'out', 'html', 'watch', 'metrics')
# imported where --html asks for a page, --watch for a text that is redrawn, --metrics for a measure
REPLAY = 'anyorder.extras.pictures.replay'
WATCH = 'anyorder.extras.pictures.watch:Watch'
JUDGE = 'anyorder.extras.judge'


def begin_result(writer, way, config):
    """Return what a file of results holds, without samples."""
    return {
        'config': config,
        'iter_num': writer.checkpoint.entries.get('iter_num'),
        'tokenizer': writer.tokenizer.name,
        'order': config.order if way.unmasking.adaptive else way.order.kept,
        'device': str(writer.device),
        'dtype': writer.dtype,
        'seconds': 0.0,
        'metrics': {},
        'samples': [],
    }


def save(result, path):
    """Write a result to the file `path`, in the form of its ending; without a sample nothing."""
    if not path or not result['samples']:
        return
    rows = as_rows(result['samples'])
    if path.endswith('.npy'):
        file = io.BytesIO()
        np.save(file, rows)
        data = file.getvalue()
    elif path.endswith('.jsonl'):
        data = '\n'.join(map(plain_json, rows.tolist())).encode()
    else:
        data = plain_json(result).encode()
    replace_file(path, data)


def print_samples(samples, writer, config):
    """Print each text below a line that says how likely it was."""
    what = 'sum of -log p as last written' if config.revise else '-log p'
    for r, sample in enumerate(samples):
        about = ''.join(f', {length_in_words(length)}' for length in sample.get('lengths', ()))
        nats = nats_and_bits(sample['nats'], 3)
        print(
            f'--- sample {r} (seed {sample["seed"]}), {what} = {nats} in '
            f'{sample["blanks"]} tokens{about}'
        )
        text = shown_text(sample['tokens'], writer.tokenizer, writer.columns)
        print(visible(text), flush=True)
        if config.top_logprobs:
            print_likeliest(sample)


def length_in_words(length):
    """Return what a sample says of a length, in words."""
    other = ''
    if 'runner_up' in length:
        other = f', runner-up {length["runner_up"]}: {length["p_runner_up"]:.2f}'
    return f'blank of {length["length"]} tokens (p {length["p"]:.2f}{other})'


def nats_and_bits(nats, digits):
    return f'{nats:.{digits}f} nats, {nats / math.log(2):.{digits}f} bits'


def print_likeliest(sample):
    """Print a line for each token that was written: where, in which step, what it is, and the
    likeliest ones that might have stood there, with their ids and nats."""
    lines = [['position', 'step', 'token', 'id', 'nats', 'likeliest']]
    for position, place in enumerate(sample['top_logprobs']):
        if place is None:
            continue
        line = [str(position), str(sample['step'][position])]
        for one in (place, *place['top']):
            text = json.dumps(one['text'], ensure_ascii=False)
            line += [visible(text), str(one['token']), f'{one["logprob"]:.3f}']
        lines.append(line)
    columns = zip_longest(*lines, fillvalue='')
    widths = [max(map(columns_of, column)) for column in columns]
    for line in lines:
        print('  '.join(map(to_the_right, line, widths)), flush=True)


def given_facts(config):
    """Return the options of writing that were given, {name: as Python writes its value}."""
    names = [name for name in config if name in config.given and name not in AROUND]
    return {name: f'{config[name]!r:.200}' for name in names}


def facts(result, writer, way, page):
    """Return the lines of the table, {name: value}: what was given and what came out."""
    samples = result['samples']
    blanks = [sample['blanks'] for sample in samples]
    tokens_a_pass = sum(blanks) / sum(sample['passes'] for sample in samples)
    n_steps = max(1 + max(sample['step']) for sample in samples)
    nats = sum(sample['nats'] for sample in samples) / sum(blanks)
    n_cut = sum(sample['logprob'].count(-math.inf) for sample in samples)
    n_stretches = max(len(sample.get('stretches', ())) for sample in samples)
    n_stopped = sum(sample.get('stopped', False) for sample in samples)
    rate = sum(blanks) / result['seconds']
    order = result['config']['order']
    if not way.unmasking.adaptive:
        order = way.order.name_as(order)
    return {
        'checkpoint': writer.checkpoint.about(writer.weights),
        'parameters': f'{writer.model.n_parameters():,}',
        'positions': writer.block_size,
        'tokenizer': writer.tokenizer.name,
        **given_facts(result['config']),
        'order': order,
        'steps': f'{n_steps} for {max(blanks)} tokens, {tokens_a_pass:.1f} tokens a pass',
        'stretches': n_stretches,
        'stopped': f'{n_stopped} of {len(samples)} texts' if page.stop else '',
        '-log p a token': nats_and_bits(nats, 4),
        'cut off': f'{n_cut} tokens' if n_cut else '',
        'time': f'{result["seconds"]:.2f} s, {rate:,.0f} tokens/s',
        'device': f'{result["device"]} in {result["dtype"]}',
    }


def write_page(samples, about, writer, config):
    """Write the page that replays the samples, below what was given."""
    replay = pkgutil.resolve_name(REPLAY)
    title = replay.written_in_words(about['order'])
    if config.score:
        title = 'The text of the blanks, as it was scored'
    words = [f'{name}={value}' for name, value in given_facts(config).items()]
    title += '\n' + ', '.join([*words, f'steps: {about["steps"]}'])
    replay.write_replay(config.html, samples, writer.tokenizer, title, writer.columns)


def print_table(table):
    """Print the lines {name: value} that have a value."""
    print('---')
    for name, value in table.items():
        if value:
            print(f'{name:<18}{value}')
