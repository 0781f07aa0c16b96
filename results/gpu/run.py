"""
The first hour on a GPU, in 25 minutes: is the code right there, how fast is it, and what does that decide?

    python results/gpu/run.py
    python results/gpu/run.py --parts=equalities,train --minutes=9   # stops before; the same command goes on
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy --pages=out/gpu_toy

Needs torch 2.11 or newer and the other packages of requirements.txt; a part whose package is missing is left out, in
one line. No network: the text is `books` where data_dir has it, else the English that ships inside Python.

A command begins when all of its limit is left of the minutes, and is ended at its limit. What is finished is not made
again. After every command NAME.json (all figures, the device, versions) and NAME.md (each part with what it decides)
are written anew in `pages`; NAME is the device's. Outputs, checkpoints and the text's curve are in `out`.
"""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
from importlib.util import find_spec

if missing := [name for name in ('torch', 'numpy', 'tqdm') if not find_spec(name)]:
    sys.exit(f'error: {", ".join(missing)} missing: pip install torch, and then -r requirements.txt without torch')

import json
import platform
import re
import shlex
import shutil
import subprocess
import time
from functools import cache
from typing import NamedTuple

import torch

from anyorder.checkpoint import Unset
from anyorder.machine.commands import is_made, make, what_it_said
from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_folder, replace_file, write_json
from anyorder.training.memory import memory
from configurator import configure, one_line_errors
from model import AOGPTConfig

parts = 'equalities,train,choices,sample,grid,ensemble,loss,text,sudoku'   # in this order
minutes = 25.0          # of all parts together
out = 'out/gpu'         # outputs and checkpoints
pages = 'results/gpu'   # where the JSON file and the page go
data_dir = 'data'       # where prepared sets are; what is missing and needs no network is made there
device = 'auto'         # 'cuda', 'cpu', ...
toy = False             # sizes for a CPU: tries the commands, says nothing of speed


class Step(NamedTuple):
    """A command. `columns` name the numbers of the rows of its table; `wants` is a package."""
    name: str
    command: str
    seconds: float   # its limit
    columns: tuple = ()
    wants: str = 'torch'


# ---------------------------------------------------------------------------------------------------------------------
# what is run

TRAIN = 'ms/update', 'tokens/s', 'MFU %', 'peak MiB'
SAMPLE = 'steps', 'seconds', 'ms/step', 'tokens/s', '% of limit', 'peak MiB'
LOSS, ENSEMBLE = ('seconds', 'peak MiB', 'off by'), ('slots', 'head rows', 'seconds')
SHAPES = {'small': (12, 12, 768), 'medium': (24, 16, 1024), 'text': (8, 8, 512), 'sudoku': (6, 8, 256),
          'toy': (1, 2, 32)}
TOY_MODEL = '--block_size=64 --vocab_size=320 --n_tokens=257'
BATCHES = {'small': (8, 16, 32), 'medium': (8, 16)}


def shape(name, c):
    return '--n_layer={} --n_head={} --n_embd={}'.format(*SHAPES['toy' if c.toy else name])


def bench(what, c, options='', toy_options=''):
    """bench.py of the shapes of the paper, or of a toy one."""
    return f'bench.py {what} --device={c.device} {f"{TOY_MODEL} {toy_options}" if c.toy else options}'


