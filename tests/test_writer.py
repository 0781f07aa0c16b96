"""Text in, text out: long texts, where they end, what may stand where, what was likeliest, what
sample.py and a program say of it, and what a terminal shows meanwhile.

All tests run in an empty folder of their own."""

import io
import itertools
import json
import math
import os
import pickle
import re
from string import ascii_lowercase as LETTERS

import numpy as np
import pytest
import torch
from conftest import REFERENCE, make_model, one_line
from oracle import NETWORKS, cut

import sample as command
from anyorder.checkpoint import save_checkpoint
from anyorder.generation import fill, generate
from anyorder.generation.scroll import end_of
from anyorder.generation.watch import Watch, has_colours, visible
from anyorder.generation.way import Page, Way
from anyorder.likelihood.ensemble import ensemble_nll
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import sample_order
from anyorder.seeds import derive_seed
from anyorder.tokens.tokenizers import Bytes, Symbols
from anyorder.writer import Writer
from configurator import configure
from model import EMA


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(name, kind, has_average=False, **config):
    """Save a checkpoint of a small model; returns the model."""
    model = make_model(**config).float()
    set_ = {'tokenizer': 'own', 'eos': None, 'given': False} | kind
    average = EMA(model, 0.9) if has_average else None
    save_checkpoint(name, model, average, tokenizer=set_['tokenizer'], set=set_)
    return model


@pytest.fixture
def letters():
    """letters(**config) is a Writer of eight of 26 letters, which are written one behind the
    other."""

    def make(use_cache=True, is_sure=False, **config):
        kind = {'tokenizer': 'sudoku4', 'n_tokens': 26, 'vocabulary': [*LETTERS]}
        save(
            'letters.pt', kind, **dict(block_size=8, vocab_size=32, n_tokens=26, n_layer=1) | config
        )
        writer = Writer('letters.pt', use_cache=use_cache)
        for p in writer.model.requires_grad_(False).parameters():
            p.mul_(not is_sure)  # if it is, every letter is as likely: at temperature 0 it is an a
        return writer

    return make


def read(path):
    with open(path) as f:
        return json.load(f)


def put(path, *values):
    """Write values in JSON, a line each."""
    with open(path, 'w') as f:
        f.write('\n'.join(map(json.dumps, values)))


def row_of(prompt):
    """The tokens of a prompt of letters, -1 in its blanks [[n]]."""
    shown = re.sub(r'\[\[(\d+)]]', lambda found: '?' * int(found[1]), prompt)
    return [LETTERS.find(letter) for letter in shown]


def story(sample, start=0, n_steps=0):
    """[(position, step, likeliest tokens, nats)] of what was written, in turn."""
    found = []
    for p in sample['order']:
        if sample['step'][p] >= 0:
            ids = [one['token'] for one in sample['top_logprobs'][p]['top']]
            found.append((start + p, n_steps + sample['step'][p], ids, sample['logprob'][p]))
    return found


def n_steps_of(whole):
    return 1 + max((step for _, step, *_ in whole), default=-1)


def assert_same(one, other):
    """Two stories are the same, up to rounding."""
    assert [three for *three, _ in one] == [three for *three, _ in other]
    nats = [nats for *_, nats in other]
    assert [nats for *_, nats in one] == pytest.approx(nats, abs=1e-4)


# ---- long texts: stretch by stretch, and part by part

WAYS = [
    dict(order='l2r'),
    dict(order='random'),
    dict(order='block:2', top_k=3),
    dict(order='margin'),
    dict(order='margin/4'),  # blocks begin anew in each stretch
    dict(order='l2r', unmask='lossless:3'),
    dict(order='entropy', n_steps=3, revise=1),
    dict(order='r2l', allowed=torch.rand(20, 26, generator=torch.manual_seed(2)) < 0.3),
]
CONTEXTS = [
    (0, [[0, 8], [4, 12], [8, 16], [12, 20]]),
    (3, [[0, 8], [5, 13], [10, 18], [15, 20]]),
    (7, [[0, 8], *([n - 7, n + 1] for n in range(8, 20))]),
]


def by_stretches(writer, row, seed, context, allowed=None, **how):
    """(tokens, story) of a row that is written by hand: each stretch is a row that fits."""
    whole = []
    row = [*row]
    while -1 in row:
        blank = row.index(-1)
        start = blank - context if blank >= 8 else 0
        own = derive_seed(seed, 'stretch', start) if start else seed
        if allowed is not None:
            how['allowed'] = allowed[start : start + 8]
        part = writer.infill(row[start : start + 8], seed=own, **how).samples[0]
        whole += story(part, start, n_steps_of(whole))
        row[start : start + 8] = part['tokens']
    return row, whole


@pytest.mark.parametrize('how, given', [*zip(WAYS, itertools.cycle(CONTEXTS))], ids=str)
def test_a_long_text_is_written_stretch_by_stretch(letters, how, given):
    """Each stretch knows its context, and nothing before; rows slide apart, and each is a function
    of its seed."""
    writer = letters()
    context, stretches = given
    prompts = ['ab[[7]]cd[[7]]e[[1]]', '[[20]]', 17 * 'x' + '[[3]]', 'ab[[2]]']
    how = how | dict(length=20, top_logprobs=2)
    found = writer.infill(prompts, context=context, seed=5, **how)
    for r, (prompt, text) in enumerate(zip(prompts, found)):
        row, whole = by_stretches(writer, row_of(prompt), 5 + r, context or 4, **how)
        assert text.sample['tokens'] == row
        assert_same(story(text.sample), whole)
        assert text.sample['passes'] == len({step for _, step, *_ in whole})
    first = writer.infill(row_of(prompts[0])[:8], **how).samples[0]
    assert found[0].sample['order'][:5] == [*first['order'][:2], 9, 10, 18]
    assert found[1].sample['stretches'] == stretches
    assert 'stretches' not in found[3].sample


def by_parts(writer, pieces, seed, **how):
    """(tokens, story) of a text whose parts are written by hand: each but the last up to its
    stop."""
    whole = []
    row = []
    for piece in pieces:
        row += row_of(piece)
        if piece == pieces[-1]:
            how['stop'] = ''
        part = writer.infill(row, seed=seed, **how).samples[0]
        row = part['tokens']
        whole += story(part, 0, n_steps_of(whole))
        seed = derive_seed(seed, 'part')
    return row, whole


@pytest.mark.parametrize('how', [WAYS[0], *WAYS[4:6]], ids=str)
def test_open_blanks_are_written_part_by_part(letters, how):
    """Each ends at its stop or at its share; a row beside it that has fewer parts changes
    nothing."""
    writer = letters()
    how = how | dict(length=25, top_logprobs=1)
    stops = ['nowhere']
    for i in (5, 13, None):
        how['stop'] = stops
        prompts = ['x[[9]]', 'ab[[..]]cd[[..]]fg[[1]]h']
        beside, text = writer.infill(prompts, seed=[4, 5], **how)
        row, whole = by_parts(writer, ('ab[[9]]', 'cd[[8]]', 'fg[[1]]h'), 5, **how)
        assert text.sample['tokens'] == row
        assert_same(story(text.sample), whole)
        assert_same(story(beside.sample), story(writer.infill('x[[9]]', seed=4, **how).sample))
        if i:
            stops.append(text[i : i + 2])
    assert text.sample['stopped']
    assert len(text) < 24


