"""What does sample.py say? Its samples, a table of how they were made, and a file of results."""

import importlib
import io
import json
import math
from itertools import zip_longest

import numpy as np

from anyorder.generation.unmasking import Lossless
from anyorder.generation.watch import visible
from anyorder.likelihood.lengths import said
from anyorder.machine.files import plain_json, replace_file
from anyorder.tokens.shown import columns_of, shown_text, to_the_right
from anyorder.writer import as_rows

REPLAY = 'anyorder.extras.pictures.replay'  # imported where --html asks for a page


def about_model(writer, config):
    """Return the lines of the table on the model of a Writer."""
    size = f'{writer.model.n_parameters():,} parameters, {writer.block_size} positions'
    return {
        'checkpoint': writer.checkpoint.about(config.weights),
        'model': f'{size}, {writer.tokenizer.name} tokens',
    }


def begin_result(writer, order_text, way, config):
    """Return what a file of results holds, without samples.

    order_text  what the options say of the order, see Order.of"""
    return {
        'config': config,
        'iter_num': writer.checkpoint.entries.get('iter_num'),
        'tokenizer': writer.tokenizer.name,
        'order': order_in_result(order_text, way, config),
        'device': str(writer.device),
        'dtype': writer.dtype,
        'seconds': 0.0,
        'metrics': {},
        'samples': [],
    }


def order_in_result(order_text, way, config):
    """Return what the result says of the order: all of it, if the option leaves it open."""
    if order_text == 'own':
        return way.order.entries
    if isinstance(order_text, list):  # the positions of a file
        return order_text
    return config.order


def save(result, path):
    """Write a result to the file `path`, in the form of its ending; without a sample nothing."""
    if not path or not result['samples']:
        return
    data = io.BytesIO()
    if path.endswith('.npy'):
        np.save(data, as_rows(result['samples']))
    elif path.endswith('.jsonl'):
        lines = map(plain_json, as_rows(result['samples']).tolist())
        data.write('\n'.join(lines).encode())
    else:
        data.write(plain_json(result).encode())
    replace_file(path, data.getvalue())


def print_samples(samples, writer, config):
    """Print each text below a line that says how likely it was."""
    what = 'sum of -log p as last written' if config.revise else '-log p'
    for r, sample in enumerate(samples):
        nats = f'{sample["nats"]:.3f} nats, {sample["nats"] / math.log(2):.3f} bits'
        about = ''.join(f', {said(length)}' for length in sample.get('lengths', ()))
        size = f'{sample["blanks"]} tokens'
        print(f'--- sample {r} (seed {sample["seed"]}), {what} = {nats} in {size}{about}')
        text = shown_text(sample['tokens'], writer.tokenizer, writer.columns)
        print(visible(text), flush=True)
        if 'top_logprobs' in sample:
            print_likeliest(sample)


def print_likeliest(sample):
    """Print a table of the likeliest tokens: a line for each place, by position."""
    places = [place for place in sample['top_logprobs'] if place is not None]
    numbers = range(1, 1 + max(len(place['top']) for place in places))
    head = ['position', 'step', 'token', 'id', 'nats']
    for n in numbers:
        head += [f'likeliest {n}', 'id', 'nats']
    lines = [head]
    for position, place in enumerate(sample['top_logprobs']):
        if place is None:
            continue
        line = [str(position), str(sample['step'][position]), *cells_of(place)]
        for one in place['top']:
            line += cells_of(one)
        lines.append(line)
    widths = []
    for column in zip_longest(*lines, fillvalue=''):
        widths.append(max(map(columns_of, column)))
    for line in lines:
        cells = map(to_the_right, line, widths)
        print('  '.join(cells), flush=True)


def cells_of(entry):
    """Return the text of a token in quotes, its id and its nats."""
    text = json.dumps(entry['text'], ensure_ascii=False)
    return [visible(text), str(entry['token']), f'{entry["logprob"]:.3f}']


