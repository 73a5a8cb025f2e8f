"""kernels/ladder.py and kernels/cuda/ladder: rungs compile clean, show their ideas in their SASS, and are exact."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tilewright import device, disassemble
from tilewright.backends.base import IntArgument, MapArgument, PointerArgument
from tilewright.backends.emulated import emulated
from tilewright.bench.ladder import RungPlan
from tilewright.bench.ladder_emulated import emulate
from tilewright.config import Config
from tilewright.errors import ConfigError
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Binary
from tilewright.kernels import catalog
from tilewright.kernels.ladder import RUNGS, Rung
from tilewright.kernels.render import device_code, render
from tilewright.packing import packed
from tilewright.problem import Problem

H200 = device.preset("h200")
EVEN, ODD = packed(4096, 4096, 4096), packed(4096, 4095, 4096)
BY_NUMBER = {rung.number: rung for rung in RUNGS}
every_rung = pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
SMALL_REGISTERS = {"v01": 128, "v02": 64, "v03": 168}  # what the CTAs an SM that the page speaks of leave a thread


@cache
def compiled(rung: Rung, problem: Problem = EVEN) -> Binary:
    return build(render(rung, problem, rung.config, H200))


@cache
def opcodes(number: str) -> dict[str, int]:
    return disassemble.opcodes(disassemble.sass(compiled(BY_NUMBER[number]).cubin))


@every_rung
@pytest.mark.parametrize("problem", [EVEN, ODD], ids=str)
def test_every_rung_compiles_clean(rung: Rung, problem: Problem) -> None:
    """No spill, no stack, no serialised wgmma; the registers that its setmaxnreg plan or its CTAs an SM start from."""
    binary = compiled(rung, problem)
    assert flaws(binary) == ()
    if rung.number in SMALL_REGISTERS:
        assert binary.resources.registers <= SMALL_REGISTERS[rung.number]
    elif rung.config.moves_registers:
        assert binary.resources.registers == rung.config.entry_registers
    else:
        assert binary.resources.registers <= rung.config.entry_registers


@pytest.mark.parametrize(
    ("number", "uses", "lacks"),
    [
        ("v01", {"FFMA", "LDS", "STS", "LDG"}, {"HGMMA", "UTMALDG", "SYNCS"}),
        ("v02", {"HGMMA", "UTMALDG", "SYNCS"}, {"FFMA", "USETMAXREG", "UTMASTG", "STSM"}),
        ("v03", {"HGMMA", "UTMALDG"}, {"USETMAXREG", "UTMASTG"}),
        ("v04", {"HGMMA", "UTMALDG"}, {"USETMAXREG", "UTMASTG", "UCGABAR_ARV"}),
        ("v05", {"USETMAXREG"}, {"UTMASTG", "UCGABAR_ARV"}),
        ("v06", {"USETMAXREG"}, {"UTMASTG", "UCGABAR_ARV"}),
        ("v07", {"USETMAXREG"}, {"UTMASTG", "UCGABAR_ARV"}),
        ("v08", {"UCGABAR_ARV", "STG"}, {"STSM", "UTMASTG"}),
        ("v09", {"UCGABAR_ARV", "STSM", "STG"}, {"UTMASTG"}),
        ("v10", {"UCGABAR_ARV", "STSM", "UTMASTG"}, {"STG"}),
        ("v11", {"UCGABAR_ARV", "STSM", "UTMASTG"}, {"STG"}),
    ],
)
def test_the_sass_of_a_rung_shows_its_idea_and_not_the_next(number: str, uses: set[str], lacks: set[str]) -> None:
    found = opcodes(number)
    assert uses <= found.keys()
    assert not lacks & found.keys()


def test_a_box_of_whole_lines_takes_one_load_where_core_matrices_take_eight() -> None:
    assert opcodes("v02")["UTMALDG"] == 2
    assert opcodes("v03")["UTMALDG"] == 2
    narrow = BY_NUMBER["v03"].config.replace(panel_bytes=16)
    binary = build(render(BY_NUMBER["v03"], EVEN, narrow, H200))
    assert disassemble.opcodes(disassemble.sass(binary.cubin))["UTMALDG"] == 16


def test_only_clusters_multicast() -> None:
    for rung in RUNGS:
        is_late = rung.number >= "v08"
        assert ("multicast::cluster" in compiled(rung).ptx) == is_late, rung.name
        assert ("mapa.shared::cluster" in compiled(rung).ptx) == is_late, rung.name


def test_no_remote_arrival_fences_the_device_in_the_main_loop() -> None:
    for rung in RUNGS:
        assert ".release.cluster.shared::cluster.b64" not in compiled(rung).ptx


def test_waits_by_token_end_with_v06() -> None:
    for rung in RUNGS[1:]:
        waits_by_parity = "mbarrier.try_wait.parity" in compiled(rung).ptx
        assert waits_by_parity == (rung.number >= "v07"), rung.name


def test_arrivals_of_a_slot_fall_from_514_to_9() -> None:
    counts = {}
    for number in ("v06", "v07"):
        found = BY_NUMBER[number].constants(EVEN, BY_NUMBER[number].config)
        counts[number] = (found["FULL_ARRIVALS"], found["EMPTY_ARRIVALS"])
    assert counts == {"v06": (257, 257), "v07": (1, 8)}


@every_rung
def test_arguments_follow_the_entry_s_parameter_list(rung: Rung) -> None:
    entry = re.search(rf"{rung.entry}\((.*?)\)\s*\{{", device_code()[rung.source], re.DOTALL)
    assert entry is not None
    names = [parameter.split()[-1].lstrip("*") for parameter in entry[1].split(",")]
    found = []
    for argument in rung.arguments(EVEN, rung.config, rung.launch(EVEN, rung.config, H200)):
        match argument:
            case MapArgument(operand, _):
                found.append(f"{operand}_map")
            case PointerArgument(operand):
                found.append("out_base" if operand == "out" and rung.number > "v01" else operand)
            case IntArgument(name, _, _):
                found.append(name)
    assert found == names


@every_rung
def test_every_tensor_map_is_one_that_the_driver_takes(rung: Rung) -> None:
    for problem in (EVEN, packed(1, 1, 1)):
        launch = rung.launch(problem, rung.config, H200)
        for argument in rung.arguments(problem, rung.config, launch):
            if isinstance(argument, MapArgument):
                assert argument.tensor_map.violations() == ()


@every_rung
def test_a_rung_refuses_what_its_source_does_not_compute(rung: Rung) -> None:
    assert list(rung.space(EVEN, H200)) == [rung.config]
    for problem in (
        packed(64, 64, 64, dtype="fp16"),
        packed(64, 64, 64, out_dtype="fp32"),
        packed(64, 64, 64, b_major="n"),
    ):
        assert any("bf16 -> bf16 TN alone" in reason for reason in rung.config.violations(problem, H200))
    assert any("8.0" in reason for reason in rung.config.violations(EVEN, device.preset("a100")))


@pytest.mark.parametrize(
    ("number", "change"),
    [
        ("v01", {"tile_k": 32}), ("v02", {"stages": 2}), ("v02", {"panel_bytes": 64}), ("v02", {"tile_n": 128}),
        ("v03", {"panel_bytes": 48}), ("v03", {"box_rows": 96}),
        ("v03", {"tile_n": 256}), ("v04", {"consumers": 2, "tile_m": 128}), ("v04", {"stages": 1}),
        ("v04", {"stages": 8}), ("v05", {"consumers": 1}), ("v05", {"producer_registers": 20}), ("v06", {"tile_k": 32}),
        ("v07", {"cluster_m": 2}), ("v08", {"store_slots": 1}), ("v08", {"tile_n": 8}), ("v09", {"store_slots": 0}),
        ("v11", {"stages": 5}),
    ],
)  # fmt: skip
def test_a_config_that_the_source_is_not_written_for_is_refused(number: str, change: dict[str, int]) -> None:
    assert BY_NUMBER[number].config.replace(**change).violations(EVEN, H200)


def test_a_config_of_another_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="SpecializedConfig"):
        BY_NUMBER["v05"].headers(EVEN, Config())


def test_a_product_of_more_tiles_than_the_table_of_v11_holds_is_refused() -> None:
    rung = BY_NUMBER["v11"]
    wide = packed(256 * 66, 256 * 384, 64)  # 66 pairs of CTAs, 384 tiles each
    assert rung.config.violations(wide, H200) == ()
    assert rung.launch(wide, rung.config, H200).grid == 132
    [reason] = rung.config.violations(packed(256 * 66, 256 * 384 + 1, 64), H200)
    assert reason == "385 tiles a CTA are more than the 384 of the rung's table"
    with pytest.raises(ConfigError, match="507 tiles a CTA are more than 384: give it 66 clusters"):
        rung.launch(wide, rung.config, H200, num_sms=100)


def test_the_walk_of_v11_costs_its_producer_no_registers() -> None:
    """It is computed before the roles part: the 40 registers of v10 are enough, in a debug build too."""
    assert BY_NUMBER["v11"].config.producer_registers == BY_NUMBER["v10"].config.producer_registers == 40


def test_dispatch_sees_no_rung_and_the_catalog_knows_all() -> None:
    assert not set(catalog.PRODUCTION) & set(catalog.LADDER)
    assert catalog.LADDER == RUNGS
    for rung in RUNGS:
        assert catalog.family(rung.name) is rung


def test_persistent_rungs_launch_whole_waves_and_earlier_ones_a_cta_a_tile() -> None:
    for rung in RUNGS:
        grid = rung.launch(EVEN, rung.config, H200).grid
        rows, columns = rung.config.tiles(EVEN)
        assert grid == (128 if rung.number >= "v06" else rows * columns)  # 512 tiles: 4 waves on 132 SMs as on 128
        assert rung.launch(packed(1, 1, 1), rung.config, H200).grid == rung.config.cluster_m


@pytest.mark.parametrize("number", ["v06", "v08"])
@pytest.mark.parametrize("num_sms", [1, 2, 3, 7, 131, 132])
def test_a_persistent_grid_needs_no_more_waves_than_the_largest_and_has_no_cluster_to_spare(
    number: str, num_sms: int
) -> None:
    rung = BY_NUMBER[number]
    cluster = rung.config.cluster_m
    for size in (1, 300, 1000, 4096, 8192):
        problem = packed(size, size, 64)
        rows, columns = rung.config.tiles(problem)
        places, largest = rows * columns // cluster, max(num_sms // cluster, 1)
        launch = rung.launch(problem, rung.config, H200, num_sms=num_sms)
        clusters = launch.grid // cluster
        assert launch.grid % cluster == 0
        assert clusters <= largest
        waves = -(-places // largest)
        assert -(-places // clusters) == waves
        assert clusters == 1 or -(-places // (clusters - 1)) > waves


def test_the_main_loop_moves_no_descriptor_into_a_uniform_register_from_v07_on() -> None:
    """Two consumers: ptxas sees one number a warp only where it comes from one lane. An R2UR costs some ten cycles."""
    for rung in RUNGS[4:]:
        code = disassemble.sass(compiled(rung).cubin)
        assert ("R2UR" not in code[code.index("HGMMA") : code.rindex("HGMMA")]) == (rung.number >= "v07"), rung.name


def test_a_debug_build_traps_instead_of_waiting_for_ever() -> None:
    for rung in RUNGS[1:]:
        assert "trap;" not in compiled(rung).ptx
        debug = build(render(rung, EVEN, rung.config, H200, wait_limit=1000))
        assert "trap;" in debug.ptx
        assert flaws(debug) == ()


# -- in the emulator ---------------------------------------------------------------------------------------------------

RAGGED, DEEP = packed(260, 264, 136), packed(129, 257, 456)


def run(rung: Rung, problem: Problem, *, num_sms: int = 4, **choices: object) -> str:
    """ "ok", or what is wrong."""
    backend = emulated(**choices)
    plan = RungPlan(rung, problem, H200, backend=lambda: backend, num_sms=num_sms)
    row = emulate(plan, backend)
    return str(row["status"] if row["status"] != "finding" else row["why"])


@every_rung
@pytest.mark.parametrize("schedule", ["lazy", "eager", "random"])
def test_every_rung_is_exact_in_the_emulator(rung: Rung, schedule: str) -> None:
    """Several tiles a CTA, edges of tiles, k that no slot divides; each element is written, no race is found."""
    # v01 takes 64 fmaf a thread and value of k: seconds where the others take tenths.
    problem = packed(130, 136, 24) if rung.number == "v01" else RAGGED
    checks = schedule != "eager"
    assert run(rung, problem, schedule=schedule, seed=1, checks=checks) == "ok"


@pytest.mark.parametrize("rung", RUNGS[1:], ids=lambda rung: rung.name)
def test_an_odd_out_and_a_k_longer_than_every_fifo_are_exact(rung: Rung) -> None:
    assert run(rung, DEEP, schedule="random", seed=2) == "ok"


@pytest.mark.parametrize("rung", RUNGS[1:], ids=lambda rung: rung.name)
def test_one_element_is_enough(rung: Rung) -> None:
    assert run(rung, packed(1, 1, 1)) == "ok"


@pytest.mark.parametrize(
    ("number", "change"),
    [
        *(("v03", {"panel_bytes": panel, "box_rows": box}) for panel in (16, 32, 64, 128) for box in (64, 128)),
        *(("v04", {"stages": stages}) for stages in range(2, 7)),
        ("v05", {"producer_registers": 56}), ("v05", {"tile_m": 256, "tile_n": 128}), ("v06", {"group_m": 1}),
        ("v06", {"group_m": 1000}), ("v08", {"cluster_m": 1}), ("v09", {"tile_n": 192}), ("v10", {"store_slots": 1}),
        ("v11", {"cluster_m": 1, "tile_n": 176}),
    ],
)  # fmt: skip
def test_what_a_sweep_varies_stays_clean_and_exact(number: str, change: dict[str, int]) -> None:
    rung, backend = BY_NUMBER[number], emulated()
    config = rung.config.replace(**change)
    plan = RungPlan(rung, RAGGED, H200, backend=lambda: backend, config=config, num_sms=4)
    assert flaws(plan.binary) == ()
    assert emulate(plan, backend)["status"] == "ok"


def test_no_rung_meets_a_bank_conflict_of_its_own_accesses() -> None:
    backend = emulated(banks=True)
    for rung in RUNGS:
        problem = packed(128, 128, 16) if rung.number == "v01" else packed(256, 512, 64)
        row = emulate(RungPlan(rung, problem, H200, backend=lambda: backend, num_sms=4), backend)
        assert row["conflicts"] == 0, rung.name


# -- the curve ---------------------------------------------------------------------------------------------------------

WALK = """\
#define __device__
#define __forceinline__ inline
#define __cvta_generic_to_shared(pointer) reinterpret_cast<unsigned long long>(pointer)
extern "C" int printf(const char*, ...);
inline int abs(int value) { return value < 0 ? -value : value; }
#include "hilbert.cuh"
int main() {
    for (int rows = 1; rows <= 13; ++rows) {
        for (int columns = 1; columns <= 17; ++columns) {
            for (int index = 0; index < rows * columns; ++index) {
                const Cell cell = hilbert_cell(index, rows, columns);
                printf("%d %d %d %d\\n", rows, columns, cell.row, cell.column);
            }
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="the device code of the curve is compiled by a host compiler")
def test_the_curve_visits_every_cell_of_every_rectangle_once_by_steps_to_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "walk.cpp").write_text(WALK)
    for path in ("hilbert.cuh", "base.cuh"):
        (tmp_path / path).write_text(device_code()[path])
    subprocess.run(["c++", "-std=c++17", "-w", "walk.cpp", "-o", "walk"], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "walk"], capture_output=True, text=True, check=True).stdout.splitlines()
    walks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for line in lines:
        rows, columns, row, column = map(int, line.split())
        walks.setdefault((rows, columns), []).append((row, column))
    assert len(walks) == 13 * 17
    for (rows, columns), walk in walks.items():
        assert sorted(walk) == [(row, column) for row in range(rows) for column in range(columns)]
        for (row, column), (next_row, next_column) in itertools.pairwise(walk):
            assert max(abs(next_row - row), abs(next_column - column)) == 1
