"""choice.py: what the record of another m is good for. Records of the very product: test_records.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright
from tilewright import Emulator, choice, device, model, records
from tilewright.choice import NEIGHBOUR_SLACK, NEIGHBOUR_TOLERANCE, choose
from tilewright.config import Config
from tilewright.epilogue import Bias, Gated, Gelu
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed, with_epilogue
from tilewright.records import Record

H200 = device.preset("h200")
N, K = 4096, 4096


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's file of this test; nothing is shipped."""
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(path))
    monkeypatch.setenv("TILEWRIGHT_USE_RECORDS", "1")
    monkeypatch.setattr(records, "shipped", lambda: records.Store(None))
    records.clear()
    yield path
    records.clear()


def untuned(m: int) -> Config:
    """The model's choice."""
    return model.best(packed(m, N, K), H200).config


def record(m: int, config: Config, n: int = N, k: int = K, **changes: Any) -> Record:
    problem = packed(m, n, k)
    fields: dict[str, Any] = {
        "key": records.key_of(problem, H200),
        "family": "hopper",
        "config": config,
        "measured_us": 100.0,
        "predicted_us": 100.0,
        "spread": 0.01,
        "rounds": 9,
        "regime": "interleaved",
        "digest": choice.kernel_digest(HOPPER, problem, config, H200),
        "compiler": "nvrtc",
        "driver": "13.0",
        "date": "2026-12-01",
    }
    return Record(**(fields | changes))


def second_best(m: int, n: int = N, k: int = K) -> Config:
    """A config that the model puts within the tolerance of its choice, and that is another."""
    best = model.best(packed(m, n, k), H200)
    for each in model.ranked(packed(m, n, k), H200, 1 << 30):
        if each.config != best.config:
            assert each.prediction.total_us < best.prediction.total_us * (1 + NEIGHBOUR_TOLERANCE)
            return each.config
    raise AssertionError("the family offers one config")


def test_a_record_serves_other_rows_that_make_as_many_tiles_a_cta_and_no_others() -> None:
    """B101: tuned at 2048 rows, called with 100 and 2047."""
    tuned = record(2048, second_best(2048))
    records.append(tuned)
    near, far = choose(packed(2047, N, K), H200), choose(packed(100, N, K), H200)
    assert (near.config, near.record) == (tuned.config, tuned)
    assert near.why.startswith("from the record of m = 2048, in as many tiles a CTA: measured 100.0 us on NVIDIA H200")
    assert "of its own choice's time here" in near.why
    assert (far.config, far.record) == (untuned(100), None)
    assert far.why.startswith("untuned: the model's choice")


def test_a_record_of_the_very_rows_goes_before_any_other() -> None:
    other, own = record(2048, second_best(2048)), record(2047, untuned(2047))
    records.append(other)
    records.append(own)
    assert choose(packed(2047, N, K), H200).record == own


def test_the_nearer_record_goes_first_and_of_two_equally_near_the_one_with_more_rows() -> None:
    config = second_best(2048)
    for m in (1980, 2040, 2048):
        records.append(record(m, config))
    found = [m for m, _ in records.neighbours(packed(2042, N, K), H200)]
    assert found == [2040, 2048]
    assert [m for m, _ in records.neighbours(packed(2047, N, K), H200)] == [2048, 2040]
    assert [m for m, _ in records.neighbours(packed(1990, N, K), H200)] == [1980, 2040]
    records.append(record(1024, config))
    records.append(record(4096, config))
    for m in (1980, 2040, 2048):
        assert records.forget(record(m, config).key)
    assert [m for m, _ in records.neighbours(packed(2048, N, K), H200)] == [4096, 1024]


@pytest.mark.parametrize(
    "other",
    [
        packed(2047, N + 8, K),
        packed(2047, N, K + 8),
        packed(2047, N, K, dtype="fp16"),
        packed(2047, N, K, out_dtype="fp32"),
        packed(2047, N, K, b_major="n"),
        packed(2047, N, K, batch=(2,)),
    ],
    ids=str,
)
def test_a_record_of_another_product_is_no_neighbour(other: Any) -> None:
    records.append(record(2048, second_best(2048)))
    assert records.neighbours(other, H200) == []
    assert records.neighbours(packed(2047, N, K), H200, 66) == []
    assert records.neighbours(packed(2047, N, K), H200, reduction="invariant") == []
    assert choose(other, H200).record is None


def test_a_config_that_the_model_sees_clearly_behind_is_not_taken_for_other_rows() -> None:
    slow = Config(tile_m=64, tile_n=8, consumers=1, stages=4)
    records.append(record(2048, slow))
    assert choose(packed(2048, N, K), H200).config == slow  # measured: the model is not asked
    assert choose(packed(2047, N, K), H200).config == untuned(2047)


def test_a_config_that_the_model_sees_further_behind_than_at_the_record_s_rows_is_not_taken() -> None:
    """8192 x 6144 x 4096: the model's own tail of 160 at 8192 rows is 4 % behind one of 64 at 7680 rows."""
    n, there, here = 6144, packed(8192, 6144, K), packed(7680, 6144, K)
    own, other = model.best(there, H200).config, model.best(here, H200)
    assert own != other.config
    behind = model.predict(HOPPER, here, own, H200).total_us / other.prediction.total_us
    assert 1 + NEIGHBOUR_SLACK < behind < 1 + NEIGHBOUR_TOLERANCE  # else the rule is not tried here
    records.append(record(8192, own, n))
    assert records.neighbours(here, H200) != []
    assert choose(here, H200).config == other.config
    # measured to be ahead of what the model takes there, where it puts it as far behind as here
    records.append(record(7679, own, n))
    assert choose(here, H200).record == record(7679, own, n)


