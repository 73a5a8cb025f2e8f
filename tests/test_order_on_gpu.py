"""What order.py says of the hardware, bit by bit: a row's bits are its own, and those of the emulator's exact sums."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright
from orders import FREE, SINGLE, SMALL, operands
from tilewright import Emulator
from tilewright.backends.cuda import CudaBackend, backend
from tilewright.backends.memory import Buffer
from tilewright.backends.stream import Stream
from tilewright.bench.cases import FORMS
from tilewright.bench.verify import POISON_WORD, launched
from tilewright.errors import TilewrightError
from tilewright.host_operands import host_operand
from tilewright.order import INVARIANT
from tilewright.packing import packed
from tilewright.problem import Problem

pytestmark = pytest.mark.gpu

ROWS = (1, 2, 17, 33, 128, 257)
WEIGHTS = ((4096, 4096), (2112, 7168), (520, 8200))  # n, k
M = 1024
REPEATS = 1000


@pytest.fixture(scope="module")
def cuda() -> CudaBackend:
    try:
        found = backend()
        if found.device(0).sm != (9, 0):
            pytest.skip(f"needs compute capability 9.0; this is {found.device(0)}")
    except TilewrightError as error:
        pytest.skip(f"no usable GPU: {error}")
    return found


def multiply(
    cuda: CudaBackend,
    a: NDArray[Any],
    b: NDArray[Any],
    *,
    out_dtype: str = "fp32",
    reduction: Any = "invariant",
    config: Any = None,
    num_sms: int | None = None,
    **layout: Any,
) -> NDArray[Any]:
    """The bits of a (*batch, m, k) x b (k, n) on the GPU, in the layout that packed() makes of these choices."""
    *batch, m, k = a.shape
    dtype = "fp16" if a.dtype == np.float16 else "bf16"
    problem = packed(
        m, b.shape[1], k, dtype=dtype, out_dtype=out_dtype, batch=batch, shared="b" if batch else "", **layout
    )
    plan = tilewright.plan(problem, device=cuda.device(0), config=config, num_sms=num_sms, reduction=reduction)
    memory = launched(cuda, plan, _placed(problem, "a", a), _placed(problem, "b", b), 0)
    out = np.ascontiguousarray(host_operand(problem, "out", memory).view)
    assert np.isfinite(out.astype(np.float32)).all()
    return out.view(f"u{out.itemsize}")


def _placed(problem: Problem, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The memory of an operand that holds the values; what lies between is NaN."""
    memory = np.full(problem.extent_bytes[name] // problem.dtype.size, np.nan, problem.dtype.numpy)
    host_operand(problem, name, memory).view[...] = values
    return memory


@cache
def largest(n: int, k: int, dtype: str) -> NDArray[Any]:
    """The bits of the product of M rows."""
    return multiply(backend(), *operands(M, n, k, dtype))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("n", "k"), WEIGHTS)
def test_a_row_has_the_same_bits_whatever_m_is(cuda: CudaBackend, n: int, k: int, dtype: str) -> None:
    a, b = operands(M, n, k, dtype)
    for m in ROWS:
        assert np.array_equal(multiply(cuda, a[:m], b), largest(n, k, dtype)[:m]), m


@pytest.mark.parametrize("num_sms", [1, 2, 33, 131])
def test_a_row_has_the_same_bits_on_any_number_of_sms(cuda: CudaBackend, num_sms: int) -> None:
    n, k = WEIGHTS[2]
    assert np.array_equal(multiply(cuda, *operands(M, n, k), num_sms=num_sms), largest(n, k, "bf16"))


