"""The simulated GPU of the tests catches what a card would catch: waits, copies from the host, and
graphs that are used when their memory is another's."""

import copy
from functools import partial

import pytest
import torch
from simulated_gpu import counted

# {what is done to x (4, 5), i (2,) and m (4, 5) bool of the device and h (2,) of the host: how
# often it waits and copies}
COSTS = {
    'x[0, 1] = 3': (1, 1),
    'x[i] = 3': (1, 1),
    'x[i, i] = 3': (1, 1),
    'x[i] = torch.tensor(3.0)': (1, 1),
    'x[i, 0] = x[0, i]': (0, 0),
    'x[1:2] = 3': (0, 0),
    'x[m] = 3': (0, 0),
    'x[m] = x[0, 0]': (1, 0),
    'x[m]': (1, 0),
    'x[i]': (0, 0),
    'x[h]': (1, 1),
    'x[[0, 1]]': (1, 1),
    'x[i[0]]': (1, 0),
    'x.fill_(3)': (0, 0),
    'x.masked_fill(m, 3)': (0, 0),
    'x.masked_fill(m, x[0, 0])': (1, 0),
    'x.scatter(0, i[None], 3)': (0, 0),
    'x + 3 + torch.tensor(3)': (0, 0),
    'torch.where(m, x, 0)': (0, 0),
    'torch.where(m, x, torch.tensor(0.0))': (1, 1),
    'torch.where(m)': (1, 0),
    'm.nonzero()': (1, 0),
    'x.masked_select(m)': (1, 0),
    'i.unique()': (1, 0),
    'i.repeat_interleave(2)': (0, 0),
    'i.repeat_interleave(i)': (1, 0),
    'i.repeat_interleave(i, output_size=1)': (0, 0),
    'torch.equal(x, x)': (1, 0),
    'bool(m.any())': (1, 0),
    'x[0, 0].item()': (1, 0),
    'x.tolist()': (1, 0),
    'x.cpu()': (1, 0),
    'x.to("cpu", non_blocking=True)': (1, 0),
    'h.to(device)': (1, 1),
    'h.to(device, non_blocking=True)': (0, 1),
    'i.copy_(h)': (1, 1),
    'i.copy_(h, non_blocking=True)': (0, 1),
    'torch.tensor([1, 2], device=device)': (1, 1),
    'torch.as_tensor(1, device=device)': (1, 1),
    'torch.full((2,), 1, device=device)': (0, 0),
    'torch.arange(2, device=device)': (0, 0),
}


def test_waits_and_copies(simulated):
    def body(device):
        x = torch.zeros(4, 5, device=device)
        m = x > 0
        i = torch.arange(2, device=device)
        h = torch.arange(2)
        names = dict(torch=torch, device=device, x=x, m=m, i=i, h=h)
        for done, want in COSTS.items():
            with counted() as counts:
                exec(done, names)
            assert (counts.waits.total(), counts.copies.total()) == want, done

    simulated(body)


def test_a_count_names_the_line(simulated):
    def body(device):
        x = torch.zeros(3, device=device)
        with counted() as counts:
            with counted() as inner:
                for _ in range(2):
                    x.sum().item()  # here
            x.copy_(torch.zeros(3))
        ((file, line, text),) = inner.waits
        assert file == 'tests/test_simulation.py'
        assert text == 'x.sum().item()  # here'
        assert inner.waits == {(file, line, text): 2}
        assert counts.waits[file, line, text] == 2
        assert not inner.copies
        assert [*counts.copies.values()] == [1]

    simulated(body)


def test_devices_do_not_mix(simulated):
    def body(device):
        x = torch.zeros(3, device=device)
        host = torch.zeros(3)
        index = torch.arange(3, device=device)
        for wrong in (
            lambda: x + host,
            lambda: host[index],
            lambda: x.index_put_((index,), host),
            lambda: torch.stack([x[0], host[0]]),
        ):
            with pytest.raises(RuntimeError, match='aten::'):
                wrong()

    simulated(body)


# ---- graphs


class Recorded:
    """A function as a graph of its own pool and stream, or of those given."""

    def __init__(self, function, pool=None, stream=None):
        self.pool = pool or torch.cuda.graph_pool_handle()
        self.stream = stream or torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.pool, stream=self.stream):
            self.result = function()

    def __call__(self):
        self.graph.replay()
        return self.result


def test_a_recording_does_nothing_and_a_replay_all(simulated):
    def body(device):
        x = torch.zeros(3, device=device)

        def function():
            view = x[1:]
            view += 1
            return (x * 2).sum() + view.max()

        recorded = Recorded(function)
        assert x.tolist() == [0, 0, 0]
        assert recorded.result.isnan().item()
        kept = recorded()
        assert (x.tolist(), kept.item()) == ([0, 1, 1], 5)
        x.fill_(3)
        recorded()
        assert (x.tolist(), kept.item()) == ([3, 4, 4], 26)  # a replay overwrites the result

    simulated(body)


