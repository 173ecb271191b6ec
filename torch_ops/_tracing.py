"""Functions whose effect a tracer would leave behind while it traces, or drop."""

import torch


def untraceable(name: str) -> RuntimeError:
    return RuntimeError(f"torch_ops.{name} cannot be traced; put it around the compiled call")


def refuse_tracing(name: str) -> None:
    if torch.compiler.is_compiling():
        raise untraceable(name)
