"""
Write text with a trained model: any blanks, in any order, given or chosen by the model, one token or many at a time.

    python sample.py --ckpt=out/ckpt.pt
    python sample.py --ckpt=out/ckpt.pt --order=l2r --prompt='The return value is' --n_samples=3
    python sample.py --ckpt=out/ckpt.pt --prompt='If [[6]] is true, [[..]] is returned.' --order=margin --n_steps=16
    python sample.py --ckpt=out/ckpt.pt --prompt='The [[=quick]] brown [[=fox]]' --score
    python sample.py --ckpt=out/ckpt.pt --order=entropy --watch --html=replay.html
    python sample.py --ckpt=out/ckpt.pt --order=random --unmask=lossless --watch --html=drafts.html

Blanks of a prompt: [[n]] is n tokens, [[..]] what is left of --length, [[=text]] a blank whose text --score measures.
A plain [[ is written \\[[.
<|endoftext|> is the token that ends a document.
"""
from configurator import at_least, one_line_errors, read_options

# which model
ckpt = 'out/ckpt.pt'          # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'               # 'ema' or 'raw'
# what to write
prompt = ''                   # text with blanks; without one it is continued. FILE:path.jsonl has one "prompt" a line
length = 0                    # tokens of a sample, prompt included; 0 is the model's block_size
n_samples = 2                 # of each prompt
score = False                 # instead of writing: log-probability of the [[=text]] blanks under the order
# in which order, how many at a time
order = 'own'                 # 'own' (as trained), 'random', 'l2r', 'r2l', 'fixed', 'block', 'swaps', or as 'block:8'
                              # with a number of its own; a JSON file with a list of positions; or the model's choice:
                              # 'top_prob', 'margin', 'entropy', see anyorder/generation.py
order_noise = 0.0             # noise on the scores by which the model chooses
order_noise_kind = 'gumbel'   # 'gumbel' or 'gaussian'
n_steps = 1024                # forward passes; with as many as tokens, or more, it is one token a step (unmask='fixed')
schedule = 'linear'           # tokens a step: 'linear' (equal) or 'cosine' (few first, many last)
unmask = 'fixed'              # 'fixed': as the schedule says; 'binomial': drawn, with order='random' masked diffusion;
                              # 'lossless': one token a step in fewer passes; n_steps and schedule are not used
window = 32                   # lossless: tokens that a pass drafts or checks; the text is that of any other window
threshold = None              # with top_prob or margin: reveal all that are at least this sure, instead of the schedule
# drawing
temperature = 1.0             # 0 takes the most likely token
top_k = 0                     # keep the k most likely tokens; 0 keeps all
top_p = 1.0                   # keep the most likely tokens that together reach this probability
use_cache = True              # keep keys and values of past slots; False is slow, and up to rounding the same
cuda_graphs = False           # on a GPU: launch a step as one; for many steps with the cache, not yet timed
seed = 1337                   # sample r is a function of seed + r alone: others want a seed further off than n_samples
# system
batch_size = 32               # samples at a time; less wants less memory
device = 'auto'               # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'             # 'float32', 'bfloat16' or 'auto'
out = ''                      # write samples, orders, log-probabilities and drafts to this JSON file, also each minute
html = ''                     # write a replay to this file: a page (.html), or one animated picture (.svg), which has
                              # no drafts
watch = False                 # redraw the first sample of each batch in the terminal as it is revealed
metrics = False               # entropy, distinct n-grams and repetition of what was written
judge = ''                    # with metrics: left-to-right perplexity under a checkpoint, or gpt2-large

if __name__ == '__main__':   # the options are read before the imports below, which take seconds
    options = read_options(globals(), ckpt=())

import json
import math
import time

