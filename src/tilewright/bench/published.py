"""Rows of a script with parts as they are committed: what tables read, and the checks as one row.

Knows the shape that such rows have; which of their fields a table reads is its report's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

Row = dict[str, Any]


def published_parts(rows: Sequence[Row], kind: str, kept: Collection[str], whole: Collection[str] = ()) -> list[Row]:
    """The rows as they are committed: the checks as one, with those that are wrong; of the others the fields `kept`, of
    a part in `whole` all."""
    checks = [row for row in rows if row["kind"] == "check"]
    found: list[Row] = []
    if checks:
        counts = {status: sum(row["status"] == status for row in checks) for status in ("ok", "refused", "wrong")}
        failed = [row for row in checks if row["status"] == "wrong"]
        found.append({"kind": kind, "part": "check", "status": "wrong" if failed else "ok", "failed": failed} | counts)
    for row in rows:
        if row["kind"] != "check":
            is_read = (name for name in row if name in kept or row["kind"] in whole)
            fields = {name: row[name] for name in is_read if row[name] is not None}
            found.append(fields | {"kind": kind, "part": row["kind"]})
    return found
