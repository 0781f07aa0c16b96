"""
Runs a script as if on a GPU: tensors of the device `sim` have their numbers in host memory, apart
from the CPU's.

    python tests/simulated_gpu.py train.py config/quickstart.py --max_iters=2

At the end come the lines that made the host wait for the device, and how often. A test asks inside
of `run` and `counted`. As on a GPU it is an error

- to do an operation on tensors of both devices, a number of the host apart,
- to wait, or to copy from the host, while a CUDA graph is recorded,
- to record in a pool whose graphs are gone,
- to replay a graph when memory outside its pool that it reads or writes was given back.

A CUDA graph is the list of operations that it recorded, which are done again on the same memory;
recording them changes nothing. Graphs of one pool share memory, where each may overwrite what the
others leave there: see Graph.spoil.

What waits is what torch.cuda.set_sync_debug_mode finds, and every copy to the host, also one that
is waited for later. Nothing is said of speed, of kernels for CUDA alone, or of bfloat16."""

import collections
import contextlib
import os
import runpy
import sys
import traceback
import weakref

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOT_OURS = (os.path.dirname(torch.__file__), os.path.abspath(__file__))

# --------------------------------------------------------------------------------------------------
# what waits

WAITS = {  # their results go to the host, or sizes of their results do
    'aten::_local_scalar_dense',
    'aten::_unique2',
    'aten::allclose',
    'aten::bincount',
    'aten::equal',
    'aten::masked_select',
    'aten::nonzero',
    'aten::unique_consecutive',
    'aten::unique_dim',
}
MOVES = {'aten::_to_copy', 'aten::copy_'}
INDEXING = {'aten::index', 'aten::index_put', 'aten::index_put_'}
FILLS = {'aten::masked_fill', 'aten::masked_fill_', 'aten::index_fill', 'aten::index_fill_'}
ASKED = WAITS | MOVES | INDEXING | FILLS | {'aten::where', 'aten::repeat_interleave'}


# {(file, line, its text): how often} it waited, in the whole run and in each open `counted`
counting = [collections.Counter()]


@contextlib.contextmanager
def counted():
    """Give the waits of what happens inside."""
    counting.append(collections.Counter())
    try:
        yield counting[-1]
    finally:
        counting.pop()


def count(operation, args, kwargs, stays):
    """Count whether CUDA waits for an operation whose result `stays` on the device."""
    name = operation._schema.name
    if name not in ASKED:
        return
    named = dict(zip((argument.name for argument in operation._schema.arguments), args)) | kwargs
    comes = stays and comes_from_host(name, named)
    waits = must_wait(name, named, stays) or comes and not named.get('non_blocking')
    if not waits and not comes:
        return
    if recording is not None:
        said = 'nothing may come from the host' if comes else 'the host must not wait'
        raise RuntimeError(f'{said} while a graph is recorded: {name}')
    if waits:
        place = our_line()
        for waited in counting:
            waited[place] += 1


def comes_from_host(name, named):
    """Whether CUDA copies a tensor of the host to the device.

    A number of the host in arithmetic is not copied, but handed to the kernel."""
    if name not in MOVES | INDEXING | {'aten::where'} or fills_mask(name, named):
        return False
    return not all(isinstance(x, OnDevice) for x in tensors_of(named))


def must_wait(name, named, stays):
    """Whether CUDA lets the host wait, if not for a copy to the device."""
    if name in MOVES:
        return not stays
    if name == 'aten::repeat_interleave':
        return named.get('output_size') is None
    if name in FILLS:  # it reads a value of the device first
        return isinstance(named['value'], OnDevice)
    if name in INDEXING and not fills_mask(name, named):  # it counts what a mask chooses
        return any(is_mask(x) for x in named['indices'])
    return name in WAITS


def fills_mask(name, named):
    """Whether this is x[mask] = number, for which CUDA has a kernel that takes the number."""
    if name not in INDEXING or 'values' not in named or named.get('accumulate'):
        return False
    indices = [x for x in named['indices'] if x is not None]
    is_number = not isinstance(named['values'], OnDevice) and named['values'].numel() == 1
    return is_number and len(indices) == 1 and is_mask(indices[0])


def is_mask(x):
    return isinstance(x, OnDevice) and x.dtype == torch.bool


def tensors_of(x):
    """Return the tensors in arguments, or in a result."""
    found = []
    with_tensors(found.append, x)
    return found


def with_tensors(function, x):
    """Return arguments, or a result, with function(tensor) in place of each tensor."""
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, dict):
        return {name: with_tensors(function, one) for name, one in x.items()}
    if isinstance(x, list | tuple):
        return type(x)([with_tensors(function, one) for one in x])
    return x


