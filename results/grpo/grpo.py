"""Does GRPO by TRL improve a reward, with exact log-probabilities and with estimates of them?

    python results/grpo/grpo.py train --policy=exact --seed=1
    python results/grpo/grpo.py train --policy=trl --seed=1
    python results/grpo/grpo.py table --runs='exact=out/grpo/alternating_exact_*'
    python results/grpo/grpo.py draw --runs='exact=out/grpo/alternating_exact_*'

`train` makes 50 updates, and writes the folder of a model with rewards.json. `table` and `draw`
show the rewards of runs; those of one name are seeds."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import glob
from statistics import fmean

import torch

from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.pictures.__main__ import format_mean
from anyorder.extras.pictures.figures import PANELS, UNITS, draw
from anyorder.machine.files import need_extra, write_json
from anyorder.machine.terminal import one_line_errors
from anyorder.seeds import stream
from anyorder.weights import read_json
from configurator import check_choice, configure, names_in

WORDS = {
    'train': 'make updates, and write the folder of a model and its rewards',
    'table': 'print the rewards of runs',
    'draw': 'draw the rewards of runs',
}
# train
folder = 'out/quickstart/hf'  # an exported model
data_dir = 'data'  # where its set is, from which prompts are taken
order = 'random'  # in which completions are written, as in sample.py
reward = 'alternating'  # grpo.py:REWARDS
policy = 'exact'  # exact, estimates.py:ESTIMATES, or trl: left to right by TRL alone
n_updates = 50
n_inner = 2  # updates by the same completions
batch_size = 128  # completions at a time
n_generations = 16  # of a prompt
length = 32  # tokens of a completion
learning_rate = 1e-3  # AdamW's, constant
seed = 1
out_dir = ''  # the folder to write; '' is out/grpo/REWARD_POLICY_SEED
# table, draw
runs = ''  # NAME=FOLDER, with commas; * is allowed
out = 'rewards.png'  # the picture

N_PROMPTS = 64
N_LAST = 5  # batches, of the last updates, whose rewards are averaged


def main(config):
    (word,) = config.words
    if word == 'train':
        need_extra('transformers')
        need_extra('trl')
        train(config)
        return
    found = runs_of(config.runs)
    if word == 'table':
        show(found)
    else:
        draw_rewards(found, config.out)


# --------------------------------------------------------------------------------------------------
# what is asked for


def alternating(length):
    """Return a reward: of the length - 1 pairs of neighbours, the share of a vowel and a
    consonant."""
    vowel = {letter: letter in 'aeiou' for letter in 'abcdefghijklmnopqrstuvwxyz'}

    def share_that_alternates(completions, **others):
        found = []
        for completion in completions:
            kinds = [vowel.get(letter) for letter in completion]
            n_right = sum({*pair} == {True, False} for pair in zip(kinds, kinds[1:]))
            found.append(n_right / (length - 1))
        return found

    return share_that_alternates


def digits(length):
    """Return a reward: the share of digits among `length` bytes."""

    def share_of_digits(completions, **others):
        return [sum(map(str.isdigit, completion)) / length for completion in completions]

    return share_of_digits


REWARDS = {'alternating': alternating, 'digits': digits}


def prompts_of(folder, data_dir, n=N_PROMPTS, n_letters=24):
    """Return n pieces of the validation text of a model, each from the beginning of a word."""
    checkpoint = open_checkpoint(folder)
    split, _ = open_split(data_dir, checkpoint.run['dataset'], 'val')
    tokenizer = checkpoint.tokenizer
    text = tokenizer.decode([token for token in split.packed.tolist() if token != tokenizer.eos])
    generator = stream('prompts')
    found = []
    while len(found) < n:
        start = torch.randint(len(text) - n_letters, (1,), generator=generator)
        _, _, piece = text[start : start + n_letters].partition(' ')
        if piece.isascii() and len(piece) >= n_letters // 2:
            found.append(piece)
    return found


# --------------------------------------------------------------------------------------------------
# training


def train(config):
    """Train and save, also what an error or Ctrl-C has left."""
    from transformers import AutoTokenizer

    check_choice('reward', config.reward, *REWARDS)
    path = config.out_dir or f'out/grpo/{config.reward}_{config.policy}_{config.seed}'
    tokenizer = AutoTokenizer.from_pretrained(config.folder, trust_remote_code=True)
    trainer = make_trainer(config, path, tokenizer)
    try:
        trainer.train()
    finally:
        trainer.save_model(path)
        tokenizer.save_pretrained(path)
        log = [entry for entry in trainer.state.log_history if 'reward' in entry]
        entries = [point_of(entry) for entry in log]
        write_json(f'{path}/rewards.json', {'reward': config.reward, 'batches': entries})
    rewards = [entry['reward'] for entry in log]
    last = fmean(rewards[-N_LAST:])
    print(f'reward {rewards[0]:.4f} of the first batch, {last:.4f} of the last; saved to {path}')


def point_of(entry):
    """Return what is kept of an entry of TRL's log, whose entropy is in nats a token."""
    names = ('reward', 'reward_std', 'entropy', 'grad_norm')
    return {'iter': entry['step']} | {name: entry[name] for name in names}