@pytest.mark.parametrize(
    'wrong',
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.copy_(torch.zeros(3), non_blocking=True),
        lambda x: torch.tensor(1.0, device=x.device),
        lambda x: x.index_put_((x.long(),), torch.tensor(1.0)),
    ],
)
def test_nothing_waits_or_comes_from_the_host_while_recording(simulated, wrong):
    def body(device):
        x = torch.zeros(3, device=device)
        with pytest.raises(RuntimeError, match='while a graph is recorded'):
            Recorded(lambda: wrong(x))
        assert Recorded(lambda: x.add_(1))().tolist() == [1, 1, 1]

    simulated(body)


def test_graphs_of_a_pool_share_memory(simulated):
    def body(device):
        x = torch.ones(3, device=device)
        inside = []

        def function():
            inside.append(x * 2)
            return inside[0] + 1

        one = Recorded(function)
        other = Recorded(lambda: x * 4, one.pool, one.stream)

        # What was there when the other one was recorded is safe from it
        first = one()
        assert (first.tolist(), inside[0].tolist()) == ([3] * 3, [2] * 3)
        second = other()
        assert (first.tolist(), inside[0].tolist(), second.tolist()) == ([3] * 3, [2] * 3, [4] * 3)

        # What was recorded later may lie where this one works
        one()
        assert second.isnan().tolist() == [True] * 3
        assert other().tolist() == [4] * 3

    simulated(body)


def test_what_nobody_refers_to_is_overwritten(simulated):
    def body(device):
        x = torch.ones(3, device=device)
        graph = Recorded(lambda: (x * 2).long().bool() & (x > 0)).graph
        graph.replay()
        for tensor, memory in graph.own.values():
            assert memory() is None
            if tensor.dtype == torch.float32:
                assert tensor.isnan().all()
            if tensor.dtype == torch.int64:
                assert tensor.min() > 2**62  # no index

    simulated(body)


def test_memory_outside_that_is_given_back(simulated):
    def body(device):
        x = torch.ones(3, device=device)
        cache = [torch.zeros(3, device=device)]
        recorded = Recorded(lambda: cache[0].add_(x).sum())
        view = cache[0][1:]  # which keeps it
        del cache[0]
        assert recorded().item() == 3
        del view
        with pytest.raises(RuntimeError, match='given back'):
            recorded()

    simulated(body)


def test_one_stream_for_each_pool(simulated):
    def body(device):
        x = torch.ones(3, device=device)
        one = Recorded(lambda: x + 1)
        with pytest.raises(RuntimeError, match='one stream'):
            Recorded(lambda: x + 2, stream=one.stream)
        other = Recorded(lambda: x + 2)
        for _ in range(2):  # by turns
            assert one().tolist() == [2] * 3
            assert other().tolist() == [3] * 3
        stream = one.stream
        del one
        assert Recorded(lambda: x + 4, stream=stream)().tolist() == [5] * 3

    simulated(body)


def test_a_pool_goes_with_its_graphs(simulated):
    """Graphs of one pool are recorded, all of them forgotten for another cache, and recorded
    again."""

    def body(device):
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        for _ in range(2):
            work = partial(torch.zeros(3, device=device).add_, 1)  # on its cache
            graphs = [Recorded(work, pool, stream) for _ in range(2)]
            assert graphs[1]().tolist() == [1, 1, 1]
            assert graphs[0]().tolist() == [2, 2, 2]
            del graphs[0]  # one is enough to keep it
            Recorded(work, pool, stream)
            graphs.clear()
            with pytest.raises(RuntimeError, match='use_count > 0'):
                Recorded(work, pool, stream)
            pool = torch.cuda.graph_pool_handle()  # as it should be

    simulated(body)


def test_a_copy_of_a_model_is_on_the_device(simulated):
    def body(device):
        model = torch.nn.Linear(3, 3, device='cpu').requires_grad_(False).to(device)
        other = copy.deepcopy(model)
        model.weight.fill_(1)
        other.weight.fill_(2)
        other.bias.fill_(0)
        assert isinstance(other.weight, torch.nn.Parameter)
        assert model.weight.data_ptr() != other.weight.data_ptr()
        assert model.weight.tolist() == [[1] * 3] * 3
        x = torch.ones(1, 3, device=device)
        assert Recorded(lambda: other(x))().tolist() == [[6] * 3]

    simulated(body)
