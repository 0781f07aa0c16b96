"""Text in, text out: what infill and logprob give, what sample.py has of them, wrong input."""

import itertools
import json
import math
import pickle
import re
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import make_model, one_line

from anyorder.checkpoint import save_checkpoint
from anyorder.generation.fill import generate
from anyorder.generation.scroll import end_of
from anyorder.generation.way import Page, Way
from anyorder.likelihood.ensemble import ensemble_nll
from anyorder.orders import sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.writer import Writer
from model import EMA


@pytest.mark.parametrize(
    'how',
    [
        {},
        {'order': 'margin:0.5+1', 'n_steps': 5},
        {
            'order': 'l2r',
            'length': 50,
            'stop': '\n',
            'context': 8,
            'temperature': 0.5,
            'top_k': 9,
            'top_p': 0.9,
            'seed': 3,
        },
        {'order': 'random', 'unmask': 'lossless:4'},
        {'order': 'l2r', 'length': 50, 'stop': ['\n', '"a', '3']},
    ],
)
def test_infill_is_what_the_command_writes(ckpt, script, tmp_path, how):
    options = [f'--ckpt={ckpt}', '--weights=raw', '--prompt=ab[[..]]c', '--n_samples=3']
    for name, value in how.items():
        if isinstance(value, list):
            value = json.dumps(value)
        options.append(f'--{name}={value}')
    script('sample.py', *options, '--batch_size=2', '--out=o.json')
    samples = json.loads((tmp_path / 'o.json').read_text())['samples']
    texts = Writer(ckpt).infill('ab[[..]]c', n=3, batch_size=2, **how)
    for text, sample in zip(texts, samples, strict=True):
        assert text == sample['text']
        assert text.logprob == -sample['nats']
        for key in ('order', 'step', 'stretches', 'stopped'):
            assert text.sample.get(key) == sample.get(key)


KIND = {'tokenizer': 'own', 'eos': None, 'given': False}  # of a set of tokens of one's own


