"""Run a finding by its name: train, evaluate, draw its pictures, print means and errors over seeds.

    python results/run.py
    python results/run.py orders --seeds=1,2,3
    python results/run.py sudoku --jobs=2 --data_dir=elsewhere
    python results/run.py orders --out=out/longer -- --max_iters=12000

Without a name it lists them. The same command goes on: what is finished is not made again, and a
training that was stopped is resumed. A table has the mean over the seeds, its standard error and
their number. Findings that share a folder share runs: make one at a time. Options behind -- go to
every train.py."""

import itertools
import os
import shlex
import subprocess
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.machine.locks import locked
from anyorder.machine.terminal import one_line_errors
from configurator import at_least, configure, numbers

seeds = '1,2'  # one training each, with commas between
jobs = 1  # commands at a time, each on one core if there are more than one
out = 'out/findings'  # where logs, checkpoints, evaluations and pictures go
data_dir = 'data'  # where prepared sets are; what is missing is made there

ENDED = 'ended well'  # the last line of what a command said


# a figure and a table: options of pictures, and lines {label: RUN or RUN/EVALUATION}
Picture = namedtuple('Picture', 'name options lines')


class Finding:
    """Its folder and what is compared, pictures, and the sets that it reads: first those that
    nothing of MADE_BY makes."""

    def __init__(self, about, *pictures, sets=('pydocs',)):
        self.about = about
        self.pictures = pictures
        self.sets = sets


def measured(evaluation, runs):
    """Return the lines of a picture that shows one evaluation of several runs, {label: RUN}."""
    return {label: f'{run}/{evaluation}' for label, run in runs.items()}


NETWORKS = {
    'decoder': 'base',
    'decoder without l2r': 'any',
    'encoder': 'encoder',
    'mixed': 'mixed',
    'two streams': 'two_stream',
}
SUDOKU = {'decoder': 'sudoku_decoder', 'encoder': 'sudoku_encoder', 'mixed': 'sudoku_mixed'}
PLATEAU = {
    'AdaLN': 'sudoku_decoder',
    'half the rates': 'sudoku_half',
    'added to each layer': 'sudoku_layer',
    'two streams at half the rates': 'sudoku_two_stream_half',
}
ZEBRA4 = {'decoder': 'zebra4_decoder', 'encoder': 'zebra4_encoder', 'mixed': 'zebra4_mixed'}
NAE_SAT = {'decoder': 'nae_sat_decoder', 'encoder': 'nae_sat_encoder', 'mixed': 'nae_sat_mixed'}
BY_ORDER = '--x=order --y=solved,right'
BY_ESTIMATE = '--x=estimate --y=nats_per_token'
COUNTDOWN = {
    'decoder': 'countdown_decoder',
    'encoder': 'countdown_encoder',
    'mixed': 'countdown_mixed',
}
COUNTDOWN_L2R = {'GPT': 'countdown_l2r'}
COUNTDOWN_LONG = {'decoder': 'countdown_decoder_long', 'encoder': 'countdown_encoder_long'}
COUNTDOWN_L2R_LONG = {'GPT': 'countdown_l2r_long'}

