"""Curves of logs: what is on the axes, and a picture that is one."""
import json
import math

import pytest

from plot import curve, main, read_run

ENTRIES = [{'iter': 10, 'tokens': 600, 'tokens_per_sec': 5.0, 'loss': 3.0},
           {'iter': 30, 'tokens': 1800, 'tokens_per_sec': 10.0, 'loss': 2.0, 'val_any': 2.5}]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a', 'b'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'log.jsonl').write_text(''.join(json.dumps(e) + '\n' for e in ENTRIES) + '{"iter": 40, "lo')
    return tmp_path


def test_the_axes(runs):
    entries = read_run('a')
    times, losses = curve(entries, 'time', 'loss')
    assert losses == [3.0, 2.0] and all(map(math.isclose, times, [2.0, 4.0]))   # 600 / 5 s, then 1200 / 10 s more, in minutes
    assert curve(entries, 'tokens', 'val_any') == ([1800], [2.5])


@pytest.mark.parametrize('name, head', [('loss.png', b'\x89PNG'), ('loss.svg', b'<?xml')])
def test_a_picture(runs, name, head, capsys):
    main(['a', 'b/log.jsonl', '-o', name, '--x=time', '--y=loss,val_any', '--labels=AdamW,Muon'])
    content = (runs / name).read_bytes()
    assert content.startswith(head) and len(content) > 5000 and capsys.readouterr().out == f'{name} written\n'


@pytest.mark.parametrize('args, said', [
    (['c'], 'no log c'), (['a', '--y=val_l2r'], 'no run has val_l2r by tokens; they have: iter, loss'),
    (['a', '--labels=x,y'], 'must name 1 runs, got 2'), (['a', '-o', 'x.jpg'], 'x.jpg'), (['a', '-o', 'none/x.png'], 'none/x.png')])
def test_wrong_input_is_one_line(runs, args, said):
    with pytest.raises(ValueError, match=said):
        main(args)
