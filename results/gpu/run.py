"""The first hour on a GPU, in 25 minutes: is all right there, how fast, what does a model learn?

    python results/gpu/run.py
    python results/gpu/run.py --parts=equalities,train --minutes=9   # the same command goes on
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy --pages=out/gpu_toy

Needs torch 2.11 or newer and requirements.txt, but no network: the text is `books` in data_dir,
else from Python.

A command begins when all of its limit is left of the minutes, and is ended at its limit. What is
finished is not run again; what failed, was ended or interrupted is. After every command
results.json in `out` has all commands, their seconds, what they said and the numbers of their
tables. NAME.json and the page NAME.md in `pages` say the same; NAME is the device's. What each
command says, checkpoints and data that are missing are in `out` too."""

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
from anyorder.machine.locks import locked
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

# fmt: off

parts = ','.join(PARTS)   # in this order
minutes = 25.0            # all parts together
out = 'out/gpu'           # outputs and checkpoints
pages = 'results/gpu'     # where the JSON file and the page go
data_dir = 'data'         # where prepared sets are
device = 'auto'           # 'cuda', 'cpu', ...
toy = False               # sizes for a CPU: tries the commands, says nothing of speed
# fmt: on

SMALL = '--n_layer=12 --n_head=12 --n_embd=768'
MEDIUM = '--n_layer=24 --n_head=16 --n_embd=1024'
TEXT = '--n_layer=8 --n_head=8 --n_embd=512 --block_size=256 --batch_size=64 --optimizer=muon'
SUDOKU = (
    '--n_layer=6 --n_head=8 --n_embd=256 --block_size=81 --batch_size=256 --optimizer=muon:0.04 '
    '--compile=False'
)
TINY = '--n_layer=1 --n_head=2 --n_embd=32 --batch_size=2 --compile=False'

# what comes last in a command of a toy run, and so overrides what stands before
TOY = {
    'pytest': "-k 'paper and steps'",
    'anyorder.extras.speed': f'{TINY} --block_size=64 --vocab_size=320 --n_tokens=257 --n_updates=1 --repeats=1 '
    '--steps=8 --windows=8 --n_samples=4 --n_positions=8 --n_contexts=2 --n_plain=4',
    'train.py': f'{TINY} --max_iters=2 --eval_interval=1 --save_interval=2 --warmup_iters=1 '
    '--eval_iters=1',
    'anyorder.extras.puzzles make': '--n_train=200',
    'sample.py': '--n_samples=1 --n_steps=8',
    'eval_ppl.py': '--n_blocks=4 --n_orders=1',
    'anyorder.extras.puzzles solve': '--n_puzzles=4',
}
# in a toy run they would differ by the batch size alone
NOT_IN_TOY = ('train_small_16', 'train_small_32', 'train_medium_16')


def lines_of(c, steps):
    """Yield (PART_name, seconds at most, what stands behind `python` in a shell) of all commands.

    Training takes as long as a rate lets it, which `steps` has when its turn comes."""
    yield 'equalities', 420, '-m pytest -o addopts= -q tests/test_on_device.py'

    yield 'train_small_8', 150, f'-m anyorder.extras.speed train {SMALL} --batch_size=8 --plain='
    yield 'train_small_16', 150, f'-m anyorder.extras.speed train {SMALL} --batch_size=16 --plain='
    yield 'train_small_32', 150, f'-m anyorder.extras.speed train {SMALL} --batch_size=32 --plain='
    yield 'train_medium_8', 150, f'-m anyorder.extras.speed train {MEDIUM} --batch_size=8 --plain='
    yield (
        'train_medium_16',
        150,
        f'-m anyorder.extras.speed train {MEDIUM} --batch_size=16 --plain=',
    )
    eager = '--plain= --compile=False'
    yield 'train_small_eager', 60, f'-m anyorder.extras.speed train {SMALL} --batch_size=16 {eager}'

    sample = f'-m anyorder.extras.speed sample {SMALL} --windows=32'
    yield 'sample_1_eager', 90, f'{sample} --batch_size=1 --plain= --cuda_graphs=False'
    yield 'sample_1_graphs', 90, f'{sample} --batch_size=1 --plain= --cuda_graphs=True'
    yield 'sample_32_eager', 90, f'{sample} --batch_size=32 --plain= --cuda_graphs=False'
    yield 'sample_32_graphs', 90, f'{sample} --batch_size=32 --plain= --cuda_graphs=True'

    table = shlex.quote(f'{c.out}/grid.json')
    yield (
        'grid',
        240,
        f'-m anyorder.extras.speed grid {SMALL} --steps=64,256 --repeats=1 --out={table}',
    )

    yield 'ensemble', 90, f'-m anyorder.extras.speed ensemble {SMALL} --n_positions=64'

    yield from text_lines(c, steps)
    yield from sudoku_lines(c, steps)


