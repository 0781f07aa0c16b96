"""How does TRL train a model that writes in any order? Its GRPOTrainer, with exact probabilities.

    model = AutoModel.from_pretrained('out/quickstart/hf', trust_remote_code=True)
    trainer = AnyOrderGRPOTrainer(model, reward, GRPOConfig(...), order='random',
                                  train_dataset=prompts, processing_class=tokenizer)

TRL draws prompts, asks for rewards, compares the completions of a prompt, clips ratios and makes
the update. What is replaced is how a completion is written, and its log-probability."""

import inspect
import math
from collections.abc import Sized
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
import trl
from transformers import GenerationConfig
from trl import GRPOTrainer

from anyorder.generation.canvas import Canvas
from anyorder.generation.fill import fill
from anyorder.generation.way import Way

# private methods of TRL that are replaced here, and the names of their first arguments
REPLACED = {
    '_generate_single_turn': ('prompt_ids',),
    '_generate_and_score_completions': ('inputs',),
    '_compute_loss': ('model', 'inputs'),
    '_get_per_token_logps_and_entropies': (
        'model',
        'input_ids',
        'attention_mask',
        'logits_to_keep',
        'batch_size',
    ),
}
# Options of GRPOConfig that would change the law that writes, or want its whole entropy
PLAIN = {
    'temperature': 1.0,
    'top_p': 1.0,
    'top_k': 0,
    'min_p': None,
    'repetition_penalty': 1.0,
    'use_vllm': False,
    'use_transformers_continuous_batching': False,
    'mask_truncated_completions': False,
    'entropy_coef': 0.0,
    'use_adaptive_entropy': False,
    'top_entropy_quantile': 1.0,
}


class AnyOrderGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer for AutoModel of an exported decoder.

    A completion of max_completion_length tokens is written one token a pass, by the law of the
    model itself. With o the order that wrote it, its log-probability is exact, in one pass:

        log pi(x | prompt, o) = sum_d log p(x[o[d]] | prompt, x[o[:d]])

    order    as in sample.py: random, l2r, block:4, margin, margin/32, ...
    others   as in GRPOTrainer

    Where the order is given or drawn, pi(x | prompt, o) times the probability of o is the law of
    what was written, and the policy gradient is exact. Where the model chooses it, the gradient
    leaves out that an update may change a choice. Rewards must be finite, see `finite`."""

    def __init__(self, model, reward_funcs, args, order='random', **others):
        check_trl(GRPOTrainer)
        check_plain(args, others)
        check_model(model)
        model.generation_config = GenerationConfig()  # which TRL looks for, and nothing uses
        if not isinstance(reward_funcs, list):
            reward_funcs = [reward_funcs]
        super().__init__(model, [*map(finite, reward_funcs)], args, **others)
        run = getattr(model.config, 'training', {})
        self.way = Way.of(run, order, n_steps=self.max_completion_length)
        self.network = model.network
        self.orders = None

    def _generate_single_turn(self, prompt_ids, *others):
        """Write a completion for each of the prompts (lists of ids), and keep the orders."""
        check_fits(prompt_ids, self.max_completion_length, self.network.config.block_size)
        seeds = torch.randint(2**62, (len(prompt_ids),)).tolist()
        was_training = self.network.training
        written = write(
            self.network.eval(), prompt_ids, self.max_completion_length, self.way, seeds
        )
        self.network.train(was_training)
        self.orders = written.order
        completions = written.completions(written.idx, self.max_completion_length)
        return completions.tolist(), None

    def _generate_and_score_completions(self, inputs):
        return super()._generate_and_score_completions(inputs) | {'orders': self.orders}

    def _compute_loss(self, model, inputs):
        self.orders = inputs['orders']
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **others
    ):
        """Return (log-probabilities (B, C), entropies, None) of the last C = logits_to_keep ids.

        An entropy is estimated by the one draw there is, -log p of the token; it is for the log."""
        n_prompt = attention_mask[:, :-logits_to_keep].sum(1, keepdim=True)
        size = batch_size or len(input_ids)
        found = []
        rows = (input_ids.long(), n_prompt, self.orders)  # TRL makes floats of an empty prompt
        for part in zip(*(x.split(size) for x in rows)):
            written = Written.of(*part, self.max_completion_length, logits_to_keep)
            with self.accelerator.autocast():
                found.append(written.completions(self.logprobs(model, written), logits_to_keep))
        logprobs = torch.cat(found)
        return logprobs, -logprobs.detach(), None

    def logprobs(self, model, written):
        """Return (B, N) log p in nats of each token, by position."""
        return written.logprobs(model, written.order)


@dataclass(frozen=True)
class Written:
    """Texts as the network reads them.

    idx       (B, N) tokens by position, prompt and completion; behind a shorter row stands 0
    order     (B, N) positions: the prompt, the completion as it was written, what is behind
    n_prompt  (B, 1)
    length    tokens of a completion"""

    idx: torch.Tensor
    order: torch.Tensor
    n_prompt: torch.Tensor
    length: int

    @classmethod
    def of(cls, input_ids, n_prompt, order, length, n_columns):
        """Return the texts of input_ids (B, P + n_columns): a prompt ends before column P."""
        position = torch.arange(order.size(1), device=order.device)
        column = position + input_ids.size(1) - n_columns - n_prompt
        n_behind = max(0, int(column.max()) + 1 - input_ids.size(1))
        idx = F.pad(input_ids, (0, n_behind)).gather(1, column)
        return cls(idx, order, n_prompt, length)

    def logprobs(self, network, order):
        """Return (B, N) log p in nats of each token, by position, of texts read in an order."""
        nll = network(self.idx, order)
        return torch.zeros_like(nll).scatter(1, order, -nll)

    def completions(self, by_position, n_columns):
        """Return columns (B, n_columns) of the completions of a table (B, N) by position."""
        column = self.n_prompt + torch.arange(n_columns, device=by_position.device)
        return by_position.gather(1, column.clamp(max=by_position.size(1) - 1))


def write(network, prompt_ids, length, way, seeds):
    """Return the Written texts of prompts (lists of ids) and completions of `length` tokens.

    seeds  a list of ints: row r is a function of seeds[r]"""
    texts = []
    for ids in prompt_ids:
        tokens = F.pad(torch.tensor(ids, dtype=torch.long), (0, length)).tolist()
        texts.append((tokens, [i < len(ids) for i in range(len(tokens))]))
    canvas = Canvas.of_texts(texts, way.order, seeds, network.device)
    n_prompt = canvas.known.unsqueeze(1).to(network.device)
    fill(network, canvas, way.unmasking, way.drawing)
    return Written(canvas.idx, canvas.order, n_prompt, length)


def check_trl(trainer):
    """Raise ValueError unless TRL's trainer has the methods that are replaced here."""
    for name, arguments in REPLACED.items():
        method = getattr(trainer, name, None)
        found = ()
        if method is not None:
            _, *found = inspect.signature(method).parameters
        if tuple(found[: len(arguments)]) != arguments:
            raise ValueError(
                f'trl {trl.__version__} has no GRPOTrainer.{name}({", ".join(arguments)}, ...), '
                'which is replaced here: install the trl of requirements-extra.txt'
            )


