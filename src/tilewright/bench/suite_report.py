"""The rows of a suite -> a table, a summary and a plot. Makes no measurement.

It refuses to report what would mislead: times without a baseline beside them, without rotation of operands, or of data
that is not random.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.bench import neighbours, suite_plot
from tilewright.bench.ladder_report import markdown
from tilewright.bench.reasons import reason
from tilewright.bench.suite_run import RECORDED, UNTUNED
from tilewright.errors import UnsupportedError

Row = dict[str, Any]
Size = tuple[int, int, int]  # M, N, K

BASELINE, TUNED = "cublas", "cublaslt"  # as compare.py calls them, which needs torch
MODES = ("burst", "interleaved", "steady")
DROPPED = "dropped"  # status of a recorded choice that was measured and is not shipped: timed, but no user gets it
SHIPPED = "as shipped"  # the name of the column that a user gets
NUM_WORST = 10

COLUMNS = (
    "group", "M, N, K", "cuBLAS us", "tuned us", "untuned us", "recorded us", "untuned over cuBLAS", "over tuned",
    "recorded over cuBLAS", "over tuned", "spread", "of the floor", "cuBLAS of it", "config",
)  # fmt: skip
TERMINAL_COLUMNS = (
    "M, N, K", "cuBLAS\nus", "tuned\nus", "ours\nus", "over\ncuBLAS", "over\ntuned", "over\nuntuned", "of the\nfloor",
    "cuBLAS\nof it", "spread",
)  # fmt: skip
SUMMARY_COLUMNS = ("group", "column", "over", "shapes", "geometric mean", "worst", "at")
WORST_COLUMNS = ("over cuBLAS", "over tuned", "M, N, K", "group", "what the rows say")
NEIGHBOUR_COLUMNS = ("sizes", "column", "count", "over an aligned neighbour", "at", "over a larger size", "at")
WELL_CHOSEN = 0.95  # of the recorded choice's speed; how many untuned choices reach it is worth a sentence


@dataclass(frozen=True)
class Shape:
    """One shape in one mode: its row of each column, by name, whatever became of it."""

    group: str
    size: Size
    mode: str
    columns: dict[str, Row]
    failed: Row | None

    def timed(self, name: str) -> Row | None:
        """The column's row where it has a time that counts."""
        row = self.columns.get(name)
        return row if row is not None and row["status"] == "ok" else None

    @property
    def shipped(self) -> Row | None:
        """What a user gets: the record's config where there is one, else the model's."""
        return self.timed(RECORDED) or self.timed(UNTUNED)

    def __str__(self) -> str:
        return ", ".join(map(str, self.size))


def judged(rows: Iterable[Row]) -> list[Shape]:
    """The shapes of a run, in order.

    Raises: UnsupportedError: no row at all, or times that must not be reported; the sentence says which and why.
    """
    found: dict[tuple[str, str], Shape] = {}
    for row in rows:
        if row.get("kind") != "bench":
            continue
        key = (row["shape"], row["mode"])
        size = (row["m"], row["n"], row["k"])
        shape = found.get(key) or Shape(row["group"], size, row["mode"], {}, None)
        if row["candidate"] is None:
            shape = Shape(shape.group, size, shape.mode, shape.columns, row)
        else:
            shape.columns[row["candidate"]] = row
        found[key] = shape
    for shape in found.values():
        _check_reportable(shape)
    if not found:
        raise UnsupportedError(
            asked="a report", rule="there is no row of a bench", works="run `tilewright bench SUITE --into DIR` first"
        )
    return list(found.values())


def _check_reportable(shape: Shape) -> None:
    timed = [row for row in shape.columns.values() if row["status"] == "ok"]
    if not timed:
        return
    asked = f"a report on {shape}, {shape.mode}"
    if shape.timed(BASELINE) is None:
        raise UnsupportedError(
            asked=asked,
            rule="no time of cuBLAS lies beside it, and a time alone says nothing",
            works="measure it again",
        )
    for row in timed:
        if row.get("num_sets", 1) < 2:
            raise UnsupportedError(
                asked=asked,
                rule=f"{row['candidate']} used the same operands in every call: they lay in the L2",
                works="rotate over operand sets of more than four times the L2",
            )
        if row.get("data") != "normal":
            raise UnsupportedError(
                asked=asked,
                rule=f"its data was {row.get('data', 'not named')}, and the card is faster on data that costs no power",
                works="measure with random data",
            )


