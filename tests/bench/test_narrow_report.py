"""bench/narrow_report.py: a line a product, with the choice that today's model makes."""

from __future__ import annotations

from typing import Any

from tilewright import model
from tilewright.bench import narrow_report
from tilewright.device import preset
from tilewright.problem import packed

SHAPE = {"m": 16, "n": 4096, "k": 4096}
CHOICE = model.best(packed(16, 4096, 4096), preset("h200"))


def row(candidate: str, median_us: float, **fields: Any) -> dict[str, Any]:
    own = {} if candidate == "cublas" else {"config": candidate, "ctas": CHOICE.prediction.grid}
    common = {"candidate": candidate, "median_us": median_us, "mode": "interleaved", "device": "NVIDIA H200"}
    return SHAPE | common | own | fields


def test_the_fastest_its_floor_and_what_the_choice_loses() -> None:
    rows = [row("cublas", 12.0), row(str(CHOICE.config), 11.0), row("another", 10.0), row("another dependent", 9.0)]
    (line,) = narrow_report.cells(rows)
    cells = dict(zip(narrow_report.COLUMNS, line, strict=True))
    assert (cells["cuBLAS"], cells["fastest"], cells["ratio"], cells["config"]) == (
        "12.00",
        "10.00",
        "**1.200**",
        "another",
    )
    assert (cells["choice"], cells["behind the fastest"]) == ("11.00", "10.0%")
    assert cells["share of the floor"] == "94%"  # 33.8 MB in 9.4 us


def test_a_choice_that_was_launched_otherwise_is_not_measured() -> None:
    (line,) = narrow_report.cells([row(str(CHOICE.config), 11.0, ctas=1), row("another", 10.0)])
    assert line[-2:] == ("-", "-")
