"""How likely what follows a text is, and whether it is greedy: one token at a time, by hand; last
words; and what lm-evaluation-harness asks of a model."""

import os
import sys
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import make_model, one_line, options_in, options_of_lines

from anyorder.checkpoint import load_checkpoint, save_checkpoint
from anyorder.extras.lm_eval import last_word
from anyorder.extras.lm_eval.__main__ import arguments
from anyorder.extras.lm_eval.reading import continuation_scores, in_orders
from anyorder.generation import generate
from anyorder.likelihood import block_nll
from anyorder.likelihood.journal import Journal
from anyorder.machine.files import read_json
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from anyorder.tokens.spelling import Spelling
from anyorder.tokens.tokenizer import Bytes, Symbols
from anyorder.writer import Writer

ROWS = [
    ([], []),
    ([3, 1], [4, 1, 5]),
    ([], [9, 2, 6, 5, 3]),
    ([5, 8, 9, 7, 9, 3], [1]),  # likeliest in the first random order, not in the second
    ([2, 3, 8, 4, 6, 2, 6], [4, 3]),
    ([8, 3, 2], [7, 9, 5, 0, 2, 8]),
]


def scores(*args, **how):
    """[(nats, greedy)] of all rows."""
    return [(nats, greedy) for _, nats, greedy in sorted(continuation_scores(*args, **how))]


WAYS = [
    ('l2r', 'causal', 1),
    ('random', 'causal', 5),
    ('block:2', 'causal', 5),
    ('random', 'mixed', 5),
    ('r2l', 'mixed', 1),
    ('fixed', 'mixed', 5),
    ('l2r', 'bidirectional', 1),
]


@pytest.mark.parametrize('order, attention, K', WAYS)
def test_rows_of_all_lengths_are_what_each_is_alone_in_orders_that_begin_with_the_context(
    order, attention, K
):
    """Nats are the mean of the orders, greedy is the first. A masked loss in random order is drawn:
    all tokens behind the known ones in one pass."""
    model = make_model(attention=attention)
    how = {'order': Order.of(order, {}), 'n_orders': K, 'seed': 1337}
    drawn = (order, attention) == ('random', 'mixed')
    want = [(0.0, True)]
    for context, tokens in ROWS[1:]:
        text = torch.tensor([context + tokens])
        n = len(context)
        _, orders, visits = zip(*in_orders(model, context, tokens, **how))
        firsts = [some[0] for some in visits]
        assert len(orders) == K and (drawn or {*firsts} == {n})
        assert all(sorted(order[:n]) == [*range(n)] for order in orders)
        given = {'n_given': torch.full((K,), n), 'n_known': torch.tensor(firsts) if drawn else None}
        nats = block_nll(model, text.expand(K, -1), torch.stack(orders), K, **given)
        at = orders[0][None], firsts[0], 1 if drawn else len(tokens)
        greedy = generate(model, text, *at, temperature=0).equal(text)
        want.append((pytest.approx(float(nats.mean()), abs=1e-9), greedy))
    for batch_size in (1, 3, 20):
        assert scores(model, ROWS, batch_size, **how) == want


# ---- last words


@pytest.mark.parametrize(
    'tokenizer, texts, want',
    [
        (Bytes(), ['a bc', 'bc a', 'x', 'one two  d', ' y'], ['a| bc', 'bc| a', 'one two | d']),
        # 'a ' of 'a b' is a token
        (
            Symbols('own', ['a', 'b', ' b', 'a ', '.'], eos=4),
            ['ab b', 'a b', 'bb b'],
            ['ab| b', 'bb| b'],
        ),
    ],
)
def test_a_last_word_is_all_behind_the_last_blank_and_has_tokens_of_its_own(tokenizer, texts, want):
    tokens = np.array([t for text in texts for t in (*tokenizer.encode(text), tokenizer.eos)])
    rows = last_word.last_words(tokens, tokenizer)
    assert ['|'.join(map(tokenizer.decode, row)) for row in rows] == want


def test_last_words_are_counted():
    tokenizer = Symbols('own', ['a', 'b', ' a', ' b', '.'], eos=4)
    tokens = np.array([0, 1, 3, 4, 1, 2, 4, 0, 1, 0, 3, 4])
    corpus = SimpleNamespace(split=SimpleNamespace(packed=tokens), label='', digest='')
    model = make_model(vocab_size=5)
    config = SimpleNamespace(batch_size=2, block_size=3)
    estimate = last_word.last_word(config, SimpleNamespace(tokenizer=tokenizer))
    (row,) = estimate.rows(estimate.measure(model, corpus, Journal('', {})), corpus)
    found = scores(model, [*last_word.last_words(tokens, tokenizer)], length=3)
    nats, hits = np.transpose(found)
    assert (row['accuracy'], row['rows']) == (hits.mean(), 3)
    assert row['word_perplexity'] == pytest.approx(np.exp(nats.mean()))


