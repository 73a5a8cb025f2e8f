"""bench/narrow_report.py: a line a product and a line a group, with the choice that today's model makes."""

from __future__ import annotations

from typing import Any

from tilewright import model
from tilewright.bench import narrow_report
from tilewright.device import preset
from tilewright.packing import packed

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


def test_sums_that_start_behind_their_own_product_count_and_a_product_that_starts_behind_another_does_not() -> None:
    rows = [row("cublas", 12.0), row("one slices8 dependent-sums", 10.0), row("one dependent", 9.0)]
    (product,) = narrow_report.products(rows)
    assert (product.fastest_us, product.fastest_config) == (10.0, "one slices8 dependent-sums")


def of(m: int, n: int, k: int, cublas_us: float, choice_us: float | None, fastest_us: float) -> list[dict[str, Any]]:
    choice = model.best(packed(m, n, k), preset("h200"))
    timed = [("cublas", cublas_us), ("another", fastest_us), (str(choice.config), choice_us)]
    own = {"m": m, "n": n, "k": k, "ctas": choice.prediction.grid}
    return [row(name, time_us, **own) for name, time_us in timed if time_us is not None]


def test_a_summary_has_a_line_a_group_with_geometric_means_and_the_worst() -> None:
    rows = [
        *of(16, 4096, 4096, 12.0, 12.0, 10.0),  # level, 1.2
        *of(64, 4096, 4096, 12.0, 8.0, 8.0),  # 1.5, 1.5
        *of(16, 28672, 4096, 50.0, None, 40.0),  # not measured, 1.25
        *of(128, 4096, 4096, 9.0, 10.0, 10.0),  # 0.9, 0.9
    ]
    lines = {line[0]: line[1:] for line in narrow_report.summary_cells(rows)}
    assert list(lines) == ["M to 64, weight to 64 MiB", "M to 64, larger weight", "M above 64, a weight", "all"]
    assert lines["M to 64, weight to 64 MiB"][:6] == ("2", "1 of 2", "**1.225**", "1.000", "2 of 2", "**1.342**")
    assert lines["M to 64, larger weight"] == ("1", "0 of 0", "-", "-", "1 of 1", "**1.250**", "-", "-")
    assert lines["all"][:5] == ("4", "1 of 3", "**1.105**", "0.900", "3 of 4")
    floor_us = [product.floor_us for product in narrow_report.products(rows) if product.choice_us == 10.0]
    assert floor_us[0] is not None
    assert lines["M above 64, a weight"][6:] == (f"{floor_us[0] / 10:.3f}", f"{floor_us[0] / 10:.3f}")
