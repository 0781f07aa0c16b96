"""
The findings, at a size of minutes to hours: train what one needs, evaluate it, draw its figures and print their tables.

    python config/findings/run.py orders --seeds=1,2,3
    python config/findings/run.py sudoku --jobs=2 --data_dir=elsewhere
    python config/findings/run.py orders --out=out/longer -- --max_iters=12000

A table has the mean over the seeds, its standard error and their number. What is finished is not made again, what was
interrupted starts anew. Make one finding at a time in a folder, since findings share runs. Options behind -- go to
every train.py, those of generation to bench.py.
"""
import os
import subprocess
import sys
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.machine.commands import is_made, make_all, what_it_said
from configurator import at_least, configure, one_line_errors

seeds = '1,2'          # of the trainings, with commas between
jobs = 1               # commands at a time, each on one core if there are more than one
out = 'out/findings'   # where logs, checkpoints, evaluations and figures go
data_dir = 'data'      # where prepared sets are; what is missing is made there

# ---------------------------------------------------------------------------------------------------------------------
# what there is to make

# how a set is made; others are used where they are there
DATA = {'pydocs': 'data/prepare.py pydocs',
        'sudoku_60k': 'data/puzzles.py sudoku --n_train=60000 --name=sudoku_60k',
        'zebra4': 'data/puzzles.py zebra4',
        'nae_sat': 'data/puzzles.py nae_sat'}

BASE = 'config/findings/base.py'
ADAMW = f'{BASE} config/findings/adamw.py'
SWAPS = f'{BASE} --block_size=256 --batch_size=8 --l2r_ratio=0'
SUDOKU = 'config/sudoku.py --dataset=sudoku_60k --max_iters=2200 --min_lr=1e-3 --ema_decay=0.99'
ENCODER, MIXED = '--attention=bidirectional --l2r_ratio=0', '--attention=mixed --l2r_ratio=0'
TWO_STREAMS = '--target_position=two_stream'
GENTLE = '--learning_rate=2.5e-3 --min_lr=2.5e-4 --muon_learning_rate=0.01'   # a quarter of the rates
WIDE = f'{BASE} --block_size=128 --n_layer=3 --n_head=4 --n_embd=128 --batch_size=16 --rotary=True --max_iters=1500'

# what train.py is given for a run; every seed has an order of its own
RUNS = {
    'base': BASE,
    'any': f'{BASE} --l2r_ratio=0',
    'l2r': f'{BASE} --l2r_ratio=0 --order=l2r',
    'block': f'{BASE} --l2r_ratio=0 --order=block --order_seed=SEED',
    'fixed': f'{BASE} --l2r_ratio=0 --order=fixed --order_seed=SEED',
    **{position: f'{BASE} --target_position={position}' for position in ('input', 'layer_shared', 'layer')},
    'rotary': f'{BASE} --rotary=True',
    'adamw': ADAMW,
    **{f'adamw_{position}': f'{ADAMW} --target_position={position}' for position in ('input', 'layer_shared', 'layer')},
    'adamw_rotary': f'{ADAMW} --rotary=True',
    'gates0': f'{BASE} --gate_init=0',
    'adamw_gates0': f'{ADAMW} --gate_init=0',
    'ema_none': f'{BASE} --ema_decay=0',
    'ema_0.999': f'{BASE} --ema_decay=0.999',
    'encoder': f'{BASE} {ENCODER}',
    'encoder_rotary': f'{BASE} {ENCODER} --rotary=True',
    'mixed': f'{BASE} {MIXED}',
    'two_stream': f'{BASE} {TWO_STREAMS}',
    'two_stream_rotary': f'{BASE} {TWO_STREAMS} --rotary=True',
    'wide': WIDE,
    'wide_longer': f'{WIDE} --max_iters=2090',   # updates of two streams take 1.39 times as long
    'wide_two_stream': f'{WIDE} {TWO_STREAMS}',
    'before': f'{BASE} --max_iters=2000 --l2r_ratio=0 --order=l2r',
    **{name: f'{BASE} --max_iters=1000 --eval_interval=50' for name in ('adapted', 'scratch')},
    'adapted_gently': f'{BASE} --max_iters=1000 --eval_interval=50 {GENTLE}',
    'swaps_any': SWAPS,
    'swaps_l2r': f'{SWAPS} --order=l2r',
    **{f'swaps_{n}': f'{SWAPS} --order=swaps:{n} --order_seed=SEED' for n in (16, 26)},
    'swaps_fixed': f'{SWAPS} --order=fixed --order_seed=SEED',
    **{f'{puzzle}_{network}': f'{config} {options}'
       for puzzle, config in (('sudoku', SUDOKU), ('zebra4', 'config/zebra4.py'),
                              ('nae_sat', 'config/nae_sat.py --max_iters=4000 --l2r_ratio=0'))
       for network, options in (('decoder', '--attention=causal'), ('encoder', ENCODER), ('mixed', MIXED))},
}

