"""Patterns: which texts match, by Python's re; patterns in prompts and in the commands; what is
refused."""

import itertools
import math
import random
import re
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import gpt2, make_model, one_line, options_in, tokenizer_like

from anyorder import Pattern, Writer
from anyorder.checkpoint import save_checkpoint
from anyorder.extras.patterns import automaton, build
from anyorder.machine.files import read_json
from anyorder.tokens.tokenizer import PART, Bytes, Symbols

pytest.importorskip('outlines_core')

slow = pytest.mark.slow
BYTES = Bytes()
DATE = '(19|20)[0-9][0-9]-(0[1-9]|1[0-2])'


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Automata are built in this process, which saves the start of another."""

    def run(words, input, **_):
        try:
            return SimpleNamespace(returncode=0, stdout=build.automaton(input.decode()))
        except ValueError as e:
            return SimpleNamespace(returncode=1, stderr=f'\nValueError: {e}'.encode())

    here = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(automaton, 'subprocess', here)


# ---- against re.fullmatch


def rows_of(ids, most):
    """All rows of at most so many of these tokens."""
    return [row for n in range(most + 1) for row in itertools.product(ids, repeat=n)]


def compare(pattern, tokenizer, rows, before=()):
    """Return the texts of these rows of tokens that match a pattern, as a tokenizer shows them
    behind others. Its table must accept these and no others."""
    try:
        table = pattern.table(tokenizer)
    except ValueError as e:
        assert 'no text' in str(e)
        table = None
    found = []
    for row in rows:
        text = tokenizer.text_behind(before, row)
        if pattern.within and tokenizer.name.startswith('word'):
            text = text.removeprefix(' ')
        is_match = table is not None and table.ends(row)[-1]
        fits = PART not in text and re.fullmatch(pattern.text, text)
        assert is_match == bool(fits), (pattern, text)
        found += [text] if is_match else []
    return found


ATOMS = r'a b 0 é . [ab] [^a] \d \w [a-z0-9] [^\d] \n \s \D \W [^\n0] ab (?i:A) (?i:[^A])'
COUNTS = '* + ? *? +? ?? {2} {1,2} {0,2}? {2,} {0}'


def random_expression(rng, depth=4):
    """Return an expression with empty and lazy parts, classes and repetitions."""
    draw = rng.random()
    if depth == 0 or draw < 0.3:
        return rng.choice([*ATOMS.split(), ''])
    parts = [random_expression(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if draw < 0.55:
        return ''.join(parts)
    if draw < 0.8:
        return f'({"|".join(parts)})'
    return f'(?:{parts[0]}){rng.choice(COUNTS.split())}'


@pytest.mark.parametrize('n', [15, pytest.param(300, marks=slow)])
def test_a_table_accepts_what_matches_an_expression(n):
    """All texts of three bytes and all divisions of texts into pieces."""
    pieces = Symbols('pieces', ['a', 'ab', 'b', '0', 'é', '٣b', '\n'])
    rng = random.Random(5)
    while n:
        expression = random_expression(rng)
        if Pattern(expression or 'a').text == expression:
            found = compare(Pattern(expression), BYTES, rows_of({*'ab0é٣\n'.encode()}, 3))
            found += compare(Pattern(expression), pieces, rows_of(range(7), 3))
            n -= bool(found)


TYPED = r"""a|ab (|a)b a*?b?? ^a$ \Aab \Aab\Z (?i)^A$ (?s).b (?m)^a []a] [^]a] [\]a] [$^] \.|a \\
    a{0} | () . \u0663 \d [0-9] \x61 \u00e9 (?P<one>a)b [\s\S]* [\x00-\x7f] (?i:É) (a|(b|é))+?
    \(?=a [(?=]a a\$ \\b [\^b$]"""
MEANT = {text: text for text in [*TYPED.split(), '(?ix)a # [)$\nb(\\#|) # a', '\n']}
MEANT |= {'[0-9--1]': '[02-9]', '[[:alpha:]]': '[a-zA-Z]', r'\x{41}+': 'A+', r'\p{Nd}': r'\d'}
TEXTS = ['', 'a', 'b', 'ab', 'A', 'é', '٣', '\n', '\nb', ']', '$', '0', '1', '.', '\\', 'bb', 'abé']


@pytest.mark.parametrize('expression', MEANT)
def test_an_expression_as_users_type_it(expression):
    pattern = Pattern(expression)
    table = pattern.table(BYTES)
    found = [text for text in TEXTS if table.ends(BYTES.encode(text))[-1]]
    assert found == [text for text in TEXTS if re.fullmatch(MEANT[expression], text)]


@pytest.mark.parametrize('expression', ['..', '[^a]{2}', r'\W+', r'[\x00b]{1,2}'])
def test_no_text_that_matches_holds_a_nul(expression):
    table = Pattern(expression).table(BYTES)
    assert not any(table.ends(row)[-1] for row in rows_of([0, ord('!')], 2) if 0 in row)


# ---- tokens of all kinds


def tokenizer_of(kind):
    """A tokenizer of this kind, GPT-2's if it is cached."""
    if kind == 'names':
        return Symbols(kind, ['end', 'a', 'ab', '##ef', '.', 'ef'], ' ', 0)
    return gpt2() if kind == 'gpt2' else tokenizer_like(kind)


PIECES = 'a ab ▁ ▁a ##a ##ef ef cd . Ġ Ġa <0xC3> <0xA9> Ã ©'
KINDS = ['bytes', 'bytes behind a space', 'metaspace always', 'metaspace first', 'metaspace never']
KINDS += ['sentences and bytes', 'wordpiece', 'words', 'names', pytest.param('gpt2', marks=slow)]


@pytest.mark.parametrize('within', [False, True])
@pytest.mark.parametrize('kind', KINDS)
def test_what_matches_is_what_a_tokenizer_shows(kind, within):
    """At the beginning of a text or behind a word. There the space before a word is none of the
    part where no token is a space."""
    tokenizer = tokenizer_of(kind)
    if kind == 'gpt2':
        ids = tokenizer.encode('é a ef . ab')
    else:
        vocabulary = tokenizer.ids if kind == 'names' else tokenizer.backend.get_vocab()
        ids = [vocabulary[piece] for piece in PIECES.split() if piece in vocabulary]
    n_found = 0
    for text in ('a( a| ab)*', '[a ]*', r'( |a|ef|\.|cd)+', ' a.*', '##ef', ' *aé?'):
        before = [-1] if within else []
        n_found += len(compare(Pattern(text, within), tokenizer, rows_of(ids, 3), before))
    assert n_found > 10
    for token in {getattr(tokenizer, 'unknown', None), tokenizer.eos} - {None}:
        assert not Pattern('(?s).*').table(tokenizer).ends([token])[-1]


def test_special_tokens_and_numbers_without_a_token_are_no_text():
    tokenizers = pytest.importorskip('tokenizers')
    from anyorder.extras.masked.tokenizer import HuggingFace

    ids = {'a': 0, '[MASK]': 1, 'b': 5}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token='[UNK]'))
    backend.add_special_tokens(['[MASK]'])
    backend.add_tokens(['c d'])
    table = Pattern('(?s).*').table(HuggingFace('some', backend))
    assert {i for i in range(table.classes.size) if table.ends([i])[-1]} == {0, 3, 5}


