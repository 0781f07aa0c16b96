"""The journal of an evaluation: it goes on where it was, and its file is ours or refused in one line."""
import json

import pytest
import torch

from anyorder.likelihood import journal
from anyorder.likelihood.journal import Journal

NAME = ('a set', '12ab', 'orders')


def work(calls):
    """work(blocks) for Journal.complete, which notes the blocks."""
    def nats(blocks):
        calls.append(blocks)
        return torch.tensor([[n + 0.5, 2.0 * n] for n in blocks], dtype=torch.float64)
    return nats


WANT = torch.tensor([[n + 0.5, 2.0 * n] for n in range(7)], dtype=torch.float64)


def test_it_runs_what_is_missing_and_drops_a_cut_line(tmp_path):
    path, calls = str(tmp_path / 'j.jsonl'), []
    assert torch.equal(Journal(path, {'seed': 1}).complete(NAME, 7, 3, work(calls)), WANT)
    assert calls == [[0, 1, 2], [3, 4, 5], [6]]
    lines = open(path).readlines()
    assert json.loads(lines[0]) == {'seed': 1} and json.loads(lines[2]) == ['a set', '12ab', 'orders', 1, [1.5, 2.0]]
    for kept, again in ((len(lines), []), (4, [[3, 4, 5], [6]])):
        with open(path, 'w') as f:
            f.write(''.join(lines[:kept]) + '["a set", "12ab", "orders", 5, [5.')
        calls.clear()
        assert torch.equal(Journal(path, {'seed': 1}).complete(NAME, 7, 3, work(calls)), WANT) and calls == again
    assert open(path).readlines() == lines
    there = Journal(path, {'seed': 1})
    assert there.missing(NAME, 9) == [7, 8]
    for other in (('another', '12ab', 'orders'), ('a set', '0000', 'orders'), ('a set', '12ab', 'l2r')):
        assert there.missing(other, 3) == [0, 1, 2]   # set, blocks and work are all in the key


def test_numbers_come_back_to_the_last_bit(tmp_path):
    path, x = str(tmp_path / 'j.jsonl'), torch.rand(5, 3, dtype=torch.float64) * 1e9 / 3
    Journal(path, {}).complete(NAME, 5, 2, lambda blocks: x[blocks])
    again = Journal(path, {}).complete(NAME, 5, 2, None)
    assert torch.equal(again, x) and again.dtype == torch.float64


def test_without_a_path_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert torch.equal(Journal('', {'seed': 1}).complete(NAME, 7, 3, work([])), WANT) and not list(tmp_path.iterdir())


def test_another_evaluation_is_refused(tmp_path):
    path = str(tmp_path / 'j.jsonl')
    Journal(path, {'seed': 1}).complete(NAME, 2, 3, work([]))
    for other, said in (({'seed': 2}, 'seed'), ({'seed': 1, 'order': 3}, 'order'), ({}, 'seed')):
        with pytest.raises(ValueError, match=f'another evaluation .{said} differ'):
            Journal(path, other)
    (tmp_path / 'begun.jsonl').write_text('')
    assert not Journal(str(tmp_path / 'begun.jsonl'), {'seed': 1}).done
    assert json.loads((tmp_path / 'begun.jsonl').read_text()) == {'seed': 1}


@pytest.mark.parametrize('text', [
    'hello\n', '3\n', '[1, 2]\n', 'no line end', '{"half', '{}\n3\n', '\n', '{}\n\n', '\xff\n',
    '{}\n' + '[' * 100_000 + '\n', '{}\n{"prompt": "a"}\n', '{}\n["a", "b", "c", 1, 5.0]\n',
    '{}\n["a", "b", "c", 1, [NaN]]\n', '{}\n["a", "b", "c", 1, [1e999]]\n',
    '{}\n["a", "b", "c", 1, [1' + '0' * 400 + ']]\n'])
def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path, text):
    path = tmp_path / 'x.jsonl'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError, match='x.jsonl cannot be read as a list of finished blocks: remove it or'):
        Journal(str(path), {})
    assert path.read_bytes() == text.encode('latin-1')


def test_blocks_of_one_work_have_as_many_nats(tmp_path):
    path = tmp_path / 'x.jsonl'
    path.write_text('{}\n["a", "b", "c", 0, [5.0]]\n["a", "b", "c", 1, [5.0, 6.0]]\n')
    with pytest.raises(ValueError, match='x.jsonl is no list of finished blocks: .* differ'):
        Journal(str(path), {}).complete(('a', 'b', 'c'), 2, 1, None)


def test_processes_take_turns_and_the_first_one_writes(tmp_path, monkeypatch):
    """Two processes, one after the other: each runs its chunks, and hears the other's."""
    chunks, results = {0: [[0, 1], [4, 5]], 1: [[2, 3], [6]]}, []
    for rank in (0, 1):
        path, calls, turns = tmp_path / f'{rank}.jsonl', [], iter(chunks[1 - rank])

        def gather(mine, turns=turns):
            theirs = [] if mine is None else next(turns)
            return [mine, [((*NAME, n), nats) for n, nats in zip(theirs, work([])(theirs).tolist())]]
        monkeypatch.setattr(journal, 'processes', lambda rank=rank: (rank, 2))
        monkeypatch.setattr(journal, 'gather', gather)
        results.append(Journal(str(path), {}).complete(NAME, 7, 2, work(calls)))
        assert calls == chunks[rank] and path.exists() == (rank == 0)
    assert torch.equal(results[0], WANT) and torch.equal(results[1], WANT)
    assert len((tmp_path / '0.jsonl').read_text().splitlines()) == 8
