"""Which device, in which precision; and what a device without float64 draws."""

import pytest
import torch

from anyorder.machine import devices
from anyorder.machine.devices import resolve_compile, resolve_device, widest


@pytest.mark.parametrize(
    'there, expected', [(['cuda', 'mps'], 'cuda'), (['mps'], 'mps'), ([], 'cpu')]
)
def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch, there, expected):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: 'cuda' in there)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: 'mps' in there)
    monkeypatch.setattr(torch, 'empty', lambda *_, device: None)  # neither is here
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda emulated: True)
    monkeypatch.setattr(devices, 'cpu_has_fast_bfloat16', lambda: True)
    dtype = 'float32' if expected == 'mps' else 'bfloat16'
    assert resolve_device('auto', 'auto') == (torch.device(expected), dtype)
    assert resolve_device(expected, 'bfloat16') == (torch.device(expected), 'bfloat16')


@pytest.mark.parametrize(
    'said, dtype',
    [
        ('vendor_id : AuthenticAMD\nflags : avx512f avx512_bf16', 'bfloat16'),
        ('vendor_id : GenuineIntel\nflags : avx512f avx512_bf16', 'float32'),  # slower, as measured
        ('vendor_id : GenuineIntel\nflags : avx512f avx512_bf16 amx_bf16', 'bfloat16'),
        ('vendor_id : AuthenticAMD\nflags : avx2', 'float32'),
        ('Features : asimd bf16', 'bfloat16'),
        ('', 'float32'),
    ],
)
def test_auto_takes_bfloat16_of_processors_that_are_fast_with_it(monkeypatch, said, dtype):
    monkeypatch.setattr(devices, 'cpuinfo', lambda: said)
    assert resolve_device('cpu', 'auto') == (torch.device('cpu'), dtype)


def test_a_device_that_is_not_there_is_one_line():
    for device in ('mps', 'cuda:9', 'tpu'):
        with pytest.raises(ValueError, match='device') as e:
            resolve_device(device, 'auto')
        assert len(str(e.value).splitlines()) == 1


def test_mps_has_no_float64_and_is_not_compiled_unasked():
    mps = torch.device('mps')
    assert widest(mps) == torch.float32 and widest(torch.device('cpu')) == torch.float64
    assert resolve_compile('auto', mps, 1e20, 10**6)[0] is False
