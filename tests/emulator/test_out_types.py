"""An out of the other 16-bit type, in the emulator: bf16 into fp16, fp16 into bf16, fp32 as tf32 into either.

Whole numbers, whose fp32 sums are exact, must be rounded once, to nearest even, past 65504 to the infinity of fp16;
with an epilogue normal numbers are held against the derived bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import Emulator, dtypes
from tilewright.ampere_config import AmpereConfig
from tilewright.check import check, check_exact
from tilewright.config import Config
from tilewright.epilogue import Bias, Epilogue, Gated, Gelu

BF16, FP16, FP32 = ml_dtypes.bfloat16, np.float16, np.float32
CROSSINGS = {"hopper": ((BF16, FP16), (FP16, BF16)), "ampere": ((BF16, FP16), (FP16, BF16), (FP32, BF16), (FP32, FP16))}
LAYOUTS = (("k", "k"), ("k", "n"), ("m", "k"), ("m", "n"))
HOPPER = Config(tile_m=64, tile_n=64, consumers=1, stages=2)
AMPERE = AmpereConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=2, stages=3)
PATTERN = 3  # of the padding behind rows of out, which must survive
# Of a row of a by a column of b, from either end of k: 256 x 255 + rest. 65520 is half way from the largest number of
# fp16 to the next that there would be, to which the tie goes, as its bits are even.
RESTS = {65504: 224, 65519: 239, 65520: 240, 65536: 256}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A product of (72, k) and (k, n): an n of 72 leaves in whole chunks of 16 bytes, one of 71 by lanes."""

    config: Config = HOPPER
    kinds: tuple[Any, Any] = (BF16, FP16)
    a_major: str = "k"
    b_major: str = "k"
    n: int = 72
    k: int = 136
    epilogue: Any = None
    out_is_transposed: bool = False

    def __str__(self) -> str:
        return f"{self.config.family} {self.kinds[0].__name__} {self.a_major}{self.b_major} {self.n}"


def laid_out(array: Any, is_major_last: bool) -> Any:
    return array if is_major_last else np.ascontiguousarray(array.T).T


def operands(case: Case) -> tuple[Any, Any]:
    """Normal numbers for an epilogue, else whole ones; rows 0 and 1 of a meet columns of b in sums about 65520."""
    generator = np.random.default_rng(5)
    kind, shapes = case.kinds[0], ((72, case.k), (case.k, case.n))
    if case.epilogue is not None:
        a, b = (generator.standard_normal(shape) for shape in shapes)
    else:
        a, b = (generator.integers(-3, 4, shape) for shape in shapes)
    a[:2], b[0], b[-1] = 0, 0, 0
    a[0, 0], a[1, 0], a[0, -1], a[1, -1] = 256, -256, 1, -1
    b[0, : len(RESTS)], b[-1, : len(RESTS)] = 255, tuple(RESTS.values())
    a, b = a.astype(FP32).astype(kind), b.astype(FP32).astype(kind)
    return laid_out(a, case.a_major == "k"), laid_out(b, case.b_major == "n")


def verify(case: Case) -> None:
    a, b = operands(case)
    epilogue = None if case.epilogue is None else case.epilogue()
    columns = case.n // 2 if epilogue is not None and any(step.kind == "gated" for step in epilogue.steps) else case.n
    rows, extent = (columns, 72) if case.out_is_transposed else (72, columns)
    held = np.full((rows, extent + 16 - extent % 8), PATTERN, case.kinds[1])
    out = held[:, :extent].T if case.out_is_transposed else held[:, :extent]
    out[...] = np.nan
    inputs = dtypes.TF32 if case.kinds[0] is FP32 else None
    emulator = Emulator("a100" if case.config.family == "ampere" else "h200", limit_s=None)
    emulator.matmul(a, b, out, config=case.config, num_sms=4, inputs=inputs, epilogue=epilogue)
    assert emulator.findings == ()
    if epilogue is None:
        found = check_exact(a, b, out)
        if case.kinds[1] is FP16:
            assert out[0, : len(RESTS)].tolist() == [65504, 65504, np.inf, np.inf]
            assert (out[1, : len(RESTS)] == -out[0, : len(RESTS)]).all()
    else:
        found = check(a, b, out, dtypes.by_name(out.dtype), inputs=inputs, epilogue=epilogue)
    assert found.ok, found
    assert (held[:, extent:] == PATTERN).all()


def bias_and_gelu(n: int) -> Epilogue:
    return Bias(np.linspace(-2, 2, n, dtype=FP32)) | Gelu()


def in_layouts(config: Config) -> list[Case]:
    """Every crossing in every layout; ways out and epilogues take turns: each crossing meets all four pairs of them."""
    found = []
    for turn, kinds in enumerate(CROSSINGS[config.family]):
        for place, (a_major, b_major) in enumerate(LAYOUTS):
            own = config.replace(tile_k=16) if kinds[0] is FP32 else config
            n = 72 - (turn + place) % 2
            epilogue = (lambda n=n: bias_and_gelu(n)) if (turn + place // 2) % 2 else None
            found.append(Case(config=own, kinds=kinds, a_major=a_major, b_major=b_major, n=n, epilogue=epilogue))
    return found


@pytest.mark.parametrize("case", [*in_layouts(HOPPER), *in_layouts(AMPERE)], ids=str)
def test_every_crossing_is_rounded_once_in_every_layout(case: Case) -> None:
    verify(case)


FORMS = {
    "a k split over a cluster": Case(config=HOPPER.replace(split_k=2)),
    "slices": Case(config=HOPPER.replace(slices=2, dependent_sums=True), k=144, n=71),
    "slices of bf16 out": Case(config=HOPPER.replace(slices=2), kinds=(FP16, BF16), k=144),
    "slices, then bias and gelu": Case(
        config=HOPPER.replace(slices=2), kinds=(BF16, FP16), k=144, epilogue=lambda: bias_and_gelu(72)
    ),
    "rounded values that are kept": Case(
        config=Config(tile_m=128, tile_n=40, consumers=1, stages=2, staggered=True, store_slots=1)
    ),
    "computed as its transpose": Case(config=HOPPER.replace(swap=True, tile_n=24), kinds=(FP16, BF16), n=71),
    "Ampere, slices of tf32": Case(
        config=AMPERE.replace(tile_k=16, slices=2), kinds=(FP32, BF16), k=144, epilogue=lambda: bias_and_gelu(72)
    ),
    "Ampere, gated columns of a column-major out": Case(
        config=AMPERE,
        kinds=(FP16, BF16),
        epilogue=lambda: Bias(np.linspace(-2, 2, 72, dtype=FP32)) | Gated("gelu"),
        out_is_transposed=True,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_rounds_to_the_type_of_out(name: str) -> None:
    verify(FORMS[name])


def test_matmul_of_numpy_arrays_takes_the_type_of_a_fresh_out_by_name_or_as_numpys() -> None:
    a, b = operands(Case(n=71))
    for out_dtype in ("fp16", FP16):
        out = Emulator().matmul(a, b, config=HOPPER, out_dtype=out_dtype)
        assert out.dtype == FP16
        assert check_exact(a, b, out).ok
