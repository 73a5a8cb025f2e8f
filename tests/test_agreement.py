"""A plan serves the arrays that it was made for and refuses all others before any launch."""

from __future__ import annotations

import pytest

from fakes import arrays, equals, gpu
from tilewright.errors import DTypeError, LayoutError, ShapeError
from tilewright.packing import packed


@pytest.mark.parametrize(
    ("kind", "words", "change"),
    [
        (ShapeError, "arrays for 65x32x128", lambda a, b, out: (gpu((65, 128)), b, gpu((65, 32)))),
        (ShapeError, "arrays for 64x32x64", lambda a, b, out: (a[:, :64], b[:64], out)),
        (ShapeError, "columns of a", lambda a, b, out: (a[:, :64], b, out)),
        (DTypeError, "arrays of fp16", lambda a, b, out: tuple(gpu(x.host.shape, "fp16") for x in (a, b, out))),
        (DTypeError, "out in fp32", lambda a, b, out: (a, b, gpu((64, 32), "fp32"))),
        (LayoutError, "pitch of a 136", lambda a, b, out: (gpu((64, 136))[:, :128], b, out)),
        (LayoutError, "pitch of b 136", lambda a, b, out: (a, gpu((32, 136))[:, :128].t(), out)),
        (LayoutError, "pitch of out 40", lambda a, b, out: (a, b, gpu((64, 40))[:, :32])),
        (LayoutError, "contiguous dimension of b n", lambda a, b, out: (a, b.contiguous(), out)),
        (LayoutError, "multiple of only 2 bytes", lambda a, b, out: (a, b, gpu((2049,))[1:].reshape(64, 32))),
        (LayoutError, "shares memory with a", lambda a, b, out: (a, b, a.reshape(-1)[:2048].reshape(64, 32))),
    ],
)  # fmt: skip
def test_arrays_of_another_layout_are_refused_before_any_launch(dispatcher, backend, kind, words, change):
    operands = arrays(64, 32, 128)
    plan = dispatcher.plan(*operands)
    plan.run(*operands)
    launches = backend.counts["launch"]
    for _ in range(2):
        with pytest.raises(kind, match=words):
            plan.run(*change(*operands))
    assert backend.counts["launch"] == launches


def test_an_out_that_is_better_aligned_than_the_plans_is_taken(dispatcher):
    a, b, _ = arrays(64, 32, 128)
    plan = dispatcher.plan(a, b, gpu((2049,))[1:].reshape(64, 32))
    out = gpu((64, 32))
    plan.run(a, b, out)
    assert equals(out, a, b)


def test_the_stride_of_a_single_row_does_not_matter_to_a_plan(dispatcher):
    plan = dispatcher.plan(packed(1, 32, 128))
    a, b, out = gpu((4, 136), seed=1)[:1, :128], gpu((32, 128), seed=2).t(), gpu((3, 77))[:1, :32]
    plan.run(a, b, out)
    assert equals(out, a, b)