def rows_of_file(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def grids(tmp_path, request):
    """The path of a checkpoint of grids of 2 x 3 tokens with names a, ab, ..., and rows to fill."""
    names = ['a', 'ab', 'b', 'ba', 'c']
    kind = KIND | {'n_tokens': 5, 'row_length': 6, 'shape': [2, 3], 'vocabulary': names}
    config = {'block_size': 6, 'vocab_size': 64, 'n_tokens': 5} | getattr(request, 'param', {})
    model = make_model(**config).float()
    save_checkpoint(tmp_path / 'grids.pt', model, EMA(model, 0.9), tokenizer='own', set=kind)
    np.save(tmp_path / 'rows.npy', [[0, -1, 2, -1, 4, -1], [-1, -1, -1, 1, 3, -1], [4] * 5 + [-1]])
    return str(tmp_path / 'grids.pt'), np.load(tmp_path / 'rows.npy')


@pytest.mark.parametrize(
    'grids',
    [
        {},
        {'attention': 'bidirectional'},
        {'attention': 'mixed'},
        {'target_position': 'two_stream', 'rotary': True},
    ],
    indirect=True,
)
def test_rows_of_tokens_are_written_by_command_and_program(grids, script, tmp_path):
    ckpt, rows = grids
    asked = rows.repeat(2, 0)
    how = [f'--ckpt={ckpt}', '--order=margin', '--n_samples=2']
    for out in ('o.json', 'o.npy', 'o.jsonl'):
        script('sample.py', *how, '--prompt=FILE:rows.npy', f'--out={out}')
    samples = json.loads((tmp_path / 'o.json').read_text())['samples']
    tokens = [sample['tokens'] for sample in samples]
    assert [sample['prompt'] for sample in samples] == asked.tolist()
    assert np.load(tmp_path / 'o.npy').tolist() == tokens
    assert rows_of_file(tmp_path / 'o.jsonl') == tokens
    assert (np.where(asked < 0, -1, tokens) == asked).all()

    (tmp_path / 'rows.jsonl').write_text('\n'.join(map(json.dumps, rows.tolist())))
    script('sample.py', *how, '--prompt=FILE:rows.jsonl', '--out=again.npy')
    assert np.load(tmp_path / 'again.npy').tolist() == tokens

    # The program writes the same rows, in the shape of the prompt
    writer = Writer(ckpt)
    same = writer.infill(asked, order='margin')
    assert same.shape == (6, 6)
    assert same.tolist() == tokens
    assert same.logprob.tolist() == [-sample['nats'] for sample in samples]
    one = writer.infill(rows[0].tolist(), order='margin')
    assert one.shape == (6,)
    assert one.tolist() == tokens[0]
    several = writer.infill(rows, n=2, seed=[*range(6)])
    assert several.shape == (2, 3, 6)
    assert several.logprob.shape == (2, 3)
    assert several[1, 0].tolist() == writer.infill(rows[0], seed=3).tolist()

    # And texts of names, which fill a row
    assert writer.infill('a [[1]] b [[1]] c [[1]]', order='margin').sample['tokens'] == tokens[0]
    assert writer.infill('ab [[..]]', length=4).split()[0] == 'ab'
    for prompt in ('ab', 'a [[4-5]] b'):
        with one_line('the rows of this model have 6 tokens, got a row of 9'):
            writer.infill(prompt, length=9)


@pytest.mark.parametrize(
    'row, said',
    [
        ([0, 1, 2], 'the rows of this model have 6 tokens, got a row of 3'),
        ([0] * 6, 'there is no blank'),
        ([0, 5, -1, 0, 0, 0], 'integers from 0 to 4, and -1 for a blank, got 5$'),
        ([0, -2, 0, 0, 0, 0], 'for a blank'),
        ([0.5, -1, 0, 0, 0, 0], 'integers from 0 to 4'),
        ([np.nan, -1, 0, 0, 0, 0], 'integers from 0 to 4'),
        ([{}, -1], 'integers from 0 to 4'),
        ([[[0]]], 'integers from 0 to 4'),
        ([-1] * 7, 'a larger length or'),
        ([[]], 'got nothing'),
        ([], 'a list of prompts must hold'),
    ],
)
def test_wrong_rows_are_one_line(grids, row, said):
    with one_line(said):
        Writer(grids[0]).infill(np.array(row))


def test_wrong_files_of_rows_are_one_line(grids, script, tmp_path):
    np.save(tmp_path / 'bad.npy', np.array([{}], object), allow_pickle=True)
    for options, said in (
        (['--prompt=FILE:bad.npy'], 'bad.npy cannot be read as rows of integers'),
        (['--prompt=FILE:none.npy'], 'none.npy must name a .jsonl or .npy file'),
        (['--prompt=FILE:rows.npy', '--out=rows.npy'], 'would overwrite'),
    ):
        assert said in script('sample.py', f'--ckpt={grids[0]}', *options, code=1).stderr


def test_a_name_stops_a_stream_where_it_stands_alone():
    tokenizer = tokenizer_of_set({'tokenizer': 'own', 'n_tokens': 20, 'eos': None})
    for tokens, n in (([11, 12], None), ([11, 1, 12], 2), ([10, 11, 1], 3)):
        assert end_of(tokens, ['1'], tokenizer) == n


def test_a_stop_is_a_token_however_it_is_written(tmp_path):
    model = make_model(block_size=30, vocab_size=64, n_tokens=5).float()
    kind = KIND | {'n_tokens': 5, 'eos': 4}
    save_checkpoint(tmp_path / 's.pt', model, tokenizer='own', set=kind)
    writer = Writer(tmp_path / 's.pt')
    texts = writer.infill('', n=4, order='l2r', stop='4')
    for stop in (' 4', '<|endoftext|>'):
        assert writer.infill('', n=4, order='l2r', stop=stop) == texts
    for text in texts:
        assert text.sample['stopped']
        assert text[-1] == '4'
    for text in writer.infill('', n=4, order='l2r', stop=['4', ' 2']):
        assert text.sample['stopped']
        assert text[-1] in '24'
        assert not {*text[:-1]} & {*'24'}
    for wrong in (' ', [], ['4', ''], ['4', ' '], ['4', 5], 5, None, np.array(['4', '5'])):
        with one_line('stop must be a text or a list of texts, got .*: leave out what is empty'):
            writer.infill('', stop=wrong)


def test_open_blanks_share_the_length(ckpt):
    writer = Writer(ckpt)
    how = {'order': 'margin', 'n_steps': 4, 'length': 20}
    shared = writer.infill('a[[..]]b[[..]]cd[[..]]', **how)
    same = writer.infill('a[[6]]b[[5]]cd[[5]]', **how)
    assert shared == same
    assert shared.sample == same.sample


def test_open_blanks_end_at_a_stop(ckpt):
    writer = Writer(ckpt)
    prompt = 'a[[..]]b[[..]]c'
    how = {'length': 21, 'order': 'l2r', 'seed': 7}
    whole = writer.infill(prompt, stop='nowhere', **how).sample['tokens']
    letter = next(token for token in whole[2:] if 32 < token < 127)
    stops = ['no', chr(letter)]

    # By hand, each part as a row
    tokens = []
    seed = 7
    logprob = 0
    for piece in b'ab':
        row = np.array([*tokens, piece, *[-1] * 9])
        part = writer.infill(row, order='l2r', seed=seed, stop=stops)
        tokens = part.samples[0]['tokens']
        seed = derive_seed(seed, 'part')
        logprob += part.logprob
    text = writer.infill(prompt, stop=stops, **how)
    assert text.sample['tokens'] == [*tokens, ord('c')]
    assert len(tokens) < 20
    assert text.logprob == pytest.approx(logprob)


def test_one_text_or_several(ckpt):
    writer = Writer(ckpt)
    one = writer.infill('a[[3]]b', seed=8)
    three = writer.infill('a[[3]]b', n=3, seed=7)
    assert isinstance(one, str)
    assert one == three[1]
    assert len(set(three)) == 3
    assert len(writer.infill('a', n=1)) == 1
    assert writer.infill('a[[3]]b', n=3, seed=7, batch_size=2) == three
    back = pickle.loads(pickle.dumps(one))
    assert back == one
    assert back.logprob == one.logprob
    assert one.logprob == sum(one.sample['logprob'])
    assert writer.infill('[[3]]', order=[2, 0, 1]).sample['order'] == [2, 0, 1]


PROMPTS = ['a[[=bc]]', 'ab[[=d]]e', '[[=f]]']


@pytest.mark.parametrize(
    'how', [{}, {'order': 'margin', 'n_steps': 2}, {'order': 'l2r', 'n_orders': 2}]
)
def test_a_list_is_scored_as_each_prompt(ckpt, how):
    writer = Writer(ckpt)
    alone = [writer.logprob(prompt, seed=7 + r, **how) for r, prompt in enumerate(PROMPTS)]
    # in float32 a batch may round otherwise, as torch 2.11's does
    assert writer.logprob(PROMPTS, seed=7, **how) == pytest.approx(alone, rel=1e-6)
    same = writer.logprob((*PROMPTS,), seed=[7, 8, 9], **how)
    assert same == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize('how', [{}, {'order': 'margin', 'n_steps': 2}, {'order': 'l2r'}])
def test_a_list_is_written_as_each_prompt(ckpt, how):
    writer = Writer(ckpt)
    alone = [writer.infill(prompt, seed=7 + r, **how) for r, prompt in enumerate(PROMPTS * 2)]
    assert writer.infill(PROMPTS, seed=7, **how) == alone[:3]
    assert writer.infill(PROMPTS, seed=7, batch_size=1, **how) == alone[:3]
    assert writer.infill(np.array(PROMPTS), seed=7, **how) == alone[:3]  # or a column of a table
    twice = [PROMPTS[0], PROMPTS[0], PROMPTS[1]]
    several = writer.infill(twice, n=2, seed=[7, 10, 7, 10, 8, 11], **how)
    assert several == [[alone[0], alone[3]]] * 2 + [[alone[1], alone[4]]]
    scored = writer.infill(PROMPTS, score=True, **how)[1].logprob
    stepwise = how | {'n_steps': how.get('n_steps')}
    assert scored == writer.logprob(PROMPTS[1], seed=1338, **stepwise)


@pytest.mark.parametrize(
    'how',
    [
        {'order': 'margin', 'n_steps': 2},
        {'order': 'random', 'seed': 3},
        {'order': 'l2r', 'length': 20, 'stop': 'ba', 'context': 2},
        {'order': 'random', 'unmask': 'lossless:3'},
    ],
)
def test_a_stream_shows_every_pass_and_ends_with_what_infill_gives(grids, how, monkeypatch):
    writer = Writer(grids[0], dtype='bfloat16')
    monkeypatch.delitem(writer.checkpoint.set, 'row_length')
    *shown, last = writer.stream('a [[1]] b [[..]] c', **how)
    text = writer.infill('a [[1]] b [[..]] c', **how)
    assert last == text
    assert last.sample == text.sample
    assert last.logprob == text.logprob
    written = text.sample['step'][:-1]  # what is given behind it may move up to it
    for step, seen in enumerate(shown):
        words = [word if s <= step else '·' for word, s in zip(text.split(), written)]
        assert seen.split()[: len(written)] == words
    assert len(shown) == text.sample['passes']


def test_two_streams_go_on_by_turns(grids):
    writer = Writer(grids[0], dtype='bfloat16')
    for one, other in zip(writer.stream('a [[..]]'), writer.stream('b [[..]]', seed=9)):
        assert not torch.is_autocast_enabled('cpu')
    assert one == writer.infill('a [[..]]')
    assert other == writer.infill('b [[..]]', seed=9)


@pytest.mark.parametrize(
    'what, said',
    [
        (
            lambda w: w.infill('a', allow=1),
            "infill.* 'allow'; the nearest is 'allowed'; help.Writer.infill. says more",
        ),
        (lambda w: w.infill('a', policy='margin'), "'policy'"),
        (lambda w: next(w.stream('a', top=1)), 'the nearest'),
        (
            lambda w: w.logprob('[[=a]]', n_order=2),
            "logprob.* 'n_order'; the nearest is 'n_orders'",
        ),
        (
            lambda w: generate(w, None, torch.zeros(1, 1), 0, n_step=1),
            "generate.* 'n_step'; the nearest is 'n_steps'",
        ),
    ],
)
def test_of_an_unknown_option_the_nearest_is_named(ckpt, what, said):
    with pytest.raises(TypeError, match=said) as e:
        what(Writer(ckpt))
    assert '\n' not in str(e.value)


def test_no_answer_depends_on_what_was_asked_before(ckpt):
    first, later = (Writer(ckpt, dtype='bfloat16') for _ in range(2))
    later.infill('a[[3]]b')
    assert first.logprob('a[[=bc]]') == later.logprob('a[[=bc]]')


def test_of_equal_scores_the_first_in_a_random_order_is_the_best(ckpt):
    writer = Writer(ckpt)
    torch.nn.init.zeros_(writer.model.lm_head.weight)
    chosen = writer.infill('a[[8]]b', order='margin').sample['order']
    assert chosen == writer.infill('a[[8]]b', order='random').sample['order']
    assert chosen != sorted(chosen)
    in_blocks = writer.infill('a[[8]]b', order='margin/3')  # from left to right
    assert in_blocks.sample['order'] == [0, 9, *range(1, 9)]


@pytest.mark.parametrize('network', [{}, {'attention': 'bidirectional'}, {'attention': 'mixed'}])
def test_logprob_is_the_score_of_the_command(script, tmp_path, network):
    model = make_model(block_size=32, vocab_size=320, n_tokens=257, **network).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, EMA(model, 0.9), tokenizer='bytes')
    prompt = 'ab[[=cd]]e[[=f]]'
    how = [f'--prompt={prompt}', '--score', '--order=l2r']
    script('sample.py', '--ckpt=ckpt.pt', *how, '--out=o.json')
    sample = json.loads((tmp_path / 'o.json').read_text())['samples'][0]
    assert math.isclose(Writer('ckpt.pt').logprob(prompt), -sample['nats'], rel_tol=1e-5)


