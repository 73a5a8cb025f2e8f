"""Who knows what: vector clocks of threads, with a row for each way in which something can be known.

A clock holds, for each CTA that it has heard of, a block of times: one a thread, then one an mbarrier. "t at thread x"
means: everything that x did up to t happened before. Knows nothing of addresses or instructions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.int32]  # (ROWS, threads and mbarriers)
Clock = dict[int, Block]  # by CTA
Threads = NDArray[np.int64]

# Rows. ORDERED: it happened before. WRITTEN: ordinary writes are visible too, which a scope that is too narrow does not
# give. FENCED_*: a proxy fence stands between, so that asynchronous copies and wgmma see those writes.
ORDERED, WRITTEN, FENCED_SHARED, FENCED_GLOBAL = range(4)
ROWS = 4

MBARRIERS = 32  # places that a new block has for mbarriers; grows


def copy(clock: Clock) -> Clock:
    """A clock of its own."""
    return {cta: block.copy() for cta, block in clock.items()}


def join(into: Clock, other: Clock, rows: int = ROWS) -> None:
    """`into` learns all that `other` knows, or only its first rows."""
    for cta, block in other.items():
        mine = into.get(cta)
        if mine is None:
            mine = into[cta] = np.zeros_like(block)
        elif mine.shape[1] < block.shape[1]:
            mine = into[cta] = widened(mine, block.shape[1])
        part = mine[:rows, : block.shape[1]]
        np.maximum(part, block[:rows], out=part)


def widened(block: Block, width: int) -> Block:
    """The block with room for more mbarriers."""
    wide: Block = np.zeros((ROWS, width), np.int32)
    wide[:, : block.shape[1]] = block
    return wide


def time_of(clock: Clock, cta: int, place: int, row: int = ORDERED) -> int:
    """What the clock knows of one thread or mbarrier."""
    block = clock.get(cta)
    return int(block[row, place]) if block is not None and place < block.shape[1] else 0


class View:
    """What a set of threads of one CTA knows: all the same, but for each one's knowledge of itself.

    `published`: what relaxed writes after the last fence hand on. `heard`: what relaxed reads have met, for the next
    fence.
    """

    __slots__ = ("clock", "count", "heard", "is_shared", "number", "published")

    def __init__(self, clock: Clock, count: int, published: Clock | None = None, heard: Clock | None = None) -> None:
        self.clock = clock
        self.count = count
        self.published = published
        self.heard = heard
        self.is_shared = True
        self.number = 0

    def snapshot(self) -> Clock:
        """The clock as it is now; it will not change."""
        self.is_shared = True
        return self.clock

    def writable(self) -> Clock:
        """The clock, to be changed."""
        if self.is_shared:
            self.clock = copy(self.clock)
            self.is_shared = False
        return self.clock


class CtaClocks:
    """The threads of one CTA in views, and what each knows of itself alone.

    `fenced` (2, threads): the time of each thread's last proxy fence, of shared and of global memory. `published_at`:
    the time of its last memory fence.
    """

    def __init__(self, cta: int, num_threads: int) -> None:
        self.cta = cta
        self.num_threads = num_threads
        self.width = num_threads + MBARRIERS
        self.num_places = num_threads
        self.view_of: NDArray[np.int64] = np.zeros(num_threads, np.int64)
        self.views: dict[int, View] = {0: View({}, num_threads)}
        self.next_view = 1
        self.fenced: Block = np.zeros((2, num_threads), np.int32)
        self.published_at: NDArray[np.int32] = np.zeros(num_threads, np.int32)

    def new_place(self) -> int:
        """A place for an mbarrier."""
        place = self.num_places
        self.num_places += 1
        if self.num_places > self.width:
            self.width += MBARRIERS
        return place

    def block(self, clock: Clock) -> Block:
        """The clock's block of this CTA, with room for every place."""
        block = clock.get(self.cta)
        if block is None:
            block = clock[self.cta] = np.zeros((ROWS, self.width), np.int32)
        elif block.shape[1] < self.width:
            block = clock[self.cta] = widened(block, self.width)
        return block

    def parts(self, threads: Threads) -> Iterator[tuple[View, Threads, NDArray[np.bool_] | None]]:
        """Each view that holds some of the threads, those threads, and which of the given ones they are (None: all)."""
        if len(threads) == 1 or len(self.views) == 1:
            yield self.views[int(self.view_of[threads[0]])], threads, None
            return
        numbers = self.view_of[threads]
        first = int(numbers[0])
        if bool((numbers == first).all()):
            yield self.views[first], threads, None
            return
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            yield self.views[number], threads[chosen], chosen

    def view_of_thread(self, thread: int) -> View:
        """The view that holds one thread."""
        return self.views[int(self.view_of[thread])]

    def separate(self, threads: Threads) -> list[tuple[View, Threads]]:
        """Views that hold these threads and no other: for what only they learn."""
        found = []
        for view, part, _ in list(self.parts(threads)):
            if view.count == len(part):
                found.append((view, part))
            else:
                own = View(view.snapshot(), len(part), view.published, view.heard)
                view.count -= len(part)
                self._place(part, own)
                found.append((own, part))
        return found

    def settle(self, view: View, part: Threads, into: View | None) -> View:
        """These threads, all of `view`, join the view `into` if it knows the same. Returns the view they are in."""
        if into is None or into is view or not into.count or not _same(view, into):
            return view
        del self.views[int(self.view_of[part[0]])]
        self.view_of[part] = into.number
        into.count += len(part)
        return into

    def unite(self, threads: Threads, clock: Clock) -> None:
        """The threads met and know the same from now on."""
        united = View(clock, len(threads))
        for view, part, _ in list(self.parts(threads)):
            united.published = _joined(united.published, self._published(view, part))
            united.heard = _joined(united.heard, view.heard)
            view.count -= len(part)
            if view.count == 0:
                del self.views[int(self.view_of[part[0]])]
        self._place(threads, united)

    def _published(self, view: View, part: Threads) -> Clock | None:
        """What these threads of a view published, with what each had done itself by then."""
        if view.published is None:
            return None
        published = copy(view.published)
        block = self.block(published)
        block[:FENCED_SHARED, part] = np.maximum(block[:FENCED_SHARED, part], self.published_at[part])
        return published

    def _place(self, threads: Threads, view: View) -> None:
        self.view_of[threads] = view.number = self.next_view
        self.views[self.next_view] = view
        self.next_view += 1

    def tell(self, into: Clock, threads: Threads, now: int, told: Clock | None = None) -> Clock | None:
        """`into` learns all that these threads know and have done. `told`: what it was last told; returns that."""
        for view, _, _ in self.parts(threads):
            if view.clock is not told:
                told = view.snapshot()
                join(into, told)
        self.tell_own(into, threads, now)
        return told

    def tell_own(self, into: Clock, threads: Threads, now: int) -> None:
        """`into` learns what these threads have done up to now."""
        block = self.block(into)
        block[:FENCED_SHARED, threads] = now
        block[FENCED_SHARED:, threads] = np.maximum(block[FENCED_SHARED:, threads], self.fenced[:, threads])

    def tell_published(self, into: Clock, threads: Threads) -> bool:
        """`into` learns what these threads knew and had done at their last memory fence. False: there was none."""
        told = False
        for view, part, _ in self.parts(threads):
            if view.published is not None:
                join(into, view.published)
                block = self.block(into)
                times = self.published_at[part]
                block[:FENCED_SHARED, part] = np.maximum(block[:FENCED_SHARED, part], times)
                told = True
        return told

    def proxy_fence(self, threads: Threads, rows: tuple[int, ...], now: int) -> None:
        """Writes that the threads know of are visible to asynchronous work from now on."""
        for view, part in self.separate(threads):
            for block in view.writable().values():
                for row in rows:
                    np.maximum(block[row], block[WRITTEN], out=block[row])
            for row in rows:
                self.fenced[row - FENCED_SHARED, part] = now

    def memory_fence(self, threads: Threads, now: int) -> None:
        """What was heard is known; what is known now goes out with later relaxed writes."""
        for view, part in self.separate(threads):
            if view.heard is not None:
                join(view.writable(), view.heard)
                view.heard = None
            published = copy(view.clock)
            self.tell_own(published, part[:0], now)
            view.published = published
            self.published_at[part] = now

    def warp_meeting(self, lanes: Threads, now: int) -> None:
        """bar.warp.sync of lanes of one warp."""
        clock: Clock = {}
        self.tell(clock, lanes, now)
        self.unite(lanes, clock)


