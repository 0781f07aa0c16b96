"""Text in, text out: long texts, where they end, what may stand where, what was likeliest, what
sample.py and a program say of it."""

import itertools
import json
import os
import re
from functools import partial
from string import ascii_lowercase as LETTERS

import numpy as np
import pytest
import torch
from conftest import REFERENCE, make_model, one_line, options_in, options_of_lines

import sample as command
from anyorder.checkpoint import save_checkpoint
from anyorder.extras.pictures.watch import Watch
from anyorder.generation import Canvas, fill
from anyorder.generation.scroll import end_of
from anyorder.generation.way import Page, Way
from anyorder.likelihood.conditional import conditional_logprob
from anyorder.machine.files import read_json
from anyorder.machine.terminal import one_line_errors
from anyorder.seeds import derive_seed
from anyorder.tokens.shown import visible
from anyorder.tokens.tokenizer import Bytes, Symbols
from anyorder.writer import PAGE, Writer
from configurator import configure
from model import EMA


def save(name, n_tokens, block_size=8, tokenizer='own', eos=None, **kind):
    """Save a checkpoint, with an average, of a small model of sets of this kind."""
    model = make_model(block_size=block_size, vocab_size=64, n_tokens=n_tokens).float()
    kind |= {'tokenizer': tokenizer, 'eos': eos, 'given': False, 'n_tokens': n_tokens}
    save_checkpoint(name, model, EMA(model, 0.9), tokenizer=tokenizer, set=kind)


def letters(block_size=8, is_sure=False):
    """A Writer of so many of 26 letters, one behind the other."""
    save('letters.pt', 26, block_size, 'sudoku4', vocabulary=[*LETTERS])
    writer = Writer('letters.pt')
    for p in writer.model.requires_grad_(False).parameters():
        p.mul_(not is_sure)  # if it is, every letter is as likely: at temperature 0 it is an a
    return writer


def put(path, *values):
    """Write values in JSON, a line each."""
    with open(path, 'w') as f:
        f.write('\n'.join(map(json.dumps, values)))


def row_of(prompt):
    """The tokens of a prompt of letters, -1 in its blanks [[n]]."""
    shown = re.sub(r'\[\[(\d+)]]', lambda found: '?' * int(found[1]), prompt)
    return [LETTERS.find(letter) for letter in shown]


close = partial(np.testing.assert_allclose, atol=1e-4)


def story(sample):
    """[[position, step, nats, nats of the two likeliest]] of what was written, in turn."""
    found = []
    for p in sample['order']:
        if sample['step'][p] >= 0:
            nats = [one['logprob'] for one in sample['top_logprobs'][p]['top']]
            found.append([p, sample['step'][p], sample['logprob'][p], *nats])
    return found


# ---- long texts: stretch by stretch, and section by section

# blocks begin anew in each stretch
WAYS = options_of_lines("""
order=l2r
order=margin/4 top_k=3
order=random unmask=lossless:3
order=r2l
order=entropy n_steps=3 revise=1
""")
WAYS[3]['allowed'] = torch.rand(20, 26, generator=torch.manual_seed(2)) < 0.3
CONTEXTS = [
    (0, [[0, 8], [4, 12], [8, 16], [12, 20]]),
    (3, [[0, 8], [5, 13], [10, 18], [15, 20]]),
    (7, [[0, 8], *([n - 7, n + 1] for n in range(8, 20))]),
]


