"""tilewright.epilogue: what the steps mean in float64, and bounds that fp32 keeps."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.epilogue import (
    Add,
    Alpha,
    Aux,
    Beta,
    Bias,
    Bounded,
    Epilogue,
    Gated,
    Gelu,
    Relu,
    RowAmax,
    RowSum,
    Scale,
    Silu,
    Step,
    allowed,
    evaluate,
)
from tilewright.errors import ShapeError

torch = pytest.importorskip("torch")
F32 = np.float32


@pytest.mark.parametrize(
    ("step", "sums"),
    [
        (Gelu(), [[1.0]]),
        (Bias(np.zeros(4)), np.zeros((2, 3))),
        (Add(np.zeros((3, 2))), np.zeros((2, 3))),
        (Add("bf16"), np.zeros((2, 3))),
    ],
)
def test_sums_that_are_no_array_and_arrays_that_do_not_fit_them_are_refused(step: Step, sums: Any) -> None:
    with pytest.raises(ShapeError):
        evaluate(step, sums, sums)


SPECIALS = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 3.0, -3.0, 1e-40, -9.0])
ACTIVATIONS: list[tuple[Step, Any]] = [
    (Relu(), torch.nn.functional.relu),
    (Gelu(), torch.nn.functional.gelu),
    (Gelu("tanh"), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    (Silu(), torch.nn.functional.silu),
]


@pytest.mark.parametrize(("step", "theirs"), ACTIVATIONS, ids=lambda each: str(each) if isinstance(each, Step) else "")
def test_activations_mean_what_they_mean_in_torch(step: Step, theirs: Any) -> None:
    """NaN and infinities too; and a torch tensor takes the same road as a NumPy array."""
    x = np.concatenate([SPECIALS, np.linspace(-12, 12, 97)])[None]
    wanted = theirs(torch.tensor(x)).numpy()
    for given_x in (x, torch.tensor(x)):
        found = np.asarray(evaluate(step, given_x, 1e-6).out.value)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


def test_arrays_meet_rows_columns_and_matrices_of_a_batch() -> None:
    x = np.arange(12.0).reshape(3, 4)
    columns, rows, per_matrix = np.arange(4.0), np.arange(3.0), np.arange(6.0).reshape(2, 3)
    c = np.arange(24.0).reshape(2, 3, 4)
    epilogue = Bias(columns) | Scale(rows, per="row") | Add(c) | Bias(per_matrix, per="row")
    wanted = (x + columns) * rows[:, None] + c[1] + per_matrix[1][:, None]
    assert (evaluate(epilogue, x, 0 * x, (1,)).out.value == wanted).all()
    selected = evaluate(epilogue, x[[0, 2]], 0 * x[[0, 2]], (1,), [0, 2]).out.value
    assert (selected == wanted[[0, 2]]).all()


def test_beta_of_zero_reads_nothing() -> None:
    x = np.ones((2, 2))
    poison = np.full((2, 2), math.nan)
    assert (evaluate(Beta(0.0, poison), x, 0 * x).out.value == 1).all()
    assert np.isnan(evaluate(Beta(1.0, poison), x, 0 * x).out.value).all()


def test_gates_are_halves_or_neighbours() -> None:
    x = np.array([[1.0, -2.0, 3.0, 4.0]])
    assert evaluate(Gated("relu", "halves"), x, 0 * x).out.value.tolist() == [[3.0, 0.0]]
    assert evaluate(Gated("relu", "interleaved"), x, 0 * x).out.value.tolist() == [[-2.0, 12.0]]


def test_what_is_stored_beside_out_is_the_value_at_its_point() -> None:
    x = np.array([[1.0, -4.0], [2.0, math.nan]])
    found = evaluate(Alpha(2.0) | Aux("aux") | RowAmax("amax") | RowSum("sum") | Relu(), x, 0 * x)
    aux, amax, total = (bounded.value for _, bounded in found.written)
    np.testing.assert_array_equal(aux, 2 * x)
    np.testing.assert_array_equal(amax, [8.0, math.nan])
    np.testing.assert_array_equal(total, [-6.0, math.nan])


# -- the bound ---------------------------------------------------------------------------------------------------------


def in_fp32(epilogue: Epilogue, x: Any) -> Any:
    """The steps in fp32, each operation rounded, activations by NumPy's functions in float64 and one rounding."""
    for step in epilogue.steps:
        if isinstance(step, Alpha):
            x = x * F32(step.x)
        elif isinstance(step, Beta):
            x = (np.float64(step.x) * step.c.astype(np.float64) + x).astype(F32)
        elif isinstance(step, Bias | Scale):
            values = step.vector.astype(F32)
            values = values[None] if step.per == "column" else values[:, None]
            x = x + values if isinstance(step, Bias) else x * values
        elif isinstance(step, Add):
            x = x + step.tensor.astype(F32)
        elif isinstance(step, Gated):
            half = x.shape[1] // 2
            act = evaluate(Silu(), x[:, :half].astype(np.float64), 0.0).out.value.astype(F32)
            x = act * x[:, half:]
        else:
            x = evaluate(step, x.astype(np.float64), 0.0).out.value.astype(F32)
    return x


