"""lm-evaluation-harness: what it asks of a model against slow answers; its command, options,
processes."""

import importlib.util
import json
import math
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch
from conftest import make_model, one_line
from masked_kinds import KINDS

from anyorder.checkpoint import load_checkpoint, save_checkpoint, write_checkpoint
from anyorder.extras.lm_eval.reading import Reading, continuation_scores
from anyorder.generation.scroll import Scroll
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
    import anyorder.extras.lm_eval.harness

    return anyorder.extras.lm_eval.harness


@pytest.fixture
def lm(harness, ckpt):
    """lm(option=value): our checkpoint as lm-eval opens it."""

    def opened(**options):
        return harness.AnyOrderLM.create_from_arg_obj({'ckpt': ckpt} | options, {'device': 'cpu'})

    return opened


def asked(*args):
    """Requests, each of a text or of the tuple of its arguments."""
    rows = [one if isinstance(one, tuple) else (one,) for one in args]
    return [SimpleNamespace(args=row) for row in rows]


def written(model, *contexts, **kwargs):
    """What the model writes behind each context, without stops unless they are asked for."""
    requests = [(context, {'until': []} | kwargs) for context in contexts]
    return model.generate_until(asked(*requests))


def nats_of(ckpt, text, first=0):
    """-log p(text[first:] | text[:first]) of at most N bytes."""
    idx = torch.tensor([list(text.encode())])
    order = torch.arange(idx.size(1))[None]
    nll = Writer(ckpt).model(idx, order).detach()
    return float(nll[0, first:].double().sum())


def test_without_the_harness_one_line_says_what_to_install(script, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, 'find_spec', lambda name: None if name == 'lm_eval' else found(name)
    )
    way = 'pip install -r requirements-extra.txt'
    assert way in script('anyorder.extras.lm_eval', '--tasks=x', code=1).stderr
    said = script('anyorder.extras.lm_eval', '--help').stdout
    assert 'n_orders' in said
    assert way in said


LONG = 'abc def abc def abc def abc def abc def abc def abc def abc def abc def abc def'
SCORED = {  # (context, continuation): the text whose nats these are, and from which byte on
    ('ab', ' cd'): ('ab cd', 2),
    ('', 'xyz'): ('xyz', 0),
    ('ab ', 'cd'): ('ab cd', 2),
    (LONG, '%'): ((LONG + '%')[-N:], N - 1),
    ('a', LONG[:N]): (LONG[:N], 0),
}


def test_continuations_score_as_the_model_scores(lm, ckpt):
    got = lm(batch_size=2).loglikelihood(asked(*SCORED))
    want = [nats_of(ckpt, *text) for text in SCORED.values()]
    assert [-nats for nats, _ in got] == pytest.approx(want, abs=1e-4)
    assert not any(greedy for _, greedy in got)


def test_a_text_scores_as_a_continuation_of_nothing(lm):
    ((nats, _),) = lm(batch_size=2).loglikelihood(asked(('', LONG)))
    assert lm().loglikelihood_rolling(asked(LONG)) == pytest.approx([nats], abs=1e-4)


def test_what_is_written_at_temperature_0_is_greedy(lm, ckpt):
    def is_greedy(tokens):
        ((_, greedy),) = lm()._loglikelihood_tokens([(('', ''), [97, 98], tokens)])
        return greedy

    text = Writer(ckpt).infill('ab', order='l2r', temperature=0, length=6)
    *tokens, last = text.sample['tokens'][2:]
    assert is_greedy([*tokens, last])
    assert not is_greedy([*tokens, (last + 1) % 256])


def test_a_text_begins_at_none_and_not_at_the_end_of_another(lm, ckpt):
    """The convention of lm-eval, end-of-text first, is another number; who wants it writes it."""
    model = lm()
    first, none, end = model.loglikelihood(asked(('', 'a'), ('', ''), ('<|endoftext|>', 'a')))
    idx = torch.tensor([[256, 97]])
    behind_end = Writer(ckpt).model(idx, torch.tensor([[0, 1]])).detach()[0, 1]
    assert -first[0] == pytest.approx(nats_of(ckpt, 'a'), abs=1e-5)
    assert none == (0.0, True)
    assert -end[0] == pytest.approx(float(behind_end), abs=1e-5)
    assert abs(first[0] - end[0]) > 0.01


