"""What makes a model faster and leaves its answers equal up to rounding?

Changes of a model; weights keep their names:

    lean(model)            to train with: less memory for the loss, AdaLN once per position, no slow
                           attention
    freeze(model, dtype)   a copy for inference: weights in the dtype of the products, AdaLN as a
                           table"""

import copy
import weakref
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyorder.machine.devices import keep_freed_memory
from anyorder.machine.graphs import has_graphs
from anyorder.seeds import random_bits
from model import AOGPT, AdaLN, Head, SelfAttention


def product_dtype(x):
    """Return the dtype of matrix products of x, a tensor or a network: autocast's if that is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def split_rows(vocab_size, *tensors):
    """Split tensors (R, ...) by rows into parts of at most 2^24 logits, on a GPU 2^26."""
    parts = []
    for x in tensors:
        n_logits = 2**26 if x.is_cuda else 2**24
        parts.append(x.split(max(1, n_logits // vocab_size)))
    return parts


# --------------------------------------------------------------------------------------------------
# to train with


def lean(model):
    """Return the model itself, whose parts now train with less memory and time, see LEAN."""
    for module in model.modules():
        kind = type(module)
        module.__class__ = LEAN.get(kind, kind)  # the weights and their names stay as they are
    return model


class LeanHead(Head):
    """The head whose loss never has all logits in float32, see TokenLoss."""

    def nll(self, x, tokens):
        if torch.compiler.is_compiling():  # which fuses the cast: no float32 copy there either
            return super().nll(x, tokens)
        if not torch.is_grad_enabled():
            return nll_in_parts(self, x, tokens)
        dtype = product_dtype(x)
        bias = self.real_bias()
        if bias is not None:
            bias = bias.to(dtype)
        return TokenLoss.apply(x.to(dtype), self.weight.to(dtype), bias, tokens)


def nll_in_parts(head, x, tokens):
    """Head.nll, some rows at a time."""
    parts = zip(*split_rows(head.weight.size(0), x, tokens))
    return torch.cat([Head.nll(head, *part) for part in parts])


class TokenLoss(torch.autograd.Function):
    """-log softmax(x W^T + b)[tokens] (R,) for x (R, C), some rows at a time.

    The R V logits are never all in float32. The backward pass finds d nll / d logits alone, in the
    dtype of x, to which its products would round it."""

    @staticmethod
    def forward(ctx, x, weight, bias, tokens):
        nll = []
        dlogits = x.new_empty(len(x), len(weight))
        for x_part, tokens_part, dlogits_part in zip(*split_rows(len(weight), x, tokens, dlogits)):
            logits = F.linear(x_part, weight, bias)  # (rows, V)
            column = tokens_part.unsqueeze(1)
            dtype = torch.promote_types(logits.dtype, torch.float32)
            logp = logits.log_softmax(-1, dtype=dtype)
            nll.append(-logp.gather(1, column).squeeze(1))
            p = logp.exp_()
            p_less_one_hot = p.scatter_add_(1, column, p.new_full(column.shape, -1))
            dlogits_part.copy_(p_less_one_hot)
            del logits, logp, p, p_less_one_hot  # before the next part makes its own
        ctx.save_for_backward(x, weight, dlogits)
        return torch.cat(nll)

    @staticmethod
    def backward(ctx, grad):
        x, weight, dlogits = ctx.saved_tensors
        column = grad.unsqueeze(1)
        grad_bias = None
        if ctx.needs_input_grad[2]:
            # exact weights where all are equal
            largest = grad.abs().max().clamp(min=torch.finfo(grad.dtype).tiny)
            share = (grad / largest).to(x.dtype)
            grad_bias = (dlogits.T @ share * largest).to(x.dtype)
        grad_x = ((dlogits @ weight) * column).to(x.dtype)
        grad_weight = dlogits.T @ (x * column).to(x.dtype)
        return grad_x, grad_weight, grad_bias, None


class LeanAdaLN(AdaLN):
    """AdaLN that runs once per position, where a training step has more slots than positions."""

    def forward(self, target, wtpe):
        if not torch.is_grad_enabled() or target.numel() <= wtpe.num_embeddings:
            return super().forward(target, wtpe)
        return Lookup.apply(nn.Sequential.forward(self, wtpe.weight), target)


class Lookup(torch.autograd.Function):
    """table[index] (B, S, C) of table (N, C) and index (B, S).

    The gradient of a row of the table is the sum of the gradients of its copies, in float32 and
    rounded once, without atomic additions."""

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


class LeanAttention(SelfAttention):
    """Attention with detours round what is slow in PyTorch: bfloat16 on CPUs, cuDNN, and a mask
    that every layer turns into numbers on a GPU."""

    def attend_slots(self, q, k, v, slots, answering, store):
        sees = slots.sees
        is_new = sees is not None and sees.dtype == torch.bool and q.device.type != 'cpu'
        if is_new and not torch.is_grad_enabled():
            numbers = torch.zeros_like(sees, dtype=q.dtype)
            slots.sees = numbers.masked_fill_(~sees, -torch.inf)  # the plan is of this pass alone
        return super().attend_slots(q, k, v, slots, answering, store)

    def attend(self, q, k, v, mask, causal):
        n = q.size(1)
        dtype = q.dtype
        if dtype == torch.bfloat16 and q.device.type == 'cpu':
            if n == 1:
                q = q.expand(-1, 2, -1, -1)  # one query takes twice as long as two
            if k.size(1) < 256 and torch.is_grad_enabled():
                q = q.float()  # few slots and their gradients take four times as long in bfloat16
        # cuDNN is the fastest, but makes a plan for every new shape of a mask, which takes 30 to
        # 150 ms on an H100. Training has one shape and no mask
        kernels = nullcontext()
        if q.device.type == 'cuda' and not torch.is_grad_enabled():
            kernels = sdpa_kernel(WITHOUT_CUDNN)
        with kernels:
            y = super().attend(q, k, v, mask, causal)
        return y[:, :n].to(dtype)


WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


LEAN = {Head: LeanHead, AdaLN: LeanAdaLN, SelfAttention: LeanAttention}


# --------------------------------------------------------------------------------------------------
# to write and measure with


def freeze(model, dtype=None):
    """Return a copy for inference, whose linear weights are in `dtype`, see FrozenLinear.

    By default `dtype` is that of the products, autocast's where autocast is on. In place of each
    AdaLN is a table of its outputs, which depend on the target alone. The copy shares norms and
    embeddings with the model and is valid until the weights change. It is not to be trained, moved
    or saved. A frozen model is given back; a network that is not ours stays itself, its weights in
    `dtype`."""
    if not isinstance(model, AOGPT):
        # not buffers: frequencies of rotary positions are never taken in 16 bits
        for p in model.parameters():
            p.data = p.data.to(dtype or p.dtype)
        return model
    if isinstance(model.lm_head, FrozenHead):
        if dtype not in (None, model.lm_head.dtype):
            raise ValueError(f'the model is frozen in {model.lm_head.dtype} already, got {dtype}')
        return model
    if model.device.type == 'cpu':
        keep_freed_memory()
    dtype = dtype or product_dtype(model)
    weights = {id(p): p for p in model.parameters()}
    model = lean(copy.deepcopy(model, weights))  # modules of its own, the same weights
    for module in list(model.modules()):
        for name, child in module.named_children():
            setattr(module, name, frozen(child, model.transformer, dtype))
    model.graphs = has_graphs(model.device)  # whether steps are recorded, see machine/graphs.py
    model.workspace = None  # what writing keeps, see generation/workspace.py
    return model.eval()


def frozen(module, transformer, dtype):
    """Return what takes the place of a module of `transformer`, or of its head."""
    if isinstance(module, AdaLN):
        return AdaLNTable(module, transformer.wtpe, dtype)
    if isinstance(module, Head):
        return FrozenHead(module, dtype)
    if isinstance(module, nn.Linear):
        return FrozenLinear(module, dtype)
    return module


class FrozenLinear(nn.Module):
    """A linear layer for inference in `dtype`.

    On a CPU the weights are packed once into oneDNN's layout, as nn.Linear does at every call. One
    row in float32 does without: a product from the left reads weights at the memory's rate."""

    def __init__(self, linear, dtype):
        super().__init__()
        bias = linear.real_bias() if isinstance(linear, Head) else linear.bias
        if bias is not None:
            bias = bias.detach().to(dtype)
        self.dtype = dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = bias
        self.packed = can_pack(self.weight)
        self.plain = None
        if self.packed:
            if dtype == linear.weight.dtype == torch.float32:
                self.plain = self.weight
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)

    def forward(self, x):
        x = x.to(self.weight.dtype)
        is_row = x.numel() == x.size(-1)
        if self.plain is not None and is_row and not torch.is_autocast_enabled('cpu'):
            return self.one_row(x)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, 'none', [], '')
        return F.linear(x, self.weight, self.bias)

    def one_row(self, x):
        """Return the outputs of one row x (..., C), in the same shape."""
        twice = x.reshape(1, -1).repeat(2, 1)  # one column alone takes twice as long as two
        y = (self.plain @ twice.T)[:, 0]
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*x.shape[:-1], -1)


