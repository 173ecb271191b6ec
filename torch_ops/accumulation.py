"""Gradients of several micro-batches, added up by the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_ops import _library  # noqa: F401  (loads the operators)
from torch_ops._tracing import refuse_tracing


@contextmanager
def accumulate_gradients() -> Iterator[None]:
    """Let ``backward()`` add weights gradients to ``weight.grad`` in the kernel.

    Of the operators of this package, also in :mod:`torch_ops.functional`, :mod:`torch_ops.nn` and
    converted models. Where a weight has a gradient already, torch computes a second one and adds
    it; here the kernel adds, and there is no second one, but for working memory of up to 4 MB.
    Values differ by rounding at most. Where the weight is cast, as by autocast, and the convolution
    computes in 16 bits, its sums are added to the float32 gradient unrounded. The same for a weight
    of 16 bits whose gradient is, or by ``weight.grad_dtype`` will be, float32.

    On this thread, for calls of ``backward()`` inside the block. Torch's way is taken, with the
    same result, where something between the kernel and ``weight.grad`` might notice: hooks on the
    weight or its gradient (DistributedDataParallel has some), ``backward(inputs=...)``,
    ``torch.autograd.grad``, ``create_graph=True``, weights that are the result of other functions
    than a cast, subclasses of Tensor, compiled backwards. Two threads must not add to one weight's
    gradient at the same time.
    """
    refuse_tracing("accumulate_gradients")
    before = torch.ops.convtbw_accumulation.set_accumulating(True)
    try:
        yield
    finally:
        torch.ops.convtbw_accumulation.set_accumulating(before)