def test_rolling_is_the_nats_of_blocks(lm, ckpt):
    text = ''.join(chr(97 + i * i % 26) for i in range(3 * N))
    blocks = torch.tensor(list(text.encode())).view(3, N)
    order = torch.arange(N).expand(3, N)
    whole = -float(block_nll(Writer(ckpt).model, blocks, order, 3).sum())
    end = nats_of(ckpt, text[3 - N :] + 'xyz', N - 3)
    got = lm(batch_size=2).loglikelihood_rolling(asked(text, text + 'xyz', ''))
    assert got == pytest.approx([whole, whole - end, 0.0], abs=1e-4)


@pytest.mark.parametrize(
    'options', [dict(order='random', n_orders=3), dict(order='block:2', n_orders=2, seed=5)]
)
def test_orders_are_options(lm, ckpt, options):
    rows = [([97, 98, 99], [100, 101]), ([97], [98, 99, 97])]
    how = dict(n_orders=1, seed=1337) | options
    reading = Reading(Order.of(how.pop('order', 'l2r'), {}), **how)
    want = sorted(continuation_scores(Writer(ckpt).model, rows, reading))
    got = lm(**options).loglikelihood(asked(('abc', 'de'), ('a', 'bca')))
    assert [-nats for nats, _ in got] == pytest.approx([nats for _, nats, _ in want], abs=1e-4)


@pytest.mark.parametrize(
    'how',
    [
        {'order': 'l2r'},
        {'order': 'margin', 'n_steps': 4},
        {'order': 'random', 'unmask': 'lossless:3'},
        {'order': 'l2r', 'top_k': 3, 'context': 8},
    ],
)
def test_what_is_written_is_what_a_writer_writes(lm, ckpt, how):
    prompts = ['ab', 'x' * 30, 'abcdef']
    got = written(lm(**how, batch_size=2), *prompts, max_gen_toks=12)
    for prompt, text in zip(prompts, got, strict=True):
        length = len(prompt) + 12
        seed = derive_seed(1337, prompt, 0)
        whole = Writer(ckpt).infill(
            f'{prompt}[[12]]', length=length, temperature=0, seed=seed, **how
        )
        assert text == whole[len(prompt) :]


def test_a_text_ends_before_its_first_stop(lm):
    model = lm()

    def until(stop):
        (text,) = written(model, 'ab', max_gen_toks=9, until=stop)
        return text

    whole = until(None)
    assert len(whole) == 9
    later, first = whole[6:8], whole[3:5]
    assert whole.index(first) < whole.index(later)
    assert until([later, first, 'nowhere']) == whole[: whole.index(first)]
    assert until(whole[0]) == ''
    assert whole.index(whole[4]) == 4
    assert until([whole[4], first]) == whole[:3]  # both end in the same token


def test_a_stop_that_is_not_written_ends_nothing(lm):
    model = lm()
    whole = written(model, 'ab', max_gen_toks=9)
    assert written(model, 'ab', max_gen_toks=9, until='nowhere', num_beams=1) == whole


def test_a_text_ends_where_its_document_ends(lm, ckpt):
    checkpoint = load_checkpoint(ckpt)
    checkpoint['model']['lm_head.bias'][256] = 99
    write_checkpoint(ckpt, checkpoint)
    assert written(lm(), 'ab', max_gen_toks=9, until=['c']) == ['']


@pytest.fixture
def draws(lm):
    """draws(kwargs, ...): what requests with these gen_kwargs give."""

    def write(*kwargs, **options):
        rows = [('ab', {'max_gen_toks': 9, 'until': []} | one) for one in kwargs]
        return lm(**options).generate_until(asked(*rows))

    return write


def test_guidance_takes_the_context_for_the_prompt(lm, ckpt):
    how = dict(temperature=0.7, cfg_scale=3.0)
    (answer,) = written(lm(**how), 'ab', max_gen_toks=9)
    writer = Writer(ckpt)
    text = writer.infill('ab[[9]]', order='l2r', seed=derive_seed(1337, 'ab', 0), **how)
    assert 'ab' + answer == text
    assert [answer] != written(lm(temperature=0.7), 'ab', max_gen_toks=9)
    assert [answer] == written(lm(), 'ab', max_gen_toks=9, **how)
    with one_line('cfg_scale'):
        written(lm(**how), 'ab', max_gen_toks=N)


HOT = {'do_sample': True, 'temperature': 3.0}
COLD = {'do_sample': False}


def test_nothing_is_drawn_unless_it_is_asked_for(draws):
    (greedy,) = draws({})
    same = [COLD, {'temperature': 0.0}, {'do_sample': True, 'top_k': 1}]
    assert draws(*same) == [greedy, greedy, greedy]
    assert draws(COLD, temperature=3.0) == [greedy]


