"""
The first hour on a GPU, in 25 minutes: is the code right there, how fast is it, and what does a model learn?

    python results/gpu/run.py
    python results/gpu/run.py --parts=equalities,train --minutes=9   # stops before; the same command goes on
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy --pages=out/gpu_toy

Needs torch 2.11 or newer and the other packages of requirements.txt, but no network: the text is `books` where data_dir
has it, else the English that ships inside Python.

A command begins when all of its limit is left of the minutes, and is ended at its limit. What is finished is not run
again; what failed, was ended or interrupted is. After every command results.json in `out` has all commands, their
seconds, what they said and the numbers of their tables. NAME.json and the page NAME.md in `pages` say the same; NAME is
the device's. What each command says, checkpoints and data that are missing are in `out` too.
"""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
import json
import platform
import re
import shlex
import subprocess
import time

import torch

from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_folder, replace_file, write_json
from anyorder.machine.terminal import one_line_errors
from configurator import configure

PARTS = {
    'equalities': 'Is the code right on this device? Cached, frozen, compiled, with graphs, in parts.',
    'train': 'Which batch size? Is torch.compile worth it, is MFU 50 %, does the memory plan hold?',
    'sample': 'Do CUDA graphs stay?',
    'grid': 'What do the networks cost to write and to train with?',
    'ensemble': 'Is the context ensemble faster than the plain way here too?',
    'text': 'What does a model of some 30M parameters beside its vocabulary learn in 5 minutes?',
    'sudoku': 'Decoder, encoder and mixed network after equal updates of Sudoku: which solves more?'}

parts = ','.join(PARTS)   # in this order
minutes = 25.0            # all parts together
out = 'out/gpu'           # outputs and checkpoints
pages = 'results/gpu'     # where the JSON file and the page go
data_dir = 'data'         # where prepared sets are
device = 'auto'           # 'cuda', 'cpu', ...
toy = False               # sizes for a CPU: tries the commands, says nothing of speed

# ---------------------------------------------------------------------------------------------------------------------
# what is run

SMALL, MEDIUM = '--n_layer=12 --n_head=12 --n_embd=768', '--n_layer=24 --n_head=16 --n_embd=1024'
# what comes last in a command of a toy run, and so overrides what stands before
TINY = '--n_layer=1 --n_head=2 --n_embd=32 --batch_size=2 --compile=False'
TOY = {'-m': "-k 'paper and steps'",
       'bench.py': f'{TINY} --block_size=64 --vocab_size=320 --n_tokens=257 --n_updates=1 --repeats=1 --steps=8 '
                   '--windows=8 --n_samples=4 --n_positions=8 --n_contexts=2 --n_plain=4',
       'train.py': f'{TINY} --max_iters=2 --eval_interval=1 --save_interval=2 --warmup_iters=1 --eval_iters=1',
       'data/puzzles.py': '--n_train=200', 'sample.py': '--n_samples=1 --n_steps=8',
       'eval_ppl.py': '--n_blocks=4 --n_orders=1', 'eval_puzzle.py': '--n_puzzles=4'}


