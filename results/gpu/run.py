"""The first hour on a GPU, in 25 minutes: is all right there, how fast, what does a model learn?

    python results/gpu/run.py
    python results/gpu/run.py --parts=equalities,train --minutes=9   # the same command goes on
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy

Needs torch 2.11 or newer and requirements.txt, but no network: the text is `books` in data_dir,
else from Python.

A command begins when all of its limit is left of the minutes, and is ended at its limit. What is
finished is not run again; what failed, was ended or interrupted is. After every command
results.json in `out` has all commands, their seconds and what they said. The page NAME.md beside
it says the same; NAME is the device's. Checkpoints and data that are missing are in `out` too."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
import json
import re
import shlex
import subprocess
import time
from pathlib import Path

from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_folder, replace_file, write_json
from anyorder.machine.processes import environment
from anyorder.machine.terminal import one_line_errors
from configurator import configure

# the questions that the parts answer
PARTS = {
    'equalities': (
        'Is the code right on this device? Cached, frozen, compiled, with graphs, in parts.'
    ),
    'train': 'Which batch size? Is torch.compile worth it, is MFU 50 %?',
    'sample': 'Do CUDA graphs stay?',
    'grid': 'What do the networks cost to write and to train with?',
    'ensemble': 'Is the context ensemble faster than the plain way here too?',
    'text': 'What does a model of some 30M parameters beside its vocabulary learn in 5 minutes?',
    'sudoku': (
        'Decoder, encoder and mixed network after equal updates of Sudoku: which solves more?'
    ),
}

parts = ','.join(PARTS)  # in this order
minutes = 25.0  # all parts together
out = 'out/gpu'  # page, outputs and checkpoints
data_dir = 'data'  # where prepared sets are
device = 'auto'  # 'cuda', 'cpu', ...
toy = False  # sizes for a CPU: tries the commands, says nothing of speed

# PART_name, seconds at most, and what stands behind `python`; names in braces are of FIELDS
COMMANDS = """
equalities 420 -m pytest -o addopts= -q tests/test_on_device.py

train_small_8 150 {train} {small} --batch_size=8
train_small_16 150 {train} {small} --batch_size=16
train_small_32 150 {train} {small} --batch_size=32
train_medium_8 150 {train} {medium} --batch_size=8
train_medium_16 150 {train} {medium} --batch_size=16
train_small_eager 60 {train} {small} --batch_size=16 --compile=False

sample_1_eager 90 {sample} --batch_size=1 --plain= --cuda_graphs=False
sample_1_graphs 90 {sample} --batch_size=1 --plain= --cuda_graphs=True
sample_32_eager 90 {sample} --batch_size=32 --plain= --cuda_graphs=False
sample_32_graphs 90 {sample} --batch_size=32 --plain= --cuda_graphs=True

grid 240 {speed} grid {small} --n_steps=64,256 --repeats=1 --out={out}/grid.json

ensemble 90 {speed} ensemble {small} --n_positions=64

text_rate 120 {train} {text} {vocabulary}
text_train 420 train.py config/books.py {text_data} {text} {updates} --out_dir={out}/text \\
    --warmup_iters=200 --learning_rate=3e-3 --min_lr=3e-4 --ema_decay=0.995
text_eval 90 eval_ppl.py {written} --n_blocks=512 --n_orders=16 --estimates=l2r,any
text_random 60 sample.py {written} --order=random --n_samples=2
text_margin 60 sample.py {written} --order=margin --n_samples=2
text_frontier 240 {speed} frontier {written} --n_samples=32 --batch_size=32 --n_blocks=32 \\
    --n_steps=16,64 --windows=8,32 --thresholds= --block_lengths=32
text_curve 60 -m anyorder.extras.pictures {out}/text -o {out}/text.png --x=time

sudoku_data 120 -m anyorder.extras.puzzles make sudoku {data} \\
    --n_train=60000 --n_val=100 --n_test=200
