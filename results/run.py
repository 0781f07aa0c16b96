"""The findings, at a size of minutes to hours: train, evaluate, draw figures, print tables.

    python results/run.py orders --seeds=1,2,3
    python results/run.py sudoku --jobs=2 --data_dir=elsewhere
    python results/run.py orders --out=out/longer -- --max_iters=12000

A table has the mean over the seeds, its standard error and their number. What is finished is not
made again, unless it evaluates weights or data that are others now. Make one finding at a time in a
folder, since they share runs. Options behind -- go to every train.py."""

import hashlib
import itertools
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT
from anyorder.machine.locks import locked
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.meta import read_meta
from configurator import at_least, configure, numbers

# fmt: off

seeds = '1,2'          # one training each, with commas between
jobs = 1               # commands at a time, each on one core if there are more than one
out = 'out/findings'   # where logs, checkpoints, evaluations and figures go
data_dir = 'data'      # where prepared sets are; what is missing is made there
# fmt: on

FIM = 'results/infilling/fim.py'
TRAINERS = ('train.py', FIM)  # options alone are those of the first


@dataclass(frozen=True)
class Picture:
    """A figure and a table.

    options  of plot.py
    lines    {label: RUN or RUN/EVALUATION}"""

    name: str
    options: str
    lines: dict


class Finding:
    """What is compared, the pictures of it, and the set that is learned with the command for it."""

    def __init__(self, about, *pictures, dataset='pydocs', made_by='data/prepare.py pydocs'):
        self.about = about
        self.pictures = pictures
        self.dataset = dataset
        self.made_by = made_by


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
SUDOKU_60K = 'data/puzzles.py sudoku --n_train=60000 --name=sudoku_60k'
PLATEAU = {
    'AdaLN': 'sudoku_decoder',
    'half the rates': 'sudoku_half',
    'added to each layer': 'sudoku_layer',
    'two streams at half the rates': 'sudoku_two_stream_half',
}
ZEBRA4 = {'decoder': 'zebra4_decoder', 'encoder': 'zebra4_encoder', 'mixed': 'zebra4_mixed'}
NAE_SAT = {'decoder': 'nae_sat_decoder', 'encoder': 'nae_sat_encoder', 'mixed': 'nae_sat_mixed'}

