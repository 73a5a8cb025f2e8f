"""The baseline "cuBLASLt tuned": the fastest algorithm that the library owns for a product, found by timing them.

The heuristic of the library offers about eight algorithms a product, and often better ones for a neighbouring size
(H200, 2026-11-29: up to 1.29 times its default, with 8 to 427 algorithms a shape). All of them that the library's own
check passes on the true product are timed, and the best is checked against float64 before it counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright import dtypes
from tilewright.bench.cublaslt import product as views
from tilewright.bench.cublaslt.algorithm import Algorithm
from tilewright.bench.cublaslt.library import Library, Session, installed
from tilewright.bench.cublaslt.product import Product, Strided
from tilewright.bench.halving import RUNGS, Rung, Screened, race, screen
from tilewright.bench.verify import verify_launch
from tilewright.check import Check
from tilewright.errors import LibraryError
from tilewright.problem import Problem
from tilewright.timing import Candidate, Machine

Row = dict[str, Any]
OperandSet = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # a (m, k), b (k, n), out (m, n)

NAME = "cublaslt"
STEPS = (64, 128, 256)  # neighbours: a tile more, a tile less, and the multiples of a tile around
COLLECTING, SCREENING, TWINS = 0.2, 0.6, 0.7  # shares of the time: by when this part ends; the rest is the race's
NUM_SAVED = 3  # finalists that a row keeps for a later run
NUM_TWINS = 8  # of the best, those algorithms are tried too that the library tells apart and its attributes do not


@dataclass(frozen=True, kw_only=True)
class Search:
    """How hard the best algorithm is looked for.

    Units: `seconds` of one product, about; `requested` algorithms of each heuristic. `saved`: finalists of an earlier
    run by Product.key; they are raced again, and nothing else is tried, where the library is of the same version.
    """

    seconds: float = 20.0
    requested: int = 100
    workspace_bytes: int = 64 << 20
    rungs: tuple[Rung, ...] = RUNGS
    saved: Mapping[str, Saved] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """Finalists of an earlier run: the library's version, and each one's 64 bytes, the best first."""

    version: str
    blobs: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The algorithm that won, ready to be timed as a column.

    `offered` algorithms were asked of heuristics and passed the library's check, `tried` of them were timed; `refused`
    are those with a wrong result, `failed` those that did not launch.
    """

    candidate: Candidate
    algorithm: Algorithm
    product: str
    version: str
    offered: int
    tried: int
    refused: tuple[str, ...]
    failed: tuple[str, ...]
    finalists: tuple[tuple[Algorithm, float], ...]
    verdict: Check
    seconds: float
    is_saved: bool

    def facts(self) -> Row:
        """What a row says of it; `saved_of` reads it back."""
        return {
            "library": f"cuBLASLt {self.version}",
            "version": self.version,
            "product": self.product,
            "algorithm": self.algorithm.facts(),
            "offered": self.offered,
            "tried": self.tried,
            "refused": list(self.refused),
            "failed": list(self.failed),
            "finalists": [
                {"blob": algorithm.blob.hex(), "us": us, "what": str(algorithm)} for algorithm, us in self.finalists
            ],
            "error_over_bound": self.verdict.worst,
            "seconds": round(self.seconds, 2),
            "from_saved": self.is_saved,
        }


def saved_of(rows: Iterable[Row]) -> dict[str, Saved]:
    """The finalists that rows hold, by Product.key; of two rows of a product the later one's."""
    found = {}
    for row in rows:
        if tuned := row.get("tuned"):
            blobs = tuple(bytes.fromhex(each["blob"]) for each in tuned["finalists"])
            found[tuned["product"]] = Saved(tuned["version"], blobs)
    return found


