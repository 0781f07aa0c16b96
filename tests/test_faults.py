"""The list of faults: each names a text that stands once in its file, and tests that are there."""
import os

import pytest
from conftest import ROOT
from faults import FAULTS


@pytest.mark.parametrize('file', FAULTS)
def test_every_fault_can_be_put_into_its_file(file):
    tests, faults = FAULTS[file]
    with open(os.path.join(ROOT, file), encoding='utf-8') as f:
        text = f.read()
    assert [fault for fault in faults if text.count(fault[0]) != 1 or fault[0] == fault[1]] == []
    assert all(os.path.isfile(os.path.join(ROOT, 'tests', f'{test}.py')) for test in tests.split())