@st.composite
def compositions(draw: st.DrawFn) -> tuple[Any, float, Epilogue]:
    """Sums of some magnitude, how far they are off, and steps with arrays of their shape."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m, n = draw(st.integers(1, 5)), 2 * draw(st.integers(1, 4))
    magnitude = 10.0 ** draw(st.integers(-3, 3))

    def array(*shape: int) -> Any:
        kind = draw(st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]))
        return rng.standard_normal(shape).astype(np.float32).astype(kind)

    makes = {
        "alpha": lambda width: Alpha(float(rng.standard_normal())),
        "beta": lambda width: Beta(float(rng.standard_normal()), array(m, width)),
        "bias": lambda width: Bias(array(width)),
        "row bias": lambda width: Bias(array(m), per="row"),
        "scale": lambda width: Scale(array(width)),
        "add": lambda width: Add(array(m, width)),
        "relu": lambda width: Relu(),
        "gelu": lambda width: Gelu(),
        "tanh": lambda width: Gelu("tanh"),
        "silu": lambda width: Silu(),
    }
    epilogue, width = Epilogue(()), n
    for kind in draw(st.lists(st.sampled_from([*makes, "gated"]), min_size=1, max_size=5)):
        if kind == "gated":
            if width == n:
                epilogue, width = epilogue | Gated("silu"), n // 2
        else:
            epilogue = epilogue | makes[kind](width)
    return magnitude * rng.standard_normal((m, n)), magnitude * draw(st.sampled_from([0.0, 1e-6, 1e-3])), epilogue


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(drawn=compositions(), seed=st.integers(0, 1000))
def test_fp32_arithmetic_on_sums_that_are_off_stays_within_the_bound(
    drawn: tuple[Any, float, Epilogue], seed: int
) -> None:
    sums, off, epilogue = drawn
    signs = np.random.default_rng(seed).uniform(-1, 1, sums.shape)
    given_sums = (sums + off * signs).astype(F32)
    bound = off + np.abs(given_sums) * 2.0**-24
    found = evaluate(epilogue, sums, np.broadcast_to(bound, sums.shape)).out
    error = abs(in_fp32(epilogue, given_sums).astype(np.float64) - found.value)
    assert (error <= found.bound).all(), f"{epilogue}: {(error / found.bound).max()}"


def test_the_bound_is_no_wider_than_what_it_allows_for() -> None:
    """A bound that forgives a missing bias or a wrong half would check nothing."""
    x = np.full((1, 4), 2.0)
    for step in (Alpha(3.0), Bias(np.ones(4)), Gelu(), Gated("silu")):
        found = evaluate(step, x, 0 * x).out
        assert (found.bound < 1e-6 * (1 + abs(found.value))).all()
    rounded = allowed(Bounded(x, 0 * x), dtypes.BF16)
    assert (rounded <= 2.0 * 2**-8 * 1.001).all()
