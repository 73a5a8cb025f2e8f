"""Sizes that differ by little, and their times: is one of them a cliff? Knows nothing of who measured them.

A line is a run of sizes that are alike but for one extent, each at most STEP larger than the one before: what a sweep
over N or M gives, and what a suite holds of such by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Size = tuple[int, int, int]

STEP = 8  # elements: 16 bytes of bf16, so that a line holds no gap between one aligned size and the next
FEWEST = 3  # sizes of a line


@dataclass(frozen=True)
class Line:
    """Sizes of a line, in order, with a time for each.

    Units: microseconds; `axis` is the index of the extent that grows: 0 for M, 1 for N, 2 for K.
    """

    axis: int
    sizes: tuple[Size, ...]
    times_us: tuple[float, ...]

    def over_aligned(self) -> tuple[float, Size]:
        """The worst ratio of a time to that of an aligned neighbour, and its size.

        Aligned neighbours are the multiples of STEP next to it on either side, as far as they are in the line; of two
        the faster counts. An aligned size has those before and after it, so a step between them shows too.
        Without an aligned size in the line the neighbours are the sizes next to it.
        """
        extents = [size[self.axis] for size in self.sizes]
        aligned = [index for index, extent in enumerate(extents) if extent % STEP == 0] or list(range(len(extents)))
        found = []
        for index, time_us in enumerate(self.times_us):
            below = [other for other in aligned if other < index][-1:]
            above = [other for other in aligned if other > index][:1]
            if below or above:
                fastest_us = min(self.times_us[other] for other in (*below, *above))
                found.append((time_us / fastest_us, self.sizes[index]))
        return max(found, key=lambda pair: pair[0])

    def over_larger(self) -> tuple[float, Size]:
        """The worst ratio of a time to that of any larger size of the line, and its size: 1 where times only grow."""
        found = []
        fastest_us = self.times_us[-1]
        for time_us, size in zip(reversed(self.times_us), reversed(self.sizes), strict=True):
            fastest_us = min(fastest_us, time_us)
            found.append((time_us / fastest_us, size))
        return max(found, key=lambda pair: pair[0])

    def cells(self) -> tuple[str, str, str, str]:
        """For tables: both ratios as text, each with the extent at which it is the worst."""
        (aligned, at_aligned), (larger, at_larger) = self.over_aligned(), self.over_larger()
        return f"{aligned:.3f}", str(at_aligned[self.axis]), f"{larger:.3f}", str(at_larger[self.axis])

    @property
    def key(self) -> str:
        """The line as one word: 4096x2040..2072x4096."""
        return str(self).replace(" ", "").replace(",", "x")

    def __str__(self) -> str:
        first, last = self.sizes[0], self.sizes[-1]
        return ", ".join(
            f"{first[axis]} .. {last[axis]}" if axis == self.axis else str(first[axis]) for axis in range(3)
        )


def lines(times_us: Mapping[Size, float]) -> list[Line]:
    """Every line among these sizes, those that grow in M first."""
    found = []
    for axis in range(3):
        alike: dict[tuple[int, ...], list[Size]] = {}
        for size in sorted(times_us):
            alike.setdefault(size[:axis] + size[axis + 1 :], []).append(size)
        for sizes in alike.values():
            start = 0
            for stop in range(1, len(sizes) + 1):
                if stop < len(sizes) and sizes[stop][axis] - sizes[stop - 1][axis] <= STEP:
                    continue
                if stop - start >= FEWEST:
                    own = tuple(sizes[start:stop])
                    found.append(Line(axis, own, tuple(times_us[size] for size in own)))
                start = stop
    return found
