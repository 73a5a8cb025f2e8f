"""A whole tuning on the device that is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright import records
from tilewright.epilogue import Add, Alpha, Aux, Beta, Bias, Gated, Gelu, RowAmax
from tilewright.packing import with_epilogue


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


@pytest.mark.gpu
@pytest.mark.parametrize(
    "epilogue",
    [
        Bias("bf16") | Gelu(),
        Gated("silu"),
        Bias("bf16") | Aux("bf16") | Gated("gelu", "interleaved") | Add("bf16"),
        Alpha(2.0) | Beta(1.0, "bf16") | RowAmax("fp32"),
    ],
    ids=str,
)
def test_a_product_with_an_epilogue_runs_with_its_own_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epilogue: Any
) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    records.clear()
    problem = tilewright.packed(1024, 2048, 512)
    tuned = tilewright.tune(problem, budget_s=60.0, candidates=4, epilogue=epilogue)
    assert tuned.kept
    assert {row.status for row in tuned.rows} <= {"fastest", "equal", "slower"}, str(tuned)
    plan = tilewright.plan(with_epilogue(problem, epilogue), device=tuned.device)
    assert plan.record == tuned.record
    assert "a hint" not in plan.why
    assert tilewright.plan(problem, device=tuned.device).record != tuned.record
