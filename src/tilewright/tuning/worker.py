"""The parent's side of the tuner's child: started when needed, asked with a time limit, ended when it does not answer.

Knows nothing of kernels. After a loss the next request starts a fresh child, which knows nothing of the one before.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Literal

from tilewright.errors import TuningError

START_LIMIT_S = 60.0  # imports, the driver, a context
KILL_LIMIT_S = 20.0  # for the driver to tear down what a killed process left running
_TAIL = 600  # characters of what a child printed last

Loss = Literal["died", "hung", "refused"]


class WorkerLostError(Exception):
    """A request without a good answer. `how`: "refused" leaves the child alive; after the others it is gone."""

    def __init__(self, how: Loss, text: str) -> None:
        self.how = how
        self.text = text
        super().__init__(how, text)


class Worker:
    """One child at a time. `command` gets the file descriptor of its end of the pipe and `ordinal` as last words."""

    def __init__(self, ordinal: int = 0, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or (sys.executable, "-m", "tilewright.tuning.child"))
        self._ordinal = ordinal
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._output: Any = None

    @property
    def is_running(self) -> bool:
        """Whether a child is there; what it was told counts until it is lost."""
        return self._process is not None

    def ask(self, request: str, *arguments: Any, limit_s: float) -> Any:
        """The child's answer.

        Raises: WorkerLostError: none came in time, or the process ended, or it refused.
        """
        if self._process is None:
            self._start()
        try:
            self._connection.send((request, *arguments))
        except OSError as error:  # it ended since the last answer
            raise self._lost("died", str(error)) from error
        return self._answer(limit_s)

    def close(self) -> None:
        """Lets the child end by itself, or ends it."""
        if self._process is None:
            return
        self._connection.close()
        try:
            self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._forget()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *reason: object) -> None:
        if reason[0] is None:
            self.close()
        elif self._process is not None:
            self._kill()  # Ctrl-C must not wait for a kernel
            self._forget()

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by _forget()
        words = [*self._command, str(theirs.fileno()), str(self._ordinal)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the parent's, which ends its child
        )
        theirs.close()
        self._connection = ours
        self._answer(START_LIMIT_S)

    def _answer(self, limit_s: float) -> Any:
        try:
            if not self._connection.poll(limit_s):
                raise self._lost("hung", f"no answer in {limit_s:.0f} s")
            how, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost("died", "") from error
        if how == "refused":
            raise WorkerLostError("refused", value)
        if how == "fault":
            raise self._lost("died", value)
        return value

    def _lost(self, how: Loss, text: str) -> WorkerLostError:
        """Ends the child, and says what is known of its end."""
        assert self._process is not None
        if how == "died" and not text:
            try:
                code = self._process.wait(KILL_LIMIT_S)
                text = f"the process ended with {'signal' if code < 0 else 'status'} {abs(code)}; {self._tail()}"
            except subprocess.TimeoutExpired:
                text = "the process closed its pipe and did not end"
        self._kill()
        self._forget()
        return WorkerLostError(how, text.strip().rstrip(";"))

    def _tail(self) -> str:
        self._output.seek(0)
        printed: bytes = self._output.read()
        return printed.decode(errors="replace").strip()[-_TAIL:]

    def _kill(self) -> None:
        """Raises: TuningError: the process does not end: a kernel holds the device."""
        assert self._process is not None
        self._process.kill()
        try:
            self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TuningError(
                f"process {self._process.pid}",
                [f"it was killed and did not end in {KILL_LIMIT_S:.0f} s: a kernel still holds the device"],
            ) from None

    def _forget(self) -> None:
        self._connection.close()
        self._output.close()
        self._process = None