# ---- tables


def test_a_table_is_small_and_kept(monkeypatch):
    """By its pattern and its tokenizer, whose letters stand side by side. An automaton that began
    anew at each byte would not be made."""
    assert Pattern(DATE).table(BYTES).next.shape == (10, 7)
    monkeypatch.setattr(automaton, 'subprocess', subprocess)
    assert len(Pattern('[^a]{50}').table(BYTES).next) < 500
    own, other = (Symbols('own', ['a', 'b', end], ' ', 2) for end in ('end', 'x'))
    tables = [Pattern('a+b').table(one) for one in (own, other, own)]
    assert tables[0].ends([0, 0, 1])[-1]
    assert tables[0] is tables[2] is not tables[1]


# ---- what is refused

# a word of the message, and the expressions
BAD = {
    'string': [5, None],
    'empty': ['', '^$', r'\A\z'],
    'a pattern must be text in UTF-8': ['\ud800'],
    'look-around': ['(?=a)b', '(?!a)b', '(?<=a)b', 'a(?<!a)b'],
    'word boundary': [r'\ba', r'a\B'],
    'back-reference': [r'(a)\1', r'(?P<a>b)(?P=a)'],
    r'\^ or \$': [r'(^a)', r'a^b', r'(a|b$)', r'a\zb'],
    'possessive': ['a++', 'a{2}+', '(?>a)'],
    r'\{0,2\}': ['a{,2}'],
    'flag a': ['(?a)a'],
    'flag x taken': ['(?x)(?:a)\n(?-x)#b', '(?ix)a(?i-x:#)b'],
    'comment': ['(?x: a # [b\n)'],
    r'without its \(': ['a)', '[a])(b', 'a)|(b'],
    'unterminated': ['[a'],
    r'missing \)': ['(a'],
    'nothing to repeat': ['*a'],
    'escape': ['a\\', r'\h'],
    'min repeat': ['a{2,1}'],
    'Rust': [r'\p{Foo}', '(?#a)b', '(?:' * 3000 + 'a' + ')' * 3000, 'a{b}', r'\[[a[]'],
    'no text': ['a\0', r'a[b&&c]'],
}