FINDINGS = {
    'orders': Finding(
        '1, 2: any order, left to right, and one fixed order (block-wise, random)',
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
        '3: without and with 10 % left-to-right sequences',
        Picture(
            'l2r_data',
            '--y=val_any,val_l2r',
            {'none left to right': 'any', '10 % left to right': 'base'},
        ),
    ),
    'positions': Finding(
        '4: four ways to tell the target position, and rotary; Muon and AdamW',
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
        "4: AdaLN gates that start at 0, as the paper's, or at 1; Muon and AdamW",
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
        '4: no average of the weights, 0.99, 0.999',
        Picture(
            'ema',
            '--y=val_any,val_l2r',
            {'no average': 'ema_none', 'decay 0.99': 'base', 'decay 0.999': 'ema_0.999'},
        ),
    ),
    'ensemble': Finding(
        '5: the context-order ensemble between decoder and encoder',
        Picture(
            'ensemble',
            '',
            {
                'decoder': 'base/ensemble',
                'encoder': 'encoder/bound',
                'decoder with rotary': 'rotary/ensemble',
                'encoder with rotary': 'encoder_rotary/bound',
            },
        ),
    ),
    'networks': Finding(
        'text by decoder, encoder, mixed network and two streams',
        Picture('networks', '--y=val_any', NETWORKS),
        Picture('networks_likelihood', '', measured('likelihood', NETWORKS)),
    ),
    'two_stream': Finding(
        'two streams against AdaLN, without and with rotary, and wider for as long',
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
        'a left-to-right model adapted to any order, beside training from scratch',
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
        Picture('adaptation_before', '--y=val_l2r', {'left to right': 'before'}),
    ),
    'swaps': Finding(
        'pi-learners: one order each between left to right and random; '
        'an any-order model along them',
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
        Picture('swaps_along', '', {'any order': 'swaps_any/along'}),
    ),
    'sudoku': Finding(
        '9 x 9 Sudoku by decoder, encoder and mixed network; 12 minutes a run',
        Picture('sudoku', '--y=val_any', SUDOKU),
        Picture('sudoku_solved', '', measured('solved', SUDOKU)),
        Picture('sudoku_graded', '', measured('graded', SUDOKU)),
        Picture('sudoku_diabolical', '', measured('diabolical', SUDOKU)),
        dataset='sudoku_60k',
        made_by=SUDOKU_60K,
    ),
    'plateau': Finding(
        'the seeds of a 9 x 9 decoder: lower rates, and how a slot is told its target; '
        '13 to 27 minutes a run',
        Picture('plateau', '--y=val_any', PLATEAU),
        Picture('plateau_solved', '', measured('solved', PLATEAU)),
        dataset='sudoku_60k',
        made_by=SUDOKU_60K,
    ),
    'zebra4': Finding(
        'Zebra puzzles of 3 or 4 houses by the same; 15 minutes a run',
        Picture('zebra4', '--y=val_any', ZEBRA4),
        Picture('zebra4_solved', '', measured('solved', ZEBRA4)),
        dataset='zebra4',
        made_by='data/puzzles.py zebra4',
    ),
    'nae_sat': Finding(
        'latents and observations by the same; 25 minutes a run',
        Picture('nae_sat', '--y=val_any', NAE_SAT),
        Picture('nae_sat_agree', '--y=right', measured('agree', NAE_SAT)),
        dataset='nae_sat',
        made_by='data/puzzles.py nae_sat',
    ),
    'infilling': Finding(
        'filling in a middle: any order, sorted subsets, and fill-in-the-middle by a '
        'left-to-right model',
        Picture(
            'infilling',
            '--y=val_l2r',
            {
                'any order': 'infilling_any',
                'sorted subsets': 'infilling_subset',
                'left to right': 'infilling_l2r',
                'fill-in-the-middle': 'infilling_fim',
            },
        ),
        dataset='books_bytes',
        made_by=(
            'data/prepare.py text --name=books_bytes --tokenizer=bytes '
            '--source=books_train.jsonl.xz --split=train'
        ),
    ),
    'repeated': Finding(
        '150 KB of text, read 40 to 100 times, by few orders, all orders and masks; '
        '5 to 20 minutes a run',
        Picture(
            'repeated',
            '--y=val_l2r',
            {
                'left to right': 'repeat_l2r',
                'with dropout': 'repeat_l2r_dropout',
                '2 orders': 'repeat_few_2',
                '16 orders': 'repeat_few_16',
                'any order': 'repeat_any',
                'any with dropout': 'repeat_any_dropout',
                'two streams': 'repeat_two_stream',
            },
        ),
        Picture(
            'repeated_any',
            '--y=val_any',
            {
                'any order': 'repeat_any',
                'any with dropout': 'repeat_any_dropout',
                'two streams': 'repeat_two_stream',
                'encoder': 'repeat_encoder',
            },
        ),
        dataset='pydocs_150',
        made_by=(
            'data/prepare.py text --name=pydocs_150 --tokenizer=bytes --source=pydocs150.txt '
            '--split=train'
        ),
    ),
    'stars': Finding(
        'the path to the goal of a path-star graph, by eleven runs; results/stargraphs has '
        'stargraphs.py, which makes rows',
        Picture(
            'stars',
            '--y=val_l2r',
            {
                'GPT': 'star_l2r',
                'decoder': 'star_decoder',
                'after a GPT': 'star_adapted',
                'two streams': 'star_two_stream',
                'question first': 'star_question_first',
                'half left to right': 'star_half',
                'question first after a GPT': 'star_question_adapted',
                'the same for longer': 'star_question_long',
            },
        ),
        Picture(
            'stars_own',
            '--y=val_own',
            {
                'right to left': 'star_r2l',
                'question first': 'star_question_first',
                'half left to right': 'star_half',
                'question first after a GPT': 'star_question_adapted',
                'the same for longer': 'star_question_long',
            },
        ),
        Picture(
            'stars_any',
            '--y=val_any',
            {
                'decoder': 'star_decoder',
                'after a GPT': 'star_adapted',
                'two streams': 'star_two_stream',
                'encoder': 'star_encoder_long',
                'mixed': 'star_mixed',
            },
        ),
        dataset='star_2',
        made_by='data/prepare.py tokens --name=star_2 --source=star_2.npz',
    ),
    'facts': Finding(
        'invented facts asked from their other side, by five networks; results/stargraphs '
        'makes the rows',
        Picture(
            'facts',
            '--y=val_any,val_l2r',
            {
                'left to right': 'facts_l2r',
                'decoder': 'facts_decoder',
                'two streams': 'facts_two_stream',
                'mixed': 'facts_mixed',
                'encoder': 'facts_encoder',
            },
        ),
        dataset='facts',
        made_by='data/prepare.py tokens --name=facts --source=facts.npz',
    ),
}
WORDS = {name: finding.about for name, finding in FINDINGS.items()}

