"""The child process of the tuner: it alone launches kernels that nobody has proven yet.

Does what its parent asks, one request at a time, and answers each before it takes the next: so the parent knows which
kernel was at work when no answer comes, be it that the process died or that the kernel does not end. Knows nothing of
choosing. Started by worker.py as `python -m tilewright.tuning.child FD`, where FD is its end of a pipe.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from tilewright.backends.steps import Work
from tilewright.errors import DriverError, TilewrightError
from tilewright.problem import Problem


@dataclass(frozen=True)
class Job:
    """One candidate's kernels, ready for any addresses: its steps are compiled. `runner` is its number with the
    parent."""

    runner: int
    work: Work


class Bench(Protocol):
    """What the child asks of a device. gpu.GpuBench is the real one; tests bring their own."""

    def facts(self) -> dict[str, str]:
        """What a record says of the machine: its driver."""
        ...

    def open(self, problem: Problem, seed: int) -> int:
        """Operands for the problem, in place of those of the one before; how many sets of them are rotated."""
        ...

    def check(self, job: Job) -> str:
        """Runs a kernel and compares its out with float64; empty when it is right, else what is wrong."""
        ...

    def arm(self, job: Job) -> None:
        """Captures a kernel that was checked, so that it can be timed."""
        ...

    def sample(self, runner: int) -> float:
        """Microseconds a call of an armed kernel, cold."""
        ...


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def serve(connection: Any, bench: Bench) -> None:
    """Answers requests until the parent closes its end.

    An answer is ("ok", value), ("refused", sentence) for a request that failed without harm, or ("fault", sentence)
    after which the process ends: a fault of the driver leaves no context to go on with.
    """
    while True:
        try:
            request, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("ok", getattr(bench, request)(*arguments))
        except DriverError as error:
            answer = ("fault", str(error))
        except (MemoryError, TilewrightError) as error:
            answer = ("refused", f"{type(error).__name__}: {error}")
        except Exception:
            answer = ("fault", traceback.format_exc())  # ours: told whole, by the parent
        connection.send(answer)
        if answer[0] == "fault":
            return


def main(words: list[str]) -> None:
    """The child: a bench on the GPU of the ordinal, behind the pipe."""
    # A parent that is killed can end nobody, so the system does; else a CUDA kernel that hangs would keep the GPU.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(int(words[0]))
    try:
        from tilewright.tuning.gpu import GpuBench  # the driver, which nobody opens who imports this file for its Job

        bench = GpuBench(int(words[1]))
    except TilewrightError as error:
        connection.send(("fault", str(error)))
        return
    with bench:
        connection.send(("ok", "ready"))
        serve(connection, bench)


if __name__ == "__main__":
    main(sys.argv[1:])
