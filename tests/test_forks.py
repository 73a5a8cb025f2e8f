"""Every lock of the package is made anew in a forked child: the thread that held it may not exist there."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import pytest

import tilewright
from tilewright.backends import cuda

ROOT = Path(tilewright.__file__).parent

# Where locks are made, and the test that shows a child that gets its own. A new lock needs a line here and in a test.
RENEWED = {
    "calls.py": "test_dispatch.py: a_forked_child_starts_anew_even_when_a_lock_was_held (Ledger, BoundPlan, Runner)",
    "dispatch.py": "test_dispatch.py: a_forked_child_starts_anew_even_when_a_lock_was_held",
    "jit/build.py": "jit/test_build.py: a_forked_child_does_not_wait_for_a_build_of_its_parent",
    "jit/fork_gate.py": "jit/test_fork_gate.py: a_fork_waits_for_the_compile_of_another_thread_and_its_child_compiles",
    "backends/cuda.py": "below (the backend's own lock goes with it)",
}
KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}


def makes_a_lock(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in KINDS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "threading"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_every_file_that_makes_locks_renews_them_after_a_fork() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if makes_a_lock(path)}
    assert found == RENEWED.keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_no_backend_and_may_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_backend", object())
    with cuda._backend_lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            status = 1
            try:
                with cuda._backend_lock:
                    status = 0 if cuda._backend is None else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
