"""Write text with a trained model: any blanks, in any order, given or chosen by the model, one token or many at a time.

    python sample.py --ckpt=out/ckpt.pt
    python sample.py --ckpt=out/ckpt.pt --order=l2r --prompt='Example:\\n\\nThe return value is' --n_samples=3
    python sample.py --ckpt=out/ckpt.pt --prompt='If [[6]] is true, [[..]] is returned.' --order=margin --n_steps=16
    python sample.py --ckpt=out/ckpt.pt --prompt='The [[?]] brown fox jumps over [[2-12]] dog.' --blank_length=draw
    python sample.py --ckpt=out/ckpt.pt --prompt='The [[=quick]] brown [[=fox]]' --score
    python sample.py --ckpt=out/ckpt.pt --order=entropy --watch --html=replay.html
    python sample.py --ckpt=out/ckpt.pt --order=random --unmask=lossless --watch --html=drafts.html
    python sample.py --ckpt=out/ckpt.pt --order=l2r --length=3000 --stop='<|endoftext|>'
    python sample.py --ckpt=out/digits/ckpt.pt --prompt_file=half.npy --n_samples=1 --out=filled.npy

Blanks of a prompt: [[n]] is n tokens, [[2-12]] of 2 to 12 as many as fit best between the texts around it, [[?]] of
1 to 32 likewise; [[..]] is what is left of --length; [[=text]] a blank whose text --score measures. A plain [[ is written \\[[.
Where the token of a word begins with its space, as GPT-2's, write no space before a blank: The[[2]] fox. In The
[[=quick]] fox the space goes into the blank.
<|endoftext|> is the token that ends a document. Tokens that are no text have their names, with blanks between them."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least

# options that stay as typed, see configurator.py
TEXTS = ('prompt', 'stop')

# fmt: off
# which model
ckpt = 'out/ckpt.pt'          # a checkpoint, or a folder of export_hf.py: a path, or hf:OWNER/REPO[/path.pt];
                              # masked:FOLDER is a masked model of others, as LLaDA or BERT
weights = 'ema'               # 'ema' or 'raw'
# what to write
prompt = ''                   # text with blanks; without one it is continued; \n is a line end, \\n the letters \n.
                              # FILE:path.jsonl has one "prompt" a line, and \n as JSON has it
prompt_file = ''              # prompts of a file: such a .jsonl, or rows of integers, -1 for a blank: .npy, .jsonl
length = 0                    # tokens of a sample, prompt included; 0 is the model's block_size. A longer text is
                              # written stretch by stretch, each in the order and given the text before it
context = 0                   # for a longer text: tokens that a new stretch reads before its first blank; 0 is half of
                              # block_size. More costs time: 1 + context / (block_size - context) slots a token
stop = ''                     # [[..]] ends with this text, \n as in `prompt`, or with the first of a JSON list,
                              # '["\n\n", "END"]', and what stands behind it follows; a sample without [[..]] ends with
                              # it. In other orders than left to right what is written behind it is cut
blank_length = 'likely'       # how a [[?]] finds its length, by p(text behind it | text before it, gap of n) x prior:
                              # 'likely', the largest; 'draw', one drawn by these probabilities; or 'confidence', by the
                              # mean of the gap's largest probabilities at the first step (CAL) x prior
length_prior = 'uniform'      # of the lengths of a [[?]]; 'words': as the words of the training set have, each with the
                              # blank before it; or a JSON file, a list of the weights of the lengths 1, 2, ...
n_samples = 2                 # for each prompt
score = False                 # instead of writing: log-probability with which these options write the text of the
                              # [[=text]] blanks. What top_k or top_p cuts off has probability 0
# in which order, how many at a time
order = 'own'                 # 'own' (as trained);
                              # anyorder/orders.py:ORDERS,
                              # or with a number of its own, as 'block:8'; a JSON file of positions; FILE.py:NAME, a
                              # function; or the model's choice by its scores: anyorder/generation/unmasking.py:SCORES
order_noise = 0.0             # scale of the Gumbel noise on the scores by which the model chooses
n_steps = 1024                # forward passes of a stretch; with as many as tokens, or more, one token a step
schedule = 'linear'           # tokens a step: 'linear' (equal) or 'cosine' (few first, many last)
unmask = 'fixed'              # 'fixed': as the schedule says; 'binomial': drawn, with order='random' masked diffusion;
                              # 'lossless': one token a step in fewer passes; n_steps and schedule are not used
window = 32                   # lossless: tokens that a pass drafts or checks; every window writes the same text
threshold = None              # with top_prob or margin: reveal all that are at least this sure, instead of the schedule
block_length = None           # the model chooses in blocks of so many blanks, from left to right; a step each at least
revise = 0                    # rounds, at most: the eighth of the text that fits the rest least is written again
# drawing
temperature = 1.0             # 0 takes the most likely token
top_k = 0                     # keep the k most likely tokens; 0 keeps all
top_p = 1.0                   # keep the most likely tokens that together reach this probability
allowed = ''                  # which tokens may stand where: a .npy file of bool (positions, tokens of the vocabulary).
                              # All probabilities follow the law that is renormalised to these tokens
use_cache = True              # keep keys and values of past slots; False is slow, and up to rounding the same
cuda_graphs = False           # on a GPU: launch a step as one; for many steps with the cache, not yet timed
seed = 1337                   # sample r is a function of seed + r; other samples want a seed that differs by n_samples
# system
batch_size = 32               # samples at a time; less wants less memory
device = 'auto'               # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'             # 'float32', 'bfloat16' or 'auto'
out = ''                      # write samples, orders, log-probabilities and drafts to this JSON file, also each minute.
                              # An .npy or .jsonl gets the tokens of the samples alone, as rows. log 0 is null. A link
                              # stays, here as for every file of results, and what it leads to is written
html = ''                     # write a page to this file (.html) that replays the samples
watch = False                 # redraw the first sample of each batch in the terminal as it is revealed
metrics = False               # entropy, distinct n-grams and repetition of what was written
judge = ''                    # with metrics: left-to-right perplexity under a checkpoint, or gpt2-large
# fmt: on

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    # ckpt must be a checkpoint that is there
    options = read_options(globals(), ckpt=())

import io
import json
import math
import time

import numpy as np

from anyorder.generation import Drawing, generate, sample_tokens, unmasking_of  # noqa: F401  (two for programs)
from anyorder.generation.way import Page, Way, order_and_policy
from anyorder.likelihood.judge import measure, open_judge
from anyorder.likelihood.lengths import said
from anyorder.machine.files import check_out, plain_json, reading, replace_file
from anyorder.machine.terminal import progress
from anyorder.orders import Order
from anyorder.pictures.replay import check_page, write_replay, written_in_words
from anyorder.pictures.texts import shown_text
from anyorder.pictures.watch import Watch, visible
from anyorder.tokens.prompts import prompts_path, read_prompts, typed
from anyorder.writer import Writer, as_rows

SAVED_EVERY = 60  # seconds: what a killed run loses
# options that say which blanks a step reveals
UNMASKING_OPTIONS = (
    'n_steps',
    'schedule',
    'unmask',
    'order_noise',
    'threshold',
    'window',
    'block_length',
    'revise',
)


def main(config):
    # Check the options before a file is read
    at_least(config, 1, 'n_samples', 'batch_size')
    order_text, policy = order_and_policy(config.order, config.block_length)
    unmasking = unmasking_of(policy=policy, **{name: config[name] for name in UNMASKING_OPTIONS})
    drawing = Drawing(config.temperature, config.top_k, config.top_p, config.score)
    prompts = read_prompts(config.prompt, config.prompt_file)
    check_files(config)

    # Open the model
    page = read_page(config)
    writer = Writer(
        config.ckpt,
        config.weights,
        device=config.device,
        dtype=config.dtype,
        use_cache=config.use_cache,
        cuda_graphs=config.cuda_graphs,
    )
    judge = open_judge(config.judge, writer.tokenizer) if config.judge else None
    way = Way(Order.of(order_text, writer.checkpoint.run), unmasking, drawing)
    page = writer.with_decoded_stops(page)

    # Lay the prompts out on the page; lengths of [[?]] may ask the model
    lengths = writer.lengths(page)
    templates = writer.templates(prompts, way, page)
    n_parameters = writer.model.n_parameters()
    texts = writer.lay_out(repeat_each(templates, config.n_samples), config.seed, lengths)

    # Write
    result = {
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
    write_all(writer, repeat_each(prompts, config.n_samples), texts, way, page, result, config)
    samples = result['samples']
    for r, sample in enumerate(samples):
        print_sample(r, sample, writer, config)

    # Say how
    order_name = order_in_table(order_text, policy, way, config)
    about = describe(samples, order_name, page.stop, config)
    if config.html:
        title = written_in_words(order_name)
        if config.score:
            title = 'The text of the blanks, as it was scored'
        title = f'{title}\n{about["order"]}, {about["drawing"]}'
        write_replay(config.html, samples, writer.tokenizer, title, writer.columns)
    metrics = {}
    if config.metrics:
        # of several prompts, each has n_samples that follow each other
        n_alike = config.n_samples if len(prompts) > 1 else 1
        result['metrics'], metrics = measure(
            samples, writer.tokenizer, judge, writer.device, n_alike
        )
        save(result, config)
    size = f'{n_parameters:,} parameters, {writer.block_size} positions'
    print_table(
        {
            'checkpoint': writer.checkpoint.about(config.weights),
            'model': f'{size}, {writer.tokenizer.name} tokens',
            **about,
            'time': f'{rate_in_words(result)} on {writer.device} in {writer.dtype}',
            **metrics,
            'written': config.out,
            'page': config.html,
        }
    )


def check_files(config):
    """Raise ValueError for a file that cannot be written, or that the run reads."""
    inputs = (
        config.ckpt,
        config.judge,
        config.order,
        config.allowed,
        config.length_prior,
        prompts_path(config.prompt, config.prompt_file) or '',
    )
    check_out('out', config.out, '.json, .npy, .jsonl', *inputs)
    check_page(config.html, *inputs)
    if config.judge and not config.metrics:
        raise ValueError(
            'judge goes with metrics: perplexity says little without entropy beside it'
        )


def read_page(config):
    """Return the Page that the options describe."""
    allowed = None
    if config.allowed:
        with reading(config.allowed, 'a bool array', 'write it with numpy.save'):
            allowed = np.load(config.allowed, allow_pickle=False)[:]  # which an .npz refuses
    return Page(
        config.length,
        config.context,
        parse_stop(config.stop),
        config.blank_length,
        config.length_prior,
        allowed,
    )


def parse_stop(stop):
    """Return the list that `stop` is in JSON, or the text itself, see `typed`."""
    if not stop.startswith(('["', '[]')):
        return typed(stop)
    with reading(f'--stop={stop}', 'a JSON list', """write it as '["a", "b"]'"""):
        return json.loads(stop)


def order_in_result(order_text, way, config):
    """Return what the file of results says of the order: all of it, if the option leaves it open."""
    if order_text == 'own':
        return way.order.entries
    if isinstance(order_text, list):  # the positions of a file
        return order_text
    return config.order


def order_in_table(order_text, policy, way, config):
    """Return what the table calls the order."""
    if order_text == 'own':
        return way.order.name
    if policy == 'given':
        return way.order.name_as(config.order)
    return config.order


def repeat_each(things, n):
    """Return n times the first of the things, then n times the second, and so on."""
    return [thing for thing in things for _ in range(n)]


def write_all(writer, prompts, texts, way, page, result, config):
    """Write the texts of the prompts in batches, and append the samples to result['samples'].

    Samples are the dicts of Scroll.samples, with prompt and seed. Sample r is a function of
    seed + r."""
    show = Watch(writer.tokenizer, columns=writer.columns) if config.watch else None
    with_drafts = way.unmasking.rewrites and bool(config.out or config.html or config.watch)
    n_blanks = sum(known.count(False) for _, known, *_ in texts)
    samples = result['samples']
    start = time.perf_counter()
    saved = start
    try:
        with progress(total=n_blanks, unit='token', leave=False, disable=config.watch) as bar:
            for scroll in writer.scrolls(texts, config.seed, config.batch_size, page):
                for n_new in writer.write(scroll, way, with_drafts):
                    bar.update(n_new)
                    seen = scroll.first() if show else None
                    if seen:
                        show(*seen)
                for r, sample in enumerate(scroll.samples(), len(samples)):
                    samples.append({'prompt': prompts[r], 'seed': config.seed + r} | sample)
                result['seconds'] = time.perf_counter() - start
                if show:  # it slows the writing down for the eye
                    result['seconds'] -= show.waited
                if time.perf_counter() - saved > SAVED_EVERY:
                    saved = time.perf_counter()
                    save(result, config)
    finally:  # an error or Ctrl-C, now or while a judge reads, loses nothing
        save(result, config)


def save(result, config):
    """Write the result to the file `out`, in the form of its ending."""
    if not config.out or not result['samples']:
        return
    data = io.BytesIO()
    if config.out.endswith('.npy'):
        np.save(data, as_rows(result['samples']))
    elif config.out.endswith('.jsonl'):
        lines = map(plain_json, as_rows(result['samples']).tolist())
        data.write('\n'.join(lines).encode())
    else:
        data.write(plain_json(result).encode())
    replace_file(config.out, data.getvalue())


def print_sample(r, sample, writer, config):
    """Print the text of a sample below a line that says how likely it was."""
    what = 'sum of -log p as last written' if config.revise else '-log p'
    nats = f'{sample["nats"]:.3f} nats, {sample["nats"] / math.log(2):.3f} bits'
    about = ''.join(f', {said(length)}' for length in sample.get('lengths', ()))
    text = visible(shown_text(sample['tokens'], writer.tokenizer, writer.columns))
    size = f'{sample["blanks"]} tokens'
    print(f'--- sample {r} (seed {sample["seed"]}), {what} = {nats} in {size}{about}')
    print(text, flush=True)


def describe(samples, order, stops, config):
    """Return the lines of the table on how the samples were made."""
    longest = max(samples, key=lambda sample: len(sample['tokens']))
    stretches = ''
    if 'stretches' in longest:
        stretches = f'{len(longest["stretches"])} for {len(longest["tokens"])} tokens'
    stopped = ''
    if stops:
        n_stopped = sum(sample.get('stopped', False) for sample in samples)
        names = ' or '.join(map(repr, stops))
        stopped = f'{n_stopped} of {len(samples)} texts stopped at {names}'
    drawing = (
        f'temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}, '
        f'seed {config.seed}'
    )
    cut = ''
    if config.score:
        drawing = f'the text of the blanks was scored under {drawing}'
        cut = f'{sum(sample["logprob"].count(-math.inf) for sample in samples)} tokens'
    mean = total(samples, 'nats') / total(samples, 'blanks')
    law = law_in_words(config)
    return {
        'order': f'{order}, {steps_in_words(samples, config)}',
        'stretches': stretches,
        'stop': stopped,
        'drawing': drawing,
        '-log p a token': f'{mean:.4f} nats, {mean / math.log(2):.4f} bits ({law})',
        'cut off': cut,
    }


def steps_in_words(samples, config):
    """Return in words how many steps were made, and by which rule."""
    if config.revise:
        n_steps = max(1 + max(sample['step']) for sample in samples)
    else:
        n_steps = max(sample['passes'] for sample in samples)
    unit = 'steps'
    how = f'{config.schedule} schedule, {config.unmask}'
    if config.threshold is not None:
        how = f'threshold {config.threshold:g}'
    if config.unmask == 'lossless':
        unit = 'passes'
        rate = total(samples, 'blanks') / total(samples, 'passes')
        how = f'lossless with window {config.window}: {rate:.1f} tokens a pass'
    if config.block_length:
        how += f', blocks of {config.block_length}'
    if config.revise:
        how += f', rounds of revision: {config.revise} at most, each scored in a pass of its own'
    n_blanks = max(sample['blanks'] for sample in samples)
    return f'{n_steps} {unit} for {n_blanks} tokens, {how}'


def law_in_words(config):
    """Return in words under which law the log-probabilities are."""
    law = 'this drawing' if config.score else 'untempered model'
    if config.revise:
        law += ', each when it was last written: not of the text'
    if config.allowed:
        law += ', of the tokens that are allowed'
    return law


def rate_in_words(result):
    rate = total(result['samples'], 'blanks') / result['seconds']
    return f'{result["seconds"]:.2f} s, {rate:,.0f} tokens/s'


def total(samples, key):
    return sum(sample[key] for sample in samples)


def print_table(table):
    """Print the lines {name: value} that have a value."""
    print('---')
    for name, value in table.items():
        if value:
            print(f'{name:<16}{value}')


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
