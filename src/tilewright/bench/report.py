"""Rows -> Markdown tables, put between markers of a document. Makes no measurement.

A document holds `<!-- table: NAME -->` ... `<!-- end: NAME -->`; what lies between is generated from the JSON files of
rows and never written by hand. `python -m tilewright.bench.report ROWS... --into README.md [--check]`. Of a folder, the
newest file of each device and part counts: `h200_2026-11-30_time.json` is device, day and part.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.bench import (
    ampere_report,
    ceiling_report,
    dependent_report,
    epilogue_report,
    irregular,
    lines_report,
    narrow_report,
    suite_page,
    suite_report,
    torch_report,
    unaligned_report,
)
from tilewright.bench.tables import NO_ROWS, NOT_MEASURED, caption, markdown

Row = dict[str, Any]

# What a caption says of a row's origin: names of the facts that read_rows() adds to it.
_ORIGIN = (
    "device", "driver_cuda", "torch", "nvidia_cublas", "compiler", "nvidia_cuda_nvrtc", "date", "commit", "command",
)  # fmt: skip

EMPTY = (NO_ROWS, NOT_MEASURED)

_DATED = re.compile(r"(?P<device>.+)_(?P<date>\d{4}-\d\d-\d\d)_(?P<part>.+)\.json")
_BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Every row of the files, each with its file's facts. Shapes: a file is {"facts": {...}, "rows": [{...}, ...]}."""
    rows = []
    for path in paths:
        content = json.loads(path.read_text())
        rows += [content["facts"] | row for row in content["rows"]]
    return rows


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and of each folder the newest JSON file of each device and part."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        newest: dict[tuple[str, str], Path] = {}
        for file in sorted(path.glob("*.json")):
            dated = _DATED.fullmatch(file.name)
            newest[(dated["device"], dated["part"]) if dated else ("", file.name)] = file
        found += sorted(newest.values())
    return found


def condensed(rows: Sequence[Row]) -> list[Row]:
    """The check rows with one row a config in the place of one a product; rows that are so already stay as they are.

    Units: `worst` is the largest error over its own bound; `wrong`, `unwritten` and `damaged` count elements;
    `not_ok` products; `refused` maps the sentence of a refusal to the products that met it.
    """
    checked = [row for row in rows if row.get("kind") == "check"]
    configs = dict.fromkeys(row["config"] for row in checked if "products" not in row)
    own = {config: [row for row in checked if row["config"] == config] for config in configs}
    return [row for row in checked if "products" in row] + [_condensed(config, own[config]) for config in configs]


def _condensed(config: str, rows: Sequence[Row]) -> Row:
    refusals = [row for row in rows if _is_refusal(row)]
    ran = [row for row in rows if not _is_refusal(row)]
    varied = ("case", "m", "n", "k", "out_pitch", "out_offset", "status", "why", "max_error", "first_wrong")
    facts = {name: value for name, value in rows[0].items() if name in _ORIGIN}
    return facts | {
        "kind": "check",
        "config": config,
        "products": len(ran),
        "not_ok": sum(row["status"] != "ok" for row in ran),
        "exact": sum(row["data"] == "integer" for row in ran),
        **{name: sum(row.get(name) or 0 for row in ran) for name in ("elements", "wrong", "unwritten", "damaged")},
        "worst": max((row.get("worst") or 0.0 for row in ran), default=0.0),
        "layouts": sorted({_type_of(row) for row in ran}),
        "shapes": [list(shape) for shape in dict.fromkeys((row["m"], row["n"], row["k"]) for row in ran)],
        "refused": dict(Counter(row.get("why", "") for row in refusals)),
        "failed": [{name: row.get(name) for name in varied} for row in ran if row["status"] != "ok"],
    }


def _is_refusal(row: Row) -> bool:
    """Whether nothing was launched, since the config cannot run that product; the row says why."""
    return row["status"] == "skipped" or str(row.get("why", "")).startswith("ConfigError")