FINDINGS = {
    'orders': Finding(
        'paper: any order, left to right, and one fixed order, by blocks or random',
        Picture(
            'orders',
            '--y=val_own,val_l2r',
            {
                'left to right': 'l2r',
                'blocks of 4': 'block',
                'one permutation': 'fixed',
                'any order': 'any',
            },
        ),
    ),
    'l2r_data': Finding(
        'paper: without and with 10 % left-to-right sequences',
        Picture(
            'l2r_data',
            '--y=val_any,val_l2r',
            {'none left to right': 'any', '10 % left to right': 'base'},
        ),
    ),
    'positions': Finding(
        'paper: four ways to tell the target position, and rotary; Muon and AdamW',
        Picture(
            'positions',
            '--y=val_any,val_l2r',
            {
                'AdaLN': 'base',
                'added at the input': 'input',
                'the same in every layer': 'layer_shared',
                'another in every layer': 'layer',
                'AdaLN and rotary': 'rotary',
            },
        ),
        Picture(
            'positions_adamw',
            '--y=val_any,val_l2r',
            {
                'AdaLN': 'adamw',
                'added at the input': 'adamw_input',
                'the same in every layer': 'adamw_layer_shared',
                'another in every layer': 'adamw_layer',
                'AdaLN and rotary': 'adamw_rotary',
            },
        ),
    ),
    'gates': Finding(
        "paper: AdaLN gates that start at 0, as the paper's, or at 1; Muon and AdamW",
        Picture(
            'gates',
            '--y=val_any,val_l2r',
            {
                'Muon and gates from 1': 'base',
                'Muon and gates from 0': 'gates0',
                'AdamW and gates from 1': 'adamw',
                'AdamW and gates from 0': 'adamw_gates0',
            },
        ),
    ),
    'ema': Finding(
        'paper: no average of the weights, 0.99, 0.999',
        Picture(
            'ema',
            '--y=val_any,val_l2r',
            {'no average': 'ema_none', 'decay 0.99': 'base', 'decay 0.999': 'ema_0.999'},
        ),
    ),
    'ensemble': Finding(
        'paper: the context-order ensemble between decoder and encoder',
        Picture(
            'ensemble',
            BY_ESTIMATE,
            {
                'decoder': 'base/ensemble',
                'encoder': 'encoder/bound',
                'decoder with rotary': 'rotary/ensemble',
                'encoder with rotary': 'encoder_rotary/bound',
            },
        ),
    ),
    'networks': Finding(
        'networks: text by decoder, encoder, mixed network and two streams',
        Picture('networks', '--y=val_any', NETWORKS),
        Picture('networks_likelihood', BY_ESTIMATE, measured('likelihood', NETWORKS)),
    ),
    'two_stream': Finding(
        'networks: two streams against AdaLN, without and with rotary, and wider for as long',
        Picture(
            'two_stream',
            '--y=val_any,val_l2r',
            {
                'AdaLN': 'base',
                'two streams': 'two_stream',
                'AdaLN and rotary': 'rotary',
                'two streams and rotary': 'two_stream_rotary',
            },
        ),
        Picture(
            'two_stream_wide',
            '--y=val_any,val_l2r',
            {'AdaLN': 'wide', 'AdaLN for as long': 'wide_longer', 'two streams': 'wide_two_stream'},
        ),
    ),
    'adaptation': Finding(
        'adaptation: a left-to-right model adapted to any order, beside training from scratch',
        Picture('adaptation_before', '--y=val_l2r', {'left to right': 'before'}),
        Picture(
            'adaptation',
            '--x=iter --y=val_any,val_l2r',
            {
                'adapted': 'adapted',
                'adapted at a quarter of the rate': 'adapted_gently',
                'from scratch': 'scratch',
                'from scratch for as long': 'base',
            },
        ),
    ),
    'swaps': Finding(
        'paper: one order each between left to right and random; an any-order model along them',
        Picture(
            'swaps',
            '--y=val_own',
            {
                'left to right': 'swaps_l2r',
                '16 swaps': 'swaps_16',
                '26 swaps': 'swaps_26',
                'one permutation': 'swaps_fixed',
                'any order': 'swaps_any',
            },
        ),
        Picture('swaps_along', BY_ESTIMATE, {'any order': 'swaps_any/along'}),
    ),
    'sudoku': Finding(
        'networks: 9 x 9 Sudoku by decoder, encoder and mixed network; 12 minutes a run',
        Picture('sudoku', '--y=val_any', SUDOKU),
        Picture('sudoku_solved', BY_ORDER, measured('solved', SUDOKU)),
        sets=('sudoku_60k',),
    ),
    'graded': Finding(
        'networks: the same on two sets that others graded; needs data/graded and data/diabolical',
        Picture('sudoku_graded', BY_ORDER, measured('graded', SUDOKU)),
        Picture('sudoku_diabolical', BY_ORDER, measured('diabolical', SUDOKU)),
        sets=('graded', 'diabolical', 'sudoku_60k'),
    ),
    'plateau': Finding(
        'plateau: a 9 x 9 decoder at lower rates, and how a slot is told its target; '
        '13 to 27 minutes a run',
        Picture('plateau', '--y=val_any', PLATEAU),
        Picture('plateau_solved', BY_ORDER, measured('solved', PLATEAU)),
        sets=('sudoku_60k',),
    ),
    'zebra4': Finding(
        'puzzles: Zebra puzzles of 3 or 4 houses by the same; 15 minutes a run',
        Picture('zebra4', '--y=val_any', ZEBRA4),
        Picture('zebra4_solved', BY_ORDER, measured('solved', ZEBRA4)),
        sets=('zebra4',),
    ),
    'countdown': Finding(
        'countdown: reach a target by arithmetic, by the same and a GPT; 2 minutes a run, and 6',
        Picture('countdown', '--y=val_any,val_l2r', COUNTDOWN_L2R | COUNTDOWN),
        Picture(
            'countdown_reached',
            BY_ORDER,
            measured('reached_l2r', COUNTDOWN_L2R) | measured('reached', COUNTDOWN),
        ),
        Picture('countdown_long', '--y=val_any,val_l2r', COUNTDOWN_L2R_LONG | COUNTDOWN_LONG),
        Picture(
            'countdown_long_reached',
            BY_ORDER,
            measured('reached_l2r', COUNTDOWN_L2R_LONG) | measured('reached', COUNTDOWN_LONG),
        ),
        sets=('countdown3_30',),
    ),
    'nae_sat': Finding(
        'networks: latents and observations by the same; 25 minutes a run',
        Picture('nae_sat', '--y=val_any', NAE_SAT),
        Picture('nae_sat_agree', '--x=order --y=right', measured('agree', NAE_SAT)),
        sets=('nae_sat',),
    ),
}
WORDS = {name: finding.about for name, finding in FINDINGS.items()}

