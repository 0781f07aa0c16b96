"""What makes a model faster and leaves its answers equal up to rounding? Three changes; weights keep their names:

lean(model)            to train with: less memory for the loss, AdaLN once per position, no slow attention
freeze(model, dtype)   a copy for inference: weights in the dtype of the products, AdaLN as a table
graphed(model)         on a GPU: the steps of `predict` with a cache as CUDA graphs"""

import copy
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from model import AOGPT, AdaLN, Head, SelfAttention


def product_dtype(x):
    """The dtype of matrix products of x (a tensor or a network): autocast's where that is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def split_rows(vocab_size, *tensors):
    """Split tensors (R, ...) by rows into parts whose logits are at most 2^24 numbers, on a GPU 2^26."""
    return [x.split(max(1, (2**26 if x.is_cuda else 2**24) // vocab_size)) for x in tensors]


def lean(model):
    """The model itself, whose parts now train with less memory and time, see LeanHead, LeanAdaLN and LeanAttention."""
    for module in model.modules():
        module.__class__ = LEAN.get(
            type(module), type(module)
        )  # the weights and their names stay as they are
    return model


def freeze(model, dtype=None):
    """A copy for inference: linear weights in `dtype`, by default the dtype of the products (autocast's where autocast
    is on), see FrozenLinear. In place of each AdaLN is a table of its outputs, which depend on the target alone. The
    copy shares norms and embeddings with the model and is valid until the weights change. It is not to be trained,
    moved or saved. A frozen model is given back; a network that is not ours stays itself, its weights in `dtype`."""
    if not isinstance(model, AOGPT):
        for p in (
            model.parameters()
        ):  # not buffers: frequencies of rotary positions are never taken in 16 bits
            p.data = p.data.to(dtype or p.dtype)
        return model
    if isinstance(model.lm_head, FrozenHead):
        if dtype not in (None, model.lm_head.dtype):
            raise ValueError(f'the model is frozen in {model.lm_head.dtype} already, got {dtype}')
        return model
    dtype = dtype or product_dtype(model)
    model = lean(
        copy.deepcopy(model, {id(p): p for p in model.parameters()})
    )  # modules of its own, the same weights
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, AdaLN):
                setattr(module, name, AdaLNTable(child, model.transformer.wtpe, dtype))
            elif isinstance(child, nn.Linear):
                setattr(
                    module,
                    name,
                    (FrozenHead if isinstance(child, Head) else FrozenLinear)(child, dtype),
                )
    return model.eval()


class TokenLoss(torch.autograd.Function):
    """-log softmax(x W^T + b)[tokens] (R,) for x (R, C), some rows at a time, so that the R V logits are never all in
    float32. The backward pass finds d nll / d logits alone, in the dtype of x, to which its products would round it."""

    @staticmethod
    def forward(ctx, x, weight, bias, tokens):
        nll, dlogits = [], x.new_empty(len(x), len(weight))
        for x_part, tokens_part, dlogits_part in zip(*split_rows(len(weight), x, tokens, dlogits)):
            logits, column = F.linear(x_part, weight, bias), tokens_part.unsqueeze(1)
            logp = logits.log_softmax(
                -1, dtype=torch.promote_types(logits.dtype, torch.float32)
            )  # (rows, V)
            nll.append(-logp.gather(1, column).squeeze(1))
            p = logp.exp_()
            dlogits_part.copy_(
                p.scatter_add_(1, column, p.new_full(column.shape, -1))
            )  # p - one_hot
            del logits, logp, p  # before the next part makes its own
        ctx.save_for_backward(x, weight, dlogits)
        return torch.cat(nll)

    @staticmethod
    def backward(ctx, grad):
        x, weight, dlogits = ctx.saved_tensors
        column, largest = (
            grad.unsqueeze(1),
            grad.abs().max().clamp(min=torch.finfo(grad.dtype).tiny),
        )
        grad_bias = None
        if ctx.needs_input_grad[2]:  # exact weights where all are equal
            grad_bias = (dlogits.T @ (grad / largest).to(x.dtype) * largest).to(x.dtype)
        return (
            ((dlogits @ weight) * column).to(x.dtype),
            dlogits.T @ (x * column).to(x.dtype),
            grad_bias,
            None,
        )


def nll_in_parts(head, x, tokens):
    """Head.nll, some rows at a time."""
    return torch.cat(
        [Head.nll(head, *part) for part in zip(*split_rows(head.weight.size(0), x, tokens))]
    )


class LeanHead(Head):
    """The head whose loss never has all logits in float32, see TokenLoss."""

    def nll(self, x, tokens):
        if torch.compiler.is_compiling():  # which fuses the cast: no float32 copy there either
            return super().nll(x, tokens)
        if not torch.is_grad_enabled():
            return nll_in_parts(self, x, tokens)
        dtype, bias = product_dtype(x), self.real_bias()
        return TokenLoss.apply(
            x.to(dtype), self.weight.to(dtype), bias if bias is None else bias.to(dtype), tokens
        )


class Rows(torch.autograd.Function):
    """table[index] (B, S, C) of table (N, C) and index (B, S). The gradient of a row of the table is the sum of the
    gradients of its copies, in float32 and rounded once, without atomic additions."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.n_rows = len(table)
        return F.embedding(index, table)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        ranked, copies = index.flatten().sort(stable=True)
        starts = torch.searchsorted(ranked, torch.arange(ctx.n_rows, device=index.device))
        return F.embedding_bag(copies, grad.flatten(0, 1), starts, mode='sum'), None


