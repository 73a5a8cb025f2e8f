"""Rows of what a call costs the host -> a table."""

from __future__ import annotations

from tilewright.bench import host_report


def test_host_table_has_a_column_a_problem() -> None:
    rows = [{"kind": "host", "m": m, "n": 8, "k": 8, "way": "plan.run", "median_us": m / 10} for m in (64, 128)]
    assert "| `plan.run` | 6.4 | 12.8 |" in host_report.host_table(rows).splitlines()
