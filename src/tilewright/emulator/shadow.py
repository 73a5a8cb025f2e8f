"""The last accesses of every byte: who wrote it, and who has read it since. Knows no order and no rule.

A range of memory has one state number for each granule: 16 bytes at first, finer once an access asks for it. A state
is a write and the reads after it; ranges that were used alike share one state, so that most accesses meet only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.clocks import Clock
from tilewright.emulator.events import AsyncOp, Site

Starts = NDArray[np.int64]
Index = NDArray[np.int64]

GRANULE = 16  # bytes, at first
MAX_READS = 64  # reads that a state remembers; older ones are forgotten first
NEVER = np.iinfo(np.int32).max


@dataclass(eq=False, slots=True)
class Access:
    """One access by threads themselves, or by the cp.async of threads, which are known by the threads' times as well.

    `times`: when: one for all threads, or one each (cp.async: NEVER until its thread has waited for it). `order`: its
    place among all events. `strong`: the scope of an atomic or volatile access, "" of an ordinary one. `arrivals`: of
    cp.async: (CTA, place, time) of mbarriers that count it.
    """

    site: Site
    cta: int
    threads: NDArray[np.int64]
    times: Any
    order: int
    space: str
    starts: Starts
    size: int
    writes: bool
    strong: str = ""
    op: AsyncOp | None = None
    is_barrier: bool = False
    arrivals: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def agent(self) -> tuple[Any, ...]:
        """Whose later read makes an earlier one forgettable."""
        return (self.cta, int(self.threads[0]), len(self.threads))


@dataclass(eq=False, slots=True)
class Trace:
    """One asynchronous operation: what its issuers knew, and how its end becomes known.

    `known`: a clock for each set of issuing threads. `now`: the time of issue; `fenced`: the times of the last proxy
    fences of the issuing thread, where there is one alone. `read_ends`, `ends`: (CTA, threads
    or place of an mbarrier, time): whoever knows one of them knows that sources are read, or that all is done; `ends`
    by the CTA that holds the bytes, -1 for any.
    """

    op: AsyncOp
    order: int
    now: int
    known: list[tuple[Clock, NDArray[np.int64]]]
    fenced: tuple[int, int] = (0, 0)
    read_ends: list[tuple[int, Any, int]] = field(default_factory=list)
    ends: list[tuple[int, tuple[int, Any, int]]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)  # of cp.async


@dataclass(eq=False, slots=True)
class AsyncAccess:
    """What one asynchronous operation reads or writes in one place. `owner`: the CTA of the bytes, -1: global."""

    trace: Trace
    space: str
    starts: Starts
    size: int
    writes: bool
    owner: int = -1

    @property
    def agent(self) -> tuple[Any, ...]:
        op = self.trace.op
        return (op.kind, op.cta, int(op.threads[0]))

    @property
    def site(self) -> Site:
        return self.trace.op.site

    @property
    def order(self) -> int:
        return self.trace.order

    @property
    def ends(self) -> Iterator[tuple[int, Any, int]]:
        """What tells that this access is over."""
        if not self.writes:
            yield from self.trace.read_ends
        for owner, end in self.trace.ends:
            if owner in (-1, self.owner) or not self.writes:
                yield end


AnyAccess = Access | AsyncAccess
Judge = Callable[["AnyAccess", "Shadow", "Granules"], None]


class States:
    """Every combination of a write and reads, by number. State 0: never touched."""

    def __init__(self) -> None:
        self.known: list[tuple[AnyAccess | None, tuple[AnyAccess, ...]]] = [(None, ())]
        self.numbers: dict[tuple[int, ...], int] = {}

    def number(self, write: AnyAccess | None, reads: tuple[AnyAccess, ...]) -> int:
        key = _key(write, reads)
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.known)
            self.known.append((write, reads))  # keeps them alive, so that an id stays unique
        return found

    def renumber(self, shadows: list[Shadow]) -> None:
        """Forgets every state that no granule is in."""
        live = np.unique(np.concatenate([np.unique(shadow.numbers) for shadow in shadows]))
        live = live[live > 0]
        numbers: NDArray[np.int32] = np.zeros(len(self.known), np.int32)
        numbers[live] = np.arange(1, len(live) + 1)
        self.known = [self.known[0], *(self.known[number] for number in live.tolist())]
        self.numbers = {_key(*state): number for number, state in enumerate(self.known) if number}
        for shadow in shadows:
            shadow.numbers = numbers[shadow.numbers]

    def after(self, state: int, access: AnyAccess) -> int:
        """The state once the access has happened."""
        if access.writes:
            return self.number(access, ())
        write, reads = self.known[state]
        agent = access.agent
        kept = tuple(read for read in reads if read.agent != agent)[-MAX_READS + 1 :]
        return self.number(write, (*kept, access))


def _key(write: AnyAccess | None, reads: tuple[AnyAccess, ...]) -> tuple[int, ...]:
    return (id(write), *map(id, reads))


class Granules:
    """The granules of one access that are in one state; worked out only when somebody asks."""

    __slots__ = ("chosen", "index", "place")

    def __init__(self, index: Index | None, place: Any, chosen: NDArray[np.bool_] | None) -> None:
        self.index = index
        self.place = place
        self.chosen = chosen

    def numbers(self) -> Index:
        """Granules, flat."""
        index = np.arange(self.place.start, self.place.stop) if self.index is None else self.index
        return np.asarray(index[self.chosen] if self.chosen is not None else index.reshape(-1))

    def runs(self) -> Index:
        """For each of numbers(): which run of the access it belongs to."""
        if self.index is None:
            return np.zeros(len(self.numbers()), np.int64)
        rows = np.broadcast_to(np.arange(len(self.index))[:, None], self.index.shape)
        return np.asarray(rows[self.chosen] if self.chosen is not None else rows.reshape(-1))


class Shadow:
    """States of the bytes from `base` on."""

    def __init__(self, base: int, num_bytes: int, states: States) -> None:
        self.base = base
        self.table = states
        self.granule = GRANULE
        self.numbers: NDArray[np.int32] = np.zeros(-(-num_bytes // GRANULE), np.int32)

    def index(self, starts: Starts, size: int) -> Index:
        """Granules of each run of bytes, (runs, granules a run)."""
        first = (starts - self.base) // self.granule
        count = max(size // self.granule, 1)
        return first[:, None] + np.arange(count) if count > 1 else first[:, None]

    def address(self, granule: int) -> int:
        """The first byte of a granule."""
        return self.base + granule * self.granule

    def refine(self, starts: Starts, size: int) -> None:
        """Makes granules so fine that the runs are whole numbers of them."""
        odd = (int(np.bitwise_or.reduce(starts - self.base)) | size) & (self.granule - 1)
        if odd:
            finer = odd & -odd
            self.numbers = np.repeat(self.numbers, self.granule // finer)
            self.granule = finer

    def clear(self, first: int, num_bytes: int) -> None:
        """Forgets a range."""
        start = (first - self.base) // self.granule
        self.numbers[start : start + -(-num_bytes // self.granule)] = 0

    def touch(self, access: AnyAccess, judge: Judge | None) -> None:
        """Lets `judge` see each earlier access that this one conflicts with, with the granules; then remembers it."""
        starts, size = access.starts, access.size
        self.refine(starts, size)
        if len(starts) == 1 and size > self.granule:
            first = (int(starts[0]) - self.base) // self.granule
            place: Any = slice(first, first + size // self.granule)
            index = None
        else:
            index = self.index(starts, size)
            place = index
        numbers = self.numbers[place]
        low, high = int(numbers.min()), int(numbers.max())
        table = self.table
        if low == high:
            if low and judge is not None:
                self._judge(access, low, None, index, place, judge)
            self.numbers[place] = table.after(low, access)
            return
        present, inverse = np.unique(numbers, return_inverse=True)
        after = []
        for position, number in enumerate(present.tolist()):
            if number and judge is not None:
                self._judge(access, number, inverse.reshape(numbers.shape) == position, index, place, judge)
            after.append(table.after(number, access))
        self.numbers[place] = np.array(after, np.int32)[inverse].reshape(numbers.shape)

    def _judge(self, access: AnyAccess, number: int, chosen: Any, index: Any, place: Any, judge: Any) -> None:
        write, reads = self.table.known[number]
        others = (write, *reads) if access.writes else (write,)
        for other in others:
            if other is not None:
                judge(other, self, Granules(index, place, chosen))