class LeanAdaLN(AdaLN):
    """AdaLN that runs once per position, not once per slot, where a training step has more slots than positions."""

    def forward(self, target, wtpe):
        if not torch.is_grad_enabled() or target.numel() <= wtpe.num_embeddings:
            return super().forward(target, wtpe)
        return Rows.apply(nn.Sequential.forward(self, wtpe.weight), target)


class LeanAttention(SelfAttention):
    """Attention with detours round PyTorch's bfloat16 kernels for CPUs."""

    def attend(self, q, k, v, mask, causal):
        n, dtype = q.size(1), q.dtype
        if dtype == torch.bfloat16 and q.device.type == 'cpu':
            if n == 1:
                q = q.expand(-1, 2, -1, -1)  # one query takes twice as long as two
            if k.size(1) < 256 and torch.is_grad_enabled():
                q = q.float()  # few slots and their gradients take four times as long in bfloat16
        return super().attend(q, k, v, mask, causal)[:, :n].to(dtype)


LEAN = {Head: LeanHead, AdaLN: LeanAdaLN, SelfAttention: LeanAttention}


class FrozenLinear(nn.Module):
    """A linear layer for inference in `dtype`. On a CPU the weights are packed once into oneDNN's layout, as nn.Linear
    does at every call. One row in float32 does without: a product from the left reads weights at the memory's rate."""

    def __init__(self, linear, dtype):
        super().__init__()
        bias = linear.real_bias() if isinstance(linear, Head) else linear.bias
        self.dtype = dtype
        self.weight, self.bias = (
            linear.weight.detach().to(dtype),
            bias if bias is None else bias.detach().to(dtype),
        )
        self.packed = (
            self.weight.device.type == 'cpu'
            and torch.backends.mkldnn.is_available()
            and (
                dtype == torch.float32
                or dtype == torch.bfloat16
                and torch.ops.mkldnn._is_mkldnn_bf16_supported()
            )
        )
        self.plain = (
            self.weight if self.packed and dtype == linear.weight.dtype == torch.float32 else None
        )
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)

    def forward(self, x):
        x = x.to(self.weight.dtype)
        if (
            self.plain is not None
            and x.numel() == x.size(-1)
            and not torch.is_autocast_enabled('cpu')
        ):
            y = (self.plain @ x.reshape(1, -1).repeat(2, 1).T)[
                :, 0
            ]  # one column alone takes twice as long as two
            return (y if self.bias is None else y + self.bias).reshape(*x.shape[:-1], -1)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, 'none', [], '')
        return F.linear(x, self.weight, self.bias)


class FrozenHead(FrozenLinear):
    nll = nll_in_parts


class AdaLNTable(nn.Module):
    """The outputs of an AdaLN for all positions."""

    def __init__(self, adaln, wtpe, dtype):
        super().__init__()
        self.table = (
            adaln(torch.arange(wtpe.num_embeddings, device=wtpe.weight.device), wtpe)
            .detach()
            .to(dtype)
        )

    def forward(self, target, wtpe):
        return F.embedding(target, self.table)


