"""lm-evaluation-harness: what it asks of a model against slow answers, its command, options, processes."""

import importlib.util
import json
import math
import os
import random
import types
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, make_model, one_line
from masked_kinds import KINDS
from test_readme import programs

import eval_lm
from anyorder.checkpoint import load_checkpoint, save_checkpoint, write_checkpoint
from anyorder.generation.scroll import Scroll
from anyorder.likelihood.continuations import Reading, continuation_scores
from anyorder.likelihood.nll import block_nll
from anyorder.orders import Order
from anyorder.seeds import derive_seed
from anyorder.writer import Writer

N = 32


@pytest.fixture
def ckpt(tmp_path):
    model = make_model(block_size=N, vocab_size=320, n_tokens=257)
    model.lm_head.bias[128:] -= 99  # what is written is letters
    save_checkpoint(tmp_path / 'ckpt.pt', model.float(), tokenizer='bytes')
    return str(tmp_path / 'ckpt.pt')


@pytest.fixture
def harness():
    pytest.importorskip('lm_eval')
    import anyorder.harness

    return anyorder.harness


@pytest.fixture
def lm(harness, ckpt):
    return lambda **options: harness.AnyOrderLM.create_from_arg_obj(
        {'ckpt': ckpt} | options, {'device': 'cpu'}
    )


def asked(*args):
    return [SimpleNamespace(args=one if isinstance(one, tuple) else (one,)) for one in args]


def nats_of(ckpt, text, first=0):
    """-log p(text[first:] | text[:first]) of at most N bytes."""
    idx = torch.tensor([list(text.encode())])
    return float(
        Writer(ckpt).model(idx, torch.arange(idx.size(1))[None]).detach()[0, first:].double().sum()
    )


