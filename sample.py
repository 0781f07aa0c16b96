"""Write text with a trained model: any blanks, in any order, one token or many at a time.

    python sample.py --ckpt=out/ckpt.pt
    python sample.py --ckpt=out/ckpt.pt --prompt='If [[6]] is true, [[..]].' --order=margin
    python sample.py --ckpt=out/ckpt.pt --prompt='The [[=quick]] brown [[=fox]]' --score
    python sample.py --ckpt=out/ckpt.pt --order=random --unmask=lossless --watch --html=page.html
    python sample.py --ckpt=out/digits/ckpt.pt --prompt=FILE:half.npy --n_samples=1 --out=filled.npy

Blanks of a prompt: [[n]] is n tokens; [[?]] or [[2-12]] as many as fit best; [[/P/]], [[n/P/]] or
[[2-12/P/]] match a regular expression P; [[..]] what is left of --length; [[=text]] a blank whose
text --score measures. docs/sampling.md says what options mean."""

from anyorder.machine.terminal import one_line_errors, read_options
from configurator import at_least, home

# options that stay as typed, see configurator.py
TEXTS = ('prompt', 'pattern', 'stop')

# which model
ckpt = 'out/ckpt.pt'  # a path, a folder of the hub, hf:OWNER/REPO[/path.pt] or masked:FOLDER
weights = 'ema'  # 'ema' or 'raw'
# what to write
prompt = ''  # text with blanks, \n a line end; or FILE:prompts.jsonl, FILE:rows.npy
pattern = ''  # of the whole text: a regular expression
length = 0  # tokens of a text, prompt included; 0 is the model's block_size
context = 0  # of a longer text: what a stretch reads before its first blank; 0 is block_size / 2
stop = ''  # text, or a JSON list of texts, with which [[..]] or the sample ends
blank_length = 'likely'  # of a [[?]]: 'likely', the likeliest; 'draw', by the probabilities
n_samples = 2  # for each prompt
score = False  # do not write: score the text of [[=text]] blanks
# in which order, how many at a time; order may be a rule, anyorder/generation/rules.py:RULES
order = 'own'  # own, anyorder/orders.py:ORDERS, anyorder/generation/scores.py:SCORES, FILE.py:NAME
n_steps = 1024  # forward passes of a stretch; as many as tokens is one token a step
schedule = 'linear'  # tokens a step: 'linear' (equal) or 'cosine' (few first, many last)
unmask = 'fixed'  # by schedule; 'binomial', drawn; 'lossless', the text of lossless:1 in few passes
revise = 0  # rounds, at most, in which the eighth of the text that fits least is written again
# drawing
temperature = 1.0  # 0 takes the most likely token
top_k = 0  # keep the k most likely tokens; 0 keeps all
top_p = 1.0  # keep the most likely tokens that together reach this probability
min_p = 0.0  # keep tokens of at least this share of the largest probability; 0 keeps all
presence_penalty = 0.0  # nats by which tokens that stand in the text already become less likely
cfg_scale = 0.0  # guidance: above 0 the prompt weighs more; a step then costs two passes
allowed = ''  # which tokens may stand where: a .npy file of bool (positions, tokens)
seed = 1337  # sample r is a function of seed + r
# system
batch_size = 32  # samples at a time; less wants less memory
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'float32'  # 'float32', 'bfloat16' or 'auto'
out = ''  # a file for the samples: .json, or for their tokens alone .npy, .jsonl
html = ''  # a page (.html) that replays the samples
watch = False  # redraw the first sample of each batch in the terminal
top_logprobs = 0  # of each token so many likeliest of the law that wrote it
metrics = ''  # 'text': entropy and repetition; a checkpoint or gpt2-large: its perplexity too

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import json
import re
import time
from pkgutil import resolve_name

import numpy as np

from anyorder.generation import generate, sample_tokens  # noqa: F401  (for programs)
from anyorder.generation.way import Way
from anyorder.machine.files import check_out, read_text, reading
from anyorder.report import (
    AROUND,
    JUDGE,
    WATCH,
    begin_result,
    facts,
    print_samples,
    print_table,
    save,
    write_page,
)
from anyorder.writer import PAGE, Writer

SAVED_EVERY = 60  # seconds


