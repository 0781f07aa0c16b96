"""Disk and terminal: files that are whole or not there, bars, names that are checked before the work begins."""
import contextlib
import os

import pytest

from anyorder.files import progress, replace_file


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'f'
    replace_file(path, b'old')
    monkeypatch.setattr(os, 'fsync', lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b'new')
    assert path.read_bytes() == b'old' and os.listdir(tmp_path) == ['f']


def test_a_bar_is_one_of_the_terminal_and_outlives_it(monkeypatch):
    reading, writing = os.pipe()
    stream = open(writing, 'w', buffering=1)
    monkeypatch.setattr('sys.stderr', stream)
    bar = progress(total=3)
    assert bar.fp == stream   # as tqdm asks before it measures the terminal
    os.close(reading)
    bar.update(3)
    bar.close()
    with contextlib.suppress(OSError):
        stream.close()
