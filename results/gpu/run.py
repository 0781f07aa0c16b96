"""The first hour on a GPU, in 25 minutes: is the code right there, how fast is it, and what does a model learn?

    python results/gpu/run.py
    python results/gpu/run.py --parts=equalities,train --minutes=9   # stops before; the same command goes on
    python results/gpu/run.py --device=cpu --toy=True --out=out/gpu_toy --pages=out/gpu_toy

Needs torch 2.11 or newer and requirements.txt, but no network: the text is `books` in data_dir, else from Python.

A command begins when all of its limit is left of the minutes, and is ended at its limit. What is finished is not run
again; what failed, was ended or interrupted is. After every command results.json in `out` has all commands, their
seconds, what they said and the numbers of their tables. NAME.json and the page NAME.md in `pages` say the same; NAME is
the device's. What each command says, checkpoints and data that are missing are in `out` too."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
import json
import re
import shlex
import subprocess
import time
from pathlib import Path

from anyorder.machine.devices import resolve_device
from anyorder.machine.files import check_folder, read_table, replace_file, write_json
from anyorder.machine.locks import locked
from anyorder.machine.processes import environment
from anyorder.machine.terminal import one_line_errors
from configurator import configure

TABLE = read_table(os.path.join(ROOT, 'results', 'gpu', 'commands.ini'))
PARTS = dict(TABLE['parts'])

parts = ','.join(PARTS)   # in this order
minutes = 25.0            # all parts together
out = 'out/gpu'           # outputs and checkpoints
pages = 'results/gpu'     # where the JSON file and the page go
data_dir = 'data'         # where prepared sets are
device = 'auto'           # 'cuda', 'cpu', ...
toy = False               # sizes for a CPU: tries the commands, says nothing of speed


def commands(c, steps):
    """Yields (PART_name, words of its command, seconds at most). Training takes as long as rates in `steps` let it."""
    text, vocabulary = f'--dataset=pydocs --data_dir={c.out}/data', '--vocab_size=320 --n_tokens=257'
    if os.path.exists(os.path.join(c.data_dir, 'books')):
        text, vocabulary = f'--dataset=books --data_dir={c.data_dir}', '--vocab_size=50304 --n_tokens=50257'
    values, left_out = c | {'text': text, 'vocabulary': vocabulary}, TABLE['toy']['left_out'].split() if c.toy else ()
    for part in PARTS:
        for name, line in TABLE[part].items():
            if name == 'updates':
                seconds, tokens, n_validations = map(int, line.split())
                rates = [row['numbers'][1] for row in steps.get(f'{part}_rate', {}).get('rows', ())
                         if row['label'].startswith('ours')]
                if not rates:
                    break
                n = max(1, int(seconds * rates[0] / tokens))
                values |= {'updates': n, 'interval': n // n_validations + 1}
            elif name not in left_out and not (c.device == 'cpu' and name.endswith('_graphs')):
                limit, script, *more = shlex.split(line.format(**values))
                more += [] if script in ('plot.py', 'data/puzzles.py') else [f'--device={c.device}']
                more += shlex.split(TABLE['toy'].get(script, '')) if c.toy else []
                yield name, [script, *more], int(limit)


def run(words, path, limit):
    """Run a command, whose output goes to `path`. Returns {'command', 'seconds', 'failed', 'text', 'rows'}. Rows are
    the lines that hold two numbers or more, {'label', 'numbers'}; the label stands before the first digit."""
    began, failed = time.perf_counter(), ''
    with open(path, 'w', encoding='utf-8') as f:
        try:
            subprocess.run([sys.executable, *words], stdout=f, stderr=f, timeout=limit, check=True)
        except subprocess.CalledProcessError as e:
            failed = f'ended with code {e.returncode}'
        except subprocess.TimeoutExpired:
            failed = f'took more than {limit} s'
    text = re.sub(r'[^\n]*\r', '', Path(path).read_text(encoding='utf-8', errors='replace'))   # without bars
    found = ((line, re.findall(r'(?<!\S)-?\d[\d,]*\.?\d*(?=%?(?!\S))', line)) for line in text.splitlines())
    rows = [{'label': ' '.join(re.match(r'\D*', line)[0].split()),
             'numbers': [float(number.replace(',', '')) for number in numbers]}
            for line, numbers in found if len(numbers) > 1]
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
    device, _ = resolve_device(config.device, 'auto')
    config['device'], here = str(device), environment(device)
    del here['commit']   # the pages are files of the project, and change it
    config['name'] = re.sub(r'\W+', '_', here['device'].removeprefix('NVIDIA ')).lower()
    os.chdir(ROOT)
    for option in ('out', 'pages'):
        check_folder(option, config[option])
        os.makedirs(config[option], exist_ok=True)
    with locked(config.out):   # also because two programs would time each other
        run_all(config, chosen, end, here)


def run_all(config, chosen, end, here):
    """Run the commands of the parts `chosen` that are not finished, until the time `end`, on the machine `here`."""
    path, results = f'{config.out}/results.json', {'machine': here, 'steps': {}}   # steps: {name: see run}
    if os.path.exists(path):
        results = json.loads(Path(path).read_text(encoding='utf-8'))
    if results['machine'] != here:
        raise ValueError(f'{path} comes from {results["machine"]}, this is {here}: choose another --out')
    steps = results['steps']
    for name, words, limit in commands(config, steps):
        old, limit = steps.get(name), 300 if config.toy else limit
        command = shlex.join(['python', *words])
        if name.split('_')[0] not in chosen or old and not old['failed'] and old['command'] == command:
            continue
        if end - time.monotonic() < limit:
            print(f'left for later: {name}, which may take {limit} s', flush=True)
            continue
        print(command, flush=True)
        steps[name] = run(words, f'{config.out}/{name}.txt', limit)
        print(f'    {steps[name]["seconds"]:,.0f} s {steps[name]["failed"]}', flush=True)
        write_json(path, results)
        write_json(f'{config.pages}/{config.name}.json', results)
        replace_file(f'{config.pages}/{config.name}.md', page(results, config).encode())
    failed = [name for name, step in steps.items() if step['failed']]
    print(f'{len(steps) - len(failed)} commands finished: {config.pages}/{config.name}.md', flush=True)
    if failed:
        sys.exit(f'failed: {", ".join(failed)}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
