"""The Ampere ladder in the emulator: every rung exact and free of races, within float64's bound, its banks counted."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

from tilewright import device
from tilewright.backends.emulated import EmulatedBackend, Report, emulated
from tilewright.backends.steps import run_once
from tilewright.bench.emulated import Ran, run_plan
from tilewright.bench.ladder import RungPlan
from tilewright.bench.ladder_emulated import emulate
from tilewright.check import check_exact
from tilewright.errors import EmulationError
from tilewright.host_operands import host_operands
from tilewright.jit.build import build, flaws
from tilewright.jit.source import Binary
from tilewright.kernels import product
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS, AmpereRung
from tilewright.kernels.render import render
from tilewright.packing import packed
from tilewright.problem import Problem

A100 = device.preset("a100")
LARGE = packed(4096, 4096, 4096)
BY_NUMBER = {rung.number: rung for rung in AMPERE_RUNGS}
every_rung = pytest.mark.parametrize("rung", AMPERE_RUNGS, ids=lambda rung: rung.name)

DEEP = packed(65, 33, 456)


def ragged(rung: AmpereRung) -> Problem:
    """Two rows and two columns of the rung's tiles, the second of each two elements high or wide; a k that no slot
    divides."""
    return packed(rung.config.tile_m + 2, rung.config.tile_n + 2, 72)


def ran(rung: AmpereRung, problem: Problem, card: str = "a100", **choices: Any) -> dict[str, Any]:
    changes = choices.pop("changes", {})
    backend = emulated(card, **choices)
    config = rung.choice(problem, backend.model).replace(**changes)
    return emulate(RungPlan(rung, problem, backend.model, backend=lambda: backend, config=config), backend)


def verdict(*arguments: Any, **choices: Any) -> str:
    """ "ok", or what is wrong."""
    row = ran(*arguments, **choices)
    return str(row["status"] if row["status"] != "finding" else row["why"])


@every_rung
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_every_rung_is_exact_and_free_of_races(rung: AmpereRung, schedule: str) -> None:
    """Edges of tiles, k that no slot divides; each element is written."""
    assert verdict(rung, ragged(rung), schedule=schedule, seed=1, checks=True) == "ok"


@every_rung
def test_an_odd_out_and_a_k_longer_than_every_ring_are_exact_on_the_h200_too(rung: AmpereRung) -> None:
    problem = packed(65, 33, 136) if rung.number == "a0" else DEEP  # WMMA takes the emulator longest
    assert verdict(rung, problem, "h200", schedule="random", seed=2, checks=True) == "ok"


@every_rung
def test_one_element_is_enough(rung: AmpereRung) -> None:
    assert verdict(rung, packed(1, 1, 1), "h200", checks=True) == "ok"


@every_rung
def test_numbers_of_fp16_are_within_the_bound_of_float64(rung: AmpereRung) -> None:
    problem, backend = packed(70, 90, 200, dtype="fp16"), emulated("a100")
    found = run_plan(RungPlan(rung, problem, A100, backend=lambda: backend), backend, kind="normal", seed=3)
    assert found.check.ok, found.check


SMALL = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        ("a0", SMALL | {"tile_k": 64}),
        ("a1", {"matrices": 1}), ("a1", {"matrices": 2}), ("a1", SMALL | {"tile_k": 16}),
        ("a4", {"tile_k": 64, "warps_m": 1, "warps_n": 8}),  # a2 to a4 else: one_tile()
        *(("a5", SMALL | {"stages": stages}) for stages in (1, 2, 3, 5)),
        ("a6", SMALL | {"stages": 2}), ("a6", {"tile_k": 64, "stages": 3}),
        ("a7", SMALL | {"warps_n": 4, "min_ctas": 3}),
        ("a7", {"tile_m": 256, "tile_n": 128, "warps_m": 4, "warps_n": 2}),
        ("a8", SMALL | {"slices": 3}), ("a8", SMALL | {"slices": 9}), ("a9", SMALL | {"group_m": 1}),
        ("a9", SMALL | {"group_m": 2}), ("a9", SMALL | {"group_m": 1000, "slices": 3}),
    ],
)  # fmt: skip
def test_what_a_sweep_varies_stays_clean_and_exact(number: str, changes: dict[str, int]) -> None:
    rung, backend = BY_NUMBER[number], emulated("a100", checks=True, schedule="random", seed=4)
    config = rung.config.replace(**changes)
    problem = packed(70, config.tile_n + 4, 72)
    plan = RungPlan(rung, problem, A100, backend=lambda: backend, config=config)
    assert flaws(plan.binary) == ()
    assert emulate(plan, backend)["status"] == "ok"


def test_f16_sums_of_fp16_are_exact_where_whole_numbers_stay_below_2048_and_lose_bits_above() -> None:
    """11 bits of a sum are kept: whole numbers of -3 .. 3 stay below 2,048 in 72 of k."""
    rung, changes = BY_NUMBER["a6"], {"f16_sums": True}
    problem = dataclasses.replace(ragged(rung), dtype="fp16", out_dtype="fp16")  # type: ignore[arg-type]
    assert verdict(rung, problem, checks=True, changes=changes) == "ok"
    errors = []
    for sums in (False, True):
        backend, long = emulated("a100"), packed(32, 32, 2048, dtype="fp16")
        config = rung.config.replace(f16_sums=sums)
        plan = RungPlan(rung, long, A100, backend=lambda backend=backend: backend, config=config)
        errors.append(run_plan(plan, backend, kind="normal").check.worst)
    assert errors[1] > 2 * errors[0]


def run_as_it_is(rung: AmpereRung, problem: Problem, backend: EmulatedBackend) -> Ran:
    """The rung on operands that no copy brings into rows of whole 16 bytes, as a plan would."""
    a, b, out = host_operands(problem, 0, "integer")
    reports: list[Report] = []
    work = product.work(
        rung,
        problem,
        rung.config,
        backend.model,
        binaries=(lambda: build(render(rung, problem, rung.config, backend.model)),),
    )
    addresses = {"a": a.view.ctypes.data, "b": b.view.ctypes.data, "out": out.view.ctypes.data}
    run_once(backend, work, addresses, launched=lambda: reports.append(backend.report))  # type: ignore[arg-type]
    return Ran(check_exact(a.view, b.view, out.view), reports[0])


@pytest.mark.parametrize("number", ["a0", "a1"])
def test_element_loads_take_rows_of_any_length(number: str) -> None:
    problem = packed(66, 35, 77, padded=False)
    assert problem.a_pitch == 77
    assert run_as_it_is(BY_NUMBER[number], problem, emulated("a100", checks=True)).check.ok


# -- banks -------------------------------------------------------------------------------------------------------------


@cache
def one_tile(number: str, **changes: int) -> Report:
    """A rung's report of one tile, banks counted, exact and without findings."""
    rung, backend = BY_NUMBER[number], emulated("a100", banks=True, checks=True)
    problem = packed(128, 128, 64)
    plan = RungPlan(rung, problem, A100, backend=lambda: backend, config=rung.config.replace(**changes))
    found = run_plan(plan, backend)
    assert found.check.ok
    assert flaws(plan.binary) == ()
    return found.report