def test_without_a_stop_open_blanks_share_the_length(letters):
    writer = letters(block_size=20)
    shared = writer.infill('a[[..]]b[[..]]cd[[..]]', length=20, order='margin', n_steps=4)
    same = writer.infill('a[[6]]b[[5]]cd[[5]]', length=20, order='margin', n_steps=4)
    assert shared == same
    assert shared.sample == same.sample


# ---- where a text ends


@pytest.mark.parametrize('how', [*WAYS[:2], *WAYS[4:6], WAYS[7]], ids=str)
def test_a_text_ends_with_its_first_stop(letters, how):
    """What was known by then stays as it is, and costs no pass behind it."""
    writer = letters()
    how = how | dict(length=20, seed=5, top_logprobs=1)
    prompts = ['ab[[18]]', '[[..]]', '[[9]]']
    whole = writer.infill(prompts, **how)
    stops = [whole[1][13:15], whole[1][7:9], whole[0][:2]]  # over a seam; as in a prompt
    found = writer.infill(prompts, stop=stops, **how)
    for blank, text, short in zip((2, 0, 0), whole, found):
        ends = [text.find(stop, blank) + 2 for stop in stops]
        n = min((end for end in ends if end > 1), default=len(text))
        assert short == text[:n]
        assert short.sample['stopped'] == (n < len(text))
        assert_same(story(short.sample), [one for one in story(text.sample) if one[0] < n])
        assert short.logprob == pytest.approx(sum(short.sample['logprob']))
    *shown, last = writer.stream('[[..]]', stop=stops, **how | {'seed': 6})
    assert last == found[1]
    assert len(shown) == n_steps_of(story(last.sample)) < whole[1].sample['passes']


TWO_OPEN = '[[2]]bc[[..]]d[[..]][[3]]e'


@pytest.mark.parametrize(
    'prompt, length, stop, text, stopped',
    [
        (TWO_OPEN, 18, 'a', 'aabcadaaaae', True),
        (TWO_OPEN, 18, 'bc', 'aabcaaaaadaaaaaaae', False),  # not beyond the open blank
        (TWO_OPEN, 18, 'abc', 'aabcaaaaadaaaaaaae', False),
        (TWO_OPEN, 18, 'ca', 'aabcaaaaadaaaaaaae', False),
        ('bc[[..]]d[[..]]', 4, 'a', 'bcad', False),  # one of them has no room
        ('bcbc[[1]]bc[[7]]', 14, 'bc', 'bcbcabc', True),  # from the first blank on
        ('[[1]]bcdefgh[[1]]ijk[[8]]', 20, 'hai', 'abcdefghai', True),  # known over a seam
    ],
)
def test_where_a_stop_is_looked_for(letters, prompt, length, stop, text, stopped):
    writer = letters(is_sure=True)
    *seen, last = writer.stream(
        prompt, order='l2r', temperature=0, length=length, stop=stop, context=1
    )
    assert last == text
    assert last.sample['stopped'] == stopped
    given = [p for p, step in enumerate(last.sample['step']) if step < 0]
    assert last.sample['order'] == [*given, *(p for p in range(len(text)) if p not in given)]
    assert sorted(last.sample['step'])[len(given) :] == [*range(len(seen))]
    if stop == 'a' and length == 18:  # the text as it is then
        assert [len(one) for one in seen] == [18, 18, 18, 14, 11, 11, 11]


def test_a_stop_is_whole_before_it_is_found():
    names = Symbols('own', [str(i) for i in range(20)], ' ')
    for tokenizer, tokens, stops, n in (
        (Bytes(), [97, 195, 169, 98], ['é'], 3),
        (Bytes(), [97, 195], ['é'], None),
        (Bytes(), [97, 256, 98, 256], ['<|endoftext|>'], 2),
        (Bytes(), [10, 97, 10, 10, 10], ['\n\n'], 4),
        (Bytes(), [97, 98, 99], ['c', 'ab', 'x'], 2),
        (Bytes(), [], ['a'], None),
        (Bytes(), [97], [], None),
        (names, [11, 12], ['1'], None),  # a name stands alone
        (names, [11, 1, 12], ['1'], 2),
    ):
        assert end_of(tokens, stops, tokenizer) == n


def test_a_stop_is_a_token_however_it_is_written():
    save('five.pt', {'n_tokens': 5, 'eos': 4}, block_size=30, vocab_size=64, n_tokens=5)
    writer = Writer('five.pt')
    texts = writer.infill('', n=4, order='l2r', stop='4')
    for stop in (' 4', '<|endoftext|>'):
        assert writer.infill('', n=4, order='l2r', stop=stop) == texts
    for text in [*texts, *writer.infill('', n=4, order='l2r', stop=['4', ' 2'])]:
        assert text.sample['stopped']
        assert text[-1] in '42'
        assert '4' not in text[:-1]


# ---- what may stand where

ALLOWED = torch.rand(12, 11, generator=torch.manual_seed(5)) < 0.4
ALLOWED[:, 3] |= ~ALLOWED.any(1)


def test_rows_and_positions_are_those_of_the_text_as_it_is_then(letters):
    asked = set()

    def allowed(rows, positions):
        asked.update(zip(rows.tolist(), positions.tolist()))
        return torch.arange(26) == (10 * rows + positions).unsqueeze(1) % 26

    prompts = ['[[..]]', 'ab[[..]]cd[[..]]', '[[20]]']
    how = dict(length=20, stop=['d', 'n'], order='l2r', batch_size=2)
    found = letters().infill(prompts, allowed=allowed, **how)
    assert found == ['abcd', 'abmncdqrstuvwx', 'uvwxyzabcd']
    assert [text.logprob for text in found] == [0] * 3
    assert (1, 13) in asked
    assert max(asked) == (2, 9)
    only_a = np.arange(26) == np.zeros((8, 1))
    only_a[0] = False  # known tokens are not asked about, and scored ones are
    assert letters().infill('b[[3]]', length=4, allowed=only_a) == 'baaa'
    with one_line('scored is not allowed at position 2 of row 0'):
        letters().infill('b[[=ab]]', score=True, allowed=only_a)


def test_patterns_stand_where_they_are_then(letters):
    """A blank that ends at its stop moves those behind it."""
    writer = letters(block_size=20)
    prompt = '[[2/[ab]+/]]c[[..]]d[[2-4/[xy]+/]]e'
    text = writer.infill(prompt, order='l2r', length=20, stop=[*LETTERS])
    (before, behind) = text.sample['patterns']
    assert before == [0, 2, '[ab]+']
    start, end, _ = behind
    assert (start, end) == (5, len(text) - 1)
    assert re.fullmatch('[ab]{2}c[a-z]d[xy]{2,4}e', text)
    assert writer.infill('ab[[3]]', pattern='abc*', order='random') == 'abccc'


