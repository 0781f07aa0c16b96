"""The law of blanks among the texts that match, against all 4,096 texts of six tokens."""

import copy
import itertools

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from oracle import chi2_of, limit

from anyorder.extras.patterns.automaton import Table
from anyorder.extras.patterns.language import Language, Span
from anyorder.extras.patterns.messages import Messages
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.constraint import Constraint
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill
from anyorder.generation.options import unmasking_of
from anyorder.generation.plan import Cells
from anyorder.tokens.tokenizers import Symbols

N = 6
V = 4
# (ab|c)*(a|cb)(b|c)*c over the tokens a, b, ab, c
TABLE = Table(
    next=np.array(
        [
            [1, -1, 4, 5, -1],
            [1, 2, 4, 5, -1],
            [3, 2, -1, -1, -1],
            [3, 2, -1, -1, -1],
            [3, 5, -1, -1, -1],
            [6, 2, 4, 5, -1],
            [6, 2, 4, 5, -1],
        ]
    ),
    start=0,
    final=np.array([False, False, False, True, False, False, True]),
    classes=np.array([2, 1, 3, 0, 4]),  # the last token is no text
    pattern='the pattern',
    tokenizer=Symbols('letters', ['a', 'b', 'ab', 'c', 'end']),
)
OTHER = Table(  # b*(ab|c)b*
    next=np.array([[0, 1, -1], [1, -1, -1]]),
    start=0,
    final=np.array([False, True]),
    classes=np.array([2, 0, 1, 1, 2]),
    pattern='the other pattern',
    tokenizer=TABLE.tokenizer,
)
TEXTS = torch.tensor([*itertools.product(range(V), repeat=N)])
MATCHES = torch.tensor([bool(TABLE.final[TABLE.read(text)]) for text in TEXTS.tolist()])
MATCHES &= torch.tensor([TABLE.read(text) >= 0 for text in TEXTS.tolist()])


def canvas_of(n_rows, n=N, n_known=0, idx=None, seed=0):
    """A canvas of rows with random orders."""
    g = torch.Generator().manual_seed(seed)
    order = torch.rand(n_rows, n, generator=g).argsort(1)
    if idx is None:
        idx = torch.zeros(n_rows, n, dtype=torch.long)
    return Canvas(idx, order, n_known, range(n_rows))


def random_logits(*shape, seed=0):
    """Logits (..., 6) of the five tokens and one of padding."""
    g = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(*shape, V + 2, dtype=torch.float64, generator=g)
    logits[..., V + 1 :] = -torch.inf
    return logits


def cells_of(row):
    """The cells of rows (m,), as a step has them."""
    return Cells(torch.as_tensor(row), None, None, None, None)


def observed(language, canvas, logits, most=N):
    """Show the laws of `most` blanks of each row to the language, logits (B, N, V). Return which
    cells they are: (row, position)."""
    language.begin_step(canvas, canvas.known)
    row, _, visit = canvas.cells(canvas.n_blanks.clamp(max=most))
    position = canvas.order[row, visit]
    language.observe(cells_of(row), position, logits[row, position])
    return row, position


def law_of_texts(logits, known=None):
    """(4096,) the law of all texts of one row that match, by its logits (N, V). known {position:
    token}."""
    logp = logits.log_softmax(-1)[torch.arange(N), TEXTS].clone()
    may = MATCHES.clone()
    for position, token in (known or {}).items():
        logp[:, position] = 0
        may &= TEXTS[:, position] == token
    q = logp.sum(1).exp() * may
    return q / q.sum()


def numbers_of(texts):
    """The numbers (n,) of texts (n, N) among all texts."""
    return (texts * V ** torch.arange(N - 1, -1, -1)).sum(1)


def marginal(q, position):
    """(V,) the law of a position under the law q of all texts."""
    return torch.zeros(V, dtype=q.dtype).index_add_(0, TEXTS[:, position], q)