def commands(c, steps):
    """Yields (PART_name, command, seconds at most). How long is trained depends on rates among the finished `steps`."""
    def updates_in(rate, seconds, tokens):
        """How many updates fit into these seconds."""
        rates = [row['numbers'][1] for row in steps.get(rate, {}).get('rows', ()) if row['label'].startswith('ours')]
        return max(1, int(seconds * rates[0] / tokens)) if rates else 0

    yield 'equalities', '-m pytest -o addopts= -q tests/test_on_device.py', 420
    for name, shape, batches in (('small', SMALL, (8, 16, 32)), ('medium', MEDIUM, (8, 16))):
        for B in batches[:1] if c.toy else batches:
            yield f'train_{name}_{B}', f'bench.py train {shape} --batch_size={B} --plain=', 150
    yield 'train_small_eager', f'bench.py train {SMALL} --batch_size=16 --plain= --compile=False', 60
    yield 'train_memory', f'bench.py memory {SMALL} --batch_size=16', 150
    for B in (1, 32):
        for graphs in (False,) if c.device == 'cpu' else (False, True):
            how = f'--windows=32 --batch_size={B} --plain= --cuda_graphs={graphs}'
            yield f'sample_{B}_{"graphs" if graphs else "eager"}', f'bench.py sample {SMALL} {how}', 90
    yield 'grid', f'bench.py grid {SMALL} --steps=64,256 --repeats=1 --out={c.out}/grid.json', 240
    yield 'ensemble', f'bench.py ensemble {SMALL} --n_positions=64', 90

    run, data = f'{c.out}/text', f'--data_dir={c.out}/data'
    size = '--n_layer=8 --n_head=8 --n_embd=512 --block_size=256 --batch_size=64 --optimizer=muon'
    text, vocabulary = f'--dataset=pydocs {data}', '--vocab_size=320 --n_tokens=257'
    if os.path.exists(os.path.join(c.data_dir, 'books')):
        text, vocabulary = f'--dataset=books --data_dir={c.data_dir}', '--vocab_size=50304 --n_tokens=50257'
    yield 'text_rate', f'bench.py train {size} {vocabulary} --plain=', 120
    if n := updates_in('text_rate', 300, 256 * 64):
        how = (f'--max_iters={n} --eval_interval={n // 20 + 1} --save_interval={n // 20 + 1} --warmup_iters=200 '
               '--learning_rate=3e-3 --min_lr=3e-4 --muon_learning_rate=0.02 --ema_decay=0.995 --n_threads=0')
        yield 'text_train', f'train.py config/books.py {text} {size} {how} --out_dir={run}', 420
        how = '--n_blocks=512 --n_orders=16 --estimates=l2r,any'
        yield 'text_eval', f'eval_ppl.py --ckpt={run}/ckpt.pt {how}', 90
        for order in ('random', 'margin'):
            yield f'text_{order}', f'sample.py --ckpt={run}/ckpt.pt --order={order} --n_samples=2', 60
        how = '--n_samples=64 --batch_size=64 --steps=16,64 --windows=8,32 --thresholds='
        yield 'text_frontier', f'bench.py frontier --ckpt={run}/ckpt.pt {how}', 120
        yield 'text_curve', f'plot.py {run} -o {c.pages}/{c.name}_text.png --x=time', 60

    size = '--n_layer=6 --n_head=8 --n_embd=256 --block_size=81 --batch_size=256 --optimizer=muon --compile=False'
    yield 'sudoku_data', f'data/puzzles.py sudoku --n_train=60000 --n_val=100 --n_test=200 {data}', 120
    yield 'sudoku_rate', f'bench.py train {size} --vocab_size=64 --n_tokens=10 --plain=', 60
    if n := updates_in('sudoku_rate', 75, 81 * 256):
        for network, attention in (('decoder', 'causal'), ('encoder', 'bidirectional'), ('mixed', 'mixed')):
            run = f'{c.out}/sudoku_{network}'
            how = f'--attention={attention} --max_iters={n} --eval_interval={n // 5 + 1} --n_threads=0'
            yield f'sudoku_{network}', f'train.py config/sudoku.py {data} {size} {how} --out_dir={run}', 150
            how = f'{data} --policies=random,margin --n_puzzles=200'
            yield f'sudoku_{network}_solved', f'eval_puzzle.py --ckpt={run}/ckpt.pt {how}', 90


# ---------------------------------------------------------------------------------------------------------------------
# how it is run, and what is kept

def words_of(command, c):
    words = shlex.split(command)
    words += [] if words[0] in ('plot.py', 'data/puzzles.py') else [f'--device={c.device}']
    return words + shlex.split(TOY.get(words[0], '')) if c.toy else words


def machine(device):
    """The device and the versions."""
    found = {'device': f'{device} {platform.machine()}', 'torch': torch.__version__, 'cores': os.cpu_count(),
             'python': platform.python_version()}
    if device.startswith('cuda'):
        found |= {'device': torch.cuda.get_device_name(device), 'cuda': torch.version.cuda,
                  'memory_gib': round(torch.cuda.get_device_properties(device).total_memory / 2 ** 30, 1)}
    return found


