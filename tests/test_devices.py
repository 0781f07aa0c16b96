"""Which device, in which precision; and what a device without float64 draws."""

from contextlib import nullcontext

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
    monkeypatch.setattr(torch.cuda, 'device', lambda device: nullcontext())
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


@pytest.fixture
def gpu(monkeypatch):
    """A GPU in name; gpu(...) says what there is with it."""

    def describe(bfloat16=True, triton=True, hip=None):
        monkeypatch.setattr(torch.cuda, 'device', lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda emulated: bfloat16)
        monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'a card')
        monkeypatch.setattr(torch.version, 'hip', hip)
        monkeypatch.setattr(devices, 'open_device', torch.device)
        monkeypatch.setattr(devices, 'find_spec', lambda name: name if triton else None)
        return torch.device('cuda', 0)

    return describe


def test_a_gpu_that_emulates_bfloat16_has_float32(gpu):
    gpu(bfloat16=False)
    assert resolve_device('cuda:0', 'auto') == (torch.device('cuda', 0), 'float32')
    assert resolve_device('cuda:0', 'float32')[1] == 'float32'
    with pytest.raises(ValueError, match='dtype=bfloat16') as e:
        resolve_device('cuda:0', 'bfloat16')
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize(
    'there, auto', [(dict(), True), (dict(triton=False), False), (dict(hip='7.0'), False)]
)
def test_a_gpu_compiles_where_there_is_triton(gpu, there, auto):
    device = gpu(**there)
    assert resolve_compile('auto', device, 1, 10**6)[0] is auto
    for asked in (True, False):
        assert resolve_compile(asked, device, 1, 1)[0] is asked