@pytest.mark.parametrize('how, given', [*zip(WAYS, itertools.cycle(CONTEXTS))])
def test_a_long_text_is_written_stretch_by_stretch(how, given):
    """Each is a row that fits, and knows its context, and nothing before; rows slide apart, and
    each is a function of its seed."""
    writer = letters()
    context, stretches = given
    prompts = ['ab[[7]]cd[[7]]e[[1]]', '[[20]]', 'ab[[2]]']
    how = how | dict(length=20, top_logprobs=2)
    found = writer.infill(prompts, context=context, seed=5, **how)
    assert found[1].sample['stretches'] == stretches
    for seed, (prompt, text) in enumerate(zip(prompts, found), 5):
        row = row_of(prompt)
        whole = []
        n_steps = 0
        for start, end in text.sample.get('stretches', [[0, 8]]):
            own = derive_seed(seed, 'stretch', start) if start else seed
            if 'allowed' in how:
                how['allowed'] = WAYS[3]['allowed'][start:end]
            part = writer.infill(row[start:end], seed=own, **how).samples[0]
            assert 'stretches' not in part
            whole += [[start + p, n_steps + step, *nats] for p, step, *nats in story(part)]
            n_steps += 1 + max(part['step'])
            row[start:end] = part['tokens']
        assert text.sample['tokens'] == row
        close(story(text.sample), whole)


@pytest.mark.parametrize('how', [*WAYS[:3], dict(order='margin/4')])
def test_open_blanks_are_written_section_by_section(how):
    """Each ends at its stop or at its share; a row beside it has fewer parts."""
    writer = letters()
    how = how | dict(length=25)
    free = writer.infill('ab[[9]]', seed=5, **how)
    how['stop'] = [free[5:7], 'nowhere']
    _, text = writer.infill(['x[[9]]', 'ab[[..]]cd[[..]]fg[[1]]h'], seed=[4, 5], **how)
    row = []
    nats = []
    seed = 5
    for piece in ('ab[[9]]', 'cd[[8]]', 'fg[[1]]h'):
        row += row_of(piece)
        if 'f' in piece:
            how['stop'] = ''
        part = writer.infill(row, seed=seed, **how).samples[0]
        row = part['tokens']
        nats += part['logprob'][len(nats) :]
        seed = derive_seed(seed, 'part')
    assert text.sample['tokens'] == row
    close(text.sample['logprob'], nats)


# ---- where a text ends


@pytest.mark.parametrize('how', WAYS[:4])
def test_a_text_ends_with_its_first_stop(how):
    """What was known by then stays as it is."""
    writer = letters()
    how = how | dict(length=20, seed=5)
    prompts = ['ab[[18]]', '[[..]]', '[[9]]']
    whole = writer.infill(prompts, **how)
    stops = [whole[1][13:15], whole[1][7:9], whole[0][:2]]  # over a seam; as in a prompt
    found = writer.infill(prompts, stop=stops, **how)
    for blank, text, short in zip((2, 0, 0), whole, found):
        first = re.compile('|'.join(stops)).search(text, blank)
        n = first.end() if first else 20
        assert (short, short.sample['stopped']) == (text[:n], bool(first))
        assert short.sample['order'] == [p for p in text.sample['order'] if p < n]
        for key in ('step', 'logprob'):
            close(short.sample[key], text.sample[key][:n])


def test_a_row_that_has_stopped_may_stay_beside_others(monkeypatch):
    """As on a GPU, where other rows would be other graphs."""
    texts = []
    for is_exact in (True, False):
        monkeypatch.setattr(Canvas, 'is_exact', is_exact)
        how = dict(order='random', n_steps=3, stop=[*LETTERS[:7]], seed=2)
        texts.append(letters().infill(['ab[[6]]', '[[8]]', '[[6]]', '[[5]]b', '[[8]]'], **how))
    assert texts[0] == texts[1]


TWO_OPEN = '[[2]]bc[[..]]d[[..]][[3]]e'


@pytest.mark.parametrize(
    'prompt, length, stop, text, stopped',
    [
        (TWO_OPEN, 18, 'a', 'aabcadaaaae', True),
        (TWO_OPEN, 18, 'abc', 'aabcaaaaadaaaaaaae', False),  # not beyond the open blank
        (TWO_OPEN, 18, 'ca', 'aabcaaaaadaaaaaaae', False),
        ('bc[[..]]d[[..]]', 4, 'a', 'bcad', False),  # one of them has no room
        ('bcbc[[1]]bc[[7]]', 14, 'bc', 'bcbcabc', True),  # from the first blank on
        ('[[1]]bcdefgh[[1]]ijk[[8]]', 20, 'hai', 'abcdefghai', True),  # known over a seam
    ],
)
def test_where_a_stop_is_looked_for(prompt, length, stop, text, stopped):
    """What stands behind it costs no pass."""
    writer = letters(is_sure=True)
    *seen, last = writer.stream(
        prompt, order='l2r', temperature=0, length=length, stop=stop, context=1
    )
    assert (last, last.sample['stopped']) == (text, stopped)
    assert [step for step in last.sample['step'] if step >= 0] == [*range(len(seen))]


