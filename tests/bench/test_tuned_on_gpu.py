"""The tuned baseline with the library and a GPU: every layout and type is right, and the default is never far ahead."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.bench.suite import problem_of

pytestmark = pytest.mark.gpu


@pytest.mark.alone("kernels of other workers lengthen one column more than the other")
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((512, 512, 512), {}),
        ((512, 768, 1024), {"b_major": "n", "out_dtype": "fp32"}),
        ((1000, 1000, 1000), {"dtype": "fp16"}),
        ((129, 257, 65), {}),
        ((129, 257, 65), {"b_major": "n"}),
        ((16, 4096, 4096), {}),
    ],
    ids=str,
)
def test_the_best_algorithm_is_right_and_about_as_fast_as_the_default_or_faster(
    shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    from tilewright.bench.compare import TUNED, compare  # torch, and the driver
    from tilewright.bench.tuned import Search

    rows = compare(problem_of(shape, **options), tuned=Search(seconds=3.0), checked=True)
    row = next(row for row in rows if row["candidate"] == TUNED)
    assert row["status"] == "ok", row
    assert row["tuned"]["refused"] == []
    assert row["tuned"]["tried"] >= 1
    assert row["ratio"] > 0.9, "it has the default among its algorithms"
