"""Faults that users met in other GEMM libraries, where only a GPU can say: its memory, its streams, its tensor cores.

A case's number is that of the project's collection. The same on the host: test_layout_bug_cases.py,
kernels/test_hopper_numbers.py; in the emulator: emulator/test_bug_cases.py, emulator/test_special_values.py. Operands
are small whole numbers, whose sums are exact, and the reference is float64 on the CPU, of sampled rows: no library of
the GPU is asked about sizes that it may be wrong at itself (B055). The largest test takes 13 GB of the GPU's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402  torch first: without it this file is skipped
from special_values import Special, cases, embedded  # noqa: E402
from tilewright.backends.cuda import CudaBackend, backend  # noqa: E402
from tilewright.bench.cases import FORMS  # noqa: E402
from tilewright.bench.operands import TYPES  # noqa: E402
from tilewright.check import sampled_rows  # noqa: E402
from tilewright.config import Config  # noqa: E402
from tilewright.kernels.hopper import HOPPER  # noqa: E402
from tilewright.packing import packed  # noqa: E402

pytestmark = pytest.mark.gpu

Tensor = Any
CASES = cases()


@pytest.fixture(autouse=True)
def _memory_of_its_own() -> Iterator[None]:
    """Gigabytes go back before the next test asks for its own."""
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def whole(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Tensor:
    """Whole numbers from -2 to 2."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device="cuda", dtype=torch.int8).to(dtype)


def unwritten(*shape: int, dtype: Any = torch.bfloat16) -> Tensor:
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def wrong(a: Tensor, b: Tensor, out: Tensor, rows: list[int] | None = None) -> int:
    """Elements of out that are not a x b, in these rows or all; those that were not written count."""
    picked = slice(None) if rows is None else torch.tensor(rows, device=a.device)
    expected = a[picked].double().cpu() @ b.double().cpu()
    return int((out[picked].double().cpu() != expected.to(out.dtype).double()).sum())


def edges(rows: int) -> list[int]:
    """Some rows, the last eight among them."""
    return sorted({*sampled_rows(rows), *range(max(0, rows - 8), rows)})


# -- beyond 2^31 -------------------------------------------------------------------------------------------------------


def test_more_rows_than_a_grid_dimension_has_tiles() -> None:
    """B034: 65537 tiles of 128 rows."""
    a, w = whole(65536 * 128 + 1, 8), whole(8, 8, seed=1)
    out = tilewright.matmul(a, w.t())
    assert wrong(a, w.t(), out, edges(a.shape[0])) == 0
    assert not torch.isnan(out).any()


def test_an_a_and_a_b_of_more_than_2_to_the_31_elements() -> None:
    """B050, B055: (2^20 + 8) x 2048, as a and as the weight b."""
    large, small = whole(2**20 + 8, 2048), whole(8, 2048, seed=1)
    rows = edges(large.shape[0])
    assert wrong(large, small.t(), tilewright.matmul(large, small.t()), rows) == 0
    assert wrong(large, small.t(), tilewright.matmul(small, large.t()).t(), rows) == 0


@pytest.mark.parametrize("n", [32776, 32777], ids=["by TMA", "by elements"])
def test_an_out_of_more_than_2_to_the_31_elements(n: int) -> None:
    """B050, B055: 65544 x n."""
    a, w, out = whole(65544, 16), whole(n, 16, seed=1), unwritten(65544, n)
    tilewright.matmul(a, w.t(), out)
    assert wrong(a, w.t(), out, edges(a.shape[0])) == 0
    assert not any(torch.isnan(part).any() for part in out.split(8192))


def test_rows_further_apart_than_2_to_the_31_elements_in_all() -> None:
    """B050, B001: the left of a base of 4096 x 2^20; out to the left of another, which stays as it is."""
    a_base, out_base = unwritten(4096, 2**20), unwritten(4096, 2**19 + 2**10)
    a, out, w = a_base[:, :64], out_base[:, :72], whole(72, 64, seed=1)
    a.copy_(whole(4096, 64))
    tilewright.matmul(a, w.t(), out)
    assert wrong(a, w.t(), out) == 0
    assert torch.isnan(out_base[:, 72:]).all()


@pytest.mark.parametrize("pitch", [72, 73], ids=["by TMA", "by elements"])
def test_a_batch_of_matrices_more_than_2_to_the_31_elements_apart(pitch: int) -> None:
    """B052."""
    step = 2**31 + 8
    a = torch.empty(2 * step + 64 * 64, device="cuda", dtype=torch.bfloat16).as_strided((3, 64, 64), (step, 64, 1))
    out = torch.empty(step + 64 * pitch, device="cuda", dtype=torch.bfloat16)
    out = out.as_strided((2, 64, 72), (step, pitch, 1))
    a.copy_(whole(3, 64, 64))
    out.fill_(float("nan"))
    b = whole(2, 64, 72, seed=1)
    tilewright.matmul(a[1:], b, out)
    assert sum(wrong(*matrices) for matrices in zip(a[1:], b, out, strict=True)) == 0


# -- at the same time, and with any config -----------------------------------------------------------------------------