OF_TEXT = 'eval_ppl.py --n_blocks=512'
OF_PUZZLES = 'eval_puzzle.py --policies=random,margin'
# what measures a checkpoint
EVALUATIONS = {
    'ensemble': f'{OF_TEXT} --estimates=ensemble --n_contexts=64',
    'bound': f'{OF_TEXT} --estimates=any --n_orders=64',
    'likelihood': f'{OF_TEXT} --estimates=l2r,any --n_orders=16',
    'along': 'eval_ppl.py --orders=l2r,swaps:16,swaps:26,fixed,random --n_orders=3',
    'solved': f'{OF_PUZZLES} --n_puzzles=500',
    'agree': f'{OF_PUZZLES} --n_puzzles=200',
    'graded': f'{OF_PUZZLES} --n_puzzles=500 --dataset=graded',
    'diabolical': f'{OF_PUZZLES} --n_puzzles=500 --dataset=diabolical',
}


def runs_of(seed, out):
    """Return what train.py is given for each run of this seed, {RUN: options as in a shell}.

    A seed has orders of its own. `out` is the folder of the runs, some of which begin from the
    weights of others."""
    return (
        text_runs(seed)
        | adapted_runs(seed, out)
        | swapped_runs(seed)
        | puzzle_runs()
        | infilling_runs()
        | star_runs(seed, out)
        | fact_runs()
        | repeated_runs()
    )


# a network that takes 2 min 20 s on one core: 32 bytes at a time of the English inside Python
BASE = (
    'config/quickstart.py --block_size=32 --n_head=2 --n_embd=64 --batch_size=64 --max_iters=3000 '
    '--eval_interval=150 --log_interval=150 --save_interval=3000'
)


def text_runs(seed):
    any_order = f'{BASE} --l2r_ratio=0'
    # in place of Muon, at the best rate and decay of a sweep at this size: results/optimizer
    adamw = f'{BASE} --optimizer=adamw --learning_rate=2e-2 --min_lr=2e-3 --weight_decay=0.2'
    encoder = f'{BASE} --network=encoder,gate_init=1 --l2r_ratio=0'
    two_stream = f'{BASE} --network=two_stream'
    wide = (
        f'{BASE} --block_size=128 --n_layer=3 --n_head=4 --n_embd=128 --batch_size=16 '
        '--network=rotary,gate_init=1 --max_iters=1500'
    )
    return {
        'base': BASE,
        'any': any_order,
        'l2r': f'{any_order} --order=l2r',
        'block': f'{any_order} --order=block@{seed}',
        'fixed': f'{any_order} --order=fixed@{seed}',
        'input': f'{BASE} --network=input',
        'layer_shared': f'{BASE} --network=layer_shared',
        'layer': f'{BASE} --network=layer',
        'rotary': f'{BASE} --network=rotary,gate_init=1',
        'gates0': f'{BASE} --network=decoder',
        'adamw': adamw,
        'adamw_input': f'{adamw} --network=input',
        'adamw_layer_shared': f'{adamw} --network=layer_shared',
        'adamw_layer': f'{adamw} --network=layer',
        'adamw_rotary': f'{adamw} --network=rotary,gate_init=1',
        'adamw_gates0': f'{adamw} --network=decoder',
        'ema_none': f'{BASE} --ema_decay=0',
        'ema_0.999': f'{BASE} --ema_decay=0.999',
        'encoder': encoder,
        'encoder_rotary': f'{encoder} --network=encoder,rotary,gate_init=1',
        'mixed': f'{BASE} --network=mixed,gate_init=1 --l2r_ratio=0',
        'two_stream': two_stream,
        'two_stream_rotary': f'{two_stream} --network=two_stream,rotary',
        'wide': wide,
        'wide_longer': f'{wide} --max_iters=2090',  # updates of two streams take 1.39 times as long
        'wide_two_stream': f'{wide} --network=two_stream,rotary',
    }


def adapted_runs(seed, out):
    scratch = f'{BASE} --max_iters=1000 --eval_interval=50'
    adapted = f'{scratch} --init_from={out}/before_seed{seed}/ckpt.pt'
    quarter = '--learning_rate=2.5e-3 --min_lr=2.5e-4 --optimizer=muon:0.01'  # of the rates
    return {
        'before': f'{BASE} --max_iters=2000 --l2r_ratio=0 --order=l2r',
        'scratch': scratch,
        'adapted': adapted,
        'adapted_gently': f'{adapted} {quarter}',
    }