# the commands that make sets
MADE_BY = {
    'pydocs': 'data/prepare.py pydocs',
    'sudoku_60k': '-m anyorder.extras.puzzles make sudoku --n_train=60000 --name=sudoku_60k',
    'zebra4': '-m anyorder.extras.puzzles make zebra4',
    'countdown3_30': '-m anyorder.extras.puzzles make countdown3 --largest=30 --name=countdown3_30',
    'nae_sat': '-m anyorder.extras.puzzles make nae_sat',
}

OF_PUZZLES = '-m anyorder.extras.puzzles solve --orders'
# what measures a checkpoint
EVALUATIONS = {
    'ensemble': 'eval_ppl.py --n_blocks=512 --estimates=ensemble:64',
    'bound': 'eval_ppl.py --n_blocks=512 --estimates=any --n_orders=64',
    'likelihood': 'eval_ppl.py --n_blocks=512 --estimates=l2r,any --n_orders=16',
    'along': 'eval_ppl.py --orders=l2r,swaps:16,swaps:26,fixed,random --n_orders=3',
    'solved': f'{OF_PUZZLES}=random,margin --n_puzzles=500',
    'reached': f'{OF_PUZZLES}=random,l2r,margin',
    'reached_l2r': f'{OF_PUZZLES}=l2r',
    'agree': f'{OF_PUZZLES}=random,margin --n_puzzles=200',
    'graded': f'{OF_PUZZLES}=random,margin --n_puzzles=500 --dataset=graded',
    'diabolical': f'{OF_PUZZLES}=random,margin --n_puzzles=500 --dataset=diabolical',
}

