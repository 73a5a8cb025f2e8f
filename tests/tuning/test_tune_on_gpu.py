"""A whole tuning on the device that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright
from tilewright import records


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(512, 512, 512), (2048, 2048, 2048), (1000, 999, 1000)])
def test_a_tuned_product_runs_with_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    records.clear()
    problem = tilewright.packed(*sizes)
    tuned = tilewright.tune(problem, budget_s=60.0)
    assert tuned.kept
    assert tuned.decided in ("clear", "tie")
    assert {row.status for row in tuned.rows} <= {"fastest", "equal", "slower"}, str(tuned)
    plan = tilewright.plan(problem, device=tuned.device)
    assert plan.record == tuned.record
    assert "a hint" not in plan.why