# runs that begin with the weights of another
STARTS = {'adapted': 'before', 'adapted_gently': 'before'}

# what measures a checkpoint
EVALUATIONS = {
    'ensemble': 'eval_ppl.py --n_blocks=512 --estimates=ensemble --n_contexts=64',
    'bound': 'eval_ppl.py --n_blocks=512 --estimates=any --n_orders=64',
    'likelihood': 'eval_ppl.py --n_blocks=512 --estimates=l2r,any --n_orders=16',
    'along': 'eval_ppl.py --orders=l2r,swaps:16,swaps:26,fixed,random --n_orders=3',
    **{name: f'eval_puzzle.py --policies=random,margin {options}' for name, options in (
        ('solved', '--n_puzzles=500'), ('agree', '--n_puzzles=200'), ('graded', '--n_puzzles=500 --dataset=graded'),
        ('diabolical', '--n_puzzles=500 --dataset=diabolical'))},
}


class Finding(NamedTuple):
    """A question.

    about     what it compares, for --help
    figures   {picture: (options of plot.py, {label: RUN, or RUN/EVALUATION})}
    data      the set that its runs learn"""
    about: str
    figures: dict
    data: str = 'pydocs'


BY_TOKENS = '--y=val_any,val_l2r'
POSITIONS = {'AdaLN': 'base', 'added at the input': 'input', 'the same in every layer': 'layer_shared',
             'another in every layer': 'layer', 'AdaLN and rotary': 'rotary'}
TEXT = {'decoder': 'base', 'decoder without l2r': 'any', 'encoder': 'encoder', 'mixed': 'mixed',
        'two streams': 'two_stream'}


def evaluated(lines, evaluation):
    return {label: f'{run}/{evaluation}' for label, run in lines.items()}


def networks(puzzle, options='', evaluations=('solved',)):
    """The figures of decoder, encoder and mixed network: their training, and each of the evaluations."""
    lines = {network: f'{puzzle}_{network}' for network in ('decoder', 'encoder', 'mixed')}
    return {puzzle: ('--y=val_any', lines)} | {f'{puzzle}_{evaluation}': (options, evaluated(lines, evaluation))
                                               for evaluation in evaluations}


FINDINGS = {
    'orders': Finding('1, 2: any order, left to right, and one fixed order (block-wise, random)', {
        'orders': ('--y=val_own,val_l2r', {'left to right': 'l2r', 'blocks of 4': 'block', 'one permutation': 'fixed',
                                           'any order': 'any'})}),
    'l2r_data': Finding('3: without and with 10 % left-to-right sequences', {
        'l2r_data': (BY_TOKENS, {'none left to right': 'any', '10 % left to right': 'base'})}),
    'positions': Finding('4: four ways to tell the target position, and rotary; Muon and AdamW', {
        'positions': (BY_TOKENS, POSITIONS),
        'positions_adamw': (BY_TOKENS, {label: f'adamw_{run}'.removesuffix('_base')
                                        for label, run in POSITIONS.items()})}),
    'gates': Finding("4: AdaLN gates that start at 0, as the paper's, or at 1; Muon and AdamW", {
        'gates': (BY_TOKENS, {'Muon and gates from 1': 'base', 'Muon and gates from 0': 'gates0',
                              'AdamW and gates from 1': 'adamw', 'AdamW and gates from 0': 'adamw_gates0'})}),
    'ema': Finding('4: no average of the weights, 0.99, 0.999', {
        'ema': (BY_TOKENS, {'no average': 'ema_none', 'decay 0.99': 'base', 'decay 0.999': 'ema_0.999'})}),
    'ensemble': Finding('5: the context-order ensemble between decoder and encoder', {
        'ensemble': ('', {'decoder': 'base/ensemble', 'encoder': 'encoder/bound',
                          'decoder with rotary': 'rotary/ensemble', 'encoder with rotary': 'encoder_rotary/bound'})}),
    'generation': Finding('6, 7: time of generation by the number of steps and by network', {}),
    'networks': Finding('text by decoder, encoder, mixed network and two streams', {
        'networks': ('--y=val_any', TEXT), 'networks_likelihood': ('', evaluated(TEXT, 'likelihood'))}),
    'two_stream': Finding('two streams against AdaLN, without and with rotary, and wider for as long', {
        'two_stream': (BY_TOKENS, {'AdaLN': 'base', 'two streams': 'two_stream', 'AdaLN and rotary': 'rotary',
                                   'two streams and rotary': 'two_stream_rotary'}),
        'two_stream_wide': (BY_TOKENS, {'AdaLN': 'wide', 'AdaLN for as long': 'wide_longer',
                                        'two streams': 'wide_two_stream'})}),
    'adaptation': Finding('a left-to-right model adapted to any order, beside training from scratch', {
        'adaptation': ('--x=iter --y=val_any,val_l2r', {
            'adapted': 'adapted', 'adapted at a quarter of the rate': 'adapted_gently', 'from scratch': 'scratch',
            'from scratch for as long': 'base'}),
        'adaptation_before': ('--y=val_l2r', {'left to right': 'before'})}),
    'swaps': Finding('pi-learners: one order each between left to right and random; an any-order model along them', {
        'swaps': ('--y=val_own', {'left to right': 'swaps_l2r', '16 swaps': 'swaps_16', '26 swaps': 'swaps_26',
                                  'one permutation': 'swaps_fixed', 'any order': 'swaps_any'}),
        'swaps_along': ('', {'any order': 'swaps_any/along'})}),
    'sudoku': Finding('9 x 9 Sudoku by decoder, encoder and mixed network; 12 minutes a run', networks(
        'sudoku', evaluations=('solved', 'graded', 'diabolical')), 'sudoku_60k'),
    'zebra4': Finding('Zebra puzzles of 3 or 4 houses by the same; 15 minutes a run', networks('zebra4'), 'zebra4'),
    'nae_sat': Finding('latents and observations by the same; 25 minutes a run', networks(
        'nae_sat', '--y=right', ('agree',)), 'nae_sat'),
}
WORDS = {name: finding.about for name, finding in FINDINGS.items()}