# -- tables ------------------------------------------------------------------------------------------------------------


def cells(shapes: Sequence[Shape], mode: str) -> list[tuple[str, ...]]:
    """One line a shape of one mode. Units: microseconds; ratios are times as fast; `*`: operands stayed in the L2."""
    lines = []
    for shape in shapes:
        if shape.mode != mode:
            continue
        rows = {name: shape.timed(name) for name in (BASELINE, TUNED, UNTUNED, RECORDED)}
        own = shape.shipped
        base = rows[BASELINE]
        lines.append(
            (
                shape.group,
                f"{shape}{'' if base is None or base.get('is_cold', True) else ' *'}",
                *(_us(shape, name) for name in rows),
                *(_ratio(rows[name], key) for name in (UNTUNED, RECORDED) for key in ("ratio", "ratio_tuned")),
                "-" if own is None else f"{own['spread']:.1%}",
                _share(own),
                _share(base),
                _config(shape),
            )
        )
    return lines


def table(shapes: Sequence[Shape], mode: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    """The lines of TERMINAL_COLUMNS by group: narrow enough for a terminal, with what a user gets in one column.

    "over untuned": how much faster a record's config is than the model's.
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    for shape in shapes:
        if shape.mode != mode:
            continue
        own, base, untuned = shape.shipped, shape.timed(BASELINE), shape.timed(UNTUNED)
        gain = own["ratio"] / untuned["ratio"] if own and untuned and own is not untuned and untuned["ratio"] else None
        found.setdefault(shape.group, []).append(
            (
                f"{shape}{'' if base is None or base.get('is_cold', True) else ' *'}",
                _us(shape, BASELINE),
                _us(shape, TUNED),
                _us(shape, UNTUNED) if own is None else f"{own['median_us']:.1f}",
                _ratio(own, "ratio"),
                _ratio(own, "ratio_tuned"),
                "-" if gain is None else f"{gain:.3f}",
                _share(own),
                _share(base),
                "-" if own is None else f"{own['spread']:.1%}",
            )
        )
    return list(found.items())


def _us(shape: Shape, name: str) -> str:
    row = shape.columns.get(name) or shape.failed
    if row is None:
        return "-"
    return f"{row['median_us']:.1f}" if row["status"] == "ok" else str(row["status"])


def _ratio(row: Row | None, key: str) -> str:
    return "-" if row is None or row.get(key) is None else f"{row[key]:.3f}"


def _share(row: Row | None) -> str:
    return "-" if row is None or row.get("share_of_floor") is None else f"{row['share_of_floor']:.2f}"


def _config(shape: Shape) -> str:
    own = shape.shipped or shape.columns.get(UNTUNED)
    return "-" if own is None else str(own.get("config") or "-")


@dataclass(frozen=True)
class Mean:
    """The geometric mean of ratios over some shapes, and the worst of them."""

    group: str
    column: str
    over: str
    ratios: tuple[tuple[float, Shape], ...]

    @property
    def value(self) -> float:
        """Times as fast."""
        return math.exp(sum(math.log(ratio) for ratio, _ in self.ratios) / len(self.ratios))

    @property
    def worst(self) -> tuple[float, Shape]:
        """The lowest ratio and its shape."""
        return min(self.ratios, key=lambda pair: pair[0])

    def cells(self) -> tuple[str, ...]:
        """A line of the summary."""
        ratio, shape = self.worst
        count = str(len(self.ratios))
        return (self.group, self.column, self.over, count, f"{self.value:.3f}", f"{ratio:.3f}", str(shape))


# What is compared with what: the name of a column and how its row is found.
Pick = Callable[[Shape], Row | None]
_PICKS: tuple[tuple[str, Pick], ...] = (
    (SHIPPED, lambda shape: shape.shipped),
    ("untuned", lambda shape: shape.timed(UNTUNED)),
    ("recorded", lambda shape: shape.timed(RECORDED)),
    ("cuBLASLt tuned", lambda shape: shape.timed(TUNED)),
)
OVER = (("cuBLAS", "ratio"), ("cuBLASLt tuned", "ratio_tuned"))


def means(shapes: Sequence[Shape], mode: str) -> list[Mean]:
    """Of all shapes of a mode, every column over both baselines; then of each group, what is shipped over both."""
    own = [shape for shape in shapes if shape.mode == mode]
    found = [_mean("all", own, name, pick, over) for name, pick in _PICKS for over in OVER if name != over[0]]
    for group in dict.fromkeys(shape.group for shape in own):
        members = [shape for shape in own if shape.group == group]
        found += [_mean(group, members, *_PICKS[0], over) for over in OVER]
    return [mean for mean in found if mean.ratios]


def _mean(group: str, shapes: Sequence[Shape], name: str, pick: Pick, over: tuple[str, str]) -> Mean:
    baseline, key = over
    pairs = [(row[key], shape) for shape in shapes if (row := pick(shape)) is not None and row.get(key) is not None]
    return Mean(group, name, baseline, tuple(pairs))


def worst(shapes: Sequence[Shape], mode: str, key: str = "ratio") -> list[tuple[float, Shape]]:
    """The shapes where what is shipped is slowest against a baseline, the worst first."""
    pairs = [
        (row[key], shape)
        for shape in shapes
        if shape.mode == mode and (row := shape.shipped) is not None and row.get(key) is not None
    ]
    return sorted(pairs, key=lambda pair: pair[0])[:NUM_WORST]


def worst_lines(shapes: Sequence[Shape], mode: str, key: str = "ratio") -> list[tuple[str, ...]]:
    """The lines of WORST_COLUMNS: the slowest, each with what its rows say about why."""
    return [
        (
            _ratio(shape.shipped, "ratio"),
            _ratio(shape.shipped, "ratio_tuned"),
            str(shape),
            shape.group,
            reason(shape.shipped or {}, shape.timed(BASELINE), shape.timed(UNTUNED)),
        )
        for _, shape in worst(shapes, mode, key)
    ]


def neighbour_lines(shapes: Sequence[Shape], mode: str) -> list[tuple[str, ...]]:
    """The lines of NEIGHBOUR_COLUMNS: of sizes that lie side by side, the worst cliff of each column."""
    found = []
    for name, pick in ((SHIPPED, _PICKS[0][1]), ("cuBLAS", lambda shape: shape.timed(BASELINE)), _PICKS[3]):
        times = {shape.size: row["median_us"] for shape in shapes if shape.mode == mode and (row := pick(shape))}
        for line in neighbours.lines(times):
            found.append((str(line), name, str(len(line.sizes)), *line.cells()))
    return sorted(found, key=lambda cells: cells[0])  # stable: the columns of a line stay in their order


def choices(shapes: Sequence[Shape], mode: str) -> str:
    """How good the model's choices are beside the recorded ones, dropped ones too; empty where none is recorded."""
    pairs = [
        (recorded["median_us"] / untuned["median_us"], shape)
        for shape in shapes
        if shape.mode == mode
        and (untuned := shape.timed(UNTUNED))
        and (recorded := shape.columns.get(RECORDED))
        and recorded["status"] in ("ok", DROPPED)
    ]
    if not pairs:
        return ""
    good = sum(speed >= WELL_CHOSEN for speed, _ in pairs)
    speed, shape = min(pairs, key=lambda pair: pair[0])
    return (
        f"Of {len(pairs)} shapes with a record the model's choice has {WELL_CHOSEN:.2f} of the recorded one's speed or "
        f"more in {good} ({good / len(pairs):.0%}); the worst is {speed:.3f} at {shape}."
    )


def caveats(shapes: Sequence[Shape], mode: str) -> list[str]:
    """What a reader of the times of a mode must know that the tables do not say; a sentence each."""
    own = [shape for shape in shapes if shape.mode == mode and shape.timed(BASELINE) is not None]
    untold = sum(shape.timed(TUNED) is None for shape in own)
    unclocked = sum(all(row.get("clock_mhz") is None for row in shape.columns.values()) for shape in own)
    found = []
    if untold:
        found.append(f"{untold} of {len(own)} shapes are beside cuBLAS's own choice alone, which is not its best.")
    if unclocked:
        found.append(f"No clock was logged for {unclocked} of {len(own)} shapes: what slowed the card is not known.")
    return found


def left_out(shapes: Sequence[Shape]) -> list[str]:
    """What has no time that counts, and why: wrong results, refusals, faults, shapes that were not run."""
    found = []
    for shape in shapes:
        if shape.failed is not None:
            found.append(f"{shape}, {shape.mode}: {shape.failed['status']}: {_short(shape.failed)}")
        found += [
            f"{shape}, {shape.mode}, {name}: {row['status']}: {_short(row)}"
            for name, row in shape.columns.items()
            if row["status"] not in ("ok", "no record", DROPPED)
        ]
    return found


def is_bad(shapes: Sequence[Shape]) -> bool:
    """Whether something is wrong, as against refused by name or not run for want of time."""
    rows = [row for shape in shapes for row in [*shape.columns.values(), *([shape.failed] if shape.failed else [])]]
    return any(row["status"] not in ("ok", "no record", DROPPED, "refused", "not run") for row in rows)


def _short(row: Row) -> str:
    lines = str(row.get("why", "")).strip().splitlines() or [""]
    return lines[-1][:200]


def text(rows: Sequence[Row], facts: Row) -> str:
    """The whole report as Markdown: for each mode the summary, the worst ten and the table; then what is left out."""
    shapes = judged(rows)
    parts = []
    for mode in modes_of(shapes):
        parts.append(f"## {mode}\n\n{markdown(SUMMARY_COLUMNS, [mean.cells() for mean in means(shapes, mode)])}")
        sentences = [*caveats(shapes, mode), choices(shapes, mode)]
        parts += [f"{sentence}\n" for sentence in sentences if sentence]
        for baseline, key in OVER:
            if slowest := worst_lines(shapes, mode, key):
                parts.append(f"The {len(slowest)} slowest against {baseline}:\n\n{markdown(WORST_COLUMNS, slowest)}")
        if beside := neighbour_lines(shapes, mode):
            parts.append(f"Sizes side by side:\n\n{markdown(NEIGHBOUR_COLUMNS, beside)}")
        parts.append(markdown(COLUMNS, cells(shapes, mode)))
    parts.append(
        "Times are medians of shuffled rounds, operands cold (`*`: too small for that, they lay in the L2). A ratio is "
        "the median over rounds of the baseline's time over the column's of the same round. Tuned is the fastest of "
        "cuBLASLt's algorithms of all heuristics. The floor is the larger of the tensor cores' time and of one read of "
        "all bytes. As shipped: from a record where there is one, else untuned. Of sizes side by side the worst time "
        "is told over that of the next multiples of 8, whichever is faster, and over that of any larger size.\n"
    )
    if missing := left_out(shapes):
        parts.append("Left out:\n\n" + "".join(f"- {line}\n" for line in missing))
    origin = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return "\n".join([*parts, f"{origin}\n" if origin else ""]).rstrip() + "\n"


def modes_of(shapes: Sequence[Shape]) -> list[str]:
    """The modes that were measured, in their usual order."""
    measured = {shape.mode for shape in shapes}
    return [mode for mode in MODES if mode in measured]


# -- plot and files ----------------------------------------------------------------------------------------------------


def plot(shapes: Sequence[Shape], mode: str, path: Path, digest: str | None = None) -> None:
    """The picture of one mode, which carries `digest`. Raises: UnsupportedError: matplotlib is not installed."""
    own = [shape for shape in shapes if shape.mode == mode and shape.timed(BASELINE) is not None]

    def values(key: str, pick: Pick) -> list[float | None]:
        return [None if (row := pick(shape)) is None else row.get(key) for shape in own]

    shipped, tuned = _PICKS[0][1], _PICKS[3][1]
    shares = {"tilewright": shipped, "cuBLAS": lambda shape: shape.timed(BASELINE), "cuBLASLt tuned": tuned}
    suite_plot.draw(
        [str(shape) for shape in own],
        [shape.group for shape in own],
        {name: values(key, shipped) for name, key in OVER},
        {name: values("share_of_floor", pick) for name, pick in shares.items()},
        f"tilewright beside cuBLAS, {mode}",
        path,
        digest,
    )


def write(rows: Sequence[Row], facts: Row, folder: Path) -> tuple[list[Path], str]:
    """Makes bench.json, bench.md and a plot a mode in the folder: their paths, and why a plot is missing."""
    shapes = judged(rows)
    folder.mkdir(parents=True, exist_ok=True)
    document, page = folder / "bench.json", folder / "bench.md"
    document.write_text(json.dumps({"facts": facts, "rows": list(rows)}, indent=1) + "\n")
    page.write_text(text(rows, facts))
    paths = [document, page]
    try:
        for mode in modes_of(shapes):
            picture = folder / f"bench_{mode}.svg"
            plot(shapes, mode, picture)
            paths.append(picture)
    except UnsupportedError as error:  # the rows are what a measurement is for; the plot can be drawn later
        return paths, str(error)
    return paths, ""
