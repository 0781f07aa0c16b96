"""How does lm-evaluation-harness ask a model? Our checkpoints as one of its models, `aogpt`."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import torch.distributed as dist
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string

from anyorder.checkpoint import digest
from anyorder.extras.lm_eval.reading import continuation_scores
from anyorder.generation.prompts import behind_beginning
from anyorder.generation.way import Page, Way
from anyorder.machine.processes import gather, processes, start_processes
from anyorder.machine.terminal import progress
from anyorder.seeds import derive_seed
from anyorder.tokens.shown import written_text
from anyorder.tokens.spelling import Spelling
from anyorder.tokens.tokenizer import END_OF_TEXT, split_spans, tokens_of
from anyorder.writer import Writer
from configurator import Config, at_least, check, parse

# the options of a request that writes, and of --model_args, with their defaults
WRITING = {
    'n_steps': 0,
    'temperature': 0.0,
    'top_k': 0,
    'top_p': 1.0,
    'min_p': 0.0,
    'presence_penalty': 0.0,
    'cfg_scale': 0.0,
    'schedule': 'linear',
    'unmask': 'fixed',
    'context': 0,
}
# all on which an answer depends, beside the network and its tokenizer
HOW = {'order': 'l2r', 'seed': 1337, 'n_orders': 1} | WRITING
OPTIONS = {'ckpt': '', 'weights': '', 'device': 'auto', 'dtype': 'float32', 'batch_size': 16} | HOW


@register_model('aogpt')
class AnyOrderLM(LM):
    """A checkpoint as lm-evaluation-harness wants a model; lm_eval describes the options."""

    def __init__(self, **options):
        super().__init__()
        self.options = c = Config(overridden(OPTIONS, options, '--model_args'))
        at_least(c, 1, 'batch_size', 'n_orders')
        self._rank, self._world_size = processes()
        self.writer = Writer(c.ckpt, c.weights or None, c.device, c.dtype)
        self._device = self.writer.device
        config = self.writer.checkpoint.config
        self.way, _ = self.how_to_write({}, ())
        self.way.check(config)
        self.way.order.check(config.block_size)
        if c.n_orders > 1 and self.way.order.law == 'one':
            raise ValueError(f'n_orders is for orders that are drawn, as random, got {c.order}')
        if not dist.is_initialized():
            start_processes()

    @classmethod
    def create_from_arg_obj(cls, arg_dict, additional_config=None):
        options = beside_model_args(additional_config or {}) | arg_dict
        options.pop('path', None)  # of a dict that has made a model
        model = cls(**options)
        # by which lm-eval names the folder of --output_path; a random name without
        arg_dict['path'] = options['ckpt']
        return model

    @classmethod
    def create_from_arg_string(cls, arg_string, additional_config=None):
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # processes
    def all_gather(self, tensor):
        return tensor.new_tensor(gather(tensor.tolist()))

    def gather_object(self, obj, dst=0):
        return gather(obj)

    def barrier(self):
        gather(None)

    def get_model_info(self):
        """Return what a file of results says of the model."""
        checkpoint = self.writer.checkpoint
        return {
            'model_num_parameters': self.writer.model.n_parameters(),
            'model_dtype': self.writer.dtype,
            'ckpt': checkpoint.name,
            'weights': self.writer.weights,
            'iter_num': checkpoint.iter_num,
            'order': self.way.order,
            'block_size': self.writer.block_size,
        }

    # what is kept on disk
    @property
    def tokenizer_name(self):
        """The name by which lm-eval keeps the requests of --cache_requests: of the chat template
        too."""
        tokenizer = self.writer.tokenizer
        template = getattr(getattr(tokenizer, 'chat', None), 'template', '')
        return f'{tokenizer.name} {derive_seed(template):x}'

    def evaluation(self):
        """Return a hash of all that an answer depends on beside its request: weights, tokenizer,
        and how it is read."""
        # of a file that the order names the Way knows what is in it
        how = [*self.writer.tokenizer.identity, self.writer.dtype, self.way]
        how += map(self.options.get, HOW)
        return f'{digest(self.writer.model)} {derive_seed(*map(repr, how)):x}'

    def set_cache_hook(self, cache_hook):
        """Have the answers of --use_cache in a table of this evaluation.

        Those of other weights and other options stay in tables of their own, and those of unknown
        ones, which older files hold, are not served."""
        super().set_cache_hook(cache_hook)
        answers = cache_hook.dbdict
        answers.close()
        answers.__init__(answers.filename, self.evaluation(), autocommit=True)

    def answered(self, kind, requests, answers):
        """Return the answer to each request, of (number of the request, answer) as they come.

        What is finished is cached at once."""
        found = [None for _ in requests]
        with progress(total=len(requests), desc=kind, unit='request', disable=self.rank > 0) as bar:
            for number, answer in answers:
                found[number] = answer
                self.cache_hook.add_partial(kind, requests[number].args, answer)
                bar.update()
        return found

    # how likely a text is
    def loglikelihood(self, requests, disable_tqdm=False):
        """Return [(log p of the continuation, whether it is greedy)].

        A continuation without a context follows [None], as the first token of a text does in
        training: no end-of-text comes before it."""
        scores = self.scores([request.args for request in requests])
        answers = ((r, (-nats, greedy)) for r, nats, greedy in scores)
        return self.answered('loglikelihood', requests, answers)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Return [log p of the text], in consecutive blocks of block_size tokens from its start on.

        The last block is shorter and is read after all that fits before it; the others have no
        context, as in eval_ppl.py."""
        scores = self.scores([('', *request.args) for request in requests])
        answers = ((r, -nats) for r, nats, _ in scores)
        return self.answered('loglikelihood_rolling', requests, answers)

    def scores(self, pairs):
        """Yield (number, nats, whether greedy) of [(context, continuation)], see
        continuation_scores."""
        if self.way.unmasking.adaptive:
            raise ValueError(
                f'order={self.options.order} is for tasks that write; likelihoods are read in an '
                'order that is given, as l2r or random. eval_ppl.py --orders has the law of a '
                'choice'
            )
        spelling = Spelling(self.writer.tokenizer)
        rows = [self.encode_pair(*pair, spelling) for pair in pairs]
        spelling.say()
        c = self.options
        how = {'order': self.way.order, 'n_orders': c.n_orders, 'seed': c.seed}
        with self.writer.autocast():
            yield from continuation_scores(self.writer.network, rows, c.batch_size, **how)

    def encode_pair(self, context, continuation, spelling):
        """Return (context tokens, tokens that are scored) of a text, with the tokens of the whole
        text: those that end within the context, and all others.

        As lm-eval has it, the blanks at the end of a context belong to what follows."""
        found = self.spans(context + continuation, spelling)
        if not continuation:
            return tokens_of(found), []
        if not found or found[-1][2] <= len(context):
            raise ValueError(
                f'{self.writer.tokenizer.name} makes no token of {continuation[:60]!r} behind '
                f'{context[-60:]!r}, so that its likelihood says nothing: leave this text out'
            )
        return tuple(map(tokens_of, split_spans(found, len(context.rstrip()))))

    def spans(self, text, spelling):
        """Return the tokens of a text and their places, without the beginning that the model puts
        before it."""
        found = behind_beginning(self.writer.tokenizer.shown_spans(text), self.writer.prefix)
        spelling.add(text, found)
        return found

    # what is written
    def generate_until(self, requests, disable_tqdm=False):
        """Return [the text that follows each context], without its stop.

        The text ends before a text of `until`, at end-of-text or another special token, as the end
        of a turn, or after max_gen_toks tokens. In another order than left to right all of these
        are blanks from the start. The same request again, a repeat, is another draw."""
        return self.answered('generate_until', requests, self.written(requests))

    def written(self, requests):
        """Yield (number of the request, what is written). Requests that want the same options and
        stops are written together."""
        spelling = Spelling(self.writer.tokenizer)
        repeats = Counter()
        alike = defaultdict(list)
        for number, request in enumerate(requests):
            context, gen_kwargs = request.args
            n_new, *how = self.read_gen_kwargs(gen_kwargs)
            seed = derive_seed(self.options.seed, context, repeats[context])
            repeats[context] += 1
            tokens = tokens_of(self.spans(context, spelling))
            row = np.pad(np.array(tokens, dtype=int), (0, n_new), constant_values=-1)
            alike[tuple(how)].append((number, row, seed))
        spelling.say()

        for (way, page), group in alike.items():
            group.sort(key=lambda one: -len(one[1]))
            numbers, rows, seeds = zip(*group)
            page = replace(page, length=len(rows[0]))
            page.check(self.writer.checkpoint)
            texts = self.writer.read(rows, way, page, [*seeds], range(len(rows)))
            samples = self.writer.samples(texts, way, self.options.batch_size)
            for number, sample in zip(numbers, samples):
                yield number, self.answer(sample, page.stop)

    def read_gen_kwargs(self, gen_kwargs):
        """Return the number of new tokens, the Way and the Page that a request asks for."""
        options = normalize_gen_kwargs(gen_kwargs)
        at_least(options, 1, 'max_gen_toks')
        is_drawn = options.pop('do_sample')
        n_new = options.pop('max_gen_toks')
        stops = [text for text in options.pop('until') if text] + self.ends()
        if options.pop('num_beams', 1) != 1:
            raise ValueError(f'gen_kwargs: num_beams must be 1, got {gen_kwargs}')
        if is_drawn and 'temperature' not in gen_kwargs:
            options['temperature'] = self.options.temperature or 1.0
        return n_new, *self.how_to_write(options, stops)

    def ends(self):
        """Return the texts of the tokens with which a text ends, whatever a request says."""
        special = list(self.writer.tokenizer.special)
        if self.writer.tokenizer.eos is None:
            return special
        return [END_OF_TEXT, *special]

    def how_to_write(self, asked, stops):
        """Return the Way and the Page of these options, or else of the model's."""
        defaults = {name: self.options[name] for name in WRITING}
        how = overridden(defaults, asked, 'gen_kwargs')
        page = Page(context=how.pop('context'), stop=tuple(stops))
        page.check(self.writer.checkpoint)
        how['n_steps'] = how['n_steps'] or self.writer.block_size
        return Way.of(self.writer.checkpoint.run, self.options.order, **how), page

    def answer(self, sample, stops):
        """Return what was written in a sample, up to the first of the stops."""
        written = [step >= 0 for step in sample['step']]
        text = written_text(sample['tokens'], written, self.writer.tokenizer)
        places = [text.find(stop) for stop in stops if stop in text]
        return text[: min(places, default=None)]

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        chat = getattr(self.writer.tokenizer, 'chat', None)
        if chat is None:
            raise ValueError(
                f'{self.writer.checkpoint.name} has no chat template: '
                'leave out --apply_chat_template'
            )
        return chat(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )


def overridden(defaults, given, where):
    """Return the defaults with the values that are given, each checked."""
    return defaults | {name: check(defaults, name, value, where) for name, value in given.items()}


def beside_model_args(config):
    """Return the options among --device and --batch_size of lm-eval that have a value of their
    own."""
    found = {}
    for name in ('device', 'batch_size'):
        value = str(config.get(name) or 'auto')
        if not value.startswith('auto'):
            found[name] = parse(OPTIONS[name], value)
    return found