def our_line():
    """Return (file, line, its text) of the last call in a file of the project."""
    calls = traceback.extract_stack()
    last = [call for call in calls if not call.filename.startswith(NOT_OURS)][-1]
    return os.path.relpath(last.filename, ROOT), last.lineno, last.line


# --------------------------------------------------------------------------------------------------
# its tensors


class Memory:
    """What a tensor and all its views keep; it goes with the last of them."""


memories = weakref.WeakValueDictionary()  # {address: Memory}


def address(host):
    return host.untyped_storage()._cdata


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
        self.memory = memories.setdefault(address(host), Memory())

    def __reduce_ex__(self, protocol):  # as a GPU's tensor that is loaded on a machine without one
        return self.host.__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy)
        return memo.setdefault(id(self), copy.requires_grad_(self.requires_grad))

    def __setitem__(self, key, value):
        if not isinstance(value, torch.Tensor):  # for CUDA alone a number is made on the host
            value = torch.scalar_tensor(value, dtype=self.dtype)
        super().__setitem__(key, value)

    def data_ptr(self):
        return self.host.data_ptr()

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return simulate(operation, args, kwargs or {})


class Simulation(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):  # which takes two seconds to import
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return simulate(operation, args, kwargs or {})


def simulate(operation, args, kwargs):
    name = operation._schema.name
    device = kwargs.get('device')
    tensors = tensors_of((args, kwargs))
    here = [x for x in tensors if isinstance(x, OnDevice)]
    stays = bool(here) if device is None else device.type == 'sim'
    if name == 'aten::copy_':
        stays = isinstance(args[0], OnDevice)
    check_devices(name, args, tensors, here)
    if here or stays:
        count(operation, args, kwargs, stays)
    if recording is not None and stays:
        recording.use(operation, here)

    # The same operation on the host
    on_host = {id(x.host): x for x in here}
    args, kwargs = with_tensors(host_of, (args, kwargs))
    kwargs |= {'device': torch.device('cpu')} if device is not None else {}
    result = operation(*args, **kwargs)

    def back(x):
        if id(x) in on_host:
            return on_host[id(x)]
        return OnDevice(x) if stays else x

    result = with_tensors(back, result)
    if recording is not None and stays:
        recording.add(operation, args, kwargs, result)
    return result


def host_of(x):
    return x.host if isinstance(x, OnDevice) else x


def check_devices(name, args, tensors, here):
    """Raise RuntimeError for an operation on tensors of both devices."""
    if not here or name in MOVES:
        return
    mixed = [x for x in tensors if not isinstance(x, OnDevice) and x.dim()]
    if name in INDEXING and isinstance(args[0], OnDevice):  # indices may be the host's
        mixed = [x for x in mixed if any(x is value for value in args[2:])]
    if mixed:
        raise RuntimeError(f'{name} of tensors of both devices, of the host {mixed[0].shape}')


# --------------------------------------------------------------------------------------------------
# CUDA graphs

recording = None  # the Graph that is being recorded


class Pool:
    """What torch.cuda.graph_pool_handle gives: the graphs that share memory, while they live."""

    def __init__(self):
        self.n_recorded = 0
        self.graphs = weakref.WeakValueDictionary()  # {the how many-th: Graph}


class Stream:  # a class, as in annotations of transformers
    def __init__(self, device=None):
        pass


@contextlib.contextmanager
def record(graph, pool=None, **_):
    """In place of torch.cuda.graph."""
    global recording
    pool = pool or Pool()
    if pool.n_recorded and not pool.graphs:
        raise RuntimeError('use_count > 0 fails: all graphs of this pool are gone')
    graph.number = pool.n_recorded
    pool.n_recorded += 1
    recording = graph
    try:
        yield
    finally:
        recording = None
        graph.undo()
    graph.end(pool)


