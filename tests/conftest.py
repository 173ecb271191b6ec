"""Fixtures: every test that takes `backend` runs once on each supported backend, forced."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Thousands of tiny calls: on a busy machine, threads that spin while they wait cost five times
# more than the calls. OpenMP reads this once, so it must stand before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import forcing
import pytest
import torch

import torch_ops


@pytest.fixture(params=torch_ops.backends.supported(), ids=str)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch_ops.backends.use(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if forcing.ran["onednn"] or forcing.declined["onednn"]:
        terminalreporter.write_line(forcing.summary())