def graphed(model):
    """The model itself, whose steps with a cache are padded to few sizes, recorded as CUDA graphs and replayed."""
    device = model.device
    if device.type == 'cpu' or not model.slots.cached:
        why = (
            f'the device is {device}'
            if device.type == 'cpu'
            else f'attention={model.config.attention} has none'
        )
        raise ValueError(f'cuda_graphs is for a network with a cache on a GPU: {why}')
    model.trunk = StepGraphs(model.trunk)
    return model


class StepGraphs:
    """The trunk as CUDA graphs, one launch for hundreds of kernels: the first call of a size runs eagerly, the second
    is recorded, later ones are replayed. Graphs hold for one cache; another cache starts anew."""

    def __init__(self, trunk):
        self.trunk, self.cache, self.recorded, self.pool = (
            trunk,
            None,
            {},
            torch.cuda.graph_pool_handle(),
        )

    def __call__(self, idx, order, slots, cache=None):
        if cache is None:
            return self.trunk(idx, order, slots)
        if cache is not self.cache:
            self.cache, self.recorded = cache, {}
        n, slots = slots.columns.size(1), padded(slots, cache)
        inputs = {'idx': idx, 'order': order} | {name: getattr(slots, name) for name in PLAN}
        key = tuple(x.shape for x in inputs.values())
        if key not in self.recorded:  # which also sets up what cannot be set up while recording
            self.recorded[key] = None
            return self.trunk(idx, order, slots, cache)[:, :n]
        if self.recorded[key] is None:
            graph, own, plan = (
                torch.cuda.CUDAGraph(),
                {name: x.clone() for name, x in inputs.items()},
                copy.copy(slots),
            )
            vars(plan).update({name: own[name] for name in PLAN})
            with torch.cuda.graph(graph, pool=self.pool, stream=recording_stream(idx.device)):
                result = self.trunk(own['idx'], own['order'], plan, cache)
            self.recorded[key] = graph, own, result
        graph, own, result = self.recorded[key]
        for name, x in inputs.items():
            own[name].copy_(x)
        graph.replay()
        return result.clone()[:, :n]  # graphs share their memory


recording_stream = cache(lambda device: torch.cuda.Stream(device))  # one for each device
PLAN = ('number', 'visit', 'target', 'reads', 'stands', 'sees', 'columns')  # tensors of Slots
KEYS = 128  # a mask is as wide as the next multiple


def padded(slots, cache):
    """The plan in one of few sizes: the last slot and the last column repeat, and nothing sees the further keys."""
    S, n, device = slots.number.size(1), slots.columns.size(1), slots.number.device
    content, columns = (
        torch.arange(pad_size(size), device=device).clamp(max=size - 1) for size in (S, n)
    )
    every, plan = content, copy.copy(slots)
    if slots.visit.size(1) > S:  # two streams: the queries stand behind the content
        every = torch.cat([content, S + columns])
        plan.columns = torch.arange(len(content), len(every), device=device).expand(
            len(slots.number), -1
        )
    else:
        plan.columns = slots.columns[:, columns]
    plan.number = slots.number[:, content]
    for name in ('visit', 'target', 'reads', 'stands'):
        setattr(plan, name, getattr(slots, name)[:, every])
    n_keys = min(-(-slots.sees.size(-1) // KEYS) * KEYS, cache.k.size(3))
    plan.sees = F.pad(slots.sees[:, :, every], (0, n_keys - slots.sees.size(-1)))
    return plan


def pad_size(n):
    """n rounded up to a power of two, above 64 to a multiple of 64."""
    return -(-n // 64) * 64 if n > 64 else 1 << (n - 1).bit_length()


class CountedTrunk:
    """The trunk of a network, and a count of the slots that it has run, without the padding of short rows."""

    def __init__(self, trunk):
        self.trunk, self.n_slots = trunk, 0

    def __call__(self, idx, order, slots, cache=None):
        streams = slots.visit.tensor_split(
            [slots.number.size(1)], 1
        )  # queries stand behind the content
        # on the device, without a wait for it
        self.n_slots = self.n_slots + sum(
            len(x) + x.diff(dim=1).count_nonzero() for x in streams if x.size(1)
        )
        return self.trunk(idx, order, slots, cache)
