"""How does lm-evaluation-harness ask a model? Our checkpoints as one of its models, `aogpt`."""

from collections import Counter, defaultdict
from dataclasses import replace

import torch.distributed as dist
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string

from anyorder.checkpoint import digest
from anyorder.generation.way import Page, Way
from anyorder.likelihood.continuations import Reading, continuation_scores
from anyorder.likelihood.lengths import Lengths, read_prior
from anyorder.machine.processes import gather, own_device, processes, start_processes
from anyorder.machine.terminal import progress
from anyorder.seeds import derive_seed
from anyorder.tokens.prompts import Spelling, behind_beginning, parse_prompt, spans
from anyorder.tokens.tokenizers import END_OF_TEXT, HuggingFace
from anyorder.writer import Writer
from configurator import Config, at_least, check, parse

# the options of a request that writes, and of --model_args, with their defaults
WRITING = {
    'n_steps': 0,
    'temperature': 0.0,
    'top_k': 0,
    'top_p': 1.0,
    'schedule': 'linear',
    'unmask': 'fixed',
    'window': 32,
    'threshold': None,
    'order_noise': 0.0,
    'block_length': None,
    'context': 0,
}
OPTIONS = {
    'ckpt': '',
    'weights': '',
    'device': 'auto',
    'dtype': 'float32',
    'batch_size': 16,
    'order': 'l2r',
    'seed': 1337,
    'n_orders': 1,
    'estimate': 'bound',
    'n_contexts': 1,
    'blank_length': '',
    'length_prior': 'uniform',
} | WRITING


def whole_values(arg_dict):
    """The options of --model_args, which lm-eval parts at every comma: a piece without = is of the value before it, as
    of a path with a comma."""
    found, last = {}, None
    for name, value in arg_dict.items():
        if last and value == '' and name not in OPTIONS:
            found[last] = f'{found[last]},{name}'
        else:
            found[name], last = value, name
    return found


