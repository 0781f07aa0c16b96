"""
Write text with a trained model: any blanks, in any order, given or chosen by the model, some tokens or all of them at a time.

    python sample.py --ckpt=out/ckpt.pt
    python sample.py --ckpt=out/ckpt.pt --order=l2r --prompt='The return value is' --n_samples=3
    python sample.py --ckpt=out/ckpt.pt --prompt='If [[6]] is true, [[..]] is returned.' --order=margin --n_steps=16
    python sample.py --ckpt=out/ckpt.pt --prompt='The [[=quick]] brown [[=fox]]' --score
    python sample.py --ckpt=out/ckpt.pt --order=entropy --watch --html=replay.html

Blanks of a prompt: [[n]] is n tokens, [[..]] what is left of --length, [[=text]] a blank whose text --score measures; \\[[ is a plain [[.
<|endoftext|> is the token that ends a document.
"""
import json
import math
import time

from anyorder.checkpoint import Checkpoint
from anyorder.devices import autocast, resolve_device
from anyorder.fast import freeze, graphed
from anyorder.files import check_out, progress, replace_file
from anyorder.generation import (  # noqa: F401  (so that a program may take them from here)
    ADAPTIVE,
    check_drawing,
    check_order,
    check_policy,
    check_schedule,
    collect,
    generate,
    sample_tokens,
    write_samples,
)
from anyorder.judge import measure, open_judge
from anyorder.replay import REPLAYS, write_replay, written_in_words
from anyorder.watch import Watch, visible
from configurator import at_least, configure, one_line_errors, refuse_idle
from data.prompts import parse_prompts, prompt_file, read_prompts

# which model
ckpt = 'out/ckpt.pt'          # a checkpoint: a path, or hf:OWNER/REPO/path.pt
weights = 'ema'               # 'ema' or 'raw'
# what to write
prompt = ''                   # text with blanks; without one it is continued. FILE:path.jsonl has one "prompt" a line
length = 0                    # tokens of a sample, prompt included; 0 is the model's block_size
n_samples = 2                 # of each prompt
score = False                 # instead of writing: log-probability of the [[=text]] blanks under the order
# in which order, how many at a time
order = 'own'                 # 'own' (as trained), 'random', 'l2r', 'r2l', 'top_prob', 'margin', 'entropy' (its choice), or a JSON file
order_noise = 0.0             # noise on the scores by which the model chooses
order_noise_kind = 'gumbel'   # 'gumbel' or 'gaussian'
n_steps = 1024                # forward passes; with as many as tokens, or more, it is one token a step (unmask='fixed')
schedule = 'linear'           # tokens a step: 'linear' (equal) or 'cosine' (few first, many last)
unmask = 'fixed'              # 'fixed': as the schedule says; 'binomial': drawn, which with order='random' samples masked diffusion
threshold = None              # with top_prob or margin: reveal all that are at least this sure, instead of the schedule
# drawing
temperature = 1.0             # 0 takes the most likely token
top_k = 0                     # keep the k most likely tokens; 0 keeps all
top_p = 1.0                   # keep the most likely tokens that together reach this probability
use_cache = True              # keys and values of past slots are kept; False runs everything anew (slow; up to rounding the same text)
cuda_graphs = False           # on a GPU, for many steps with the cache: record one and launch it as one; not yet timed on one
seed = 1337                   # sample r is a function of seed + r alone, up to rounding: others want a seed further off than n_samples
# system
batch_size = 32               # samples at a time; less wants less memory
device = 'auto'               # 'cpu', 'cuda', 'cuda:1', ...
dtype = 'float32'             # 'float32', 'bfloat16' or 'auto'
out = ''                      # write samples, orders and log-probabilities to this JSON file; between batches each minute
html = ''                     # write a replay of the generation to this file: a page (.html), or one animated picture (.svg)
watch = False                 # redraw the first sample of each batch in the terminal as it is revealed
metrics = False               # entropy, distinct n-grams and repetition of what was written
judge = ''                    # with metrics: their left-to-right perplexity under a checkpoint or, with transformers installed, gpt2-large


def read_order(order):
    """The option `order`: a name as it is, of a JSON file its list of positions."""
    if order in ('own', 'random', 'l2r', 'r2l', *ADAPTIVE):
        return order
    try:
        with open(order, encoding='utf-8') as f:
            positions = json.load(f)
        if isinstance(positions, list) and all(type(p) is int for p in positions):
            return positions
    except (OSError, ValueError, RecursionError):
        pass
    raise ValueError(f'order must be own, random, l2r, r2l, {", ".join(ADAPTIVE)}, or a JSON file with a list of positions, got {order!r}')