@pytest.mark.parametrize(
    'how',
    [
        {'order': 'margin'},
        {'order': 'entropy/2', 'n_steps': 2},
        {'order': 'margin', 'n_steps': 2, 'temperature': 0.6, 'top_p': 0.8},
        {'order': 'margin', 'presence_penalty': 1.5, 'min_p': 0.2},
        {'order': 'margin', 'cfg_scale': 0.5},
        {'order': 'l2r', 'n_steps': 2, 'top_k': 2},
    ],
)
def test_a_way_of_writing_gives_all_texts_together_probability_one(script, tmp_path, how):
    """The command and the program say the same, and generate draws with it."""
    model = make_model(block_size=6, vocab_size=16, n_tokens=3).float()
    kind = KIND | {'n_tokens': 3, 'vocabulary': ['a', 'b', 'c']}
    save_checkpoint(tmp_path / 'abc.pt', model, tokenizer='own', set=kind)
    prompts = [f'[[={x} {y}]] a [[={z}]] b' for x, y, z in itertools.product('abc', repeat=3)]
    lines = [json.dumps({'prompt': prompt}) for prompt in prompts]
    (tmp_path / 'p.jsonl').write_text('\n'.join(lines))
    options = ['--ckpt=abc.pt', '--weights=raw', '--prompt=FILE:p.jsonl', '--score']
    options += [f'--{name}={value}' for name, value in how.items()]
    files = ['--out=o.json', '--html=o.html']
    said = script('sample.py', *options, '--n_samples=1', *files).stdout

    # The command
    found = (tmp_path / 'o.json').read_text()
    page = (tmp_path / 'o.html').read_text()
    assert 'Infinity' not in found + page
    samples = json.loads(found)['samples']
    logp = [-math.inf if sample['nats'] is None else -sample['nats'] for sample in samples]
    p = [math.exp(value) for value in logp]
    assert math.isclose(sum(p), 1, abs_tol=1e-5)
    n_cut = sum(sample['logprob'].count(None) for sample in samples)
    assert (n_cut > 0) == bool({'top_p', 'top_k', 'min_p'} & {*how})
    assert re.search(f'cut off +{n_cut} tokens', said)
    assert ('blocks of 2' in said) == ('/2' in how['order'])
    assert math.isinf(min(logp)) == ('-log p = inf' in said)

    # The program, and what it draws
    writer = Writer('abc.pt')
    assert [writer.logprob(prompt, **how) for prompt in prompts] == pytest.approx(logp, abs=1e-5)
    drawn = Counter(writer.infill('[[2]] a [[1]] b', n=500, batch_size=500, **how))
    for sample, share in zip(samples, p, strict=True):
        error = math.sqrt(500 * share * (1 - share))
        assert abs(drawn[sample['text']] - 500 * share) <= 4.5 * error + 1e-9