def test_without_the_harness_one_line_says_what_to_install(script, monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    assert (
        'pip install -r requirements-extra.txt' in script('eval_lm.py', '--tasks=x', code=1).stderr
    )
    said = script('eval_lm.py', '--help').stdout
    assert 'n_contexts' in said and 'pip install -r requirements-extra.txt' in said


def test_paths_of_its_options_are_read_as_of_others(harness, monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    assert eval_lm.arguments(
        ['--tasks', '~/x', '--output_path=~/y', '--gen_kwargs', 'until=~', '--x']
    )[-5:] == ['/home/me/x', '--output_path=/home/me/y', '--gen_kwargs', 'until=~', '--x']
    args = harness.simple_parse_args_string('ckpt=~/notes, old.pt,order=l2r,seed=3')
    assert harness.AnyOrderLM.options(args) == {
        'ckpt': '~/notes, old.pt',
        'order': 'l2r',
        'seed': 3,
    }
    with pytest.raises(ValueError, match='no checkpoint file /home/me/notes, old.pt'):
        harness.AnyOrderLM.create_from_arg_string('ckpt=~/notes, old.pt')


def test_continuations_score_as_the_model_scores(lm, ckpt):
    long = ('abc def ' * 10)[:-1]
    rows = [('ab', ' cd'), ('', 'xyz'), ('ab ', 'cd'), (long, '%'), ('a', long[:N]), ('', long)]
    got = lm(batch_size=2).loglikelihood(asked(*rows))
    want = [
        nats_of(ckpt, 'ab cd', 2),
        nats_of(ckpt, 'xyz'),
        nats_of(ckpt, 'ab cd', 2),
        nats_of(ckpt, (long + '%')[-N:], N - 1),
        nats_of(ckpt, long[:N]),
    ]
    assert [-nats for nats, _ in got[:5]] == pytest.approx(want, abs=1e-4)
    assert not any(greedy for _, greedy in got)
    assert lm().loglikelihood_rolling(asked(long)) == pytest.approx([got[5][0]], abs=1e-4)
    text = Writer(ckpt).infill('ab', order='l2r', temperature=0, length=6)
    tokens = text.sample['tokens'][2:]
    model = lm()
    assert model._loglikelihood_tokens([(('', ''), [97, 98], tokens)])[0][1]
    assert not model._loglikelihood_tokens(
        [(('', ''), [97, 98], [*tokens[:3], (tokens[3] + 1) % 256])]
    )[0][1]


def test_a_text_begins_at_none_and_not_at_the_end_of_another(lm, ckpt):
    """The convention of lm-eval, end-of-text first, is another number; who wants it writes it."""
    model = lm()
    first, none, end = model.loglikelihood(asked(('', 'a'), ('', ''), ('<|endoftext|>', 'a')))
    idx = torch.tensor([[256, 97]])
    assert -first[0] == pytest.approx(nats_of(ckpt, 'a'), abs=1e-5) and none == (0.0, True)
    assert -end[0] == pytest.approx(
        float(Writer(ckpt).model(idx, torch.tensor([[0, 1]])).detach()[0, 1]), abs=1e-5
    )
    assert abs(first[0] - end[0]) > 0.01


def test_rolling_is_the_nats_of_blocks(lm, ckpt):
    text = ''.join(chr(97 + i * i % 26) for i in range(3 * N))
    blocks = torch.tensor(list(text.encode())).view(3, N)
    whole = -float(block_nll(Writer(ckpt).model, blocks, torch.arange(N).expand(3, N), 3).sum())
    got = lm(batch_size=2).loglikelihood_rolling(asked(text, text + 'xyz', ''))
    assert got == pytest.approx(
        [whole, whole - nats_of(ckpt, text[3 - N :] + 'xyz', N - 3), 0.0], abs=1e-4
    )


@pytest.mark.parametrize(
    'options',
    [
        dict(order='random', n_orders=3),
        dict(n_contexts=3),
        dict(order='block:2', n_orders=2, estimate='mixture', seed=5),
    ],
)
def test_orders_and_contexts_are_options(lm, ckpt, options):
    rows = [([97, 98, 99], [100, 101]), ([97], [98, 99, 97])]
    how = dict(n_orders=1, n_contexts=1, estimate='bound', seed=1337) | options
    reading = Reading(Order.of(how.pop('order', 'l2r'), {}), **how)
    want = sorted(continuation_scores(Writer(ckpt).model, rows, reading))
    got = lm(**options).loglikelihood(asked(('abc', 'de'), ('a', 'bca')))
    assert [-nats for nats, _ in got] == pytest.approx([nats for _, nats, _ in want], abs=1e-4)


def test_a_policy_is_as_likely_as_the_writer_says(lm, ckpt):
    how, writer = {'order': 'margin', 'n_steps': 4, 'block_length': 2}, Writer(ckpt)
    got = lm(**how).loglikelihood(asked(('ab', 'cdef'), ('', 'xyz')))
    want = [writer.logprob(prompt, **how) for prompt in ('ab[[=cdef]]', '[[=xyz]]')]
    assert got == [(pytest.approx(nats, abs=1e-4), False) for nats in want]
    assert lm(**how).loglikelihood_rolling(asked('xyz')) == pytest.approx(want[1:], abs=1e-4)
    text = writer.infill('ab[[4]]', **how, temperature=0)
    assert lm(**how).loglikelihood(asked(('ab', text[2:])))[0][1]
    model, (context, asked_for) = (
        lm(order='margin', n_steps=4),
        ('ab', {'max_gen_toks': 4, 'until': []}),
    )
    assert model.generate_until(asked((context, asked_for | {'block_length': 2}))) == [text[2:]]


@pytest.mark.parametrize(
    'how',
    [
        {'order': 'l2r'},
        {'order': 'margin', 'n_steps': 4},
        {'order': 'random', 'unmask': 'lossless', 'window': 3},
        {'order': 'l2r', 'top_k': 3, 'context': 8},
    ],
)
def test_what_is_written_is_what_a_writer_writes(lm, ckpt, how):
    model, prompts = lm(**how, batch_size=2), ['ab', 'x' * 30, 'abcdef']
    got = model.generate_until(
        asked(*((prompt, {'max_gen_toks': 12, 'until': []}) for prompt in prompts))
    )
    for prompt, text in zip(prompts, got):
        whole = Writer(ckpt).infill(
            f'{prompt}[[12]]',
            length=len(prompt) + 12,
            temperature=0,
            **how,
            seed=derive_seed(1337, prompt, 0),
        )
        assert text == whole[len(prompt) :]


def test_a_text_ends_before_its_first_stop(lm):
    model = lm()
    (whole,) = model.generate_until(asked(('ab', {'max_gen_toks': 9, 'until': None})))
    assert len(whole) == 9
    stops = [whole[6:8], whole[3:5], 'nowhere']
    within = [whole[4], whole[3:5]]  # both end in the same token
    short, same, none, long = model.generate_until(
        asked(
            *(
                ('ab', {'max_gen_toks': 9} | kwargs)
                for kwargs in (
                    {'until': stops},
                    {'until': 'nowhere', 'num_beams': 1},
                    {'until': whole[0]},
                    {'until': within},
                )
            )
        )
    )
    assert len(set(stops)) == 3 and short == whole[: min(whole.index(stop) for stop in stops[:2])]
    assert same == whole and none == ''
    assert whole.index(whole[4]) == 4 and long == whole[:3]


def test_a_text_ends_where_its_document_ends(lm, ckpt):
    checkpoint = load_checkpoint(ckpt)
    checkpoint['model']['lm_head.bias'][256] = 99
    write_checkpoint(ckpt, checkpoint)
    assert lm().generate_until(asked(('ab', {'max_gen_toks': 9, 'until': ['c']}))) == ['']


def test_blanks_in_a_context_are_the_answer(lm, ckpt):
    """A blank between two texts, which finds its length, and two blanks; behind the stop the answer is cut."""
    contexts = [
        'ab[[2-6]]cd',
        'a[[3]]b[[?]]c d',
        'ab[[?]]cd[[2]]',
        'a' * N + '[[2-6]]cd',
    ]  # the last is too long
    how = dict(order='l2r', temperature=0.7, blank_length='draw', length_prior='uniform')
    answers = lm(**how).generate_until(asked(*((context, {'until': []}) for context in contexts)))
    for context, answer in zip(contexts, answers):
        sample = (
            Writer(ckpt)
            .infill(context, seed=derive_seed(1337, context, 0), length=2 * N, **how)
            .sample
        )
        assert (
            answer
            == bytes(t for t, step in zip(sample['tokens'], sample['step']) if step >= 0).decode()
        )
        stop = answer[1]
        (until,) = lm(**how).generate_until(asked((context, {'until': [stop]})))
        assert until == answer[: answer.index(stop)]


def test_drawing_is_as_asked_and_a_repeat_is_another_draw(lm):
    def write(*kwargs, **options):
        return lm(**options).generate_until(
            asked(*(('ab', {'max_gen_toks': 9, 'until': []} | one) for one in kwargs))
        )

    hot, cold = {'do_sample': True, 'temperature': 3.0}, {'do_sample': False}
    (greedy,) = write({})
    assert write(cold, {'temperature': 0.0}, {'do_sample': True, 'top_k': 1}) == [greedy] * 3
    one, two = write(hot, hot)
    assert len({greedy, one, two}) == 3 and write(hot, hot, batch_size=1) == [one, two]
    assert write({}, temperature=3.0) == [one] and write(cold, temperature=3.0) == [greedy]
    assert write(hot, seed=8) != [one]
    (drawn,) = write({'do_sample': True})  # without a temperature it is the model's, or 1
    assert drawn != greedy and write({'do_sample': True, 'temperature': 1.0}) == [drawn]
    assert write({'do_sample': True}, temperature=3.0) == [one]


@pytest.mark.parametrize(
    'options, said',
    [
        ({'n_order': 2}, "'n_orders'"),
        ({'n_orders': 'x'}, 'n_orders wants int'),
        ({'n_orders': 0}, 'at least 1'),
        ({'order': 'up'}, "'up'"),
        ({'estimate': 'mean'}, "'mixture'"),
        ({'batch_size': 0}, 'batch_size'),
        ({'unmask': 'lossless', 'order': 'margin'}, 'lossless'),
        ({'n_contexts': 2, 'order': 'random'}, 'n_contexts'),
        ({'n_orders': 2, 'order': 'margin'}, 'order=margin is one order'),
        ({'block_length': 2}, 'block_length is for'),
        ({'order': 'margin', 'block_length': N + 1}, f'at most the {N} positions'),
        ({'length_prior': 'words'}, 'goes with blank_length'),
        ({'ckpt': 'no.pt'}, 'no checkpoint file'),
        ({'context': N}, 'context'),
        ({'n_steps': -1}, 'n_steps'),
    ],
)
def test_wrong_options_are_one_line(lm, options, said):
    with one_line(said):
        lm(**options)


def test_what_cannot_be_answered_is_said(harness, lm):
    for kwargs, said in (
        ({'top_q': 1}, "'top_p'"),
        ({'max_gen_toks': 0}, 'at least 1'),
        ({'num_beams': 2}, 'beams 1'),
    ):
        with pytest.raises(ValueError, match=said):
            lm().generate_until(asked(('ab', {'until': []} | kwargs)))
    with one_line('score with order_noise=0, got 0.5'):
        lm(order='margin', order_noise=0.5).loglikelihood(asked(('a', 'b')))
    for args, said in (
        ('pretrained=gpt2', 'name a checkpoint, as ckpt=out/ckpt.pt, got pretrained$'),
        ('ckpt=c.pt,ordr=l2r', "no option 'ordr'; the nearest is 'order'"),
    ):
        with pytest.raises(ValueError, match=said):
            harness.AnyOrderLM.create_from_arg_string(args)
    with pytest.raises(ValueError, match='chat template'):
        lm().apply_chat_template([])


TURNS = (
    "{% for turn in messages %}<|{{ turn['role'] }}|>{{ turn['content'] }}<|eot|>{% endfor %}"
    '{% if add_generation_prompt %}<|ai|>{% endif %}'
)


def test_a_model_of_others_is_asked_in_its_chat_template(harness, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    KINDS['llada'](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({'additional_special_tokens': ['<|user|>', '<|ai|>', '<|eot|>']})
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(tmp_path)
    lm = harness.AnyOrderLM.create_from_arg_obj(
        {'ckpt': f'masked:{tmp_path}', 'order': 'margin'}, {'device': 'cpu'}
    )
    chat = [{'role': 'user', 'content': 'ab'}]
    assert lm.apply_chat_template(chat) == '<|user|>ab<|eot|><|ai|>'
    said = [*chat, {'role': 'ai', 'content': 'c'}]
    assert lm.apply_chat_template(said, add_generation_prompt=False) == '<|user|>ab<|eot|><|ai|>c'
    user, ai, eot = tokenizer.convert_tokens_to_ids(['<|user|>', '<|ai|>', '<|eot|>'])
    a, b, c = lm.tok_encode('a') + lm.tok_encode('b') + lm.tok_encode('c')
    seen = []

    def written(scroll):  # what the model has written: c, the end of its turn, and more
        seen.extend(row.tokens for row in scroll.rows)
        return [
            {
                'tokens': [*row.tokens[: sum(row.known)], c, eot, a],
                'step': sum(row.known) * [-1] + [0, 1, 2],
            }
            for row in scroll.rows
        ]

    monkeypatch.setattr(lm.writer, 'write', lambda *_: [])
    monkeypatch.setattr(Scroll, 'samples', written)
    assert lm.generate_until(
        asked((lm.apply_chat_template(chat), {'until': [], 'max_gen_toks': 3}))
    ) == ['c']
    assert seen[0] == [user, a, b, eot, ai, 0, 0, 0]


def byte_pairs(folder):
    """A tiny model of others with a token for 'th', 'the', '10' and '100', and <|begin|> before every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    KINDS['llada'](folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {text: i for i, text in enumerate([*letters, 'th', 'the', '10', '100'])}
    tokenizer = Tokenizer(models.BPE(ids, [('t', 'h'), ('th', 'e'), ('1', '0'), ('10', '0')]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(False, use_regex=False),
        decoders.ByteLevel(),
    )
    tokenizer.add_special_tokens(
        ['<|endoftext|>', '<|mdm_mask|>', '<|user|>', '<|eot|>', '<|begin|>']
    )
    around = [('<|begin|>', tokenizer.token_to_id('<|begin|>'))]
    tokenizer.post_processor = processors.TemplateProcessing(
        '<|begin|> $A', '<|begin|> $A $B', around
    )
    names = {'bos_token': '<|begin|>', 'eos_token': '<|endoftext|>', 'mask_token': '<|mdm_mask|>'}
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    found.save_pretrained(folder)
    config = json.loads((folder / 'config.json').read_text()) | {
        'mask_token_id': found.mask_token_id
    }
    (folder / 'config.json').write_text(json.dumps(config))
    return found


@pytest.fixture
def of_others(harness, tmp_path, monkeypatch):
    """of_others(): the lm of byte_pairs, its tokenizer, what its network reads, and the rows that it scores."""

    def opened(template=None):
        tokenizer = byte_pairs(tmp_path)
        if template:
            tokenizer.chat_template = template
            tokenizer.save_pretrained(tmp_path)
        lm = harness.AnyOrderLM.create_from_arg_obj(
            {'ckpt': f'masked:{tmp_path}'}, {'device': 'cpu'}
        )
        read, rows, own = [], [], harness.continuation_scores
        lm.writer.network.network.register_forward_pre_hook(
            lambda _, args: read.append(args[0][0].tolist())
        )
        monkeypatch.setattr(
            harness,
            'continuation_scores',
            lambda network, asked, *more: rows.extend(asked) or own(network, asked, *more),
        )
        return lm, tokenizer, read, rows

    return opened


CHAT = "{% for turn in messages %}<|user|>{{ turn['content'] }}<|eot|>{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize('template', [CHAT, '{{ bos_token }}' + CHAT])
def test_a_text_of_others_begins_once(of_others, template):
    lm, tokenizer, read, rows = of_others(template)
    context = lm.apply_chat_template([{'role': 'user', 'content': 'on'}])
    begin = tokenizer.bos_token_id
    inside = tokenizer.convert_tokens_to_ids(['<|user|>', 'o', 'n', '<|eot|>'])
    assert context.startswith('<|begin|>') == template.startswith('{{ bos_token }}')
    lm.generate_until(asked((context, {'until': [], 'max_gen_toks': 2})))
    x = tokenizer.convert_tokens_to_ids('x')
    bare = context.removeprefix('<|begin|>')
    found = lm.loglikelihood(
        asked((context, 'x'), ('', f'{context}x'), ('<|begin|>', f'{bare}x'), ('x', ''))
    )
    (rolling,) = lm.loglikelihood_rolling(asked(f'{context}x'))
    assert (
        all(ids[0] == begin and ids.count(begin) == 1 for ids in read[:-1])
        and read[0][1:5] == inside
    )
    assert rows == [[inside, [x]], *[[[], [*inside, x]]] * 2, [[x], []], [[], [*inside, x]]]
    assert found[2] == found[1] and rolling == pytest.approx(found[1][0], abs=1e-4)
    assert found[3] == (0.0, True)  # nothing is asked for


@pytest.mark.slow
@pytest.mark.parametrize(
    'context, continuation, want',
    [
        ('price 10', '0', ('price ', '100')),
        ('in th', 'e end', ('in ', 'the end')),
        ('10', '00', ('', '1000')),
        ('a', ' th', ('a', ' th')),
        ('a ', 'th', ('a', ' th')),
        ('th', 'e', ('', 'the')),
        ('', '100', ('', '100')),
        ('x1', '00', ('x', '100')),
        ('100', '0', ('100', '0')),
        ('<|eot|>th', 'e', ('<|eot|>', 'the')),
    ],
)
def test_a_token_that_begins_in_the_context_is_scored_whole(of_others, context, continuation, want):
    lm, _, _, rows = of_others()
    ((logp, _),) = lm.loglikelihood(asked((context, continuation)))
    assert tuple(map(lm.writer.tokenizer.decode, rows[0])) == want and logp < 0


@pytest.mark.slow
def test_a_token_that_is_never_written_is_said(of_others):
    lm, *_ = of_others()
    with one_line('never writes'):
        lm.loglikelihood(asked(('x', 'a<|begin|>')))


@pytest.mark.slow
def test_a_text_without_a_token_is_refused(harness, tmp_path):
    """WordPiece has no token for a blank, whose log p would be 0."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    KINDS['bert'](tmp_path)
    ids = {
        text: i
        for i, text in enumerate(['[PAD]', '[CLS]', '[SEP]', '[MASK]', '[UNK]', 'th', '##e', 'end'])
    }
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(('[SEP]', 2), ('[CLS]', 1))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token='[PAD]',
        cls_token='[CLS]',
        sep_token='[SEP]',
        mask_token='[MASK]',
        unk_token='[UNK]',
    ).save_pretrained(tmp_path)
    lm = harness.AnyOrderLM.create_from_arg_obj({'ckpt': f'masked:{tmp_path}'}, {'device': 'cpu'})
    assert lm._encode_pair('[CLS]th', 'e end') == ([5], [6, 7]) and lm._encode_pair(
        'th ', 'end'
    ) == ([5], [7])
    for pair in (('th', ' '), ('th ', ' '), ('', '[CLS]')):
        with one_line('makes no token of'):
            lm.loglikelihood(asked(pair))
    with one_line('makes no token of'):
        lm.loglikelihood_rolling(asked('\n'))


@pytest.mark.slow
def test_unknown_tokens_of_requests_are_said(harness, folders, capsys):
    lm = harness.AnyOrderLM.create_from_arg_obj(
        {'ckpt': f'masked:{folders("bert")[1]}'}, {'device': 'cpu'}
    )
    lm.loglikelihood(asked(('abÄ', ' ÖÖ'), ('', 'Äb')))
    assert '4 of 8 tokens are unknown' in (said := capsys.readouterr().err) and "'Ä'" in said
    lm.loglikelihood_rolling(asked('a !'))
    assert '1 of 3 tokens are unknown' in capsys.readouterr().err
    lm.generate_until(asked(('a[UNK]!', {'until': [], 'max_gen_toks': 1})))  # somebody may write it
    assert '1 of 3 tokens are unknown' in capsys.readouterr().err
    lm.loglikelihood(asked(('ab', ' c')))
    assert 'unknown' not in capsys.readouterr().err


@pytest.mark.slow
def test_answers_of_other_weights_and_options_are_never_served(
    harness, lm, ckpt, tmp_path, monkeypatch
):
    from lm_eval.api.model import CachingLM
    from sqlitedict import SqliteDict

    path, pair = str(tmp_path / 'cache.db'), ('abxyz', ' cdef')

    def cached(**options):
        return CachingLM(lm(**options), path).loglikelihood(asked(pair))

    with SqliteDict(path) as older:  # as lm-eval itself writes it: of nobody knows which weights
        older[harness_key(pair)] = (-1.0, True)
        older.commit()
    ways = [
        {},
        {'order': 'random'},
        {'order': 'random', 'seed': 2},
        {'order': 'random', 'n_orders': 3},
        {'order': 'random', 'n_orders': 3, 'estimate': 'mixture'},
        {'order': 'margin'},
        {'n_contexts': 2},
        {'dtype': 'bfloat16'},
        {'order': 'margin', 'n_steps': 2},
    ]
    right = [lm(**options).loglikelihood(asked(pair)) for options in ways]
    assert [cached(**options) for options in ways] == right and len({*map(repr, right)}) == len(
        ways
    )
    checkpoint = load_checkpoint(ckpt)
    monkeypatch.setattr(harness, 'continuation_scores', None)  # all are kept
    assert [cached(**options) for options in ways] == right
    monkeypatch.undo()
    checkpoint['model']['lm_head.bias'][:9] += 3
    write_checkpoint(ckpt, checkpoint)
    new = lm().loglikelihood(asked(pair))
    assert cached() == new != right[0]


def harness_key(pair):
    from lm_eval.api.model import hash_args

    return hash_args('loglikelihood', pair)


@pytest.mark.slow
def test_chat_requests_are_kept_by_their_template(of_others):
    lm, *_ = of_others(CHAT)
    other, *_ = of_others('{{ bos_token }}' + CHAT)
    assert lm.tokenizer_name != other.tokenizer_name
    assert lm.tokenizer_name == of_others(CHAT)[0].tokenizer_name


@pytest.mark.slow
def test_more_processes_than_documents_are_refused(
    harness, forked, ckpt, tasks, tmp_path, monkeypatch
):
    import eval_lm

    monkeypatch.chdir(tmp_path)
    argv = ['--model_args', f'ckpt={ckpt}', *tasks[:3], 'text_rolling', '--device=cpu', '--limit=1']
    _, without = forked(*[lambda: eval_lm.main(argv)] * 2)
    assert without.code and 'fewer documents than the 2 processes' in without.said


def test_rows_are_what_their_documents_say():
    rows = types.ModuleType('rows')
    exec(programs('results/lm_eval.md')['rows.py'], vars(rows))  # noqa: S102
    documents = [
        ' '.join(f'A{x} {x * n}x {x}y is {x}z and {x}w. {x}It' for n in range(1, 9))
        for x in 'abcde'
    ]
    for row in rows.choices(documents, random.Random(1), 20, 16, 12):
        said = [
            any(row['context'] + text in document for document in documents)
            for text in row['choices']
        ]
        assert said == [n == row['label'] for n in range(4)] and len(row['context']) == 16
    found = rows.completions(documents, random.Random(1), 30, 40)
    texts = [row['context'] + row['target'] + row['right'] for row in found]
    assert len(found) == 30 and all(
        any(text in document for document in documents) for text in texts
    )


@pytest.fixture
def tasks(harness, tmp_path, monkeypatch):
    """Options that name tasks with rows. The thousands of tasks that come with lm-eval are left out."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(
        TaskManager, '__init__', partialmethod(TaskManager.__init__, include_defaults=False)
    )
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'hf'))
    os.makedirs(tmp_path / 'data' / 'lm_eval')
    rows = {
        'text': [{'text': f'ab cd {word} ef.'} for word in ('gh', 'x y', 'klm')],
        'choice': [
            {'context': 'ab', 'choices': [' cd', ' e', ' fgh', ' i'], 'label': n} for n in (0, 1, 2)
        ],
        'completion': [
            {'context': 'ab [[cd', 'target': target, 'right': 'gh'} for target in (' ef', 'g')
        ],
    }
    for name, lines in rows.items():
        (tmp_path / 'data' / 'lm_eval' / f'{name}.jsonl').write_text(
            ''.join(json.dumps(row) + '\n' for row in lines)
        )
    return [
        '--include_path',
        os.path.join(ROOT, 'config', 'lm_eval'),
        '--tasks',
        'last_word,text_choice,text_completion,text_rolling',
    ]


def results(folder):
    (path,) = folder.rglob('results_*.json')
    assert path.parent.name.endswith('__ckpt.pt')  # by the checkpoint, not at random
    return json.loads(path.read_text())


def test_the_command_runs_all_kinds_of_tasks(harness, script, ckpt, tasks, tmp_path, monkeypatch):
    command = [
        'eval_lm.py',
        '--model_args',
        f'ckpt={ckpt},order=l2r',
        *tasks,
        '--device=cpu',
        '--use_cache=cache',
        '--log_samples',
        '--output_path',
    ]
    said = script(*command, 'one').stdout
    assert all(
        name in said for name in ('last_word', 'text_choice', 'text_completion', 'text_rolling')
    )
    found = results(tmp_path / 'one')
    assert found['config']['batch_size'] == '16' and found['config']['model_num_parameters'] > 1000
    texts = ['ab cd gh ef.', 'ab cd x y ef.', 'ab cd klm ef.']
    nats = sum(nats_of(ckpt, text) for text in texts)
    rolling = found['results']['text_rolling']
    assert rolling['byte_perplexity,none'] == pytest.approx(math.exp(nats / 38), rel=1e-5)
    words = sum(nats_of(ckpt, text, len(text) - 4) for text in texts)
    assert found['results']['last_word']['perplexity,none'] == pytest.approx(
        math.exp(words / 3), rel=1e-5
    )
    best = min(range(4), key=lambda i: nats_of(ckpt, 'ab' + [' cd', ' e', ' fgh', ' i'][i], 2))
    assert found['results']['text_choice']['acc,none'] == pytest.approx((best < 3) / 3)
    monkeypatch.setattr(harness, 'continuation_scores', None)  # all answers are cached
    monkeypatch.setattr(Writer, 'write', None)
    script(*command, 'two')
    assert results(tmp_path / 'two')['results'] == found['results']


def test_the_command_asks_for_the_text_of_a_blank(script, ckpt, tasks, tmp_path):
    script(
        'eval_lm.py',
        '--model_args',
        f'ckpt={ckpt},blank_length=likely',
        *tasks[:3],
        'text_infilling',
        '--device=cpu',
        '--log_samples',
        '--output_path',
        'one',
    )
    (path,) = (tmp_path / 'one').rglob('samples_*.jsonl')
    context = r'ab \[[cd[[1-12]]gh'
    whole = Writer(ckpt).infill(context, order='l2r', temperature=0)
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        assert sample['arguments']['gen_args_0']['arg_0'] == context
        assert sample['resps'] == [[whole.removeprefix('ab [[cd').removesuffix('gh')]]


@pytest.mark.slow
def test_two_processes_give_what_one_gives(harness, forked, ckpt, tasks, tmp_path, monkeypatch):
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(tmp_path)
    manager = TaskManager(include_path=tasks[1])

    def body(name):
        def run():
            found = lm_eval.simple_evaluate(
                'aogpt',
                f'ckpt={ckpt},order=random,n_orders=2',
                tasks[-1].split(','),
                task_manager=manager,
                batch_size=2,
                device='cpu',
                bootstrap_iters=0,
            )
            if found:
                (tmp_path / name).write_text(json.dumps(found['results'], default=str))

        return run

    ended = forked(body('one')) + forked(body('two'), body('two'))
    assert [process.code for process in ended] == [0, 0, 0], [process.said for process in ended]
    one, two = (json.loads((tmp_path / name).read_text()) for name in ('one', 'two'))
    for task in one:
        for metric, value in one[task].items():
            assert two[task][metric] == (
                pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            )