def test_a_stop_is_whole_before_it_is_found():
    names = Symbols('own', [str(i) for i in range(20)], ' ')
    for tokenizer, tokens, stops, n in (
        (Bytes(), [97, 195, 169, 98], ['é'], 3),
        (Bytes(), [97, 195], ['é'], None),
        (Bytes(), [97, 256, 98, 256], ['<|endoftext|>'], 2),
        (Bytes(), [97, 98, 99], ['c', 'ab', 'x'], 2),
        (names, [11, 12], ['1'], None),  # a name stands alone
        (names, [11, 1, 12], ['1'], 2),
    ):
        assert end_of(tokens, stops, tokenizer) == n


def test_a_stop_is_a_token_however_it_is_written():
    save('five.pt', 5, 30, eos=4)
    writer = Writer('five.pt')
    texts = writer.infill('', n=4, order='l2r', stop='4')
    for stop in (' 4', '<|endoftext|>'):
        assert writer.infill('', n=4, order='l2r', stop=stop) == texts
    for text in texts:
        assert re.fullmatch('[^4]*4', text)


# ---- what may stand where


def test_rows_and_positions_are_those_of_the_text_as_it_is_then():
    def allowed(rows, positions):
        return torch.arange(26) == (10 * rows + positions).unsqueeze(1) % 26

    infill = letters().infill
    prompts = ['[[..]]', 'ab[[..]]cd[[..]]', '[[20]]']
    how = dict(length=20, stop=['d', 'n'], order='l2r', batch_size=2)
    found = infill(prompts, allowed=allowed, **how)
    assert found == ['abcd', 'abmncdqrstuvwx', 'uvwxyzabcd']
    assert not any(text.logprob for text in found)
    only_a = np.arange(26) == np.zeros((8, 1))
    only_a[[0, 4]] = False  # known tokens are not asked about, nor what stands behind a stop
    assert infill('b[[..]]', order='l2r', stop='aaa', allowed=only_a) == 'baaa'
    with one_line('scored is not allowed at position 2 of row 0'):
        infill('b[[=ab]]', score=True, allowed=only_a)
    with one_line('no token is allowed at position 4 of row 0'):
        infill('b[[..]]', allowed=only_a)


# ---- what was likeliest

LIKELY = options_of_lines("""
order=r2l schedule=cosine n_steps=3 temperature=0.6 top_k=3
order=random unmask=binomial n_steps=3 temperature=1.7 top_p=0.6
order=margin/3 unmask=binomial n_steps=4 temperature=0.7 min_p=0.2 presence_penalty=1.5
order=random unmask=lossless:4 temperature=0 top_k=2
order=entropy temperature=0.6 top_k=3
order=top_prob/4:0.3 temperature=1.7 top_p=0.6
order=klass:0.2 temperature=0.7 min_p=0.2 presence_penalty=1.5
order=l2r n_steps=2 temperature=0 top_k=2
order=eb:2.0 temperature=0.6 top_k=3
""")


@pytest.mark.parametrize('how', LIKELY)
def test_a_token_is_as_likely_as_a_text_with_it_scores_there(how):
    """All tokens that the law keeps, at temperature 0 that of 1."""
    writer = letters()
    text = writer.infill('[[4]]', top_logprobs=26, **how)
    assert text == writer.infill('[[4]]', **how)
    how = how | {'temperature': how['temperature'] or 1.0}
    for p, place in enumerate(text.top_logprobs):
        nats = [one['logprob'] for one in place['top']]
        others = [f'[[={text[:p]}{one["text"]}{text[p + 1 :]}]]' for one in place['top']]
        scored = writer.infill(others, score=True, seed=[1337] * len(others), **how)
        close(nats, [other.sample['logprob'][p] for other in scored])
        assert nats == sorted(nats, reverse=True)
        assert {key: place[key] for key in ('token', 'text', 'logprob')} in place['top']
        assert place['text'] == text[p]


