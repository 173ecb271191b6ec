"""Fixtures: every test that takes `backend` runs once on each supported backend, forced.

With CONVTBW_BACKEND and CONVTBW_TARGET in the environment all tests run on what these force.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

# Thousands of tiny calls: on a busy machine, threads that spin while they wait cost five times
# more than the calls. OpenMP reads this once, so it must stand before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import forcing
import pytest
import torch

import torch_ops

FORCED = os.environ.get("CONVTBW_BACKEND")
FORCED_TARGET = os.environ.get("CONVTBW_TARGET") or None


@pytest.fixture(params=[FORCED] if FORCED else torch_ops.backends.supported(), ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch_ops.backends.use(request.param, FORCED_TARGET):
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FORCED:
        for item in items:
            if item.get_closest_marker("unforced"):
                item.add_marker(pytest.mark.skip(reason="CONVTBW_BACKEND forces a backend"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist
        session.config.workeroutput["forcing"] = forcing.account()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    if hasattr(node, "workeroutput"):  # not if it crashed
        forcing.add(node.workeroutput["forcing"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if forcing.ran["onednn"] or forcing.declined["onednn"]:
        terminalreporter.write_line(forcing.summary())
