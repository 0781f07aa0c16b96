"""The environment of a process: torchrun's, whole, or none of it."""

import pytest
from conftest import one_line

from anyorder.machine.processes import processes
from anyorder.machine.surroundings import NAMES, NUMBERS, surroundings
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