def steps(part, c):
    """The Steps of a part, as a generator: later ones may read what earlier ones gave."""
    at, small = f'--device={c.device}', shape('small', c)
    if part == 'equalities':
        chosen = " -k 'paper and steps'" if c.toy else ''
        yield Step('equalities', f'-m pytest -o addopts= -q tests/test_on_device.py {at}{chosen}', 420, wants='pytest')
    elif part == 'train':
        for name, batches in ({'small': (2,)} if c.toy else BATCHES).items():
            for B in batches:
                yield Step(f'train_{name}_{B}', bench('train', c, toy_options='--n_updates=1 --repeats=1')
                           + f" {shape(name, c)} --batch_size={B} --plain='' --compile={not c.toy}", 150, TRAIN)
        yield Step('train_small_eager', bench('train', c, toy_options='--n_updates=1 --repeats=1')
                   + f" {small} --batch_size={2 if c.toy else 16} --plain='' --compile=False", 60, TRAIN)
    elif part == 'choices':
        for choice, columns in (('rows', ('ms', 'times the first')), ('buckets', ('seconds', 'first', 'graphs'))):
            yield Step(f'choices_{choice}', f'results/gpu/choices.py {choice} {at} --toy={c.toy}', 90, columns)
    elif part == 'sample':
        for B in (2,) if c.toy else (1, 32):
            for graphs in (False,) if c.device == 'cpu' else (False, True):
                few = '--steps=8,64' if c.toy else '--steps=16,64,256,1024'
                how = f"{small} {few} --batch_size={B} --plain='' --cuda_graphs={graphs}"
                yield Step(f'sample_{B}_{"graphs" if graphs else "eager"}',
                           f"{bench('sample', c, toy_options='--repeats=1')} {how}", 90, SAMPLE)
    elif part == 'grid':
        few = '--steps=8 --n_updates=1 --compile=False' if c.toy else '--steps=64,256'
        few += f' --repeats=1 --out={c.out}/grid.json'
        yield Step('grid', f"{bench('grid', c, toy_options='--batch_size=2')} {small} {few}", 240)
    elif part == 'ensemble':
        few = '--n_positions=8 --n_contexts=2 --n_plain=4 --repeats=1' if c.toy else '--n_positions=64'
        yield Step('ensemble', bench('ensemble', c) + f' {small} {few}', 90, ENSEMBLE)
    elif part == 'loss':
        yield Step('loss', bench('loss', c, '--n_embd=768 --batch_size=16', '--batch_size=2 --repeats=1'), 60, LOSS)
    elif part == 'text':
        yield from text_steps(c)
    else:
        yield from sudoku_steps(c)


