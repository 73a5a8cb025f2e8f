"""Where bytes are remembered: one shadow of all shared memory, one of each buffer of global memory.

A buffer that nobody has written needs no shadow: its reads are kept in a list until the first write.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.memory import Buffer
from tilewright.emulator.shadow import Access, AnyAccess, AsyncAccess, Judge, Shadow, States

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

KEPT_STATES = 100_000  # before those that nothing is in any more are forgotten: memory of long runs
KEPT_READS = 4096  # of a buffer that nobody has written; older ones are forgotten first


class BufferShadow:
    """One buffer: its reads before the first write, then its shadow."""

    def __init__(self) -> None:
        self.reads: deque[AnyAccess] = deque(maxlen=KEPT_READS)
        self.shadow: Shadow | None = None

    def touch(self, access: AnyAccess, judge: Judge, buffer: Buffer, states: States) -> None:
        """Judges and remembers one access."""
        if self.shadow is None:
            if not access.writes:
                if buffer.writable:
                    self.reads.append(access)
                return
            self.shadow = Shadow(buffer.address, buffer.data.size + 16, states)
            for read in self.reads:
                self.shadow.touch(read, None)
            self.reads.clear()
        self.shadow.touch(access, judge)


class Spaces:
    """Every byte that the launch may touch."""

    def __init__(self, machine: Machine) -> None:
        self.memory = machine.memory
        self.states = States()
        self.shared = Shadow(0, machine.smem.data.size, self.states)
        self.buffers: dict[int, BufferShadow] = {}
        self.limit = KEPT_STATES

    def touch(self, access: AnyAccess, judge: Judge) -> None:
        """Judges an access against the earlier ones of its bytes, and remembers it."""
        if len(self.states.known) > self.limit:
            self.states.renumber([self.shared, *(b.shadow for b in self.buffers.values() if b.shadow is not None)])
            self.limit = KEPT_STATES + 2 * len(self.states.known)
        if access.space == "shared":
            self.shared.touch(access, judge)
            return
        starts = access.starts
        buffer = self.memory.find(int(starts.min()), int(starts.max()) + access.size)
        if buffer is not None:
            self._of(buffer).touch(access, judge, buffer, self.states)
            return
        found = [self.memory.find(start, start + access.size) for start in starts.tolist()]
        for one in {id(b): b for b in found if b is not None}.values():
            chosen = np.array([b is one for b in found])
            self._of(one).touch(_part(access, chosen), judge, one, self.states)

    def _of(self, buffer: Buffer) -> BufferShadow:
        shadow = self.buffers.get(buffer.address)
        if shadow is None:
            shadow = self.buffers[buffer.address] = BufferShadow()
        return shadow


def _part(access: AnyAccess, chosen: NDArray[np.bool_]) -> AnyAccess:
    """The runs of an access that lie in one buffer."""
    a = access
    if isinstance(a, AsyncAccess):
        return AsyncAccess(a.trace, a.space, a.starts[chosen], a.size, a.writes, a.owner)
    times = a.times if np.ndim(a.times) == 0 else a.times[chosen]
    return Access(
        a.site, a.cta, a.threads[chosen], times, a.order, a.space, a.starts[chosen], a.size, a.writes, a.strong, a.op
    )