# ---- the command


@pytest.fixture
def write(script, ckpt):
    """Run sample.py with these options. Return what it said, and the result that it wrote."""

    def run(*options):
        said = script('sample.py', f'--ckpt={ckpt}', '--weights=raw', '--out=o.json', *options)
        return said.stdout, read_json('o.json')

    return run


AS_TYPED = [
    r'order=l2r length=50 stop=["\n","\"a","3"] context=8 top_p=0.9 seed=3',
    'order=random unmask=lossless:4 length=12 temperature=0.5 top_logprobs=2',
    'order=margin/4:0.1+0.5 length=12 cfg_scale=1.5 presence_penalty=2.0 min_p=0.01',
    'schedule=cosine n_steps=4 length=12 revise=2 allowed=a.npy',
]


def typed(options):
    return [f'--{option}' for option in options.split()]


@pytest.mark.parametrize('how', AS_TYPED)
def test_a_program_writes_what_the_command_writes(ckpt, write, how):
    """The options are two nouns, too."""
    allowed = np.isin(range(257), [97, 98, 99, 100]) & np.ones((12, 1), bool)
    np.save('a.npy', allowed)
    said, result = write('--prompt=ab[[..]]c', '--n_samples=3', '--batch_size=2', *typed(how))
    of_way = options_in(how)
    seed = of_way.pop('seed', 1337)
    of_page = {name: of_way.pop(name) for name in PAGE if name in of_way}
    if 'allowed' in of_page:
        of_page['allowed'] = allowed
    writer = Writer(ckpt)
    way = Way.of(writer.checkpoint.run, **{'n_steps': 32} | of_way)
    texts = writer.infill('ab[[..]]c', n=3, way=way, page=Page(**of_page), seed=seed, batch_size=2)
    assert result['order'] == of_way.get('order', 'random')
    for r, (text, sample) in enumerate(zip(texts, result['samples'], strict=True)):
        assert (text, text.logprob) == (sample['text'], -sample['nats'])
        assert visible(text) in said
        assert sample == {'prompt': 'ab[[..]]c', 'seed': seed + r} | text.sample
        for place in filter(None, sample.get('top_logprobs', ())):
            assert f'{place["top"][1]["logprob"]:.3f}' in said
    rate = sum(s['blanks'] for s in result['samples']) / sum(s['passes'] for s in result['samples'])
    assert re.search(
        f'iteration 7.*length +{of_page["length"]}.*{rate:.1f} tokens a', said, re.DOTALL
    )


def test_the_first_text_of_each_batch_is_watched(write, monkeypatch):
    """To its end, if it is done early."""
    shown = []
    monkeypatch.setattr(Watch, '__call__', lambda self, *text: shown.append(text))
    put('p.jsonl', *({'prompt': prompt} for prompt in ('a[[1]]', 'b[[39]]', '[[40]]')))
    how = '--length=40', '--order=random', '--n_samples=1', '--batch_size=2'
    _, result = write('--prompt=FILE:p.jsonl', *how, '--watch')
    first, _, last = result['samples']
    assert [max(steps) for _, steps, _ in shown] == [0, *range(40)]
    for text, sample in ((shown[0], first), (shown[-1], last)):
        assert [*text] == [sample[key] for key in ('tokens', 'step', 'logprob')]


