"""How does lm-evaluation-harness ask a model? Our checkpoints as one of its models, `aogpt`."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import torch.distributed as dist
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string

from anyorder.checkpoint import digest
from anyorder.extras.lm_eval.reading import Reading, continuation_scores
from anyorder.generation.prompts import Piece, Template, behind_beginning
from anyorder.generation.scroll import Text
from anyorder.generation.way import Page, Way
from anyorder.machine.processes import gather, processes, start_processes
from anyorder.machine.terminal import progress
from anyorder.seeds import derive_seed
from anyorder.tokens.shown import written_text
from anyorder.tokens.spelling import Spelling
from anyorder.tokens.tokenizer import END_OF_TEXT, parted, tokens_of
from anyorder.writer import Writer, check_guided
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
OPTIONS = {
    'ckpt': '',
    'weights': '',
    'device': 'auto',
    'dtype': 'float32',
    'batch_size': 16,
    'order': 'l2r',
    'seed': 1337,
    'n_orders': 1,
} | WRITING


@dataclass(frozen=True)
class Asked:
    """What a request wants to be written.

    number   of the request among all that are asked at once
    text     the Template of the context and its blanks
    seed     draws the text
    options  of writing, as `how_to_write` takes them
    stops    texts before which the answer ends"""

    number: int
    text: Template
    seed: int
    options: dict
    stops: list

    @property
    def way(self):
        """What is the same for all requests that are written together."""
        return repr((self.options, self.stops))


@register_model('aogpt')
class AnyOrderLM(TemplateLM):
    """A checkpoint as lm-evaluation-harness wants a model; lm_eval describes the options."""

    def __init__(self, ckpt, **options):
        super().__init__()
        c = Config(OPTIONS | self.options({'ckpt': ckpt} | options))
        at_least(c, 1, 'batch_size', 'n_orders')
        self.batch_size = c.batch_size
        self.seed = c.seed
        self.order = c.order
        self.defaults = {name: c[name] for name in WRITING}
        self._rank, self._world_size = processes()
        self.writer = Writer(c.ckpt, c.weights or None, c.device, c.dtype)
        self._device = self.writer.device
        self.visits, self.reading = self.how_to_read(c)
        if not dist.is_initialized():
            start_processes()

    def how_to_read(self, c):
        """Return the Order in which texts are read, and the Reading, of the options, checked."""
        config = self.writer.checkpoint.config
        way, _ = self.how_to_write({})
        way.unmasking.check_network(config.slots, self.max_length)
        self.chooses = way.unmasking.adaptive
        reading = Reading(way.order, c.n_orders, c.seed)
        reading.check(config)
        return way.order, reading

    @classmethod
    def create_from_arg_obj(cls, arg_dict, additional_config=None):
        options = cls.options(arg_dict, additional_config)
        # by which lm-eval names the folder of --output_path; a random name without
        arg_dict['path'] = options['ckpt']
        return cls(**options)

    @classmethod
    def options(cls, arg_dict, additional_config=None):
        """Return the options of --model_args, checked, and of --device and --batch_size where these
        say nothing."""
        options = beside_model_args(additional_config or {}) | arg_dict
        if options.get('path') == options.get('ckpt'):  # a dict that has made a model
            options.pop('path', None)
        if 'ckpt' not in options:
            got = ', '.join(arg_dict) or 'nothing'
            raise ValueError(f'--model_args must name a checkpoint, as ckpt=out/ckpt.pt, got {got}')
        for name, value in options.items():
            if name != 'ckpt':
                options[name] = check(OPTIONS, name, value, '--model_args')
        return options

    @classmethod
    def create_from_arg_string(cls, arg_string, additional_config=None):
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # tokens and processes
    eot_token_id = property(lambda self: self.writer.tokenizer.eos)
    max_length = property(lambda self: self.writer.block_size)

    def spans(self, text, spelling=None):
        """Return the tokens of a text and their places, without the beginning that the model puts
        before it."""
        found = behind_beginning(self.writer.tokenizer.shown_spans(text), self.writer.prefix)
        (spelling or Spelling(self.writer.tokenizer)).add(text, found)
        return found

    def tok_encode(self, string, add_special_tokens=None, spelling=None, **_):
        return tokens_of(self.spans(string, spelling))

    def _encode_pair(self, context, continuation, spelling=None):
        """Return (context tokens, tokens that are scored) of a text, with the tokens of the whole
        text: those that end within the context, and all others.

        As lm-eval has it, the blanks at the end of a context belong to what follows."""
        found = self.spans(context + continuation, spelling)
        tokens = tokens_of(found)
        if not continuation:
            return tokens, []
        if not found or found[-1][2] <= len(context):
            raise ValueError(
                f'{self.writer.tokenizer.name} makes no token of {continuation[:60]!r} behind '
                f'{context[-60:]!r}, so that its likelihood says nothing: leave this text out'
            )
        given, _ = parted(found, len(context.rstrip()))
        return tokens[: len(given)], tokens[len(given) :]

    def all_gather(self, tensor):
        if self.world_size == 1:
            return tensor
        return tensor.new_tensor(gather(tensor.tolist()))

    def gather_object(self, obj, dst=0):
        every = gather(obj)
        return every if self.rank == dst else None

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
            'order': self.visits,
            'block_size': self.max_length,
        }

    # what is kept on disk
    @property
    def tokenizer_name(self):
        """The name by which lm-eval keeps the requests of --cache_requests: of the chat template
        too."""
        tokenizer = self.writer.tokenizer
        template = getattr(getattr(tokenizer, 'chat', None), 'template', None)
        if template is None:
            return tokenizer.name
        return f'{tokenizer.name} {derive_seed(template):x}'

    def evaluation(self):
        """Return a hash of all that an answer depends on beside its request: weights, tokenizer,
        and how it is read."""
        how = (
            *self.writer.tokenizer.identity,
            self.writer.dtype,
            self.order,
            self.reading,
            self.defaults,
            self.seed,
        )
        return f'{digest(self.writer.model)} {derive_seed(*map(repr, how)):x}'

    def set_cache_hook(self, cache_hook):
        """Have the answers of --use_cache in a table of this evaluation.

        Those of other weights and other options stay in tables of their own, and those of unknown
        ones, which older files hold, are not served."""
        super().set_cache_hook(cache_hook)
        answers = cache_hook.dbdict
        answers.close()
        answers.__init__(answers.filename, self.evaluation(), autocommit=True)

    def bar(self, requests, said):
        return progress(total=len(requests), desc=said, unit='request', disable=self.rank > 0)

    # how likely a text is
    def loglikelihood(self, requests, disable_tqdm=False):
        """Return [(log p of the continuation, whether it is greedy)].

        A continuation without a context follows [None], as the first token of a text does in
        training: no end-of-text comes before it."""
        spelling = Spelling(self.writer.tokenizer)
        rows = [(request.args, *self._encode_pair(*request.args, spelling)) for request in requests]
        spelling.say()
        return self._loglikelihood_tokens(rows)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Return [log p of the text], in consecutive blocks of block_size tokens from its start on.

        The last block is shorter and is read after all that fits before it; the others have no
        context, as in eval_ppl.py."""
        spelling = Spelling(self.writer.tokenizer)
        rows = []
        for request in requests:
            (text,) = request.args
            rows.append((request.args, *self._encode_pair('', text, spelling)))
        spelling.say()
        return [nats for nats, _ in self._loglikelihood_tokens(rows, 'loglikelihood_rolling')]

    def _loglikelihood_tokens(self, requests, kind='loglikelihood', **_):
        """Return [(log p, whether greedy)] of [(args, context tokens, tokens)].

        What is finished is cached at once."""
        if self.chooses:
            raise ValueError(
                f'order={self.order} is for tasks that write; likelihoods are read in an order '
                'that is given, as l2r or random. eval_ppl.py --orders has the law of a choice'
            )
        found = [None for _ in requests]
        rows = [row for _, *row in requests]
        with self.bar(requests, kind) as bar, self.writer.autocast():
            scores = continuation_scores(self.writer.network, rows, self.reading, self.batch_size)
            for r, nats, greedy in scores:
                found[r] = -nats, greedy
                answer = found[r] if kind == 'loglikelihood' else -nats
                self.cache_hook.add_partial(kind, requests[r][0], answer)
                bar.update()
        return found

    # what is written
    def generate_until(self, requests, disable_tqdm=False):
        """Return [the text that follows each context], without its stop.

        The text ends before a text of `until`, at end-of-text or another special token, as the end
        of a turn, or after max_gen_toks tokens. In another order than left to right all of these
        are blanks from the start. The same request again, a repeat, is another draw."""
        alike = defaultdict(list)
        for asked in self.asked_for(requests):
            alike[asked.way].append(asked)

        found = [None for _ in requests]
        with self.bar(requests, 'generate_until') as bar:
            for group in alike.values():
                for asked, text in self.answers(group):
                    found[asked.number] = text
                    args = requests[asked.number].args
                    self.cache_hook.add_partial('generate_until', args, text)
                    bar.update()
        return found

    def asked_for(self, requests):
        """Return the Asked of each request, and say what the tokenizer cannot spell."""
        spelling = Spelling(self.writer.tokenizer)
        repeats = Counter()
        found = []
        for number, request in enumerate(requests):
            context, gen_kwargs = request.args
            options, n_new, stops = self.read_gen_kwargs(gen_kwargs)
            seed = derive_seed(self.seed, context, repeats[context])
            repeats[context] += 1
            tokens = self.tok_encode(context, spelling=spelling)
            known = Piece('known', tokens, len(tokens), len(tokens))
            text = Template([known, Piece('blank', '', n_new, n_new)], len(tokens) + n_new)
            found.append(Asked(number, text, seed, options, stops))
        spelling.say()
        return found

    def read_gen_kwargs(self, gen_kwargs):
        """Return (options of writing, number of new tokens, stops) that a request asks for."""
        options = {'num_beams': 1} | normalize_gen_kwargs(gen_kwargs)
        is_drawn = options.pop('do_sample')
        n_new = options.pop('max_gen_toks')
        n_beams = options.pop('num_beams')
        stops = [text for text in options.pop('until') if text] + self.ends()
        if n_new < 1 or n_beams != 1:
            raise ValueError(
                f'gen_kwargs: max_gen_toks must be at least 1, and num_beams 1, got {gen_kwargs}'
            )
        if is_drawn and 'temperature' not in gen_kwargs:
            options['temperature'] = self.defaults['temperature'] or 1.0
        return options, n_new, stops

    def ends(self):
        """Return the texts of the tokens with which a text ends, whatever a request says."""
        special = list(getattr(self.writer.tokenizer, 'special', {}))
        if self.eot_token_id is None:
            return special
        return [END_OF_TEXT, *special]

    def answers(self, group):
        """Write what requests that are written together want. Yield (Asked, the text) of each."""
        group = sorted(group, key=lambda asked: -asked.text.length)
        first = group[0]
        way, page = self.how_to_write(first.options)
        page = replace(page, stop=first.stops)
        if way.drawing.cfg_scale:
            for asked in group:
                check_guided(asked.text, page, self.max_length)
        texts = [Text(asked.text, page, asked.seed) for asked in group]
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            for _ in self.writer.write(batch, way):
                pass
            for text, asked in zip(batch, group[start:]):
                yield asked, self.answer(self.writer.sample(text), first.stops)

    def how_to_write(self, asked):
        """Return the Way and the Page that a request asks for, or else the model has."""
        how = dict(self.defaults)
        for name, value in asked.items():
            how[name] = check(self.defaults, name, value, 'gen_kwargs')
        page = Page(context=how.pop('context'))
        page.check(self.writer.block_size, self.writer.tokenizer.n_tokens)
        how['n_steps'] = how['n_steps'] or self.max_length
        return Way.of(self.writer.checkpoint.run, self.order, **how), page

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


def beside_model_args(config):
    """Return the options among --device and --batch_size of lm-eval that have a value of their
    own."""
    found = {}
    for name, value in config.items():
        if name not in ('device', 'batch_size') or value is None:
            continue
        if not str(value).startswith('auto'):
            found[name] = parse(OPTIONS[name], str(value))
    return found
