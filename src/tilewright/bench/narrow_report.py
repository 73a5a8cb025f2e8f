"""The narrow rows -> the lines of two tables, with what today's model would have chosen. Makes no measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from tilewright import model
from tilewright.bench.floor import floor
from tilewright.bench.narrow import WEIGHTS
from tilewright.bench.tables import caption, markdown
from tilewright.device import preset
from tilewright.packing import packed

Row = dict[str, Any]

COLUMNS = ("M, N, K", "cuBLAS", "fastest", "ratio", "share of the floor", "config", "choice", "behind the fastest")
SUMMARY_COLUMNS = (
    "products", "number", "choice ahead of cuBLAS", "cuBLAS over choice", "least ratio", "fastest ahead",
    "cuBLAS over fastest", "choice's share of the floor", "least share",
)  # fmt: skip
_PRESET = "h200"  # whose rows there are
_FEW_ROWS = 64  # to here a product waits for its weight alone
_SMALL_WEIGHT = 64 << 20  # bytes of one that is read before the memory has come to its rate


@dataclass(frozen=True)
class Product:
    """What was measured of one product. Units: microseconds; None where there is no such row."""

    m: int
    n: int
    k: int
    cublas_us: float | None
    fastest_us: float
    fastest_config: str
    choice_us: float | None
    floor_us: float | None

    @property
    def is_weight(self) -> bool:
        """Whether it is some rows times a weight, and no product of few tiles or of a long k."""
        return (self.n, self.k) in WEIGHTS

    @property
    def weight_bytes(self) -> int:
        """Bytes of b, 2 a value."""
        return 2 * self.n * self.k


GROUPS: tuple[tuple[str, Callable[[Product], bool]], ...] = (
    (
        f"M to {_FEW_ROWS}, weight to {_SMALL_WEIGHT >> 20} MiB",
        lambda each: each.is_weight and each.m <= _FEW_ROWS and each.weight_bytes <= _SMALL_WEIGHT,
    ),
    (
        f"M to {_FEW_ROWS}, larger weight",
        lambda each: each.is_weight and each.m <= _FEW_ROWS and each.weight_bytes > _SMALL_WEIGHT,
    ),
    (f"M above {_FEW_ROWS}, a weight", lambda each: each.is_weight and each.m > _FEW_ROWS),
    ("few tiles or long k", lambda each: not each.is_weight),
    ("all", lambda _: True),
)


def products(rows: Sequence[Row]) -> list[Product]:
    """One a product, in the order of m, n, k."""
    shapes = sorted({(row["m"], row["n"], row["k"]) for row in rows})
    return [_product([row for row in rows if (row["m"], row["n"], row["k"]) == shape]) for shape in shapes]


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a product; "-" where the model's choice was not measured."""
    return [_line(each) for each in products(rows)]


def summary_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a group of products; a group without any has none. Means are geometric."""
    found = [each for each in products(rows) if each.cublas_us is not None]
    return [_summary(name, own) for name, belongs in GROUPS if (own := [each for each in found if belongs(each)])]


def _product(rows: Sequence[Row]) -> Product:
    """Launches that begin behind another call's kernel are left out: cuBLAS was not timed so. Sums that begin behind
    their own product stay."""
    first = rows[0]
    ours = [row for row in rows if row.get("config") and "dependent" not in row["config"].split()]
    best = min(ours, key=lambda row: float(row["median_us"]))
    problem = packed(first["m"], first["n"], first["k"])
    least = floor(problem, first["mode"], first["device"])
    choice = model.best(problem, preset(_PRESET))
    own = [row for row in ours if row["config"] == str(choice.config) and row["ctas"] == choice.prediction.grid]
    return Product(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        cublas_us=next((row["median_us"] for row in rows if row["candidate"] == "cublas"), None),
        fastest_us=best["median_us"],
        fastest_config=best["config"],
        choice_us=own[0]["median_us"] if own else None,
        floor_us=None if least is None else least.us,
    )


def _line(product: Product) -> tuple[str, ...]:
    fastest_us, cublas_us, choice_us = product.fastest_us, product.cublas_us, product.choice_us
    return (
        f"{product.m}, {product.n}, {product.k}",
        "-" if cublas_us is None else f"{cublas_us:.2f}",
        f"{fastest_us:.2f}",
        "-" if cublas_us is None else f"**{cublas_us / fastest_us:.3f}**",
        "-" if product.floor_us is None else f"{product.floor_us / fastest_us:.0%}",
        product.fastest_config,
        "-" if choice_us is None else f"{choice_us:.2f}",
        "-" if choice_us is None else f"{choice_us / fastest_us - 1:.1%}",
    )


def _summary(name: str, own: Sequence[Product]) -> tuple[str, ...]:
    """Of these products, of each of which cuBLAS's time is known."""
    fastest = [each.cublas_us / each.fastest_us for each in own if each.cublas_us is not None]
    chosen = [each.cublas_us / each.choice_us for each in own if each.cublas_us is not None and each.choice_us]
    shares = [each.floor_us / each.choice_us for each in own if each.floor_us is not None and each.choice_us]
    return (
        name,
        str(len(own)),
        f"{_ahead(chosen)} of {len(chosen)}",
        f"**{geometric_mean(chosen):.3f}**" if chosen else "-",
        f"{min(chosen):.3f}" if chosen else "-",
        f"{_ahead(fastest)} of {len(fastest)}",
        f"**{geometric_mean(fastest):.3f}**",
        f"{geometric_mean(shares):.3f}" if shares else "-",
        f"{min(shares):.3f}" if shares else "-",
    )


def _ahead(ratios: Sequence[float]) -> int:
    return sum(ratio > 1 for ratio in ratios)


def narrow_table(rows: Sequence[Row]) -> str:
    """One line a product of few rows, a long k or few tiles: cuBLAS, the fastest config, and what the model takes."""
    own = _narrow(rows)
    meaning = (
        "Microseconds, inputs cold but for the two smallest. Choice is what today's model takes untuned, where that "
        "was measured with the launch it has now. Floor is the longer of what a read of the product's bytes and its "
        "FLOPs take on this card; its share is that of the fastest."
    )
    return markdown(COLUMNS, cells(own)) + caption(own, meaning)


def narrow_summary_table(rows: Sequence[Row]) -> str:
    """One line a group of these products: how the model's choice and the fastest config stand beside cuBLAS."""
    own = _narrow(rows)
    meaning = (
        "A ratio is cuBLAS's median over tilewright's; means of ratios and of shares are geometric. Choice and floor "
        "are those of the table below: for these few rows the floor is a cold read of all bytes by bulk copies, "
        "measured at sizes from 4 to 256 MiB and taken linearly between them (`bench/floor.py`)."
    )
    return markdown(SUMMARY_COLUMNS, summary_cells(own)) + caption(own, meaning)


def _narrow(rows: Sequence[Row]) -> list[Row]:
    """The narrow rows that hold a time."""
    return [row for row in rows if row.get("kind") == "narrow" and "median_us" in row]


TABLES = {"narrow": narrow_table, "narrow-summary": narrow_summary_table}
