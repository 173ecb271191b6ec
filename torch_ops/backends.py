"""Who computes, and why: list, force and explain the backends.

A *backend* is one implementation of all operators: ``simd``, ``onednn`` or ``reference``. For each
call the first one that does not decline serves. *Available* backends were compiled in; *supported*
ones also run on this machine. The environment variables ``CONVTBW_BACKEND`` and ``CONVTBW_TARGET``
force one for the whole process; :func:`use` forces one for a block of code on one thread.

The choice is made when an operator runs, so it also holds for calls inside a compiled program.

``backends.benchmark = True`` lets a clock choose, in the whole process: the first call of a problem
runs every backend that accepts it up to ten times, but begins no further round after 50 ms
(``reference`` runs only where no other accepts), and the fastest serves that problem from then on.
``benchmark = False`` returns to the rules at once. The mode has no effect where a backend is
forced, under ``torch.use_deterministic_algorithms(True)`` and in a forked process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from torch_ops import _library  # noqa: F401  (loads the operators)
from torch_ops._tracing import refuse_tracing, untraceable

_native = torch.ops.convtbw_backends


@dataclass(frozen=True)
class Explanation:
    """How a call would be served."""

    op: str  #: the operator's name
    backend: str  #: who serves; "torch" is torch's own kernel
    target: str  #: instruction set of the kernels; empty where the backend offers no choice
    kernel: str  #: the backend's own name of the implementation
    declined: dict[str, str]  #: why each other backend does not serve
    flops: int  #: 2 per multiply-add, absent taps included
    workspace: int  #: bytes that the call allocates beside inputs and result
    reorders: tuple[str, ...]  #: whole tensors that are copied into another order
    reading: str  #: how groups read the weights' shape
    threads: int  #: that the call may use

    def __str__(self) -> str:
        served = f"{self.backend}/{self.target}" if self.target else self.backend
        lines = [
            f"{self.op}: {served}, {self.kernel}",
            f"  {self.flops / 1e6:.3f} MFLOP, {self.threads} threads",
            f"  workspace: {self.workspace / 2**20:.2f} MiB",
            f"  reorders: {', '.join(self.reorders) or 'none'}",
            f"  weights: {self.reading}",
        ]
        lines += [f"  not {name}: {reason}" for name, reason in self.declined.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class CacheInfo:
    """The plan cache of the process."""

    entries: int  #: plans that are kept
    capacity: int  #: the most entries that are kept
    bytes: int  #: estimate of what the kept plans cost
    byte_capacity: int  #: the most of them
    hits: int  #: calls that found their plan
    misses: int  #: calls that prepared one


def available() -> list[str]:
    """Names of the backends that were compiled in, in order of preference."""
    return _native.available()


def supported() -> list[str]:
    """Names of the backends that run on this machine, in order of preference."""
    return _native.supported()


def targets() -> list[str]:
    """Names of the instruction sets that kernels were compiled for, supported ones first.

    Empty: no compiled backend offers a choice.
    """
    return _native.targets()


@contextmanager
def use(name: str, target: str | None = None) -> Iterator[None]:
    """Force a backend, and optionally its target, for the calls of this thread inside the block.

    Args:
        name: one of :func:`supported`.
        target: one of the backend's supported :func:`targets`; by default that of
            ``CONVTBW_TARGET``, if the backend has it, or else its best.

    Raises:
        RuntimeError: on entry, if the name or target does not exist or is not supported here (the
            message lists the legal names); in the block, if the backend declines a call.

    Example:
        >>> src, weights = torch.ones(1, 3, 2), torch.ones(2, 2, 1)
        >>> attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
        >>> with use("reference"):
        ...     dst = torch.ops.convtbw.convolution(src, weights, **attributes)
        >>> last_used()
        'reference'
    """
    if not name:
        raise RuntimeError(
            f"convtbw: no backend named ''; supported here: {', '.join(supported())}"
        )
    refuse_tracing("backends.use")
    before = _native.force(name, target)
    try:
        yield
    finally:
        _native.force(*before)


def last_used() -> str:
    """Name of the backend that served the last call on this thread; empty before the first."""
    return _native.last_used()


class _Backends(ModuleType):
    """This module, with an attribute that the operators read: whether a clock chooses."""

    @property
    def benchmark(self) -> bool:
        """Whether the first call of a problem times the backends; of the process."""
        return _native.benchmark()

    @benchmark.setter
    def benchmark(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise TypeError(f"torch_ops.backends.benchmark is {on!r}; expected True or False")
        refuse_tracing("backends.benchmark")
        # Dynamo does not trace assignments to modules: its own code makes them, after the graph.
        dynamo = sys.modules.get("torch._dynamo.convert_frame")
        if dynamo and sys._getframe(1).f_code in dynamo.output_codes:
            raise untraceable("backends.benchmark")
        _native.set_benchmark(on)


#: Whether a clock chooses, in the whole process; ``False`` at first. Assign to it.
benchmark: bool
sys.modules[__name__].__class__ = _Backends


def explain(op: str | Any, *args: Any, **kwargs: Any) -> Explanation:
    """Plan a call without running it.

    Args:
        op: an operator's name, such as ``"conv_transpose"``, or the operator itself, or the
            function of ``torch_ops`` that wraps it. Also ``torch.ops.aten.convolution`` and
            ``torch.ops.aten.convolution_backward`` (``"aten::convolution"``): how they are served
            under :func:`torch_ops.enable`, whether it is on or not. Of a backward call the first
            gradient that `output_mask` asks for is explained, that of the bias excepted.
        *args: its arguments, as it would be called with; CPU tensors.
        **kwargs: its keyword arguments.

    Returns:
        What would serve the call under the present conditions (forced backend, threads,
        deterministic mode), and why each other backend would not. In benchmark mode, with the times
        that were measured; for a problem that was not called yet, what the rules would choose.

    Raises:
        RuntimeError: for a bad call, as the operator itself; for tensors without data (meta, fake).
        ValueError: if there is no such operator.

    Example:
        >>> src, weights = torch.ones(1, 3, 2), torch.ones(2, 2, 1)
        >>> attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
        >>> report = explain("convolution", src, weights, **attributes)
        >>> report.backend, report.declined["reference"]
        ('simd', "not needed: 'simd' is preferred")
    """
    name, function = _explainable(op)
    refuse_tracing("backends.explain")
    _native.explain_begin()
    try:
        with torch.no_grad():
            function(*args, **kwargs)
    finally:
        report = _native.explain_end()
    backend, target, kernel, names, reasons, flops, workspace, reorders, reading, threads = report
    if not backend:
        if name == "aten::convolution_backward":
            raise RuntimeError(f"{name}: explain needs an output_mask with input or weight")
        raise RuntimeError(f"convtbw::{name}: explain needs cpu tensors that hold data")
    return Explanation(
        op=name,
        backend=backend,
        target=target,
        kernel=kernel,
        declined=dict(zip(names, reasons, strict=True)),
        flops=flops,
        workspace=workspace,
        reorders=tuple(reorders),
        reading=reading,
        threads=threads,
    )


def _explainable(op: str | Any) -> tuple[str, Any]:
    """The name of an operator, and what explains a call of it."""
    # "conv_transpose" or "convtbw::conv_transpose"; an overload is called "conv_transpose.default".
    name = op if isinstance(op, str) else op.__name__
    if getattr(op, "__module__", "") == "torch._ops.aten" and not name.startswith("aten::"):
        name = f"aten::{name}"
    name = name.removeprefix("convtbw::").split(".")[0]
    space, plain = "convtbw", name
    if name.startswith("aten::"):
        space, plain = "convtbw_aten", name.removeprefix("aten::")
    function = getattr(getattr(torch.ops, space), plain, None)
    if not isinstance(function, torch._ops.OpOverloadPacket):  # a namespace has other attributes
        raise ValueError(f"no operator named {plain!r} in torch.ops.{space}")
    return name, function


def cache_info() -> CacheInfo:
    """Size and use of the plan cache."""
    return CacheInfo(*_native.cache_info())


def clear_cache() -> None:
    """Forget all plans and set the counters to zero."""
    refuse_tracing("backends.clear_cache")
    _native.clear_cache()