def can_pack(weight):
    """Whether oneDNN has a layout for products with these weights."""
    if weight.device.type != 'cpu' or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class FrozenHead(FrozenLinear):
    nll = nll_in_parts


class AdaLNTable(nn.Module):
    """The outputs of an AdaLN for all positions."""

    def __init__(self, adaln, wtpe, dtype):
        super().__init__()
        positions = torch.arange(wtpe.num_embeddings, device=wtpe.weight.device)
        self.table = adaln(positions, wtpe).detach().to(dtype)

    def forward(self, target, wtpe):
        return F.embedding(target, self.table)


def kept_frozen(model):
    """Return freeze(model), on a device with graphs the same as before while no weight changes.

    Elsewhere a copy costs no more than to look at all weights."""
    is_ours = isinstance(model, AOGPT) and not isinstance(model.lm_head, FrozenHead)
    if not is_ours or not has_graphs(model.device):
        return freeze(model)
    places = [p.data_ptr() for p in model.parameters()]  # others once a model was moved
    state = product_dtype(model), places, bits_of(model)
    known, network = KEPT.get(model, (None, None))
    if known != state:
        network = None  # its memory is given back first
        KEPT.pop(model, None)
        network = freeze(model)
        KEPT[model] = state, network
    return network


KEPT = weakref.WeakKeyDictionary()  # model: (its state, the frozen copy), which goes with it


def bits_of(model):
    """Return two numbers of each weight, from all of its bits and where they are, whoever has
    changed them. One wait."""
    weights = list(model.parameters())
    n_lines = max(max(len(p), p.numel() // len(p)) for p in weights)
    factors = random_bits(torch.arange(n_lines, device=model.device), 'lines')
    sums = []
    for p in weights:
        bits = p.detach().view(INTEGER[p.element_size()])
        bits = bits.view(len(p), -1)
        for dim in (0, 1):
            of_lines = bits.sum(dim, dtype=torch.long)
            sums.append((of_lines * factors[: len(of_lines)]).sum())
    return torch.stack(sums).tolist()


INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