SHUT = ALLOWED[:9].clone()
SHUT[4] = False


@pytest.mark.parametrize(
    'allowed, said',
    [
        ('SHUT', 'at position 4, a blank; .* 9 positions'),
        ('lambda rows, positions: SHUT[positions]', 'at position 4 of row 1'),
        ('ALLOWED[:7]', 'at position 7, .* 7 positions'),
        ('ALLOWED.float()', r'float32 \(12, 11\)'),
        ('ALLOWED[0]', r'bool \(11,\)'),
        ('ALLOWED[:, :8]', r'\(2, 11\), got torch.bool \(2, 8\)'),
        ('lambda rows, positions: ALLOWED[0]', r'bool \(11,\)'),
        ('lambda rows, positions: ALLOWED[positions].int()', r'int32 \(2, 11\)'),
        ('lambda rows, positions: ALLOWED.numpy()[positions.numpy(), :8]', r'bool \(2, 8\)'),
    ],
)
def test_wrong_tables_are_one_line(allowed, said):
    order = torch.tensor([[4, 0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 5, 6, 7, 8, 4]])
    with one_line(said):  # position 4 is known in the first row
        model = make_model(vocab_size=16, n_tokens=11)
        generate(model, order * 0, order, 1, 9, allowed=eval(allowed))


# ---- what was likeliest

CUTS = [
    dict(temperature=0.6, top_k=3),
    dict(temperature=1.7, top_p=0.6),
    dict(temperature=0.7, min_p=0.2, presence_penalty=1.5),
    dict(temperature=0, top_k=2),
]
CHOICES = [
    dict(order='r2l', schedule='cosine', n_steps=3),
    dict(order='random', unmask='binomial', n_steps=3),
    dict(order='margin/3', unmask='binomial', n_steps=4),
    dict(order='entropy+0.5'),
    dict(order='top_prob/4:0.3'),
    dict(order='klass:0.2'),
    dict(order='factor:2.0'),
    dict(order='eb:2.0'),
    dict(order='pc_sampler', n_steps=3),
    dict(order='drawn', n_steps=3),
    dict(order='dilated:4'),
    dict(order='margin', n_steps=4, revise=1),
    dict(order='random', unmask='lossless:4'),
]


def law_of(logits, known, presence_penalty=0.0, temperature=1.0, **cuts):
    """log p (V,) of the law that draws a token behind known ones; at temperature 0 that of 1."""
    logits = logits.clone()
    logits[[*{*known}]] -= presence_penalty
    return cut(logits, temperature or 1.0, **cuts).log_softmax(-1)


def assert_likeliest(writer, sample, is_lossless=False, since=0, **cuts):
    """What is said of each place is that of a pass of its own, given what its step knew."""
    visits = sample['order']
    for d, p in enumerate(visits):
        place = sample['top_logprobs'][p]
        now = sample['step'][p]
        assert (place is None) == (now < 0)
        if now < since:
            continue
        known = visits[:d] if is_lossless else [q for q in visits if sample['step'][q] < now]
        rest = [q for q in visits if q not in (*known, p)]
        idx = torch.tensor([sample['tokens']])
        logits = writer.model.predict(idx, torch.tensor([[*known, p, *rest]]), len(known), 1)[0, 0]
        law = law_of(logits, [sample['tokens'][q] for q in known], **cuts)
        best = law.topk(min(4, int(law.isfinite().sum())))
        assert [one['token'] for one in place['top']] == best.indices.tolist()
        nats = [one['logprob'] for one in place['top']]
        assert nats == pytest.approx(best.values.tolist(), abs=1e-4)
        assert place['token'] == sample['tokens'][p]
        assert place['logprob'] == pytest.approx(float(law[place['token']]), abs=1e-4)
        assert place['text'] == LETTERS[place['token']]


@pytest.mark.parametrize('how, cuts', [*zip(CHOICES, itertools.cycle(CUTS))], ids=str)
def test_a_token_has_the_law_that_wrote_it(letters, how, cuts):
    writer = letters()
    writer.model.register_buffer('counts', torch.arange(26), persistent=False)
    prompts = ['ab[[6]]', '[[3]]cd[[2]]']
    plain = writer.infill(prompts, **how | cuts | {'revise': 0})
    found = writer.infill(prompts, top_logprobs=4, **how | cuts)
    for text, before in zip(found, plain):
        since = before.sample['passes'] if 'revise' in how else 0  # it began with these
        is_lossless = how.get('unmask') == 'lossless:4'
        assert_likeliest(writer, text.sample, is_lossless, since, **cuts)
        assert text.top_logprobs is text.sample['top_logprobs']
        assert text == before or 'revise' in how
        assert before.top_logprobs is None


def test_a_scored_text_has_the_law_by_which_it_is_scored(letters):
    writer = letters()
    how = dict(order='margin', n_steps=2, **CUTS[2])
    text = writer.infill('ab[[=cdefgh]]', score=True, top_logprobs=4, **how)
    assert_likeliest(writer, text.sample, **CUTS[2])
    nats = [place['logprob'] for place in text.top_logprobs[2:]]
    assert nats == text.sample['logprob'][2:]


def test_the_likeliest_reach_the_table_the_file_and_the_page(write):
    said, result = write('--prompt=ab[[3]]c', '--top_logprobs=2', '--html=o.html')
    with open('o.html') as f:
        page = f.read()
    shown = json.loads(page.split('type="application/json">')[1].split('</script>')[0])
    sample = result['samples'][0]
    assert shown['samples'][0]['top'] == sample['top_logprobs']
    lines = iter(said.splitlines())
    assert any(line.startswith('position') for line in lines)
    for line, place in zip(lines, filter(None, sample['top_logprobs'])):
        assert all(f'{one["logprob"]:.3f}' in line for one in place['top'])


# ---- the command


@pytest.fixture
def write(script, ckpt):
    """Run sample.py with these options. Return what it said, and the result that it wrote."""

    def run(*options, ckpt=ckpt):
        said = script('sample.py', f'--ckpt={ckpt}', '--weights=raw', '--out=o.json', *options)
        return said.stdout, read('o.json')

    return run


def options_of(how):
    """The options of a command that are these of a program."""
    texts = {name: json.dumps(x) if isinstance(x, list) else x for name, x in how.items()}
    return [f'--{name}={text}' for name, text in texts.items()]


@pytest.mark.parametrize(
    'how',
    [
        dict(order='margin:0.5+1', n_steps=5),
        dict(order='l2r', length=50, stop=['\n', '"a', '3'], context=8, top_p=0.9, seed=3),
        dict(order='random', unmask='lossless:4', length=12, temperature=0.5, top_k=9),
    ],
)
def test_a_program_writes_what_the_command_writes(ckpt, write, how):
    said, result = write('--prompt=ab[[..]]c', '--n_samples=3', '--batch_size=2', *options_of(how))
    texts = Writer(ckpt).infill('ab[[..]]c', n=3, batch_size=2, **how)
    for r, (text, sample) in enumerate(zip(texts, result['samples'], strict=True)):
        assert text == sample['text']
        assert text.logprob == -sample['nats']
        assert sample['seed'] == how.get('seed', 1337) + r
        for key in ('order', 'step', 'stretches', 'stopped'):
            assert text.sample.get(key) == sample.get(key)
    assert '32 positions, bytes tokens' in said
    assert 'iteration 7' in said
    assert said.count('--- sample') == 3
    if 'unmask' in how:
        rate = 27 / sum(sample['passes'] for sample in result['samples'])
        assert f'window 4: {rate:.1f} tokens a pass' in said