@pytest.mark.parametrize('said', BAD)
def test_what_is_no_pattern_is_one_line(said):
    for expression in BAD[said]:
        with one_line(said):
            Pattern(expression).table(BYTES)


def test_tokens_that_do_not_serve_are_one_line(monkeypatch):
    with one_line('own'):
        Pattern('[ab]c').table(Symbols('own', 'ab', ' '))
    monkeypatch.setattr(automaton, 'MOST_CELLS', 14)
    with one_line('too large for these tokens'):
        Pattern('abcd').table(Symbols('own', 'abcd'))
    with one_line('BPEDecoder'):
        Pattern('a').table(tokenizer_of('ends of words'))


with open(build.__file__) as f:
    BUILD = f.read()
SAYS = """from resource import getrlimit, RLIMIT_CPU, RLIMIT_AS
    raise ValueError(getrlimit(RLIMIT_CPU) + getrlimit(RLIMIT_AS))"""
# a program that is to build an automaton, and what is said
DIES = {'import os; os.abort()': 'large', 'raise MemoryError': 'large'}
DIES |= {'import outlines_korn': 'outlines_korn.*pip install outlines-core'}
DIES |= {'while True: pass': 'large', BUILD.replace('20_000', '2'): 'large', BUILD: 'fits no text'}
DIES[BUILD.replace('from outlines_core', f'{SAYS}\n    from outlines_core')] = '10, .*, 2000000000,'


@pytest.mark.parametrize('program', DIES, ids=range(7))
def test_a_process_that_dies_is_one_line(tmp_path, monkeypatch, program):
    pytest.importorskip('resource')
    path = tmp_path / 'dies.py'
    path.write_text(program)
    monkeypatch.setattr(automaton, 'subprocess', subprocess)
    monkeypatch.setattr(build, '__file__', str(path))
    monkeypatch.setattr(build, 'MOST_SECONDS', 1 if 'while' in program else 60)
    automaton.table_of.cache_clear()
    with one_line(DIES[program]):
        Pattern(r'a[b&&c]' if program == BUILD else 'abc').table(BYTES)


# ---- what is written


@pytest.fixture(scope='module')
def writer(tmp_path_factory):
    """A Writer of bytes with 32 positions."""
    path = tmp_path_factory.mktemp('run') / 'ckpt.pt'
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint(path, model, tokenizer='bytes', counts=torch.arange(257))
    return Writer(path, device='cpu')