def test_logprob_of_a_part_given_another(ckpt):
    """What is in neither is not read, and the probabilities of several orders are averaged."""
    writer = Writer(ckpt)
    writer.model.requires_grad_(False)
    idx = torch.tensor([[97, 0, 0, 98, 99, 100]])

    def nats(*order, n=2):
        """Nats of the last n visits."""
        return float(writer.model(idx, torch.tensor([order]))[0, -n:].sum())

    prompt = 'a[[2]][[=bc]]d'
    assert math.isclose(writer.logprob(prompt), -nats(0, 5, 3, 4), rel_tol=1e-5)
    assert math.isclose(writer.logprob('[[=a]]'), -nats(0, n=1), rel_tol=1e-5)
    values = [writer.logprob(prompt, n_orders=1, seed=seed) for seed in range(20)]
    every = [-nats(*b, *a) for b in ((0, 5), (5, 0)) for a in ((3, 4), (4, 3))]
    assert sorted(set(values)) == pytest.approx(sorted(every), rel=1e-5)
    assert writer.logprob(prompt, n_orders=1, seed=7) == values[7]
    mean = writer.logprob(prompt, n_orders=400)
    assert math.isclose(mean, -float(ensemble_nll(torch.tensor(every))), abs_tol=0.1)


def test_the_average_weights_are_used_where_there_are_any(tmp_path, ckpt):
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    ema = EMA(model, 0.9)
    for p in ema.model.parameters():
        p.data.mul_(0.5)
    save_checkpoint(tmp_path / 'both.pt', model, ema, tokenizer='bytes')
    both = Writer(tmp_path / 'both.pt').logprob('[[=ab]]')
    raw = Writer(tmp_path / 'both.pt', 'raw').logprob('[[=ab]]')
    assert both != raw
    assert raw == Writer(ckpt).logprob('[[=ab]]')
    with torch.no_grad():
        nll = ema.model(torch.tensor([[97, 98]]), sample_order(1, 2, 'l2r'))
    assert math.isclose(both, -float(nll.sum()), rel_tol=1e-5)


