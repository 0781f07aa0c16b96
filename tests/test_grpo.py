"""GRPO by TRL in any order, results/grpo: its log-probabilities, ratios, gradients and refusals."""

import asyncio
import inspect
import math
from functools import partial
from itertools import permutations, product

import pytest
import torch
from conftest import make_model, one_line

from anyorder.checkpoint import digest, model_from_checkpoint
from anyorder.extras.hub.exported import write_exported
from anyorder.machine.files import write_json
from anyorder.tokens.tokenizers import get_tokenizer
from anyorder.weights import read_json
from configurator import configure

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('hub_modules')]  # ten seconds of imports
transformers = pytest.importorskip('transformers')
peft = pytest.importorskip('peft')
trl = pytest.importorskip('trl', minversion='1.16')  # of Python 3.11 and newer

from results.grpo import compare, grpo
from results.grpo.any_order import AnyOrderGRPOTrainer, Written, check_trl, finite
from results.grpo.estimates import ESTIMATES, EstimateGRPOTrainer

C = 5  # tokens of a completion
PROMPTS = ['ab', 'a longer', '', 'x']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('hf')
    model = make_model(vocab_size=320, n_tokens=257, block_size=16).float()
    write_exported(path, model, {}, get_tokenizer('bytes'), 'ema')
    return str(path)


def policy(folder, view=transformers.AutoModel):
    return view.from_pretrained(folder, trust_remote_code=True).double()


def low_letters(completions, **others):
    """A reward that most completions of random weights share out differently."""
    return [sum(ord(letter) % 7 for letter in one) / 10 for one in completions]


def given(folder, tmp_path, **options):
    """Arguments of a trainer, but for the model and the order."""
    from datasets import Dataset

    options = {
        'max_steps': 2,
        'num_iterations': 2,
        'per_device_train_batch_size': 16,
        'num_generations': 4,
        'max_completion_length': C,
        'learning_rate': 1e-2,
        'lr_scheduler_type': 'constant',
        'max_grad_norm': 0,
    } | options
    args = trl.GRPOConfig(
        f'{tmp_path}/out',
        report_to='none',
        save_strategy='no',
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **options,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    rows = Dataset.from_list([{'prompt': prompt} for prompt in PROMPTS])
    return {
        'reward_funcs': low_letters,
        'args': args,
        'train_dataset': rows,
        'processing_class': tokenizer,
    }


class Recording:
    """Keeps what each update was given, and the log-probabilities of its policy."""

    def __init__(self, *args, **others):
        super().__init__(*args, **others)
        self.batches = []
        self.found = []

    def _compute_loss(self, model, inputs):
        self.batches.append(inputs)
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args, **others):
        found = super()._get_per_token_logps_and_entropies(*args, **others)
        self.found.append(found[0].detach())
        return found


class Exact(Recording, AnyOrderGRPOTrainer):
    pass


class Estimated(Recording, EstimateGRPOTrainer):
    pass


class LeftToRight(Recording, trl.GRPOTrainer):
    pass


def texts_of(batch):
    """[(prompt ids, completion ids)] of a batch."""
    rows = zip(batch['prompt_ids'], batch['prompt_mask'], batch['completion_ids'])
    return [(ids[mask.bool()], completion) for ids, mask, completion in rows]


def logprobs_by_hand(model, batch):
    """(B, C): a row alone, and one pass for each of its tokens."""
    found = []
    for (prompt, completion), order in zip(texts_of(batch), batch['orders']):
        idx = torch.cat([prompt, completion]).long().unsqueeze(0)
        order = order[: idx.size(1)]
        row = torch.zeros(len(completion), dtype=torch.double)
        for visit in range(len(prompt), idx.size(1)):
            logits = model.predict(idx, order[None, : visit + 1], visit)[0, 0]
            position = order[visit]
            row[position - len(prompt)] = logits.log_softmax(-1)[idx[0, position]]
        found.append(row)
    return torch.stack(found)