def speed_table(rows: Sequence[Row]) -> str:
    """One line a problem, the modes side by side: both rates in TFLOPS and how many times faster."""
    timed = _beside_baseline(rows)
    modes = [mode for mode in ("burst", "interleaved", "steady") if any(each.row["mode"] == mode for each in timed)]
    lines = []
    for problem in dict.fromkeys(_problem_of(each.row) for each in timed):
        own = {each.row["mode"]: each for each in timed if _problem_of(each.row) == problem}
        row = next(iter(own.values())).row
        lines.append(
            (
                f"{row['m']}, {row['n']}, {row['k']}",
                _type_of(row),
                *(own[mode].cell() if mode in own else "-" for mode in modes),
                row["config"],
            )
        )
    head = ("M, N, K", "type", *modes, "config")
    meaning = (
        "In each cell: TFLOPS of cuBLAS (as `torch.matmul` calls it), TFLOPS of tilewright, and how many times faster "
        "tilewright is, the median over rounds of cuBLAS's time over tilewright's of the same round. TN: `b` is "
        "`w.t()`, k-contiguous; NN: `b` is row-major."
    )
    if any(each.tuned for each in timed):
        meaning += f" {_TUNED_MEANING} TFLOPS and ratio stand behind the stroke."
    return markdown(head, lines) + caption([each.row for each in timed], meaning)


def time_table(rows: Sequence[Row]) -> str:
    """One line a problem and mode: both rates, the ratio with its quartiles, power and clock."""
    timed = _beside_baseline(rows)
    is_tuned = any(each.tuned for each in timed)
    head = ["M, N, K", "type", "mode", "cuBLAS TFLOPS", "tilewright TFLOPS", "ratio", "quartiles"]
    head += ["tuned TFLOPS", "ratio", "quartiles"] * is_tuned
    head += ["W", "SM MHz", "config"]
    lines = []
    for each in timed:
        row, base = each.row, each.base
        is_steady = row["mode"] == "steady"  # the driver averages power over a second: the others are shorter
        cells = [
            f"{row['m']}, {row['n']}, {row['k']}",
            _type_of(row),
            row["mode"],
            f"{base['rate_tflops']:.0f}",
            f"{row['rate_tflops']:.0f}",
            f"**{row['ratio']:.3f}**",
            f"{row['ratio_lower']:.3f} .. {row['ratio_upper']:.3f}",
        ]
        if each.tuned:
            cells += [
                f"{each.tuned['rate_tflops']:.0f}",
                f"**{row['ratio_tuned']:.3f}**",
                f"{row['ratio_tuned_lower']:.3f} .. {row['ratio_tuned_upper']:.3f}",
            ]
        elif is_tuned:
            cells += ["-"] * 3
        cells += [
            _whole(row["watts"] if is_steady else None),
            _whole(row["clock_mhz"] if is_steady else None),
            row["config"],
        ]
        lines.append(cells)
    meaning = "A ratio is the median over rounds of cuBLAS's time over tilewright's of the same round."
    if is_tuned:
        meaning += f" {_TUNED_MEANING}"
    return markdown(head, lines) + caption([each.row for each in timed], meaning)


_TUNED_MEANING = (
    "Tuned is the fastest of cuBLASLt's algorithms, of all that its heuristics offer for this size and for its "
    "neighbours, timed in the same run."
)


@dataclass(frozen=True)
class _Beside:
    """One timed row of tilewright and those that it was measured beside."""

    row: Row
    base: Row
    tuned: Row | None

    def cell(self) -> str:
        """Both rates and the ratio, and those of the tuned baseline."""
        text = f"{self.base['rate_tflops']:.0f}, {self.row['rate_tflops']:.0f}, **{self.row['ratio']:.3f}**"
        if self.tuned:
            text += f" / {self.tuned['rate_tflops']:.0f}, **{self.row['ratio_tuned']:.3f}**"
        return text


def _beside_baseline(rows: Sequence[Row]) -> list[_Beside]:
    """Each timed row of tilewright that has a ratio, with the baselines that it was measured beside."""
    timed = [row for row in rows if row.get("kind") == "time" and row["status"] == "ok"]
    baselines = {(*_problem_of(row), row["mode"]): row for row in timed if row["ratio"] is None}
    tuned = {(*_problem_of(row), row["mode"]): row for row in timed if "tuned" in row}
    found = []
    for row in timed:
        key = (*_problem_of(row), row["mode"])
        if row["ratio"] is not None and "tuned" not in row and key in baselines:
            found.append(_Beside(row, baselines[key], tuned.get(key)))
    return found


_CHECK_HEAD = ("products", "sizes", "elements", "exact", "wrong", "largest error / bound")
_CHECK_MEANING = (
    "Every element against float64 from the rounded inputs; `exact` products are of whole numbers and must be equal "
    "bit for bit. A product is wrong when one element is past its bound or unwritten, or one around `out` has changed."
)


def check_table(rows: Sequence[Row]) -> str:
    """One line a config: products and elements checked, how many wrong, the largest error over its bound."""
    checked = [row for row in condensed(rows) if row["products"]]
    lines = [(row["config"], *_check_cells([row])) for row in checked]
    return markdown(("config", *_CHECK_HEAD), lines) + caption(checked, _CHECK_MEANING)


