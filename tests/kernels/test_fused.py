"""kernels/fused.py: kernels with an epilogue near the limit of registers, their second map, and what arrays move."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright import device, plan
from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import MapArgument, PointerArgument, StructArgument
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
    RowAmax,
    Scale,
    Silu,
    Step,
)
from tilewright.fusing import moved_bytes
from tilewright.jit.build import build
from tilewright.kernels.catalog import family_of
from tilewright.kernels.fused import header
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.render import render
from tilewright.packing import packed, packed_form
from tilewright.problem import Problem

H200, A100 = device.preset("h200"), device.preset("a100")
SQUARE = packed(4096, 4096, 4096)
WIDEST = Config(tile_m=256, tile_n=200, stages=3, store_slots=1, staggered=True)


def after(problem: Problem, epilogue: Step | Epilogue) -> Problem:
    return replace(problem, epilogue=packed_form(epilogue, problem.m, problem.n, problem.batch))


# Of each form that has few registers to spare what it may hold at most.
NEAR_THE_LIMIT: dict[str, tuple[Problem, Config]] = {
    "256x200, an activation": (after(SQUARE, Gelu()), WIDEST),
    "256x192, bias and residual": (
        after(SQUARE, Bias("bf16") | Add("bf16")),
        WIDEST.replace(tile_n=192, store_slots=3, tail_n=120),
    ),
    "256x192, gated": (after(SQUARE, Bias("bf16") | Gated("gelu")), WIDEST.replace(tile_n=192)),
    "ping-pong by lanes": (
        after(packed(4094, 4094, 4096, batch=(3,)), Beta(1.0, "bf16") | Silu()),
        Config(tile_m=128, tile_n=160, stages=4, pingpong=True, store_slots=1),
    ),
    "one consumer, all steps": (
        after(
            packed(4096, 4096, 4096, out_dtype="fp32"),
            Alpha(1.0) | Scale("fp32", per="row") | Bias("fp32") | Gelu("tanh") | Aux("bf16") | RowAmax("fp32"),
        ),
        Config(tile_m=64, tile_n=256, consumers=1, stages=4),
    ),
    "Ampere, gated": (
        after(packed(4096, 4096, 4096, b_major="n", out_major="m"), Bias("bf16") | Gated("gelu", "interleaved")),
        AmpereConfig(tile_m=256, tile_n=128, stages=6, warps_m=4, ahead=3, split_barrier=True),
    ),
    "Ampere": (after(SQUARE, Bias("bf16") | Gelu() | Add("bf16")), AmpereConfig(tile_m=128, tile_n=128)),
}


@pytest.mark.parametrize("name", NEAR_THE_LIMIT)
def test_no_kernel_near_the_limit_of_registers_spills_or_serialises(name: str) -> None:
    problem, config = NEAR_THE_LIMIT[name]
    own = A100 if isinstance(config, AmpereConfig) else H200
    assert config.violations(problem, own) == ()
    binary = build(render(family_of(config), problem, config, own))
    assert (binary.resources.spill_store_bytes, binary.warnings) == (0, ())


def test_what_an_epilogue_holds_counts_as_registers() -> None:
    for epilogue in (Alpha(1.0), Bias("bf16"), Gelu()):
        assert not WIDEST.violations(after(SQUARE, epilogue), H200)
    for epilogue in (Beta(1.0, "fp32"), Gelu() | Add("bf16"), Add("fp16") | Add("fp16")):
        (found,) = WIDEST.violations(after(SQUARE, epilogue), H200)
        assert "registers of state exceed" in found
    # 29 blocks of 8 columns: one CTA adds all of them up
    split = Config(tile_m=64, tile_n=232, consumers=1, stages=2, store_slots=1, split_k=2)
    assert not split.violations(SQUARE, H200)
    assert split.violations(after(SQUARE, Alpha(1.0)), H200)


def test_the_l2_is_asked_for_matrices_that_are_read_along_their_rows() -> None:
    square = packed(64, 64, 64)
    form = packed_form(Bias("bf16") | Beta(1.0, "fp32") | Add("fp16") | Aux("bf16"), 64, 64)
    fetched = re.findall(r"(if .*?)?fetch_row<Type::(\w+)>\(fused\.(array\d)", header(form))
    assert fetched == [("if (fused.number1.value != 0.0f) ", "fp32", "array1"), ("", "fp16", "array2")]
    before_a_gate = packed_form(Add("bf16") | Gated(), 64, 64)
    for other in (form.transposed, before_a_gate, after(square, Gelu() | Aux("bf16")).epilogue):
        assert other is not None
        assert "FETCHES = false" in header(other)
        assert "fetch_row" not in header(other)


@pytest.mark.parametrize("split", ["halves", "interleaved"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 28672, 4096), (64, 512, 1024), (72, 40, 0), (1000, 4096, 64)])
def test_a_gated_product_of_any_rows_gets_a_config_that_nobody_names(split: str, m: int, n: int, k: int) -> None:
    """Narrow tiles that a search looks at, 8 or 24 columns for one, have no half of whole blocks: passed over."""
    found = plan(packed(m, n, k), device="h200", epilogue=Gated("silu", split))  # type: ignore[arg-type]
    assert found.config.tile_n % 16 == 0
    assert not {each for each in HOPPER.trials(found.problem, H200) if each.tile_n % 16}


@pytest.mark.parametrize(("split", "offset", "pitch"), [("halves", 2048 * 4096, 4096), ("interleaved", 4096, 8192)])
def test_the_columns_that_are_gated_have_a_map_of_their_own(split: str, offset: int, pitch: int) -> None:
    problem = after(SQUARE, Gated("silu", split))  # type: ignore[arg-type]
    config = Config(tile_m=128, tile_n=192, stages=4)
    launch = HOPPER.launch(problem, config, H200)
    gates, gated = [x for x in HOPPER.arguments(problem, config, launch) if isinstance(x, MapArgument)][1:3]
    assert (gates.operand, gated.operand, gates.offset_bytes, gated.offset_bytes) == ("b", "b", 0, 2 * offset)
    assert gates.tensor_map == gated.tensor_map
    assert gates.tensor_map.extents == (4096, 2048)
    assert gates.tensor_map.pitches_bytes == (2 * pitch,)
    assert gates.tensor_map.box == (64, 96)


def test_what_tma_cannot_part_or_store_of_a_gated_product_the_ampere_family_computes() -> None:
    """A column-major out, every second column of an n-contiguous b, halves of one off 16 bytes; none is transposed."""
    for split, n, majors, reason in (
        ("halves", 64, {"out_major": "m"}, "rows are contiguous"),
        ("interleaved", 64, {"b_major": "n"}, "no rows that TMA reads"),
        ("halves", 72, {"b_major": "n"}, "begins 36 elements on"),
    ):
        problem = after(packed(64, n, 128, **majors), Gated("silu", split))  # type: ignore[arg-type]
        found = plan(problem, device=H200)
        assert isinstance(found.config, AmpereConfig)
        assert found.config.computed(problem) is problem
        assert any(reason in each for each in Config().violations(problem, H200))
    odd = after(packed(64, 66, 128, b_major="n"), Gated("silu", "halves"))
    (reason,) = AmpereConfig(tile_m=64).violations(odd, A100)
    assert "33 elements on, which is no multiple of 4 bytes" in reason
    (reason,) = AmpereConfig(warps_n=4).violations(after(packed(64, 64, 64, out_dtype="fp32"), Gated()), A100)
    assert "warp_n = 32 of a gated epilogue with an fp32 out is not a multiple of 64" in reason


def test_the_parameter_says_how_far_each_array_reaches_and_what_is_moved() -> None:
    problem = after(packed(64, 48, 64, batch=(2, 3)), Bias("bf16") | Beta(1.0, "fp32") | RowAmax("fp32"))
    config = Config(tile_m=64, tile_n=48, consumers=1, stages=2)
    *_, fused, _ = HOPPER.arguments(problem, config, HOPPER.launch(problem, config, H200))
    assert isinstance(fused, StructArgument)
    reach = {x.operand: (x.num_bytes, x.granule_bytes) for x in fused.parts if isinstance(x, PointerArgument)}
    assert reach == {"epilogue0": (96, 4), "epilogue1": (6 * 64 * 48 * 4, 8), "epilogue2": (6 * 64 * 4, 4)}
    assert len(fused.parts) == 3 * (2 + 3) + 1  # an address, a pitch and three strides each, and one number
    assert moved_bytes(problem) == (96 + 6 * 64 * 48 * 4, 6 * 64 * 4)