def test_products_on_eight_streams_come_out_as_alone() -> None:
    """B071: (16, 512, 256), 200 times each."""
    pairs = [(whole(16, 256, seed=index), whole(512, 256, seed=index + 8).t()) for index in range(8)]
    alone = [tilewright.matmul(a, b) for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(20):
        outs = [[unwritten(16, 512) for _ in range(10)] for _ in pairs]
        torch.cuda.synchronize()  # filled on another stream
        for turn in range(10):
            for (a, b), stream, own in zip(pairs, streams, outs, strict=True):
                with torch.cuda.stream(stream):
                    tilewright.matmul(a, b, own[turn])
        torch.cuda.synchronize()
        assert all(torch.equal(out, alone[index]) for index, own in enumerate(outs) for out in own)


def test_products_beside_other_work_leave_nothing_unwritten() -> None:
    """B088: another kernel has the SMs when ours begins."""
    other, load = torch.cuda.Stream(), whole(4096, 4096)
    a, w = whole(1000, 520), whole(1000, 520, seed=1)
    torch.cuda.synchronize()
    for _ in range(20):
        out = unwritten(1000, 1000)
        with torch.cuda.stream(other):
            torch.matmul(load, load)
        tilewright.matmul(a, w.t(), out)
        assert wrong(a, w.t(), out) == 0


def test_eight_rows_are_right_for_every_n() -> None:
    """B086: 8 x n x 8192, n from 128 to 12288."""
    a, w = whole(8, 8192), whole(12288, 8192, seed=1)
    expected = (a.double().cpu() @ w.double().cpu().t()).to(torch.bfloat16).cuda()
    for n in range(128, 12289, 128):
        out = unwritten(8, n)
        tilewright.matmul(a, w[:n].t(), out)
        assert torch.equal(out, expected[:, :n]), n


@pytest.mark.parametrize("n", [1000, 1001])
def test_every_config_of_the_space_is_right_when_forced(n: int) -> None:
    """B089: m = 256. Compiled side by side, or this alone would take a minute."""
    a, w = whole(256, 520), whole(n, 520, seed=1)
    device = backend().device(0)
    configs = [*HOPPER.space(packed(256, n, 520), device), *FORMS.values()]
    legal = [config for config in configs if not config.violations(packed(256, n, 520), device)]
    plans = [tilewright.plan(a, w.t(), config=config) for config in legal]
    assert len(plans) > 20
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda plan: plan.binary, plans))
    for plan in plans:
        out = unwritten(256, n)
        plan.run(a, w.t(), out)
        assert wrong(a, w.t(), out) == 0, plan


@pytest.mark.parametrize("num_sms", [1, 2, 78, 114, 132])
def test_any_number_of_sms_is_right(num_sms: int) -> None:
    """B062."""
    a, w = whole(1000, 520), whole(1000, 520, seed=1)
    assert wrong(a, w.t(), tilewright.matmul(a, w.t(), num_sms=num_sms)) == 0


@pytest.mark.parametrize("form", ["cluster-2x1", "cluster-1x2"])
def test_clusters_that_are_resident_at_once_fill_the_card(form: str) -> None:
    """B146: as the driver counts them, at least 0.97 of the SMs have a CTA."""
    from cuda.bindings import driver  # a GPU is here, so they are

    cuda: CudaBackend = backend()
    a, w, out = whole(4096, 512), whole(8192, 512, seed=1), unwritten(4096, 8192)
    plan = tilewright.plan(a, w.t(), config=FORMS[form])
    call = cuda.pack(
        cuda.load(plan.binary, 0, plan.launch),
        plan.launch,
        plan.arguments,
        {"a": a.data_ptr(), "b": w.data_ptr(), "out": out.data_ptr()},
    )
    stream = torch.cuda.Stream()
    cuda.launch(call, stream.cuda_stream)
    with cuda.on(0):
        function = cuda.call("cuKernelGetFunction", call.module.handle)
        status, clusters = driver.cuOccupancyMaxActiveClusters(function, call.configs[stream.cuda_stream])
    assert not status
    assert clusters * plan.launch.cluster >= 0.97 * cuda.device(0).num_sms


# -- values ------------------------------------------------------------------------------------------------------------


def special_wrong(case: Special, a_major: str, b_major: str, **options: Any) -> int:
    """Elements that are wrong, of operands amid NaN."""

    def operand(values: Any, major: str) -> Tensor:
        base = torch.from_numpy(embedded(values, major)).to(TYPES[case.dtype]).cuda()
        rows, columns = values.shape if major == "rows" else values.shape[::-1]
        view = base[:rows, :columns]
        return view if major == "rows" else view.t()

    out = torch.full((case.a.shape[0], case.b.shape[1]), 7.0, device="cuda", dtype=TYPES[case.out_dtype])
    tilewright.matmul(operand(case.a, a_major), operand(case.b, b_major), out, **options)
    return case.wrong(out.double().cpu().numpy())


@pytest.mark.parametrize("name", CASES)
def test_special_values_come_out_as_ieee_754_has_them(name: str) -> None:
    """B046, B047, and what the tensor cores do with subnormals, which no document promises."""
    for majors in (("rows", "columns"), ("columns", "rows")):
        assert special_wrong(CASES[name], *majors, num_sms=1) == 0


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_a_tile_reaches_the_next_in_any_form(form: str) -> None:
    """A NaN in one row, and one CTA, or one cluster, that computes all tiles."""
    config: Config = FORMS[form]
    assert special_wrong(CASES["NaN in a row"], "rows", "columns", config=config, num_sms=config.cluster) == 0


def test_ones_past_fp16s_range_overflow_in_out_alone() -> None:
    """B047: 70000 is an infinity of fp16, and a number of fp32."""
    a, w = (torch.ones(rows, 70000, device="cuda", dtype=torch.float16) for rows in (16, 8))
    assert torch.isposinf(tilewright.matmul(a, w.t())).all()
    out = torch.zeros(16, 8, device="cuda", dtype=torch.float32)
    tilewright.matmul(a, w.t(), out)
    assert (out == 70000).all()