class Graph:
    """In place of torch.cuda.CUDAGraph.

    operations  [(operation, args, kwargs, results)], where results are the tensors that it makes,
                and None for each that is a view or written in place
    own         {address: (tensor, its Memory)} in the pool; Memory by a weak reference
    outside     {address: Memory} of tensors that it reads or writes, by a weak reference
    before      {address: (memory, a copy of it)}: what lay outside before it was recorded"""

    n_replays = 0  # of all graphs

    def __init__(self):
        self.operations = []
        self.own = {}
        self.outside = {}
        self.before = {}

    def use(self, operation, tensors):
        """Take note of the tensors that an operation reads and writes, before it does."""
        for x in tensors:
            at = address(x.host)
            if at not in self.own:
                self.outside[at] = weakref.ref(x.memory)
                if operation._schema.is_mutable and at not in self.before:
                    numbers = torch.empty(0, dtype=torch.uint8).set_(x.host.untyped_storage())
                    self.before[at] = (numbers, numbers.clone())

    def add(self, operation, args, kwargs, result):
        """Record an operation; `args` and `kwargs` are of the host."""
        inputs = {address(x) for x in tensors_of((args, kwargs))}
        results = []
        for x in tensors_of(result):
            is_own = address(x.host) not in inputs
            results.append(x.host if is_own else None)
            if is_own:
                self.own[address(x.host)] = (x.host, weakref.ref(x.memory))
        self.operations.append((operation, args, kwargs, results))

    def undo(self):
        """Nothing was done, whatever was recorded."""
        with _disable_current_modes():
            for numbers, copy in self.before.values():
                numbers.copy_(copy)
            for x, _ in self.own.values():
                spoil(x)
        self.before = {}

    def end(self, pool):
        self.pool = pool
        pool.graphs[self.number] = self

    def replay(self):
        if any(memory() is None for memory in self.outside.values()):
            raise RuntimeError('a graph is replayed that reads or writes what was given back')
        Graph.n_replays += 1
        with _disable_current_modes():
            for operation, args, kwargs, results in self.operations:
                for x, new in zip(results, tensors_of(operation(*args, **kwargs))):
                    if x is not None:
                        x.copy_(new)
            self.spoil()

    def spoil(self):
        """Overwrite what another graph of the pool may overwrite.

        A tensor of which Python has no reference left is free to all of them. One of a later graph
        may lie where this graph has such a tensor: only a result that was there when the later
        graph was recorded is safe from it."""
        for x, memory in self.own.values():
            if memory() is None:
                spoil(x)
        for number, graph in self.pool.graphs.items():
            if number > self.number:
                for x, memory in graph.own.values():
                    if memory() is not None:
                        spoil(x)


def spoil(x):
    """Write numbers that are seen in whatever is made of them."""
    if x.is_floating_point() or x.dtype == torch.bool:
        x.fill_(torch.nan)
    else:
        x.fill_(torch.iinfo(x.dtype).max)


# --------------------------------------------------------------------------------------------------
# the device


# Here, and not in each fork: it goes through all operations
AUTOCAST = torch.library.Library('_', 'IMPL', 'AutocastPrivateUse1')
AUTOCAST.fallback(torch.library.fallthrough_kernel)


class Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):  # all random numbers are the host's
        pass


class HostGenerator(torch.Generator):
    def __new__(cls, device='cpu'):
        return super().__new__(cls)


def run(function):
    """Return function(device) of the simulated device, which this process has from now on.

    A test calls it in a fork. What runs backward wants a process of its own: autograd does not know
    a device that comes after its first use."""
    backend_registration._setup_privateuseone_for_python_backend('sim', backend_module=Module())
    sys.path.insert(0, ROOT)
    from anyorder import flops
    from anyorder.machine import devices, graphs

    torch.cuda.CUDAGraph = Graph
    torch.cuda.graph = record
    torch.cuda.graph_pool_handle = Pool
    torch.cuda.Stream = Stream
    torch.cuda.stream = contextlib.nullcontext
    torch.Generator = HostGenerator
    device = torch.device('sim:0')
    replace(devices.resolve_device, lambda device_name, dtype: (device, 'float32'))
    replace(flops.matmul_flops, lambda device, dtype: 1e12)
    wanted = os.environ.get('ANYORDER_GRAPHS') != '0'
    replace(graphs.has_graphs, lambda device: wanted and device.type == 'sim')
    torch._C._set_only_lift_cpu_tensors(True)  # else the copy of torch.tensor(.., device) is hidden
    with Simulation():
        return function(device)


def replace(old, new):
    """Put a function in place of another, also in modules that have imported it before."""
    for name, module in [*sys.modules.items()]:
        if name.startswith('anyorder') and getattr(module, old.__name__, None) is old:
            setattr(module, old.__name__, new)


def main():
    sys.argv = sys.argv[1:]
    run(lambda _: runpy.run_path(os.path.join(ROOT, sys.argv[0]), run_name='__main__'))
    (whole,) = counting
    for (file, number, line), n in whole.items():
        print(f'waited in {file}, line {number}, {line}: {n}')
    if Graph.n_replays:
        print(f'replayed: {Graph.n_replays}')


if __name__ == '__main__':
    main()