@contextmanager
def tune(
    problem: Problem,
    sets: Sequence[OperandSet],
    machine: Machine,
    stream: int,
    *,
    search: Search | None = None,
    library: Library | None = None,
) -> Iterator[Tuned]:
    """The fastest right algorithm for the problem, timed over the operand sets, for as long as the block lasts.

    The current torch device is the sets' and torch's current stream is `stream`.
    Raises: UnsupportedError: no libcublasLt. LibraryError: the library has no algorithm, or none that is right.
    Cost: about search.seconds; search.workspace_bytes of device memory.
    """
    search = search or Search()
    library = library or installed()
    started_s = machine.now_s()
    product = product_of_sets(sets)
    workspace = torch.empty(search.workspace_bytes, dtype=torch.uint8, device=sets[0][0].device)
    addresses = [(a.data_ptr(), b.data_ptr(), out.data_ptr()) for a, b, out in sets]
    with Session(library, product, search.workspace_bytes) as session:

        def candidate(name: str, algorithm: Algorithm) -> Candidate:
            run = session.launcher(algorithm.blob, workspace.data_ptr(), stream)
            return Candidate(name, lambda index: run(*addresses[index % len(addresses)]), len(addresses))

        found = _Race(machine, session, candidate, search, started_s)
        finalists = found.run()
        refused: dict[Algorithm, str] = {}
        for algorithm in [*(each for each, _ in finalists), *found.others(finalists)]:
            column = candidate(NAME, algorithm)
            verdict = verify_launch(
                problem,
                sets[0],
                column.launch,
                lambda: machine.wait(machine.record()),
                allowed=partial_sums(problem, splits_of(algorithm)),
            )
            if verdict.ok:
                break
            refused[algorithm] = f"{algorithm}: {verdict}"
        else:
            why = "; ".join([*refused.values(), *found.failed]) or "no algorithm was offered"
            raise LibraryError("cublasLtMatmul", "no right result", why, str(problem))
        yield Tuned(
            candidate=column,
            algorithm=algorithm,
            product=product.key,
            version=library.version,
            offered=found.offered,
            tried=found.tried,
            refused=tuple(refused.values()),
            failed=tuple(found.failed),
            finalists=tuple(each for each in finalists if each[0] not in refused)[:NUM_SAVED],
            verdict=verdict,
            seconds=machine.now_s() - started_s,
            is_saved=found.is_saved,
        )


# -- which algorithms --------------------------------------------------------------------------------------------------


def product_of_sets(sets: Sequence[OperandSet]) -> Product:
    """The product of operand sets of one layout, as the library sees it, at the alignment that all of them have."""

    def strided(index: int) -> Strided:
        tensors = [each[index] for each in sets]
        first = tensors[0]
        return Strided(
            rows=first.shape[0],
            columns=first.shape[1],
            row_stride=first.stride(0),
            column_stride=first.stride(1),
            dtype=dtypes.by_name(first.dtype),
            align_bytes=views.alignment_bytes(*(tensor.data_ptr() for tensor in tensors)),
        )

    return views.product_of(strided(0), strided(1), strided(2))