def test_a_repeat_is_another_draw(draws):
    (greedy,) = draws({})
    one, two = draws(HOT, HOT)
    assert len({greedy, one, two}) == 3
    assert draws(HOT, HOT, batch_size=1) == [one, two]
    assert draws(HOT, seed=8) != [one]


def test_a_temperature_is_of_the_request_or_the_model_or_1(draws):
    hot = draws(HOT)
    assert draws({}, temperature=3.0) == hot
    assert draws({'do_sample': True}, temperature=3.0) == hot
    drawn = draws({'do_sample': True})
    assert drawn != draws({})
    assert draws({'do_sample': True, 'temperature': 1.0}) == drawn


@pytest.mark.parametrize(
    'options, said',
    [
        ({'n_order': 2}, "'n_orders'"),
        ({'n_orders': 'x'}, 'n_orders wants int'),
        ({'n_orders': 0}, 'at least 1'),
        ({'order': 'up'}, "'up'"),
        ({'batch_size': 0}, 'batch_size'),
        ({'unmask': 'lossless', 'order': 'margin'}, 'lossless'),
        ({'threshold': 0.9}, "'threshold'"),
        ({'order': f'margin/{N + 1}'}, f'at most the {N} positions'),
        ({'ckpt': 'no.pt'}, 'no checkpoint file'),
        ({'context': N}, 'context'),
        ({'n_steps': -1}, 'n_steps'),
    ],
)
def test_wrong_options_are_one_line(lm, options, said):
    with one_line(said):
        lm(**options)


@pytest.mark.parametrize(
    'kwargs, said',
    [({'top_q': 1}, "'top_p'"), ({'max_gen_toks': 0}, 'at least 1'), ({'num_beams': 2}, 'beams 1')],
)
def test_wrong_gen_kwargs_are_said(lm, kwargs, said):
    with pytest.raises(ValueError, match=said):
        written(lm(), 'ab', **kwargs)


def test_a_policy_reads_no_likelihood(lm):
    with one_line('order=margin'):
        lm(order='margin').loglikelihood(asked(('a', 'b')))


@pytest.mark.parametrize(
    'args, said',
    [
        ('pretrained=gpt2', 'name a checkpoint, as ckpt=out/ckpt.pt, got pretrained$'),
        ('ckpt=c.pt,ordr=l2r', "no option 'ordr'; the nearest is 'order'"),
    ],
)
def test_wrong_model_args_are_said(harness, args, said):
    with pytest.raises(ValueError, match=said):
        harness.AnyOrderLM.create_from_arg_string(args)


def test_a_model_of_ours_has_no_chat_template(lm):
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

    def samples(scroll):  # what the model has written: c, the end of its turn, and more
        (row,) = scroll.rows
        seen.append(row.tokens)
        known = row.tokens[: sum(row.known)]
        step = [-1 for _ in known] + [0, 1, 2]
        return [{'tokens': [*known, c, eot, a], 'step': step}]

    monkeypatch.setattr(lm.writer, 'write', lambda *_: [])
    monkeypatch.setattr(Scroll, 'samples', samples)
    assert written(lm, lm.apply_chat_template(chat), max_gen_toks=3) == ['c']
    assert seen[0] == [user, a, b, eot, ai, 0, 0, 0]