def swapped_runs(seed):
    any_order = f'{BASE} --block_size=256 --batch_size=8 --l2r_ratio=0'
    return {
        'swaps_any': any_order,
        'swaps_l2r': f'{any_order} --order=l2r',
        'swaps_16': f'{any_order} --order=swaps:16@{seed}',
        'swaps_26': f'{any_order} --order=swaps:26@{seed}',
        'swaps_fixed': f'{any_order} --order=fixed@{seed}',
    }


def puzzle_runs():
    sudoku = 'config/sudoku.py --dataset=sudoku_60k --max_iters=2200 --min_lr=1e-3 --ema_decay=0.99'
    half = f'{sudoku} --learning_rate=5e-3 --optimizer=muon:0.02 --min_lr=5e-4'
    zebra4 = 'config/zebra4.py'
    nae_sat = 'config/nae_sat.py --max_iters=4000 --l2r_ratio=0'
    return {
        'sudoku_decoder': sudoku,
        # without AdaLN: as many parameters by the width
        'sudoku_layer': f'{sudoku} --network=layer --n_embd=160',
        'sudoku_half': half,
        'sudoku_two_stream_half': f'{half} --network=two_stream --n_embd=160',
        'sudoku_encoder': f'{sudoku} --network=encoder,gate_init=1 --l2r_ratio=0',
        'sudoku_mixed': f'{sudoku} --network=mixed,gate_init=1 --l2r_ratio=0',
        'zebra4_decoder': f'{zebra4} --network=gate_init=1',
        'zebra4_encoder': f'{zebra4} --l2r_ratio=0',
        'zebra4_mixed': f'{zebra4} --network=mixed,gate_init=1 --l2r_ratio=0',
        'nae_sat_decoder': nae_sat,
        'nae_sat_encoder': f'{nae_sat} --network=encoder,layer',
        'nae_sat_mixed': f'{nae_sat} --network=mixed,layer',
    }


def infilling_runs():
    # books, 128 bytes at a time
    any_order = (
        f'{BASE} --dataset=books_bytes --block_size=128 --n_layer=3 --n_head=4 --n_embd=128 '
        '--batch_size=16 --network=rotary,gate_init=1 --max_iters=2500 --eval_interval=250 '
        '--log_interval=250 --save_interval=2500'
    )
    l2r = f'{any_order} --order=l2r --l2r_ratio=0'
    return {
        'infilling_any': any_order,
        'infilling_subset': f'{any_order} --order=sorted_subset',
        'infilling_l2r': l2r,
        'infilling_fim': f'{FIM} {l2r} --fim_ratio=0.5',
    }


def star_runs(seed, out):
    star = (
        'config/sudoku.py --dataset=star_2 --block_size=22 --network=rotary,gate_init=1 '
        '--max_iters=3000 --learning_rate=3e-3 --min_lr=3e-4 --optimizer=muon:0.01'
    )
    decoder = f'{star} --l2r_ratio=0.1'
    after_l2r = f'--init_from={out}/star_l2r_seed{seed}/ckpt.pt'
    # a function of results/stargraphs
    question_first = f'{decoder} --order=results/stargraphs/stargraphs.py:question_first'
    question_adapted = f'{question_first} {after_l2r}'
    return {
        'star_l2r': f'{star} --order=l2r',
        'star_r2l': f'{star} --order=r2l',
        'star_adapted': f'{decoder} {after_l2r}',
        'star_decoder': decoder,
        # without AdaLN: as many parameters by the width
        'star_two_stream': f'{decoder} --network=two_stream,rotary --n_embd=160',
        'star_question_first': question_first,
        'star_question_adapted': question_adapted,
        'star_question_long': f'{question_adapted} --max_iters=12000',
        'star_half': f'{question_first} --l2r_ratio=0.5 --max_iters=15000',
        'star_encoder_long': f'{star} --network=encoder,rotary,gate_init=1 --max_iters=15000',
        'star_mixed': f'{star} --network=mixed,rotary,gate_init=1',
    }


def fact_runs():
    facts = (
        'config/sudoku.py --dataset=facts --block_size=5 --network=rotary,gate_init=1 '
        '--max_iters=3000'
    )
    decoder = f'{facts} --l2r_ratio=0.1'
    return {
        'facts_l2r': f'{facts} --order=l2r',
        'facts_decoder': decoder,
        'facts_two_stream': f'{decoder} --network=two_stream,rotary --n_embd=160',
        'facts_mixed': f'{facts} --network=mixed,rotary,gate_init=1',
        'facts_encoder': f'{facts} --network=encoder,rotary,gate_init=1',
    }