def check_model(model):
    """Raise ValueError unless it is AutoModel of a decoder."""
    forward = getattr(model, 'forward', None)
    if forward is None or 'order' not in inspect.signature(forward).parameters:
        raise ValueError(
            'model must be what AutoModel.from_pretrained loads of an exported folder, and a LoRA '
            f'the peft_config; got {type(model).__name__}'
        )
    if model.network.slots.masked_loss:
        raise ValueError(
            f'attention={model.network.config.attention} has no exact log-probability in one pass: '
            'take a decoder'
        )


def check_plain(args, others):
    """Raise ValueError for an option of GRPOConfig that this trainer would not keep to."""
    for name, value in PLAIN.items():
        if getattr(args, name) != value:
            raise ValueError(
                f'{name} must be {value}, got {getattr(args, name)}: completions are written by '
                'the law of the model itself, whose log-probability is the policy'
            )
    if args.beta and not others.get('peft_config'):
        raise ValueError(
            f'beta={args.beta} wants a peft_config: the model without its LoRA is the reference'
        )


def check_fits(prompt_ids, length, block_size):
    """Raise ValueError unless each prompt fits into the model with a completion of this length."""
    longest = max(map(len, prompt_ids))
    if longest + length > block_size:
        raise ValueError(
            f'a prompt of {longest} tokens and max_completion_length={length} do not fit into the '
            f'{block_size} positions of the model: choose a shorter prompt, or a smaller length'
        )


def finite(reward):
    """Return the reward function, which now raises ValueError for a reward that is not finite.

    TRL takes NaN for no reward. After infinity the completions of its prompt teach nothing, and
    with scale_rewards='none' all weights are NaN. None stays no reward. Reward models are given
    back as they are."""
    if isinstance(reward, str | torch.nn.Module):
        return reward
    name = name_of(reward)

    def checked(completions, **others):
        values = reward(completions=completions, **others)
        check_rewards(name, values, completions)
        return values

    async def awaited(completions, **others):
        values = await reward(completions=completions, **others)
        check_rewards(name, values, completions)
        return values

    calls = (reward, reward.__call__)
    function = awaited if any(map(inspect.iscoroutinefunction, calls)) else checked
    function.__name__ = name
    return function


def name_of(reward):
    """Return the name of a function, of what a partial calls, or of the class of an object."""
    while isinstance(reward, partial):
        reward = reward.func
    return getattr(reward, '__name__', type(reward).__name__)


def check_rewards(name, values, completions):
    """Raise ValueError unless a function of this name gave each completion a reward, or None."""
    n = len(values) if isinstance(values, Sized) else 0
    if n != len(completions):
        raise ValueError(
            f'{name} must return a list of {len(completions)} rewards, one for each completion, '
            f'got {values!r:.60}. This batch changed nothing'
        )
    for value, completion in zip(values, completions):
        if value is not None and not is_finite(value):
            raise ValueError(
                f'{name} must be a finite number, or None for no reward; it is {value!r:.60} of '
                f'the completion {completion!r}. This batch changed nothing'
            )


def is_finite(value):
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):  # no number, several, or one above all floats
        return False