@pytest.mark.parametrize(
    'what, said',
    [
        (lambda w: w.infill('a', order='up'), 'top_prob'),
        (lambda w: w.infill('a', length=-1), 'length must be'),
        (lambda w: w.infill('a', context=32), 'context must be 1 to 31'),
        (lambda w: w.infill('abc[[0]]'), 'a blank is'),
        (lambda w: w.infill('[[9]]', order=[0, 2]), 'every position'),
        (lambda w: w.infill('a', n=0), 'at least 1'),
        (lambda w: w.infill('a', n_steps=0), 'n_steps'),
        (lambda w: w.infill('a', temperature=-1), 'temperature'),
        (lambda w: w.infill('a', unmask='lossless', order='margin'), 'order that is given'),
        (lambda w: w.infill('ab', length=2), 'no blank'),
        (lambda w: w.logprob('abc'), r'write it as \[\[=text\]\]'),
        (lambda w: w.logprob(['[[=a]]', 'b']), 'write it as'),
        (lambda w: w.infill([]), 'a list of prompts must hold'),
        (lambda w: w.infill(['a', 1]), r"texts alone, or rows of integers alone, got \['a', 1\]"),
        (lambda w: w.infill(['a', '[[0]]']), 'prompt 2 of 2: a blank is'),
        (lambda w: w.logprob([1]), 'write it as'),
        (lambda w: w.logprob('[[=a]]', n=1), 'leave out n and score'),
        (lambda w: w.logprob(['[[=a]]'], score=1), 'n and'),
        (lambda w: w.logprob('[[=a]][[2]]', context=0), 'in place of'),
        (lambda w: [*w.stream(['a'])], 'writes one text'),
        (lambda w: [*w.stream('a', n=1)], 'writes one text'),
        (lambda w: w.logprob('[[=' + 'a' * 33 + ']]'), '33 tokens'),
        (lambda w: w.logprob('[[=a]]', n_orders=-1), 'n_orders must be at least 0'),
        (lambda w: w.logprob('[[=a]]', n_orders=2, top_k=3), 'n_orders draws orders of its own'),
        (lambda w: w.logprob('[[=a]][[2]]', order='margin'), 'wants the text of every blank'),
        (lambda w: w.logprob('[[=a]]', order='margin+0.5'), 'noise=0.5'),
        (
            lambda w: w.logprob('[[=a]]', order='margin', temperature=0),
            'score at a temperature above 0',
        ),
        (
            lambda w: w.infill('a[[3]]', order='margin/5'),
            'at most the 4 positions of the text, got 5',
        ),
        (lambda w: w.infill('a', length=50, order='margin/33'), 'at most the 32 positions'),
        (lambda w: w.infill('a', stop='b', revise=1), 'is scored, and revised, as a whole'),
        (
            lambda w: w.infill('a', order='margin/0'),
            'block_length must be an integer from 1, got 0',
        ),
        (
            lambda w: w.infill(['a', 'b'], seed=[1]),
            'seeds must have one for each of 2 texts, got 1',
        ),
    ],
)
def test_wrong_input_is_said_before_the_weights_are_read(ckpt, what, said):
    writer = Writer(ckpt)
    with pytest.raises(ValueError, match=said):
        what(writer)
    assert 'model' not in vars(writer)