# ---- what lm-eval asks

N = 32


@pytest.fixture
def ckpt():
    model = make_model(block_size=N, vocab_size=320, n_tokens=257)
    model.lm_head.bias[128:] -= 99  # what is written is letters
    save_checkpoint('ckpt.pt', model.float(), tokenizer='bytes')
    return os.path.abspath('ckpt.pt')


@pytest.fixture
def harness():
    pytest.importorskip('lm_eval')
    import anyorder.extras.lm_eval.harness

    return anyorder.extras.lm_eval.harness


@pytest.fixture
def lm(harness, ckpt):
    """lm(option=value): our checkpoint, or another one, as lm-eval opens it."""

    def opened(**options):
        return harness.AnyOrderLM.create_from_arg_obj({'ckpt': ckpt} | options, {'device': 'cpu'})

    return opened


def asked(*args):
    """Requests, each of a text or of the tuple of its arguments."""
    return [SimpleNamespace(args=one if isinstance(one, tuple) else (one,)) for one in args]


def likely(model, *pairs):
    return [nats for nats, _ in model.loglikelihood(asked(*pairs))]


def written(model, *contexts, **kwargs):
    """What the model writes behind each context, without stops unless they are asked for."""
    how = {'until': [], 'max_gen_toks': 9} | kwargs
    return model.generate_until(asked(*((context, how) for context in contexts)))


LONG = 'abc def ' * 9 + 'xyz'
SCORED = {  # (context, continuation): what of it a Writer is asked
    ('ab', ' cd'): 'ab[[= cd]]',
    ('', 'xyz'): '[[=xyz]]',
    (LONG, '%'): f'{LONG[1 - N :]}[[=%]]',
    ('a', LONG[:N]): f'[[={LONG[:N]}]]',
    # a text begins at [None] and not at the end of another, unless somebody writes it
    ('<|endoftext|>', 'a'): '<|endoftext|>[[=a]]',
}
BLOCKS = [f'[[={LONG[:N]}]]', f'[[={LONG[N : 2 * N]}]]', f'{LONG[-N:-11]}[[={LONG[-11:]}]]']


def test_continuations_score_as_the_writer_scores(lm, ckpt):
    writer = Writer(ckpt)
    want = writer.logprob([*SCORED.values()])
    assert likely(lm(batch_size=2), *SCORED) == pytest.approx(want, abs=1e-4)
    text = writer.infill('ab', order='l2r', temperature=0, length=6)
    pairs = [('ab', text[2:]), ('ab', f'{text[2:-1]}~'), ('ab', f'~{text[3:]}')]
    greedy = [greedy for _, greedy in lm().loglikelihood(asked(*pairs))]
    assert greedy == [True, False, False]
    whole = likely(lm(), ('', LONG), ('', ''))  # in consecutive blocks
    got = lm(batch_size=2).loglikelihood_rolling(asked(LONG, ''))
    assert got == pytest.approx([sum(writer.logprob(BLOCKS)), 0.0], abs=1e-4) == whole


# guidance takes the context for the prompt
WRITTEN = options_of_lines("""
order=margin n_steps=4
order=random unmask=lossless:3
order=l2r top_k=3 context=8
order=l2r temperature=0.7 cfg_scale=3.0
""")


@pytest.mark.parametrize('how', WRITTEN)
def test_what_is_written_is_what_a_writer_writes(lm, ckpt, how):
    prompts = ['ab', 'x' * 22, 'abcdef', '']
    if 'context' in how:
        prompts.append('x' * 30)
    texts = []
    for prompt in prompts:
        seed = derive_seed(1337, prompt, 0)
        how_long = dict(length=len(prompt) + 9, seed=seed)
        text = Writer(ckpt).infill(f'{prompt}[[9]]', **{'temperature': 0} | how_long | how)
        texts.append(text[len(prompt) :])
    assert written(lm(**how, batch_size=2), *prompts) == texts
    order = how.pop('order')
    assert written(lm(order=order), *prompts, **how) == texts


def test_a_text_ends_before_its_first_stop_or_where_its_document_ends(lm, ckpt):
    model = lm()
    (whole,) = written(model, 'ab')
    first = whole[3:5]
    for stops in ([whole[6:8], first, 'nowhere'], [whole[4], first], [whole[0]]):
        end = min(whole.index(stop) for stop in stops if stop in whole)
        assert written(model, 'ab', until=stops) == [whole[:end]]
    checkpoint = load_checkpoint(ckpt)
    checkpoint['model']['lm_head.bias'][256] = 99
    torch.save(checkpoint, ckpt)
    assert written(lm(), 'ab', until=['c']) == ['']