@pytest.mark.parametrize(
    'order, n_parts', [('random', 1), ('margin', 2), ('l2r', 1), ('block:2', 1)]
)
def test_the_policy_is_the_law_that_wrote(folder, tmp_path, order, n_parts):
    """Of all completions at once, and of an update in two parts."""
    parts = {'per_device_train_batch_size': 16 // n_parts, 'gradient_accumulation_steps': n_parts}
    trainer = Exact(policy(folder), order=order, **given(folder, tmp_path, max_steps=1, **parts))
    trainer.train()
    assert len(trainer.batches) == n_parts
    lengths = set()
    for batch, new in zip(trainer.batches, trainer.found[-n_parts:]):
        lengths |= {len(prompt) for prompt, _ in texts_of(batch)}
        torch.testing.assert_close(new, logprobs_by_hand(policy(folder), batch), rtol=0, atol=1e-10)
    assert lengths == {*map(len, PROMPTS)}


@pytest.mark.parametrize('dtype, most', [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize('kind', ['exact', *ESTIMATES])
def test_ratios_begin_with_one(folder, tmp_path, kind, dtype, most):
    """At the first inner update all are 1; by an estimate they are as long as no weight changes."""
    model = policy(folder).to(dtype)
    if kind == 'exact':
        trainer = Exact(model, **given(folder, tmp_path))
    else:
        options = given(folder, tmp_path, learning_rate=0.0)
        trainer = Estimated(model, estimate=ESTIMATES[kind], **options)
    trainer.train()
    ratios = []
    for batch, new in zip(trainer.batches, trainer.found[-2:]):
        old = batch['old_per_token_logps']
        if kind != 'exact':
            old = batch['old_by_draw'][:, len(ratios)]
        ratios.append((new - old).exp())
    assert (ratios[0] - 1).abs().max() < most
    assert ((ratios[1] - 1).abs().max() < most) == (kind != 'exact')


def test_an_update_is_that_by_hand(folder, tmp_path):
    """d loss = -mean over tokens of A d log p, with A = (r - mean) / (std + 1e-4) of a prompt."""
    options = given(folder, tmp_path, max_steps=1)
    model = policy(folder)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    constant = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0)
    trainer = Exact(model, optimizers=(sgd, constant), **options)
    trainer.train()
    (batch,) = trainer.batches
    tokenizer = options['processing_class']
    rewards = {}
    for prompt, completion in texts_of(batch):
        (reward,) = low_letters(tokenizer.batch_decode([completion], skip_special_tokens=True))
        rewards.setdefault(tuple(prompt.tolist()), []).append(reward)
    by_hand = policy(folder)
    logprobs = logprobs_by_hand(by_hand, batch)
    advantages = []
    seen = {prompt: iter(of_prompt) for prompt, of_prompt in rewards.items()}
    for prompt, _ in texts_of(batch):
        of_prompt = torch.tensor(rewards[tuple(prompt.tolist())])
        reward = next(seen[tuple(prompt.tolist())])
        advantages.append((reward - of_prompt.mean()) / (of_prompt.std() + 1e-4))
    loss = -(torch.stack(advantages).unsqueeze(1) * logprobs).mean()
    loss.backward()
    for ours, theirs in zip(by_hand.parameters(), model.parameters()):
        torch.testing.assert_close(theirs, ours - ours.grad, rtol=0, atol=1e-6)


def test_fifty_updates_improve_a_reward(folder, tmp_path):
    def digits(completions, **others):
        return [sum(map(str.isdigit, one)) / C for one in completions]

    options = given(folder, tmp_path, max_steps=50, learning_rate=3e-2)
    trainer = AnyOrderGRPOTrainer(policy(folder), **options | {'reward_funcs': digits})
    trainer.train()
    log = [entry['reward'] for entry in trainer.state.log_history if 'reward' in entry]
    assert log[0] < 0.2
    assert log[-1] > 0.8
    trainer.save_model(f'{tmp_path}/trained')
    saved = model_from_checkpoint(f'{tmp_path}/trained')
    trained = trainer.model.network.state_dict()['lm_head.bias']
    assert torch.equal(saved.lm_head.bias, trained.float())


def test_trls_own_trainer_is_exact_from_left_to_right(folder, tmp_path):
    model = policy(folder, transformers.AutoModelForCausalLM)
    options = given(folder, tmp_path, max_steps=1, per_device_train_batch_size=12)
    options['train_dataset'] = options['train_dataset'].select([0, 1, 3])  # it wants a token
    trainer = LeftToRight(model, **options)
    trainer.train()
    (batch,) = trainer.batches
    length = max(len(prompt) + len(completion) for prompt, completion in texts_of(batch))
    orders = torch.arange(length).repeat(len(batch['prompt_ids']), 1)
    by_hand = logprobs_by_hand(policy(folder), batch | {'orders': orders})
    mask = batch['completion_mask'].bool()
    torch.testing.assert_close(trainer.found[-1][mask].double(), by_hand[mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize('wrong', [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_one_line_and_changes_nothing(folder, tmp_path, wrong):
    calls = []

    def of_third_batch(completions, **others):
        calls.append(completions)
        rewards = low_letters(completions)
        if len(calls) == 3:
            rewards[5] = wrong
        return rewards

    options = given(folder, tmp_path, max_steps=9) | {'reward_funcs': of_third_batch}
    trainer = Exact(policy(folder), **options)
    with one_line('of_third_batch must be a finite number, .* it is .* changed nothing'):
        trainer.train()
    assert trainer.state.global_step == 4  # two updates by each of two batches
    options = given(folder, tmp_path, max_steps=4)
    fewer = Exact(policy(folder), **options)
    fewer.train()
    assert digest(fewer.model.network) == digest(trainer.model.network)


class Reward:
    """A reward in each of the forms that TRL calls."""

    def __init__(self, values):
        self.values = values

    def __call__(self, completions, **others):
        return self.values

    def method(self, completions, **others):
        return self.values

    async def later(self, completions, **others):
        return self.values

    def forms(self):
        yield 'Reward', self
        yield 'method', self.method
        yield 'method', partial(self.method, weight=2)
        yield 'later', self.later


@pytest.mark.parametrize('values', [[None, 1], (0.5, torch.tensor(2)), torch.tensor([1.0, 2.0])])
def test_a_reward_in_any_form_is_given_on(values):
    for name, reward in Reward(values).forms():
        checked = finite(reward)
        assert checked.__name__ == name
        assert called(checked) is values


@pytest.mark.parametrize(
    'values', [[1.0, math.nan], [math.inf, 1], [1], [1, 2, 3], None, 0.5, ['1', 2], [10**400, 1]]
)
def test_a_reward_in_any_form_is_checked(values):
    for name, reward in Reward(values).forms():
        with one_line(f'{name} must .* This batch changed nothing'):
            called(finite(reward))


def called(reward):
    found = reward(completions=['a', 'b'])
    return asyncio.run(found) if inspect.iscoroutinefunction(reward) else found


def test_a_prompt_that_is_too_long_is_one_line(folder, tmp_path):
    options = given(folder, tmp_path, max_completion_length=9)
    with one_line('a prompt of 8 tokens and max_completion_length=9 .* the 16 positions'):
        AnyOrderGRPOTrainer(policy(folder), **options).train()


def test_a_trl_that_lacks_what_is_replaced_is_one_line():
    check_trl(trl.GRPOTrainer)

    class Renamed(trl.GRPOTrainer):
        _compute_loss = None

    class Earlier(trl.GRPOTrainer):
        def _generate_single_turn(self, prompts):
            """As trl had it before."""

    for trainer, name in ((Renamed, '_compute_loss'), (Earlier, '_generate_single_turn')):
        with one_line(f'trl {trl.__version__} has no GRPOTrainer.{name}'):
            check_trl(trainer)


@pytest.mark.parametrize(
    'options, said',
    [
        ({'temperature': 0.7}, 'temperature must be 1.0, got 0.7'),
        ({'top_k': 5}, 'top_k must be 0, got 5'),
        ({'entropy_coef': 0.1}, 'entropy_coef must be 0.0'),
        ({'beta': 0.1}, 'beta=0.1 wants a peft_config'),
    ],
)
def test_what_would_change_the_law_is_refused(folder, tmp_path, options, said):
    with one_line(said):
        AnyOrderGRPOTrainer(policy(folder), **given(folder, tmp_path, **options))


@pytest.mark.parametrize('view', ['AutoModelForCausalLM', 'AutoModelForMaskedLM'])
def test_another_view_is_refused(folder, tmp_path, view):
    model = policy(folder, getattr(transformers, view))
    with one_line('model must be what AutoModel.from_pretrained loads'):
        AnyOrderGRPOTrainer(model, **given(folder, tmp_path))


def test_what_has_no_exact_log_probability_is_refused(folder, tmp_path):
    with one_line('got str'):
        AnyOrderGRPOTrainer(folder, **given(folder, tmp_path))
    model = policy(folder)
    model.config.model_args['attention'] = 'bidirectional'
    with one_line('attention=bidirectional has no exact log-probability in one pass'):
        AnyOrderGRPOTrainer(type(model)(model.config), **given(folder, tmp_path))


def test_a_lora_is_the_policy_beside_its_reference(folder, tmp_path):
    lora = peft.LoraConfig(r=2, target_modules=['c_attn'], init_lora_weights=False)
    options = given(folder, tmp_path, max_steps=1, beta=0.1, learning_rate=0.0)
    trainer = Exact(policy(folder), peft_config=lora, **options)
    trainer.train()
    (batch,) = trainer.batches
    reference = logprobs_by_hand(policy(folder), batch)
    torch.testing.assert_close(batch['ref_per_token_logps'], reference, rtol=0, atol=1e-10)
    merged = trainer.model.merge_and_unload()
    new = logprobs_by_hand(merged, batch)
    torch.testing.assert_close(trainer.found[-1], new, rtol=0, atol=1e-6)
    assert (new - reference).abs().max() > 1e-3


def test_estimates_have_the_means_that_they_are_named_for(folder):
    """A prompt of 2 tokens, 3 that were written, and 2 behind that no estimate reads."""
    model = policy(folder)
    idx = torch.tensor([[5, 6, 7, 8, 9, 1, 2]])
    orders = torch.tensor([[0, 1, *(2 + i for i in late)] for late in permutations(range(3))])
    bound = -model(idx[:, :5].expand(6, -1), orders)[:, 2:].sum(1).mean()
    means = {'bound': bound, 'level': bound, 'd1': 0.0}
    for seen in product([False, True], repeat=2):
        known = [i for i in range(2) if seen[i]]
        share = 0.85 ** len(known) * 0.15 ** (2 - len(known))
        for position in (2, 3, 4):
            order = torch.tensor([[*known, position]])
            means['d1'] -= share * model(idx, order)[0, -1]

    n = 4000
    rows = Written(idx.expand(n, -1), torch.arange(7).expand(n, -1), torch.full((n, 1), 2), 3)
    keys = torch.arange(n)
    for kind, mean in means.items():
        by_position = ESTIMATES[kind](model, rows, keys).detach()
        assert not by_position[:, [0, 1, 5, 6]].any() or kind == 'bound'
        found = rows.completions(by_position, 3).sum(1)
        assert found.std() > 0.01
        assert (found.mean() - mean).abs() < 4 * found.std() / n**0.5


@pytest.fixture
def toy(folder, monkeypatch):
    """toy(program, *options) is the Config of a program of results/grpo for PROMPTS."""
    monkeypatch.setattr(grpo, 'prompts_of', lambda *where: PROMPTS)
    monkeypatch.setattr(compare, 'prompts_of', lambda *where: PROMPTS)

    def config(program, *options):
        sizes = [f'--folder={folder}', f'--length={C}', '--n_generations=4']
        return configure(vars(program), [*options, *sizes])

    return config


def test_a_run_that_fails_keeps_what_it_had(toy, tmp_path, monkeypatch):
    calls = []

    def of_third_batch(completions, **others):
        calls.append(completions)
        return [math.nan if len(calls) == 3 else len(one) for one in completions]

    monkeypatch.setitem(grpo.REWARDS, 'digits', lambda length: of_third_batch)
    sizes = ('--reward=digits', '--batch_size=16', f'--out_dir={tmp_path}/run')
    with one_line('of_third_batch must be a finite number'):
        grpo.main(toy(grpo, 'train', *sizes))
    kept = read_json(tmp_path / 'run' / 'rewards.json')['batches']
    assert [entry['iter'] for entry in kept] == [1, 3]
    model_from_checkpoint(tmp_path / 'run')


def test_the_exact_value_has_no_error(toy, folder, monkeypatch):
    monkeypatch.setitem(grpo.REWARDS, 'digits', lambda length: low_letters)
    config = toy(compare, '--reward=digits', '--n_prompts=3', '--n_draws=2')
    model = policy(folder).float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batches = [compare.written_batch(model, tokenizer, config, i) for i in range(3)]
    for batch in batches:
        assert batch.advantages.view(3, 4).sum(1).abs().max() < 1e-4
    found = compare.gradients(model, batches, compare.exact)
    row = compare.nats_row(model, batches, compare.exact) | compare.gradient_row(found, found)
    for name, value in {'bias': 0, 'draws': 0, 'texts': 0, 'cosine': 1, 'norm': 1}.items():
        assert row[name] == pytest.approx((value, 0), abs=1e-5)
    of_d1 = compare.nats_row(model, batches, ESTIMATES['d1'])
    assert of_d1['bias'][0] < -1
    assert of_d1['draws'][0] > 0.1


def test_rewards_are_shown_by_name(tmp_path, capsys):
    for seed in (1, 2):
        batches = [{'iter': i, 'reward': i / 10 + seed / 100} for i in range(1, 9)]
        (tmp_path / f'a_{seed}').mkdir()
        write_json(f'{tmp_path}/a_{seed}/rewards.json', {'reward': 'digits', 'batches': batches})
    runs = f'--runs=exact={tmp_path}/a_*'
    grpo.main(configure(vars(grpo), ['table', runs]))
    assert '| digits | exact | 0.115 ± 0.005 (2) | 0.615 ± 0.005 (2) |' in capsys.readouterr().out
    grpo.main(configure(vars(grpo), ['draw', runs, f'--out={tmp_path}/rewards.png']))
    assert (tmp_path / 'rewards.png').stat().st_size > 1000