def main(config):
    at_least(config, 1, 'n_samples', 'batch_size')
    refuse_idle(config, *['temperature', 'top_k', 'top_p'] * config.score, *['n_steps', 'schedule'] * (config.threshold is not None),
                *['order_noise_kind'] * (not config.order_noise))
    check_schedule(config.n_steps, config.schedule)
    check_drawing(config.temperature, config.top_k, config.top_p)
    order, prompts = read_order(config.order), read_prompts(config.prompt)
    policy = {name: config[name] for name in ('unmask', 'order_noise', 'order_noise_kind', 'threshold')}
    check_policy(order if config.order in ADAPTIVE else 'given', **policy)
    reads = config.ckpt, config.judge, config.order, prompt_file(config.prompt) or ''
    check_out('out', config.out, '.json', *reads)
    check_out('html', config.html, REPLAYS, *reads)
    if config.judge and not config.metrics:
        raise ValueError('judge goes with metrics: perplexity says little without entropy beside it')
    judged = open_judge(config.judge) if config.judge else None
    checkpoint = Checkpoint(config.ckpt)
    tokenizer, block_size, own = checkpoint.tokenizer, checkpoint.config.block_size, checkpoint.order
    order, order_name = (own, own['kind']) if order == 'own' else (order, config.order)
    if not 0 <= config.length <= block_size:
        raise ValueError(f'length must be 1 to block_size={block_size} (0: all of it), got {config.length}')
    parsed = [row for row in parse_prompts(prompts, tokenizer, config.length or block_size) for _ in range(config.n_samples)]
    if isinstance(order, list):
        for tokens, _, _ in parsed:
            check_order(order, len(tokens))
    if config.score and any(not a and not k for _, known, answer in parsed for k, a in zip(known, answer)):
        raise ValueError('score needs the text of every blank: write them as [[=text]]')
    n_blanks = sum(known.count(False) for _, known, _ in parsed)
    if not n_blanks:
        raise ValueError('there is no blank to write or score in the prompt')
    if config.unmask == 'fixed' and config.n_steps >= max(known.count(False) for _, known, _ in parsed):
        refuse_idle(config, 'schedule')   # one token a step
    device, dtype = resolve_device(config.device, config.dtype)
    model = checkpoint.model(config.weights, device)
    start = time.perf_counter()
    show, samples, saved = Watch(tokenizer) if config.watch else None, [], start
    result = {'config': config, 'iter_num': checkpoint.entries.get('iter_num'), 'tokenizer': tokenizer.name, 'order': order,
              'device': str(device), 'dtype': dtype, 'seconds': 0.0, 'metrics': {}, 'samples': samples}

    def write():
        if config.out:
            replace_file(config.out, json.dumps(result).encode())
    with progress(total=n_blanks, unit='token', leave=False, disable=config.watch) as bar, autocast(device, dtype):
        network = freeze(model) if config.use_cache else model
        if config.cuda_graphs:
            network = graphed(network)
        try:
            for first in range(0, len(parsed), config.batch_size):
                rows = [(tokens, known) for tokens, known, _ in parsed[first:first + config.batch_size]]

                def on_step(step, n_new, idx, trace, known=rows[0][1]):
                    bar.update(int(n_new.sum()))
                    if show:
                        steps = [-1 if k else None if s < 0 else s for s, k in zip(trace['step'][0].tolist(), known)]
                        show(idx[0, :len(known)].tolist(), steps, step, trace['logprob'][0].tolist())
                written = write_samples(network, rows, order, config.seed + first, config.n_steps, on_step=on_step,
                                        forced=config.score, **policy, **{name: config[name] for name in (
                                            'schedule', 'temperature', 'top_k', 'top_p', 'use_cache')})
                samples += [{'prompt': prompts[r // config.n_samples], 'seed': config.seed + r} | sample
                            for r, sample in enumerate(collect(*written, tokenizer), first)]
                result['seconds'] = time.perf_counter() - start - (show.waited if show else 0)
                if time.perf_counter() - saved > 60:   # what a killed run leaves
                    saved = time.perf_counter()
                    write()
        finally:   # an error or Ctrl-C, now or while a judge reads, loses nothing
            if samples:
                write()
    about, seconds = describe(samples, config, order_name), result['seconds']
    for r, s in enumerate(samples):
        each = f"{s['nats']:.3f} nats, {s['nats'] / math.log(2):.3f} bits in {s['blanks']} tokens"
        print(f"--- sample {r} (seed {s['seed']}), -log p = {each}\n{visible(s['text'])}", flush=True)
    if config.html:
        title = 'The text of the blanks, as it was scored' if config.score else written_in_words(order_name)
        write_replay(config.html, samples, tokenizer, f"{title}\n{about['order']}, {about['drawing']}")
    lines = {}
    if config.metrics:
        result['metrics'], lines = measure(samples, tokenizer, judged, config.judge, device, config.n_samples if len(prompts) > 1 else 1)
        write()
    table = {'checkpoint': checkpoint.about(config.weights),
             'model': f'{model.n_parameters():,} parameters, {block_size} positions, {tokenizer.name} tokens', **about,
             'time': f'{seconds:.2f} s, {n_blanks / seconds:,.0f} tokens/s on {device} in {dtype}', **lines,
             'written': config.out, 'page': config.html}
    print('\n'.join(['---', *(f'{name:<16}{value}' for name, value in table.items() if value)]))


def describe(samples, config, order):
    """Lines of the table on how the samples were made."""
    n_steps = max(len({*s['step']} - {-1}) for s in samples)
    mean = sum(s['nats'] for s in samples) / sum(s['blanks'] for s in samples)
    how = f'{config.schedule} schedule, {config.unmask}' if config.threshold is None else f'threshold {config.threshold:g}'
    return {'order': f'{order}, {n_steps} steps for {max(s["blanks"] for s in samples)} tokens, {how}',
            'drawing': 'the text of the blanks was scored' if config.score else
                       f'temperature {config.temperature:g}, top_k {config.top_k}, top_p {config.top_p:g}, seed {config.seed}',
            '-log p a token': f'{mean:.4f} nats, {mean / math.log(2):.4f} bits (untempered model)'}


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
