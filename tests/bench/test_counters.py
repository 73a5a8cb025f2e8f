"""bench/counters.py: what ncu is asked, what is read of its answer, and what a name that it does not know costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tilewright.bench import counters

WIDE = """==PROF== Connected to process 7
==PROF== Profiling "hopper_gemm": 0%....100% - 4 passes
"ID","Process ID","Kernel Name","Grid Size","CC","dram__bytes_read.sum","lts__t_sectors_srcunit_tex_op_read.sum"
"","","","","","byte","sector"
"0","7","hopper_gemm","(132, 1, 1)","9.0","1,200,000,000","31250000"
"1","7","v10_tma_store(TensorMap)","(132, 1, 1)","9.0","2.5e9","n/a"
"""

LONG = """"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","hopper_gemm","Command line profiler metrics","dram__bytes_read.sum","byte","1200000000"
"0","7","hopper_gemm","Command line profiler metrics","sm__cycles_elapsed.max","cycle","1,000,000"
"1","7","hopper_gemm","Command line profiler metrics","dram__bytes_read.sum","byte","7"
"""


class Ncu:
    """Answers as ncu does: `bad` are names that it does not know; the log is what the last command left."""

    def __init__(self, bad: Sequence[str] = (), *, says: bool = True) -> None:
        self.bad = bad
        self.says = says
        self.commands: list[list[str]] = []
        self.log = ""

    def run(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        self.commands.append(list(command))
        if "--query-metrics" in command:
            names = ("dram__bytes_read", "lts__t_sectors_srcunit_tex_op_read", "sm__cycles_elapsed")
            return 0, "Device NVIDIA H200 (GH100)\n" + "".join(f"{name}    Counter  # of\n" for name in names)
        unknown = [name for name in self.asked() if name in self.bad]
        self.log = "" if unknown else WIDE
        return (1, f"==ERROR== Failed to find metric {unknown[0]}\n" if self.says else "") if unknown else (0, "")

    def asked(self) -> list[str]:
        command = self.commands[-1]
        return command[command.index("--metrics") + 1].split(",")

    def profile(self, metrics: Sequence[str], refused: set[str]) -> tuple[list[counters.Launched], str]:
        return counters.profile(metrics, ["python", "x"], "log", lambda: self.log, self.run, 9.0, refused)


def test_wide_answer_is_read_and_units_are_no_launch() -> None:
    first, second = counters.parsed(WIDE)
    assert first.kernel == "hopper_gemm"
    assert first.values == {"dram__bytes_read.sum": 1.2e9, "lts__t_sectors_srcunit_tex_op_read.sum": 31250000}
    assert second.kernel == "v10_tma_store"
    assert second.values == {"dram__bytes_read.sum": 2.5e9}


def test_long_answer_is_read_too() -> None:
    first, second = counters.parsed(LONG)
    assert first.values == {"dram__bytes_read.sum": 1.2e9, "sm__cycles_elapsed.max": 1e6}
    assert second.values == {"dram__bytes_read.sum": 7}


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM\n", '"ID"\n', '"ID","Kernel Name"\n"x","y"\n'])
def test_an_answer_without_launches_is_none(text: str) -> None:
    assert counters.parsed(text) == []


def test_columns_are_in_bytes_and_one_that_was_not_counted_is_none() -> None:
    found = counters.columns("traffic", counters.parsed(WIDE)[0].values)
    assert found["dram_read_bytes"] == 1.2e9
    assert found["l2_read_bytes"] == 1e9
    assert found["fill_bytes"] is None


def test_clocks_are_left_alone() -> None:
    command = counters.command(["a", "b"], ["python", "x"], "log")
    assert command[:3] == ["ncu", "--clock-control", "none"]
    assert command[-3:] == ["a,b", "python", "x"]


def test_a_name_that_ncu_does_not_know_costs_its_own_column_and_is_not_asked_for_again() -> None:
    ncu = Ncu(bad=["wrong__name.sum"])
    refused: set[str] = set()
    launches, status = ncu.profile(["dram__bytes_read.sum", "wrong__name.sum"], refused)
    assert (len(launches), status, refused) == (2, "ok", {"wrong__name.sum"})
    assert len(ncu.commands) == 2
    ncu.profile(["dram__bytes_read.sum", "wrong__name.sum"], refused)
    assert len(ncu.commands) == 3
    assert ncu.asked() == ["dram__bytes_read.sum"]


def test_a_name_that_ncu_refuses_without_saying_so_is_found_in_its_list() -> None:
    ncu = Ncu(bad=["wrong__name.sum"], says=False)
    refused: set[str] = set()
    launches, status = ncu.profile(["dram__bytes_read.sum", "wrong__name.sum"], refused)
    assert (len(launches), status, refused) == (2, "ok", {"wrong__name.sum"})


def test_where_counters_are_forbidden_ncu_is_not_asked_for_ever() -> None:
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        ran.append(command)
        return 1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"

    launches, status = counters.profile(["dram__bytes_read.sum"], ["x"], "log", lambda: "", run, 9.0, set())
    assert launches == []
    assert "ERR_NVGPUCTRPERM" in status
    assert len(ran) == 2


def test_a_run_that_was_stopped_is_not_begun_again() -> None:
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        ran.append(command)
        return None, ""

    assert counters.profile(["dram__bytes_read.sum"], ["x"], "log", lambda: "", run, 9.0, set()) == ([], "stopped")
    assert len(ran) == 1


def test_every_metric_has_a_rollup_and_a_column_of_its_own() -> None:
    for kind in counters.METRICS:
        names = counters.metrics_of(kind)
        assert len(set(names)) == len(names)
        shares = (".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active")
        assert all(name.endswith((".sum", ".max", ".ratio", *shares)) for name in names)