def wavefronts(number: str, opcode: str, **changes: int) -> float:
    """Turns of shared memory over the fewest, of one kind of instruction; cp.async's writes are not counted."""
    report = one_tile(number, **changes)
    assert report.banks
    counts = [count for site, count in report.banks.items() if site.opcode.startswith(opcode)]
    assert counts
    return sum(count[0] for count in counts) / sum(count[1] for count in counts)


def test_rows_of_64_bytes_below_each_other_take_ldmatrix_4_turns_and_of_128_bytes_8() -> None:
    assert wavefronts("a2", "ldmatrix") == 4
    assert wavefronts("a2", "ldmatrix", tile_k=64) == 8
    assert wavefronts("a3", "ldmatrix", padding=0) == 4


def test_padding_by_8_frees_ldmatrix_but_meets_a_bank_twice_in_stores_of_short_rows() -> None:
    """Two rows of 64 bytes of a quarter of a warp span 9 chunks of 16, and the 1st and the 9th share their banks; a row
    of 128 bytes has 8."""
    assert wavefronts("a3", "ldmatrix") == 1
    assert wavefronts("a3", "st.shared") == 2
    assert wavefronts("a3", "ldmatrix", tile_k=64) == 1
    assert wavefronts("a3", "st.shared", tile_k=64) == 1


@pytest.mark.parametrize("padding", [8, 16, 24, 32, 40])
def test_an_odd_number_of_chunks_a_row_is_what_frees_ldmatrix(padding: int) -> None:
    chunks = (32 + padding) * 2 // 16
    turns = {1: 1, 2: 2, 4: 4, 8: 8}[chunks & -chunks if chunks & -chunks < 8 else 8]
    assert wavefronts("a3", "ldmatrix", padding=padding) == turns


@pytest.mark.parametrize("tile_k", [16, 32, 64])
def test_the_swizzle_meets_no_bank_twice_at_any_width_and_takes_no_byte_more(tile_k: int) -> None:
    assert wavefronts("a4", "ldmatrix", tile_k=tile_k) == 1
    assert wavefronts("a4", "st.shared", tile_k=tile_k) == 1
    assert BY_NUMBER["a4"].config.replace(tile_k=tile_k).smem_bytes(LARGE) == 256 * tile_k * 2


@pytest.mark.parametrize("number", ["a4", "a5", "a6", "a7", "a8", "a9"])
def test_no_rung_from_the_swizzle_on_meets_a_bank_conflict(number: str) -> None:
    assert ran(BY_NUMBER[number], packed(128, 256, 64), banks=True)["conflicts"] == 0


@pytest.mark.parametrize("padding", [2, 4])
def test_the_seed_s_padding_misaligns_what_runs_all_the_same(padding: int) -> None:
    """Forced past the config's refusal, the first store of a second row is found to be misaligned."""

    class Forced(RungPlan):
        @property
        def binary(self) -> Binary:
            source = render(self.family, self.problem, self.config, self.device)
            headers = dict(source.headers)
            forced = headers["config.cuh"].replace("PADDING = 8", f"PADDING = {padding}")
            row_bytes = (32 + padding) * 2
            forced = forced.replace("SMEM_BYTES = 20480", f"SMEM_BYTES = {256 * row_bytes}")
            return build(dataclasses.replace(source, headers=tuple({**headers, "config.cuh": forced}.items())))

    backend = emulated("a100")
    plan = Forced(BY_NUMBER["a3"], packed(128, 128, 32), A100, backend=lambda: backend)
    with pytest.raises(EmulationError, match="is not a multiple of the access's 16 bytes"):
        run_plan(plan, backend)
