"""The rows of benchmarks/dependent.py -> what is committed of them, and their table. Makes no measurement.

Knows which column stands beside which, and nothing of how either was timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.bench.published import published_parts
from tilewright.bench.tables import NOT_MEASURED, caption, markdown

Row = dict[str, Any]

KIND = "dependent"  # of every committed row; `part` says which: check, time, child
CUBLAS, SHIPPED, DEPENDENT = "cublas", "tilewright", "dependent"  # the columns of a product
WORD = "dependent"  # what of a config says that its launch is one

COLUMNS = (
    "M, N, K", "cuBLAS us", "as shipped us", "dependent us", "less us", "times as fast", "quartiles", "CTAs", "config",
)  # fmt: skip
_KEPT = (
    "status", "why", "case", "candidate", "m", "n", "k", "num_sets", "is_cold", "mode", "median_us", "lower_us",
    "upper_us", "spread", "rounds", "calls", "captured", "ratio_beside", "ratio_beside_lower", "ratio_beside_upper",
    "watts", "clock_mhz", "limits", "error_over_bound", "ctas", "num_sms", "config",
)  # fmt: skip


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows as they are committed: the checks as one, of the times what table and doubter need."""
    return published_parts(rows, KIND, _KEPT)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a product that has all three columns, both of tilewright's with the same config, in the rows' order.

    Units: microseconds a call; how many times as fast is the median over rounds of the shipped choice's time over the
    dependent launch's of the same round, with its quartiles.
    """
    timed = {(_product(row), row["candidate"]): row for row in _times(rows)}
    lines = []
    for product in dict.fromkeys(product for product, _ in timed):
        cublas, shipped, dependent = (timed.get((product, name)) for name in (CUBLAS, SHIPPED, DEPENDENT))
        if cublas is None or shipped is None or dependent is None or not _is_the_same_config(shipped, dependent):
            continue
        lines.append(
            (
                f"{shipped['m']}, {shipped['n']}, {shipped['k']}{'' if shipped.get('is_cold', True) else ' *'}",
                *(_us(row["median_us"]) for row in (cublas, shipped, dependent)),
                _us(shipped["median_us"] - dependent["median_us"]),
                f"**{dependent['ratio_beside']:.3f}**",
                f"{dependent['ratio_beside_lower']:.3f} .. {dependent['ratio_beside_upper']:.3f}",
                str(shipped["ctas"]),
                shipped["config"],
            )
        )
    return lines


def told(rows: Sequence[Row]) -> str:
    """What the checks and the clock say of all columns, a sentence each; nothing where there is nothing to say."""
    checks = [row for row in rows if row.get("kind") == KIND and row["part"] == "check"]
    right, wrong = (sum(row[name] for row in checks) for name in ("ok", "wrong"))
    sentences = []
    if checks:
        sentences.append(
            f"Of {right + wrong} products that read what the launch before wrote, launched so one behind the other, "
            f"{right} have the bits of plain launches."
        )
    times = _times(rows)
    if loose := [row for row in times if not row.get("captured", True)]:
        sentences.append(f"{len(loose)} of {len(times)} times hold the gaps of launches, which no graph would take.")
    return "".join(f" {sentence}" for sentence in sentences)


def table(rows: Sequence[Row]) -> str:
    """One line a product: cuBLAS, the choice as shipped, and the same config launched as a dependent of the one ahead.

    cuBLAS is not launched so: there is no ratio of the dependent launch over it.
    """
    lines = cells(rows)
    if not lines:
        return NOT_MEASURED
    meaning = (
        "Microseconds a call, medians of shuffled rounds, interleaved, operands cold (`*`: too small for that, they "
        "lay in the L2). Dependent: the same config with `dependent_launch`, in a graph where each call begins beside "
        "the end of the one before it, the same product on other operands; cuBLAS and the choice as shipped begin when "
        "that one has ended. Times as fast as shipped: the median over rounds of the two times of the same round."
    )
    return markdown(COLUMNS, lines) + caption(_times(rows), meaning + told(rows))


def _times(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.get("kind") == KIND and row["part"] == "time" and "median_us" in row]


def _product(row: Row) -> tuple[Any, ...]:
    return row.get("device"), row["m"], row["n"], row["k"]


def _is_the_same_config(shipped: Row, dependent: Row) -> bool:
    """Whether the two differ in how they are launched, and in nothing else."""
    plain, other = shipped["config"].split(), dependent["config"].split()
    return WORD not in plain and WORD in other and plain == [word for word in other if word != WORD]


def _us(time_us: float) -> str:
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.1f}"


TABLES = {"dependent": table}
