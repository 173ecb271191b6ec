"""torch's own convolutions on these kernels, in the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_ops import _library  # noqa: F401  (loads the operators)
from torch_ops._tracing import refuse_tracing

_lock = threading.Lock()
_switched_on = False
_open_blocks = 0


def _update(on: bool | None = None, blocks: int = 0) -> None:
    global _switched_on, _open_blocks
    refuse_tracing("enable, disable or enabled")
    with _lock:
        if on is not None:
            _switched_on = on
        _open_blocks += blocks
        torch.ops.convtbw_aten.set_enabled(_switched_on or _open_blocks > 0)


def enable() -> None:
    """Compute torch's convolutions and their gradients here, in the whole process.

    From now on ``aten::convolution`` and ``aten::convolution_backward`` on CPU, which all of
    ``torch.nn.Conv*``, ``torch.nn.functional.conv*`` and their autograd call, are served by the
    planner; :func:`torch_ops.backends.explain` tells how. Results have the shape, dtype and strides
    of torch's. What is not float32, bfloat16 or float16 is left to torch, and so is what suits its
    own kernels best. Calling it again has no effect.
    """
    _update(on=True)


def disable() -> None:
    """Give torch's convolutions back to torch's own kernels.

    Without effect where they were not taken. Blocks of :func:`enabled` that are still open, on any
    thread, keep the kernels here until the last of them ends.
    """
    _update(on=False)


@contextmanager
def enabled() -> Iterator[None]:
    """Compute torch's convolutions here, in the whole process, while a block runs.

    Blocks may be nested and may overlap between threads.

    Example:
        >>> model = torch.nn.Conv2d(3, 8, 3)
        >>> with enabled():
        ...     loss = model(torch.ones(1, 3, 5, 5)).sum()
        >>> is_enabled()
        False
    """
    _update(blocks=1)
    try:
        yield
    finally:
        _update(blocks=-1)


def is_enabled() -> bool:
    """Whether torch's convolutions are computed here."""
    return _switched_on or _open_blocks > 0
