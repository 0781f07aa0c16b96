"""Is all right on a GPU, and how fast is it? One command of 12 minutes, which goes on where it
stopped.

    python results/gpu/run.py
    python results/gpu/run.py --minutes=9.5
    python results/gpu/run.py --parts=candidates
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy

Needs torch 2.11 or newer and requirements.txt, but no network.

Commands run in the order of their worth. One begins when the seconds that it is expected to take
are left of the minutes, and is ended at its limit, or with the minutes. What was left for later is
said at the end, with the command that goes on. What is finished is not run again; what failed, was
ended or interrupted is. Another `out` measures anew. After every command results.json in `out` has
all commands, their seconds and what they said. The page NAME.md beside it says the same; NAME is
the device's. What wants more memory than the device has is left out with a line on the page."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
import json
import re
import shlex
import subprocess
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from anyorder.machine.files import check_folder, replace_file, write_json
from anyorder.machine.terminal import one_line_errors
from configurator import configure

# the questions that the parts answer
PARTS = {
    'equalities': (
        'Is the code right on this device? Cached, frozen, compiled, with graphs, in parts.'
    ),
    'generation': (
        'How long do texts of 1,024 tokens take, in the first call of a process and in a later '
        "one, and what share of the device's limit is it? Beside ours stand the plain way, as the "
        'released code writes, and GPT-2 in transformers from left to right.'
    ),
    'training': (
        'How many tokens a second does an update of `config/ao_gpt_small.py` train, and GPT-2 of '
        "the same width as nanoGPT trains it? MFU is the share of the data sheet's peak."
    ),
    'ensemble': 'Is the context ensemble faster than the plain way here too?',
    'small': (
        'Does the first run of the README end where a CPU did, at 2.2042 nats in any order and '
        '1.9781 from left to right? Another machine may differ by 0.08.'
    ),
    'sudoku': (
        'Decoder, encoder and mixed network after equal updates of Sudoku: which solves more?'
    ),
    'updates': 'Updates of 16 rows: how fast are those of GPT-2, and ours without torch.compile?',
    'steps': (
        'Texts by other networks in 256 and 1,024 steps; and by the policy margin, whose steps '
        'have more sizes: how long does its first call take?'
    ),
    'candidates': (
        'Which attention is the fastest for few queries, and which change would make training '
        'faster? Each by itself, in turns with the update as it is. One is kept only where such a '
        'pair shows that it pays.'
    ),
}

parts = 'equalities,generation,training,ensemble,small'  # or others of PARTS, with commas
minutes = 12.0  # all commands together
out = 'out/gpu'  # page, outputs and checkpoints
device = 'auto'  # 'cuda', 'cpu', ...
toy = False  # sizes for a CPU: tries the commands, says nothing of speed

# PART_name, seconds expected on an H100 (see README.md), seconds at most, GiB that a GPU must have,
# and what stands behind `python`; names in braces are of FIELDS
COMMANDS = """
equalities 60 150 4 -m pytest -o addopts= -q tests/test_on_device.py

generation_32 40 120 8 {texts} --batch_size=32 --n_steps=64,256,1024 --compile=True \\
    --plain=64,256 --repeats=2
generation_encoder 25 75 8 {texts} --batch_size=32 --n_steps=64 --network=encoder --compile=True
generation_32_graphs 20 60 8 {texts} --batch_size=32 --n_steps=64,256,1024 --compile=auto \\
    --plain= --windows=
generation_call 25 60 8 {call} --n_steps=64,1024
generation_1 20 60 4 {texts} --batch_size=1 --n_steps=64,1024 --compile=True --plain= --windows=
generation_mixed 15 60 8 {texts} --batch_size=32 --n_steps=64 --network=mixed
generation_two_stream 15 60 8 {texts} --batch_size=32 --n_steps=64 --network=two_stream --windows=
generation_many 15 60 {many_gib} {texts} --batch_size={many} --n_steps=64 --compile=auto \\
    --plain= --windows=