def shown(text, start=0, end=None):
    """Tokens of a Text, a letter each."""
    return bytes(t for t in text.sample['tokens'][start:end] if t < 256).decode('latin-1')


CUT = {'temperature': 0.7, 'top_k': 3, 'top_p': 0.9, 'min_p': 0.1, 'presence_penalty': 3}
WAYS = [
    {'order': 'margin', 'n_steps': 4, 'revise': 2},
    {'order': 'l2r', 'n_steps': 3, 'revise': 1, **CUT},
    {'order': 'random', 'temperature': 0},
]


@pytest.mark.parametrize('how', WAYS)
def test_what_is_written_matches(writer, how):
    """In blanks beside others."""
    prompt = f'a [[/{DATE}/]], [[2]][[3-6/(bc)+|[x/]{{5}}/]].[[4/\\/[^]]{{2}}]/]]'
    for text in writer.infill(prompt, n=2, seed=2, **how):
        whole = rf'a {DATE}, (?s:.*)((bc)+|[x/]{{5}})\./[^]]{{2}}]'
        assert re.fullmatch(whole, shown(text))
        assert text.sample['patterns'][0] == [2, 9, DATE]
        assert ('log_weight' in text.sample) == ('revise' not in how)


@pytest.mark.parametrize('order', ['l2r', pytest.param('margin', marks=slow)])
def test_a_whole_text_matches_stretch_by_stretch(writer, order):
    """80 tokens for a model of 32: the state and what stands behind go from stretch to stretch."""
    pattern = r'(ab[cd]|e){3,20}x{30,60}(yz)*!'
    text = writer.infill('abc[[..]]!', length=80, context=6, pattern=Pattern(pattern), order=order)
    assert re.fullmatch(pattern, text) and len(text) == 80
    assert len(text.sample['stretches']) > 2


def test_blanks_that_decide_each_other_come_in_the_order_that_is_given(writer):
    """(19|20) has equal scores at both of its digits: rounding, which is another one without a
    cache, does not choose."""
    slow_writer = Writer(writer.checkpoint.name, device='cpu', use_cache=False)
    how = {'n': 4, 'order': 'margin', 'pattern': DATE}
    for cached, plain in zip(*(one.infill('[[7]]', **how) for one in (writer, slow_writer))):
        assert cached.sample['order'] == plain.sample['order']


def test_a_pattern_beside_a_blank_that_stops_moves_with_its_text(writer):
    prompt = f'[[/{DATE}/]][[..]]-[[/{DATE}/]][[..]]-[[/{DATE}/]]'
    texts = writer.infill(prompt, n=2, stop=list('0123456789abcdefghijkl'), length=50, seed=1)
    assert len({len(text.sample['tokens']) for text in texts}) > 1
    for text in texts:
        found = [shown(text, start, end) for start, end, _ in text.sample['patterns']]
        assert [bool(re.fullmatch(DATE, one)) for one in found] == [True] * 3


def test_the_likeliest_tokens_are_those_that_a_pattern_leaves(writer):
    text = writer.infill('1[[6]]', top_logprobs=12, order='l2r', pattern=DATE)
    for place in text.top_logprobs[1:]:
        assert sum(math.exp(one['logprob']) for one in place['top']) == pytest.approx(1, abs=1e-5)


def test_what_is_allowed_is_that_of_the_text_whatever_its_batch(writer):
    def allowed(rows, positions):
        return torch.arange(257) == (97 + rows).unsqueeze(1)

    texts = writer.infill('[[3/[a-c]+/]]', n=3, batch_size=1, allowed=allowed)
    assert [*map(shown, texts)] == ['aaa', 'bbb', 'ccc']
    prompts = ['[[2/[a-c]+/]]', '[[2-3/[x-z]+/]]!']
    with one_line('row 1 .* from position 0 .* allow more'):
        writer.infill(prompts, batch_size=1, allowed=allowed)


