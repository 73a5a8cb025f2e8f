"""model.py: the choice follows counts that can be checked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import device, model
from tilewright.config import Config
from tilewright.errors import UnsupportedError
from tilewright.kernels.hopper import HOPPER
from tilewright.problem import packed

H200 = device.preset("h200")


def test_the_docstring_s_worked_example_holds() -> None:
    problem = packed(8192, 8192, 8192)
    prediction = model.predict(HOPPER, problem, Config(), H200)
    terms = dict(prediction.terms)
    assert prediction.grid == 132
    assert prediction.waves == pytest.approx(64 * 32 / 132)
    assert terms["tensor cores"] == pytest.approx(16 * 128 * 1024 / 1.585e3, rel=1e-3)


def test_no_prediction_beats_the_roofline() -> None:
    for size in (64, 512, 4096, 16384):
        choice = model.best(packed(size, size, size), H200)
        assert 0 < choice.prediction.roofline_share < 1


def test_a_large_square_takes_a_tile_that_fills_the_register_file() -> None:
    config = model.best(packed(8448, 8448, 8192), H200).config
    assert config.tile_m * config.tile_n >= 128 * 192


def test_a_short_m_takes_the_shortest_tile() -> None:
    assert model.best(packed(16, 6144, 4096), H200).config.tile_m == 64


def test_fewer_sms_never_make_it_faster() -> None:
    problem = packed(4096, 4096, 4096)
    times = [model.best(problem, H200, num_sms).prediction.total_us for num_sms in (132, 66, 33, 2, 1)]
    assert times == sorted(times)


def test_a_device_without_a_family_is_refused_with_its_capability() -> None:
    with pytest.raises(UnsupportedError, match="compute capability 8.0"):
        model.best(packed(64, 64, 64), device.preset("a100"))


@settings(max_examples=60)
@given(
    m=st.integers(1, 100_000),
    n=st.integers(1, 100_000),
    k=st.integers(1, 100_000),
    b_major=st.sampled_from(["k", "n"]),
    dtype=st.sampled_from(["bf16", "fp16"]),
    out_dtype=st.sampled_from([None, "fp32"]),
)
def test_every_problem_has_a_legal_choice(m: int, n: int, k: int, b_major: str, dtype: str, out_dtype: str | None) -> None:
    problem = packed(m, n, k, b_major=b_major, dtype=dtype, out_dtype=out_dtype)  # type: ignore[arg-type]
    choice = model.best(problem, H200)
    assert choice.config.violations(problem, H200) == ()
    assert choice.prediction.total_us > 0