def repeated_runs():
    # 150 KB, read 60 times at constant rates; 40 where a model overfits, 100 where it learns slowly
    repeat = (
        'config/quickstart.py --dataset=pydocs_150 --n_head=4 --n_embd=128 --batch_size=64 '
        '--network=rotary,gate_init=1 --learning_rate=5e-3 --min_lr=5e-3 --optimizer=muon:0.02 '
        '--max_iters=2190 --eval_iters=8 --eval_interval=73 --log_interval=73 --save_interval=365'
    )
    any_order = f'{repeat} --l2r_ratio=0.1'
    encoder = f'{repeat} --network=encoder,rotary,gate_init=1 --l2r_ratio=0'
    l2r = f'{repeat} --order=l2r --l2r_ratio=0'
    dropout = '--dropout=0.2 --weight_decay=0.2'
    return {
        'repeat_any': any_order,
        'repeat_two_stream': f'{any_order} --network=two_stream,rotary --n_embd=160',
        'repeat_encoder': f'{encoder} --max_iters=3650',
        'repeat_few_2': f'{repeat} --order=few:2 --l2r_ratio=0 --max_iters=1460',
        'repeat_few_16': f'{repeat} --order=few:16 --l2r_ratio=0',
        'repeat_l2r': f'{l2r} --max_iters=1460',
        'repeat_l2r_dropout': f'{l2r} {dropout}',
        'repeat_any_dropout': f'{any_order} {dropout}',
    }


def choose_pictures(finding, data_dir):
    """Return the pictures of a finding; those whose puzzles are not there are said and left out."""
    chosen = []
    for picture in finding.pictures:
        if has_sets(picture, data_dir):
            chosen.append(picture)
        else:
            print(f'left out: {picture.name}, whose puzzles are not in {data_dir}')
    return chosen


def has_sets(picture, data_dir):
    """Whether the sets are there that the evaluations of this picture name."""
    for line in picture.lines.values():
        _, _, evaluation = line.partition('/')
        _, _, dataset = EVALUATIONS.get(evaluation, '').partition('--dataset=')
        if dataset and not os.path.exists(os.path.join(data_dir, dataset)):
            return False
    return True


def plan(lines, c, more):
    """Return the three stages, each {path: words of the command that makes it}.

    They are trainings, trainings that begin from weights of the first, and evaluations."""
    where = []
    if 'data_dir' in c.given:
        where = [f'--data_dir={c.data_dir}']
    trained = {}
    adapted = {}
    evaluated = {}
    for line, seed in itertools.product(lines, numbers(c, 'seeds')):
        run, _, evaluation = line.partition('/')
        options = runs_of(seed, shlex.quote(c.out))[run]
        folder = path_of(run, seed, c)
        own = [f'--seed={seed}', f'--out_dir={folder}']
        stage = adapted if '--init_from' in options else trained
        words = shlex.split(options)
        if words[0] not in TRAINERS:
            words = ['train.py', *words]
        stage[folder] = [*words, *more, *own, *where]
        if evaluation:
            path = path_of(line, seed, c)
            program, *asked = EVALUATIONS[evaluation].split()
            ckpt = f'--ckpt={folder}/ckpt.pt'
            evaluated[path] = [program, ckpt, *asked, f'--out={path}']
    return trained, adapted, evaluated


def path_of(line, seed, c):
    """Return the folder of a run, or the JSON file of its evaluation: what plot.py reads."""
    path = f'{c.out}/{line.replace("/", "_")}_seed{seed}'
    if '/' in line:
        path += '.json'
    return path


def make_set(finding, data_dir):
    """Make the set of a finding unless its folder is there."""
    if os.path.exists(os.path.join(data_dir, finding.dataset)):
        return
    words = [*shlex.split(finding.made_by), f'--data_dir={data_dir}']
    subprocess.run([sys.executable, *words], check=True)


def make_all(stages, jobs, read):
    """Make what is not made, `jobs` commands at a time, one stage after the other.

    After a failure none begins. `read` gives of the words what read_by says."""
    for stage in stages:
        to_make(stage, read)  # what is refused is refused before the work
    for stage in stages:
        with ThreadPoolExecutor(jobs) as pool:
            made = [pool.submit(make, path, words, read) for path, words in to_make(stage, read)]
            try:
                for done in as_completed(made):
                    done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def to_make(stage, read):
    """Return [(path, words)] of a stage that are not made. Raises ValueError, see is_made."""
    return [(path, words) for path, words in stage.items() if not is_made(path, words, read(words))]


