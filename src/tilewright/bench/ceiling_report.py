"""The ceilings' rows -> the lines of a table, and what the tensor cores reach in each mode. Makes no measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.bench.tables import caption, markdown

Row = dict[str, Any]

COLUMNS = ("ceiling", "mode", "rate", "unit", "spread", "W", "TFLOPS/W", "NVML MHz", "SM MHz", "ops/cycle/SM", "us")


def cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """One line a row; "-" where nothing is known. Units: `rate` in `unit`; spread of the rounds in per cent."""
    return [_line(row) for row in rows if row["kind"] in ("ceiling", "ceiling_emulated")]


def tensor_ceilings(rows: Iterable[Row], device: str, dtype: str, instruction: str) -> dict[str, float]:
    """TFLOPS of the fastest loop of "wgmma" or "mma.sync" on the type by mode, from rows of the very device; {} where
    there are none."""
    found: dict[str, float] = {}
    for row in rows:
        own = row.get("kind") == "ceiling" and row["status"] == "ok" and row["ceiling"].startswith(f"{instruction} ")
        if own and (row["device"], row["dtype"]) == (device, dtype):
            found[row["mode"]] = max(row["rate_tflops"], found.get(row["mode"], 0.0))
    return found


def _line(row: Row) -> tuple[str, ...]:
    if row["status"] != "ok" or row["kind"] == "ceiling_emulated":
        verdict = "right" if row["status"] == "ok" else f"{row['status']} {row.get('why', '')}".strip()
        return (row["ceiling"], row.get("mode", "emulated"), verdict, *["-"] * (len(COLUMNS) - 3))
    unit = "TFLOPS" if row["rate_tflops"] else "GB/s" if row["rate_gbps"] else "us"
    rate = {"TFLOPS": row["rate_tflops"], "GB/s": row["rate_gbps"], "us": row["median_us"]}[unit]
    is_steady = row["mode"] == "steady"  # power and clock of the others are averages over longer than they last
    return (
        row["ceiling"],
        row["mode"],
        f"{rate:.2f}" if unit == "us" else f"{rate:.0f}",
        unit,
        f"{row['spread']:.1%}",
        _number(row["watts"] if is_steady else None),
        _number(row["tflops_per_watt"], 2),
        _number(row["clock_mhz"] if is_steady else None),
        _number(row["kernel_mhz"]),
        _number(row["ops_per_cycle"]),
        f"{row['median_us']:.2f}",
    )


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def ceilings_table(rows: Sequence[Row]) -> str:
    """One line a ceiling and mode: what the card does at most."""
    own = [row for row in rows if row.get("kind") == "ceiling"]
    meaning = (
        "SM MHz is the clock that the kernel counted itself; NVML's reads higher. A copy's rate counts what is read "
        "and what is written."
    )
    return markdown(COLUMNS, cells(own)) + caption(own, meaning)


TABLES = {"ceilings": ceilings_table}
