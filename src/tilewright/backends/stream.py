"""Streams, events and graphs of one device: what the clock needs to order and to time work.

Knows nothing of kernels. Reaches the driver only through the CUDA backend's guard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.backends.cuda import CudaBackend
from tilewright.errors import DriverError

MICROSECONDS = 1000.0  # cuEventElapsedTime answers in milliseconds


@dataclass(eq=False)
class Graph:
    """Captured work, ready to be replayed with no launch gaps but the device's own."""

    executable: Any  # CUgraphExec


class Stream:
    """One ordered queue of work on one device; does not wait for the default stream."""

    def __init__(self, backend: CudaBackend, ordinal: int = 0) -> None:
        self.backend = backend
        self.ordinal = ordinal
        flags = backend.driver.module.CUstream_flags.CU_STREAM_NON_BLOCKING
        with backend.on(ordinal):
            self._stream = backend.call("cuStreamCreate", int(flags))
        self.handle = int(self._stream)
        self._graphs: list[Graph] = []

    def synchronize(self) -> None:
        """Wait until everything enqueued so far has run. Raises: DriverError: some of it failed."""
        self.backend.call("cuStreamSynchronize", self._stream)

    def record(self) -> Any:
        """An event that happens when everything enqueued so far has run."""
        with self.backend.on(self.ordinal):
            event = self.backend.call("cuEventCreate", 0)
            self.backend.call("cuEventRecord", event, self._stream)
        return event

    def wait(self, event: Any) -> None:
        """Block this thread until the event has happened."""
        self.backend.call("cuEventSynchronize", event)

    def elapsed_us(self, start: Any, stop: Any) -> float:
        """Microseconds between two events that have happened. Both are used up."""
        milliseconds = float(self.backend.call("cuEventElapsedTime", start, stop))
        for event in {start, stop}:
            self.backend.call("cuEventDestroy", event)
        return milliseconds * MICROSECONDS

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """What `enqueue` puts on this stream, as a graph; nothing of it runs.

        Raises: DriverError: something in it cannot be captured. Whatever `enqueue` raises.
        """
        # Thread-local: another thread's allocation or synchronisation does not break the capture.
        mode = self.backend.driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with self.backend.on(self.ordinal):
            self.backend.call("cuStreamBeginCapture", self._stream, mode)
            try:
                enqueue()
            except BaseException:
                self.backend.driver.module.cuStreamEndCapture(self._stream)  # leaves the stream usable again
                raise
            captured = self.backend.call("cuStreamEndCapture", self._stream)
            try:
                graph = Graph(self.backend.call("cuGraphInstantiate", captured, 0))
            finally:
                self.backend.call("cuGraphDestroy", captured)
            self._graphs.append(graph)
            # Uploaded now, so that the first replay is like the rest.
            self.backend.call("cuGraphUpload", graph.executable, self._stream)
        return graph

    def replay(self, graph: Graph) -> None:
        """Enqueue a captured graph."""
        self.backend.call("cuGraphLaunch", graph.executable, self._stream)

    def close(self) -> None:
        """Give the stream and its graphs back, once their work has run."""
        try:
            self.synchronize()
        except DriverError:
            return  # the device is lost: destroying would fail the same way and hide the first error
        for graph in self._graphs:
            self.backend.call("cuGraphExecDestroy", graph.executable)
        self._graphs.clear()
        self.backend.call("cuStreamDestroy", self._stream)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