def test_a_row_has_the_same_bits_wherever_it_stands_and_in_a_batch(cuda: CudaBackend) -> None:
    n, k = WEIGHTS[2]
    a, b = operands(M, n, k)
    expected = largest(n, k, "bf16")
    assert np.array_equal(multiply(cuda, a.reshape(16, M // 16, k), b).reshape(M, n), expected)
    assert np.array_equal(multiply(cuda, a[::-1], b), expected[::-1])


@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("b_major", ["k", "n"])
@pytest.mark.parametrize("a_major", ["k", "m"])
def test_a_row_has_the_same_bits_in_every_layout(cuda: CudaBackend, a_major: str, b_major: str, out_major: str) -> None:
    """An out with columns exchanges the operands: what is wgmma's a is its b."""
    n, k = WEIGHTS[2]
    a, b = operands(M, n, k)
    layout = {"a_major": a_major, "b_major": b_major, "out_major": out_major}
    for m in (128, M):
        assert np.array_equal(multiply(cuda, a[:m], b, **layout), largest(n, k, "bf16")[:m])


@pytest.mark.parametrize("name", FREE)
def test_a_field_that_moves_no_bit_moves_none(cuda: CudaBackend, name: str) -> None:
    n, k = WEIGHTS[2]
    found = multiply(cuda, *operands(M, n, k), config=FREE[name], num_sms=66)
    assert np.array_equal(found, largest(n, k, "bf16"))


@pytest.mark.parametrize("name", FORMS)
def test_no_form_of_the_kernel_moves_a_bit_of_a_rounded_out(cuda: CudaBackend, name: str) -> None:
    n, k = WEIGHTS[2]
    found, single = (
        multiply(cuda, *operands(M, n, k), out_dtype="bf16", config=config, num_sms=10)
        for config in (INVARIANT.of(FORMS[name]), SINGLE)
    )
    assert np.array_equal(found, single)


@pytest.mark.parametrize("tile_n", range(8, 257, 8))
def test_the_width_of_a_wgmma_moves_no_bit(cuda: CudaBackend, tile_n: int) -> None:
    m, _, k = SMALL
    a, b = operands(m, 3 * 256, k)
    config = SINGLE.replace(tile_n=tile_n, stages=2, store_slots=1)
    assert np.array_equal(multiply(cuda, a, b, config=config), multiply(cuda, a, b, config=SINGLE))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_h200_has_the_bits_of_the_emulator_with_exact_sums(cuda: CudaBackend, dtype: str) -> None:
    a, b = operands(*SMALL, dtype)
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    Emulator(exact_sums=True, checks=False).matmul(a, b, out, reduction="invariant")
    assert np.array_equal(multiply(cuda, a, b), out.view(np.uint32))


def test_walking_k_back_moves_bits(cuda: CudaBackend) -> None:
    """Else these tests could not fail."""
    n, k = WEIGHTS[2]
    config = SINGLE.replace(k_back_and_forth=True)
    back = multiply(cuda, *operands(M, n, k), config=config, num_sms=1, reduction="fast")
    assert (back != largest(n, k, "bf16")).mean() > 0.1


@pytest.mark.parametrize("reduction", ["fast", "invariant"])
def test_a_product_has_the_same_bits_in_a_thousand_runs_beside_another(cuda: CudaBackend, reduction: Any) -> None:
    """B142: another product keeps the SMs busy, so that CTAs begin and end in ever another order."""
    problem, other = packed(2048, 1536, 1024, out_dtype="fp32"), packed(1024, 1024, 1024)
    a, b = operands(problem.m, problem.n, problem.k)
    buffers = [Buffer.allocate(cuda, size) for size in (*problem.extent_bytes.values(), other.extent_bytes["out"])]
    memory, b_memory, out, elsewhere = buffers
    memory.write(np.ascontiguousarray(a))
    b_memory.write(np.ascontiguousarray(b.T))
    addresses = {"a": memory.address, "b": b_memory.address}
    streams = Stream(cuda), Stream(cuda)
    calls = []
    for each, target in ((problem, out), (other, elsewhere)):
        plan = tilewright.plan(each, device=cuda.device(0), reduction=reduction)
        kernel = cuda.load(plan.binary, 0, plan.launch)
        calls.append(cuda.pack(kernel, plan.launch, plan.arguments, addresses | {"out": target.address}))
    first: bytes = b""
    differing = 0
    for repeat in range(REPEATS):
        out.fill(POISON_WORD, streams[0].handle)
        for _ in range(repeat % 4):
            cuda.launch(calls[1], streams[1].handle)
        cuda.launch(calls[0], streams[0].handle)
        streams[0].synchronize()
        bits = out.read((problem.m * problem.n,), np.uint32).tobytes()
        first = first or bits
        differing += bits != first
    streams[1].synchronize()
    for stream in streams:
        stream.close()
    for buffer in buffers:
        buffer.free()
    assert differing == 0