def neighbours(size: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Sizes whose heuristics may know a better algorithm, the nearest first: one extent changed, all halved or doubled,
    all rounded up to a multiple of a tile.
    """
    found: set[tuple[int, int, int]] = set()
    for axis, extent in enumerate(size):
        for other in _near(extent):
            changed = list(size)
            changed[axis] = other
            rows, columns, k = changed
            found.add((rows, columns, k))
    for factors in itertools.product((0.5, 1.0, 2.0), repeat=3):
        found.add(_scaled(size, factors))
    for step in (8, 16, *STEPS):
        rows, columns, k = (-(-extent // step) * step for extent in size)
        found.add((rows, columns, k))
    found.discard(size)
    return sorted(found, key=lambda other: (_distance(size, other), other))


def _near(extent: int) -> set[int]:
    found = {extent // 4, extent // 2, extent * 3 // 4, extent * 3 // 2, extent * 2, extent * 4}
    found |= {1 << extent.bit_length(), 1 << (extent.bit_length() - 1)}
    for step in STEPS:
        found |= {extent - step, extent + step, extent // step * step, -(-extent // step) * step}
    return {other for other in found if other > 0} - {extent}


def _scaled(size: tuple[int, int, int], factors: Sequence[float]) -> tuple[int, int, int]:
    rows, columns, k = (max(1, round(extent * factor)) for extent, factor in zip(size, factors, strict=True))
    return (rows, columns, k)


def _distance(size: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    return round(sum(abs(math.log2(b / a)) for a, b in zip(size, other, strict=True)), 6)


def offered(
    session: Session, requested: int, is_late: Callable[[], bool] = lambda: False
) -> dict[tuple[tuple[str, int], ...], list[Algorithm]]:
    """Every algorithm that some heuristic offers and that can run the session's product, by its attributes.

    Heuristics are asked for the product itself, with the workspace and without, and then for its neighbours, until it
    is late. Algorithms of equal attributes that the library tells apart are twins in one list.
    Raises: LibraryError: the library answers nothing for the product itself.
    """
    found: dict[tuple[tuple[str, int], ...], list[Algorithm]] = {}
    seen: set[bytes] = set()
    library, product = session.library, session.product
    for size in (product.size, *neighbours(product.size)):
        is_own = size == product.size
        if is_late() and not is_own:
            break
        target = product if is_own else product.resized(*size)
        for workspace_bytes in (session.workspace_bytes, 0):
            try:
                with Session(library, target, workspace_bytes, session.handle) as other:
                    blobs = other.heuristics(requested)
            except LibraryError:
                if is_own and not found:
                    raise
                continue  # one neighbour less
            for blob in dict.fromkeys(blobs):
                if blob not in seen and (algorithm := session.checked(blob)) is not None:
                    found.setdefault(algorithm.attributes, []).append(algorithm)
            seen.update(blobs)
    return found


class _Race:
    """From heuristics to finalists; counts what it tried. An algorithm's name is its place in `algorithms`."""

    def __init__(
        self,
        machine: Machine,
        session: Session,
        candidate: Callable[[str, Algorithm], Candidate],
        search: Search,
        started_s: float,
    ) -> None:
        self.machine, self.session, self.candidate, self.search = machine, session, candidate, search
        self.started_s = started_s
        self.algorithms: list[Algorithm] = []
        self.looked = Screened()
        self.offered = 0
        self.is_saved = False

    def run(self) -> list[tuple[Algorithm, float]]:
        """Algorithms and their median microseconds on the last rung, the fastest first."""
        saved = self.search.saved.get(self.session.product.key)
        if saved is not None and saved.version == self.session.library.version:
            known = [algorithm for algorithm in map(self.session.checked, saved.blobs) if algorithm is not None]
            self._look_at(known, 1.0)
            if self.looked.relative:
                self.is_saved, self.offered = True, len(known)
                return self._raced(self.search.rungs[-1:])
        groups = offered(self.session, self.search.requested, lambda: self.machine.now_s() > self._at(COLLECTING))
        self.offered = sum(map(len, groups.values()))
        self._look_at([twins[0] for twins in groups.values()], SCREENING)
        best = [self.algorithms[int(name)] for name in self.looked.order()[:NUM_TWINS]]
        twins = [twin for algorithm in best for twin in groups[algorithm.attributes][1:]]
        if twins:
            self._look_at([best[0], *twins], TWINS)
        return self._raced(self.search.rungs)

    def others(self, finalists: Sequence[tuple[Algorithm, float]]) -> Iterator[Algorithm]:
        """Those that reached no last rung, the fastest first: what is left when every finalist is wrong."""
        known = {algorithm for algorithm, _ in finalists}
        return (each for name in self.looked.order() if (each := self.algorithms[int(name)]) not in known)

    @property
    def tried(self) -> int:
        """How many algorithms were timed."""
        return len(self.looked.relative)

    @property
    def failed(self) -> list[str]:
        """Those that did not launch, and why."""
        return [f"{self.algorithms[int(name)]}: {why}" for name, why in self.looked.failed.items()]

    def _look_at(self, algorithms: Sequence[Algorithm], share: float) -> None:
        """Screens algorithms; the first of them is what their times are relative to, and may have been seen before."""
        columns = []
        for algorithm in algorithms:
            if algorithm not in self.algorithms:
                self.algorithms.append(algorithm)
            columns.append(self.candidate(str(self.algorithms.index(algorithm)), algorithm))
        found = screen(self.machine, columns, until_s=self._at(share))
        names = list(found.relative)
        scale = self.looked.relative.get(names[0], 1.0) if names else 1.0
        for name in names:
            self.looked.relative.setdefault(name, found.relative[name] * scale)
            self.looked.times_us.setdefault(name, found.times_us[name])
        self.looked.failed |= found.failed

    def _raced(self, rungs: Sequence[Rung]) -> list[tuple[Algorithm, float]]:
        columns = [self.candidate(name, self.algorithms[int(name)]) for name in self.looked.order()]
        if not columns:
            return []
        results = race(self.machine, columns, self.looked.times_us, until_s=self._at(1.0), rungs=rungs)
        return [(self.algorithms[int(column.name)], us) for column, us in results]

    def _at(self, share: float) -> float:
        return self.started_s + share * self.search.seconds


# -- is it right -------------------------------------------------------------------------------------------------------


def partial_sums(problem: Problem, splits: int) -> float:
    """The absolute error that rounding the partial sums of `splits` parts of k to out's type may add; 0 for none.

    torch allows such algorithms by default, so the baseline may use them. Of normal(0, 1) data a partial sum has a
    standard deviation below sqrt(k), and six of those are passed once in 5e8; each of the split's sums is rounded
    once alone and once added.
    """
    return 2 * splits * problem.out_dtype.unit_roundoff * 6 * math.sqrt(problem.k)


def splits_of(algorithm: Algorithm) -> int:
    """Into how many parts of k, added in out's type, an algorithm splits the product; 0 where it adds in fp32."""
    return max(2, algorithm["split_k"]) if algorithm.is_reduced_precision else 0
