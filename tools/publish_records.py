"""Merges records of a tuning into those that the package ships: one line a product, sorted, the newest last measured.

    python tools/publish_records.py [RECORDS.jsonl] [--confirmed-by BENCH.json ...]

Records of devices that no shipped file is for are left out and named. The file is made for a person to read in a diff.

A record is of one regime, interleaved, and the best of many near equals is the luckiest of them too. So a bench that
had the record beside the untuned choice has the last word: where the two are different configs and the recorded one was
less than 1 % faster in any of the benches that are named, the record is dropped, and the model chooses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright import device, records
from tilewright.bench.suite import problem_of
from tilewright.bench.suite_run import RECORDED, UNTUNED
from tilewright.kernels.repack import repacked
from tilewright.records import Record, Store

LEAST_GAIN = 1.01  # of a record over the model's choice: what an interleaved run tells apart, and worth a line

SHIPPED = Path(__file__).parent.parent / "src" / "tilewright" / "data" / "records"


def merged(shipped: Path, new: Path) -> list[Record]:
    """The last record of every product, the new file's over the shipped one's."""
    found = {each.key: each for path in (shipped, new) if path.is_file() for each in Store(path).records()}
    return sorted(found.values(), key=lambda each: each.key)


def refuted(rows: Iterable[dict[str, Any]], shipped: Sequence[Record]) -> set[str]:
    """Keys of records that these rows of a bench have beside an untuned choice that is as good.

    Rows are of products of contiguous arrays, as `tilewright bench` has them, each mode by itself; where operands are
    copied first, the record is that of the copies. A record that is another config by now is not what they measured.
    """
    configs = {each.key: each.config for each in shipped}
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row.get("median_us") and row.get("candidate") in (UNTUNED, RECORDED):
            product = tuple(row[name] for name in ("m", "n", "k", "dtype", "b_major", "mode"))
            found.setdefault(product, {})[row["candidate"]] = row
    keys = set()
    for (m, n, k, dtype, b_major, _), columns in found.items():
        if len(columns) < 2 or columns[UNTUNED]["config"] == columns[RECORDED]["config"]:
            continue
        problem = problem_of((m, n, k), dtype=dtype, b_major=b_major)
        copied = problem.repacked
        key = records.key_of(repacked(problem, copied), device.preset("h200"))
        if key not in configs:
            continue
        config = configs[key].beside_copies() if copied else configs[key]
        measured = columns[RECORDED]["config"] == str(config)
        if measured and columns[UNTUNED]["median_us"] < LEAST_GAIN * columns[RECORDED]["median_us"]:
            keys.add(key)
    return keys


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="?", type=Path, metavar="RECORDS.jsonl")
    parser.add_argument("--confirmed-by", nargs="+", type=Path, default=[], metavar="BENCH.json")
    options = parser.parse_args(words)
    file = options.records or Path()
    left = {each.device for each in Store(file).records()} if options.records else set()
    for target in sorted(SHIPPED.glob("*.jsonl")):
        name = records.device_text(device.preset(target.stem))
        mine = [each for each in merged(target, file) if each.device == name]
        for bench in options.confirmed_by:
            dropped = refuted(json.loads(bench.read_text())["rows"], mine)
            for each in mine:
                if each.key in dropped:
                    print(f"not confirmed: {each.problem}: {each.config}")
            mine = [each for each in mine if each.key not in dropped]
        target.write_text("".join(each.line() + "\n" for each in mine), encoding="utf-8")
        print(f"{target.name}: {len(mine)} records")
        left.discard(name)
    for name in sorted(left):
        print(f"left out: {name}, which no shipped file is for")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