def test_the_length_of_a_blank_is_chosen_among_those_that_match(writer):
    prompt = 'ab[[2-9/(cd)+|e{5}/]]fgh'
    for text in writer.infill(prompt, n=9, blank_length='draw'):
        assert text.sample['lengths'][0]['length'] in (2, 4, 5, 6, 8)


def test_blanks_that_no_step_has_answered_have_the_law_of_the_training_set(writer, monkeypatch):
    given = []
    language = Pattern.language
    kept = staticmethod(lambda *how: given.append(how[-1]) or language(*how))
    monkeypatch.setattr(Pattern, 'language', kept)
    writer.infill('[[3/a+/]]')
    assert torch.equal(*given, torch.arange(257) + 1)


WRONG = [
    ('[[4/a{3}|a{7}/]]', '', 'no text of 4 tokens .*: 3 and 7'),
    ('[[4-6/a{3}/]]', '', 'no text of 4 to 6 tokens .*: 3$'),
    ('[[3]]', 'pattern=a{4}', 'no text of 3 tokens .*: 4'),
    (['ac[[2-3]]c', 'ab[[2-3]]c'], 'pattern=[ac]+ n=2', 'prompt 2 of 2 contradicts'),
    ('a[[=b]]', 'pattern=aa score=True', 'prompt 1 of 1 contradicts'),
    ('[[3/a+/]]', 'unmask=lossless order=l2r', 'lossless'),
    ('[[3/a+/]]', 'order=drawn', 'drawn'),
    ('[[..]]', 'pattern=a+ stop=b', 'leave out stop'),
    ('[[3/a+/]]', 'pattern=a+', 'leave out pattern'),
]


@pytest.mark.parametrize('prompt, how, said', WRONG)
def test_wrong_input_is_one_line_before_the_first_pass(writer, monkeypatch, prompt, how, said):
    monkeypatch.setattr('anyorder.writer.scroll', None)
    with one_line(said):
        writer.infill(prompt, **options_in(how))
    with one_line('without a pattern'):
        writer.logprob('a[[=b]][[/a/]]')


# ---- the commands


def test_sample_writes_what_matches_and_keeps_the_weights(writer, script):
    ckpt = f'--ckpt={writer.checkpoint.name}'
    how = [f'--pattern={DATE}', '--prompt=[[7]]', '--n_samples=2', '--n_steps=3', '--weights=raw']
    script('sample.py', ckpt, '--order=random', '--out=o.json', *how)
    for sample in read_json('o.json')['samples']:
        assert re.fullmatch(DATE, sample['text'])
        assert sample['log_weight'] < 0


HELD_OUT = [f'In {year} the trains began to stop' for year in (1901, 1977, 2024)]
IN = r'In (19|20)[0-9]{2} t.*'


@pytest.fixture
def measured(writer, script):
    """measured(option, ...): what eval_ppl.py says of HELD_OUT."""
    Path('texts.txt').write_text(''.join(HELD_OUT))
    how = [f'--ckpt={writer.checkpoint.name}', '--datasets=texts.txt', '--out=rows.json']
    return partial(script, 'eval_ppl.py', *how, '--device=cpu', '--weights=raw')


def test_rows_are_what_the_writer_says_of_each_text(measured, writer):
    """In a block of all blanks ties, as of tokens that a pattern leaves alone, go left to right."""
    measured('--orders=l2r,margin/32', '--n_steps=4', f'--pattern={IN}')
    rows = read_json('rows.json')['results']
    prompts = [f'[[={text}]]' for text in HELD_OUT]
    for row, order in zip(rows, ['l2r', 'margin/32']):
        logp = writer.logprob(prompts, pattern=IN, order=order, n_steps=4)
        assert row['nats_per_token'] == pytest.approx(-sum(logp) / 96, rel=1e-5)


NO_ROWS = [('--pattern=a+', 'pattern say'), ('--orders=l2r --pattern=.*19.*', 'row 2 contradicts')]


@pytest.mark.parametrize('options, said', NO_ROWS)
def test_what_does_not_match_is_one_line(measured, options, said):
    assert re.search(said, measured(*options.split(), code=1).stderr)
