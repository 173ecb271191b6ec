"""Processes of one gloo group, on the loopback interface, that run what a test sends them."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 60  # of starting, of a collective and of a whole job, in seconds


def _serve(connection: Connection, rank: int, size: int, store: Path) -> None:
    faulthandler.enable()  # pytest's is its own process's
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while job := connection.recv():
        function, arguments = job
        try:
            connection.send((True, function(*arguments)))
        except Exception:
            connection.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """`size` processes; started when first used, and again after a failure."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self.starts = size, folder, 0
        self.processes: list[multiprocessing.Process] = []
        self.connections: list[Connection] = []

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Has each rank call `function`, of an importable module."""
        if not self.processes:
            self._start()
        for connection in self.connections:
            connection.send((function, arguments))

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function` returns on each rank."""
        self.send(function, *arguments)
        results: dict[int, Any] = {}
        while len(results) < self.size:
            waiting = [c for rank, c in enumerate(self.connections) if rank not in results]
            ready = wait(waiting, timeout=2 * TIMEOUT)
            if not ready:
                self.kill()
                raise AssertionError(f"{function.__name__}: no answer after {2 * TIMEOUT} s")
            for connection in ready:
                rank = self.connections.index(connection)
                try:
                    succeeded, result = connection.recv()
                except EOFError:
                    self.processes[rank].join(TIMEOUT)
                    code = self.processes[rank].exitcode  # -n: by signal n
                    succeeded, result = False, f"the process ended with exit code {code}"
                if not succeeded:
                    self.kill()  # the others may wait for this one
                    raise AssertionError(f"rank {rank}:\n{result}")
                results[rank] = result
        return [results[rank] for rank in range(self.size)]

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        store = self.folder / f"store-{self.starts}"
        self.starts += 1
        for rank in range(self.size):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, rank, self.size, store))
            process.start()
            there.close()
            self.processes.append(process)
            self.connections.append(here)

    def stop(self) -> None:
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join(TIMEOUT)
        self.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.connections = [], []