def text_steps(c):
    """A training as long as 6 minutes allow, its evaluation, samples and curve."""
    (N, B), at = (32, 4) if c.toy else (256, 64), f'--device={c.device}'
    books = os.path.exists(os.path.join(c.data_dir, 'books'))
    dataset, vocabulary = ('books', 50304) if books and not c.toy else ('pydocs', 256)
    size = f'{shape("text", c)} --block_size={N} --batch_size={B}'
    yield Step('text_rate', f'bench.py train {at} {size} --vocab_size={vocabulary} --n_tokens={min(vocabulary, 50257)} '
               f"--optimizer=muon --plain='' --compile={not c.toy}", 120, TRAIN)
    n_updates = updates_in(c, 'text_rate', 2 if c.toy else 300, N * B)
    if n_updates:
        run, every = f'{c.out}/text', max(1, n_updates // (2 if c.toy else 20))
        yield Step('text_train', f'train.py config/books.py {at} --dataset={dataset} --data_dir={c.data_dir} {size} '
                   f'--max_iters={n_updates} --eval_interval={every} --save_interval={every} '
                   f'--warmup_iters={min(200, every)} --learning_rate=3e-3 --muon_learning_rate=0.02 --min_lr=3e-4 '
                   f'--ema_decay=0.995 --n_threads=0 --compile={not c.toy} --out_dir={run}', 420)
        few = '--n_blocks=4 --n_orders=1' if c.toy else '--n_blocks=512 --n_orders=16'
        yield Step('text_eval', f'eval_ppl.py --ckpt={run}/ckpt.pt {at} {few} --estimates=l2r,any', 90)
        for order in ('random',) if c.toy else ('random', 'l2r', 'margin'):
            yield Step(f'text_sample_{order}', f'sample.py --ckpt={run}/ckpt.pt {at} --order={order} --n_samples=2', 60)
        yield Step('text_curve', f'plot.py {run} -o {c.pages}/{c.name}_text.png --x=time', 60, wants='matplotlib')


def sudoku_steps(c):
    """Decoder, encoder and mixed network on generated puzzles, for as many updates of the decoder's rate as fit."""
    B, n_puzzles = (4, 200) if c.toy else (256, 60000)
    puzzle, N = ('sudoku4', 16) if c.toy else ('sudoku', 81)
    at, name = f'--device={c.device}', f'{puzzle}_{n_puzzles}'
    yield Step('sudoku_data', f'data/puzzles.py {puzzle} --n_train={n_puzzles} --n_val=100 --n_test=200 --name={name} '
               f'--data_dir={c.data_dir}', 120)
    size = f'{shape("sudoku", c)} --batch_size={B}'
    vocabulary = f'--vocab_size=64 --n_tokens={5 if c.toy else 10}'
    yield Step('sudoku_rate', f'bench.py train {at} {size} --block_size={N} {vocabulary} --optimizer=muon '
               "--plain='' --compile=False", 60, TRAIN)
    n_updates = updates_in(c, 'sudoku_rate', 1 if c.toy else 75, N * B)
    for network, options in (('decoder', ''), ('encoder', '--attention=bidirectional'), ('mixed', '--attention=mixed')):
        if n_updates:
            run, every = f'{c.out}/sudoku_{network}', max(1, n_updates // 5)
            yield Step(f'sudoku_{network}', f'train.py config/sudoku.py {at} --dataset={name} --data_dir={c.data_dir} '
                       f'--block_size={N} {size} {options} --max_iters={n_updates} --eval_interval={every} '
                       f'--n_threads=0 --out_dir={run}', 150)
            yield Step(f'sudoku_{network}_solved', f'eval_puzzle.py --ckpt={run}/ckpt.pt --data_dir={c.data_dir} {at} '
                       '--policies=random,margin --n_puzzles=200', 90)


def updates_in(c, rate, seconds, tokens):
    """Updates of `tokens` that fit into these seconds at the tokens/s of a Step; 0 if it was not made."""
    found = read_results(c)['steps'].get(rate)
    return found and max(1, int(seconds * found['rows'][0]['tokens/s'] / tokens))


# ---------------------------------------------------------------------------------------------------------------------
# how it is run

def machine(c):
    """The device and the versions; `name` is for files."""
    what = torch.cuda.get_device_name(c.device) if c.device.startswith('cuda') else f'{c.device} {platform.machine()}'
    found = {'device': what, 'torch': torch.__version__, 'python': platform.python_version(),
             'cuda': torch.version.cuda, 'cores': os.cpu_count()}
    if c.device.startswith('cuda'):
        found['memory_gib'] = round(torch.cuda.get_device_properties(c.device).total_memory / 2 ** 30, 1)
        if shutil.which('nvidia-smi'):
            query = ['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader']
            found['driver'] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split('\n')[0]
    return found


def rows_of(text, columns):
    """[{'label', column: number}] of the lines of a table that end in as many numbers as there are columns."""
    rows = []
    for line in text.splitlines():
        number = r'\s+-?([\d,]+\.?\d*)%?'
        if columns and (match := re.fullmatch(rf'(.*?){number * len(columns)}(\s+\(.*)?\s*', ' ' + line)):
            label, *values = match.groups()[:-1]
            rows.append({'label': label.strip()} | {name: float(value.replace(',', ''))
                                                     for name, value in zip(columns, values)})
    return rows


def read_results(c):
    path = f'{c.out}/results.json'
    if not os.path.exists(path):
        return {'machine': c.machine, 'steps': {}, 'failed': {}}
    with open(path, encoding='utf-8') as f:
        found = json.load(f)
    if found['machine'] != c.machine:
        raise ValueError(f'{path} is of {found["machine"]}, this is {c.machine}: choose another --out')
    return found


def words_of(step):
    return ['python', *shlex.split(step.command)]


def run(step, part, c):
    """Run a Step that is not made. Adds it to the results, or to what failed, and writes the page anew."""
    path, results, began = f'{c.out}/{step.name}', read_results(c), time.perf_counter()
    entry = {'part': part, 'command': shlex.join(words_of(step))}
    made = is_made(path, words_of(step))
    if made and step.name in results['steps']:
        return
    results['failed'].pop(step.name, None)
    print(step.command, flush=True)
    try:
        if not made:
            make(path, words_of(step), step.seconds)
        text = what_it_said(path)
        rows = rows_of(text, step.columns)
        if step.columns and not rows:
            raise ValueError(f'{path}.txt has no row of {", ".join(step.columns)}')
        seconds = None if made else round(time.perf_counter() - began, 1)
        results['steps'][step.name] = entry | {'seconds': seconds, 'rows': rows, 'text': text}
    except ValueError as e:
        print(f'failed: {e}', flush=True)
        results['failed'][step.name] = entry | {'why': str(e)}
    write(results, c)


def write(results, c):
    write_json(f'{c.out}/results.json', results)
    write_json(f'{c.pages}/{c.name}.json', results)
    replace_file(f'{c.pages}/{c.name}.md', page(results, c).encode())


# ---------------------------------------------------------------------------------------------------------------------
# what it decides: a question of every part, and the sentences that the figures answer it with

def of(results, start):
    """{name: rows} of the Steps whose names begin so."""
    return {name: step['rows'] for name, step in results['steps'].items() if name.startswith(start) and step['rows']}


def decide_equalities(results):
    for step in results['steps'].values():
        if step['part'] == 'equalities':
            yield f'None fails: {step["text"].strip().splitlines()[-1].strip("= ")}.'
    for failed in results['failed'].values():
        if failed['part'] == 'equalities':
            yield 'Some do not hold, or the tests did not run. Nothing below is to be trusted before they do.'


@cache   # a page is written after every command
def planned(name, B, compiled, dtype):
    """MiB of the plan for an update of bench.py train."""
    with torch.device('meta'):
        model = Unset(AOGPTConfig(1024, 50304, *SHAPES[name], n_tokens=50257))
    return sum(memory(model, B, dtype=dtype, optimizer='adamw', compiled=compiled).values()) / 2 ** 20


def decide_train(results):
    measured = of(results, 'train')
    for name, batches in BATCHES.items():
        found = {B: measured[f'train_{name}_{B}'][0] for B in batches if f'train_{name}_{B}' in measured}
        for B, row in found.items():
            _, dtype, compiled = row['label'].split()
            plan = planned(name, B, compiled == 'True', dtype)
            yield f'{name}, batch_size {B}: peak {row["peak MiB"]:,.0f} MiB, {row["peak MiB"] / plan:.0%} of the plan.'
        if found:
            B, row = max(found.items(), key=lambda item: item[1]['tokens/s'])
            mfu = f'MFU {row["MFU %"]:.1f} %, {"at least" if row["MFU %"] >= 50 else "below"} the 50 % that are the aim'
            yield (f'{name}: of batch_size {", ".join(map(str, found))} the fastest is {B}, {row["tokens/s"]:,.0f} '
                   f'tokens/s, {mfu}.')
    eager, fast = (measured.get(f'train_small_{which}') for which in ('eager', 16))
    if eager and fast:
        ratio = fast[0]['tokens/s'] / eager[0]['tokens/s']
        yield f'torch.compile: {ratio:.2f} times eager: {"keep it" if ratio > 1.05 else "leave it off"}.'


def decide_choices(results):
    for rows in of(results, 'choices_rows').values():
        fastest = min(rows, key=lambda row: row['ms'])
        yield f'The gradient of AdaLN\'s table: {fastest["label"]} is the fastest, {fastest["ms"]:.3g} ms.'
    for rows in of(results, 'choices_buckets').values():
        row = min(rows, key=lambda row: row['seconds'])
        yield f'Sizes of keys: {row["label"]} are the fastest, {row["seconds"]:.3g} s with {row["graphs"]:.0f} graphs.'


def decide_sample(results):
    for B in (1, 32):
        eager, graphs = (of(results, f'sample_{B}_{how}').get(f'sample_{B}_{how}') for how in ('eager', 'graphs'))
        if eager and graphs:
            ratios = {int(a['steps']): a['seconds'] / b['seconds'] for a, b in zip(eager, graphs) if b['seconds']}
            keep = 'keep them' if max(ratios.values()) > 1.1 else 'they do not pay'
            yield (f'CUDA graphs, {B} rows: {", ".join(f"{r:.2f} times at {n} steps" for n, r in ratios.items())}: '
                   f'{keep}.')
        elif eager:
            row = max(eager, key=lambda row: row['tokens/s'])
            yield f'{B} rows: {row["tokens/s"]:,.0f} tokens/s at {row["steps"]:.0f} steps. No CUDA graphs here.'


def decide_ensemble(results):
    for rows in of(results, 'ensemble').values():
        if len(rows) > 1:
            yield f'Ours is {rows[1]["seconds"] / rows[0]["seconds"]:.1f} times as fast as the plain way.'


def decide_loss(results):
    for rows in of(results, 'loss').values():
        fastest, least = min(rows, key=lambda row: row['seconds']), min(rows, key=lambda row: row['peak MiB'])
        yield (f'The fastest is {fastest["label"]}, {fastest["seconds"]:.3g} s. The least memory: {least["label"]}, '
               f'{least["peak MiB"]:,.0f} MiB.')


PARTS = {
    'equalities': ('Is the code right on this device? Cached, frozen, compiled, with graphs, in parts.',
                   decide_equalities),
    'train': ('Which batch size, is torch.compile worth it, is MFU 50 %, does the memory plan hold?', decide_train),
    'choices': ('Sorted sums or a gather for the gradient of AdaLN, and which sizes of CUDA graphs?', decide_choices),
    'sample': ('Do CUDA graphs stay?', decide_sample),
    'grid': ('What do the networks cost to write and to train with?', lambda results: ()),
    'ensemble': ('Is the context ensemble faster than the plain way here too?', decide_ensemble),
    'loss': ('Which loss stays?', decide_loss),
    'text': ('What does a model of some 30M parameters beside its vocabulary learn in 5 minutes?', lambda results: ()),
    'sudoku': ('Decoder, encoder, mixed network at equal updates of Sudoku: which solves more?', lambda results: ()),
}


def page(results, c):
    """The Markdown page: nothing stands on it that no command has said."""
    m = results['machine']
    lines = [f'# {m["device"]}', '', ', '.join(f'{name} {value}' for name, value in m.items()
                                               if name != 'device' and value is not None) + '.', '',
             'Written by `python results/gpu/run.py`; every number is from the command under which it stands.']
    if c.toy:
        lines += ['', '**Toy sizes: this page shows that the commands run, and says nothing of speed.**']
    for part, (question, decide) in PARTS.items():
        made = {name: step for name, step in results['steps'].items() if step['part'] == part}
        failed = {name: step for name, step in results['failed'].items() if step['part'] == part}
        lines += ['', f'## {part}', '', question]
        sentences = [] if c.toy and part != 'equalities' else list(decide(results))
        found = [f'* {sentence}' for sentence in sentences] or ([] if made or failed else ['Not measured.'])
        lines += ['', *found] if found else []
        for step in made.values():
            took = '' if step['seconds'] is None else f'   ({step["seconds"]:,.0f} s)'
            text = re.sub(r'[^\n]*\r', '', step['text'])   # bars
            lines += ['', '```', f'$ {step["command"]}{took}', *text.rstrip().splitlines()[-40:], '```']
        lines += [f'\nFailed: {step["why"]}' for step in failed.values()]
        if part == 'text' and 'text_curve' in made:
            lines += ['', f'![nats per token by time]({c.name}_text.png)']
    return '\n'.join(lines) + '\n'


def main(config):
    chosen = config.parts.split(',')
    if unknown := [part for part in chosen if part not in PARTS]:
        raise ValueError(f'parts must be of {",".join(PARTS)}, got {",".join(unknown)}')
    if config.minutes <= 0:
        raise ValueError(f'minutes must be above 0, got {config.minutes}')
    config['device'], end = str(resolve_device(config.device, 'auto')[0]), time.monotonic() + 60 * config.minutes
    config['machine'] = machine(config)
    os.chdir(ROOT)
    for option in ('out', 'pages'):
        check_folder(option, config[option])
        os.makedirs(config[option], exist_ok=True)
    config['name'] = re.sub(r'\W+', '_', config['machine']['device'].removeprefix('NVIDIA ')).lower()
    for part in PARTS:
        for step in steps(part, config) if part in chosen else ():
            step = step._replace(seconds=300) if config.toy else step   # a toy's machine may be busy
            if not find_spec(step.wants):
                print(f'left out: {step.name}, which wants the package {step.wants}', flush=True)
            elif is_made(f'{config.out}/{step.name}', words_of(step)) or end - time.monotonic() > step.seconds:
                run(step, part, config)
            else:
                print(f'left for later: {step.name}, which may take {step.seconds:.0f} s', flush=True)
    results = read_results(config)
    write(results, config)
    print(f"\n{'':<28}{'seconds':>8}")
    for name, step in results['steps'].items():
        print(f'{name:<28}{step["seconds"] or 0:>8,.0f}')
    for name in results['failed']:
        print(f"{name:<28}{'failed':>8}")
    print(f'written: {config.pages}/{config.name}.md')
    if results['failed']:
        sys.exit(1)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
