"""The findings, at a size of minutes to hours: train what one needs, evaluate it, draw its figures, print its tables.

    python config/findings/run.py orders --seeds=1,2,3
    python config/findings/run.py sudoku --jobs=2 --data_dir=elsewhere
    python config/findings/run.py orders --out=out/longer -- --max_iters=12000

A table has the mean over the seeds, its standard error and their number. What is finished is not made again, unless it
evaluates weights or data that are others now. Make one finding at a time in a folder, since they share runs. Options
behind -- go to every train.py."""
import hashlib
import itertools
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.machine.files import read_table
from anyorder.machine.locks import locked
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.meta import read_meta
from configurator import at_least, configure, numbers

seeds = '1,2'          # one training each, with commas between
jobs = 1               # commands at a time, each on one core if there are more than one
out = 'out/findings'   # where logs, checkpoints, evaluations and figures go
data_dir = 'data'      # where prepared sets are; what is missing is made there

TABLE = read_table(os.path.join(ROOT, 'config', 'findings', 'findings.ini'))
RUNS, EVALUATIONS = TABLE['runs'], TABLE['evaluations']
WORDS = {name: TABLE[name]['about'] for name in TABLE.sections() if name not in ('runs', 'evaluations')}


def read_finding(name):
    """({picture: (options of plot.py, {label: RUN or RUN/EVALUATION})}, name of its set, words that make the set)."""
    rest = dict(TABLE[name])
    dataset, *command = rest.pop('data', 'pydocs data/prepare.py pydocs').split()
    del rest['about']
    figures = {}
    for picture, text in rest.items():
        options, *lines = text.split('\n')
        figures[picture] = options.split(), dict(line.split(' = ') for line in lines)
    return figures, dataset, command


def path_of(line, seed, c):
    """The folder of a run, or the JSON file of its evaluation: what plot.py reads."""
    return f'{c.out}/{line.replace("/", "_")}_seed{seed}' + '.json' * ('/' in line)


def plan(lines, c, more):
    """[{path: words of its command}]: trainings, trainings that start from their weights, evaluations."""
    stages, where = ({}, {}, {}), [f'--data_dir={c.data_dir}'] * ('data_dir' in c.given)
    for line, seed in itertools.product(lines, map(str, numbers(c, 'seeds'))):
        run, _, evaluation = line.partition('/')
        options = [word.replace('SEED', seed).replace('OUT', c.out) for word in RUNS[run].split()]
        folder, path = path_of(run, seed, c), path_of(line, seed, c)
        stages['--init_from' in RUNS[run]][folder] = ['train.py', *options, *more, f'--seed={seed}',
                                                      f'--out_dir={folder}', *where]
        if evaluation:
            script, *options = EVALUATIONS[evaluation].split()
            stages[2][path] = [script, f'--ckpt={folder}/ckpt.pt', *options, f'--out={path}']
    return stages


def read_by(words, dataset, c):
    """A line of what a command reads: hashes of the weights that its options name, and of its sets by meta.json. A
    training reads two splits of the set of its finding."""
    options = dict(word.partition('=')[::2] for word in words)
    found = [f'{path} {hash_of(path)}' for path in options.values() if path.endswith('.pt') and os.path.isfile(path)]
    for name in dict.fromkeys([dataset, *filter(None, [options.get('--dataset')])]):
        meta = read_meta(os.path.join(c.data_dir, name))
        splits = meta.splits if meta else {}
        found += [f'{name}/{split} {info.sha256[:16]}' for split, info in splits.items()
                  if words[0] != 'train.py' or split in ('train', 'val')]
    return f'reads {", ".join(found)}'


def hash_of(path):
    with open(path, 'rb') as f:
        sha = hashlib.sha256()
        while chunk := f.read(2 ** 20):
            sha.update(chunk)
    return sha.hexdigest()[:16]


def is_made(path, words, reads):
    """Whether this command has made `path` of what it `reads` now: what it said is then in `path`.txt, under both.
    Evaluations of other weights or data are made anew; trainings are hours, and refused."""
    if not os.path.exists(f'{path}.txt'):
        return False
    made_by, of, *_ = f'{Path(f"{path}.txt").read_text(encoding="utf-8")}\n\n'.split('\n')
    if made_by.rstrip() != shlex.join(['python', *words]):
        raise ValueError(f'{path} was made by other options, {made_by}: choose another --out')
    same = of == reads or not of.startswith('reads ')   # which older ones do not say
    if not same and words[0] == 'train.py':
        raise ValueError(f'{path} was made of other data or weights ({of}; now it {reads}): choose another --out')
    return same


def make(path, words, read):
    """Run the command, unless another program has made `path` meanwhile. What it says is in `path`.part until it has
    ended well, then in `path`.txt. `read` gives of the words what read_by says."""
    with locked(path):
        reads = read(words)
        if not is_made(path, words, reads):
            run(path, words, reads)


def run(path, words, reads):
    command = shlex.join(['python', *words])
    print(f'{command}\n', end='', flush=True)   # in one piece, beside other jobs
    with open(f'{path}.part', 'w', encoding='utf-8') as f:
        print(f'{command}\n{reads}', file=f, flush=True)
        code = subprocess.run([sys.executable, *words], stdout=f, stderr=f, check=False).returncode
    if code:
        print(f'failed, and {path}.part has what it said: {command}', flush=True)   # others may run for an hour
        raise ValueError(f'{command} ended with code {code}: {path}.part has what it said')
    os.replace(f'{path}.part', f'{path}.txt')


def make_all(stages, jobs, read):
    """Make what is not made, `jobs` commands at a time, one stage after the other. After a failure none begins."""
    def to_make(stage):
        return [(path, words) for path, words in stage.items() if not is_made(path, words, read(words))]

    for stage in stages:
        to_make(stage)   # what is refused is refused before the work
    for stage in stages:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed([pool.submit(make, *item, read) for item in to_make(stage)]):
                    done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def main(config, more):
    """`more` are the options behind --."""
    at_least(config, 1, 'jobs')
    numbers(config, 'seeds')
    os.chdir(ROOT)
    os.makedirs(config.out, exist_ok=True)
    if config.jobs > 1:
        os.environ['OMP_NUM_THREADS'] = '1'
    name, = config.words
    figures, dataset, command = read_finding(name)
    for picture, (_, lines) in list(figures.items()):
        wanted = [EVALUATIONS.get(line.partition('/')[2], '').partition('--dataset=')[2] for line in lines.values()]
        if any(name and not os.path.exists(os.path.join(config.data_dir, name)) for name in wanted):
            print(f'left out: {picture}, whose puzzles are not in {config.data_dir}')
            del figures[picture]
    stages = plan([line for _, lines in figures.values() for line in lines.values()], config, more)
    if not os.path.exists(os.path.join(config.data_dir, dataset)):
        subprocess.run([sys.executable, *command, f'--data_dir={config.data_dir}'], check=True)
    make_all(stages, config.jobs, lambda words: read_by(words, dataset, config))
    for picture, (options, lines) in figures.items():
        paths = [path_of(line, seed, config) for line in lines.values() for seed in numbers(config, 'seeds')]
        words = ['plot.py', '-o', f'{config.out}/{picture}.png', *options, f'--labels={",".join(lines)}', *paths]
        subprocess.run([sys.executable, *words], check=True)


if __name__ == '__main__':
    with one_line_errors():
        at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
        main(configure(globals(), sys.argv[1:at]), sys.argv[at + 1:])