def is_made(path, words, reads):
    """Whether this command has made `path` of what it `reads` now, by the head of `path`.txt.

    Evaluations of other weights or data are made anew. Trainings are hours: a ValueError."""
    if not os.path.exists(f'{path}.txt'):
        return False
    said = Path(f'{path}.txt').read_text(encoding='utf-8')
    made_by, of, *_ = f'{said}\n\n'.split('\n')
    if made_by.rstrip() != shlex.join(['python', *words]):
        raise ValueError(f'{path} was made by other options, {made_by}: choose another --out')
    is_known = of.startswith('reads ')  # older ones do not say
    if not is_known or of == reads:
        return True
    if words[0] in TRAINERS:
        raise ValueError(
            f'{path} was made of other data or weights ({of}; now it {reads}): choose another --out'
        )
    return False


def make(path, words, read):
    """Run the command, unless another program has made `path` meanwhile."""
    with locked(path):
        reads = read(words)
        if not is_made(path, words, reads):
            run(path, words, reads)


def run(path, words, reads):
    """Run the command. What it says is in `path`.part, and in `path`.txt once it has ended well."""
    command = shlex.join(['python', *words])
    print(f'{command}\n', end='', flush=True)  # in one piece, beside other jobs
    with open(f'{path}.part', 'w', encoding='utf-8') as f:
        print(f'{command}\n{reads}', file=f, flush=True)
        done = subprocess.run([sys.executable, *words], stdout=f, stderr=f, check=False)
    if done.returncode:
        # at once, since others may run for an hour
        print(f'failed, and {path}.part has what it said: {command}', flush=True)
        raise ValueError(
            f'{command} ended with code {done.returncode}: {path}.part has what it said'
        )
    os.replace(f'{path}.part', f'{path}.txt')


def read_by(words, dataset, c):
    """Return a line of what a command reads: hashes of weights and sets that its options name.

    `dataset` is the set of the finding. A training reads two of its splits."""
    options = dict(word.partition('=')[::2] for word in words)
    found = []
    for path in options.values():
        if path.endswith('.pt') and os.path.isfile(path):
            found.append(f'{path} {hash_of(path)}')

    datasets = [dataset]
    if options.get('--dataset', '') not in ('', dataset):
        datasets.append(options['--dataset'])
    is_training = words[0] in TRAINERS
    for name in datasets:
        meta = read_meta(os.path.join(c.data_dir, name))
        splits = meta.splits if meta else {}
        for split, info in splits.items():
            if not is_training or split in ('train', 'val'):
                found.append(f'{name}/{split} {info.sha256[:16]}')
    return f'reads {", ".join(found)}'


def hash_of(path):
    """Return 16 hexadecimal digits of the SHA-256 of a file."""
    sha = hashlib.sha256()
    with open(path, 'rb') as f:
        while chunk := f.read(2**20):
            sha.update(chunk)
    return sha.hexdigest()[:16]


def draw(picture, c):
    """Draw a picture, and print its table."""
    seeds = numbers(c, 'seeds')
    paths = [path_of(line, seed, c) for line in picture.lines.values() for seed in seeds]
    labels = ','.join(picture.lines)
    out = ['-o', f'{c.out}/{picture.name}.png']
    words = ['plot.py', *out, *picture.options.split(), f'--labels={labels}', *paths]
    subprocess.run([sys.executable, *words], check=True)


def main(config, more):
    """Make a finding. `more` are the options behind --."""
    at_least(config, 1, 'jobs')
    numbers(config, 'seeds')
    os.chdir(ROOT)
    os.makedirs(config.out, exist_ok=True)
    if config.jobs > 1:
        os.environ['OMP_NUM_THREADS'] = '1'

    (name,) = config.words
    finding = FINDINGS[name]
    pictures = choose_pictures(finding, config.data_dir)
    lines = [line for picture in pictures for line in picture.lines.values()]
    stages = plan(lines, config, more)
    make_set(finding, config.data_dir)
    make_all(stages, config.jobs, lambda words: read_by(words, finding.dataset, config))
    for picture in pictures:
        draw(picture, config)


if __name__ == '__main__':
    with one_line_errors():
        at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
        main(configure(globals(), sys.argv[1:at]), sys.argv[at + 1 :])