def test_each_option_reaches_the_drawing(write):
    def sample(*options):
        _, result = write('--length=9', '--n_samples=1', *options)
        return result['samples'][0]

    plain = sample()
    greedy = sample('--temperature=0')['tokens']
    for option in ('--top_k=1', '--top_p=1e-9', '--min_p=1'):
        assert sample(option)['tokens'] == greedy != plain['tokens']
    assert plain['tokens'] != sample('--seed=9')['tokens']
    assert sorted(plain['step']) == [*range(9)]
    steps = sample('--n_steps=4', '--schedule=cosine')['step']
    # 9 (1 - cos(k pi / 8)) = 0.7, 2.6, 5.6, 9
    assert [steps.count(k) for k in range(4)] == [1, 1, 3, 4]
    assert {*sample('--order=margin:0')['step']} == {0}
    assert sample('--order=margin+9')['order'] != sample('--order=margin')['order']
    given = sample('--prompt=ab[[7]]')['tokens']
    for option in ('--cfg_scale=3', '--presence_penalty=9', '--revise=2'):
        assert sample('--prompt=ab[[7]]', option)['tokens'] != given
    table = np.zeros((9, 257), bool)
    table[:, [98, 100]] = True
    np.save('a.npy', table)
    assert {*sample('--allowed=a.npy')['text']} == {*'bd'}


def test_the_checkpoint_says_what_the_name_of_an_order_means(write):
    """fixed and block have the seed and the block of the run; a family that is drawn differs from
    sample to sample."""
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint('c.pt', model, tokenizer='bytes', config={'order': 'block:5@3'})
    positions = [*range(0, 12, 2), *range(1, 12, 2)]
    put('order.json', positions)

    def orders(name):
        _, result = write('--length=12', f'--order={name}', ckpt='c.pt')
        return [sample['order'] for sample in result['samples']], result['order']

    own = sample_order(1, 12, 'block', seed=3, parameter=5)[0].tolist()
    fixed = sample_order(1, 12, 'fixed', seed=3)[0].tolist()
    named = {'kind': 'block', 'parameter': 5, 'seed': 3, 'length': None}
    assert orders('own') == ([own] * 2, named)
    assert orders('block') == ([own] * 2, 'block')
    assert orders('fixed')[0] == [fixed] * 2
    assert orders('order.json')[0] == [positions] * 2
    one, other = orders('margin')[0]
    assert one != other


@pytest.fixture
def shown(monkeypatch):
    """What --watch shows: a list of (tokens, steps, step, logprob)."""
    found = []
    monkeypatch.setattr(Watch, '__call__', lambda self, *what: found.append(what))
    return found


def test_the_first_text_of_each_batch_is_watched(write, shown):
    how = '--length=40', '--order=random', '--n_samples=3', '--batch_size=2'
    _, result = write(*how, '--watch')
    samples = result['samples']
    assert samples[0]['stretches'] == [[0, 32], [16, 40]]
    assert [step for _, _, step, _ in shown] == [*range(40)] * 2
    for i, (tokens, steps, step, logprob) in enumerate(shown):
        sample = samples[2 * (i >= 40)]
        for p, last in enumerate(sample['step']):
            if last <= step:
                now = tokens[p], steps[p], logprob[p]
                assert now == (sample['tokens'][p], last, sample['logprob'][p])
            else:
                assert steps[p] is None


def test_a_first_text_that_is_done_early_is_watched_to_its_end(write, shown):
    put('p.jsonl', {'prompt': 'a[[1]]'}, {'prompt': 'b[[40]]'})
    _, result = write('--prompt=FILE:p.jsonl', '--length=41', '--watch')
    samples = result['samples']
    assert [s['prompt'] for s in samples] == ['a[[1]]'] * 2 + ['b[[40]]'] * 2
    assert [s['text'][0] for s in samples] == [*'aabb']
    assert [(tokens, step) for tokens, _, step, _ in shown] == [(samples[0]['tokens'], 0)]


def test_what_is_written_before_an_interruption_stays(ckpt, monkeypatch):
    n_saved = []

    def interrupted(*args):
        n_saved.append(os.path.exists('o.json') and len(read('o.json')['samples']))
        if len(n_saved) == 3:
            raise KeyboardInterrupt
        return fill.steps(*args)

    options = [f'--ckpt={ckpt}', '--weights=raw', '--length=4', '--n_samples=9', '--batch_size=2']
    monkeypatch.setattr('anyorder.generation.way.steps', interrupted)
    for seconds, there in ((60, [False] * 3), (0, [4, 2, 4])):
        monkeypatch.setattr(command, 'SAVED_EVERY', seconds)
        n_saved.clear()
        with pytest.raises(KeyboardInterrupt):
            command.main(configure(vars(command), [*options, '--out=o.json']))
        assert n_saved == there
        assert len(read('o.json')['samples']) == 4


def test_the_command_scores_what_the_model_says(write, ckpt):
    put('p.jsonl', {'prompt': 'ab[[=cd]]e'}, {'prompt': '[[=abcdefg]]'})
    how = ['--prompt=FILE:p.jsonl', '--order=r2l', '--score', '--watch']
    model = Writer(ckpt).model.requires_grad_(False)
    save_checkpoint('judge.pt', model, EMA(model, 0.9), tokenizer='bytes')
    _, result = write(*how, '--n_samples=1', '--html=o.html', '--metrics=judge.pt')
    assert os.path.getsize('o.html')
    assert (result['order'], result['tokenizer']) == ('r2l', 'bytes')

    # The known tokens are first, and the nats are the model's
    first, second = result['samples']
    nll = model(torch.tensor([[*b'abcde']]), torch.tensor([first['order']]))
    assert [first[key] for key in ('text', 'blanks', 'order')] == ['abcde', 2, [4, 1, 0, 3, 2]]
    assert math.isclose(first['nats'], float(nll[0, 3:].sum()), rel_tol=1e-5)
    assert [second[key] for key in ('prompt', 'blanks')] == ['[[=abcdefg]]', 7]
    assert second['order'] == [*range(6, -1, -1)]
    judged = result['metrics']['judge']
    assert judged['tokens'] == 9
    assert result['metrics']['distinct_1'] == 7 / 9

    # Errors are over prompts, of which each has its samples
    _, twice = write(*how, '--n_samples=2', '--metrics=judge.pt')
    assert twice['metrics']['judge']['tokens'] == 18
    assert twice['metrics']['judge']['stderr'] == pytest.approx(judged['stderr'])


