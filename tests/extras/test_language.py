"""The law of blanks among the texts that match, against all 4,096 texts of six tokens."""

import itertools

import numpy as np
import pytest
import torch
from conftest import one_line
from test_generation import chi2_of, limit

from anyorder.extras.patterns import messages
from anyorder.extras.patterns.automaton import Table
from anyorder.extras.patterns.language import Language, Span
from anyorder.generation.canvas import Canvas
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
TEXTS = torch.tensor([*itertools.product(range(V), repeat=N)])
MATCHES = torch.tensor([bool(TABLE.final[TABLE.read(text)]) for text in TEXTS.tolist()])
MATCHES &= torch.tensor([TABLE.read(text) >= 0 for text in TEXTS.tolist()])
BOTH = pytest.mark.parametrize('kind', [messages.Tree, messages.Chain])


@pytest.fixture
def made(kind, monkeypatch):
    """All messages are of this kind."""
    monkeypatch.setattr(messages, 'messages_of', kind)
    monkeypatch.setattr('anyorder.extras.patterns.language.messages_of', kind)
    return kind


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


def observed(language, canvas, logits):
    """Show the laws of all positions that are not known to the language, logits (B, N, V). Return
    which cells they are: (row, position)."""
    language.begin_step(canvas, canvas.known)
    row, _, visit = canvas.cells(canvas.n_blanks)
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


@BOTH
def test_z_is_the_probability_of_a_match(kind):
    """Whatever is put in whatever order: the sum of the probabilities of the texts that match."""
    to = torch.tensor(TABLE.next)
    start = torch.eye(7, dtype=torch.float64)[:1].log().expand(9, 7)
    final = torch.tensor(TABLE.final).double().log().expand(9, 7)
    found = kind(to, start, final, torch.ones(9, N, dtype=torch.bool))
    logits = random_logits(9, N)
    p = logits.softmax(-1)[..., : V + 1]
    masses = torch.zeros(9, N, 5, dtype=torch.float64).index_add_(2, torch.tensor(TABLE.classes), p)
    for place in (3, 0, 5, 1, 4, 2, 4):
        found.put(torch.arange(9), torch.full((9,), place), masses[:, place])
        found.log_z()
    texts = p[:, torch.arange(N), TEXTS].prod(2)  # (9, 4096)
    assert_equal(found.log_z(), texts[:, MATCHES].sum(1).log())


@BOTH
def test_marginals(made):
    """Of each blank, whatever is known."""
    idx = TEXTS[MATCHES][::15]
    canvas = canvas_of(len(idx), n_known=torch.arange(len(idx)) % 5, idx=idx)
    language = Language([Span(r, 0, N, TABLE, 0) for r in range(len(idx))], canvas)
    assert isinstance(language.groups[0].messages, made)
    logits = random_logits(len(idx), N)
    row, position = observed(language, canvas, logits)
    law = probabilities(language, row, position, logits)
    for r, i, p in zip(row.tolist(), position.tolist(), law):
        known = canvas.order[r, : canvas.known[r]].tolist()
        q = law_of_texts(logits[r], {j: int(idx[r, j]) for j in known})
        assert_equal(p, marginal(q, i))
        few = probabilities(language, [r], torch.tensor([i]), logits)  # alone: another way
        assert_equal(few[0], p)


@BOTH
def test_the_joint_law_of_any_blanks_by_drawing_them_in_turn(made):
    """log q of some tokens is the sum of the logs of their laws, each given those before it."""
    n_rows = 40
    idx = TEXTS[MATCHES][torch.arange(n_rows) * 5]
    canvas = canvas_of(n_rows, idx=idx)
    language = Language([Span(r, 0, N, TABLE, 0) for r in range(n_rows)], canvas)
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


@BOTH
@pytest.mark.parametrize(
    'share', [23, pytest.param(1, marks=pytest.mark.slow)], ids=['some', 'every']
)
def test_what_may_stand_in_a_partial_text(made, share):
    """Exactly the tokens with which some text matches, in every blank of all partial texts."""
    partial = torch.tensor([*itertools.product(range(-1, V), repeat=N)][::share])
    possible, may = allowed_sets(partial)
    idx = partial[possible]
    may = may[possible]
    is_blank = idx < 0
    order = is_blank.long().argsort(dim=1, stable=True)  # what is known first
    canvas = Canvas(idx.clamp(min=0), order, N - is_blank.sum(1), range(len(idx)))
    spans = [Span(r, 0, N, TABLE, 0) for r in range(len(idx))]
    language = Language(spans, canvas)
    row, position = is_blank.nonzero(as_tuple=True)
    law = probabilities(language, row, position, random_logits(len(idx), N))
    assert torch.equal(law > 0, may[row, position])
    for text in partial[~possible][:: 40 * share]:
        order = (text < 0).long().argsort(dim=0, stable=True).unsqueeze(0)
        n_known = int((text >= 0).sum())
        with one_line('contradicts the pattern'):
            canvas = Canvas(text.clamp(min=0).unsqueeze(0), order, n_known, [0])
            Language([Span(0, 0, N, TABLE, 0)], canvas)


@pytest.mark.slow
@BOTH
def test_draws(made):
    """20,000 texts of six tokens that are drawn in turn, by chi-square."""
    n = 20_000
    canvas = canvas_of(n)
    language = Language([Span(r, 0, N, TABLE, 0) for r in range(n)], canvas)
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
    number = (canvas.idx * V ** torch.arange(N - 1, -1, -1)).sum(1)
    counts = torch.bincount(number, minlength=len(TEXTS))
    assert counts[~MATCHES].sum() == 0
    often = n * q > 5
    assert often.sum() > 30
    rare = ~often
    counts = torch.cat([counts[often], counts[rare].sum(0, keepdim=True)])
    expected = torch.cat([q[often], q[rare].sum(0, keepdim=True)])
    assert chi2_of(counts, expected) < limit(int(often.sum()))