HOT = 'do_sample=True temperature=3.0'
LIKE = [  # (options, what is asked with) of one law each: greedy, of temperature 3, of 1
    [
        ('', ''),
        ('', 'temperature=0.0'),
        ('', 'do_sample=True top_k=1'),
        ('', 'do_sample=False'),
        ('temperature=3.0', 'do_sample=False'),
    ],
    [('', HOT), ('temperature=3.0', ''), ('temperature=3.0', 'do_sample=True')],
    [('', 'do_sample=True'), ('', 'do_sample=True temperature=1.0')],
]


def test_nothing_is_drawn_unless_it_is_asked_for_and_a_repeat_is_another_draw(lm):
    """A temperature is of the request, or of the model, or 1."""
    laws = [
        {written(lm(**options_in(options)), 'ab', **options_in(how))[0] for options, how in ways}
        for ways in LIKE
    ]
    assert [len(texts) for texts in laws] == [1, 1, 1]
    hot = options_in(HOT)
    one, two = written(lm(), 'ab', 'ab', **hot)
    assert {one} == laws[1]
    assert len({two}.union(*laws)) == 4
    assert written(lm(batch_size=1), 'ab', 'ab', **hot) == [one, two]


BAD = [  # (options, what is asked with, a word)
    ('n_order=2', '', "'n_orders'"),
    ('n_orders=0', '', 'at least 1'),
    ('n_orders=2', '', 'orders that are drawn'),
    ('unmask=lossless order=margin', '', 'lossless'),
    ('context=32', '', 'context'),
    ('', 'top_q=1', "'top_p'"),
    ('', 'max_gen_toks=0', 'max_gen_toks'),
    ('', 'num_beams=2', 'num_beams'),
    ('cfg_scale=3.0', 'max_gen_toks=32', 'cfg_scale'),
    ('order=margin', '', 'order=margin'),
]


@pytest.mark.parametrize('options, kwargs, said', BAD)
def test_what_is_wrong_is_one_line(lm, options, kwargs, said):
    with one_line(said):
        model = lm(**options_in(options))
        written(model, 'ab', **options_in(kwargs))
        likely(model, ('a', 'b'))


def test_what_a_command_line_lacks_is_one_line(harness, lm, script, monkeypatch):
    with one_line("'pretrained'"):
        harness.AnyOrderLM.create_from_arg_string('pretrained=gpt2')
    with one_line('chat template'):
        lm().apply_chat_template([])
    monkeypatch.setitem(sys.modules, 'lm_eval.__main__', None)
    said = script('anyorder.extras.lm_eval', '--tasks=x', code=1).stderr
    assert '-r requirements-extra.txt' in said


@pytest.mark.parametrize('word', ['-C', '-Cx', '--config', '--config=x'])
def test_a_file_of_options_is_in_place_of_our_defaults(word):
    assert arguments([word]) == ['run', word]


# ---- masked models of others

CHAT = "{% for turn in messages %}<|user|>{{ turn['content'] }}{% endfor %}"
TURN = '{% if add_generation_prompt %}<|eot|><|ai|>{% endif %}'


@pytest.fixture
def of_others(lm):
    """of_others(kind, template): a masked model of others with this chat template."""
    pytest.importorskip('transformers')
    from masked_kinds import KINDS

    def opened(kind, template=''):
        KINDS[kind](Path())
        Path('chat_template.jinja').write_text(template)
        return lm(ckpt='masked:.')

    return opened


@pytest.mark.parametrize('start', ['', '{{ bos_token }}'])
def test_a_chat_of_others_begins_once_and_ends_with_its_turn(of_others, start):
    model = of_others('llada', start + CHAT + TURN)
    chat = [{'role': 'user', 'content': 'on'}]
    context = model.apply_chat_template(chat)
    bare = context.removeprefix('<|begin|>')
    assert bare == '<|user|>on<|eot|><|ai|>'
    assert context.startswith(bare) == (start == '')
    assert model.apply_chat_template(chat, add_generation_prompt=False) == context[:-13]
    one, two, three = likely(model, (context, 'x'), ('', f'{context}x'), ('<|begin|>', f'{bare}x'))
    assert pytest.approx(three) == two < one
    with one_line('never writes'):
        likely(model, ('x', 'a<|begin|>'))
    assert of_others('llada', CHAT).tokenizer_name != model.tokenizer_name  # of kept requests


def test_a_token_that_begins_in_the_context_is_scored_whole(of_others):
    model = of_others('llada')
    decode = model.writer.tokenizer.decode
    for context, continuation, *want in (
        ('price 10', '0', 'price ', '100'),
        ('in th', 'e end', 'in ', 'the end'),
        ('a ', 'th', 'a', ' th'),
        ('100', '0', '100', '0'),
        ('<|eot|>th', 'e', '<|eot|>', 'the'),
    ):
        spelling = Spelling(model.writer.tokenizer)
        assert [*map(decode, model.encode_pair(context, continuation, spelling))] == want