# ---- the program


@pytest.fixture
def grids():
    """(a Writer of grids of 2 x 3 tokens with names a, ab, ..., rows to fill)."""
    kind = {'n_tokens': 5, 'row_length': 6, 'shape': [2, 3]}
    kind['vocabulary'] = ['a', 'ab', 'b', 'ba', 'c']
    save('grids.pt', kind, True, block_size=6, vocab_size=64, n_tokens=5)
    rows = np.array([[0, -1, 2, -1, 4, -1], [-1, -1, -1, 1, 3, -1], [4] * 5 + [-1]])
    return Writer('grids.pt', dtype='bfloat16'), rows


def test_rows_of_tokens_are_written_by_command_and_program(grids, script):
    writer, rows = grids
    writer = Writer('grids.pt')
    asked = rows.repeat(2, 0)
    np.save('rows.npy', rows)
    put('rows.jsonl', *rows.tolist())
    for source, out in (('rows.npy', 'o.json'), ('rows.jsonl', 'o.npy'), ('rows.npy', 'o.jsonl')):
        how = [f'--prompt=FILE:{source}', '--order=margin', '--n_samples=2', f'--out={out}']
        script('sample.py', '--ckpt=grids.pt', *how)
    samples = read('o.json')['samples']
    tokens = [sample['tokens'] for sample in samples]
    assert [sample['prompt'] for sample in samples] == asked.tolist()
    assert np.load('o.npy').tolist() == tokens
    with open('o.jsonl') as f:
        assert [json.loads(line) for line in f] == tokens
    assert (np.where(asked < 0, -1, tokens) == asked).all()

    # The program writes the same rows, in the shape of the prompt
    same = writer.infill(asked, order='margin')
    assert same.tolist() == tokens
    assert same.logprob.tolist() == [-sample['nats'] for sample in samples]
    assert [len(places) for places in writer.infill(rows, top_logprobs=1).top_logprobs] == [6] * 3
    assert writer.infill(rows[0].tolist(), order='margin').tolist() == tokens[0]
    several = writer.infill(rows, n=2, seed=[*range(6)])
    assert several.shape == (2, 3, 6)
    assert several.logprob.shape == (2, 3)
    assert several[1, 0].tolist() == writer.infill(rows[0], seed=3).tolist()
    assert writer.infill(rows[2:], length=6, stop='c', order='l2r').shape == (1, 6)

    # And texts of names, which fill a row
    assert writer.infill('a [[1]] b [[1]] c [[1]]', order='margin').sample['tokens'] == tokens[0]
    assert writer.infill('ab [[..]]', length=4).split()[0] == 'ab'


PROMPTS = ['a[[=bc]]', 'ab[[=d]]e', '[[=f]]']


@pytest.mark.parametrize('how', [{}, dict(order='margin', n_steps=2), dict(order='l2r')])
def test_a_list_is_written_and_scored_as_each_prompt(ckpt, how):
    writer = Writer(ckpt)
    alone = [writer.infill(prompt, seed=7 + r, **how) for r, prompt in enumerate(PROMPTS * 2)]
    for prompts in (PROMPTS, (*PROMPTS,), np.array(PROMPTS)):  # or a column of a table
        assert writer.infill(prompts, seed=7, **how) == alone[:3]
    assert writer.infill(PROMPTS, seed=[7, 8, 9], batch_size=1, **how) == alone[:3]
    twice = [PROMPTS[0], PROMPTS[0], PROMPTS[1]]
    several = writer.infill(twice, n=2, seed=[7, 10, 7, 10, 8, 11], **how)
    assert several == [[alone[0], alone[3]]] * 2 + [[alone[1], alone[4]]]
    assert len(writer.infill('a', n=1)) == 1

    stepwise = how | {'n_steps': how.get('n_steps')}
    scored = writer.infill(PROMPTS, score=True, **how)
    found = writer.logprob(PROMPTS, **stepwise)
    assert found == [text.logprob for text in scored]
    alone = [writer.logprob(prompt, seed=1337 + r, **stepwise) for r, prompt in enumerate(PROMPTS)]
    # in float32 a batch may round otherwise, as torch 2.11's does
    assert found == pytest.approx(alone, rel=1e-6)


def test_a_text_is_a_str_that_knows_more(ckpt):
    writer = Writer(ckpt)
    text = writer.infill('a[[3]]b')
    assert isinstance(text, str)
    back = pickle.loads(pickle.dumps(text))
    assert (back, back.logprob) == (text, sum(text.sample['logprob']))
    assert writer.infill('[[3]]', order=[2, 0, 1]).sample['order'] == [2, 0, 1]
    assert writer.infill('ab[[..]]', stop='c', cfg_scale=1.0).startswith('ab')


@pytest.mark.parametrize(
    'how',
    [
        dict(order='margin', n_steps=2),
        dict(order='l2r', length=20, stop='ba', context=2),
        dict(order='random', unmask='lossless:3'),
    ],
)
def test_a_stream_shows_every_pass_and_ends_with_what_infill_gives(grids, how, monkeypatch):
    writer, _ = grids
    monkeypatch.delitem(writer.checkpoint.set, 'row_length')
    *shown, last = writer.stream('a [[1]] b [[..]] c', **how)
    text = writer.infill('a [[1]] b [[..]] c', **how)
    assert (last, last.sample, last.logprob) == (text, text.sample, text.logprob)
    written = text.sample['step'][:-1]  # what is given behind it may move up to it
    for step, seen in enumerate(shown):
        words = [word if s <= step else '·' for word, s in zip(text.split(), written)]
        assert seen.split()[: len(written)] == words
    assert len(shown) == text.sample['passes']


def test_no_answer_depends_on_others(grids):
    """Two streams go on by turns, and in bfloat16 nothing depends on what was asked before."""
    writer, _ = grids
    before = Writer('grids.pt', dtype='bfloat16').logprob('a [[=b c]]')
    for one, other in zip(writer.stream('a [[..]]'), writer.stream('b [[..]]', seed=9)):
        assert not torch.is_autocast_enabled('cpu')
    assert one == writer.infill('a [[..]]')
    assert other == writer.infill('b [[..]]', seed=9)
    assert writer.logprob('a [[=b c]]') == before != Writer('grids.pt').logprob('a [[=b c]]')


def test_of_equal_scores_the_first_in_a_random_order_is_the_best(ckpt):
    writer = Writer(ckpt)
    torch.nn.init.zeros_(writer.model.lm_head.weight)
    chosen = writer.infill('a[[8]]b', order='margin').sample['order']
    assert chosen == writer.infill('a[[8]]b', order='random').sample['order'] != sorted(chosen)
    in_blocks = writer.infill('a[[8]]b', order='margin/3')  # from left to right
    assert in_blocks.sample['order'] == [0, 9, *range(1, 9)]


@pytest.mark.parametrize('network', NETWORKS)
def test_a_logprob_is_the_score_from_left_to_right(letters, network):
    writer = letters(**NETWORKS[network])
    score = writer.logprob('ab[[=cd]]e[[=f]]', n_steps=8)
    assert writer.logprob('ab[[=cd]]e[[=f]]') == pytest.approx(score, rel=1e-5)