def main(config):
    # Check what is typed, before a model is fetched
    at_least(config, 1, 'n_samples', 'batch_size')
    prompts = read_prompts(config.prompt)
    options = options_of_writing(config)
    # raises for what no run, here {}, could serve; the way of the checkpoint's run comes below
    Way.of({}, **{name: value for name, value in options.items() if name not in PAGE})
    judge_name = config.metrics if config.metrics != 'text' else ''
    check_files(config, judge_name)

    # Open the model, and lay the prompts out
    writer = Writer(config.ckpt, config.weights, config.device, config.dtype)
    way, page = writer.way_and_page(None, None, options)
    judge = None
    if judge_name:
        judge = resolve_name(JUDGE).open_judge(judge_name, writer.tokenizer)
    numbers = np.repeat(range(len(prompts)), config.n_samples).tolist()
    texts = writer.read(prompts, way, page, config.seed, numbers)

    # Write
    result = begin_result(writer, way, config)
    write_all(writer, [prompts[i] for i in numbers], texts, way, result, config)

    # Say what was written, and how
    samples = result['samples']
    print_samples(samples, writer, config)
    about = facts(result, writer, way, page)
    if config.html:
        write_page(samples, about, writer, config)
    if config.metrics:
        # of several prompts, each has n_samples that follow each other
        n_each = config.n_samples if len(prompts) > 1 else 1
        measure = resolve_name(JUDGE).measure
        result['metrics'], lines = measure(samples, writer.tokenizer, judge, writer.device, n_each)
        about |= lines
    save(result, config.out)
    print_table(about | {'written': config.out, 'page': config.html})


def read_prompts(prompt):
    """Return the prompts of an option, [prompt], or of the file that it names.

    A prompt is a text, see typed, or a row of tokens. A .jsonl has a "prompt" or a row on each
    line, an .npy has rows."""
    path = prompts_path(prompt)
    if path is None:
        return [typed(prompt)]
    if not path.endswith('.npy'):
        prompts = read_lines(path)
    else:
        with reading(path, 'rows of integers', 'save an array (rows, N) by numpy, -1 for a blank'):
            prompts = np.atleast_2d(np.load(path, allow_pickle=False)).tolist()
    if not prompts:
        raise ValueError(f'there is no prompt in {path}: a line of a .jsonl, or a row, is one')
    return prompts


def prompts_path(prompt):
    """Return the file of prompts that FILE:path names, or None."""
    if prompt.startswith('FILE:'):
        return home(prompt.removeprefix('FILE:'))
    return None


def typed(text):
    """Return the text that an option means.

    \\n is a line end, of which a shell makes none, and \\\\n are the letters \\n."""
    return re.sub(r'(\\?)\\n', lambda found: r'\n' if found[1] else '\n', text)


def read_lines(path):
    """Return the "prompt" or the row of each line of a .jsonl."""
    prompts = []
    for n, line in enumerate(read_text(path).split('\n'), 1):
        if not line.strip():
            continue
        with reading(f'line {n} of {path}', 'a prompt', 'write {"prompt": "..."}, or integers'):
            value = json.loads(line)
            if not isinstance(value, list):
                value = value['prompt'] + ''  # which must be a text
            np.array(value)  # of rows of several lengths there is none
            prompts.append(value)
    return prompts


def options_of_writing(config):
    """Return the keywords of Writer.infill that the options are."""
    options = {name: value for name, value in config.items() if name not in AROUND}
    options['stop'] = parse_stop(config.stop)
    options['allowed'] = None
    if config.allowed:
        with reading(config.allowed, 'a bool array', 'write it with numpy.save'):
            # which an .npz refuses
            options['allowed'] = np.load(config.allowed, allow_pickle=False)[:]
    return options


def parse_stop(stop):
    """Return the list of texts that `stop` is in JSON, or the text itself."""
    if not re.match(r'\s*\[\s*["\]]', stop):
        return typed(stop)
    with reading(f'--stop={stop}', 'a JSON list', """write it as '["a", "b"]'"""):
        return json.loads(stop)


def check_files(config, judge_name):
    """Raise ValueError for a file that cannot be written, or is read."""
    inputs = (
        config.ckpt,
        judge_name,
        config.order,
        config.allowed,
        prompts_path(config.prompt) or '',
    )
    check_out('out', config.out, '.json, .npy, .jsonl', *inputs)
    check_out('html', config.html, '.html', *inputs)


def write_all(writer, prompts, texts, way, result, config):
    """Write the texts of the prompts in batches, and append to result['samples'].

    Sample r, a dict of Text.sample with prompt and seed, is a function of seed + r."""
    watch = None
    if config.watch:
        watch = resolve_name(WATCH)(writer.tokenizer, writer.columns)
    samples = result['samples']
    start = time.perf_counter()
    saved = start
    try:
        for r, sample in enumerate(writer.samples(texts, way, config.batch_size, watch)):
            samples.append({'prompt': prompts[r], 'seed': config.seed + r} | sample)
            result['seconds'] = time.perf_counter() - start
            if time.perf_counter() - saved > SAVED_EVERY:
                saved = time.perf_counter()
                save(result, config.out)
    finally:  # an error or Ctrl-C, now or while a judge reads, loses nothing
        save(result, config.out)


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