def text_lines(c, steps):
    out = shlex.quote(c.out)
    data = f'--dataset=pydocs --data_dir={out}/data'
    vocabulary = '--vocab_size=320 --n_tokens=257'
    if os.path.exists(os.path.join(c.data_dir, 'books')):
        data = f'--dataset=books --data_dir={shlex.quote(c.data_dir)}'
        vocabulary = '--vocab_size=50304 --n_tokens=50257'

    yield 'text_rate', 120, f'-m anyorder.extras.speed train {TEXT} {vocabulary} --plain='
    n = updates_in(300, 16384, steps.get('text_rate', {}))
    if n is None:
        return

    interval = n // 20 + 1
    train = (
        f'train.py config/books.py {data} {TEXT} --max_iters={n} --eval_interval={interval} '
        f'--save_interval={interval} --warmup_iters=200 --learning_rate=3e-3 --min_lr=3e-4 '
        f'--ema_decay=0.995 --out_dir={out}/text'
    )
    yield 'text_train', 420, train
    ckpt = f'--ckpt={out}/text/ckpt.pt'
    yield 'text_eval', 90, f'eval_ppl.py {ckpt} --n_blocks=512 --n_orders=16 --estimates=l2r,any'
    yield 'text_random', 60, f'sample.py {ckpt} --order=random --n_samples=2'
    yield 'text_margin', 60, f'sample.py {ckpt} --order=margin --n_samples=2'
    frontier = (
        f'-m anyorder.extras.speed frontier {ckpt} --n_samples=32 --batch_size=32 --n_blocks=32 --steps=16,64 '
        '--windows=8,32 --thresholds= --block_lengths=32'
    )
    yield 'text_frontier', 240, frontier
    picture = shlex.quote(f'{c.pages}/{c.name}_text.png')
    yield 'text_curve', 60, f'-m anyorder.extras.pictures {out}/text -o {picture} --x=time'


def sudoku_lines(c, steps):
    out = shlex.quote(c.out)
    data = f'--data_dir={out}/data'
    made = f'-m anyorder.extras.puzzles make sudoku --n_train=60000 --n_val=100 --n_test=200 {data}'
    yield 'sudoku_data', 120, made
    yield (
        'sudoku_rate',
        60,
        f'-m anyorder.extras.speed train {SUDOKU} --vocab_size=64 --n_tokens=10 --plain=',
    )
    n = updates_in(75, 20736, steps.get('sudoku_rate', {}))
    if n is None:
        return

    for name in ('decoder', 'encoder', 'mixed'):
        folder = f'{out}/sudoku_{name}'
        train = (
            f'train.py config/sudoku.py {data} {SUDOKU} --network={name},gate_init=1 '
            f'--max_iters={n} --eval_interval={n // 5 + 1} --out_dir={folder}'
        )
        solve = f'-m anyorder.extras.puzzles solve --ckpt={folder}/ckpt.pt {data} --policies=random,margin'
        yield f'sudoku_{name}', 150, train
        yield f'sudoku_{name}_solved', 90, f'{solve} --n_puzzles=200'


def updates_in(seconds, n_tokens, step):
    """Return how many updates of `n_tokens` fit into the seconds, None where no rate is known.

    step  what speed train has said, see run; its line `ours` has our tokens a second"""
    for row in step.get('rows', ()):
        if row['label'].startswith('ours'):
            tokens_per_sec = row['numbers'][1]
            return max(1, int(seconds * tokens_per_sec / n_tokens))
    return None


def commands(c, steps):
    """Yield (PART_name, words behind `python`, seconds at most) of what this device runs."""
    for name, limit, line in lines_of(c, steps):
        if c.toy and name in NOT_IN_TOY:
            continue
        if c.device == 'cpu' and name.endswith('_graphs'):
            continue
        words = shlex.split(line)
        program = program_of(words)
        if program not in ('anyorder.extras.pictures', 'anyorder.extras.puzzles make'):
            words.append(f'--device={c.device}')
        if c.toy:
            words += shlex.split(TOY.get(program, ''))
        yield name, words, limit


def program_of(words):
    """Return what the words behind `python` run: a file, or a module with its command."""
    if words[0] != '-m':
        return words[0]
    if words[1] == 'anyorder.extras.puzzles':
        return f'{words[1]} {words[2]}'
    return words[1]