def test_logprob_of_a_part_given_another(letters):
    """What is in neither is not read, and the probabilities of several orders are averaged."""
    writer = letters()

    def nats(*order, n=2):
        """Nats of the last n visits."""
        return -float(writer.model(idx, torch.tensor([order]))[0, -n:].sum())

    idx = torch.tensor([[0, 9, 9, 1, 2, 3]])
    prompt = 'a[[2]][[=bc]]d'
    assert writer.logprob(prompt) == pytest.approx(nats(0, 5, 3, 4))
    assert writer.logprob('[[=a]]') == pytest.approx(nats(0, n=1))
    values = [writer.logprob(prompt, n_orders=1, seed=seed) for seed in range(20)]
    every = [nats(*b, *a) for b in ((0, 5), (5, 0)) for a in ((3, 4), (4, 3))]
    assert sorted({*values}) == pytest.approx(sorted(every), rel=1e-5)
    assert writer.logprob([prompt] * 3, n_orders=1, seed=7) == values[7:10]
    mean = writer.logprob(prompt, n_orders=400)
    assert math.isclose(mean, -float(ensemble_nll(torch.tensor(every))), abs_tol=0.1)


@pytest.mark.parametrize(
    'how',
    [
        dict(order='entropy/2', n_steps=2, temperature=0.6, top_p=0.8),
        dict(order='margin', presence_penalty=1.5, min_p=0.2),
        dict(order='margin', cfg_scale=0.5),
        dict(order='l2r', n_steps=2, top_k=2),
    ],
    ids=str,
)
def test_a_way_of_writing_gives_all_texts_together_probability_one(write, how):
    """The command and the program say the same."""
    kind = {'n_tokens': 3, 'vocabulary': ['a', 'b', 'c']}
    save('abc.pt', kind, block_size=6, vocab_size=16, n_tokens=3)
    prompts = [f'[[={x} {y}]] a [[={z}]] b' for x, y, z in itertools.product('abc', repeat=3)]
    found = Writer('abc.pt').infill(prompts, score=True, **how)
    p = np.exp([text.logprob for text in found])
    assert p.sum() == pytest.approx(1, abs=1e-5)

    put('p.jsonl', *({'prompt': prompt} for prompt in prompts))
    options = ['--prompt=FILE:p.jsonl', '--score', '--n_samples=1', '--html=o.html']
    said, result = write(*options, *options_of(how), ckpt='abc.pt')
    with open('o.json') as f, open('o.html') as page:
        assert 'Infinity' not in f.read() + page.read()
    samples = result['samples']
    of_command = [0 if sample['nats'] is None else math.exp(-sample['nats']) for sample in samples]
    assert of_command == pytest.approx(p, abs=1e-5)
    n_cut = sum(sample['logprob'].count(None) for sample in samples)
    assert bool(n_cut) == bool({'top_p', 'top_k', 'min_p'} & {*how})
    assert re.search(f'cut off +{n_cut} tokens', said)
    assert ('blocks of 2' in said) == ('/2' in how['order'])
    assert ('-log p = inf' in said) == (0 in of_command)


def test_the_average_weights_are_used_where_there_are_any(ckpt):
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    ema = EMA(model, 0.9)
    for p in ema.model.parameters():
        p.data.mul_(0.5)
    save_checkpoint('both.pt', model, ema, tokenizer='bytes')
    raw = Writer('both.pt', 'raw').logprob('[[=ab]]')
    assert raw == Writer(ckpt).logprob('[[=ab]]')
    assert Writer('both.pt').logprob('[[=ab]]') != raw
    assert Writer('both.pt', 'ema').logprob('[[=ab]]') == Writer('both.pt').logprob('[[=ab]]')


def test_a_way_and_a_page_are_the_options_in_two_nouns(ckpt):
    writer = Writer(ckpt)
    of_way = dict(order='margin', n_steps=5, temperature=0.5)
    way = Way.of(writer.checkpoint.run, **of_way)
    page = Page(length=20, stop='\n')
    text = writer.infill('ab[[..]]', way=way, page=page, seed=2)
    assert text == writer.infill('ab[[..]]', seed=2, length=20, stop='\n', **of_way)
    assert text == [*writer.stream('ab[[..]]', way, page, seed=2)][-1]
    assert writer.logprob('ab[[=cd]]', way=way) == writer.logprob('ab[[=cd]]', **of_way)
    for wrong in (dict(way=way, order='l2r'), dict(page=page, length=9)):
        with one_line('is a part of'):
            writer.infill('ab[[..]]', **wrong)
    with one_line('a part of way'):
        writer.logprob('ab[[=cd]]', order='random', way=way)


# ---- wrong input

HUGE = 99999999999999999999
BAD = [  # of command and program: prompt, options, a word
    ('a', 'temperature=-1', 'temperature'),
    ('a', 'top_logprobs=-1', 'top_logprobs'),
    ('a', 'top_logprobs=258', 'top_logprobs'),
    ('a', 'cfg_scale=-1', 'cfg_scale'),
    ('', 'cfg_scale=1', 'gives nothing'),
    ('a', 'cfg_scale=1, length=33', 'at most 32'),
    ('a[[..]]b', "cfg_scale=1, stop='c'", 'leave out stop'),
    ('a', 'cfg_scale=1, revise=1', 'revise'),
    ('a', "stop='b', revise=1", 'leave out stop'),
    ('a[[=b]]', "stop='c', score=True", 'leave out stop'),
    ('a', 'stop=[]', 'list of texts'),
    ('a', "stop=['a', '']", 'leave out'),
    ('a', 'n_steps=0', 'n_steps'),
    ('a', 'length=-1', 'length'),
    ('a', 'length=HUGE', 'below'),
    ('a', 'context=32', '1 to 31'),
    ('a', 'context=-1', '1 to 31'),
    ('a', "order='up'", 'top_prob'),
    ('a', "order=f'block:{HUGE}'", 'below'),
    ('a', "order='margin:abc'", 'margin:abc'),
    ('a', "order='margins'", "nearest is 'margin'"),
    ('a', "order='margin/0'", 'from 1'),
    ('a[[3]]', "order='margin/5'", '4 positions'),
    ('a', "order='margin/33', length=50", '32 positions'),
    ('a', "unmask=f'lossless:{HUGE}'", 'below'),
    ('a', "unmask='lossless', order='margin'", 'order that is given'),
    ('a[[x]]', '', 'a blank is'),
    ('a[[0]]', '', 'a blank is'),
    ('a[[=]]', '', 'a blank is'),
    ('a[[3', '', 'a blank is'),
    ('[[33]]', '', '33 tokens'),
    ('[[9999999999]]', '', 'does not fit'),
    ('x' * 33, '', 'does not fit'),
    ('ab', 'length=2', 'no blank'),
    ('a[[3]]', 'score=True', 'score'),
    ('a\udcff', '', 'UTF-8'),
]