def test_what_is_written_before_an_interruption_stays(ckpt, monkeypatch):
    n_saved = []

    def interrupted(*args):
        n_saved.append(os.path.exists('o.json') and len(read_json('o.json')['samples']))
        if len(n_saved) == 3:
            raise KeyboardInterrupt
        return fill.steps(*args)

    options = [f'--ckpt={ckpt}', '--weights=raw', '--length=4', '--n_samples=9', '--batch_size=2']
    monkeypatch.setattr('anyorder.generation.scroll.steps', interrupted)
    for seconds, there in ((60, [False] * 3), (0, [4, 2, 4])):
        monkeypatch.setattr(command, 'SAVED_EVERY', seconds)
        n_saved.clear()
        with pytest.raises(KeyboardInterrupt):
            command.main(configure(vars(command), [*options, '--out=o.json']))
        assert n_saved == there
        assert len(read_json('o.json')['samples']) == 4


def test_the_command_scores_what_the_model_says(write, ckpt):
    put('p.jsonl', {'prompt': 'ab[[=cd]]e'}, {'prompt': '[[=abcdefg]]'})
    how = ['--prompt=FILE:p.jsonl', '--order=r2l', '--score', '--watch', '--metrics=judge.pt']
    model = Writer(ckpt).model.requires_grad_(False)
    save_checkpoint('judge.pt', model, EMA(model, 0.9), tokenizer='bytes')
    _, result = write(*how, '--n_samples=1')

    # The known tokens are first, and the nats are the model's
    first = result['samples'][0]
    assert [first[key] for key in ('text', 'blanks', 'order')] == ['abcde', 2, [4, 1, 0, 3, 2]]
    nll = model(torch.tensor([[*b'abcde']]), torch.tensor([first['order']]))
    assert first['nats'] == pytest.approx(float(nll[0, 3:].sum()), rel=1e-5)
    assert result['metrics']['distinct_1'] == 7 / 9

    # Errors are over prompts, of which each has its samples
    judged = result['metrics']['judge']
    twice = write(*how, '--n_samples=2')[1]['metrics']['judge']
    assert (judged['tokens'], twice['tokens']) == (9, 18)
    assert twice['stderr'] == pytest.approx(judged['stderr'])


def test_the_command_says_what_a_cut_excludes(write):
    put('p.jsonl', *({'prompt': f'a[[={letter}b]]'} for letter in LETTERS))
    how = '--order=entropy/2', '--top_k=150', '--score', '--n_samples=1', '--html=o.html'
    said, result = write('--prompt=FILE:p.jsonl', *how)
    n_cut = sum(sample['logprob'].count(None) for sample in result['samples'])
    assert 0 < n_cut < 52
    assert re.search(f'cut off +{n_cut} tokens', said)
    assert '-log p = inf' in said
    with open('o.html') as page:
        assert 'Infinity' not in page.read()


# ---- the program


@pytest.fixture
def grids():
    """(a Writer of grids of 2 x 3 tokens with names a, ab, ..., rows to fill)."""
    names = ['a', 'ab', 'b', 'ba', 'c']
    save('grids.pt', 5, 6, row_length=6, shape=[2, 3], vocabulary=names)
    rows = np.array([[0, -1, 2, -1, 4, -1], [-1, -1, -1, 1, 3, -1], [4] * 5 + [-1]])
    return Writer('grids.pt', dtype='bfloat16'), rows


def test_rows_of_tokens_are_written_by_command_and_program(grids, script):
    _, rows = grids
    writer = Writer('grids.pt')
    np.save('rows.npy', rows)
    for out in ('json', 'npy', 'jsonl'):
        how = ['--prompt=FILE:rows.npy', '--order=margin', '--n_samples=2', f'--out=o.{out}']
        script('sample.py', '--ckpt=grids.pt', *how)
    tokens = np.load('o.npy').tolist()
    assert [sample['tokens'] for sample in read_json('o.json')['samples']] == tokens
    with open('o.jsonl') as f:
        assert [*map(json.loads, f)] == tokens

    # The program writes the same rows, in the shape of the prompt
    assert writer.infill(rows.repeat(2, 0), order='margin').tolist() == tokens
    several = writer.infill(rows, n=2, seed=[*range(6)])
    assert (several.shape, several.logprob.shape) == ((2, 3, 6), (2, 3))
    assert several[1, 0].tolist() == writer.infill(rows[0].tolist(), seed=3).tolist()


PROMPTS = ['a[[=bc]]', 'ab[[=d]]e', '[[=f]]']