def run_all(config, chosen, end, here):
    """Run the commands of the parts `chosen` that are not finished, until the time `end`.

    here  what this machine is; results of another one are refused"""
    path = f'{config.out}/results.json'
    results = {'machine': here, 'steps': {}}  # steps: {name: see run}
    if os.path.exists(path):
        results = json.loads(Path(path).read_text(encoding='utf-8'))
    if results['machine'] != here:
        raise ValueError(
            f'{path} comes from {results["machine"]}, this is {here}: choose another --out'
        )

    steps = results['steps']
    for name, words, limit in commands(config, steps):
        command = shlex.join(['python', *words])
        if part_of(name) not in chosen or is_finished(steps.get(name), command):
            continue
        if config.toy:
            limit = 300
        if end - time.monotonic() < limit:
            print(f'left for later: {name}, which may take {limit} s', flush=True)
            continue
        print(command, flush=True)
        step = run(words, f'{config.out}/{name}.txt', limit)
        print(f'    {step["seconds"]:,.0f} s {step["failed"]}', flush=True)
        steps[name] = step
        save(results, path, config)
    report(steps, config)


def is_finished(step, command):
    """Whether a step, or None, is of this command and has not failed."""
    return step is not None and not step['failed'] and step['command'] == command


def part_of(name):
    """Return the part of a command, with which its name begins."""
    return name.split('_')[0]


def run(words, path, limit):
    """Run a command, whose output goes to `path`.

    Returns {'command', 'seconds', 'failed': why or '', 'text', 'rows': see read_rows}."""
    failed = ''
    began = time.perf_counter()
    with open(path, 'w', encoding='utf-8') as f:
        try:
            subprocess.run([sys.executable, *words], stdout=f, stderr=f, timeout=limit, check=True)
        except subprocess.CalledProcessError as e:
            failed = f'ended with code {e.returncode}'
        except subprocess.TimeoutExpired:
            failed = f'took more than {limit} s'
    said = Path(path).read_text(encoding='utf-8', errors='replace')
    text = re.sub(r'[^\n]*\r', '', said)  # without bars
    return {
        'command': shlex.join(['python', *words]),
        'seconds': round(time.perf_counter() - began, 1),
        'failed': failed,
        'text': text,
        'rows': read_rows(text),
    }


def read_rows(text):
    """Return the lines that hold two numbers or more, [{'label', 'numbers'}].

    The label stands before the first digit."""
    rows = []
    for line in text.splitlines():
        numbers = re.findall(r'(?<!\S)-?\d[\d,]*\.?\d*(?=%?(?!\S))', line)
        if len(numbers) > 1:
            before = re.match(r'\D*', line)[0]
            label = ' '.join(before.split())
            rows.append({'label': label, 'numbers': [float(n.replace(',', '')) for n in numbers]})
    return rows


def save(results, path, config):
    """Write the results to `path`, and the page and its JSON file."""
    write_json(path, results)
    write_json(f'{config.pages}/{config.name}.json', results)
    replace_file(f'{config.pages}/{config.name}.md', page(results, config).encode())


def page(results, c):
    """Return the Markdown page: nothing stands on it that no command has said."""
    machine = results['machine']
    lines = [f'# {machine["device"]}', '', f'{machine}, by `python results/gpu/run.py`.']
    if c.toy:
        lines += ['', '**Toy sizes: the commands run, and nothing is said of speed.**']
    for part in PARTS:
        made = {}
        for name, step in results['steps'].items():
            if part_of(name) == part:
                made[name] = step
        lines += section(part, made, c)
    return '\n'.join(lines) + '\n'


def section(part, made, c):
    """Return the lines of a part, whose commands have said `made`, {name: see run}."""
    question = PARTS[part]
    if not made:
        question += ' Not measured.'
    lines = ['', f'## {part}', '', question]
    for step in made.values():
        lines += ['', '```', f'$ {step["command"]}   ({step["seconds"]:,.0f} s)']
        lines += step['text'].splitlines()[-40:]
        if step['failed']:
            lines.append(f'FAILED: {step["failed"]}')
        lines.append('```')
    if 'text_curve' in made and not made['text_curve']['failed']:
        lines += ['', f'![nats per token by time]({c.name}_text.png)']
    return lines


def report(steps, config):
    """Say what was made. What failed ends the program."""
    failed = [name for name, step in steps.items() if step['failed']]
    n_finished = len(steps) - len(failed)
    print(f'{n_finished} commands finished: {config.pages}/{config.name}.md', flush=True)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


def main(config):
    """Run the chosen parts for so many minutes."""
    end = time.monotonic() + 60 * config.minutes
    chosen = config.parts.split(',')
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise ValueError(f'parts must be of {",".join(PARTS)}, got {",".join(unknown)}')

    # Name the machine
    device, _ = resolve_device(config.device, 'auto')
    config['device'] = str(device)
    here = environment(device)
    del here['commit']  # the pages are files of the project, and change it
    name = here['device'].removeprefix('NVIDIA ')
    config['name'] = re.sub(r'\W+', '_', name).lower()

    # Make the folders
    os.chdir(ROOT)
    for option in ('out', 'pages'):
        check_folder(option, config[option])
        os.makedirs(config[option], exist_ok=True)

    with locked(config.out):  # also because two programs would time each other
        run_all(config, chosen, end, here)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
