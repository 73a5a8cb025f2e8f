"""kernels/render.py: a Source is complete, minimal, and named after what it computes."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from tilewright import device
from tilewright.config import Config
from tilewright.epilogue import (
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    Scale,
    Silu,
    Step,
)
from tilewright.kernels.fused import header
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import device_code, render, wgmma_header
from tilewright.packing import packed, packed_form

H200 = device.preset("h200")
PROBLEM = packed(512, 512, 512)
ROOT = Path(__file__).parents[2]


def test_a_unit_carries_every_header_that_it_includes_and_no_other() -> None:
    source = render(HOPPER, PROBLEM, Config(), H200)
    assert source.missing_includes() == ()
    assert {path for path, _ in source.headers} == {
        "base.cuh", "batch.cuh", "cluster.cuh", "config.cuh", "consumer.cuh", "epilogue.cuh", "fused.cuh",
        "pipeline.cuh", "place.cuh", "producer.cuh",
        "ptx/async.cuh", "ptx/barrier.cuh", "ptx/copy.cuh", "ptx/global.cuh", "ptx/misc.cuh", "ptx/wgmma.cuh",
        "ring.cuh", "rounding.cuh", "row_store.cuh", "schedule.cuh", "split.cuh", "swizzle.cuh", "transposed.cuh",
        "wgmma_mma_async.cuh",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"tile_m": 256, "tile_n": 192, "stages": 3}, {"tile_n": 192}, {"stages": 3}, {"consumers": 1, "tile_m": 64},
        {"cluster_m": 2}, {"cluster_n": 2}, {"store_slots": 1},
        {"pingpong": True}, {"tail_n": 64}, {"staggered": True, "tile_m": 256, "tile_n": 128},
        {"k_back_and_forth": True},
    ],
)  # fmt: skip
def test_every_compile_time_field_changes_the_digest(change: dict[str, object]) -> None:
    """B097."""
    base = render(HOPPER, PROBLEM, Config(), H200).digest("nvrtc")
    assert render(HOPPER, PROBLEM, dataclasses.replace(Config(), **change), H200).digest("nvrtc") != base


@pytest.mark.parametrize(
    "problem",
    [
        packed(512, 512, 512, dtype="fp16"),
        packed(512, 512, 512, out_dtype="fp32"),
        packed(512, 512, 512, b_major="n"),
        packed(512, 511, 512),
    ],
    ids=str,
)
def test_every_compile_time_property_of_the_problem_changes_the_digest(problem: object) -> None:
    base = render(HOPPER, PROBLEM, Config(), H200).digest("nvrtc")
    assert render(HOPPER, problem, Config(), H200).digest("nvrtc") != base  # type: ignore[arg-type]


def test_the_steps_of_an_epilogue_and_how_its_arrays_lie_are_rendered_and_its_numbers_are_not() -> None:
    def digest(epilogue: Step | Epilogue, n: int = 512) -> str:
        problem = dataclasses.replace(packed(512, n, 512), epilogue=packed_form(epilogue, 512, n))
        return render(HOPPER, problem, Config(), H200).digest("nvrtc")

    same = {digest(Alpha(0.5) | Beta(0.0, "bf16")), digest(Alpha(2.0) | Beta(1.0, "bf16"), n=1024)}
    assert len(same) == 1
    others = {digest(each) for each in (Alpha(1.0), Bias("bf16"), Bias("fp32"), Bias("bf16", per="row"), Gelu())}
    assert len(others | same | {render(HOPPER, PROBLEM, Config(), H200).digest("nvrtc")}) == 7


def test_a_rendered_epilogue_is_narrow_enough_for_a_screen() -> None:
    everything = Alpha(1.0) | Beta(1.0, "fp16") | Bias("fp32", per="row") | Scale("bf16") | Aux("bf16") | Gated("gelu")
    form = packed_form(everything | Add("bf16") | RowAmax("fp32") | Silu() | Relu() | Gelu("tanh"), 64, 64)
    assert max(len(line) for line in header(form).split("\n")) <= COLUMNS


def test_sizes_are_run_time_values_so_one_kernel_serves_them_all() -> None:
    one, other = (render(HOPPER, packed(m, m, m), Config(), H200) for m in (512, 1024))
    assert one.digest("nvrtc") == other.digest("nvrtc")


def test_the_order_of_tiles_is_a_run_time_value() -> None:
    orders = (Config(group_m=1), Config(group_m=16), Config(square=4), Config(schedule="linear"))
    digests = {render(HOPPER, PROBLEM, config, H200).digest("nvrtc") for config in orders}
    assert len(digests) == 1


def test_the_checked_in_headers_are_the_rendered_defaults() -> None:
    spec = importlib.util.spec_from_file_location("render_defaults", ROOT / "tools" / "render_defaults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, text in module.defaults().items():
        assert device_code()[path] == text, f"run tools/render_defaults.py: {path} is stale"


COLUMNS = 120


@pytest.mark.parametrize("path", sorted(device_code()))
def test_no_line_of_device_code_is_wider_than_a_screen(path: str) -> None:
    lines = device_code()[path].split("\n")
    assert [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS] == []


def test_no_line_of_a_rendered_wrapper_is_wider_than_a_screen() -> None:
    text = wgmma_header(256, PROBLEM.dtype, a_k_major=False, b_k_major=False, tail_n=128)
    assert max(len(line) for line in text.split("\n")) <= COLUMNS


@pytest.mark.parametrize(("a_k_major", "b_k_major"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_wgmma_wrapper_transposes_what_has_m_or_n_contiguous(a_k_major: bool, b_k_major: bool) -> None:
    text = wgmma_header(64, PROBLEM.dtype, a_k_major=a_k_major, b_k_major=b_k_major)
    assert f"scale_d, 1, 1, {int(not a_k_major)}, {int(not b_k_major)};" in text


def test_the_wgmma_wrapper_names_each_accumulator_once() -> None:
    text = wgmma_header(192, PROBLEM.dtype, a_k_major=True, b_k_major=False)
    wrappers = text.split("DEVICE void keep_below", 1)[0]
    assert [wrappers.count(f'"+f"(rC[{i}])') for i in range(96)] == [1] * 96  # adds
    assert [wrappers.count(f'"=f"(rC[{i}])') for i in range(96)] == [1] * 96  # adds to nothing, and reads nothing
    assert wrappers.count("m64n192k16.f32.bf16.bf16") == 2
    assert wrappers.count("}, %96, %97, scale_d, 1, 1, 0, 1;") == 2


def test_a_narrow_wgmma_takes_the_first_accumulators_of_the_wide_one() -> None:
    text = wgmma_header(192, PROBLEM.dtype, a_k_major=True, b_k_major=True, tail_n=120)
    narrow = text.split("void wgmma_mma_async<120>", 1)[1].split("}  // namespace", 1)[0]
    assert "float (&rC)[96]" in narrow
    assert [narrow.count(f'"+f"(rC[{i}])') for i in range(96)] == [1] * 60 + [0] * 36
