"""Merges records of a tuning into those that the package ships: one line a product, sorted, the newest last measured.

    python tools/publish_records.py RECORDS.jsonl

Records of devices that no shipped file is for are left out and named. The file is made for a person to read in a diff.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright import device, records
from tilewright.records import Record, Store

SHIPPED = Path(__file__).parent.parent / "src" / "tilewright" / "data" / "records"


def merged(shipped: Path, new: Path) -> list[Record]:
    """The last record of every product, the new file's over the shipped one's."""
    found = {each.key: each for path in (shipped, new) for each in Store(path).records()}
    return sorted(found.values(), key=lambda each: each.key)


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    (file,) = sys.argv[1:] if words is None else words
    left = {each.device for each in Store(Path(file)).records()}
    for target in sorted(SHIPPED.glob("*.jsonl")):
        name = records.device_text(device.preset(target.stem))
        mine = [each for each in merged(target, Path(file)) if each.device == name]
        target.write_text("".join(each.line() + "\n" for each in mine), encoding="utf-8")
        print(f"{target.name}: {len(mine)} records")
        left.discard(name)
    for name in sorted(left):
        print(f"left out: {name}, which no shipped file is for")
    return 0


if __name__ == "__main__":
    sys.exit(main())
