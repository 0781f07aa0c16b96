"""
Commands whose output is kept: which were run, so that what is finished is not made again.

A command is ['python', script, ...]. What it says goes to `path`.txt, under a first line that says which command it
was; until it has ended, to `path`.part.
"""
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed


def is_made(path, command):
    """Whether `command` has made `path`. Raises ValueError if another command has."""
    if not os.path.exists(f'{path}.txt'):
        return False
    with open(f'{path}.txt', encoding='utf-8') as f:
        made_by = f.readline().rstrip()
    if made_by != shlex.join(command):
        raise ValueError(f'{path} was made by other options, {made_by}: choose another --out')
    return True


def what_it_said(path):
    """The output of the command that has made `path`."""
    with open(f'{path}.txt', encoding='utf-8') as f:
        return f.read().partition('\n')[2]


def make(path, command, seconds=None):
    """Run the command. Raises ValueError if it fails, or takes more than `seconds`, after which it is ended."""
    with open(f'{path}.part', 'w', encoding='utf-8') as f:
        print(shlex.join(command), file=f, flush=True)
        try:
            done = subprocess.run([sys.executable, *command[1:]], stdout=f, stderr=f, timeout=seconds, check=False)
            failure = done.returncode and f'ended with code {done.returncode}'
        except subprocess.TimeoutExpired:
            failure = f'took more than {seconds:.0f} s'
    if failure:
        with open(f'{path}.part', encoding='utf-8') as f:
            print(*f.read().splitlines()[-3:], sep='\n', flush=True)   # before others that run are waited for
        raise ValueError(f'{shlex.join(command)} {failure}: {path}.part has what it said')
    os.replace(f'{path}.part', f'{path}.txt')


def make_all(commands, jobs):
    """Make what is not made of {path: command}, `jobs` at a time. After a failure no other begins."""
    missing = [item for item in commands.items() if not is_made(*item)]

    def make_one(number, path, command):
        print(f'[{number}/{len(missing)}] {shlex.join(command)}', flush=True)
        make(path, command)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(make_one, number, *item) for number, item in enumerate(missing, 1)]
        try:
            for done in as_completed(waiting):
                done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