def read_results(path, machine):
    """{'machine', 'steps': {name: see run}} of results.json, which must be this machine's."""
    results = {'machine': machine, 'steps': {}}
    if os.path.exists(path):
        with open(path, encoding='utf-8') as f:
            results = json.load(f)
    if results['machine'] != machine:
        raise ValueError(f'{path} comes from {results["machine"]}, this is {machine}: choose another --out')
    return results


def run(words, path, limit):
    """Run a command, whose output goes to `path`. Returns {'command', 'seconds', 'failed', 'text', 'rows'}.

    Rows are the lines that hold two numbers or more, {'label', 'numbers'}; the label stands before the first digit."""
    began, failed = time.perf_counter(), ''
    with open(path, 'w', encoding='utf-8') as f:
        try:
            subprocess.run([sys.executable, *words], stdout=f, stderr=f, timeout=limit, check=True)
        except subprocess.CalledProcessError as e:
            failed = f'ended with code {e.returncode}'
        except subprocess.TimeoutExpired:
            failed = f'took more than {limit} s'
    with open(path, encoding='utf-8', errors='replace') as f:
        text = re.sub(r'[^\n]*\r', '', f.read())   # without bars
    rows = []
    for line in text.splitlines():
        numbers = re.findall(r'(?<!\S)-?\d[\d,]*\.?\d*(?=%?(?!\S))', line)
        if len(numbers) > 1:
            rows.append({'label': ' '.join(re.match(r'\D*', line)[0].split()),
                         'numbers': [float(number.replace(',', '')) for number in numbers]})
    return {'command': shlex.join(['python', *words]), 'seconds': round(time.perf_counter() - began, 1),
            'failed': failed, 'text': text, 'rows': rows}


def page(results, c):
    """The Markdown page: nothing stands on it that no command has said."""
    lines = [f'# {results["machine"]["device"]}', '', f'{results["machine"]}, by `python results/gpu/run.py`.']
    lines += ['', '**Toy sizes: the commands run, and nothing is said of speed.**'] if c.toy else []
    for part, question in PARTS.items():
        made = {name: step for name, step in results['steps'].items() if name.split('_')[0] == part}
        lines += ['', f'## {part}', '', question if made else f'{question} Not measured.']
        for step in made.values():
            lines += ['', '```', f'$ {step["command"]}   ({step["seconds"]:,.0f} s)', *step['text'].splitlines()[-40:]]
            lines += [f'FAILED: {step["failed"]}', '```'] if step['failed'] else ['```']
        if made.get('text_curve', {}).get('failed') == '':
            lines += ['', f'![nats per token by time]({c.name}_text.png)']
    return '\n'.join(lines) + '\n'


def main(config):
    chosen, end = config.parts.split(','), time.monotonic() + 60 * config.minutes
    if unknown := [part for part in chosen if part not in PARTS]:
        raise ValueError(f'parts must be of {",".join(PARTS)}, got {",".join(unknown)}')
    config['device'] = str(resolve_device(config.device, 'auto')[0])
    here = machine(config.device)
    config['name'] = re.sub(r'\W+', '_', here['device'].removeprefix('NVIDIA ')).lower()
    os.chdir(ROOT)
    for option in ('out', 'pages'):
        check_folder(option, config[option])
        os.makedirs(config[option], exist_ok=True)
    results = read_results(f'{config.out}/results.json', here)
    steps = results['steps']
    for name, command, limit in commands(config, steps):
        words, old, limit = words_of(command, config), steps.get(name), 300 if config.toy else limit
        command = shlex.join(['python', *words])
        if name.split('_')[0] not in chosen or old and not old['failed'] and old['command'] == command:
            continue
        if end - time.monotonic() < limit:
            print(f'left for later: {name}, which may take {limit} s', flush=True)
            continue
        print(command, flush=True)
        steps[name] = run(words, f'{config.out}/{name}.txt', limit)
        print(f'    {steps[name]["seconds"]:,.0f} s {steps[name]["failed"]}', flush=True)
        for path in (f'{config.out}/results.json', f'{config.pages}/{config.name}.json'):
            write_json(path, results)
        replace_file(f'{config.pages}/{config.name}.md', page(results, config).encode())
    failed = [name for name, step in steps.items() if step['failed']]
    print(f'{len(steps) - len(failed)} commands finished: {config.pages}/{config.name}.md', flush=True)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
