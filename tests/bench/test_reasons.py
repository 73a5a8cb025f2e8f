"""bench/reasons.py: what the rows of a shape say about why it is slow."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.bench.reasons import reason

OWN: dict[str, Any] = {"median_us": 10.0, "share_of_floor": 0.5, "bound": "memory"}


@pytest.mark.parametrize(
    ("own", "fact"),
    [
        ({"ratio_lower": 0.99, "ratio_upper": 1.01}, "no difference: quartiles 0.990 .. 1.010; "),
        ({"ratio_lower": 0.9, "ratio_upper": 0.95}, ""),
        ({"ctas": 64, "num_sms": 132, "waves": 1.0}, "64 CTAs for 132 SMs; "),
        ({"ctas": 132, "num_sms": 132, "waves": 1.06}, "1.06 waves of tiles; "),
        ({"ctas": 132, "num_sms": 132, "waves": 30.5}, ""),
    ],
)
def test_each_fact_that_a_row_holds_is_told(own: dict[str, Any], fact: str) -> None:
    row = OWN | own
    told = reason(row, {"share_of_floor": 0.6}, row)
    assert sorted(told.split("; ")) == sorted(f"{fact}memory floor: 0.50 of it, cuBLAS 0.60; untuned".split("; "))


def test_a_record_is_held_against_the_models_choice() -> None:
    assert reason(OWN, None, {"median_us": 12.0}).endswith("from records, 1.20 x the model's choice")
    assert reason(OWN, None, {"median_us": 10.1}).endswith("from records, as the model's")
    assert reason(OWN, None, None).endswith("from records")


def test_a_row_that_holds_nothing_gives_no_fact_that_is_not_there() -> None:
    row: dict[str, Any] = {"median_us": 1.0}
    assert reason(row, None, row) == "untuned"