def call(writer, what):
    """What a call of the writer returns, which is given as text."""
    names = {name: getattr(writer, name) for name in ('infill', 'stream', 'logprob')}
    return eval(what, dict(generate=generate, np=np, **names))


def refused(*options):
    """What the command says as it ends, one line, of these options."""
    with pytest.raises(SystemExit) as e, one_line_errors():
        command.main(configure(vars(command), [*options]))
    assert '\n' not in e.value.code
    assert not os.path.exists('o.json')
    return e.value.code


@pytest.mark.parametrize('prompt, options, word', BAD)
def test_wrong_input_is_said_before_the_weights_are_read(ckpt, prompt, options, word):
    writer = Writer(ckpt)
    options = eval(f'dict({options})')
    with one_line(word):
        writer.infill(prompt, **options)
    assert 'model' not in vars(writer)
    how = [f'--ckpt={ckpt}', '--weights=raw', f'--prompt={prompt}', *options_of(options)]
    assert word in refused(*how, '--out=o.json')


PUBLISHED = f'{REFERENCE}/adaln_small.ckpt.pt'


@pytest.mark.parametrize(
    'options, word',
    [
        ('--n_samples=0', 'n_samples'),
        ('--batch_size=0', 'batch_size'),
        ('--stop=["a", "b"', 'JSON list'),
        ('--order=margin --threshold=.9', 'margin:0.9'),
        ('--block_length=32', 'margin/32'),
        ('--prompt=FILE:', 'FILE: must name'),
        ('--prompt=FILE:no.jsonl', 'no.jsonl'),
        ('--prompt=FILE:no.npy', '.jsonl or .npy'),
        ('--prompt=FILE:pickled.npy', 'rows of integers'),
        ('--prompt=FILE:table.npy --out=table.npy', 'would overwrite'),
        (f'--prompt=FILE:{os.devnull}', 'holds no prompt'),
        ('--prompt=FILE:p.jsonl --order=order.json', 'from 0 to 3, once; got 3 from 0 to 2'),
        ('--allowed=pickled.npy', 'pickled.npy'),
        ('--allowed=several.npz', 'several.npz'),
        ('--allowed=table.npy', r'(positions, 257), got float64 (9, 257)'),
        ('--allowed=none.npy', 'none.npy'),
        ('--html=x.txt', 'must end in'),
        ('--html=no/x.html', '--html=no/x.html'),
        ('--out=no/where.json', '--out=no/where.json'),
        (f'--out={PUBLISHED} --metrics={PUBLISHED}', 'would overwrite'),
        ('--metrics=x.pt', 'x.pt'),
        ('--metrics=gpt2-large', 'give its path'),
        ('--tempratur=1', "'temperature'"),
        ('--device=cuda:99', 'device'),
        ('--device=meta', 'device'),
        ('--ckpt=none.pt', 'none.pt'),
        ('--weights=ema', 'EMA'),
        (f'--ckpt={PUBLISHED}', 'another tokenizer'),
    ],
)
def test_wrong_options_of_the_command_are_one_line(ckpt, options, word):
    np.save('table.npy', np.ones((9, 257)))
    np.save('pickled.npy', np.array([print]), allow_pickle=True)
    np.savez('several.npz', np.ones((32, 257), bool))
    put('p.jsonl', {'prompt': '[[3]]'}, {'prompt': '[[4]]'})
    put('order.json', [0, 2, 1])
    options = options.split(' --')
    options[1:] = ['--' + option for option in options[1:]]
    assert word in refused(f'--ckpt={ckpt}', '--weights=raw', '--out=o.json', *options)


@pytest.mark.parametrize(
    'what, said',
    [
        ("infill('a', n=0)", 'at least 1'),
        ("infill('a', batch_size=0)", 'at least 1'),
        ("infill('[[9]]', order=[0, 2])", 'every position'),
        ("infill('a', top_logprobs=True)", 'top_logprobs'),
        ("infill('a', stop=['4', 5])", 'list of texts'),
        ("infill('a', stop=np.array(['4']))", 'list of texts'),
        ("infill('a', stop=None)", 'list of texts'),
        ("infill('xb[[3]]', pattern='ab.*')", 'pattern'),
        ("infill('[[=xb]]', pattern='ab', score=True)", 'pattern'),
        ('infill(5)', 'no blank'),
        ('infill([])', 'a list of prompts'),
        ("infill(['a', 1])", r"\['a', 1\]"),
        ("infill(['a', '[[0]]'])", 'prompt 2 of 2'),
        ("infill(['a', ''], cfg_scale=1)", 'prompt 2 of 2 gives nothing'),
        ("infill([''], cfg_scale=1)", 'the prompt gives nothing'),
        ("infill(['a', 'b'], seed=[1])", '2 texts, got 1'),
        ("infill('a', allowed=np.ones((32, 256), bool))", r'257\), got bool \(32, 256\)'),
        ("infill('a', allowed=np.ones((9, 257), bool))", 'position 9, a blank'),
        ("[*stream(['a'])]", 'one text'),
        ("[*stream('a', n=1)]", 'one text'),
        ("logprob('abc')", r'\[\[=text\]\]'),
        ("logprob(['[[=a]]', 'b'])", r'\[\[=text\]\]'),
        ('logprob([1])', r'\[\[=text\]\]'),
        ("logprob('[[=a]][[?]]b')", 'known lengths'),
        ("logprob('[[=a]][[2/b+/]]')", 'known lengths'),
        ("logprob('[[=a]]', n=1)", 'n and score'),
        ("logprob(['[[=a]]'], score=1)", 'n and score'),
        ("logprob('[[=a]][[2]]', context=0)", 'every blank'),
        ("logprob('[[=a]][[2]]', order='margin')", 'every blank'),
        ("logprob('[[=' + 'a' * 33 + ']]')", '33 tokens'),
        ("logprob('[[=a]]', n_orders=-1)", 'at least 0'),
        ("logprob('[[=a]]', n_orders=2, top_k=3)", 'orders of its own'),
        ("logprob('[[=a]]', order='margin+0.5')", 'noise=0.5'),
        ("logprob('[[=a]]', order='margin', temperature=0)", 'above 0'),
    ],
)
def test_wrong_input_of_a_program_is_one_line(ckpt, what, said):
    writer = Writer(ckpt)
    with one_line(said):
        call(writer, what)
    assert 'model' not in vars(writer)


@pytest.mark.parametrize(
    'row, said',
    [
        ([0, 1, 2], '6 tokens, got a row of 3'),
        ('ab', '6 tokens, got a row of 9'),
        ('a [[4-5]] b', '6 tokens, got a row of 9'),
        ([0] * 6, 'no blank'),
        ([0, 5, -1, 0, 0, 0], 'from 0 to 4, .* got 5$'),
        ([0, -2, 0, 0, 0, 0], 'for a blank'),
        ([0.5, -1, 0, 0, 0, 0], 'integers from 0 to 4'),
        ([np.nan, -1, 0, 0, 0, 0], 'integers from 0 to 4'),
        ([{}, -1], 'integers from 0 to 4'),
        ([[[0]]], 'integers from 0 to 4'),
        ([-1] * 10, 'a larger length'),
        ([[]], 'got nothing'),
        ([], 'a list of prompts'),
    ],
)
def test_wrong_rows_are_one_line(grids, row, said):
    writer, _ = grids
    with one_line(said):
        writer.infill(row if isinstance(row, str) else np.array(row), length=9)


