"""Gives a model this package's convolutions in place of torch's."""

from dataclasses import dataclass, field

import torch
from torch.nn import Module
from torch.nn.utils import parametrize

from torch_ops import nn
from torch_ops.functional_call import is_computed_here

_OURS = {getattr(torch.nn, name): getattr(nn, name) for name in nn.__all__}
_LAZY = (
    torch.nn.LazyConv1d,
    torch.nn.LazyConv2d,
    torch.nn.LazyConv3d,
    torch.nn.LazyConvTranspose1d,
    torch.nn.LazyConvTranspose2d,
    torch.nn.LazyConvTranspose3d,
)


@dataclass
class Conversion:
    """What :func:`torch_ops.convert` did; ``print`` shows it.

    Attributes:
        swapped: name of each swapped module in the model -> the name of its class.
        kept: name of each other convolution -> why it was left as it is.
    """

    swapped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        total = len(self.swapped) + len(self.kept)
        lines = [f"{len(self.swapped)} of {total} convolutions swapped"]
        lines += [f"  {name or '(the model)'}: {kind}" for name, kind in self.swapped.items()]
        if self.kept:
            lines.append("kept:")
            lines += [f"  {name or '(the model)'}: {reason}" for name, reason in self.kept.items()]
        return "\n".join(lines)


def convert(model: Module) -> Conversion:
    """Swaps the convolutions of a model for those of :mod:`torch_ops.nn`, in place.

    A module gets another class and stays the same object: its parameters, buffers, hooks,
    parametrizations, training flag and the optimizers and names that refer to it are untouched.
    A second call changes nothing.

    Args:
        model: any module, also a convolution itself.

    Returns:
        The names of the modules that were swapped, and of the convolutions that were not, with the
        reason: subclasses of torch's modules, which may compute something else; lazy modules that
        have no weights yet (call again after the first forward pass); modules compiled by
        torch.jit; weights that the operators do not compute (complex, not on CPU, ...).

    Raises:
        TypeError: if `model` is no module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.LazyConv2d(8, 3))
        >>> print(convert(model))
        1 of 2 convolutions swapped
          0: Conv2d
        kept:
          1: is a LazyConv2d without weights; convert again after the first forward pass

    Source: the idea is that of torch's own in-place conversions, as
    ``torch.nn.SyncBatchNorm.convert_sync_batchnorm``.
    """
    if not isinstance(model, Module):
        raise TypeError(f"model is {type(model).__name__}; expected a torch.nn.Module")
    result = Conversion()
    for name, module in model.named_modules():
        kind = _torch_class(module)
        if kind is None:
            continue
        reason = _reason_to_keep(module, kind)
        if reason:
            result.kept[name] = reason
        else:
            module.__class__ = _swapped_class(module, kind)
            result.swapped[name] = kind.__name__
    return result


def _torch_class(module: Module) -> type | None:
    """The convolution of torch.nn that a module is or extends."""
    if isinstance(module, torch.jit.ScriptModule):
        original = getattr(torch.nn, getattr(module, "original_name", ""), None)
        return original if original in _OURS else None
    return next((kind for kind in _OURS if isinstance(module, kind)), None)


def _reason_to_keep(module: Module, kind: type) -> str:
    """Why a convolution keeps its class; empty if it does not."""
    # Parametrizations put a class of their own between a module and its class.
    base = type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by torch.jit"
    if isinstance(module, _LAZY):
        return f"is a {base.__name__} without weights; convert again after the first forward pass"
    if base is _OURS[kind]:
        return f"is a torch_ops.nn.{base.__name__} already"
    if base is not kind:
        return f"is a {base.__module__}.{base.__qualname__}, which may differ from its base class"
    # Not module.weight: to ask a parametrization for it may change its buffers.
    for name, value in module.named_parameters():
        if not is_computed_here(value, value):
            return (
                f"has {name} of {value.dtype} on {value.device} ({value.layout}, "
                f"{type(value).__name__}), which torch computes"
            )
    return ""


def _swapped_class(module: Module, kind: type) -> type:
    if not parametrize.is_parametrized(module):
        return _OURS[kind]
    # A new class, for copies of the module share the old one.
    members = {
        name: value
        for name, value in vars(type(module)).items()
        if name not in ("__dict__", "__weakref__")
    }
    return type(type(module).__name__, (_OURS[kind],), members)