def checked_table(rows: Sequence[Row]) -> str:
    """One line for all configs together."""
    checked = [row for row in condensed(rows) if row["products"]]
    lines = [(str(len(checked)), *_check_cells(checked))] if checked else []
    return markdown(("configs", *_CHECK_HEAD), lines) + caption(checked, _CHECK_MEANING)


def _check_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    return (
        f"{sum(row['products'] for row in rows):,}",
        str(len({tuple(shape) for row in rows for shape in row["shapes"]})),
        f"{sum(row['elements'] for row in rows):,}",
        f"{sum(row['exact'] for row in rows):,}",
        str(sum(row["not_ok"] for row in rows)),
        f"{max(row['worst'] for row in rows):.3f}",
    )


def host_table(rows: Sequence[Row]) -> str:
    """One line a way of calling, one column a problem: median microseconds of host time."""
    hosted = [row for row in rows if row.get("kind") == "host"]
    problems = list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in hosted))
    costs = {(row["way"], (row["m"], row["n"], row["k"])): row for row in hosted}
    head = ("call", *("x".join(map(str, problem)) for problem in problems))
    lines = []
    for way in dict.fromkeys(row["way"] for row in hosted):
        cells = [costs.get((way, problem)) for problem in problems]
        lines.append((f"`{way}`", *("-" if cell is None else f"{cell['median_us']:.1f}" for cell in cells)))
    meaning = "Microseconds before the call returns, medians of shuffled rounds; the GPU waits for the host throughout."
    return markdown(head, lines) + caption(hosted, meaning)


def ceilings_table(rows: Sequence[Row]) -> str:
    """One line a ceiling and mode: what the card does at most."""
    own = [row for row in rows if row.get("kind") == "ceiling"]
    meaning = (
        "SM MHz is the clock that the kernel counted itself; NVML's reads higher. A copy's rate counts what is read "
        "and what is written."
    )
    return markdown(ceiling_report.COLUMNS, ceiling_report.cells(own)) + caption(own, meaning)


def narrow_table(rows: Sequence[Row]) -> str:
    """One line a product of few rows, a long k or few tiles: cuBLAS, the fastest config, and what the model takes."""
    own = _narrow(rows)
    meaning = (
        "Microseconds, inputs cold but for the two smallest. Choice is what today's model takes untuned, where that "
        "was measured with the launch it has now. Floor is the longer of what a read of the product's bytes and its "
        "FLOPs take on this card; its share is that of the fastest."
    )
    return markdown(narrow_report.COLUMNS, narrow_report.cells(own)) + caption(own, meaning)


def narrow_summary_table(rows: Sequence[Row]) -> str:
    """One line a group of these products: how the model's choice and the fastest config stand beside cuBLAS."""
    own = _narrow(rows)
    meaning = (
        "A ratio is cuBLAS's median over tilewright's; means of ratios and of shares are geometric. Choice and floor "
        "are those of the table below: for these few rows the floor is a cold read of all bytes by bulk copies, "
        "measured at sizes from 4 to 256 MiB and taken linearly between them (`bench/floor.py`)."
    )
    return markdown(narrow_report.SUMMARY_COLUMNS, narrow_report.summary_cells(own)) + caption(own, meaning)


def _narrow(rows: Sequence[Row]) -> list[Row]:
    """The narrow rows that hold a time."""
    return [row for row in rows if row.get("kind") == "narrow" and "median_us" in row]


def unaligned_table(rows: Sequence[Row]) -> str:
    """One line a product that is off 16 bytes: beside its aligned neighbour and beside cuBLAS."""
    own = [row for row in rows if row.get("kind") == unaligned_report.KIND]
    is_paired = any(each.is_paired for each in unaligned_report.products(own))
    compared = "of both in one round" if is_paired else "of two medians, of runs one after the other"
    meaning = (
        f"Microseconds, interleaved with cuBLAS, inputs cold; arrays without padding. Copies are timed by themselves. "
        f"The neighbour's sizes are the next multiples of {unaligned_report.STEP}; its ratio is {compared}."
        f"{unaligned_report.checked(own)}"
    )
    return markdown(unaligned_report.COLUMNS, unaligned_report.cells(own)) + caption(own, meaning)


