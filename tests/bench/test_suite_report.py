"""bench/suite_report.py: tables, means, the worst, the plot, and what it refuses to report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.bench import suite_report as report
from tilewright.errors import UnsupportedError


def row(candidate: str | None, size: tuple[int, int, int] = (64, 128, 256), status: str = "ok", **more: Any) -> Any:
    m, n, k = size
    base = {
        "kind": "bench", "group": "g", "shape": f"{m}x{n}x{k}", "m": m, "n": n, "k": k, "mode": "interleaved",
        "candidate": candidate, "status": status,
    }  # fmt: skip
    if status == "ok":
        base |= {
            "median_us": 10.0, "spread": 0.01, "ratio": None, "ratio_tuned": 1.0, "num_sets": 5, "is_cold": True,
            "data": "normal", "share_of_floor": 0.5, "config": None,
        }  # fmt: skip
    return base | more


def shape_rows(size: tuple[int, int, int], ratio: float, over_tuned: float, group: str = "g", **own: Any) -> list[Any]:
    rows = [
        row("cublas", size, ratio_tuned=ratio and over_tuned / ratio),
        row("cublaslt", size, ratio=ratio / over_tuned, config="176x128", tuned={"tried": 9}),
        row("tilewright", size, ratio=ratio, ratio_tuned=over_tuned, config="128x256", **own),
        row("tilewright recorded", size, status="no record", why="no record"),
    ]
    return [each | {"group": group} for each in rows]


ROWS = [*shape_rows((64, 128, 256), 1.2, 1.1), *shape_rows((1, 2, 3), 0.9, 0.8, "h"), *shape_rows((4, 5, 6), 1.6, 1.0)]


def test_a_line_holds_every_columns_time_both_ratios_and_the_share_of_the_floor() -> None:
    (line, *_) = report.cells(report.judged(ROWS), "interleaved")
    assert dict(zip(report.COLUMNS[:6], line[:6], strict=True)) == {
        "group": "g", "M, N, K": "64, 128, 256", "cuBLAS us": "10.0", "tuned us": "10.0", "untuned us": "10.0",
        "recorded us": "no record",
    }  # fmt: skip
    assert line[6:] == ("1.200", "1.100", "-", "-", "1.0%", "0.50", "0.50", "128x256")


def test_what_is_shipped_is_the_record_where_there_is_one() -> None:
    rows = [each for each in shape_rows((1, 2, 3), 1.2, 1.1) if each["status"] == "ok"]
    rows.append(
        row("tilewright recorded", (1, 2, 3), ratio=1.5, ratio_tuned=1.3, config="256x192", share_of_floor=0.75)
    )
    (shape,) = report.judged(rows)
    assert shape.shipped is not None
    assert shape.shipped["ratio"] == 1.5
    (line,) = report.cells([shape], "interleaved")
    assert line[6:] == ("1.200", "1.100", "1.500", "1.300", "1.0%", "0.75", "0.50", "256x192")


def test_a_terminals_line_holds_what_is_shipped_by_group() -> None:
    known = row("tilewright recorded", (64, 128, 256), ratio=1.5, ratio_tuned=1.3, median_us=8.0, share_of_floor=0.6)
    sections = report.table(report.judged([*ROWS, known]), "interleaved")
    assert [(name, len(lines)) for name, lines in sections] == [("g", 2), ("h", 1)]
    assert len(report.TERMINAL_COLUMNS) == len(sections[0][1][0])
    assert sections[0][1] == [
        ("64, 128, 256", "10.0", "10.0", "8.0", "1.500", "1.300", "1.250", "0.60", "0.50", "1.0%"),
        ("4, 5, 6", "10.0", "10.0", "10.0", "1.600", "1.000", "-", "0.50", "0.50", "1.0%"),
    ]


def test_the_slowest_are_told_with_what_their_rows_say() -> None:
    own = {"ctas": 16, "num_sms": 132, "waves": 1.0, "bound": "memory"}
    lines = report.worst_lines(report.judged([*ROWS, *shape_rows((7, 8, 9), 0.8, 0.9, **own)]), "interleaved")
    assert lines[0] == (
        "0.800", "0.900", "7, 8, 9", "g", "memory floor: 0.50 of it, cuBLAS 0.50; 16 CTAs for 132 SMs; untuned",
    )  # fmt: skip
    assert [line[2] for line in lines] == ["7, 8, 9", "1, 2, 3", "64, 128, 256", "4, 5, 6"]
    assert report.worst_lines(report.judged(ROWS), "interleaved", "ratio_tuned")[0][2] == "1, 2, 3"


def test_sizes_side_by_side_are_told_with_their_worst_cliff() -> None:
    rows = [each for n in range(8, 17) for each in shape_rows((64, n, 64), 1.0, 1.0)]
    for each in rows:
        each |= {"median_us": 20.0 if each["n"] == 11 and each["candidate"] == "cublas" else 10.0}
    found = report.neighbour_lines(report.judged(rows), "interleaved")
    assert found == [
        ("64, 8 .. 16, 64", "as shipped", "9", "1.000", "8", "1.000", "16"),
        ("64, 8 .. 16, 64", "cuBLAS", "9", "2.000", "11", "2.000", "11"),
        ("64, 8 .. 16, 64", "cuBLASLt tuned", "9", "1.000", "8", "1.000", "16"),
    ]
    assert report.neighbour_lines(report.judged(ROWS), "interleaved") == []


def test_how_often_the_model_chooses_well_is_a_sentence() -> None:
    assert report.choices(report.judged(ROWS), "interleaved") == ""
    known = [row("tilewright recorded", size, median_us=us) for size, us in (((64, 128, 256), 9.6), ((1, 2, 3), 8.0))]
    rows = [each for each in ROWS if each["status"] == "ok"] + known
    found = report.choices(report.judged(rows), "interleaved")
    assert found.startswith(
        "Of 2 shapes with a record the model's choice has 0.95 of the recorded one's speed or more in 1"
    )
    assert found.endswith("the worst is 0.800 at 1, 2, 3.")


def test_means_are_geometric_over_both_baselines_for_all_and_by_group() -> None:
    found = {(mean.group, mean.column, mean.over): mean for mean in report.means(report.judged(ROWS), "interleaved")}
    shipped = found["all", "as shipped", "cuBLAS"]
    assert shipped.value == pytest.approx((1.2 * 0.9 * 1.6) ** (1 / 3))
    assert shipped.cells() == ("all", "as shipped", "cuBLAS", "3", "1.200", "0.900", "1, 2, 3")
    assert found["all", "as shipped", "cuBLASLt tuned"].value == pytest.approx((1.1 * 0.8) ** (1 / 3))
    assert found["g", "as shipped", "cuBLAS"].value == pytest.approx((1.2 * 1.6) ** 0.5)
    assert found["h", "as shipped", "cuBLASLt tuned"].value == pytest.approx(0.8)
    assert found["all", "cuBLASLt tuned", "cuBLAS"].value == pytest.approx((1.2 / 1.1 * 0.9 / 0.8 * 1.6) ** (1 / 3))
    assert ("all", "recorded", "cuBLAS") not in found
    assert ("all", "cuBLASLt tuned", "cuBLASLt tuned") not in found


def test_the_worst_ten_come_slowest_first() -> None:
    rows = [each for index in range(1, 15) for each in shape_rows((index, 1, 1), 1 + index / 100, 1.0)]
    found = report.worst(report.judged(rows), "interleaved")
    assert [shape.size[0] for _, shape in found] == list(range(1, 11))


def test_what_was_wrong_refused_or_stopped_is_named_and_counts_in_no_mean() -> None:
    rows = shape_rows((1, 2, 3), 1.2, 1.1)
    rows[2] = row("tilewright", (1, 2, 3), status="refused", why="LayoutError: rows of 3 bytes")
    rows += shape_rows((4, 5, 6), 2.0, 2.0, status="wrong", why="WRONG: 5 of 6")
    rows += [row(None, (7, 8, 9), status="stopped after 9 s", why="a\nlast words")]
    rows += [row(None, (10, 8, 9), status="not run", why="the time was over")]
    shapes = report.judged(rows)
    assert report.left_out(shapes) == [
        "1, 2, 3, interleaved, tilewright: refused: LayoutError: rows of 3 bytes",
        "4, 5, 6, interleaved, tilewright: wrong: WRONG: 5 of 6",
        "7, 8, 9, interleaved: stopped after 9 s: last words",
        "10, 8, 9, interleaved: not run: the time was over",
    ]
    assert {mean.column for mean in report.means(shapes, "interleaved")} == {"cuBLASLt tuned"}
    lines = report.cells(shapes, "interleaved")
    assert [line[4] for line in lines] == ["refused", "wrong", "stopped after 9 s", "not run"]
    assert report.is_bad(shapes)


def test_refusals_and_shapes_left_out_for_want_of_time_are_not_bad() -> None:
    rows = shape_rows((1, 2, 3), 1.2, 1.1)
    rows[2] = row("tilewright", (1, 2, 3), status="refused", why="no")
    assert not report.is_bad(report.judged([*rows, row(None, (7, 8, 9), status="not run", why="late")]))
    assert report.is_bad(report.judged([row(None, status="exit -11", why="")]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_sets": 1}, "same operands in every call"),
        ({"data": "zeros"}, "its data was zeros"),
        ({"data": None}, "its data was None"),
    ],
)
def test_times_without_rotation_or_random_data_are_not_reported(change: dict[str, Any], sentence: str) -> None:
    """B148."""
    rows = [*ROWS[:2], ROWS[2] | change]
    with pytest.raises(UnsupportedError, match=sentence):
        report.judged(rows)
    unnamed = {name: value for name, value in ROWS[2].items() if name not in change}
    with pytest.raises(UnsupportedError):
        report.judged([*ROWS[:2], unnamed])


@pytest.mark.parametrize("baseline", [[], [row("cublas", status="wrong", why="WRONG")]])
def test_times_without_a_baseline_are_not_reported(baseline: list[Any]) -> None:
    """B148."""
    with pytest.raises(UnsupportedError, match="no time of cuBLAS"):
        report.judged([*baseline, *ROWS[1:4]])


def test_a_report_without_a_tuned_baseline_or_a_log_of_clocks_says_so() -> None:
    """B148: 1.0 over a default that is 30 % off its best is no news."""
    clocked = [each | {"clock_mhz": 1500.0} for each in ROWS]
    assert report.caveats(report.judged(clocked), "interleaved") == []
    alone = [each for each in ROWS if each["candidate"] != "cublaslt"]
    found = report.caveats(report.judged(alone), "interleaved")
    assert [sentence.split(":")[0] for sentence in found] == [
        "3 of 3 shapes are beside cuBLAS's own choice alone, which is not its best.",
        "No clock was logged for 3 of 3 shapes",
    ]
    assert all(sentence in report.text(alone, {}) for sentence in found)


def test_no_rows_are_no_report() -> None:
    with pytest.raises(UnsupportedError, match="no row of a bench"):
        report.judged([{"kind": "facts"}])


def test_modes_are_kept_apart() -> None:
    steady = [each | {"mode": "steady"} for each in shape_rows((64, 128, 256), 3.0, 2.0)]
    shapes = report.judged([*steady, *ROWS])
    assert report.modes_of(shapes) == ["interleaved", "steady"]
    assert report.means(shapes, "steady")[0].value == pytest.approx(3.0)
    assert report.means(shapes, "interleaved")[0].value < 1.3


def test_small_operands_that_lay_in_the_l2_are_marked() -> None:
    rows = [each | {"is_cold": False} if each["status"] == "ok" else each for each in ROWS[:4]]
    (line,) = report.cells(report.judged(rows), "interleaved")
    assert line[1] == "64, 128, 256 *"


def test_rows_page_and_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    steady = [each | {"mode": "steady"} for each in ROWS]
    facts = {"device": "NVIDIA H200", "torch": None}
    paths, no_plot = report.write([*ROWS, *steady], facts, tmp_path / "out")
    assert [path.name for path in paths] == ["bench.json", "bench.md", "bench_interleaved.svg", "bench_steady.svg"]
    assert no_plot == ""
    assert json.loads(paths[0].read_text())["rows"] == [*ROWS, *steady]
    page = paths[1].read_text()
    assert "## interleaved" in page
    assert "device NVIDIA H200\n" in page
    assert "torch" not in page
    assert "over cuBLASLt tuned" in paths[2].read_text()
    assert "slowest against cuBLASLt tuned" in page


def test_a_cliff_is_drawn_with_its_number_and_does_not_flatten_the_rest(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths, _ = report.write([*ROWS, *shape_rows((7, 8, 9), 5.7, 4.9)], {}, tmp_path)
    picture = paths[2].read_text()
    assert "5.7" in picture
    assert "4.9" in picture


def test_without_matplotlib_the_rows_are_written_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths, no_plot = report.write(ROWS, {}, tmp_path)
    assert [path.name for path in paths] == ["bench.json", "bench.md"]
    assert "tilewright[report]" in no_plot


def test_a_plot_of_a_card_without_a_floor_and_without_a_tuned_column_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [each | {"share_of_floor": None} for each in ROWS if each["candidate"] in ("cublas", "tilewright")]
    for each in rows:
        each.pop("ratio_tuned")
    paths, _ = report.write(rows, {}, tmp_path)
    assert paths[-1].stat().st_size > 1000
    assert [mean.over for mean in report.means(report.judged(rows), "interleaved")][:1] == ["cuBLAS"]