generation_gpt2 60 150 8 {gpt2} generation --repeats=1
generation_encoder_graphs 15 60 8 {texts} --batch_size=32 --n_steps=64 --network=encoder \\
    --compile=auto
generation_32_eager 15 60 8 {texts} --batch_size=32 --n_steps=64 --compile=False --plain= --windows=

training_32 50 120 23 {train} --batch_size=32
training_32_gpt2 50 90 23 {gpt2} training --batch_size=32
training_64 55 120 43 {train} --batch_size=64
training_16 50 120 14 {train} --batch_size=16
training_64_gpt2 55 90 43 {gpt2} training --batch_size=64

ensemble 20 90 4 {speed} ensemble {small} --n_positions=64

small 50 120 2 train.py config/quickstart.py --data_dir={out}/data --out_dir={out}/small

sudoku_data 30 90 0 -m anyorder.extras.puzzles make sudoku {data} \\
    --n_train=16000 --n_val=100 --n_test=200
sudoku_rate 15 60 4 {speed} train --plain=False {sudoku} --vocab_size=64 --n_tokens=10 {kept}
sudoku_decoder 45 75 4 {learn}/sudoku_decoder --network=decoder,gate_init=1
sudoku_decoder_solved 20 60 4 {solve} --ckpt={out}/sudoku_decoder/ckpt.pt
sudoku_encoder 45 75 4 {learn}/sudoku_encoder --network=encoder,gate_init=1
sudoku_encoder_solved 20 60 4 {solve} --ckpt={out}/sudoku_encoder/ckpt.pt
sudoku_mixed 45 75 4 {learn}/sudoku_mixed --network=mixed,gate_init=1
sudoku_mixed_solved 20 60 4 {solve} --ckpt={out}/sudoku_mixed/ckpt.pt

updates_16_gpt2 50 90 14 {gpt2} training --batch_size=16
updates_16_eager 15 60 16 {train} --batch_size=16 --compile=False

steps_margin 40 120 20 {call} --n_steps=64,256 --policy=margin
steps_encoder 40 90 8 {texts} --batch_size=32 --n_steps=256 --network=encoder --compile=True
steps_mixed 30 90 8 {texts} --batch_size=32 --n_steps=256 --network=mixed
steps_two_stream 20 90 8 {texts} --batch_size=32 --n_steps=256 --network=two_stream --windows=
steps_encoder_1024 100 180 8 {texts} --batch_size=32 --n_steps=1024 --network=encoder
steps_mixed_1024 80 150 8 {texts} --batch_size=32 --n_steps=1024 --network=mixed
steps_two_stream_1024 50 120 8 {texts} --batch_size=32 --n_steps=1024 --network=two_stream \\
    --windows=

candidates_attention 90 240 4 results/gpu/attention.py
candidates_by_row 90 150 {pair_gib} {pair} by_row --batch_size={pair_rows}
candidates_token_loss 90 150 {pair_gib} {pair} token_loss --batch_size={pair_rows}
candidates_linear_cross_entropy 90 150 {pair_gib} {pair} linear_cross_entropy \\
    --batch_size={pair_rows}