def test_a_list_is_written_and_scored_as_each_prompt(ckpt):
    writer = Writer(ckpt)
    how = dict(order='margin/8', n_steps=2)
    alone = [writer.infill(prompt, seed=7 + r, **how) for r, prompt in enumerate(PROMPTS * 2)]
    assert writer.infill((*PROMPTS,), seed=7, **how) == alone[:3]
    assert writer.infill([[*b'ab', -1, *b'e'], PROMPTS[1]], seed=[8, 8], **how) == [alone[1]] * 2
    column = np.array(PROMPTS[:2])  # of a table
    several = writer.infill(column, n=2, seed=[7, 10, 8, 11], batch_size=3, **how)
    assert several == [[alone[0], alone[3]], [alone[1], alone[4]]]
    found = writer.logprob(PROMPTS, **how)
    assert found == [text.logprob for text in writer.infill(PROMPTS, score=True, **how)]
    assert found == writer.logprob(PROMPTS, way=Way.of(writer.checkpoint.run, **how))


STREAMS = options_of_lines("""
order=margin n_steps=2
order=l2r length=20 stop=['a','e','i'] context=2
order=random unmask=lossless:3
""")


@pytest.mark.parametrize('how', STREAMS)
def test_a_stream_shows_every_pass_and_ends_with_what_infill_gives(how):
    writer = letters()
    *shown, last = writer.stream('ab[[1]]c[[..]]', **how)
    text = writer.infill('ab[[1]]c[[..]]', **how)
    assert (last, last.sample) == (text, text.sample)
    for now, part in enumerate(shown):
        known = [x if step <= now else '·' for x, step in zip(text, text.sample['step'])]
        assert part.startswith(''.join(known))
    assert len(shown) == text.sample['passes']


# the fifth revises until all fits
COUNTED = options_of_lines("""
cfg_scale=1.0
n_steps=3 cfg_scale=1.0 order=margin
n_steps=1 revise=3
n_steps=16 revise=3
n_steps=9 revise=9 temperature=0.0
unmask=binomial n_steps=5 revise=1
unmask=lossless:3
order=random stop=['a','e','i']
length=40 n_steps=4
""")


@pytest.mark.parametrize('how', COUNTED)
def test_the_passes_of_a_text_are_those_that_ran_for_it(monkeypatch, how):
    writer = letters()
    kind = type(writer.network)
    ran = []
    answer = kind.answer
    monkeypatch.setattr(kind, 'answer', lambda self, *args: ran.append(1) or answer(self, *args))
    n_passes = []
    for seed in (1, 2, 3):
        ran.clear()
        text = writer.infill('ab[[1]]c[[..]]', seed=seed, **how)
        n_passes.append(text.sample['passes'])
        assert n_passes[-1] == len(ran)
    together = writer.infill('ab[[1]]c[[..]]', n=3, seed=1, **how)
    assert [text.sample['passes'] for text in together] == n_passes


def test_no_answer_depends_on_others(grids):
    """Two streams go on by turns, and in bfloat16 nothing depends on what was asked before."""
    writer, _ = grids
    before = Writer('grids.pt', dtype='bfloat16').logprob('a [[=b c]]')
    for one, other in zip(writer.stream('a [[..]]'), writer.stream('b [[..]]', seed=9)):
        assert not torch.is_autocast_enabled('cpu')
    assert one == writer.infill('a [[..]]')
    assert other == writer.infill('b [[..]]', seed=9)
    assert writer.logprob('a [[=b c]]') == before != Writer('grids.pt').logprob('a [[=b c]]')


@pytest.mark.parametrize('n_orders', [0, 3])
def test_logprob_of_a_part_given_another(n_orders):
    """What is in neither is not read, and each row has the orders of its seed."""
    writer = letters()
    found = writer.logprob(['a[[2]][[=bc]]d'] * 2, n_orders, seed=5)
    idx = torch.tensor([[0, 9, 9, 1, 2, 3]])
    for seed, nats in enumerate(found, 5):
        want = conditional_logprob(writer.network, idx, [3, 4], [0, 5], n_orders, seed=seed)
        assert nats == pytest.approx(float(want))