def byte_pairs(folder):
    """A tiny model of others with a token for 'th', 'the', '10' and '100', and <|begin|> before
    every text. Returns its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    KINDS['llada'](folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {text: i for i, text in enumerate([*letters, 'th', 'the', '10', '100'])}
    tokenizer = Tokenizer(models.BPE(ids, [('t', 'h'), ('th', 'e'), ('1', '0'), ('10', '0')]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
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
    path = folder / 'config.json'
    config = json.loads(path.read_text())
    config['mask_token_id'] = found.mask_token_id
    path.write_text(json.dumps(config))
    return found


@pytest.fixture
def of_others(harness, tmp_path, monkeypatch):
    """of_others(): the lm of byte_pairs, its tokenizer, what its network reads, and the rows that
    it scores."""

    def opened(template=None):
        tokenizer = byte_pairs(tmp_path)
        if template:
            tokenizer.chat_template = template
            tokenizer.save_pretrained(tmp_path)
        lm = harness.AnyOrderLM.create_from_arg_obj(
            {'ckpt': f'masked:{tmp_path}'}, {'device': 'cpu'}
        )
        read = []
        rows = []
        own = harness.continuation_scores

        def noted(network, asked, *more):
            rows.extend(asked)
            return own(network, asked, *more)

        lm.writer.network.network.register_forward_pre_hook(
            lambda _, args: read.append(args[0][0].tolist())
        )
        monkeypatch.setattr(harness, 'continuation_scores', noted)
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
    written(lm, context, max_gen_toks=2)
    x = tokenizer.convert_tokens_to_ids('x')
    bare = context.removeprefix('<|begin|>')
    found = lm.loglikelihood(
        asked((context, 'x'), ('', f'{context}x'), ('<|begin|>', f'{bare}x'), ('x', ''))
    )
    (rolling,) = lm.loglikelihood_rolling(asked(f'{context}x'))
    assert all(ids[0] == begin for ids in read[:-1])
    assert all(ids.count(begin) == 1 for ids in read[:-1])
    assert read[0][1:5] == inside
    alone = [[], [*inside, x]]
    assert rows == [[inside, [x]], alone, alone, [[x], []], alone]
    assert found[2] == found[1]
    assert rolling == pytest.approx(found[1][0], abs=1e-4)
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
    assert tuple(map(lm.writer.tokenizer.decode, rows[0])) == want
    assert logp < 0


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
    pieces = ['[PAD]', '[CLS]', '[SEP]', '[MASK]', '[UNK]', 'th', '##e', 'end']
    ids = {text: i for i, text in enumerate(pieces)}
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
    assert lm._encode_pair('[CLS]th', 'e end') == ([5], [6, 7])
    assert lm._encode_pair('th ', 'end') == ([5], [7])
    for pair in (('th', ' '), ('th ', ' '), ('', '[CLS]')):
        with one_line('makes no token of'):
            lm.loglikelihood(asked(pair))
    with one_line('makes no token of'):
        lm.loglikelihood_rolling(asked('\n'))


@pytest.mark.slow
def test_unknown_tokens_of_requests_are_said(harness, folders, capsys):
    _, folder = folders('bert')
    lm = harness.AnyOrderLM.create_from_arg_obj({'ckpt': f'masked:{folder}'}, {'device': 'cpu'})
    lm.loglikelihood(asked(('abÄ', ' ÖÖ'), ('', 'Äb')))
    said = capsys.readouterr().err
    assert '4 of 8 tokens are unknown' in said
    assert "'Ä'" in said
    lm.loglikelihood_rolling(asked('a !'))
    assert '1 of 3 tokens are unknown' in capsys.readouterr().err
    written(lm, 'a[UNK]!', max_gen_toks=1)  # somebody may write it
    assert '1 of 3 tokens are unknown' in capsys.readouterr().err
    lm.loglikelihood(asked(('ab', ' c')))
    assert 'unknown' not in capsys.readouterr().err


WAYS = [
    {},
    {'order': 'random'},
    {'order': 'random', 'seed': 2},
    {'order': 'random', 'n_orders': 3},
    {'dtype': 'bfloat16'},
]


@pytest.mark.slow
def test_answers_of_other_weights_and_options_are_never_served(
    harness, lm, ckpt, tmp_path, monkeypatch
):
    from lm_eval.api.model import CachingLM
    from sqlitedict import SqliteDict

    path = str(tmp_path / 'cache.db')
    pair = ('abxyz', ' cdef')

    def cached(**options):
        return CachingLM(lm(**options), path).loglikelihood(asked(pair))

    with SqliteDict(path) as older:  # as lm-eval itself writes it: of nobody knows which weights
        older[harness_key(pair)] = (-1.0, True)
        older.commit()
    right = [lm(**options).loglikelihood(asked(pair)) for options in WAYS]
    assert len({repr(answer) for answer in right}) == len(WAYS)
    assert [cached(**options) for options in WAYS] == right

    # All are kept
    monkeypatch.setattr(harness, 'continuation_scores', None)
    assert [cached(**options) for options in WAYS] == right
    monkeypatch.undo()

    # Other weights
    checkpoint = load_checkpoint(ckpt)
    checkpoint['model']['lm_head.bias'][:9] += 3
    write_checkpoint(ckpt, checkpoint)
    new = lm().loglikelihood(asked(pair))
    assert new != right[0]
    assert cached() == new


def harness_key(pair):
    from lm_eval.api.model import hash_args

    return hash_args('loglikelihood', pair)


@pytest.mark.slow
def test_chat_requests_are_kept_by_their_template(of_others):
    lm, *_ = of_others(CHAT)
    other, *_ = of_others('{{ bos_token }}' + CHAT)
    assert lm.tokenizer_name != other.tokenizer_name
    assert lm.tokenizer_name == of_others(CHAT)[0].tokenizer_name


CHOICES = [' cd', ' e', ' fgh', ' i']
ROWS = {
    'text': [{'text': f'ab cd {word} ef.'} for word in ('gh', 'x y', 'klm')],
    'choice': [{'context': 'ab', 'choices': CHOICES, 'label': n} for n in (0, 1, 2)],
    'completion': [{'context': 'ab [[cd', 'target': x} for x in (' ef', 'g')],
}
TASKS = {  # as a file of lm-eval says them
    'last_word': {
        'rows': 'text',
        'output_type': 'loglikelihood',
        'doc_to_text': "{{text.split(' ')[:-1]|join(' ')}}",
        'doc_to_target': "{{' '+text.split(' ')[-1]}}",
        'metric_list': [{'metric': 'perplexity', 'aggregation': 'perplexity'}],
    },
    'text_choice': {
        'rows': 'choice',
        'output_type': 'multiple_choice',
        'doc_to_text': '{{context}}',
        'doc_to_choice': 'choices',
        'doc_to_target': 'label',
        'target_delimiter': '',
        'metric_list': [{'metric': 'acc', 'aggregation': 'mean'}],
    },
    'text_completion': {
        'rows': 'completion',
        'output_type': 'generate_until',
        'doc_to_text': '{{context}}',
        'doc_to_target': '{{target}}',
        'generation_kwargs': {'until': ['.'], 'max_gen_toks': 24, 'do_sample': False},
        'metric_list': [{'metric': 'exact_match', 'aggregation': 'mean'}],
    },
    'text_rolling': {
        'rows': 'text',
        'output_type': 'loglikelihood_rolling',
        'doc_to_text': '',
        'doc_to_target': '{{text}}',
        'metric_list': [{'metric': 'byte_perplexity'}],
    },
}


@pytest.fixture
def tasks(harness, tmp_path, monkeypatch):
    """Options that name tasks with rows. The thousands of tasks of lm-eval itself are left out."""
    from lm_eval.tasks import TaskManager

    ours_alone = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, '__init__', ours_alone)
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'hf'))
    folder = tmp_path / 'tasks'
    folder.mkdir()
    for name, lines in ROWS.items():
        text = ''.join(json.dumps(row) + '\n' for row in lines)
        (folder / f'{name}.jsonl').write_text(text)
    for name, task in TASKS.items():
        files = {'data_files': str(folder / f'{task["rows"]}.jsonl')}
        of_rows = {'dataset_path': 'json', 'dataset_kwargs': files, 'test_split': 'train'}
        said = {'task': name} | of_rows | task
        del said['rows']
        (folder / f'{name}.yaml').write_text(json.dumps(said))
    return ['--include_path', str(folder), '--tasks', ','.join(TASKS)]


def results(folder):
    (path,) = folder.rglob('results_*.json')
    assert path.parent.name.endswith('__ckpt.pt')  # by the checkpoint, not at random
    return json.loads(path.read_text())


def test_the_command_runs_all_kinds_of_tasks(harness, script, ckpt, tasks, tmp_path, monkeypatch):
    model = ['--model_args', f'ckpt={ckpt},order=l2r', '--device=cpu']
    command = [
        'anyorder.extras.lm_eval',
        *model,
        *tasks,
        '--use_cache=cache',
        '--log_samples',
        '--output_path',
    ]
    said = script(*command, 'one').stdout
    assert all(name in said for name in TASKS)
    found = results(tmp_path / 'one')
    assert found['config']['batch_size'] == '16'
    assert found['config']['model_num_parameters'] > 1000
    check_values(found['results'], ckpt)

    # All answers are cached
    monkeypatch.setattr(harness, 'continuation_scores', None)
    monkeypatch.setattr(Writer, 'write', None)
    script(*command, 'two')
    assert results(tmp_path / 'two')['results'] == found['results']


def check_values(found, ckpt):
    """The values of the tasks are those of the model."""
    texts = [row['text'] for row in ROWS['text']]
    nats = sum(nats_of(ckpt, text) for text in texts)
    n_bytes = sum(map(len, texts))
    perplexity = pytest.approx(math.exp(nats / n_bytes), rel=1e-5)
    assert found['text_rolling']['byte_perplexity,none'] == perplexity
    words = sum(nats_of(ckpt, text, len(text) - 4) for text in texts)
    perplexity = pytest.approx(math.exp(words / 3), rel=1e-5)
    assert found['last_word']['perplexity,none'] == perplexity
    nats_of_choices = [nats_of(ckpt, 'ab' + text, 2) for text in CHOICES]
    best = nats_of_choices.index(min(nats_of_choices))
    hits = sum(row['label'] == best for row in ROWS['choice'])
    assert found['text_choice']['acc,none'] == pytest.approx(hits / 3)


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
            want = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            assert two[task][metric] == want