candidates_residual 90 150 {pair_gib} {pair} residual --batch_size={pair_rows}
candidates_graph 30 60 4 {pair} graph {quickstart} --n_updates=100 --compile=False
candidates_one_hot 90 150 {pair_gib} {pair} one_hot --batch_size={pair_rows}
candidates_index_add 90 150 {pair_gib} {pair} index_add --batch_size={pair_rows}
"""
FIELDS = {
    'speed': '-m anyorder.extras.speed',
    'texts': '{speed} sample {small} --repeats=1 {kept}',
    'train': '{speed} train {small} --plain=False --n_updates=10 {kept}',
    'gpt2': 'results/gpu/gpt2.py {kept}',
    'call': 'results/gpu/call.py {kept}',
    'pair': 'results/gpu/candidates.py {kept}',
    'quickstart': '--n_layer=2 --n_head=3 --n_embd=96 --block_size=64 --vocab_size=320 '
    '--n_tokens=257 --optimizer=muon:0.04',
    'kept': '--out={out}/{name}.json',
    'learn': 'train.py config/sudoku.py {data} {sudoku} {updates} --out_dir={out}',
    'solve': '-m anyorder.extras.puzzles solve {data} --orders=random,margin --n_puzzles=200',
    'data': '--data_dir={out}/data',
    'small': '--n_layer=12 --n_head=12 --n_embd=768',
    'sudoku': '--n_layer=6 --n_head=8 --n_embd=256 --block_size=81 --batch_size=256 '
    '--optimizer=muon:0.04 --compile=False',
}
# seconds of training, tokens of an update, validations
TRAINED = {'sudoku': (25, 20736, 2)}
NO_DEVICE = ('-m anyorder.extras.puzzles make',)
TINY = '--n_layer=1 --n_head=2 --n_embd=32'
TIMED_ONCE = f'{TINY} --block_size=64 --vocab_size=320 --n_tokens=257'
TIMED = f'{TIMED_ONCE} --repeats=1'
# how a command begins, and what comes last in a toy run, and so overrides what stands before
TOY = {
    '-m pytest': "-k 'paper and steps'",
    '-m anyorder.extras.speed train': f'{TIMED} --batch_size=2 --n_updates=1 --compile=False',
    '-m anyorder.extras.speed sample': f'{TIMED} --batch_size=2 --n_steps=8 --plain=8',
    '-m anyorder.extras.speed ensemble': f'{TIMED} --n_positions=8 --n_contexts=2 --n_plain=4',
    'results/gpu/gpt2.py': f'{TIMED} --batch_size=2 --n_updates=1 --compile=False',
    'results/gpu/call.py': f'{TIMED_ONCE} --batch_size=2 --n_steps=8',
    'results/gpu/candidates.py': f'{TIMED_ONCE} --batch_size=2 --n_updates=1 --turns=2 '
    '--compile=False',
    'results/gpu/attention.py': f'{TINY} --block_size=64 --batch_size=2 --n_keys=64 --repeats=1',
    'train.py': f'{TINY} --batch_size=2 --compile=False --max_iters=2 --eval_interval=1 '
    '--warmup_iters=1 --eval_iters=1',
    '-m anyorder.extras.puzzles make': '--n_train=200',
    '-m anyorder.extras.puzzles solve': '--n_puzzles=4',
}


def main(config):
    """Run the chosen parts for so many minutes."""
    end = time.monotonic() + 60 * config.minutes
    chosen = config.parts.split(',')
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise ValueError(f'parts must be of {",".join(PARTS)}, got {",".join(unknown)}')
    os.chdir(ROOT)
    check_folder('out', config.out)
    os.makedirs(config.out, exist_ok=True)
    machine = machine_of(config.device)
    config['device'] = machine['device type']
    results = open_results(config, machine)
    later = []
    for line in re.sub(r'\\\n *', '', COMMANDS).splitlines():
        if part_of(line) in chosen:
            job = job_of(line, results, config)
            if job is not None and not run_in_time(job, results, config, end):
                later.append(job.name)
    keep(results, config)
    report(results['steps'], later, config)


def part_of(name):
    """Return the part of a command, with which its name begins."""
    return re.match(r'[a-z]*', name)[0]


def machine_of(device):
    """Return what machine.py says, in a process of its own."""
    ask = [sys.executable, 'results/gpu/machine.py', f'--device={device}']
    asked = subprocess.run(ask, capture_output=True, text=True)
    if asked.returncode:
        raise ValueError(asked.stderr.strip().removeprefix('error: '))
    return json.loads(asked.stdout)


def open_results(config, machine):
    """Return what was run before: {'machine', 'commits': [], 'steps': {name: see run}, 'too large':
    {name: why}}. A folder has one machine."""
    commit = machine.pop('commit')
    results = {'machine': machine, 'commits': [], 'steps': {}}
    path = Path(config.out, 'results.json')
    if path.exists():
        results = json.loads(path.read_text(encoding='utf-8'))
    if results['machine'] != machine:
        raise ValueError(
            f'{path} comes from {results["machine"]}, this is {machine}: choose another --out'
        )
    results['too large'] = {}
    now = f'{commit} on {time.strftime("%Y-%m-%d")}'
    if now not in results['commits']:
        results['commits'].append(now)
    return results


class Job(NamedTuple):
    name: str
    expected: int  # seconds on one H100
    limit: int  # seconds at most
    command: str  # what stands behind `python`


def job_of(line, results, config):
    """Return the Job of a line of COMMANDS; None if it waits for another, or is too large."""
    name, expected, limit, need, command = line.split(maxsplit=4)
    learned = updates(part_of(name), results['steps'])
    waits = part_of(name) in TRAINED and not name.endswith(('_rate', '_data'))
    if waits and not learned:
        return None
    fields = {'name': name, 'updates': learned, 'out': shlex.quote(config.out)}
    fields |= rows_that_fit(results['machine']['GiB'])
    there = results['machine']['GiB']
    needed = float(filled(need, fields))
    if there is not None and needed > there:
        results['too large'][name] = f'wants about {needed:g} GiB, the device has {there:g}'
        return None
    command = filled(command, fields)
    if not command.startswith(NO_DEVICE):
        command += f' --device={config.device}'
    if config.device == 'cpu':
        command = command.replace(' --compile=True', '')
    if config.toy:
        more = [f' {more}' for start, more in TOY.items() if command.startswith(start)]
        command += ''.join(more)
        limit = 300
    return Job(name, int(expected), int(limit), command)


def rows_that_fit(gib):
    """Return the fields of batches that a small device has in a smaller size.

    512 rows of texts took 23.1 GiB; a pair of updates has a second model beside the first."""
    fields = {'many': 512, 'many_gib': 25, 'pair_rows': 32, 'pair_gib': 27}
    if gib is None or gib < 25:
        fields |= {'many': 256, 'many_gib': 13}
    if gib is None or gib < 27:
        fields |= {'pair_rows': 16, 'pair_gib': 17}
    return fields


def filled(text, fields):
    """Return a text with its fields."""
    while '{' in text:
        text = text.format(**FIELDS, **fields)
    return text


def updates(part, steps):
    """Return the options for as many updates as fit, by what PART_rate has said; None before."""
    rate = steps.get(f'{part}_rate')
    if not rate or not rate['rows']:
        return None
    seconds, n_tokens, n_validations = TRAINED[part]
    n = max(1, int(seconds * rate['rows'][0]['tokens_per_sec'] / n_tokens))
    interval = n // n_validations + 1
    return f'--max_iters={n} --eval_interval={interval}'


def run_in_time(job, results, config, end):
    """Run a job that is not finished; return False if there is too little time for it until `end`.

    It begins when the seconds are left that it is expected to take."""
    done = results['steps'].get(job.name)
    if done and not done['failed'] and done['command'] == f'python {job.command}':
        return True
    left = end - time.monotonic()
    if left < job.expected:
        return False
    print(f'python {job.command}', flush=True)
    step = results['steps'][job.name] = run(job, config.out, left)
    print(f'    {step["seconds"]:,.0f} s {step["failed"]}', flush=True)
    keep(results, config)
    return step['failed'] != MINUTES_ENDED


MINUTES_ENDED = 'was ended with the minutes'


def run(job, out, left):
    """Run a job, for at most `left` seconds. Its output goes to a file in `out`.

    Returns {'command', 'seconds', 'failed': why or '', 'text', and what its --out has: 'config',
    'rows'}."""
    failed = ''
    kept = Path(out, f'{job.name}.json')
    kept.unlink(missing_ok=True)
    path = Path(out, f'{job.name}.txt')
    began = time.perf_counter()
    words = [sys.executable, *shlex.split(job.command)]
    limit = min(job.limit, left)
    with open(path, 'w', encoding='utf-8') as f:
        try:
            subprocess.run(words, stdout=f, stderr=f, timeout=limit, check=True)
        except subprocess.CalledProcessError as e:
            failed = f'ended with code {e.returncode}'
        except subprocess.TimeoutExpired:
            failed = MINUTES_ENDED
            if limit == job.limit:
                failed = f'took more than {limit} s'
    seconds = round(time.perf_counter() - began, 1)
    said = path.read_bytes().decode(errors='replace').replace('\r\n', '\n')
    if failed and 'out of memory' in said:
        failed += ', out of memory'
    step = {'command': f'python {job.command}', 'seconds': seconds, 'failed': failed}
    step |= {'text': re.sub(r'[^\n]*\r', '', said), 'config': {}, 'rows': []}  # without bars
    if kept.exists():
        figures = json.loads(kept.read_text(encoding='utf-8'))
        step |= {'config': figures['config'], 'rows': figures['rows']}
    return step


def keep(results, config):
    """Write results.json and the page."""
    write_json(f'{config.out}/results.json', results)
    replace_file(page_path(results, config), '\n'.join(page(results, config)).encode() + b'\n')


def page_path(results, config):
    device = results['machine']['device'].removeprefix('NVIDIA ')
    return os.path.join(config.out, re.sub(r'\W+', '_', device).lower() + '.md')


def report(steps, later, config):
    """Say what was made, and how to go on. What failed ends the program."""
    failed = [name for name, step in steps.items() if step['failed'] and name not in later]
    finished = [name for name, step in steps.items() if not step['failed']]
    print(f'{len(finished)} commands finished, see {config.out}', flush=True)
    if later:
        options = [f'--{name}={config[name]}' for name in config if name in config.typed]
        print(f'left for later: {", ".join(later)}; this goes on:')
        print(shlex.join(['python', 'results/gpu/run.py', *options]), flush=True)
    if failed:
        sys.exit(f'failed, and tried again by the same command: {", ".join(failed)}')


# --------------------------------------------------------------------------------------------------
# the page


def page(results, config):
    """Yield the lines of the Markdown page: nothing stands on it that no command has said."""
    machine = results['machine']
    memory = '' if machine['GiB'] is None else f', {machine["GiB"]:g} GiB'
    yield f'# {machine["device"]}'
    yield ''
    yield f'By `python results/gpu/run.py` of commit {", ".join(results["commits"])}.'
    yield ''
    yield '| device | driver | CUDA | torch | Python | numpy | dtype |'
    yield '|---|---|---|---|---|---|---|'
    versions = [machine[name] or '-' for name in ('driver', 'CUDA', 'torch', 'python', 'numpy')]
    yield table_row(machine['device'] + memory, *versions, machine['dtype'])
    if config.toy:
        yield ''
        yield '**Toy sizes: the commands run, and nothing is said of speed.**'
    for part, question in PARTS.items():
        yield from section(part, question, results)


def table_row(*cells):
    return f'| {" | ".join(str(cell) for cell in cells)} |'


def section(part, question, results):
    """Yield the lines of a part: its question, its table, what its commands said."""
    steps = {name: step for name, step in results['steps'].items() if part_of(name) == part}
    yield ''
    yield f'## {part}'
    yield ''
    yield from textwrap.wrap(question if steps else f'{question} Not measured.', 100)
    for name, why in results['too large'].items():
        if part_of(name) == part:
            yield ''
            yield f'Left out: {name} {why}.'
    has_rows = any(step['rows'] for step in steps.values())
    if part in TABLES and has_rows:
        yield ''
        yield from TABLES[part](steps.values())
    yield from commands([*steps.values()], part in TABLES)


def generation_table(steps):
    yield table_row('network', 'rows', 'way', 'passes', *HEADINGS)
    yield '|---|---|---|---|---|---|---|---|---|---|'
    for step in steps:
        config = step['config']
        for row in step['rows']:
            network = row.get('network') or config.get('network', 'GPT-2')
            way = row.get('name') or f'compile={config["compile"]}'
            if 'weights' in row:
                way += f', of which to look at the weights {1000 * row["weights"]:.1f} ms'
            if 'window' in row:
                way += f', lossless, window {row["window"]}'
            yield table_row(network, config['batch_size'], way, row['passes'], *times(row))


HEADINGS = ('first s', 'later s', 'ms a pass', 'of limit', 'peak GiB', 'plain s')


def times(row):
    """Yield what stands under HEADINGS."""
    yield f'{row["first"]:.2f}'
    yield f'{row["later"]:.3f}'
    yield f'{1000 * row["later"] / row["passes"]:.2f}'
    yield f'{row["of_limit"]:.1%}' if 'of_limit' in row else ''
    yield f'{row["peak_bytes"] / 2**30:.2f}'
    yield f'{row["plain"]:.2f}' if 'plain' in row else ''


def training_table(steps):
    yield table_row(
        '', 'rows', 'compiled', 'first s', 'ms an update', 'tokens/s', 'MFU', 'peak GiB'
    )
    yield '|---|---|---|---|---|---|---|---|'
    for step in steps:
        for row in step['rows']:
            speed = [f'{row["first"]:.1f}', f'{1000 * row["seconds"]:.1f}']
            speed += [f'{row["tokens_per_sec"]:,.0f}', f'{row["mfu"]:.1%}']
            peak = f'{row["peak_bytes"] / 2**30:.2f}'
            rows = step['config']['batch_size']
            yield table_row(row['name'], rows, row['compiled'], *speed, peak)


def candidates_table(steps):
    yield table_row(
        'change',
        'rows',
        'ms before',
        'ms after',
        'before / after',
        'by turns',
        'off before',
        'off after',
        'tokens/s',
        'MFU',
    )
    yield '|---|---|---|---|---|---|---|---|---|---|'
    for step in steps:
        for row in step['rows']:
            arms = [f'{1000 * row[arm]["seconds"]:.1f}' for arm in ('before', 'after')]
            turns = ' '.join(f'{ratio:.3f}' for ratio in row['ratios'])
            off = [f'{row[name]:.1e}' for name in ('off_before', 'off_after')]
            speed = [f'{row["after"]["tokens_per_sec"]:,.0f}', f'{row["after"]["mfu"]:.1%}']
            rows = step['config']['batch_size']
            yield table_row(row['name'], rows, *arms, f'{row["ratio"]:.3f}', turns, *off, *speed)


# how a part makes a table of its steps
TABLES = {
    'generation': generation_table,
    'steps': generation_table,
    'training': training_table,
    'updates': training_table,
    'candidates': candidates_table,
}
N_SHOWN = 24  # last lines of a command


def commands(steps, has_table):
    """Yield the commands of a part, and what they said that its table does not say."""
    told = [step for step in steps if has_table and step['rows'] and not step['failed']]
    if told:
        yield from fence([command_line(step) for step in told])
    for step in steps:
        if step in told:
            continue
        said = [line.rstrip() for line in step['text'].splitlines()[-N_SHOWN:]]
        if step['failed']:
            said.append(f'FAILED: {step["failed"]}')
        yield from fence([command_line(step), *said])


def command_line(step):
    return f'$ {step["command"]}   ({step["seconds"]:,.0f} s)'


def fence(lines):
    return ['', '```', *lines, '```']


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
