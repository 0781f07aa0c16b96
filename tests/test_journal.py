"""The journal of an evaluation: it goes on where it was, and its file is ours or refused."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from conftest import one_line

from anyorder.likelihood import estimates, journal
from anyorder.likelihood.estimates import Estimate
from anyorder.likelihood.journal import Journal

NAME = ('a set', '12ab', 'orders')


WANT = torch.tensor([[n + 0.5, 2.0 * n] for n in range(7)], dtype=torch.float64)


class Known(Estimate):
    """An estimate whose nats are known, three blocks at once; `calls` are the blocks it was
    asked."""

    work = 'orders'

    def __init__(self, want=WANT):
        self.want = want
        self.calls = []

    def n_at_once(self):
        return 3

    def nats(self, model, blocks, numbers, given):
        self.calls.append(numbers)
        return self.want[numbers]

    def complete(self, journal):
        text = SimpleNamespace(
            label='a set', digest='12ab', blocks=torch.zeros(len(self.want), 4), given=None
        )
        return self.measure(None, text, journal)


def test_it_runs_what_is_missing_and_drops_a_cut_line(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    estimate = Known()
    assert torch.equal(estimate.complete(Journal(path, {'seed': 1})), WANT)
    assert estimate.calls == [[0, 1, 2], [3, 4, 5], [6]]
    lines = open(path).readlines()
    assert json.loads(lines[0]) == {'seed': 1}
    assert json.loads(lines[2]) == ['a set', '12ab', 'orders', 1, [1.5, 2.0]]
    for kept, again in ((len(lines), []), (4, [[3, 4, 5], [6]])):
        with open(path, 'w') as f:
            f.write(''.join(lines[:kept]) + '["a set", "12ab", "orders", 5, [5.')
        estimate.calls.clear()
        assert torch.equal(estimate.complete(Journal(path, {'seed': 1})), WANT)
        assert estimate.calls == again
    assert open(path).readlines() == lines


def test_set_blocks_and_work_are_all_in_the_key(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    Known().complete(Journal(path, {'seed': 1}))
    there = Journal(path, {'seed': 1})
    assert there.missing(NAME, 9) == [7, 8]
    for other in (
        ('another', '12ab', 'orders'),
        ('a set', '0000', 'orders'),
        ('a set', '12ab', 'l2r'),
    ):
        assert there.missing(other, 3) == [0, 1, 2]


def test_evaluations_at_once_share_a_journal(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    one = Journal(path, {'seed': 1})
    other = Journal(path, {'seed': 1})
    one.add({(*NAME, 0): [1.0]})
    other.add({(*NAME, 1): [2.0], (*NAME, 2): [3.0]})
    one.add({(*NAME, 3): [4.0]})
    assert Journal(path, {'seed': 1}).done == {(*NAME, n): [n + 1.0] for n in range(4)}


def test_the_bar_counts_blocks(monkeypatch):
    counted = []
    monkeypatch.setattr(
        estimates,
        'progress',
        lambda total, **_: nullcontext(SimpleNamespace(update=counted.append)),
    )
    Known().complete(Journal('', {}))
    assert counted == [3, 3, 1]


def test_numbers_come_back_to_the_last_bit(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    x = torch.rand(5, 3, dtype=torch.float64) * 1e9 / 3
    Known(x).complete(Journal(path, {}))
    estimate = Known(0 * x)
    assert torch.equal(estimate.complete(Journal(path, {})), x)
    assert not estimate.calls


def test_without_a_path_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert torch.equal(Known().complete(Journal('', {'seed': 1})), WANT)
    assert not list(tmp_path.iterdir())


def test_another_evaluation_is_refused(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    Known().complete(Journal(path, {'seed': 1}))
    for other, said in (({'seed': 2}, 'seed'), ({'seed': 1, 'order': 3}, 'order'), ({}, 'seed')):
        with pytest.raises(ValueError, match=f'another evaluation .{said} differ'):
            Journal(path, other)
    (tmp_path / 'begun.jsonl').write_text('')
    assert not Journal(str(tmp_path / 'begun.jsonl'), {'seed': 1}).done
    assert json.loads((tmp_path / 'begun.jsonl').read_text()) == {'seed': 1}


@pytest.mark.parametrize(
    'text',
    ['hello\n', '3\n', '[1, 2]\n', 'no line end', '{"half', '\n', '\xff\n', '{}\n3\n', '{}\n["a\n'],
)
def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path, text):
    path = tmp_path / 'x.jsonl'
    path.write_bytes(text.encode('latin-1'))
    with one_line('x.jsonl cannot be read'):
        Journal(str(path), {})
    assert path.read_bytes() == text.encode('latin-1')


def test_processes_take_turns_and_the_first_one_writes(tmp_path, monkeypatch):
    """Two processes, one after the other: each runs its turns, and hears the other's."""
    turns = {0: [[0, 1, 2], [6]], 1: [[3, 4, 5], []]}
    for rank in (0, 1):
        path = tmp_path / f'{rank}.jsonl'
        estimate = Known()
        theirs = iter(turns[1 - rank])

        def gather(mine, theirs=theirs):
            return [mine, [((*NAME, n), WANT[n].tolist()) for n in next(theirs)]]

        journal = Journal(str(path) if rank == 0 else '', {})
        monkeypatch.setattr(estimates, 'processes', lambda rank=rank: (rank, 2))
        monkeypatch.setattr(estimates, 'gather', gather)
        assert torch.equal(estimate.complete(journal), WANT)
        assert estimate.calls == [turn for turn in turns[rank] if turn]
    assert len((tmp_path / '0.jsonl').read_text().splitlines()) == 8


def test_all_have_what_the_first_process_has_read(tmp_path, monkeypatch):
    """Others may not see its disk."""
    monkeypatch.setattr(journal, 'gather', lambda done: [{(*NAME, 3): [1.5]}, done])
    there = Journal(str(tmp_path / 'nothing.jsonl'), {'model': 1})
    assert there.missing(NAME, 5) == [0, 1, 2, 4]


def test_the_first_process_alone_writes(tmp_path, monkeypatch):
    monkeypatch.setattr('anyorder.likelihood.journal.processes', lambda: (1, 2))
    monkeypatch.setattr('anyorder.likelihood.journal.gather', lambda x: [x, x])
    journal = Journal(str(tmp_path / 'j.jsonl'), {})
    journal.add({(*NAME, 0): [1.0]})
    assert journal.done
    assert not list(tmp_path.iterdir())
