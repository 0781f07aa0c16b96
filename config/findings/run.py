"""
The findings, at a size of minutes to hours: train what one needs, evaluate it, draw its figures and print their tables.

    python config/findings/run.py orders --seeds=1,2,3
    python config/findings/run.py sudoku --jobs=2 --data_dir=elsewhere
    python config/findings/run.py orders --out=out/longer -- --max_iters=12000

A table has the mean over the seeds, its standard error and their number. What is finished is not made again, what was
interrupted starts anew. Make one finding at a time in a folder, since findings share runs. Options behind -- go to
every train.py, for `generation` to bench.py.
"""
import itertools
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.machine.terminal import one_line_errors
from configurator import at_least, configure, numbers

seeds = '1,2'          # of the trainings, with commas between
jobs = 1               # commands at a time, each on one core if there are more than one
out = 'out/findings'   # where logs, checkpoints, evaluations and figures go
data_dir = 'data'      # where prepared sets are; what is missing is made there

# ---------------------------------------------------------------------------------------------------------------------
# what there is to make

BASE = 'config/findings/base.py'
ANY = f'{BASE} --l2r_ratio=0'
ADAMW = f'{BASE} config/findings/adamw.py'
SWAPS = f'{BASE} --block_size=256 --batch_size=8 --l2r_ratio=0'
WIDE = f'{BASE} --block_size=128 --n_layer=3 --n_head=4 --n_embd=128 --batch_size=16 --rotary=True --max_iters=1500'
SHORT = f'{BASE} --max_iters=1000 --eval_interval=50'
ADAPTED = f'{SHORT} --init_from=OUT/before_seedSEED/ckpt.pt'
ENCODER, TWO_STREAMS = '--attention=bidirectional --l2r_ratio=0', '--target_position=two_stream'
NETWORKS = {'decoder': '--attention=causal', 'encoder': ENCODER, 'mixed': '--attention=mixed --l2r_ratio=0'}
PUZZLES = {'sudoku': 'config/sudoku.py --dataset=sudoku_60k --max_iters=2200 --min_lr=1e-3 --ema_decay=0.99',
           'zebra4': 'config/zebra4.py', 'nae_sat': 'config/nae_sat.py --max_iters=4000 --l2r_ratio=0'}

# what train.py is given for a run. SEED is its seed, so that every seed has an order of its own, and OUT is --out
RUNS = {
    'base': BASE, 'any': ANY, 'l2r': f'{ANY} --order=l2r',
    **{order: f'{ANY} --order={order} --order_seed=SEED' for order in ('block', 'fixed')},
    **{position: f'{BASE} --target_position={position}' for position in ('input', 'layer_shared', 'layer')},
    'rotary': f'{BASE} --rotary=True', 'gates0': f'{BASE} --gate_init=0',
    'ema_none': f'{BASE} --ema_decay=0', 'ema_0.999': f'{BASE} --ema_decay=0.999',
    'encoder': f'{BASE} {ENCODER}', 'encoder_rotary': f'{BASE} {ENCODER} --rotary=True',
    'mixed': f"{BASE} {NETWORKS['mixed']}",
    'two_stream': f'{BASE} {TWO_STREAMS}', 'two_stream_rotary': f'{BASE} {TWO_STREAMS} --rotary=True',
    'wide': WIDE, 'wide_two_stream': f'{WIDE} {TWO_STREAMS}',
    'wide_longer': f'{WIDE} --max_iters=2090',   # updates of two streams take 1.39 times as long
    'before': f'{BASE} --max_iters=2000 --l2r_ratio=0 --order=l2r', 'scratch': SHORT, 'adapted': ADAPTED,
    'adapted_gently': f'{ADAPTED} --learning_rate=2.5e-3 --min_lr=2.5e-4 --muon_learning_rate=0.01',   # a quarter
    'swaps_any': SWAPS, 'swaps_l2r': f'{SWAPS} --order=l2r', 'swaps_fixed': f'{SWAPS} --order=fixed --order_seed=SEED',
    **{f'swaps_{n}': f'{SWAPS} --order=swaps:{n} --order_seed=SEED' for n in (16, 26)},
    **{f'{puzzle}_{network}': f'{PUZZLES[puzzle]} {NETWORKS[network]}' for puzzle in PUZZLES for network in NETWORKS}}
RUNS |= {'adamw': ADAMW} | {f'adamw_{run}': RUNS[run].replace(BASE, ADAMW)
                            for run in ('input', 'layer_shared', 'layer', 'rotary', 'gates0')}

