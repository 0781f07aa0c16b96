"""The environment of a process: torchrun's, whole, or none of it; and the program that it runs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, one_line

from anyorder.machine.processes import processes
from anyorder.machine.surroundings import NAMES, NUMBERS, command, program, surroundings
from anyorder.machine.terminal import read_options

WHOLE = {
    'RANK': '3',
    'LOCAL_RANK': '1',
    'WORLD_SIZE': '4',
    'MASTER_ADDR': 'host',
    'MASTER_PORT': '29500',
}


@pytest.fixture
def surround(monkeypatch):
    """surround(RANK='1', ...) leaves these names of torchrun, and no other, in the environment."""

    def put(**there):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in there.items():
            monkeypatch.setenv(name, value)

    return put


def test_a_process_is_alone_or_one_of_torchrun(surround):
    others = ('SLURM_PROCID', 'SLURM_NTASKS', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK', 'PMI_SIZE')
    for there in ({}, dict.fromkeys(others, '1')):
        surround(**there)
        assert surroundings() == {}
        assert processes() == (0, 1)
    surround(**WHOLE)
    assert surroundings() == {'RANK': 3, 'LOCAL_RANK': 1, 'WORLD_SIZE': 4}
    assert processes() == (3, 4)
    surround(**WHOLE | {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1'})
    assert processes() == (0, 1)


NO_NUMBERS = '-1', '1.0', 'one', '1\n', '1_0', '²'


@pytest.mark.parametrize(
    'there',
    [
        *[{name: WHOLE[name]} for name in WHOLE],
        *[{k: v for k, v in WHOLE.items() if k != name} for name in WHOLE],
        {'RANK': ''},
        {'RANK': '0', 'WORLD_SIZE': '1'},
        dict.fromkeys(WHOLE, ''),
        *[WHOLE | {name: ''} for name in WHOLE],
        *[WHOLE | {name: wrong} for name in NUMBERS for wrong in NO_NUMBERS],
        WHOLE | {'RANK': '4'},
        WHOLE | {'LOCAL_RANK': '4'},
        WHOLE | {'WORLD_SIZE': '0'},
    ],
)
def test_a_part_of_torchruns_names_is_refused(surround, monkeypatch, there):
    surround(**there)
    monkeypatch.setattr('sys.argv', ['sample.py'])
    with one_line(next(iter(there))):
        processes()
    with pytest.raises(SystemExit) as e:  # before a command imports what takes seconds
        read_options({'ckpt': 'none.pt'}, ckpt=())
    assert next(iter(there)) in e.value.code


@pytest.mark.parametrize(
    'folder, file, module, name, typed',
    [
        ('', '{ROOT}/train.py', None, 'train.py', 'python train.py'),
        ('', '{ROOT}/mine/train.py', None, 'mine/train.py', 'python mine/train.py'),
        ('mine', '{ROOT}/mine/own.py', None, 'mine/own.py', 'python own.py'),
        ('mine', '{ROOT}/train.py', None, 'train.py', 'python {ROOT}/train.py'),
        ('', '{ROOT}/mine/own.py', 'mine.own', 'mine/own.py', 'python -m mine.own'),
        ('', '{ROOT}/mine/__main__.py', '__main__', 'mine/__main__.py', 'python mine/__main__.py'),
        ('', '{OUT}/a b/own.py', None, '{OUT}/a b/own.py', "python '{OUT}/a b/own.py'"),
        ('{OUT}', '{OUT}/own.py', None, '{OUT}/own.py', 'python own.py'),
        ('', None, None, '(no file)', 'the same program and'),
        ('', '<stdin>', None, '(no file)', 'the same program and'),
    ],
)
def test_a_program_has_a_name_and_is_typed_where_one_stands(
    monkeypatch, tmp_path, folder, file, module, name, typed
):
    """Its name does not depend on that."""
    places = {'ROOT': ROOT, 'OUT': tmp_path}
    main = SimpleNamespace(__spec__=module and SimpleNamespace(name=module))
    if file:
        main.__file__ = file.format(**places)
    monkeypatch.setitem(sys.modules, '__main__', main)
    monkeypatch.setattr(Path, 'cwd', lambda: Path(ROOT, folder.format(**places)))
    assert program() == name.format(**places)
    assert command(program(), 1) == typed.format(**places)