def test_files_and_devices_that_are_not_there(ckpt, tmp_path):
    for args, said in (
        (['none.pt'], 'no checkpoint file'),
        ([ckpt, None, 'meta'], 'device must be'),
        ([ckpt, 'emma'], "weights must be 'ema' or 'raw', got 'emma'"),
    ):
        with pytest.raises(ValueError, match=said):
            Writer(*args)
    with pytest.raises(ValueError, match='no EMA'):
        Writer(ckpt, 'ema').logprob('[[=a]]')
    save_checkpoint(
        tmp_path / 'digits.pt', make_model(vocab_size=64, n_tokens=4).float(), tokenizer='sudoku4'
    )
    for wrong in ({'stop': '<|endoftext|>'}, {'stop': '5'}):  # which are no tokens of it
        with pytest.raises(ValueError, match='sudoku4 has the tokens'):
            Writer(tmp_path / 'digits.pt').infill('1', **wrong)


def test_a_way_and_a_page_are_the_options_in_two_nouns(ckpt):
    writer = Writer(ckpt)
    way = Way.of(writer.checkpoint.run, 'margin', n_steps=5, temperature=0.5)
    page = Page(length=20, stop='\n')
    options = {'order': 'margin', 'n_steps': 5, 'temperature': 0.5, 'length': 20, 'stop': '\n'}
    text = writer.infill('ab[[..]]', way=way, page=page, seed=2)
    assert text == writer.infill('ab[[..]]', seed=2, **options)
    assert text == [*writer.stream('ab[[..]]', way, page, seed=2)][-1]
    score = {'order': 'margin', 'n_steps': 5, 'temperature': 0.5}
    assert writer.logprob('ab[[=cd]]', way=way) == writer.logprob('ab[[=cd]]', **score)
    for wrong in ({'way': way, 'order': 'l2r'}, {'page': page, 'length': 9}):
        with pytest.raises(ValueError, match='is a part of'):
            writer.infill('ab[[..]]', **wrong)
    with pytest.raises(ValueError, match='order is a part of way'):
        writer.logprob('ab[[=cd]]', order='random', way=way)