sudoku_rate 60 {train} {sudoku} --vocab_size=64 --n_tokens=10
sudoku_decoder 150 {learn}/sudoku_decoder --network=decoder,gate_init=1
sudoku_decoder_solved 90 {solve} --ckpt={out}/sudoku_decoder/ckpt.pt
sudoku_encoder 150 {learn}/sudoku_encoder --network=encoder,gate_init=1
sudoku_encoder_solved 90 {solve} --ckpt={out}/sudoku_encoder/ckpt.pt
sudoku_mixed 150 {learn}/sudoku_mixed --network=mixed,gate_init=1
sudoku_mixed_solved 90 {solve} --ckpt={out}/sudoku_mixed/ckpt.pt
"""
FIELDS = {
    'speed': '-m anyorder.extras.speed',
    'train': '{speed} train --plain=False',
    'sample': '{speed} sample {small} --windows=32',
    'learn': 'train.py config/sudoku.py {data} {sudoku} {updates} --out_dir={out}',
    'solve': '-m anyorder.extras.puzzles solve {data} --orders=random,margin --n_puzzles=200',
    'data': '--data_dir={out}/data',
    'written': '--ckpt={out}/text/ckpt.pt',
    'small': '--n_layer=12 --n_head=12 --n_embd=768',
    'medium': '--n_layer=24 --n_head=16 --n_embd=1024',
    'text': '--n_layer=8 --n_head=8 --n_embd=512 --block_size=256 --batch_size=64 --optimizer=muon',
    'sudoku': '--n_layer=6 --n_head=8 --n_embd=256 --block_size=81 --batch_size=256 '
    '--optimizer=muon:0.04 --compile=False',
}
# seconds of training, tokens of an update, validations
TRAINED = {'text': (300, 16384, 20), 'sudoku': (75, 20736, 5)}
NO_DEVICE = ('-m anyorder.extras.pictures', '-m anyorder.extras.puzzles make')
TINY = '--n_layer=1 --n_head=2 --n_embd=32'
TIMED = f'{TINY} --block_size=64 --vocab_size=320 --n_tokens=257 --repeats=1'
# how a command begins, and what comes last in a toy run, and so overrides what stands before
TOY = {
    '-m pytest': "-k 'paper and steps'",
    '-m anyorder.extras.speed train': f'{TIMED} --batch_size=2 --n_updates=1 --compile=False',
    '-m anyorder.extras.speed sample': f'{TIMED} --batch_size=2 --n_steps=8 --windows=8',
    '-m anyorder.extras.speed grid': f'{TIMED} --batch_size=2 --n_steps=8 --n_updates=1 '
    '--compile=False',
    '-m anyorder.extras.speed ensemble': f'{TIMED} --n_positions=8 --n_contexts=2 --n_plain=4',
    '-m anyorder.extras.speed frontier': '--n_steps=8 --windows=8 --n_samples=4 --batch_size=2',
    'train.py': f'{TINY} --batch_size=2 --compile=False --max_iters=2 --eval_interval=1 '
    '--warmup_iters=1 --eval_iters=1',
    '-m anyorder.extras.puzzles make': '--n_train=200',
    'sample.py': '--n_samples=1 --n_steps=8',
    'eval_ppl.py': '--n_blocks=4 --n_orders=1',
    '-m anyorder.extras.puzzles solve': '--n_puzzles=4',
}


def main(config):
    """Run the chosen parts for so many minutes."""
    end = time.monotonic() + 60 * config.minutes
    chosen = config.parts.split(',')
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise ValueError(f'parts must be of {",".join(PARTS)}, got {",".join(unknown)}')
    device, _ = resolve_device(config.device, 'auto')
    config['device'] = str(device)
    os.chdir(ROOT)
    check_folder('out', config.out)
    os.makedirs(config.out, exist_ok=True)
    results = open_results(config, environment(device))
    for line in re.sub(r'\\\n *', '', COMMANDS).splitlines():
        if part_of(line) in chosen:
            run_in_time(line, results, config, end)
    report(results['steps'], config)


def part_of(name):
    """Return the part of a command, with which its name begins."""
    return re.match(r'[a-z]*', name)[0]


def open_results(config, machine):
    """Return what was run before, {'machine', 'steps': {name: see run}}. A folder has a machine."""
    del machine['commit']
    results = {'machine': machine, 'steps': {}}
    path = Path(config.out, 'results.json')
    if path.exists():
        results = json.loads(path.read_text(encoding='utf-8'))
    if results['machine'] != machine:
        raise ValueError(
            f'{path} comes from {results["machine"]}, this is {machine}: choose another --out'
        )
    return results


def run_in_time(line, results, config, end):
    """Run a line of COMMANDS that is not finished, if all of its limit is left until `end`."""
    name, limit, command = line.split(maxsplit=2)
    steps = results['steps']
    learned = updates(part_of(name), steps)
    waits = part_of(name) in TRAINED and not name.endswith(('_rate', '_data'))
    if (waits and not learned) or (config.device == 'cpu' and name.endswith('_graphs')):
        return
    command = filled(command, learned, config)
    done = steps.get(name)
    if done and not done['failed'] and done['command'] == f'python {command}':
        return
    limit = 300 if config.toy else int(limit)
    if end - time.monotonic() < limit:
        print(f'left for later: {name}, which may take {limit} s', flush=True)
        return
    print(f'python {command}', flush=True)
    step = steps[name] = run(command, f'{config.out}/{name}.txt', limit)
    print(f'    {step["seconds"]:,.0f} s {step["failed"]}', flush=True)
    write_json(f'{config.out}/results.json', results)
    replace_file(page_path(results, config), page(results, config).encode())


def updates(part, steps):
    """Return the options for as many updates as fit, by what PART_rate has said; None before."""
    said = steps.get(f'{part}_rate', {}).get('text', '')
    rate = re.search(r'(?m)^ours .* ([\d,]+) +[\d.]+%', said)  # tokens a second
    if not rate:
        return None
    seconds, n_tokens, n_validations = TRAINED[part]
    n = max(1, int(seconds * int(rate[1].replace(',', '')) / n_tokens))
    interval = n // n_validations + 1
    return f'--max_iters={n} --eval_interval={interval}'


def filled(command, learned, config):
    """Return a command with its fields, and with what this device and a toy run add."""
    fields = FIELDS | {'out': shlex.quote(config.out), 'updates': learned}
    fields['text_data'] = '--dataset=pydocs {data}'
    fields['vocabulary'] = '--vocab_size=320 --n_tokens=257'
    if os.path.exists(os.path.join(config.data_dir, 'books')):
        fields['text_data'] = f'--dataset=books --data_dir={shlex.quote(config.data_dir)}'
        fields['vocabulary'] = '--vocab_size=50304 --n_tokens=50257'
    while '{' in command:
        command = command.format(**fields)
    if not command.startswith(NO_DEVICE):
        command += f' --device={config.device}'
    if config.toy:
        more = [f' {more}' for start, more in TOY.items() if command.startswith(start)]
        command += ''.join(more)
    return command


def run(command, path, limit):
    """Run a command, whose output goes to `path`.

    Returns {'command', 'seconds', 'failed': why or '', 'text'}."""
    failed = ''
    began = time.perf_counter()
    words = [sys.executable, *shlex.split(command)]
    with open(path, 'w', encoding='utf-8') as f:
        try:
            subprocess.run(words, stdout=f, stderr=f, timeout=limit, check=True)
        except subprocess.CalledProcessError as e:
            failed = f'ended with code {e.returncode}'
        except subprocess.TimeoutExpired:
            failed = f'took more than {limit} s'
    seconds = round(time.perf_counter() - began, 1)
    said = Path(path).read_text(encoding='utf-8', errors='replace')
    text = re.sub(r'[^\n]*\r', '', said)  # without bars
    return {'command': f'python {command}', 'seconds': seconds, 'failed': failed, 'text': text}


def page_path(results, config):
    device = results['machine']['device'].removeprefix('NVIDIA ')
    return os.path.join(config.out, re.sub(r'\W+', '_', device).lower() + '.md')


def page(results, config):
    """Return the Markdown page: nothing stands on it that no command has said."""
    machine = results['machine']
    lines = [f'# {machine["device"]}', '', f'{machine}, by `python results/gpu/run.py`.']
    if config.toy:
        lines += ['', '**Toy sizes: the commands run, and nothing is said of speed.**']
    for part, question in PARTS.items():
        steps = [step for name, step in results['steps'].items() if part_of(name) == part]
        lines += ['', f'## {part}', '', question if steps else f'{question} Not measured.']
        for step in steps:
            lines += ['', '```', f'$ {step["command"]}   ({step["seconds"]:,.0f} s)']
            lines += step['text'].splitlines()[-40:]
            if step['failed']:
                lines.append(f'FAILED: {step["failed"]}')
            lines.append('```')
    curve = results['steps'].get('text_curve', {'failed': True})
    if not curve['failed']:
        lines += ['', '![nats per token by time](text.png)']
    return '\n'.join(lines) + '\n'


def report(steps, config):
    """Say what was made. What failed ends the program."""
    failed = [name for name, step in steps.items() if step['failed']]
    print(f'{len(steps) - len(failed)} commands finished, see {config.out}', flush=True)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