from anyorder.canvas import Canvas
from anyorder.checkpoint import Checkpoint
from anyorder.devices import autocast, resolve_device
from anyorder.drafts import Drafts
from anyorder.fast import freeze, graphed
from anyorder.files import check_out, progress, replace_file
from anyorder.generation import (  # noqa: F401  (a program may take generate and sample_tokens from here)
    SCORES,
    Drawing,
    Unmasking,
    fill,
    generate,
    sample_tokens,
)
from anyorder.judge import measure, open_judge
from anyorder.orders import check_order, order_of, read_order
from anyorder.replay import REPLAYS, write_replay, written_in_words
from anyorder.watch import Watch, visible
from data.prompts import parse_prompts, prompt_file, read_prompts


def check_files(config):
    reads = config.ckpt, config.judge, config.order, prompt_file(config.prompt) or ''
    check_out('out', config.out, '.json', *reads)
    check_out('html', config.html, REPLAYS, *reads)
    if config.judge and not config.metrics:
        raise ValueError('judge goes with metrics: perplexity says little without entropy beside it')


def read_texts(prompts, order, tokenizer, block_size, config):
    """[(prompt, tokens, known)], a text for each sample. Raises ValueError for one that fits neither order nor task."""
    if not 0 <= config.length <= block_size:
        raise ValueError(f'length must be 1 to block_size={block_size} (0: all of it), got {config.length}')
    parsed = parse_prompts(prompts, tokenizer, config.length or block_size)
    for n in {len(tokens) for tokens, _, _ in parsed}:
        check_order(order, n, block_size)   # before anything is written
    if config.score and any(not k and not a for _, known, answer in parsed for k, a in zip(known, answer)):
        raise ValueError('score needs the text of every blank: write them as [[=text]]')
    if all(all(known) for _, known, _ in parsed):
        raise ValueError('there is no blank to write or score in the prompt')
    texts = [(prompt, tokens, known) for prompt, (tokens, known, _) in zip(prompts, parsed)]
    return [text for text in texts for _ in range(config.n_samples)]


def write_all(network, texts, order, unmasking, drawing, tokenizer, result, config):
    """Write the texts, in batches, and append the samples to result['samples']. Sample r is a function of seed + r.

    The samples are those of Canvas, with prompt, seed and, if they were written losslessly, drafts, see Drafts.rows."""
    start = saved = time.perf_counter()
    n_blanks, show = sum(known.count(False) for _, _, known in texts), Watch(tokenizer) if config.watch else None
    try:
        with progress(total=n_blanks, unit='token', leave=False, disable=config.watch) as bar:
            for first in range(0, len(texts), config.batch_size):
                batch = [(tokens, known) for _, tokens, known in texts[first:first + config.batch_size]]

                canvas = Canvas.of_texts(batch, order, config.seed + first, network.lm_head.weight.device)
                drafts = Drafts(canvas) if unmasking.lossless and (config.out or config.html or config.watch) else None

                def on_step(step, n_new, part, known=batch[0][1], drafts=drafts):
                    bar.update(int(n_new.sum()))
                    if drafts:
                        drafts(step, part)
                    if show and part.rows[0] == 0:
                        steps = [-1 if k else None if s < 0 else s for s, k in zip(part.step[0].tolist(), known)]
                        show(part.idx[0, :len(known)].tolist(), steps, step, part.logprob[0].tolist(),
                             drafts and drafts.rows[0])
                fill(network, canvas, unmasking, drawing, config.use_cache, on_step=on_step)
                for r, sample in enumerate(canvas.samples(tokenizer)):
                    about = {'prompt': texts[first + r][0], 'seed': config.seed + first + r}
                    result['samples'].append(about | sample | ({'drafts': drafts.rows[r]} if drafts else {}))
                result['seconds'] = time.perf_counter() - start - (show.waited if show else 0)
                if time.perf_counter() - saved > 60:   # what a killed run leaves
                    saved = time.perf_counter()
                    save(result, config)
    finally:   # an error or Ctrl-C, now or while a judge reads, loses nothing
        save(result, config)


def save(result, config):
    if config.out and result['samples']:
        replace_file(config.out, json.dumps(result).encode())


def print_samples(samples):
    for r, s in enumerate(samples):
        size = f"{s['nats']:.3f} nats, {s['nats'] / math.log(2):.3f} bits in {s['blanks']} tokens"
        print(f"--- sample {r} (seed {s['seed']}), -log p = {size}\n{visible(s['text'])}", flush=True)


