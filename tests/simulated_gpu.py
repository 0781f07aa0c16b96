"""
Runs a script as if on a GPU: tensors of the device `sim` have their numbers in host memory, apart
from the CPU's.

    python tests/simulated_gpu.py train.py config/quickstart.py --max_iters=2

An operation on tensors of both devices is an error, as on a GPU. At the end come the lines that
made the host wait for the device, and how often. A CUDA graph is the list of operations that it
recorded, done again on the same memory; graphs do not share theirs. Nothing is said of speed, of
kernels for CUDA alone, of bfloat16, or of a device that waits."""

import collections
import contextlib
import os
import runpy
import sys
import traceback

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCH = os.path.dirname(torch.__file__)
# their results go to the host
WAITS = {f'aten::{name}' for name in ('_local_scalar_dense', 'equal', 'nonzero', '_unique2')}
MOVES = {'aten::_to_copy', 'aten::copy_'}
waits = collections.Counter()  # {(file, line, its text): how often}


recording = None  # the operations of the Graph that is being recorded


class Graph:
    n_replays = 0

    def replay(self):
        Graph.n_replays += 1
        with _disable_current_modes():
            for operation, args, kwargs, old in self.operations:
                inputs = {
                    x.untyped_storage().data_ptr()
                    for x in tree_leaves((args, kwargs))
                    if isinstance(x, torch.Tensor)
                }
                for x, new in zip(tree_leaves(old), tree_leaves(operation(*args, **kwargs))):
                    # else a view, or written in place
                    if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in inputs:
                        x.copy_(new)


@contextlib.contextmanager
def record(graph, pool, stream):
    global recording
    graph.operations = recording = []
    yield
    recording = None


class Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):  # all random numbers are the host's
        pass


class NoStream:  # a class, as in annotations of transformers
    def __new__(cls, device=None):
        return None


class HostGenerator(torch.Generator):
    def __new__(cls, device='cpu'):
        return super().__new__(cls)


class OnDevice(torch.Tensor):
    """A tensor of the device `sim` that has the numbers of `host`."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            dtype=host.dtype,
            storage_offset=host.storage_offset(),
            device='sim:0',
        )

    def __init__(self, host):
        self.host = host

    def __reduce_ex__(self, protocol):  # as a GPU's tensor that is loaded on a machine without one
        return self.host.__reduce_ex__(protocol)

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return simulate(operation, args, kwargs or {})


class Simulation(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return simulate(operation, args, kwargs or {})


def simulate(operation, args, kwargs):
    name, device = operation._schema.name, kwargs.get('device')
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    here = [isinstance(x, OnDevice) for x in tensors]
    stays = any(here) if device is None else device.type == 'sim'
    if name == 'aten::copy_':
        stays = isinstance(args[0], OnDevice)
    if any(here):
        # a number may come from the host
        joins = name in ('aten::stack', 'aten::cat')  # of which CUDA takes none
        mixed = [x for x, on_device in zip(tensors, here) if not on_device and (joins or x.dim())]
        if mixed and name not in MOVES and not name.startswith('aten::index'):  # and so may indices
            raise RuntimeError(
                f'{name} of {["sim" if on_device else "cpu" for on_device in here]}, of sizes '
                f'{[tuple(x.shape) for x in tensors]}'
            )
        masks = [
            x for x, on_device in zip(tensors[1:], here[1:]) if on_device and x.dtype == torch.bool
        ]
        if name in WAITS or masks and name.startswith('aten::index') or not stays:
            assert recording is None, 'the host must not wait while a graph is recorded'
            ours = (TORCH, os.path.abspath(__file__))
            line = [f for f in traceback.extract_stack() if not f.filename.startswith(ours)][-1]
            waits[os.path.relpath(line.filename, ROOT), line.lineno, line.line] += 1
    on_host = {id(x.host): x for x, on_device in zip(tensors, here) if on_device}
    args, kwargs = tree_map(lambda x: x.host if isinstance(x, OnDevice) else x, (args, kwargs))
    kwargs |= {'device': torch.device('cpu')} if device is not None else {}
    with _disable_current_modes():
        result = operation(*args, **kwargs)
    if recording is not None and stays:
        assert all(here), f'nothing may come from the host while a graph is recorded: {name}'
        recording.append((operation, args, kwargs, result))

    def back(x):
        return (
            on_host[id(x)]
            if id(x) in on_host
            else OnDevice(x)
            if stays and isinstance(x, torch.Tensor)
            else x
        )

    return tree_map(back, result)


def main():
    backend_registration._setup_privateuseone_for_python_backend('sim', backend_module=Module())
    autocast = torch.library.Library('_', 'IMPL', 'AutocastPrivateUse1')
    autocast.fallback(torch.library.fallthrough_kernel)
    sys.path.insert(0, ROOT)
    from anyorder import writer
    from anyorder.machine import devices, processes

    torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.graph_pool_handle = (
        Graph,
        record,
        lambda: None,
    )
    torch.cuda.Stream = NoStream
    torch.Generator = HostGenerator
    for module in (devices, processes, writer):  # which may have imported it before
        module.resolve_device = lambda device, dtype: (torch.device('sim:0'), 'float32')
    devices.matmul_flops = lambda device, dtype: 1e12
    sys.argv = sys.argv[1:]
    with Simulation():
        runpy.run_path(os.path.join(ROOT, sys.argv[0]), run_name='__main__')
    for (file, number, line), n in waits.items():
        print(f'waited in {file}, line {number}, {line}: {n}')
    if Graph.n_replays:
        print(f'replayed: {Graph.n_replays}')


if __name__ == '__main__':
    main()
