"""The list of faults: each can be put into its file, and the tests that must catch it are there."""

import os

import pytest
from conftest import ROOT
from faults import FAULTS, faults_of


@pytest.mark.parametrize('file', FAULTS)
def test_every_fault_can_be_put_into_its_file(file):
    for _, tests, text, fault in faults_of([file]):
        assert text != fault
        assert all(
            os.path.isfile(os.path.join(ROOT, 'tests', f'{name}.py')) for name in tests.split()
        )
