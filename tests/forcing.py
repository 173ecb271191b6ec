"""Running a case on a forced backend, and keeping account of what onednn declined."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import torch_ops

T = TypeVar("T")

ran: Counter[str] = Counter()
declined: Counter[str] = Counter()
reasons: Counter[str] = Counter()


def run_forced(backend: str, fn: Callable[[], T], *, planned: bool = True) -> T | None:
    """fn() on the backend that the `backend` fixture forces; None if onednn declined the case.

    No other backend may decline. `planned=False` is for cases that are answered before a backend
    is chosen (an empty batch), which therefore leave no trace in `last_used()`.
    """
    try:
        result = fn()
    except RuntimeError as error:
        message = str(error)
        if backend != "onednn" or "declines" not in message:
            raise
        declined[backend] += 1
        reason = message.split("declines", 1)[1].splitlines()[0].strip(" :,.")
        reasons[re.sub(r"\d+", "#", reason)[:90]] += 1
        return None
    if planned:
        used = torch_ops.backends.last_used()
        assert used == backend, f"forced {backend}, but {used} ran"
    ran[backend] += 1
    return result


def supported_targets() -> list[str]:
    """The targets of simd that this CPU can run: any other name makes `use` raise."""
    runs = []
    for target in torch_ops.backends.targets():
        try:
            with torch_ops.backends.use("simd", target):
                runs.append(target)
        except RuntimeError:
            continue
    return runs


def account() -> list[dict[str, int]]:
    """What a worker of pytest-xdist has counted, for `add` in the process that tells."""
    return [dict(counter) for counter in (ran, declined, reasons)]


def add(account: list[dict[str, int]]) -> None:
    for mine, theirs in zip((ran, declined, reasons), account, strict=True):
        mine.update(theirs)


def summary() -> str:
    most = ", ".join(f"{reason} x {n}" for reason, n in reasons.most_common(8))
    return f"onednn ran {ran['onednn']} cases, declined {declined['onednn']} (reasons: {most})"
