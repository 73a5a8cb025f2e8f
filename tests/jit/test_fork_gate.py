"""A fork waits for the threads inside of the compiler, so that a child never finds the compiler's locks held."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jit_units import make_source, numbered

from tilewright.errors import UnsupportedError
from tilewright.jit import build, nvrtc
from tilewright.jit.fork_gate import ForkGate

WAIT_SECONDS = 30.0  # for events that come at once unless the test fails

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # 3.12: fork in a process with threads, the case here
]


def status_of_child(run: Callable[[], int]) -> int:
    """Forks; the exit status of a child that runs the function."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT_SECONDS))  # a child that waits for ever must not outlive the test
        status = 99
        try:
            status = run()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Visitor(threading.Thread):
    """A thread that is inside of the gate until it may leave."""

    def __init__(self, gate: ForkGate) -> None:
        super().__init__(daemon=True)
        self.gate, self.is_in, self.may_leave = gate, threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self.gate.entered():
            self.is_in.set()
            self.may_leave.wait(WAIT_SECONDS)


def test_a_fork_waits_for_the_thread_inside_and_keeps_others_out() -> None:
    gate = ForkGate(WAIT_SECONDS)
    first = Visitor(gate)
    assert first.is_in.wait(WAIT_SECONDS)
    may_fork = threading.Event()
    forking = threading.Thread(target=lambda: (gate.before_fork(), may_fork.set()), daemon=True)
    forking.start()
    while not gate._num_forks:  # the fork has come to the gate
        pass
    second = Visitor(gate)
    assert not may_fork.is_set()
    first.may_leave.set()
    assert may_fork.wait(WAIT_SECONDS)
    assert not second.is_in.is_set()
    gate.after_in_parent()
    assert second.is_in.wait(WAIT_SECONDS)
    second.may_leave.set()


def test_a_thread_inside_may_enter_again_and_fork_itself() -> None:
    gate = ForkGate(WAIT_SECONDS)
    with gate.entered():
        gate.before_fork()
        with gate.entered():
            gate.after_in_child()
        assert not gate.is_broken
        with gate.entered():
            pass
    assert gate._inside == {}


def test_a_fork_that_waited_long_enough_goes_on_and_the_gate_of_its_child_is_broken() -> None:
    gate = ForkGate(wait_seconds=0.0)
    visitor = Visitor(gate)
    assert visitor.is_in.wait(WAIT_SECONDS)
    gate.before_fork()

    def child() -> int:
        gate.after_in_child()
        with gate.entered():  # the gate itself does not hang
            return 0 if gate.is_broken else 1

    assert status_of_child(child) == 0
    gate.after_in_parent()
    assert not gate.is_broken
    visitor.may_leave.set()


def test_a_fork_waits_for_the_compile_of_another_thread_and_its_child_compiles(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    nvrtc.compiler_version()
    inside, ended = threading.Event(), threading.Event()
    real = nvrtc._run

    def slow(*arguments: Any) -> Any:
        inside.set()
        for _ in range(3):
            result = real(*arguments)
        ended.set()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "_run", slow)
        compiling = threading.Thread(target=build.build, args=(make_source(),))
        compiling.start()
        assert inside.wait(WAIT_SECONDS)

        def child() -> int:
            if not ended.is_set():
                return 1
            patch.setattr(nvrtc, "_run", real)
            return 0 if build.build(numbered(3)).name == "scale" else 2

        assert status_of_child(child) == 0
        compiling.join()


def test_a_child_of_a_stuck_compile_is_refused_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    build.build(make_source())
    monkeypatch.setattr(nvrtc._gate, "wait_seconds", 0.0)
    visitor = Visitor(nvrtc._gate)
    assert visitor.is_in.wait(WAIT_SECONDS)

    def child() -> int:
        build.build(make_source())  # what is in memory is served
        try:
            build.build(numbered(5))
        except UnsupportedError as refusal:
            return 0 if "spawn" in refusal.works else 2
        return 1

    assert status_of_child(child) == 0
    visitor.may_leave.set()
    visitor.join()
    assert not nvrtc._gate.is_broken
    build.build(numbered(5))
