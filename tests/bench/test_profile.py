"""bench/profile*.py: ncu's answers, read; the emulator's counts, carried over; what the two say of each other.

ncu_a5_256.csv has the form of `ncu --csv --page raw`; its figures were made for these tests, not measured. The counters
of an H200 are those of benchmarks/results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tilewright.backends.emulated import emulated
from tilewright.bench import profile, profile_report
from tilewright.bench.profile import Asked
from tilewright.bench.profile_counts import (
    Emulated,
    Extent,
    carried,
    columns_of,
    emulated_counts,
    extent_of,
    report_of,
    small_plan,
    small_problems,
)
from tilewright.bench.sweeps import PROBLEM, sweep
from tilewright.errors import ConfigError, ShapeError, UnsupportedError
from tilewright.packing import packed

CSV = (Path(__file__).parent / "ncu_a5_256.csv").read_text()
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
A5 = Asked(m=256, n=256, k=256, rung="a5")
TAILED = (
    "tile_m=128", "tile_n=128", "tail_n=64", "stages=3", "store_slots=1", "pingpong=false", "cluster_m=1", "swap=false",
    "consumers=2", "split_k=1",
)  # fmt: skip
ABOUT = {"occupancy_pct": 25.0, "once_read_bytes": 262144, "once_written_bytes": 131072}


def verdicts(counted: dict[str, Any], counts: dict[str, float]) -> dict[str, str]:
    found = profile_report.compared(counted, Emulated(counts, "made"), ABOUT)
    return {each.name: each.verdict for each in found}


@pytest.fixture(scope="module")
def a5() -> dict[str, Any]:
    return profile_report.answered(profile.row_of_csv(A5, CSV, "ncu.csv", "h200"))


def test_a_launch_that_does_what_the_emulator_does_agrees_in_every_count(a5: dict[str, Any]) -> None:
    found = {each["name"]: each for each in a5["compared"]}
    assert {each["verdict"] for each in found.values()} == {"agree"}
    assert {"ldmatrix", "wavefronts, cp.async", "conflicts, ldmatrix", "conflicts, all", "occupancy %"} <= set(found)
    assert found["mma.sync, wmma.mma (HMMA)"]["ncu"] == 2 * 256**3 / 4096
    assert found["conflicts, all"]["why"].startswith("0.17%")
    lines = {line[0]: line for line in profile_report.cells(a5)}
    assert lines["wavefronts, ldmatrix"][4] == "384.0"  # of 4 tiles of 8 k tiles: 8 warps read 64 + 32 rows of 64 bytes
    assert lines["occupancy %"][4] == "-"
    assert profile_report.stall_cells(a5["counted"])[0][0] == "long_scoreboard"
    assert ("cycles", "14,211") in profile_report.said_cells(a5["counted"])


def test_conflicts_of_one_of_the_two_disagree(a5: dict[str, Any]) -> None:
    counts = a5["emulated"]
    for changed, at in (({"ldsm_conflicts": 3.0 * 12288}, "conflicts, ldmatrix"), ({"hmmas": 8193.0 * 2}, "mma.sync")):
        found = verdicts(a5["counted"] | changed, counts)
        assert [name for name, verdict in found.items() if verdict == "disagree"] == [
            name for name in found if name.startswith(at)
        ]
    own = counts | {"ldsm_conflicts": 12288.0}
    assert verdicts(a5["counted"], own)["conflicts, ldmatrix"] == "disagree"


def test_what_one_of_the_two_lacks_has_no_verdict(a5: dict[str, Any]) -> None:
    some = {name: value for name, value in a5["counted"].items() if "ldsm" not in name}
    found = verdicts(some, a5["emulated"])
    assert (found["ldmatrix"], found["wavefronts, ldmatrix"]) == ("-", "-")
    assert found["wavefronts, cp.async"] == "agree"
    assert set(verdicts(a5["counted"], {}).values()) <= {"-", "agree"}
    without = CSV.replace("smsp__inst_executed_op_ldsm.sum", "smsp__inst_executed_op_other.sum").replace(
        '"12,288"', '"n/a"'
    )
    counted = profile.row_of_csv(A5, without, "x", "h200")["counted"]
    assert (counted["ldsm_instructions"], counted["ldsm_wavefronts"]) == (None, None)


def test_memory_is_held_against_bounds(a5: dict[str, Any]) -> None:
    counted, counts = a5["counted"], a5["emulated"]
    for name, value, at in (
        ("dram_read_bytes", 200_000.0, "bytes read from DRAM"),  # less than each operand once
        ("fill_bytes", 2 * 524288.0, "bytes from the L2 to SMs"),  # more than lanes ask for
        ("warps_pct", 30.0, "occupancy %"),
        ("global_store_sectors", 4000.0, "sectors written by threads"),
    ):
        assert verdicts(counted | {name: value}, counts)[at] == "disagree"
    beside = counted | {"global_load_sectors": 4.0, "global_copy_sectors": 16380.0}  # copies beside the loads
    assert verdicts(beside, counts)["sectors read by threads"] == "agree"


def test_wmma_is_compared_by_its_products_alone(a5: dict[str, Any]) -> None:
    found = profile_report.compared(a5["counted"], Emulated(a5["emulated"] | {"wmma_instructions": 1.0}, "made"), ABOUT)
    assert not any("ldmatrix" in each.name for each in found)
    assert {each.verdict for each in found if each.name.endswith(", all")} == {"-"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
         "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== unrecognised option '--print-units'. Use --help for further details.", "newer Nsight Compute"),
        ("==ERROR== Profiling is not supported on device 0.", "newer Nsight Compute"),
        ("==WARNING== No kernels were profiled.", "ncu saw no launch"),
        (CSV.replace("a5_multistage", "memset_kernel"), "but of memset_kernel"),
        (CSV.replace("(4, 1, 1)", "(64, 1, 1)"), "has 64 CTAs, of this product 4"),
        ("\n".join(line.replace("__", "--") for line in CSV.splitlines()), "none of the"),
    ],
)  # fmt: skip
def test_a_csv_without_the_launch_says_why(text: str, says: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        profile.row_of_csv(A5, text, "ncu.csv", "h200")
    assert says in str(refusal.value)


class Ncu:
    """Runs as ncu would: the child's row in its log, CSV in ncu's. `fails`: what it says in place of counting."""

    def __init__(self, fails: str = "", *, code: int | None = 0, unknown: str = "") -> None:
        self.fails, self.code, self.unknown = fails, code, unknown
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        words = list(command)
        self.commands.append(words)
        if "--query-metrics" in words:
            return 0, ""
        if self.unknown and self.unknown in words[words.index("--metrics") + 1].split(","):
            return 1, f"==ERROR== Failed to find metric {self.unknown}\n"
        if self.fails or self.code != 0:
            return self.code or (None if self.code is None else 1), self.fails
        Path(words[words.index("--log") + 1]).write_text(json.dumps({"entry": "a5_multistage", "facts": {"x": 1}}))
        Path(words[words.index("--log-file") + 1]).write_text(CSV)
        return 0, ""


def test_a_rung_is_launched_in_a_child_under_ncu_that_leaves_the_clocks_alone() -> None:
    ncu = Ncu(unknown="smsp__inst_executed_op_stsm.sum")
    row = profile.profiled(A5, "h200", run=ncu, ncu="ncu")
    assert row["counted"]["hmmas"] == 8192
    assert row["not_known_to_ncu"] == ["smsp__inst_executed_op_stsm.sum"]
    assert row["facts"] == {"x": 1}
    assert Asked.of_row(json.loads(json.dumps(row))) == A5
    first = ncu.commands[0]
    assert first[first.index("--clock-control") + 1] == "none"
    assert json.loads(first[first.index("tilewright.bench.profile") + 1]) == json.loads(json.dumps(asdict(A5)))


@pytest.mark.parametrize(
    ("ncu", "says"),
    [
        (Ncu("==ERROR== ERR_NVGPUCTRPERM - no permission"), "may not read the GPU's counters"),
        (Ncu("==ERROR== unrecognised option '--print-units'"), "older than"),
        (Ncu(code=None), "its time was over"),
        (Ncu("==ERROR== something else was stopped when invoked"), "ncu counted nothing: 0 launches: exit 1"),
    ],
)
def test_where_ncu_counts_nothing_the_refusal_says_why_and_what_works(ncu: Ncu, says: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        profile.profiled(A5, "h200", run=ncu, ncu="ncu")
    assert says in str(refusal.value)
    assert "--emulated" in str(refusal.value)


def test_a_child_whose_kernel_was_not_seen_is_told_from_one_that_failed() -> None:
    ncu = Ncu()
    with pytest.raises(UnsupportedError, match="ncu saw no launch of the kernel"):
        profile.profiled(Asked(m=256, n=256, k=256, rung="a5"), "h200", run=renamed(ncu), ncu="ncu")
    with pytest.raises(UnsupportedError, match="could not be started"):
        profile.profiled(A5, "h200", run=missing, ncu="ncu")


def renamed(ncu: Ncu) -> Any:
    def run(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        answer = ncu(command, limit_s)
        if "--log-file" in command:
            Path(command[list(command).index("--log-file") + 1]).write_text(CSV.replace("a5_multistage", "memset"))
        return answer

    return run


def missing(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    raise FileNotFoundError("ncu")


def test_what_it_takes_is_built_for_a_machine_without_a_compiler(tmp_path: Path) -> None:
    words = json.dumps(asdict(Asked(m=4096, n=4096, k=4096, rung="a5")))
    assert profile.main([words, "--build", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir())


def test_what_cannot_run_is_refused_before_ncu_starts() -> None:
    ncu = Ncu()
    with pytest.raises(ConfigError, match="padding = 4"):
        profile.profiled(Asked(m=256, n=256, k=256, rung="a3", config=("padding=4",)), "h200", run=ncu, ncu="ncu")
    with pytest.raises(UnsupportedError, match="names 2 rungs"):
        profile.profiled(Asked(m=256, n=256, k=256, rung="a3-a4"), "h200", run=ncu, ncu="ncu")
    with pytest.raises(UnsupportedError, match="family 'volta'"):
        profile.profiled(Asked(m=256, n=256, k=256, family="volta"), "h200", run=ncu, ncu="ncu")
    assert ncu.commands == []


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}', '{"rows": [{"kind": "time"}]}', "[1]"])
def test_a_file_without_rows_of_a_profile_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="no JSON document with rows"):
        profile.rows_of_file(text, "x.json")
    with pytest.raises(UnsupportedError, match='has "asked"'):
        Asked.of_row({"kind": "profile", "asked": {"m": 1}})


@pytest.mark.parametrize("counted", [None, "none", {"gmmas": "5"}])
def test_a_row_whose_counters_are_no_numbers_is_refused(counted: Any) -> None:
    with pytest.raises(UnsupportedError, match="a number for each counter"):
        profile.rows_of_file(json.dumps({"rows": [{"kind": "profile", "counted": counted}]}), "x.json")
    with pytest.raises(UnsupportedError, match="both are lists"):
        Asked.of_row({"asked": {"m": 1, "n": 1, "k": 1, "config": 5}})


def test_a_product_without_elements_has_nothing_to_count() -> None:
    for sizes in ((0, 64, 64), (64, 0, 64), (64, 64, 0)):
        m, n, k = sizes
        with pytest.raises(ShapeError, match="no k tile"):
            profile.emulated_row(Asked(m=m, n=n, k=k), "h200")


# -- the emulator's counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        Asked(m=512, n=384, k=320, rung="a5"),
        Asked(m=384, n=256, k=448, num_sms=2, family="ampere", config=("tile_m=64", "tile_n=64", "stages=3")),
        Asked(m=256, n=256, k=512, num_sms=2, dtype="int8", config=("tile_m=64", "tile_n=64", "tile_k=64", "stages=3")),
        Asked(m=640, n=640, k=320, num_sms=4, config=TAILED),
    ],
    ids=str,
)
def test_counts_carried_over_from_small_launches_are_those_of_the_launch(asked: Asked) -> None:
    """A CTA a tile; two SMs whose CTAs take many tiles each, of bf16 and int8; four with a tail of narrow tiles."""
    device = emulated("h200", banks=True)
    plan = asked.plan(device.model, lambda: device)
    small = [small_plan(plan, problem, device) for problem in small_problems(plan)]
    found = [(extent_of(each), columns_of(report_of(each, device))) for each in small]
    counts, left_out = carried(found, extent_of(plan))
    own = columns_of(report_of(plan, device))
    assert bool(plan.config.tail_n) is (extent_of(plan).narrow_tiles > 0)
    assert not {name for name in left_out if name.endswith(("wavefronts", "conflicts"))}
    assert own["ldsm_wavefronts" if plan.family.name != "hopper" else "gmma_wavefronts"] > 0
    steps = asked.m * asked.n * asked.k // (16 * 8 * 32)  # of mma.sync m16n8k32
    assert own.get("immas") == (steps if asked.dtype == "int8" else None)
    assert {name: counts[name] for name in counts if "ptx" not in name} == {
        name: own[name] for name in counts if "ptx" not in name
    }


def test_of_a_size_that_ends_inside_tiles_no_bytes_written_are_carried_over() -> None:
    for m, is_cut in ((4096, False), (4000, True)):
        found = emulated_counts(Asked(m=m, n=4096, k=8192, rung="a5").emulated_plan("h200"))
        assert ("global_written_bytes" in found.counts) is not is_cut
        assert ("edges" in found.how) is is_cut
        assert "whole rows" not in found.how  # k is whole: the same kernel
        assert found.counts["hmmas"] == 2 * 4096 * 4096 * 8192 / 4096


def test_a_count_that_small_launches_do_not_tell_is_left_out() -> None:
    extents = [Extent(1, 2, 4), Extent(1, 4, 8), Extent(1, 4, 16), Extent(1, 6, 18)]
    found = [
        (each, {"straight": 5.0 * each.ctas + 3 * each.tiles + 2 * each.k_tiles, "bent": float(each.k_tiles**2)})
        for each in extents
    ]
    counts, left_out = carried(found, Extent(132, 1000, 64000))
    assert counts == {"straight": 5 * 132 + 3000 + 128000}
    assert left_out == ("bent",)


@pytest.mark.parametrize("rung", ["v01", "v02", "v10"])
def test_wavefronts_of_shared_memory_are_those_that_an_h200_counted(rung: str) -> None:
    """8192^3: within 0.3 % of ncu. Its conflicts are none of the addresses: v10 and v11 store alike, and differ."""
    rows = [json.loads(path.read_text())["rows"] for path in sorted(RESULTS.glob("h200_????-??-??_ladder.json"))]
    counted = {row["rung"]: row for row in rows[-1] if row["kind"] == "rung_counters"}
    own = next(row for name, row in counted.items() if name.startswith(rung))
    found = emulated_counts(Asked(m=8192, n=8192, k=8192, rung=rung).emulated_plan("h200"))
    total = sum(value for name, value in found.counts.items() if name.endswith("_wavefronts"))
    assert total == pytest.approx(own["wavefronts"] - own["bank_conflicts"], rel=0.003)
    assert sum(value for name, value in found.counts.items() if name.endswith("_conflicts")) == 0
    assert not found.left_out
    assert packed(8192, 8192, 8192).m == own["m"]


@pytest.mark.parametrize(
    ("name", "variant"),
    [("cluster", "256x128 2x1, b multicast"), ("tile", "256x192 staggered, narrow tail of 80")],
)
def test_wgmmas_and_filled_bytes_are_those_that_an_h200_counted(name: str, variant: str) -> None:
    """8192^3: every wgmma; what TMA delivers to all CTAs of a multicast, edges of a tail as whole tiles."""
    rows = json.loads(max(RESULTS.glob("h200_????-??-??_sweeps.json")).read_text())["rows"]
    (own,) = (row for row in rows if row["kind"] == "sweep_counters" and row["variant"] == variant)
    chip = emulated("h200")
    (swept,) = (each for each in sweep(name, chip.model).variants if each.name == variant)
    counts = emulated_counts(swept.plan(PROBLEM, chip.model, lambda: chip)).counts
    assert counts["gmmas"] == own["wgmmas"]
    assert counts["delivered_bytes"] == pytest.approx(own["fill_bytes"], rel=0.021)