def describe(samples, order, config):
    """Lines of the table on how the samples were made."""
    n_steps, n_blanks = max(s['passes'] for s in samples), max(s['blanks'] for s in samples)
    mean = sum(s['nats'] for s in samples) / sum(s['blanks'] for s in samples)
    how, steps = f'{config.schedule} schedule, {config.unmask}', 'steps'
    if config.threshold is not None:
        how = f'threshold {config.threshold:g}'
    if config.unmask == 'lossless':
        rate = sum(s['blanks'] for s in samples) / sum(s['passes'] for s in samples)
        how, steps = f'lossless with window {config.window}: {rate:.1f} tokens a pass', 'passes'
    drawing = f'temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}, seed {config.seed}'
    return {'order': f'{order}, {n_steps} {steps} for {n_blanks} tokens, {how}',
            'drawing': 'the text of the blanks was scored' if config.score else drawing,
            '-log p a token': f'{mean:.4f} nats, {mean / math.log(2):.4f} bits (untempered model)'}


def main(config):
    # the plan
    at_least(config, 1, 'n_samples', 'batch_size')
    order, policy = read_order(config.order, 'own', *SCORES), 'given'
    if config.order in SCORES:
        order, policy = 'random', order   # of equal scores the first in a random order is the best
    unmasking = Unmasking(config.n_steps, config.schedule, policy, config.unmask, config.order_noise,
                          config.order_noise_kind, config.threshold, config.window)
    drawing = None if config.score else Drawing(config.temperature, config.top_k, config.top_p)
    if config.cuda_graphs and not config.use_cache:
        raise ValueError('cuda_graphs is for a decoder with a cache on a GPU: use_cache is False')
    prompts = read_prompts(config.prompt)
    check_files(config)
    judge = open_judge(config.judge) if config.judge else None
    checkpoint = Checkpoint(config.ckpt)
    unmasking.check_network(checkpoint.config.slots)
    tokenizer, block_size = checkpoint.tokenizer, checkpoint.config.block_size
    visits = order_of(checkpoint.run, None if order == 'own' else order)
    texts = read_texts(prompts, visits, tokenizer, block_size, config)

    # the work
    device, dtype = resolve_device(config.device, config.dtype)
    model = checkpoint.model(config.weights, device)
    samples = []
    result = {'config': config, 'iter_num': checkpoint.entries.get('iter_num'), 'tokenizer': tokenizer.name,
              'order': order if isinstance(order, list) else visits if order == 'own' else config.order,
              'device': str(device), 'dtype': dtype, 'seconds': 0.0, 'metrics': {}, 'samples': samples}
    with autocast(device, dtype):
        network = freeze(model) if config.use_cache else model
        network = graphed(network) if config.cuda_graphs else network
        write_all(network, texts, visits, unmasking, drawing, tokenizer, result, config)
    print_samples(samples)

    # the table
    order_name, lines = visits['kind'] if order == 'own' else config.order, {}
    about = describe(samples, order_name, config)
    if config.html:
        title = 'The text of the blanks, as it was scored' if config.score else written_in_words(order_name)
        write_replay(config.html, samples, tokenizer, f"{title}\n{about['order']}, {about['drawing']}")
    if config.metrics:
        group = config.n_samples if len(prompts) > 1 else 1
        result['metrics'], lines = measure(samples, tokenizer, judge, device, group)
        save(result, config)
    size = f'{model.n_parameters():,} parameters, {block_size} positions, {tokenizer.name} tokens'
    rate = f"{result['seconds']:.2f} s, {sum(s['blanks'] for s in samples) / result['seconds']:,.0f} tokens/s"
    table = {'checkpoint': checkpoint.about(config.weights), 'model': size, **about,
             'time': f'{rate} on {device} in {dtype}', **lines, 'written': config.out, 'page': config.html}
    print('\n'.join(['---', *(f'{name:<16}{value}' for name, value in table.items() if value)]))


if __name__ == '__main__':
    with one_line_errors():
        main(options)