def probabilities(language, row, position, logits):
    """The law (m, V) of cells by the language."""
    law = language.law(cells_of(row), position, logits[row, position]).softmax(-1)
    assert (law[:, V:] == 0).all()
    return law[:, :V]


def assert_equal(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def messages_of(table, masses):
    """The Messages of spans that start at the start, with masses (n, L, C)."""
    n, n_places, _ = masses.shape
    start = np.full(n, table.start)
    return Messages(table, start, np.full(n, n_places), np.log(masses))


@pytest.mark.filterwarnings('ignore:divide by zero')
def test_z_is_the_probability_of_a_match():
    """Whatever is put in whatever order: the sum of the probabilities of the texts that match."""
    logits = random_logits(9, N)
    p = logits.softmax(-1)[..., : V + 1]
    masses = torch.zeros(9, N, 5, dtype=torch.float64).index_add_(2, torch.tensor(TABLE.classes), p)
    found = messages_of(TABLE, np.ones((9, N, 5)))
    for place in (3, 0, 5, 1, 4, 2, 4):
        found.put(np.arange(9), np.full(9, place), masses[:, place].log().numpy())
        found.log_z()
    texts = p[:, torch.arange(N), TEXTS].prod(2)  # (9, 4096)
    assert_equal(torch.from_numpy(found.log_z()), texts[:, MATCHES].sum(1).log())


def test_marginals():
    """Of each blank, whatever is known, and was known before."""
    idx = TEXTS[MATCHES][::32]
    n = len(idx)
    canvas = canvas_of(n, idx=idx)
    language = Language(spans_of(n), canvas)
    for step, most in ((0, N), (1, 2), (4, N), (2, 1)):
        canvas.known = (torch.arange(n) + step) % 5
        logits = random_logits(n, N, seed=step)
        row, position = observed(language, canvas, logits, most)
        law = probabilities(language, row, position, logits)
        others = torch.ones(n, N, dtype=torch.bool)
        others[row, position] = False  # have the stand-in law, by which all tokens are alike
        logits[others, : V + 1] = 0
        for r, i, p in zip(row.tolist(), position.tolist(), law):
            known = canvas.order[r, : canvas.known[r]].tolist()
            q = law_of_texts(logits[r], {j: int(idx[r, j]) for j in known})
            assert_equal(p, marginal(q, i))
            alone = probabilities(language, [r], torch.tensor([i]), logits)
            assert_equal(alone[0], p)


def test_the_joint_law_of_any_blanks_by_drawing_them_in_turn():
    """log q of some tokens is the sum of the logs of their laws, each given those before it."""
    n_rows = 12
    idx = TEXTS[MATCHES][torch.arange(n_rows) * 18]
    canvas = canvas_of(n_rows, idx=idx)
    language = Language(spans_of(n_rows), canvas)
    logits = random_logits(n_rows, N)
    observed(language, canvas, logits)
    row = torch.arange(n_rows)
    logq = torch.zeros(n_rows, dtype=torch.float64)
    for j in range(N):
        position = canvas.order[:, j]
        token = idx[row, position]
        law = probabilities(language, row, position, logits)
        logq += law[row, token].log()
        language.reveal(cells_of(row), position, token)
        for r in range(n_rows):
            chosen = canvas.order[r, : j + 1]
            q = law_of_texts(logits[r])
            same = (TEXTS[:, chosen] == idx[r, chosen]).all(1)
            assert_equal(logq[r].exp(), q[same].sum())


def allowed_sets(partial):
    """For partial texts (n, N), -1 for blanks: whether any text matches, and which tokens of it
    may stand at each place, (n, N, V) bool. By all texts that match."""
    texts = TEXTS[MATCHES]
    fits = ((partial.unsqueeze(1) == texts) | (partial.unsqueeze(1) < 0)).all(2)  # (n, texts)
    one_hot = torch.nn.functional.one_hot(texts, V).flatten(1).float()
    return fits.any(1), (fits.float() @ one_hot > 0).unflatten(1, (N, V))


@pytest.mark.parametrize(
    'share', [23, pytest.param(1, marks=pytest.mark.slow)], ids=['some', 'every']
)
def test_what_may_stand_in_a_partial_text(share):
    """Exactly the tokens with which some text matches, in every blank of all partial texts."""
    partial = torch.tensor([*itertools.product(range(-1, V), repeat=N)][::share])
    possible, may = allowed_sets(partial)
    idx = partial[possible]
    may = may[possible]
    is_blank = idx < 0
    order = is_blank.long().argsort(dim=1, stable=True)  # what is known first
    canvas = Canvas(idx.clamp(min=0), order, N - is_blank.sum(1), range(len(idx)))
    language = Language(spans_of(len(idx)), canvas)
    row, position = is_blank.nonzero(as_tuple=True)
    law = probabilities(language, row, position, random_logits(len(idx), N))
    assert torch.equal(law > 0, may[row, position])
    for text in partial[~possible][:: 40 * share]:
        order = (text < 0).long().argsort(dim=0, stable=True).unsqueeze(0)
        n_known = int((text >= 0).sum())
        with one_line('the pattern'):
            canvas = Canvas(text.clamp(min=0).unsqueeze(0), order, n_known, [0])
            Language([Span(0, 0, N, TABLE, 0)], canvas)


@pytest.mark.slow
def test_draws():
    """20,000 texts of six tokens that are drawn in turn, by chi-square."""
    n = 20_000
    canvas = canvas_of(n)
    language = Language(spans_of(n), canvas)
    logits = random_logits(1, N).expand(n, N, -1)
    observed(language, canvas, logits)
    row = torch.arange(n)
    torch.manual_seed(0)
    for j in range(N):
        position = canvas.order[:, j]
        token = probabilities(language, row, position, logits).multinomial(1)[:, 0]
        canvas.idx[row, position] = token
        language.reveal(cells_of(row), position, token)
    q = law_of_texts(logits[0])
    counts = torch.bincount(numbers_of(canvas.idx), minlength=len(TEXTS))
    assert counts[~MATCHES].sum() == 0
    often = n * q > 5
    assert often.sum() > 30
    rare = ~often
    counts = torch.cat([counts[often], counts[rare].sum(0, keepdim=True)])
    expected = torch.cat([q[often], q[rare].sum(0, keepdim=True)])
    assert chi2_of(counts, expected) < limit(int(often.sum()))


def spans_of(n_rows, start=0, end=N):
    return [Span(r, start, end, TABLE, 0) for r in range(n_rows)]


def table_of(to, final):
    """A Table that starts in state 0."""
    return Table(np.array(to), 0, np.array(final), np.arange(len(to[0])), 'the pattern', None)


@pytest.mark.filterwarnings('ignore:divide by zero')
def test_thousands_of_places_neither_overflow_nor_underflow():
    """Of one region of two that the start leads to, though the other one is e^14000 as likely.

    State 0 begins; class 0 leads to state 1 and class 1 to state 2, which they do not leave. A last
    class, after both, is what decides."""
    table = table_of([[1, 2, -1], [1, -1, 1], [-1, 2, -1]], [False, True, True])
    found = messages_of(table, np.tile([0.001, 0.999, 0], (1, 2048, 1)))
    of_each = 2048 * np.log([0.001, 0.999])
    np.testing.assert_allclose(found.log_z(), np.logaddexp(*of_each), rtol=1e-13)
    zero = np.array([0])
    found.put(zero, zero + 2047, np.log([[0.0, 0, 1]]))
    np.testing.assert_allclose(found.log_z(), 2047 * np.log(0.001), rtol=1e-13)
    assert (found.log_weights(zero, zero + 1000) > -np.inf).tolist() == [[True, False, True]]
    found.put(zero, zero + 3, np.log([[0.0, 1, 0]]))
    assert found.log_z() == -np.inf


def test_what_is_possible_stays_possible():
    """However unlikely it is: no share of a class is rounded to 0."""
    canvas = canvas_of(2)
    logits = random_logits(2, N)
    logits[1] -= 2000 * torch.arange(V + 2)
    language = Language(spans_of(2), canvas)
    row, position = observed(language, canvas, logits)
    law = language.law(cells_of(row), position, logits[row, position])
    for i in range(N):
        one, other = law[position == i] > -torch.inf
        assert torch.equal(one, other)


def test_a_span_may_begin_before_its_canvas_and_end_behind_it():
    """As does the whole text, whose places behind have the stand-in law."""
    stand_in = torch.tensor([1.0, 2, 3, 4, 5])
    logits = random_logits(1, N)
    logits[:, 4:, : V + 1] = stand_in.double().log()  # as if nobody had answered them
    whole = canvas_of(1, idx=torch.tensor([[2, 0, 0, 0, 0, 3]]))
    whole.order = torch.tensor([[0, 5, 1, 2, 3, 4]])
    whole.known = torch.tensor([2])
    language = Language(spans_of(1), whole, stand_in)
    row, position = observed(language, whole, logits)
    law = probabilities(language, row, position, logits)
    cut = Canvas(torch.zeros(1, 3, dtype=torch.long), torch.arange(3)[None], 0, [0])
    span = Span(0, 0, 3, TABLE, TABLE.read([2]), [-1, 3])
    language = Language([span], cut, stand_in)
    row, position = observed(language, cut, logits[:, 1:4])
    assert_equal(probabilities(language, row, position, logits[:, 1:4]), law[:3])


def test_rows_are_taken():
    """Rows that repeat, in any order, and what is done to them does nothing to the others."""
    n = 5
    canvas = canvas_of(n)
    logits = random_logits(8, N)
    language = Language(spans_of(n)[:4], canvas)
    row, position = observed(language, canvas, logits)
    before = language.law(cells_of(row), position, logits[row, position])
    rows = torch.tensor([4, 2, 2, 0])
    part = canvas.take(rows)
    taken = language.take(rows)
    own = torch.cat([logits[2:3], logits[4:5], logits[2:3], logits[6:7]])
    row4, position4 = observed(taken, part, own)
    law = taken.law(cells_of(row4), position4, own[row4, position4]).softmax(1)
    assert_equal(law[row4 == 0], own[0, position4[row4 == 0]].softmax(1))
    for r, i, p in zip(row4.tolist(), position4.tolist(), law):
        if r:
            assert_equal(p[:V], marginal(law_of_texts(own[r]), i))
    after = language.law(cells_of(row), position, logits[row, position])
    assert torch.equal(after, before)


def test_blanks_have_what_is_allowed():
    """Those that nobody has answered, too: a text that no place forbids is found."""
    may = torch.ones(N, V + 1, dtype=torch.bool)
    may[5, 3] = False  # no c at the end: with this alone nothing would match
    canvas = canvas_of(1)
    canvas.allowed = Constraint(may, canvas)
    with one_line('allowed'):
        Language(spans_of(1), canvas, allowed=canvas.allowed)
    may[5, 3] = True
    may[:5, 0] = False  # no a
    canvas.allowed = Constraint(may, canvas)
    weights = torch.tensor([1.0, 2, 3, 4, 5]).double()
    language = Language(spans_of(1), canvas, weights, canvas.allowed)
    language.begin_step(canvas, canvas.known)
    logits = weights.log().repeat(1, N, 1)
    logits[0][~may] = -torch.inf
    padded = torch.cat([logits, logits.new_full((1, N, 1), -torch.inf)], 2)
    position = torch.arange(N)
    law = probabilities(language, torch.zeros(N, dtype=torch.long), position, padded)
    q = law_of_texts(logits[0])
    assert_equal(law, torch.stack([marginal(q, i) for i in range(N)]))


@pytest.mark.parametrize(
    'tokens, span',
    [
        ([-1] * 6, Span(0, 2, 3, TABLE, 0)),
        ([-1, 1, -1, 2, -1, 1], Span(0, 0, 6, TABLE, 0)),
        ([-1, -1, -1, 4, -1, 3], Span(0, 1, 6, TABLE, 0)),
        ([-1] * 6, Span(0, 0, 2, TABLE, -1)),
    ],
    ids=['length', 'token', 'no text', 'before'],
)
def test_what_cannot_match_is_refused(tokens, span):
    known = [i for i, token in enumerate(tokens) if token >= 0]
    order = torch.tensor([known + [i for i in range(N) if i not in known]])
    canvas = Canvas(torch.tensor([tokens]).clamp(min=0), order, len(known), [0])
    with one_line(f'row 0 matches the pattern from position {span.start}'):
        Language([span], canvas)


def test_float32_is_float64():
    """The messages are float64, whatever the logits are, whose laws come back as they were."""
    canvas = canvas_of(3)
    logits = random_logits(3, N)
    language = Language(spans_of(3), canvas)
    row, position = observed(language, canvas, logits)
    exact = probabilities(language, row, position, logits)
    row, position = observed(language, canvas, logits.float())
    law = probabilities(language, row, position, logits.float())
    assert law.dtype == torch.float32
    torch.testing.assert_close(law.double(), exact, rtol=1e-5, atol=1e-7)


# ---- runs of toy networks

NETWORKS = [
    {},
    {'attention': 'mixed'},
    {'attention': 'bidirectional'},
    {'target_position': 'two_stream'},
]
STEPS = [[1] * N, [2, 1, 3], [3, 3], [N]]
HOWS = [(policy, sizes, None) for policy in ('given', 'margin') for sizes in STEPS]
HOWS += [('top_prob', None, 0.5)]
FAST = [(0, 1), (0, 8), (1, 1), (2, 5), (3, 2)]  # numbers of a network and how it writes
RUNS = [
    pytest.param(network, how, marks=() if (n, i) in FAST else pytest.mark.slow)
    for n, network in enumerate(NETWORKS)
    for i, how in enumerate(HOWS)
]
ORDER = torch.tensor([[3, 0, 5, 1, 4, 2]])


def toy(**network):
    return make_model(block_size=N, vocab_size=V + 2, n_tokens=V + 1, n_layer=1, **network)


def unmasking(how):
    policy, sizes, threshold = how
    if threshold is not None:
        return unmasking_of(policy=f'{policy}:{threshold}')
    return unmasking_of(policy=policy, schedule=torch.tensor(sizes).cumsum(0).tolist())


def scored(model, texts, how, use_cache=True, **drawing):
    """The canvas of texts (B, N) that a run scores, under the language."""
    n = len(texts)
    canvas = Canvas(texts, ORDER.expand(n, N), 0, range(n))
    canvas.language = Language(spans_of(n), canvas)
    fill(model, canvas, unmasking(how), Drawing(**drawing, scores=True), use_cache)
    return canvas


def slow_score(model, text, how):
    """(log q, log p) of one text in a run, by the laws of all texts at each step."""
    policy, sizes, threshold = how
    order = ORDER.clone()
    logq = 0.0
    logp = 0.0
    known = 0
    for step in range(N):
        if known == N:
            break
        n = N - known
        n_new = n if sizes is None else sizes[step]
        n_answered = n_new if policy == 'given' else n
        logits = model.predict(text[None], order, known, n_answered)[0, :, : V + 1]
        answered = order[0, known : known + n_answered]
        table = torch.full((N, V + 1), 1 / (V + 1), dtype=torch.float64).log()  # the stand-in law
        table[answered] = logits.log_softmax(-1)
        same = (TEXTS[:, order[0, :known]] == text[order[0, :known]]).all(1)
        w = table[torch.arange(N), TEXTS][:, order[0, known:]].sum(1).exp() * (MATCHES & same)
        if policy != 'given':
            laws = torch.stack([marginal(w / w.sum(), int(i)) for i in answered])
            top = laws.topk(2).values
            score = top[:, 0] if policy == 'top_prob' else top[:, 0] - top[:, 1]
            if threshold is not None:
                n_new = max(1, int((score >= threshold).sum()))
            best = score.argsort(descending=True, stable=True)
            order[0, known:] = answered[best]
        new = order[0, known : known + n_new]
        fits = (TEXTS[:, new] == text[new]).all(1)
        logq += (w[fits].sum() / w.sum()).log()
        logp += table[new, text[new]].sum()
        known += n_new
    return logq, logp


@pytest.mark.parametrize('network, how', RUNS, ids=str)
def test_the_law_of_a_run(network, how):
    """Runs sum to 1 in the language and are never outside of it, with a cache and without; a run's
    log-probability is the one that all texts say; and E_q[p / q] is what p gives to the
    language."""
    model = toy(**network)
    texts = TEXTS[MATCHES]
    canvas = scored(model, texts, how)
    logq = canvas.logprob.sum(1)
    assert_equal(logq.exp().sum(), torch.ones((), dtype=torch.float64))
    plain = scored(model, texts[::9], how, use_cache=False)
    assert torch.equal(plain.order, canvas.order[::9])
    assert_equal(plain.logprob, canvas.logprob[::9])
    slow = [slow_score(model, texts[r], how) for r in (0, 70, 141)]
    for r, (q, p) in zip((0, 70, 141), slow):
        assert_equal(logq[r], q)
        assert_equal(canvas.language.log_weight[r], p - q)

    # p of the texts that match, on the path on which they are written
    plain = Canvas(texts, canvas.order, 0, range(len(texts)))
    sizes = [int((canvas.step == i).sum(1)[0]) for i in range(N)]
    if (canvas.step == canvas.step[:1]).all():
        ends = torch.tensor([n for n in sizes if n]).cumsum(0).tolist()
        fill(model, plain, unmasking_of(schedule=ends), Drawing(scores=True))
        weights = (logq + canvas.language.log_weight).exp()
        assert_equal(weights.sum(), plain.logprob.sum(1).exp().sum())

    others = scored(model, TEXTS[~MATCHES][::387], how)
    assert (others.logprob.sum(1) == -torch.inf).all()


def written(model, how, rows, chosen):
    """The canvas of some rows, which are written by their own seeds."""
    idx, order, n_known, spans = rows
    canvas = Canvas(idx[chosen], order[chosen], n_known[chosen], chosen)
    own = [span._replace(row=chosen.index(span.row)) for span in spans if span.row in chosen]
    canvas.language = Language(own, canvas)
    fill(model, canvas, unmasking_of(**how), Drawing())
    return canvas


ROWS = (
    TEXTS[MATCHES][[3, 60, 3, 90, 120]],
    torch.stack([torch.randperm(N, generator=torch.Generator().manual_seed(i)) for i in range(5)]),
    torch.tensor([0, 2, 1, 0, 3]),
    [
        Span(0, 0, 6, TABLE, 0),
        Span(1, 0, 6, TABLE, 0),
        Span(3, 1, 5, TABLE, 0),
        Span(4, 0, 6, TABLE, 0),
    ],
)


@pytest.mark.parametrize(
    'how',
    [
        dict(n_steps=3, policy='margin'),
        pytest.param(dict(n_steps=3), marks=pytest.mark.slow),
        pytest.param(dict(policy='top_prob:0.5'), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_of_a_batch_are_rows_alone(how):
    """With other lengths, prompts and patterns, and without any."""
    model = toy()
    rows = [*ROWS]
    rows[3] = [*ROWS[3], Span(3, 5, 6, OTHER, 0), Span(2, 0, 6, OTHER, 0)]
    rows[2] = torch.tensor([0, 2, 0, 0, 3])
    batch = written(model, how, rows, [0, 1, 2, 3, 4])
    for r in range(5):
        alone = written(model, how, rows, [r])
        assert torch.equal(alone.idx[0], batch.idx[r])
        assert_equal(alone.logprob[0], batch.logprob[r])
        assert_equal(alone.language.log_weight[0], batch.language.log_weight[r])
    for span in rows[3]:
        state = span.table.read(batch.idx[span.row, span.start : span.end].tolist())
        assert state >= 0
        assert span.table.final[state]


@pytest.mark.parametrize('drawing', [{}, {'presence_penalty': 1.5}], ids=str)
@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_what_is_written_is_what_is_scored(policy, drawing):
    """The log-probabilities of a run are those of scoring its text, and sum to 1."""
    model = toy()
    canvas = Canvas(TEXTS[:20], ORDER.expand(20, N), 0, range(20))
    canvas.language = Language(spans_of(20), canvas)
    how = policy, [2, 1, 3], None
    fill(model, canvas, unmasking(how), Drawing(**drawing))
    every = scored(model, TEXTS[MATCHES], how, **drawing, min_p=0.02)
    assert_equal(every.logprob.sum(1).exp().sum(), torch.ones((), dtype=torch.float64))
    again = scored(model, canvas.idx, how, **drawing)
    assert torch.equal(again.order, canvas.order)
    assert_equal(again.logprob, canvas.logprob)
    assert_equal(again.language.log_weight, canvas.language.log_weight)


@pytest.mark.parametrize(
    'cut',
    [
        dict(temperature=0),
        dict(temperature=3.0, top_k=2),
        dict(top_p=0.3),
        dict(min_p=0.5, presence_penalty=9.0),
    ],
    ids=str,
)
def test_the_pattern_comes_before_what_a_drawing_cuts(cut):
    """So that something is left at every step."""
    canvas = Canvas(TEXTS[:20], ORDER.expand(20, N), 0, range(20))
    canvas.language = Language(spans_of(20), canvas)
    fill(toy(), canvas, unmasking_of(n_steps=3), Drawing(**cut))
    assert MATCHES[numbers_of(canvas.idx)].all()


def test_a_text_is_revised_inside_its_language():
    """Rounds write blanks again, and what they write matches."""
    model = toy()
    canvas = Canvas(TEXTS[:6], torch.stack([*ROWS[1], ROWS[1][0]]), 0, range(6))
    canvas.language = Language(spans_of(6), canvas)
    fill(model, canvas, unmasking_of(n_steps=3, revise=4), Drawing())
    assert (canvas.n_steps > 3).any()  # some were revised
    assert MATCHES[numbers_of(canvas.idx)].all()


def canvas_on(device):
    """The canvas of ROWS and its language on a device."""
    idx, order, _, spans = ROWS
    canvas = Canvas(idx.to(device), order.to(device), torch.tensor([0, 2, 2, 0, 3]), range(5))
    canvas.language = Language(spans, canvas)
    return canvas


def tables_of(network, how):
    """What is written on such a canvas, on the host."""
    canvas = canvas_on(network.device)
    fill(network, canvas, unmasking_of(**how), Drawing())
    found = canvas.idx, canvas.order, canvas.logprob, canvas.language.log_weight
    return [x.cpu() for x in found]


WRITTEN = [dict(n_steps=3), dict(n_steps=6, policy='margin'), dict(policy='eb:0.5')]


@pytest.mark.parametrize('how', WRITTEN, ids=str)
def test_a_simulated_device_writes_what_a_cpu_writes(simulated, how):
    """Where cells repeat, so that all rows have as many."""
    model = toy().float()
    here = tables_of(model, how)

    def body(device):
        there = tables_of(freeze(model.to(device)), how)
        for x, y in zip(here, there):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-4)

    simulated(body)


@pytest.mark.parametrize('how', WRITTEN, ids=str)
def test_a_device_writes_what_a_cpu_writes(request, how):
    """Under --device=cuda by a frozen network."""
    device = torch.device(request.config.getoption('--device'))
    model = toy()
    here = tables_of(model, how)
    there = freeze(copy.deepcopy(model).to(device))
    for _ in range(3):
        for x, y in zip(here, tables_of(there, how)):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-10)