def make_trainer(config, path, tokenizer):
    """Return TRL's trainer, or ours, with the log-probability that config.policy names."""
    from datasets import Dataset
    from transformers import AutoModel, AutoModelForCausalLM
    from trl import GRPOTrainer

    from results.grpo.any_order import AnyOrderGRPOTrainer
    from results.grpo.estimates import ESTIMATES, EstimateGRPOTrainer

    check_choice('policy', config.policy, 'exact', *ESTIMATES, 'trl')
    view = AutoModelForCausalLM if config.policy == 'trl' else AutoModel
    model = view.from_pretrained(config.folder, trust_remote_code=True)
    rows = [{'prompt': prompt} for prompt in prompts_of(config.folder, config.data_dir)]
    given = {
        'reward_funcs': REWARDS[config.reward](config.length),
        'args': grpo_config(config, path),
        'train_dataset': Dataset.from_list(rows),
        'processing_class': tokenizer,
    }
    if config.policy == 'trl':
        return GRPOTrainer(model, **given)
    if config.policy == 'exact':
        return AnyOrderGRPOTrainer(model, order=config.order, **given)
    estimate = ESTIMATES[config.policy]
    return EstimateGRPOTrainer(model, order=config.order, estimate=estimate, **given)


def grpo_config(config, path):
    from trl import GRPOConfig

    return GRPOConfig(
        path,
        seed=config.seed,
        max_steps=config.n_updates,
        num_iterations=config.n_inner,
        per_device_train_batch_size=config.batch_size,
        num_generations=config.n_generations,
        max_completion_length=config.length,
        learning_rate=config.learning_rate,
        lr_scheduler_type='constant',
        logging_steps=1,
        save_strategy='no',
        report_to='none',
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=not sys.stderr.isatty(),
    )


# --------------------------------------------------------------------------------------------------
# rewards of runs


def runs_of(option):
    """Return [(name, reward, entries)] of runs, NAME=FOLDER with commas."""
    found = []
    for run in names_in(option):
        name, _, pattern = run.partition('=')
        for path in sorted(glob.glob(f'{pattern}/rewards.json')):
            run = read_json(path)
            found.append((name, run['reward'], run['batches']))
    return found


def show(runs):
    """Print a table: the mean over the runs of a name, and its standard error."""
    ends = {}
    for name, reward, entries in runs:
        rewards = [entry['reward'] for entry in entries]
        ends.setdefault((reward, name), []).append((rewards[0], fmean(rewards[-N_LAST:])))
    print('| reward | policy | first batch | last batches |\n|---|---|---|---|')
    for (reward, name), pairs in ends.items():
        first, last = zip(*pairs)
        print(f'| {reward} | {name} | {format_mean(first, {0})} | {format_mean(last, {0})} |')


def draw_rewards(runs, path):
    """Draw a panel for each reward, a line for the runs of a name."""
    lines = []
    for name, reward, entries in runs:
        PANELS[f'reward {reward}'] = reward
        UNITS[f'reward {reward}'] = 'mean reward of a batch'
        points = [{'iter': one['iter'], f'reward {reward}': one['reward']} for one in entries]
        lines.append((name, points))
    rewards = dict.fromkeys(reward for _, reward, _ in runs)
    draw(lines, [('iter', f'reward {reward}') for reward in rewards], path)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