def ampere_table(rows: Sequence[Row], kind: str = ampere_report.KIND) -> str:
    """One line a config of the Ampere family and product, and what was measured beside them; of one of RUNS."""
    own = [row for row in rows if row.get("kind") == kind]
    held = ampere_report.ceilings_told(own, rows)
    beside = (
        f"of what a loop on registers reaches on an H200, in TFLOPS {held or 'not measured'}; interleaved is held to "
        "steady, the lower. The Hopper kernel and cuBLAS at aligned sizes use wgmma, which does 1.5 times as much a "
        "cycle."
    )
    if not own:
        return NOT_MEASURED
    if kind in (ampere_report.RUNS["kinds"], ampere_report.RUNS["kinds_forms"]):
        whole, half = (ampere_report.UNKEPT_TFLOPS[name] for name in ("int8", "fp16 sums"))
        beside = (
            f"of {whole:.0f} TOPS of int8 and {half:.0f} TFLOPS with fp16 sums, the middles of what loops on registers "
            "reached on an H200 under load, whose rows were not kept; of tf32 it was not measured. cuBLAS is "
            "`torch._int_mm`, and `torch.matmul` that may use tf32 or sum in fp16; past the ceiling it uses wgmma."
        )
    timed = "Interleaved with cuBLAS, inputs cold"
    if kind == ampere_report.RUNS["ampere_modes"]:
        timed = "Beside cuBLAS in the mode that stands behind the product, inputs cold"
    checked = "".join(
        f" Checked beside: {row['ok']} products right, {row['wrong']} wrong, {row['refused']} refused."
        for row in own
        if row["part"] == "check"
    )
    meaning = f"{timed}, every column's result checked first. Of mma.sync: {beside}{checked}"
    return markdown(ampere_report.COLUMNS, ampere_report.cells(own, rows)) + caption(own, meaning)


def irregular_table(rows: Sequence[Row]) -> str:
    """One line a step and batch of the irregular shape, and what was measured beside them."""
    own = [row for row in rows if row.get("kind") == irregular.KIND and row["part"] == "time"]
    checks = [row for row in rows if row.get("kind") == irregular.KIND and row["part"] == "check"]
    if not own:
        return NOT_MEASURED
    counts = {name: sum(row[name] for row in checks) for name in ("ok", "wrong")}
    meaning = (
        "Microseconds of all matrices, interleaved with cuBLAS, inputs cold where all sets together exceed four times "
        "the L2, every column's result checked first; TB/s of the bytes that have to move. Ratios are of two medians."
    )
    if checks:
        meaning += f" Whole numbers, bit for bit: {counts['ok']} products right, {counts['wrong']} wrong."
    return markdown(irregular.COLUMNS, irregular.cells(rows)) + caption(own, meaning)


def irregular_emulated_table(rows: Sequence[Row]) -> str:
    """One line a step of the irregular shape: what it takes of an SM and what shared memory does for one matrix."""
    own = [row for row in rows if row.get("kind") == irregular.KIND and row["part"] == "emulated"]
    meaning = (
        "Warps: of those that an SM can hold; a dash where an A100 has not the shared memory. PTX leaves the layout of "
        "WMMA's fragments open: its wavefronts are not known before a GPU counts them."
    )
    return markdown(irregular.EMULATED_COLUMNS, irregular.emulated_cells(rows)) + caption(own, meaning)


def lines_table(rows: Sequence[Row]) -> str:
    """One line for each line of sizes that lie side by side: its times, and the worst of its cliffs."""
    own = [row for row in rows if row.get("kind") == lines_report.KIND and "median_us" in row]
    meaning = (
        "The model's choice for each size, whatever is recorded; all sizes of a line are columns of one interleaved "
        "measurement, on the same cold memory. A ratio is of two medians, the worst of the line with the size that has "
        "it: over the faster of the next multiples of 8 on either side, and over any larger size of the line. Spread "
        "is the distance between the quartiles over the median."
    )
    return markdown(lines_report.COLUMNS, lines_report.cells(own)) + caption(own, meaning)


def repeats_table(rows: Sequence[Row]) -> str:
    """One line a config: how many products were run how often, and how many of the runs differed from their first."""
    own = [row for row in rows if row.get("kind") == "repeats" and "differing" in row]
    lines = []
    for config in dict.fromkeys(row["config"] for row in own):
        ran = [row for row in own if row["config"] == config]
        sizes = dict.fromkeys(f"{row['m']} x {row['n']} x {row['k']}" for row in ran)
        lines.append(
            (
                config,
                str(len(ran)),
                f"{sum(row['repeats'] for row in ran):,}",
                str(sum(row["differing"] for row in ran)),
                ", ".join(sizes),
            )
        )
    meaning = "Each run starts from poison, in and around `out`, and is compared with the first run bit for bit."
    return markdown(("config", "products", "repeats", "differ", "M x N x K"), lines) + caption(own, meaning)