def test_an_order_is_any_sequence_of_positions():
    orders = [kind([3, 0, 2, 1]) for kind in (list, tuple, np.array, torch.tensor)]
    assert len({letters().logprob('a[[=bcd]]', order=order) for order in orders}) == 1


@pytest.mark.parametrize(
    'typed, stop',
    {
        '[ "a" ]': ['a'],
        ' [\t"a", "]" ] ': ['a', ']'],
        '[ ]': [],
        '[1]': '[1]',
        '[a': '[a',
        r'\n[': '\n[',
    }.items(),
)
def test_a_stop_that_is_a_json_list_of_texts_is_one(typed, stop):
    assert command.parse_stop(typed) == stop


# ---- wrong input

BAD = [  # of command and program: prompt, options, a word
    ('a', 'top_logprobs=258', 'top_logprobs'),
    ('a', 'cfg_scale=1 length=33', 'at most 32'),
    ('a', 'context=32', '0 to 31'),
    ('a[[..]]b', 'cfg_scale=1 stop=c', 'leave out stop'),
    ('a', 'stop=b revise=1', 'leave out stop'),
    ('a[[=b]]', 'stop=c score=True', 'leave out stop'),
    ('a', 'stop=["a",""]', 'leave out'),
    ('a', 'length=-1', '0 to'),
    ('a', 'length=99999999999999999999', 'length'),
    ('a', 'order=margins', "nearest is 'margin'"),
    ('a', 'unmask=lossless order=margin', 'leave out order=margin'),
    ('[[33]]', '', '33 tokens'),
    ('ab', 'length=2', 'no blank'),
    ('a[[3]]', 'score=True', 'score'),
]


def call(writer, what):
    """What a call of the writer returns, which is given as text."""
    names = {name: getattr(writer, name) for name in ('infill', 'stream', 'logprob')}
    names['row'] = writer.infill
    return eval(what, dict(np=np, Way=Way, Page=Page, **names))


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
    with one_line(word):
        writer.infill(prompt, **options_in(options))
    assert 'model' not in vars(writer)
    how = [f'--ckpt={ckpt}', '--weights=raw', f'--prompt={prompt}', *typed(options)]
    assert word in refused(*how, '--out=o.json')


PUBLISHED = f'{REFERENCE}/adaln_small.ckpt.pt'


@pytest.mark.parametrize(
    'options, word',
    {
        '--n_samples=0': 'n_samples',
        '--stop=["a", "b"': 'JSON list',
        '--prompt=FILE:pickled.npy': 'rows of integers',
        f'--prompt=FILE:{os.devnull}': 'no prompt in',
        '--prompt=FILE:table.npy --out=table.npy': 'no file of this run',
        '--prompt=FILE:p.jsonl --order=order.json': 'from 0 to 3 once',
        '--allowed=pickled.npy': 'pickled.npy',
        '--allowed=several.npz': 'several.npz',
        '--allowed=table.npy': 'got float64 (9, 257)',
        '--html=x.txt': 'must end in',
        f'--out={PUBLISHED} --metrics={PUBLISHED}': 'no file of this run',
        '--device=cuda:99': 'device',
        '--ckpt=none.pt': 'none.pt',
        '--ckpt=none.pt --order=margins': 'margins',
        '--weights=ema': 'EMA',
        f'--ckpt={PUBLISHED}': 'another tokenizer',
    }.items(),
)
def test_wrong_options_of_the_command_are_one_line(ckpt, options, word):
    np.save('table.npy', np.ones((9, 257)))
    np.save('pickled.npy', np.array([print]), allow_pickle=True)
    np.savez('several.npz', np.ones((32, 257), bool))
    put('p.jsonl', {'prompt': '[[3]]'}, {'prompt': '[[4]]'})
    put('order.json', [0, 2, 1])
    options = re.split(' (?=--)', options)
    assert word in refused(f'--ckpt={ckpt}', '--weights=raw', '--out=o.json', *options)