# what measures a checkpoint
EVALUATIONS = {
    'ensemble': 'eval_ppl.py --n_blocks=512 --estimates=ensemble --n_contexts=64',
    'bound': 'eval_ppl.py --n_blocks=512 --estimates=any --n_orders=64',
    'likelihood': 'eval_ppl.py --n_blocks=512 --estimates=l2r,any --n_orders=16',
    'along': 'eval_ppl.py --orders=l2r,swaps:16,swaps:26,fixed,random --n_orders=3',
    **{name: f'eval_puzzle.py --policies=random,margin {options}' for name, options in (
        ('solved', '--n_puzzles=500'), ('agree', '--n_puzzles=200'), ('graded', '--n_puzzles=500 --dataset=graded'),
        ('diabolical', '--n_puzzles=500 --dataset=diabolical'))}}


def networks(puzzle, evaluations, options=''):
    """The figures of the NETWORKS on a puzzle: their training, and each of the evaluations."""
    return {puzzle: ('--y=val_any', {network: f'{puzzle}_{network}' for network in NETWORKS})} | {
        f'{puzzle}_{evaluation}': (options, {network: f'{puzzle}_{network}/{evaluation}' for network in NETWORKS})
        for evaluation in evaluations}


BY_TOKENS = '--y=val_any,val_l2r'
POSITIONS = {'AdaLN': 'base', 'added at the input': 'input', 'the same in every layer': 'layer_shared',
             'another in every layer': 'layer', 'AdaLN and rotary': 'rotary'}
TEXT = {'decoder': 'base', 'decoder without l2r': 'any', 'encoder': 'encoder', 'mixed': 'mixed',
        'two streams': 'two_stream'}

# {finding: (what it compares, {picture: (options of plot.py, {label: RUN, or RUN/EVALUATION})})}
FINDINGS = {
    'orders': ('1, 2: any order, left to right, and one fixed order (block-wise, random)', {
        'orders': ('--y=val_own,val_l2r', {'left to right': 'l2r', 'blocks of 4': 'block', 'one permutation': 'fixed',
                                           'any order': 'any'})}),
    'l2r_data': ('3: without and with 10 % left-to-right sequences', {
        'l2r_data': (BY_TOKENS, {'none left to right': 'any', '10 % left to right': 'base'})}),
    'positions': ('4: four ways to tell the target position, and rotary; Muon and AdamW', {
        'positions': (BY_TOKENS, POSITIONS),
        'positions_adamw': (BY_TOKENS, {label: f'adamw_{run}'.removesuffix('_base')
                                        for label, run in POSITIONS.items()})}),
    'gates': ("4: AdaLN gates that start at 0, as the paper's, or at 1; Muon and AdamW", {
        'gates': (BY_TOKENS, {'Muon and gates from 1': 'base', 'Muon and gates from 0': 'gates0',
                              'AdamW and gates from 1': 'adamw', 'AdamW and gates from 0': 'adamw_gates0'})}),
    'ema': ('4: no average of the weights, 0.99, 0.999', {
        'ema': (BY_TOKENS, {'no average': 'ema_none', 'decay 0.99': 'base', 'decay 0.999': 'ema_0.999'})}),
    'ensemble': ('5: the context-order ensemble between decoder and encoder', {
        'ensemble': ('', {'decoder': 'base/ensemble', 'encoder': 'encoder/bound',
                          'decoder with rotary': 'rotary/ensemble', 'encoder with rotary': 'encoder_rotary/bound'})}),
    'generation': ('6, 7: time of generation by the number of steps and by network', {}),
    'networks': ('text by decoder, encoder, mixed network and two streams', {
        'networks': ('--y=val_any', TEXT),
        'networks_likelihood': ('', {label: f'{run}/likelihood' for label, run in TEXT.items()})}),
    'two_stream': ('two streams against AdaLN, without and with rotary, and wider for as long', {
        'two_stream': (BY_TOKENS, {'AdaLN': 'base', 'two streams': 'two_stream', 'AdaLN and rotary': 'rotary',
                                   'two streams and rotary': 'two_stream_rotary'}),
        'two_stream_wide': (BY_TOKENS, {'AdaLN': 'wide', 'AdaLN for as long': 'wide_longer',
                                        'two streams': 'wide_two_stream'})}),
    'adaptation': ('a left-to-right model adapted to any order, beside training from scratch', {
        'adaptation': ('--x=iter --y=val_any,val_l2r', {
            'adapted': 'adapted', 'adapted at a quarter of the rate': 'adapted_gently', 'from scratch': 'scratch',
            'from scratch for as long': 'base'}),
        'adaptation_before': ('--y=val_l2r', {'left to right': 'before'})}),
    'swaps': ('pi-learners: one order each between left to right and random; an any-order model along them', {
        'swaps': ('--y=val_own', {'left to right': 'swaps_l2r', '16 swaps': 'swaps_16', '26 swaps': 'swaps_26',
                                  'one permutation': 'swaps_fixed', 'any order': 'swaps_any'}),
        'swaps_along': ('', {'any order': 'swaps_any/along'})}),
    'sudoku': ('9 x 9 Sudoku by decoder, encoder and mixed network; 12 minutes a run',
               networks('sudoku', ('solved', 'graded', 'diabolical'))),
    'zebra4': ('Zebra puzzles of 3 or 4 houses by the same; 15 minutes a run', networks('zebra4', ('solved',))),
    'nae_sat': ('latents and observations by the same; 25 minutes a run', networks('nae_sat', ('agree',), '--y=right'))}