@pytest.mark.parametrize("changes", [{"config": Config(stages=16), "digest": "none"}, {"family": "ampere"}], ids=str)
def test_a_record_that_cannot_run_is_no_neighbour_and_the_one_on_the_other_side_is(changes: dict[str, Any]) -> None:
    good = record(1990, second_best(2048))
    records.append(good)
    records.append(dataclasses.replace(record(2040, untuned(2048)), **changes))
    assert [m for m, _ in records.neighbours(packed(2020, N, K), H200)] == [2040, 1990]
    assert choose(packed(2020, N, K), H200).record == good


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    there=st.integers(1, 5000),
    ratio=st.floats(0.5, 2.0),
    n=st.sampled_from([8, 264, 4096]),
    k=st.sampled_from([8, 64, 520]),
    place=st.integers(0, 5),
    num_sms=st.sampled_from([None, 1, 66]),
)
def test_what_is_chosen_between_records_is_legal_and_no_more_behind_the_models_than_is_told(
    file: Path, there: int, ratio: float, n: int, k: int, place: int, num_sms: int | None
) -> None:
    """B100: a config that was measured for one shape never reaches one that it cannot run."""
    file.unlink(missing_ok=True)
    ranked = model.ranked(packed(there, n, k), H200, place + 1, num_sms)
    key = records.key_of(packed(there, n, k), H200, num_sms)
    records.append(dataclasses.replace(record(there, ranked[-1].config, n, k), key=key))
    problem = packed(max(1, round(there * ratio)), n, k)
    found = choose(problem, H200, num_sms)
    assert found.config.violations(problem, H200) == ()
    if problem.m != there:
        best = model.best(problem, H200, num_sms).prediction.total_us
        taken = model.predict(found.family, problem, found.config, H200, num_sms).total_us
        assert taken <= best * (1 + NEIGHBOUR_TOLERANCE)


def test_a_product_of_rows_between_records_is_right() -> None:
    """B100, with 121 rows beside a record of 128 for 2001 beside 2048."""
    m, n, k = 128, 96, 136
    tuned = record(m, second_best(m, n, k), n, k, digest="none")
    records.append(dataclasses.replace(tuned, key=tuned.key.replace("bf16", "fp16")))
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((121, k), (n, k)))
    emulator = Emulator()
    chosen = emulator.plan(a, b.T)
    assert (chosen.config, chosen.record is not None) == (tuned.config, True)
    assert np.array_equal(emulator.matmul(a, b.T), a.astype(np.float64) @ b.T.astype(np.float64))


def test_the_price_of_an_invariant_order_beside_a_record_says_whose_time_the_model_is_wrong_about() -> None:
    """The model puts the recorded config behind its own choice, so by the model the invariant order is a gain."""
    slow = Config(tile_m=64, tile_n=64, stages=2, consumers=1, cluster_m=1, k_back_and_forth=True)
    records.append(record(2048, slow))
    told = tilewright.plan(packed(2048, N, K), reduction="invariant").explain()
    assert told.fast == slow
    assert told.price < 1
    assert f"{slow}, which is from records: measured 100.0 us on NVIDIA H200" in str(told)
    assert "below 1 the model is wrong about one of the two" in str(told)


def test_the_price_of_a_plan_that_asks_no_records_is_beside_a_choice_that_asks_none() -> None:
    slow = Config(tile_m=64, tile_n=64, stages=2, consumers=1, cluster_m=1, k_back_and_forth=True)
    records.append(record(2048, slow))
    told = tilewright.plan(packed(2048, N, K), reduction="invariant", use_records=False).explain()
    assert (told.fast, told.fast_why) == (untuned(2048), "")
    assert told.price >= 1


# -- with an epilogue --------------------------------------------------------------------------------------------------


def test_a_record_with_the_epilogue_goes_before_that_of_the_plain_product() -> None:
    plain = packed(512, N, K)
    fused, other = (with_epilogue(plain, steps) for steps in (Bias("bf16") | Gelu(), Gelu()))
    first, second = untuned(512), second_best(512)
    records.append(record(512, first))
    assert choose(fused, H200).record is not None
    records.append(record(512, second, key=records.key_of(fused, H200), digest=digest_of(fused, second)))
    assert choose(fused, H200).config == second
    assert "hint" not in choose(fused, H200).why
    assert choose(plain, H200).config == choose(other, H200).config == first
    records.forget(records.key_of(plain, H200))
    assert choose(other, H200).record is None


def digest_of(problem: Any, config: Config) -> str:
    return choice.kernel_digest(HOPPER, problem, config, H200)


def test_a_gate_of_two_arrays_has_the_record_of_one_that_holds_both() -> None:
    plain = packed(512, N, K)
    apart, halves = (with_epilogue(plain, gate) for gate in (Gated("silu", up="bf16"), Gated("silu")))
    assert records.key_of(apart, H200) == records.key_of(halves, H200)
    config = model.ranked(halves, H200, 2)[1].config
    records.append(record(512, config, key=records.key_of(halves, H200), digest=digest_of(halves, config)))
    for problem in (apart, halves):
        assert choose(problem, H200).config == config
        assert "hint" not in choose(problem, H200).why


def test_a_record_with_an_epilogue_serves_its_neighbours_rows() -> None:
    own = with_epilogue(packed(4096, N, K), Gelu())
    config = model.best(own, H200).config
    records.append(record(4096, config, key=records.key_of(own, H200), digest=digest_of(own, config)))
    found = choose(with_epilogue(packed(4090, N, K), Gelu()), H200)
    assert found.record is not None
    assert "m = 4096" in found.why
    assert choose(packed(4090, N, K), H200).record is None
