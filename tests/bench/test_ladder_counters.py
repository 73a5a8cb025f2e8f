"""bench/ladder_counters.py: one child a rung under ncu, and what becomes of its answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.bench import counters, ladder_counters
from tilewright.packing import packed

PROBLEM = packed(512, 512, 512)


class Ncu:
    """Runs as ncu would: the child's row in its log, the counters as CSV in ncu's; `bad` names are not known to it."""

    def __init__(self, *, bad: str = "", code: int | None = 0, entry: str | None = None) -> None:
        self.bad, self.code, self.entry = bad, code, entry
        self.commands: list[list[str]] = []
        self.limits: list[float] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        words = list(command)
        if "--query-metrics" in words:
            return 0, ""
        self.commands.append(words)
        self.limits.append(limit_s)
        metrics = words[words.index("--metrics") + 1].split(",")
        if self.bad in metrics:
            return 1, f"==ERROR== Failed to find metric {self.bad}"
        rung = words[words.index("tilewright.bench.ladder_counters") + 1]
        Path(words[words.index("--log") + 1]).write_text(json.dumps({"rung": rung, "entry": self.entry or rung}) + "\n")
        if self.code != 0:
            return self.code, "ERR_NVGPUCTRPERM"
        head = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", *metrics))
        line = ",".join(f'"{value}"' for value in ("0", rung, *range(1, 1 + len(metrics))))
        Path(words[words.index("--log-file") + 1]).write_text(f"{head}\n{line}\n")
        return 0, ""


def rows_of(run: Ncu, *names: str) -> list[dict[str, Any]]:
    said: list[str] = []
    rows = list(ladder_counters.counted_rows(names, PROBLEM, progress=said.append, run=run))
    assert said == [f"counting {name}" for name in names]
    return rows


def test_each_rung_is_launched_in_a_child_of_its_own_under_ncu_with_a_limit() -> None:
    ncu = Ncu()
    rows = rows_of(ncu, "v03_tuned_tma", "v12_production")
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert rows[0]["dram_read_bytes"] == 1
    assert rows[0]["l2_read_bytes"] == 3 * counters.SECTOR_BYTES
    assert [command[0] for command in ncu.commands] == ["ncu", "ncu"]
    assert all(sys.executable in command and command.count("512") == 3 for command in ncu.commands)
    assert set(ncu.limits) == {ladder_counters.LIMIT_S}


def test_a_metric_that_ncu_turns_down_costs_its_own_column_and_is_asked_for_once() -> None:
    metric = counters.METRICS["ladder"]["bank_conflicts"][0]
    ncu = Ncu(bad=metric)
    rows = rows_of(ncu, "v03_tuned_tma", "v04_warp_specialized")
    assert [(row["status"], row["bank_conflicts"], row["dram_read_bytes"]) for row in rows] == [("ok", None, 1.0)] * 2
    assert len(ncu.commands) == 3


def test_what_cannot_be_counted_is_a_row_that_says_why() -> None:
    assert "ERR_NVGPUCTRPERM" in rows_of(Ncu(code=1), "v03_tuned_tma")[0]["why"]
    assert "stopped" in rows_of(Ncu(code=None), "v03_tuned_tma")[0]["why"]
    [row] = rows_of(Ncu(entry="another_kernel"), "v03_tuned_tma")
    assert (row["status"], row["why"]) == ("not counted", "0 launches: ok")

    def absent(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        raise FileNotFoundError("ncu")

    [row] = ladder_counters.counted_rows(["v03_tuned_tma"], PROBLEM, run=absent)
    assert (row["status"], row["why"]) == ("not counted", "ncu")


def test_the_child_ends_with_its_reason_where_there_is_no_gpu(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    log = tmp_path / "rows"
    assert ladder_counters.main(["v03_tuned_tma", "64", "64", "64", "--log", str(log)]) == 1
    assert "Error: " in capsys.readouterr().out
    assert not log.exists()