# --------------------------------------------------------------------------------------------------
# {RUN: what train.py is given}, as in a shell: a config file or another RUN, and more options. SEED
# is the seed of a run, which has orders of its own, OUT the folder of all runs, some of which begin
# from the weights of others.
RUNS = {
    # a network that takes 2 min 20 s on one core: 32 bytes at a time of the English inside Python
    'base': 'config/quickstart.py --block_size=32 --n_head=2 --n_embd=64 --batch_size=64 '
    '--max_iters=3000 --eval_interval=150 --log_interval=150',
    'any': 'base --l2r_ratio=0',
    'l2r': 'any --order=l2r',
    'block': 'any --order=block@SEED',
    'fixed': 'any --order=fixed@SEED',
    'input': 'base --network=input',
    'layer_shared': 'base --network=layer_shared',
    'layer': 'base --network=layer',
    'rotary': 'base --network=rotary,gate_init=1',
    'gates0': 'base --network=decoder',
    # in place of Muon, at the best rate and decay of a sweep at this size: results/optimizer
    'adamw': 'base --optimizer=adamw --learning_rate=2e-2 --min_lr=2e-3 --weight_decay=0.2',
    'adamw_input': 'adamw --network=input',
    'adamw_layer_shared': 'adamw --network=layer_shared',
    'adamw_layer': 'adamw --network=layer',
    'adamw_rotary': 'adamw --network=rotary,gate_init=1',
    'adamw_gates0': 'adamw --network=decoder',
    'ema_none': 'base --ema_decay=0',
    'ema_0.999': 'base --ema_decay=0.999',
    'encoder': 'base --network=encoder,gate_init=1 --l2r_ratio=0',
    'encoder_rotary': 'encoder --network=encoder,rotary,gate_init=1',
    'mixed': 'base --network=mixed,gate_init=1 --l2r_ratio=0',
    'two_stream': 'base --network=two_stream',
    'two_stream_rotary': 'two_stream --network=two_stream,rotary',
    'wide': 'base --block_size=128 --n_layer=3 --n_head=4 --n_embd=128 --batch_size=16 '
    '--network=rotary,gate_init=1 --max_iters=1500',
    'wide_longer': 'wide --max_iters=2090',  # updates of two streams take 1.39 times as long
    'wide_two_stream': 'wide --network=two_stream,rotary',
    'before': 'base --max_iters=2000 --l2r_ratio=0 --order=l2r',
    'scratch': 'base --max_iters=1000 --eval_interval=50',
    'adapted': 'scratch --init_from=auto:OUT/before_seedSEED/ckpt.pt',
    # at a quarter of the rates
    'adapted_gently': 'adapted --learning_rate=2.5e-3 --min_lr=2.5e-4 --muon_learning_rate=0.01',
    'swaps_any': 'base --block_size=256 --batch_size=8 --l2r_ratio=0',
    'swaps_l2r': 'swaps_any --order=l2r',
    'swaps_16': 'swaps_any --order=swaps:16@SEED',
    'swaps_26': 'swaps_any --order=swaps:26@SEED',
    'swaps_fixed': 'swaps_any --order=fixed@SEED',
    'sudoku_decoder': 'config/sudoku.py --dataset=sudoku_60k --max_iters=2200 --min_lr=1e-3 '
    '--ema_decay=0.99',
    # without AdaLN: as many parameters by the width
    'sudoku_layer': 'sudoku_decoder --network=layer --n_embd=160',
    'sudoku_half': 'sudoku_decoder --learning_rate=5e-3 --optimizer=muon --muon_learning_rate=0.02 '
    '--min_lr=5e-4',
    'sudoku_two_stream_half': 'sudoku_half --network=two_stream --n_embd=160',
    'sudoku_encoder': 'sudoku_decoder --network=encoder,gate_init=1 --l2r_ratio=0',
    'sudoku_mixed': 'sudoku_decoder --network=mixed,gate_init=1 --l2r_ratio=0',
    'zebra4_decoder': 'config/zebra4.py --network=gate_init=1',
    'zebra4_encoder': 'config/zebra4.py --l2r_ratio=0',
    'zebra4_mixed': 'config/zebra4.py --network=mixed,gate_init=1 --l2r_ratio=0',
    'countdown_encoder': 'config/countdown.py --max_iters=1900',
    'countdown_decoder': 'countdown_encoder --network=gate_init=1',
    'countdown_mixed': 'countdown_encoder --network=mixed,gate_init=1',
    'countdown_l2r': 'countdown_decoder --order=l2r',
    'countdown_decoder_long': 'countdown_decoder --max_iters=5700',
    'countdown_encoder_long': 'countdown_encoder --max_iters=5700',
    'countdown_l2r_long': 'countdown_l2r --max_iters=5700',
    'nae_sat_decoder': 'config/nae_sat.py --max_iters=4000 --l2r_ratio=0',
    'nae_sat_encoder': 'nae_sat_decoder --network=encoder,layer',
    'nae_sat_mixed': 'nae_sat_decoder --network=mixed,layer',
}

# --------------------------------------------------------------------------------------------------


def main(config, more=()):
    """Make a finding. `more` are the options behind --."""
    at_least(config, 1, 'jobs')
    numbers(config, 'seeds')
    os.chdir(ROOT)
    os.makedirs(config.out, exist_ok=True)
    if config.jobs > 1:
        os.environ['OMP_NUM_THREADS'] = '1'

    (name,) = config.words
    finding = FINDINGS[name]
    commands = plan(finding.pictures, config, more)
    for path, words in commands.items():
        is_made(path, words)  # what is refused is refused before the work
    for wanted in finding.sets:
        if os.path.exists(os.path.join(config.data_dir, wanted)):
            continue
        if wanted not in MADE_BY:
            raise ValueError(
                f'{name} wants the set {wanted} in data_dir={config.data_dir}, which is made of '
                'what others have: prepare it there, or choose another finding'
            )
        python(*shlex.split(MADE_BY[wanted]), f'--data_dir={config.data_dir}')
    make_all(commands, config.jobs)
    for picture in finding.pictures:
        draw(picture, config)


def python(*words):
    subprocess.run([sys.executable, *words], check=True)


