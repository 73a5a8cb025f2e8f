"""Copies the rows of a benchmark run into benchmarks/results, ready to be committed, and renews the documents' tables.

    python tools/publish_rows.py OUT... [--commit HASH]

OUT is a folder that `benchmarks/h200.py --into OUT` or `tilewright ceilings --into OUT` wrote, or one file of it. Check
rows are condensed to one a config; narrow ones, many, keep what their table and a fit need; those of
`benchmarks/unaligned.py --into OUT/unaligned.json` what their table needs, their checks as one (unaligned_earlier.json:
of an earlier run); those of `benchmarks/lines.py --into OUT/lines.json` and of `tilewright bench SUITE --into OUT` what
table and picture need, and of a suite whether a record that was measured is shipped today; those of
`benchmarks/ampere.py --into OUT/ampere.json`, of --modes OUT/ampere_modes.json, of --kinds OUT/kinds.json and of
--forms OUT/kinds_forms.json what their table needs, their checks as one, as of `benchmarks/irregular.py --into
OUT/irregular.json`, of `benchmarks/dependent.py --into OUT/dependent.json` and of
`benchmarks/epilogues.py --into OUT/epilogues.json` (or layers.json); all others stay as they were measured, those of
`benchmarks/host.py --into OUT/torch_host.json` and `benchmarks/model.py --into OUT/model.json` too. A file is named
<device>_<date>_<part>.json. Of lines of sizes docs/plots/lines_<device>.svg is drawn too, of a suite
docs/plots/suite_<device>.svg.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright import device, records
from tilewright.bench import (
    ampere_report,
    check_report,
    dependent_report,
    epilogue_report,
    irregular,
    lines_report,
    report,
    suite,
    suite_page,
    torch_report,
    unaligned_report,
)
from tilewright.errors import UnsupportedError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "plots"
DOCUMENTS = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/a-call.md",
        "docs/measuring.md",
        "docs/suite.md",
        "docs/ampere.md",
        "docs/epilogues.md",
        "docs/torch.md",
        "docs/ladder/irregular.md",
    )
)
PARTS = (
    "check",
    "repeats",
    "time",
    "narrow",
    *unaligned_report.RUNS,
    "lines",
    "bench",
    "host",
    "sanitize",
    "ceilings",
    *ampere_report.RUNS,
    "irregular",
    dependent_report.KIND,
    "epilogues",
    "layers",
    torch_report.HOST,
    torch_report.MODEL,
)
PICTURES = {"lines": lines_report.digest, "bench": suite_page.digest}  # of parts that have one: the name of its numbers

NARROW = (
    "kind", "status", "why", "candidate", "clusters", "m", "n", "k", "dtype", "out_dtype", "b_major", "num_sets",
    "is_cold", "mode", "median_us", "spread", "rounds", "config", "ctas", "watts", "clock_mhz", "error_over_bound",
)  # fmt: skip


def publish(file: Path, results: Path, commit: str | None = None) -> Path:
    """The file that now holds the rows. `commit` fills in what the machine that measured could not know."""
    content = json.loads(file.read_text())
    facts, rows = content["facts"], content["rows"]
    facts["command"] = re.sub(r"--into \S+", "--into OUT", facts["command"])
    if commit is not None:
        facts["commit"] = commit
    if file.stem == "check":
        rows = [*check_report.condensed(rows), *(row for row in rows if row["kind"] != "check")]
    if file.stem == "narrow":
        rows = [{name: row[name] for name in NARROW if row.get(name) is not None} for row in rows]
    if file.stem in unaligned_report.RUNS:
        rows = unaligned_report.published(rows, unaligned_report.RUNS[file.stem])
    if file.stem in ampere_report.RUNS:
        rows = ampere_report.published(rows, ampere_report.RUNS[file.stem])
    if file.stem == "irregular":
        rows = irregular.published(rows)
    if file.stem == dependent_report.KIND:
        rows = dependent_report.published(rows)
    if file.stem in ("epilogues", "layers"):
        rows = epilogue_report.published(rows)
    if file.stem in (torch_report.HOST, torch_report.MODEL):
        rows = torch_report.published(file.stem, rows)
    if file.stem == "lines":
        rows = lines_report.published(rows)
    name = facts["device"].removeprefix("NVIDIA ").split()[0].lower()
    if file.stem == "bench":
        rows = suite_page.published(rows, lambda size: shipped(size, name))
    results.mkdir(parents=True, exist_ok=True)
    target = results / f"{name}_{facts['date']}_{file.stem}.json"
    target.write_text(text_of(facts, rows))
    return target


def shipped(size: tuple[int, int, int], name: str) -> str | None:
    """The config of the record that the package has for a product of the suite on the device of a preset, or None."""
    problem = suite.problem_of(size)
    record = records.shipped().lookup(records.key_of(problem, device.preset(name)))
    return None if record is None else str(record.config)


def picture_of(published: Path, plots: Path) -> Path | None:
    """The file for the picture of published rows; None for rows that have none."""
    name, _, part = published.stem.split("_", 2)
    return plots / f"{'suite' if part == 'bench' else part}_{name}.svg" if part in PICTURES else None


def draw(published: Path, picture: Path) -> None:
    """Draws published lines or a suite. Raises: UnsupportedError: matplotlib is not installed."""
    content = json.loads(published.read_text())
    if published.stem.endswith("_bench"):
        suite_page.plot(content["rows"], picture)
    else:
        lines_report.plot(content["rows"], lines_report.title(content["facts"]), picture)


def text_of(facts: report.Row, rows: Sequence[report.Row]) -> str:
    """JSON with one row a line, so that a diff shows which rows changed."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"facts": {json.dumps(facts, indent=1)},\n"rows": [\n{lines}\n]}}\n'


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="+", type=Path)
    parser.add_argument("--commit", help="the commit that was measured, where the rows do not say it")
    options = parser.parse_args(words)
    for out in options.out:
        for file in [out] if out.is_file() else [out / f"{part}.json" for part in PARTS]:
            if file.exists():
                published = publish(file, RESULTS, options.commit)
                print(published.relative_to(ROOT))
                if (picture := picture_of(published, PLOTS)) is not None:
                    try:
                        draw(published, picture)
                    except UnsupportedError as error:  # the rows are written; the picture can be drawn elsewhere
                        print(error)
    for document in DOCUMENTS:
        report.main([str(RESULTS), "--into", str(document)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
