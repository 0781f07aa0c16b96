"""How is a function of tensors that stay in place launched as one? By CUDA graphs."""

import os
import weakref
from collections import OrderedDict, defaultdict

import torch

IDLE = defaultdict(list)  # {device: streams of owners that have gone}


def has_graphs(device):
    """Return whether a device can record what it runs and do it again: a GPU of Nvidia's.

    ANYORDER_GRAPHS=0 in the environment says no."""
    if os.environ.get('ANYORDER_GRAPHS') == '0':
        return False
    return device.type == 'cuda' and torch.version.hip is None


class Graphs:
    """Functions that a device runs in one launch each, under keys.

    A function takes no arguments: it reads and writes tensors that stay where they are, asks the
    host nothing, and its key says all else that decides what it does. The first call of a key runs
    it, which also sets up what cannot be set up while recording; the second records it, later ones
    replay. What it returns holds until the next call. Graphs share the memory of one pool, so that
    they are to be run in turn. Of more than `most` graphs the one used least lately goes."""

    def __init__(self, device, most=256):
        self.most = most
        # of this owner alone: captures into two pools on one stream share blocks (PyTorch 193402);
        # then of another owner: PyTorch keeps a workspace of cuBLAS for each stream it ever had
        idle = IDLE[device]
        self.stream = idle.pop() if idle else torch.cuda.Stream(device)
        weakref.finalize(self, idle.append, self.stream)
        self.begin()

    def begin(self):
        """Begin without a graph. Their pool goes with the last of them, and is not used again."""
        self.recorded = OrderedDict()  # (graph, its result), or None after the first call
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, key, function):
        """Call function(), and return its result."""
        if key not in self.recorded:
            result = function()
            self.recorded[key] = None
        else:
            if self.recorded[key] is None:
                self.recorded[key] = self.record(function)
            self.recorded.move_to_end(key)
            graph, result = self.recorded[key]
            graph.replay()
        if len(self.recorded) > self.most:
            self.recorded.popitem(last=False)
        return result

    def record(self, function):
        """Return (graph, its result) of what function() would do."""
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(
            graph,
            pool=self.pool,
            stream=self.stream,
            capture_error_mode='thread_local',  # what other threads do meanwhile is none of ours
        )
        try:
            # which goes back to the stream before it also where a recording fails to end
            with torch.cuda.stream(self.stream), recording:
                result = function()
        except BaseException:
            self.begin()
            raise
        return graph, result