def describe(result, order_text, way, page, config):
    """Return the lines of the table on how the samples were made, in this Way and on this Page."""
    samples = result['samples']
    longest = max(samples, key=lambda sample: len(sample['tokens']))
    stretches = ''
    if 'stretches' in longest:
        stretches = f'{len(longest["stretches"])} for {len(longest["tokens"])} tokens'
    stopped = ''
    if page.stop:
        n_stopped = sum(sample.get('stopped', False) for sample in samples)
        names = ' or '.join(map(repr, page.stop))
        stopped = f'{n_stopped} of {len(samples)} texts stopped at {names}'
    drawing = drawing_in_words(config)
    cut = ''
    if config.score:
        drawing = f'the text of the blanks was scored under {drawing}'
        cut = f'{sum(sample["logprob"].count(-math.inf) for sample in samples)} tokens'
    steps = steps_in_words(samples, way.unmasking, config)
    rate = total(samples, 'blanks') / result['seconds']
    time = f'{result["seconds"]:.2f} s, {rate:,.0f} tokens/s'
    mean = total(samples, 'nats') / total(samples, 'blanks')
    law = law_in_words(samples, config)
    return {
        'order': f'{order_in_words(order_text, way, config)}, {steps}',
        'stretches': stretches,
        'stop': stopped,
        'pattern': patterns_in_words(samples),
        'drawing': drawing,
        '-log p a token': f'{mean:.4f} nats, {mean / math.log(2):.4f} bits ({law})',
        'likeliest': law_of_likeliest(config),
        'cut off': cut,
        'time': f'{time} on {result["device"]} in {result["dtype"]}',
    }


def drawing_in_words(config):
    """Return in words how tokens were drawn."""
    said = f'temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}'
    for name in ('min_p', 'presence_penalty', 'cfg_scale'):
        if config[name]:
            said += f', {name} {config[name]:g}'
    return f'{said}, seed {config.seed}'


def law_of_likeliest(config):
    """Return in words which tokens were kept; '' if none were."""
    if not config.top_logprobs:
        return ''
    law = 'of temperature 1, before the argmax' if config.temperature == 0 else 'that draws'
    return f'{config.top_logprobs} of each place at most, in nats by the law {law}'


def order_in_words(order_text, way, config):
    """Return what the table calls the order."""
    if order_text == 'own':
        return way.order.name
    if way.unmasking.adaptive:
        return config.order
    return way.order.name_as(config.order)


def steps_in_words(samples, unmasking, config):
    """Return in words how many steps were made, and by which rule."""
    n_steps = max(sample['passes'] for sample in samples)
    if config.revise:
        n_steps = max(1 + max(sample['step']) for sample in samples)
    unit = 'steps'
    how = f'{config.schedule} schedule, {config.unmask}'
    threshold = getattr(unmasking, 'threshold', None)
    if threshold is not None:
        how = f'threshold {threshold:g}'
    if isinstance(unmasking, Lossless):
        unit = 'passes'
        rate = total(samples, 'blanks') / total(samples, 'passes')
        how = f'lossless with window {unmasking.window}: {rate:.1f} tokens a pass'
    if unmasking.block_length:
        how += f', blocks of {unmasking.block_length}'
    if config.revise:
        how += f', rounds of revision: {config.revise} at most, each scored in a pass of its own'
    n_blanks = max(sample['blanks'] for sample in samples)
    return f'{n_steps} {unit} for {n_blanks} tokens, {how}'


def patterns_in_words(samples):
    """Return the patterns of the samples, each once."""
    found = [text for sample in samples for *_, text in sample.get('patterns', ())]
    return ', '.join(f'{text:.200}' for text in dict.fromkeys(found))


def law_in_words(samples, config):
    """Return in words under which law the log-probabilities are."""
    law = 'this drawing' if config.score else 'untempered model'
    if config.presence_penalty and not config.score:
        law += ' with the penalty'
    if config.cfg_scale and not config.score:
        law += ' with guidance'
    if config.revise:
        law += ', each when it was last written: not of the text'
    if patterns_in_words(samples):
        law += ', given that the text matches its pattern'
    if config.allowed:
        law += ', of the tokens that are allowed'
    return law


def total(samples, key):
    return sum(sample[key] for sample in samples)


def write_page(samples, about, writer, config):
    """Write the page that replays the samples."""
    replay = importlib.import_module(REPLAY)
    title = replay.written_in_words(about['order'].partition(',')[0])
    if config.score:
        title = 'The text of the blanks, as it was scored'
    title = f'{title}\n{about["order"]}, {about["drawing"]}'
    if about['likeliest']:
        title += f'\nlikeliest tokens: {about["likeliest"]}'
    replay.write_replay(config.html, samples, writer.tokenizer, title, writer.columns)


def print_table(table):
    """Print the lines {name: value} that have a value."""
    print('---')
    for name, value in table.items():
        if value:
            print(f'{name:<16}{value}')