def plan(pictures, config, more):
    """Return {path: words of the command that makes it}: each line of the pictures after the run
    that it is of, or begins from."""
    commands = {}
    lines = [line for picture in pictures for line in picture.lines.values()]
    for line, seed in itertools.product(lines, numbers(config, 'seeds')):
        run, _, evaluation = line.partition('/')
        folder = path_of(run, seed, config)
        commands[folder] = training(run, seed, config, more)
        if evaluation:
            path = path_of(line, seed, config)
            asked = EVALUATIONS[evaluation].split()
            commands[path] = [*asked, f'--ckpt={folder}/ckpt.pt', f'--out={path}']
    return commands


def training(run, seed, config, more):
    """Return the words of a training, which resumes what is there."""
    options = options_of(run).replace('SEED', str(seed)).replace('OUT', shlex.quote(config.out))
    words = ['train.py', *shlex.split(options)]
    if '--init_from' not in options:
        words.append('--init_from=auto')
    folder = path_of(run, seed, config)
    words += [*more, f'--seed={seed}', f'--out_dir={folder}']
    if 'data_dir' in config.given:
        words.append(f'--data_dir={config.data_dir}')
    return words


def options_of(run):
    """Return what train.py is given, as in a shell: of a run that is another one with more options
    those of the other one first."""
    first, space, more = RUNS[run].partition(' ')
    if first in RUNS:
        first = options_of(first)
    return first + space + more


def path_of(line, seed, config):
    """Return the folder of a run, or the JSON file of its evaluation: what is drawn."""
    path = f'{config.out}/{line.replace("/", "_")}_seed{seed}'
    if '/' in line:
        path += '.json'
    return path


def make_all(commands, jobs):
    """Run what has not made its path, `jobs` commands at a time, each once those have ended whose
    checkpoint it reads. After a failure none begins."""
    made = {}
    failed = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        for path, words in commands.items():
            said = ' '.join(words)
            before = [done for folder, done in made.items() if f'{folder}/ckpt.pt' in said]
            made[path] = pool.submit(make, path, words, before, failed)
    for done in made.values():
        done.result()


def is_made(path, words):
    """Whether this command has made `path`, by what `path`.txt says.

    An evaluation of weights that are newer is made again. A ValueError where it was another
    command."""
    log = Path(f'{path}.txt')
    if not log.exists():
        return False
    said = log.read_text(encoding='utf-8')
    made_by = said.partition('\n')[0]
    if made_by != command_of(words):
        raise ValueError(f'{path} was made by other options, {made_by}: choose another --out')
    weights = [word.removeprefix('--ckpt=') for word in words if word.startswith('--ckpt=')]
    times = [os.path.getmtime(file) for file in weights if os.path.exists(file)]
    has_ended = said.endswith(f'\n{ENDED}\n')
    return has_ended and log.stat().st_mtime >= max(times, default=0)


def command_of(words):
    return shlex.join(['python', *words])


def make(path, words, before, failed):
    """Run the command once those `before` have ended, unless `path` is made by then or another
    command has failed."""
    for done in before:
        done.result()
    with locked(path):
        if not (failed.is_set() or is_made(path, words)):
            run(path, words, failed)


def run(path, words, failed):
    """Run the command. `path`.txt has it and what it says, and ENDED once it has ended well."""
    command = command_of(words)
    said = f'{command}\n  this waits until it ends, and {path}.txt has what it says\n'
    print(said, end='', flush=True)  # in one piece, beside other jobs
    with open(f'{path}.txt', 'w', encoding='utf-8') as f:
        print(command, file=f, flush=True)
        done = subprocess.run([sys.executable, *words], stdout=f, stderr=f, check=False)
        if done.returncode == 0:
            f.write(f'\n{ENDED}\n')
            return
    failed.set()
    said = f'{command} ended with code {done.returncode}: {path}.txt has what it said'
    print(said, flush=True)  # at once, since others may run for an hour
    raise ValueError(said)


def draw(picture, config):
    """Draw a picture, and print its table."""
    seeds = numbers(config, 'seeds')
    paths = [path_of(line, seed, config) for line in picture.lines.values() for seed in seeds]
    python(
        '-m',
        'anyorder.extras.pictures',
        f'--out={config.out}/{picture.name}.png',
        *picture.options.split(),
        f'--labels={",".join(picture.lines)}',
        *paths,
    )


def split(arguments):
    """Return the arguments before and behind the first --."""
    end = [*arguments, '--'].index('--')
    return arguments[:end] or ['--help'], arguments[end + 1 :]


if __name__ == '__main__':
    with one_line_errors():
        own, of_trainings = split(sys.argv[1:])
        main(configure(globals(), own), of_trainings)