def test_what_no_token_spells_is_said_and_nothing_is_refused(of_others, capsys):
    """A text of no token would have log p 0."""
    model = of_others('bert')
    capsys.readouterr()
    likely(model, ('abÄ', ' ÖÖ'), ('', 'Äb'))
    said = capsys.readouterr().err
    assert '4 of 8 tokens are unknown' in said
    assert "'Ä'" in said
    model.loglikelihood_rolling(asked('a !'))
    written(model, 'a[UNK]!')  # somebody may write it
    assert capsys.readouterr().err.count('1 of 3 tokens are unknown') == 2
    with one_line('makes no token of'):
        likely(model, ('', '[CLS]'))


# ---- what is kept, the command, processes

KEPT = """
order=random
order=random n_orders=2
order=random seed=2
dtype=bfloat16
"""


def test_answers_of_other_weights_and_options_are_never_served(lm, ckpt):
    from lm_eval.api.model import CachingLM

    pair = ('abxyz', ' cdef')
    ways = [{}, *options_of_lines(KEPT)]

    def cached():
        return [likely(CachingLM(lm(**options), 'cache.db'), pair)[0] for options in ways]

    right = cached()
    assert right == [likely(lm(**options), pair)[0] for options in ways]
    assert len({*right}) == len(ways)
    assert cached() == right
    checkpoint = load_checkpoint(ckpt)
    checkpoint['model']['lm_head.bias'][:9] += 3
    torch.save(checkpoint, ckpt)
    assert not {*cached()} & {*right}


def test_a_file_that_an_order_names_is_a_part_of_the_evaluation(lm):
    def of(order):
        Path('order.json').write_text(str([*order]))
        return lm(order='order.json').evaluation()

    positions = range(lm().writer.block_size)
    assert of(positions) == of(positions) != of(reversed(positions))


ROWS_OF_TASKS = """{"text": "ab cd gh ef.", "label": 0}
{"text": "ab cd x y ef.", "label": 1}
{"text": "ab cd klm ef.", "label": 2}
"""
# a file of lm-eval says of a task
TASK = """
task: %s
metric_list: [{metric: %s}]
dataset_path: json
dataset_kwargs: {data_files: rows.jsonl}
test_split: train
target_delimiter: ''
"""
TASKS = {  # (metric, what a file says beyond)
    'likely': (
        'perplexity',
        """
output_type: loglikelihood
doc_to_text: '{{text[:-4]}}'
doc_to_target: '{{text[-4:]}}'
""",
    ),
    'choice': (
        'acc',
        """
output_type: multiple_choice
doc_to_text: ab
doc_to_target: label
doc_to_choice: [' cd', ' e', ' fgh', ' i']
""",
    ),
    'written': (
        'exact_match',
        """
output_type: generate_until
doc_to_text: '{{text}}'
doc_to_target: x
""",
    ),
    'rolling': (
        'byte_perplexity',
        """
output_type: loglikelihood_rolling
doc_to_text: ''
doc_to_target: '{{text}}'
""",
    ),
}


@pytest.fixture
def results(harness, script, ckpt, tmp_path, monkeypatch):
    """results(folder) of all TASKS, which the command writes into the folder.

    The thousands of tasks of lm-eval itself are left out."""
    from lm_eval.tasks import TaskManager

    ours_alone = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, '__init__', ours_alone)
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'hf'))
    Path('rows.jsonl').write_text(ROWS_OF_TASKS)
    for name, (metric, more) in TASKS.items():
        Path(f'{name}.yaml').write_text(TASK % (name, metric) + more)

    def run(folder):
        args = ['--model_args', f'ckpt={ckpt},batch_size=2', '--device=cpu', '--log_samples']
        args += ['--include_path', '.', '--tasks', ','.join(TASKS), f'--use_cache={folder}']
        script('anyorder.extras.lm_eval', *args, '--output_path', folder)
        *_, path = sorted(Path(folder).rglob('results_*.json'))
        assert path.parent.name.endswith('__ckpt.pt')  # by the checkpoint, not at random
        found = read_json(path)
        assert found['config']['model_num_parameters'] > 1000
        return {
            name: found['results'][name][f'{metric},none'] for name, (metric, _) in TASKS.items()
        }

    return run


@pytest.mark.slow
def test_the_command_runs_all_kinds_of_tasks_and_two_processes_give_what_one_gives(forked, results):
    one = results('one')
    forked(*[lambda: results('two')] * 2)
    assert results('two') == pytest.approx(one, rel=1e-5)