def suite_table(rows: Sequence[Row]) -> str:
    """One line a shape of the suite: what is shipped beside both baselines."""
    meaning = (
        "Medians of shuffled rounds, interleaved, operands cold (`*`: too small for that, they lay in the L2). A ratio "
        "is the median over rounds of the baseline's time over tilewright's of the same round. The floor is the longer "
        "of what a read of the product's bytes and its FLOPs take on this card. Choice: of a shipped record, or of the "
        "model, untuned."
    )
    return markdown(suite_page.COLUMNS, suite_page.cells(rows)) + caption(_suite(rows), meaning)


def suite_mean_table(rows: Sequence[Row]) -> str:
    """One line a baseline: what is shipped, over all shapes of the suite."""
    meaning = (
        "How many times as fast as cuBLAS (as `torch.matmul` calls it), and as the fastest of cuBLASLt's algorithms of "
        "all heuristics, measured beside it, as shipped: a record's choice where there is one, else the model's. "
        f"Interleaved, operands cold.{suite_page.searched(rows)}"
    )
    return markdown(suite_page.MEAN_COLUMNS, suite_page.mean_cells(rows)) + caption(_suite(rows), meaning)


def suite_summary_table(rows: Sequence[Row]) -> str:
    """Every column over each baseline, each group, and how good the model's choices are."""
    sentence = suite_page.choices(rows)
    table = markdown(suite_report.SUMMARY_COLUMNS, suite_page.summary_cells(rows))
    return table + f"\n{sentence}\n" * bool(sentence)


def suite_worst_table(rows: Sequence[Row], key: str) -> str:
    """The ten shapes that are slowest over one baseline, with what their rows say."""
    return markdown(suite_report.WORST_COLUMNS, suite_page.slowest(rows, key))


def _suite(rows: Sequence[Row]) -> list[Row]:
    """The suite's rows, for their origin."""
    return [row for row in rows if row.get("kind") == suite_page.KIND]


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "speed": speed_table,
    "time": time_table,
    "check": check_table,
    "checked": checked_table,
    "host": host_table,
    "ceilings": ceilings_table,
    "narrow": narrow_table,
    "narrow-summary": narrow_summary_table,
    "unaligned": unaligned_table,
    "lines": lines_table,
    **{kind: partial(ampere_table, kind=kind) for kind in ampere_report.RUNS.values()},
    "irregular": irregular_table,
    "irregular-emulated": irregular_emulated_table,
    "repeats": repeats_table,
    "suite": suite_table,
    "suite-mean": suite_mean_table,
    "suite-summary": suite_summary_table,
    "suite-worst": lambda rows: suite_worst_table(rows, "ratio"),
    "suite-worst-tuned": lambda rows: suite_worst_table(rows, "ratio_tuned"),
    **dependent_report.TABLES,
    **epilogue_report.TABLES,
    **torch_report.TABLES,
}


def filled(document: str, rows: Sequence[Row]) -> str:
    """The document with every block that TABLES knows made anew from the rows.

    Raises: ValueError: a block of an unknown name.
    """

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            raise ValueError(f"table {name!r} is none of {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[name](rows)}{match[4]}"

    return _BLOCK.sub(block, document)


def main(words: Sequence[str] | None = None) -> int:
    """The command line: 0 when the document is, or was brought, up to date; 1 when --check finds that it is not."""
    parser = argparse.ArgumentParser(prog="tilewright.bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="JSON files of rows, or folders of them")
    parser.add_argument("--into", type=Path, required=True, help="the document with the markers")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the document would change")
    options = parser.parse_args(words)
    files = files_of(options.rows)
    before = options.into.read_text()
    after = filled(before, read_rows(files))
    if after == before:
        return 0
    if options.check:
        print(f"{options.into} is not what {len(files)} files of rows make; run this without --check", file=sys.stderr)
        return 1
    options.into.write_text(after)
    return 0


def _problem_of(row: Row) -> tuple[Any, ...]:
    return (row["m"], row["n"], row["k"], row["dtype"], row["out_dtype"], row["b_major"])


def _type_of(row: Row) -> str:
    layout = {"k": "TN", "n": "NN"}[row["b_major"]]
    out = "" if row["out_dtype"] == row["dtype"] else f" -> {row['out_dtype']}"
    return f"{row['dtype']}{out} {layout}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