WORDS = {name: about for name, (about, _) in FINDINGS.items()}
# the set that a finding learns, and how it is made
DATA = dict.fromkeys(FINDINGS, ('pydocs', 'data/prepare.py pydocs')) | {
    'sudoku': ('sudoku_60k', 'data/puzzles.py sudoku --n_train=60000 --name=sudoku_60k'),
    'zebra4': ('zebra4', 'data/puzzles.py zebra4'), 'nae_sat': ('nae_sat', 'data/puzzles.py nae_sat')}


# ---------------------------------------------------------------------------------------------------------------------
# how it is made

def path_of(line, seed, c):
    """The folder of a run, or the JSON file of its evaluation: what plot.py reads."""
    return f'{c.out}/{line.replace("/", "_")}_seed{seed}' + '.json' * ('/' in line)


def plan(lines, c, more):
    """[{path: words of its command}]: trainings, trainings that start from their weights, evaluations."""
    stages, where = ({}, {}, {}), [f'--data_dir={c.data_dir}'] * ('data_dir' in c.given)
    for line, seed in itertools.product(lines, c.seeds.split(',')):
        run, _, evaluation = line.partition('/')
        options = [word.replace('SEED', seed).replace('OUT', c.out) for word in RUNS[run].split()]
        folder, path = path_of(run, seed, c), path_of(line, seed, c)
        stages['--init_from' in RUNS[run]][folder] = ['train.py', *options, *more, f'--seed={seed}',
                                                      f'--out_dir={folder}', *where]
        if evaluation:
            script, *options = EVALUATIONS[evaluation].split()
            stages[2][path] = [script, f'--ckpt={folder}/ckpt.pt', *options, f'--out={path}']
    return stages


def is_made(path, words):
    """Whether this command has made `path`: what it said is then in `path`.txt, under the command."""
    if not os.path.exists(f'{path}.txt'):
        return False
    with open(f'{path}.txt', encoding='utf-8') as f:
        made_by = f.readline().rstrip()
    if made_by != shlex.join(['python', *words]):
        raise ValueError(f'{path} was made by other options, {made_by}: choose another --out')
    return True


def make(path, words):
    """Run the command. What it says is in `path`.part until it has ended well, then in `path`.txt."""
    print(command := shlex.join(['python', *words]), flush=True)
    with open(f'{path}.part', 'w', encoding='utf-8') as f:
        print(command, file=f, flush=True)
        code = subprocess.run([sys.executable, *words], stdout=f, stderr=f, check=False).returncode
    if code:
        print(f'failed, and {path}.part has what it said: {command}', flush=True)   # others may run for an hour
        raise ValueError(f'{command} ended with code {code}: {path}.part has what it said')
    os.replace(f'{path}.part', f'{path}.txt')


def make_all(stages, jobs):
    """Make what is not made, `jobs` commands at a time, one stage after the other. After a failure none begins."""
    for stage in [[item for item in stage.items() if not is_made(*item)] for stage in stages]:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed([pool.submit(make, *item) for item in stage]):
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
    if name == 'generation':
        path = f'{config.out}/generation.json'
        make_all([{path: ['bench.py', 'grid', f'--out={path}', *more]}], 1)
        with open(f'{path}.txt', encoding='utf-8') as f:
            print(f.read().partition('\n')[2], end='', flush=True)
        return python('plot.py', path, '-o', f'{config.out}/generation.png')
    figures = {}
    for picture, (options, lines) in FINDINGS[name][1].items():
        wanted = [EVALUATIONS.get(line.partition('/')[2], '').partition('--dataset=')[2] for line in lines.values()]
        if all(not dataset or os.path.exists(os.path.join(config.data_dir, dataset)) for dataset in wanted):
            figures[picture] = options, lines
        else:
            print(f'left out: {picture}, whose puzzles are not in {config.data_dir}')
    stages = plan([line for _, lines in figures.values() for line in lines.values()], config, more)
    dataset, command = DATA[name]
    if not os.path.exists(os.path.join(config.data_dir, dataset)):
        python(*command.split(), f'--data_dir={config.data_dir}')
    make_all(stages, config.jobs)
    for picture, (options, lines) in figures.items():
        paths = [path_of(line, seed, config) for line in lines.values() for seed in config.seeds.split(',')]
        python('plot.py', '-o', f'{config.out}/{picture}.png', *options.split(), f'--labels={",".join(lines)}', *paths)


def python(*words):
    subprocess.run([sys.executable, *words], check=True)


if __name__ == '__main__':
    with one_line_errors():
        at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
        main(configure(globals(), sys.argv[1:at]), sys.argv[at + 1:])