# ---------------------------------------------------------------------------------------------------------------------
# how it is made

def python(*command):
    subprocess.run([sys.executable, *command], check=True)


def path_of(line, seed, c):
    """The folder of a run, or the JSON file of its evaluation: what plot.py reads."""
    return f'{c.out}/{line.replace("/", "_")}_seed{seed}' + '.json' * ('/' in line)


def plan(lines, numbers, more, c):
    """Of lines RUN or RUN/EVALUATION the trainings that others start from, the other trainings and the evaluations,
    {path: command} of each."""
    starts, trainings, evaluations = {}, {}, {}
    for line in lines:
        run, _, evaluation = line.partition('/')
        for seed in numbers:
            folder, path = path_of(run, seed, c), path_of(line, seed, c)
            options = [*RUNS[run].replace('SEED', seed).split(), *more, f'--seed={seed}', f'--out_dir={folder}']
            where = [f'--data_dir={c.data_dir}'] if 'data_dir' in c.given else []
            if run in STARTS:
                starts |= plan([STARTS[run]], [seed], more, c)[1]
                where.append(f'--init_from={path_of(STARTS[run], seed, c)}/ckpt.pt')
            trainings[folder] = ['python', 'train.py', *options, *where]
            if evaluation:
                name, *options = EVALUATIONS[evaluation].split()
                evaluations[path] = ['python', name, f'--ckpt={folder}/ckpt.pt', *options, f'--out={path}']
    return starts, trainings, evaluations


def can_be_made(line, c):
    """Whether the set is there that its evaluation wants."""
    _, _, wanted = EVALUATIONS.get(line.partition('/')[2], '').partition('--dataset=')
    return not wanted or os.path.exists(os.path.join(c.data_dir, wanted))


def generation(more, c):
    """Finding 6 and 7, which trains nothing."""
    path = f'{c.out}/generation.json'
    make_all({path: ['python', 'bench.py', 'grid', f'--out={path}', *more]}, 1)
    print(what_it_said(path), end='', flush=True)
    python('plot.py', path, '-o', f'{c.out}/generation.png')


def main(config, more):
    """`more` are the options behind --."""
    at_least(config, 1, 'jobs')
    numbers = config.seeds.split(',')
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f'seeds must be numbers with commas between, got {config.seeds!r}')
    os.chdir(ROOT)
    os.makedirs(config.out, exist_ok=True)
    if config.jobs > 1:
        os.environ['OMP_NUM_THREADS'] = '1'
    name, = config.words
    if name == 'generation':
        return generation(more, config)
    figures = {}
    for picture, (options, lines) in FINDINGS[name].figures.items():
        if all(can_be_made(line, config) for line in lines.values()):
            figures[picture] = options, lines
        else:
            print(f'left out: {picture}, whose puzzles are not in {config.data_dir}')
    stages = plan([line for _, lines in figures.values() for line in lines.values()], numbers, more, config)
    for stage in stages:   # what is wrong is said before any work
        for item in stage.items():
            is_made(*item)
    data = FINDINGS[name].data
    if not os.path.exists(os.path.join(config.data_dir, data)):
        python(*DATA[data].split(), f'--data_dir={config.data_dir}')
    for stage in stages:
        make_all(stage, config.jobs)
    for picture, (options, lines) in figures.items():
        paths = [path_of(line, seed, config) for line in lines.values() for seed in numbers]
        python('plot.py', '-o', f'{config.out}/{picture}.png', *options.split(), f'--labels={",".join(lines)}', *paths)


if __name__ == '__main__':
    with one_line_errors():
        at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
        main(configure(globals(), sys.argv[1:at]), sys.argv[at + 1:])