@pytest.mark.parametrize(
    'what, said',
    {
        "infill('a', n=0)": 'at least 1',
        "infill('[[9]]', order=[0, 2])": 'every position',
        "infill('a', stop=['4', 5])": 'list of texts',
        "infill('xb[[3]]', pattern='ab.*')": 'pattern',
        "infill('a', way=Way.of({}), order='l2r')": 'leave out order',
        "logprob('[[=a]]', way=Way.of({}), order='random')": 'leave out order',
        "infill(['a', 1])": 'prompt 2 of 2: a row',
        'infill([[1, -1], [2, -1, -1]])': 'of one length, got',
        'infill(np.zeros((0, 3), int))': 'must be a prompt',
        "infill('a', seed='x')": 'seed must be a whole',
        "infill('a', seed=[1.5])": 'seed must be a whole',
        "infill('a', seed=[4, 4])": 'each of 1 texts',
        "infill('a', schedule=[1, 'b'])": 'schedule must be a name',
        "infill('a', pattern=5)": 'a regular expression',
        "infill(['a', '[[0]]'])": 'prompt 2 of 2',
        "infill(['a', 33 * 'a'], cfg_scale=1, length=40)": 'prompt 1 of 2: cfg_scale',
        "infill(['a', 'b'], seed=[1])": '2 texts, got 1',
        "infill('a', allowed=np.ones((32, 256), bool))": r'got bool \(32, 256\)',
        "infill('a', allowed=np.ones((9, 257), bool))": '32 positions or more',
        "infill('a', allowed=[[True]])": 'got list',
        "infill('a[[2]]', order=np.array([[0, 2, 1]]))": 'list of whole numbers',
        "[*stream(['a'])]": 'one text',
        "logprob(['[[=a]]', 'b'])": r'\[\[=text\]\]',
        "logprob('[[=a]][[?]]b')": 'known lengths',
        "logprob('[[=a]]', n=1)": "'n'",
        "logprob('[[=a]][[2]]', order='margin')": 'every blank',
        "logprob('[[=a]]', n_orders=-1)": 'left to right alone',
        "logprob('[[=a]]', n_orders=2, top_k=3)": 'leave out order',
        "logprob('[[=a]]', order='margin+0.5')": 'noise=0.5',
        "logprob('[[=a]]', order='margin', temperature=0)": 'above 0',
        "infill('a', allow=1)": "'allow'",
        # of a model of rows
        'row([0, 1, 2])': '6 tokens, got a row of 3',
        "infill('a', n_steps=2.5)": 'n_steps must be a whole',
        "infill('a', n=1.5)": 'n must be a whole',
        "infill('a', temperature='1')": 'temperature must be',
        "infill('a', unmask=None)": 'unmask must be a text',
        "infill('a', stop=None)": 'stop must be a text',
        "logprob('[[=a]]', n_orders='2')": 'n_orders must be a whole',
        "row('a [[5-6]] b')": 'a larger length',
        "row('a', length=7)": 'from 0 to 6',
        'row(6 * [0])': 'no blank',
        'row([[[0]]])': 'integers from 0 to 4',
        "row('[[..]]', stop=' ')": 'list of texts',  # makes no token
    }.items(),
)
def test_wrong_input_of_a_program_is_one_line(ckpt, grids, what, said):
    writer = grids[0] if what.startswith('row') else Writer(ckpt)
    with pytest.raises((ValueError, TypeError), match=said) as e:
        call(writer, what)
    assert '\n' not in str(e.value)
    assert 'model' not in vars(writer)


def test_a_model_that_is_not_there_is_one_line(ckpt):
    with one_line('emma'):
        Writer(ckpt, 'emma')
    save('digits.pt', 4, tokenizer='sudoku4')
    for wrong in ('<|endoftext|>', '5'):  # which are no tokens of it
        with one_line('sudoku4 has the tokens'):
            Writer('digits.pt').infill('1', stop=wrong)


def test_nothing_written_controls_a_terminal():
    assert visible('a\x1b[2J\tb\n\0\r\x9b\u0439') == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'
