"""How fast a run says it is."""

from types import SimpleNamespace

import pytest
from conftest import make_model

from anyorder.training.clock import Clock
from configurator import Config

OPTIONS = {'batch_size': 3, 'gradient_accumulation_steps': 2, 'block_size': 9, 'max_iters': 30}


@pytest.mark.parametrize('n_seen', [216, 108])  # of which half are padding
def test_four_updates_take_six_seconds(monkeypatch, n_seen):
    """An update has 6 blocks of 9 tokens; the device's peak is 1e6 FLOP/s."""
    now = [100.0]
    monkeypatch.setattr('time.perf_counter', lambda: now[0])
    clock = Clock(make_model(), Config(OPTIONS), peak=1e6)
    clock.start(SimpleNamespace(iter_num=10, n_seen=1000))
    now[0] += 6.0
    said = clock.read(SimpleNamespace(iter_num=14, n_seen=1000 + n_seen))
    full = clock.flops_per_iter / 1.5 / 1e6
    assert said['tokens_per_sec'] == n_seen / 6
    assert said['mfu'] == pytest.approx(full * n_seen / 216, abs=1e-4)
    assert said['seconds_left'] == 16 * 1.5


def test_micro_batches_add_up():
    two = Clock(make_model(), Config(OPTIONS), peak=1e6)
    one = Clock(make_model(), Config(OPTIONS | {'gradient_accumulation_steps': 1}), peak=1e6)
    assert two.flops_per_iter == 2 * one.flops_per_iter
    assert one.flops_per_iter > 0
    assert two.tokens_per_iter == 54