@pytest.mark.parametrize(
    'what, said',
    [
        ("infill('a', allow=1)", "infill.* 'allow'; the nearest is 'allowed'; help"),
        ("infill('a', policy='margin')", "'policy'"),
        ("next(stream('a', top=1))", 'the nearest'),
        ("logprob('[[=a]]', n_order=2)", "logprob.* 'n_order'; .* 'n_orders'"),
        ('generate(None, None, None, 0, n_step=1)', "generate.* 'n_step'; .* 'n_steps'"),
    ],
)
def test_of_an_unknown_option_the_nearest_is_named(ckpt, what, said):
    with pytest.raises(TypeError, match=said) as e:
        call(Writer(ckpt), what)
    assert '\n' not in str(e.value)


def test_a_model_that_is_not_there_is_one_line(ckpt):
    for args, said in (
        (['none.pt'], 'none.pt'),
        ([ckpt, None, 'meta'], 'device'),
        ([ckpt, 'emma'], 'emma'),
    ):
        with one_line(said):
            Writer(*args)
    with one_line('no EMA'):
        Writer(ckpt, 'ema').logprob('[[=a]]')
    save('digits.pt', {'tokenizer': 'sudoku4', 'n_tokens': 4}, vocab_size=64, n_tokens=4)
    for wrong in ('<|endoftext|>', '5'):  # which are no tokens of it
        with one_line('sudoku4 has the tokens'):
            Writer('digits.pt').infill('1', stop=wrong)


# ---- the terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def frame(self):
        """What was written since the last call, with its escapes."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def test_nothing_written_controls_a_terminal():
    assert visible('a\x1b[2J\tb\n\0\r\x9b\u0439') == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'


def plain(text):
    return re.sub(r'\x1b\[[0-9;]*[mFJ]', '', text).splitlines()


@pytest.fixture
def watched(monkeypatch):
    """watched(tokenizer, text, frames, columns=..., TERM=...) shows a text by frames, each of which
    is the steps of its tokens, a second apart; returns the frames, with their escapes."""
    clock = [100.0]
    monkeypatch.setattr('time.perf_counter', lambda: clock[0])

    def show(tokenizer, tokens, frames, seconds=1.0, columns=0, logprob=None, **environ):
        for name in ('TERM', 'COLORTERM', 'NO_COLOR'):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, str(value))
        out = Terminal()
        watch = Watch(tokenizer, out, columns)
        found = []
        for steps in frames:
            clock[0] += seconds
            now = max(step for step in steps if step is not None)
            watch(tokens[: len(steps)], steps, now, logprob or [0.0] * len(steps))
            found.append(out.frame())
        return found

    return show


TEXT = [*b'ab\ncd' + b'x' * 120]


def test_a_frame_stands_in_place_of_the_last_one(watched):
    """In 80 columns; and what has nothing new, or is another text, is shown as new."""
    frames = [-1, 0, -1, None, 1] + [None] * 120, [-1, 0, -1, 2, 1] + [2] * 120, [-1, 0, -1, 0]
    first, second, third = watched(Bytes(), TEXT, frames)
    assert plain(first) == ['ab↵', '·d' + '·' * 77, '·' * 43, 'step 2 · 2 of 123 tokens']
    assert re.findall(r'\x1b\[7m(.*?)\x1b\[0m', first) == ['b', 'd']
    assert first.startswith('\x1b[J')
    assert second.startswith('\x1b[4F\x1b[J')  # back over the four lines
    assert re.findall(r'\x1b\[7m(.*?)\x1b\[0m', second)[:2] == ['c', 'x' * 77]
    assert 'step 3 · 123 of 123 tokens' in second
    assert re.findall(r'\x1b\[7m(.*?)\x1b\[0m', third) == ['b', 'c']


def test_what_is_no_terminal_stays_silent():
    silent = io.StringIO()
    Watch(Bytes(), silent)(TEXT, [0] * 125, 0, [0.0] * 125)
    assert silent.getvalue() == ''


@pytest.mark.parametrize(
    'environ', [dict(TERM='xterm-256color'), dict(TERM='x', COLORTERM='24bit')]
)
def test_tokens_are_shaded_by_confidence_where_the_terminal_has_colours(watched, environ):
    logprob = [0.0, -9.0, math.log(0.3), math.log(0.5), math.log(0.7), 0.0, 0.0]
    frames = [-1, 0, 1, 2, 3, 4, None], [-1, 0, 1, 2, 3, 4, 5]
    _, last = watched(Bytes(), [*b'abcdefg'], frames, logprob=logprob, **environ)
    colours = re.findall(r'48;5;(\d+)m(\w+)\x1b\[0m', last)
    assert colours == [*zip(['189', '153', '117', '75', '33', '214'], 'bcdefg')]
    assert not has_colours(environ | {'NO_COLOR': '1'})
    assert not has_colours({'TERM': 'dumb'})


def test_a_fast_model_shows_20_frames_a_second_and_the_end(watched):
    frames = [[*range(step + 1)] + [None] * (39 - step) for step in range(40)]
    shown = watched(Bytes(), TEXT[5:], frames, seconds=0.02)
    assert [step for step, frame in enumerate(shown) if frame] == [*range(0, 39, 3), 39]


def test_a_text_that_is_too_high_is_shown_from_what_is_new(watched):
    text = [97 + i // 20 for i in range(200)]  # ten lines; three fit
    frames = []
    for step, place in enumerate((0, 199, 100, 90, 0)):
        frames.append([-1] * 200)
        frames[-1][place] = step
    frames.append([-1] * 79 + [9])  # another text, of four lines
    frames.append([-1] * 40)  # with nothing new
    *shown, last = watched(Bytes(), text, frames, COLUMNS=21, LINES=6)
    tops = [plain(frame)[0] for frame in shown]
    assert tops == ['a' * 20, 'h' * 20, 'f' * 20, 'e' * 20, 'a' * 20, 'b' * 20]
    assert all('\x1b[7m' in frame for frame in shown)
    assert plain(shown[4]) == ['a' * 20, 'b' * 20, 'c' * 20, 'step 5 · 1 of 1 toke']
    assert [len(line) for line in plain(last)[:-1]] == [20, 20]


def test_a_grid_has_a_line_for_each_row_and_cells_of_equal_width(watched):
    cells = Symbols('cells', ['C4', 'F#3', 'a', ''], ' ')
    frames = [[-1, -1, -1, -1, 0, None]]
    (frame,) = watched(cells, [0, 1, 2, 3, 1, 0], frames, columns=3, COLUMNS=40)
    assert plain(frame)[:-1] == ['  C4 F#3   a', '     F#3   ·']
    assert '\x1b[7m F#3\x1b[0m' in frame