@register_model('aogpt')
class AnyOrderLM(TemplateLM):
    """A checkpoint as lm-evaluation-harness wants a model. The options are described in eval_lm.py."""

    def __init__(self, ckpt, **options):
        super().__init__()
        c = Config(OPTIONS | self.options({'ckpt': ckpt} | options))
        at_least(c, 1, 'batch_size')
        self.batch_size, self.seed, self.defaults = (
            c.batch_size,
            c.seed,
            {name: c[name] for name in WRITING},
        )
        self.order = c.order
        self._rank, self._world_size = processes()
        self._device, dtype = own_device(c.device, c.dtype)
        self.writer = Writer(c.ckpt, c.weights or None, str(self._device), dtype)
        config = self.writer.checkpoint.config
        if c.length_prior != 'uniform' and not c.blank_length:
            raise ValueError(
                'length_prior goes with blank_length, without which a context has no blanks'
            )
        self.lengths = c.blank_length and Lengths(
            c.blank_length, read_prior(c.length_prior, self.writer.checkpoint)
        )
        way, _ = self.how_to_write({})
        self.visits = way.order
        unmasking = way.unmasking
        unmasking.check_network(config.slots, self.max_length)
        self.reading = Reading(
            self.visits,
            c.n_orders,
            c.n_contexts,
            c.estimate,
            c.seed,
            unmasking if unmasking.adaptive else None,
        )
        self.reading.check(config)
        if not dist.is_initialized():
            start_processes()

    @classmethod
    def create_from_arg_obj(cls, arg_dict, additional_config=None):
        options = cls.options(arg_dict, additional_config)
        arg_dict['path'] = options[
            'ckpt'
        ]  # by which lm-eval names the folder of --output_path; a random name without
        return cls(**options)

    @classmethod
    def options(cls, arg_dict, additional_config=None):
        """The options of --model_args, and of --device and --batch_size where these say nothing, checked."""
        arg_dict = whole_values(arg_dict)
        more = {
            name: parse(OPTIONS[name], str(value))
            for name, value in (additional_config or {}).items()
            if name in ('device', 'batch_size')
            and value is not None
            and not str(value).startswith('auto')
        }
        options = more | arg_dict
        if options.get('path') == options.get('ckpt'):  # a dict that has made a model
            options.pop('path', None)
        if 'ckpt' not in options:
            raise ValueError(
                '--model_args must name a checkpoint, as ckpt=out/ckpt.pt, got '
                f'{", ".join(arg_dict) or "nothing"}'
            )
        return {
            name: value if name == 'ckpt' else check(OPTIONS, name, value, '--model_args')
            for name, value in options.items()
        }

    @classmethod
    def create_from_arg_string(cls, arg_string, additional_config=None):
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # tokens and processes
    eot_token_id = property(lambda self: self.writer.tokenizer.eos)
    max_length = property(lambda self: self.writer.block_size)

    def spans(self, text, spelling=None):
        """The tokens of a text and their places, without the beginning that the model puts before it."""
        found = behind_beginning(spans(text, self.writer.tokenizer), self.writer.prefix)
        if spelling:
            spelling.add(text, found)
        return found

    def tok_encode(self, string, add_special_tokens=None, spelling=None, **_):
        return [token for token, _, _ in self.spans(string, spelling)]

    def _encode_pair(self, context, continuation, spelling=None):
        """(context tokens, tokens that are scored) of a text, with the tokens of the whole text: those that end within
        the context, and all others. As lm-eval has it, the blanks at the end of a context belong to what follows."""
        found = self.spans(context + continuation, spelling)
        tokens = [token for token, _, _ in found]
        if not continuation:
            return tokens, []
        if not found or found[-1][2] <= len(context):
            raise ValueError(
                f'{self.writer.tokenizer.name} makes no token of {continuation[:60]!r} behind '
                f'{context[-60:]!r}, so that its likelihood says nothing: leave this text out'
            )
        border = len(context.rstrip())
        n = sum(end <= border for _, _, end in found)
        return tokens[:n], tokens[n:]

    def all_gather(self, tensor):
        return tensor.new_tensor(gather(tensor.tolist())) if self.world_size > 1 else tensor

    def gather_object(self, obj, dst=0):
        every = gather(obj)
        return every if self.rank == dst else None

    def barrier(self):
        gather(None)

    def get_model_info(self):
        """What a file of results says of the model."""
        checkpoint = self.writer.checkpoint
        return {
            'model_num_parameters': self.writer.model.n_parameters(),
            'model_dtype': self.writer.dtype,
            'ckpt': checkpoint.name,
            'weights': self.writer.weights,
            'iter_num': checkpoint.iter_num,
            'order': self.visits,
            'block_size': self.max_length,
        }

    # what is kept on disk
    @property
    def tokenizer_name(self):
        """The name by which lm-eval keeps the requests of --cache_requests: of the chat template too."""
        tokenizer = self.writer.tokenizer
        template = getattr(getattr(tokenizer, 'chat', None), 'template', None)
        return tokenizer.name if template is None else f'{tokenizer.name} {derive_seed(template):x}'

    def evaluation(self):
        """A hash of all that an answer depends on beside its request: weights, tokenizer, and how it is read."""
        tokenizer = self.writer.tokenizer
        texts = (
            tokenizer.backend.to_str()
            if isinstance(tokenizer, HuggingFace)
            else getattr(tokenizer, 'texts', None)
        )
        how = (
            tokenizer.name,
            texts,
            self.writer.dtype,
            self.order,
            self.reading,
            self.defaults,
            self.lengths,
            self.seed,
        )
        return f'{digest(self.writer.model)} {derive_seed(*map(repr, how)):x}'

    def set_cache_hook(self, cache_hook):
        """The answers of --use_cache lie in a table of this evaluation. Those of other weights and other options stay
        in tables of their own, and those of unknown ones, which older files hold, are not served."""
        super().set_cache_hook(cache_hook)
        answers = cache_hook.dbdict
        answers.close()
        answers.__init__(answers.filename, self.evaluation(), autocommit=True)

    def bar(self, requests, said):
        return progress(total=len(requests), desc=said, unit='request', disable=self.rank > 0)

    # how likely a text is
    def loglikelihood(self, requests, disable_tqdm=False):
        """[(log p of the continuation, whether it is greedy)]. A continuation without a context follows [None], as the
        first token of a text does in training: no end-of-text comes before it."""
        spelling = Spelling(self.writer.tokenizer)
        rows = [self._encode_pair(*request.args, spelling) for request in requests]
        spelling.say()
        return self._loglikelihood_tokens(
            [(request.args, *row) for request, row in zip(requests, rows)]
        )

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """[log p of the text], in consecutive blocks of block_size tokens from its start on. The last one is shorter
        and is read after all that fits before it; the others have no context, as in eval_ppl.py."""
        spelling = Spelling(self.writer.tokenizer)
        rows = [
            (request.args, *self._encode_pair('', *request.args, spelling)) for request in requests
        ]
        spelling.say()
        return [nats for nats, _ in self._loglikelihood_tokens(rows, 'loglikelihood_rolling')]

    def _loglikelihood_tokens(self, requests, kind='loglikelihood', **_):
        """[(log p, whether greedy)] of [(args, context tokens, tokens)]. What is finished is cached at once."""
        found, rows = [None] * len(requests), [row for _, *row in requests]
        with self.bar(requests, kind) as bar, self.writer.autocast():
            for r, nats, greedy in continuation_scores(
                self.writer.network, rows, self.reading, self.batch_size
            ):
                found[r] = -nats, greedy
                self.cache_hook.add_partial(
                    kind, requests[r][0], found[r] if kind == 'loglikelihood' else -nats
                )
                bar.update()
        return found

    # what is written
    def how_to_write(self, asked):
        """Return the Way and the Page that a request asks for, or else the model has."""
        how = self.defaults | {
            name: check(self.defaults, name, value, 'gen_kwargs') for name, value in asked.items()
        }
        page = Page(context=how.pop('context'))
        page.check(self.writer.block_size)
        how['n_steps'] = how['n_steps'] or self.max_length
        return Way.of(self.writer.checkpoint.run, self.order, **how), page

    def generate_until(self, requests, disable_tqdm=False):
        """[the text that follows each context], without its stop. It ends before a text of `until`, at end-of-text or
        another special token, as the end of a turn, or after max_gen_toks tokens. In another order than left to right
        all of these are blanks from the start. The same request again, a repeat, is another draw. With blank_length a
        context has blanks, see parse_prompt, whose text is the answer, and max_gen_toks says nothing."""
        found, repeats, alike = [None] * len(requests), Counter(), defaultdict(list)
        spelling = Spelling(self.writer.tokenizer)
        ends = [END_OF_TEXT] * (self.eot_token_id is not None) + [
            *getattr(self.writer.tokenizer, 'special', {})
        ]
        for r, request in enumerate(requests):
            context, gen_kwargs = request.args
            asked = {'num_beams': 1} | normalize_gen_kwargs(gen_kwargs)
            sample, n_new = asked.pop('do_sample'), asked.pop('max_gen_toks')
            stops = [text for text in asked.pop('until') if text] + ends
            if n_new < 1 or asked.pop('num_beams') != 1:
                raise ValueError(
                    f'gen_kwargs: max_gen_toks must be at least 1, and num_beams 1, got {gen_kwargs}'
                )
            if sample and 'temperature' not in gen_kwargs:
                asked['temperature'] = self.defaults['temperature'] or 1.0
            seed = derive_seed(self.seed, context, repeats[context])
            tokens = self.tok_encode(context, spelling=None if self.lengths else spelling)
            text = [*tokens, *[0] * n_new], [True] * len(tokens) + [False] * n_new
            if self.lengths:
                length = (
                    self.max_length if len(tokens) <= self.max_length else 2 * len(tokens)
                )  # it slides on
                template = parse_prompt(
                    context, self.writer.tokenizer, length, self.writer.prefix, spelling
                )
                (text,) = self.writer.laid_out([template], [seed], self.lengths)
            repeats[context] += 1
            alike[repr((asked, stops))].append((r, text, seed, asked, stops))
        spelling.say()
        with self.bar(requests, 'generate_until') as bar:
            for group in alike.values():
                group.sort(key=lambda row: -len(row[1][0]))
                numbers, texts, seeds, (asked, *_), (stops, *_) = zip(*group)
                way, page = self.how_to_write(asked)
                rows = iter(numbers)
                until = (
                    () if self.lengths else stops
                )  # what stands behind a blank would be cut with it
                page = replace(page, stop=until)
                for scroll in self.writer.scrolls(texts, list(seeds), self.batch_size, page):
                    for _ in self.writer.write(scroll, way):
                        pass
                    for sample, r in zip(scroll.samples(), rows):
                        written = [
                            token
                            for token, step in zip(sample['tokens'], sample['step'])
                            if step >= 0
                        ]
                        text = self.writer.tokenizer.decode(written)
                        found[r] = text[
                            : min((text.find(stop) for stop in stops if stop in text), default=None)
                        ]
                        self.cache_hook.add_partial('generate_until', requests[r].args, found[r])
                        bar.update()
        return found

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        chat = getattr(self.writer.tokenizer, 'chat', None)
        if chat is None:
            raise ValueError(
                f'{self.writer.checkpoint.name} has no chat template: leave out --apply_chat_template'
            )
        return chat(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