def _same(one: View, other: View) -> bool:
    """Whether two views know the same, and hand on the same."""
    if one.published is not other.published or one.heard is not other.heard or one.clock.keys() != other.clock.keys():
        return False
    if one.clock is other.clock:
        return True
    return all(np.array_equal(block, other.clock[cta]) for cta, block in one.clock.items())


def _joined(first: Clock | None, second: Clock | None) -> Clock | None:
    if first is None or second is None or first is second:
        return second if first is None else first
    both = copy(first)
    join(both, second)
    return both


class Message:
    """What arrivals on one barrier, or writes of one flag, hand to whoever sees them.

    Parts by (CTA that gave it, whether its scope reaches other CTAs).
    """

    __slots__ = ("is_shared", "parts", "told")

    def __init__(self) -> None:
        self.parts: dict[tuple[int, bool], Clock] = {}
        self.told: dict[tuple[int, bool], Clock | None] = {}  # the clock that each part has last learned
        self.is_shared = False

    def part(self, cta: int, is_wide: bool) -> Clock:
        """The part to tell something to."""
        return self.parts.setdefault((cta, is_wide), {})

    def tell(self, state: CtaClocks, threads: Threads, is_wide: bool, now: int) -> None:
        """Threads release: the message takes up all that they know and have done."""
        key = (state.cta, is_wide)
        self.told[key] = state.tell(self.part(*key), threads, now, self.told.get(key))

    def copy(self) -> Message:
        """A message of its own."""
        other = Message()
        other.parts = {key: copy(clock) for key, clock in self.parts.items()}
        other.told = dict(self.told)
        return other

    def hand_to(self, clock: Clock, cta: int, is_wide: bool) -> None:
        """A CTA learns the message: of another CTA's part, no ordinary writes unless both scopes reach that far."""
        for (source, reaches), part in self.parts.items():
            join(clock, part, ROWS if source == cta or (reaches and is_wide) else 1)

    def heard_by(self, clock: Clock | None, cta: int, is_wide: bool) -> Clock:
        """The same for a relaxed read, which learns it at its next fence."""
        heard: Clock = {} if clock is None else copy(clock)
        self.hand_to(heard, cta, is_wide)
        return heard


def is_wide(scope: str) -> bool:
    """Whether a scope reaches past the CTA."""
    return scope in ("cluster", "gpu", "sys")
