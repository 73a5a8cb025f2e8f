"""The tuner's bench against a driver that multiplies on the CPU in place of a launch."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tilewright.backends.base import Launch, PointerArgument
from tilewright.backends.cuda import CudaBackend
from tilewright.backends.steps import Built, Scratch, Step, Work
from tilewright.config import Config
from tilewright.epilogue import Add, Aux, Beta, Bias, Gated, RowAmax, Scale
from tilewright.errors import DriverError, UnsupportedError
from tilewright.jit.source import Binary, Resources
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed, with_epilogue
from tilewright.problem import Problem
from tilewright.tensor import Rows
from tilewright.tuning import beside
from tilewright.tuning import gpu as bench
from tilewright.tuning.child import Job
from tilewright.tuning.gpu import GpuBench, sampled, sampled_matrices, set_bytes

FAKE = Path(__file__).parents[1] / "backends" / "fake_driver.py"
BINARY = Binary(
    "d", "n", "hopper_gemm", "sm_90a", "c", b"\x7fELF", "", "", Resources(168, 0, 0, 0, 0, 16), (), 0.0, False
)


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The driver's stand-in, of a card with an L2 of 16 KiB; and few random values."""
    spec = importlib.util.spec_from_file_location("fake_driver_of_tuning", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(module._ATTRIBUTES, "L2_CACHE_SIZE", lambda device: 16 << 10)
    monkeypatch.setattr(bench, "PERIOD", 997)
    return module


class Machine:
    """A GpuBench on the stand-in. `fault` changes a product before it is written."""

    def __init__(self, fake_driver: ModuleType, problem: Problem, fault: Callable[[Any], None] | None = None) -> None:
        self.driver = fake_driver.FakeDriver()
        self.problem = problem
        self.fault = fault
        self.inputs: list[tuple[int, int, int]] = []
        self._launch = self.driver.cuLaunchKernelEx
        self.driver.cuLaunchKernelEx = self._multiply
        self.bench = GpuBench(0, CudaBackend(self.driver))

    def job(self) -> Job:
        device = self.bench._cuda.device(0)
        launch = HOPPER.launch(self.problem, Config(), device)
        arguments = HOPPER.arguments(self.problem, Config(), launch)
        return Job(5, Work(steps=(Step(name="hopper", binary=Built(BINARY), launch=launch, arguments=arguments),)))

    def _multiply(self, config: Any, kernel: int, parameters: int, extra: int) -> Any:
        """What the kernel does, from its parameters alone: the maps of a and b come first, out's pointer somewhere."""
        place = next(
            index for index, each in enumerate(self.job().work.steps[0].arguments) if isinstance(each, PointerArgument)
        )
        pointers = (ctypes.c_uint64 * (place + 1)).from_address(parameters)
        a_at, b_at, *_, out_at = (ctypes.c_uint64.from_address(pointer).value for pointer in pointers)
        self.inputs.append((a_at, b_at, out_at))
        problem = self.problem
        rows_of_b = problem.n if problem.b_major == "k" else problem.k
        a = matrix(a_at, problem.m, problem.a_pitch, problem.dtype)[:, : problem.k].astype(np.float32)
        b = matrix(b_at, rows_of_b, problem.b_pitch, problem.dtype).astype(np.float32)
        product = a @ (b[:, : problem.k].T if problem.b_major == "k" else b[:, : problem.n])
        out = matrix(out_at, problem.m, problem.out_pitch, problem.out_dtype)
        out[:, : problem.out_n] = self.made_of(product, a_at)
        if self.fault is not None:
            self.fault(out)
        return self._launch(config, kernel, parameters, extra)

    def made_of(self, product: Any, a_at: int) -> Any:
        """What is stored of a product of the a at this address."""
        return product


def matrix(address: int, rows: int, pitch: int, dtype: Any) -> Any:
    block = (ctypes.c_char * (rows * pitch * dtype.size)).from_address(address)
    return np.frombuffer(block, dtype.numpy).reshape(rows, pitch)


PROBLEMS = [
    packed(70, 48, 100),
    packed(70, 45, 100, b_major="n", out_dtype="fp32"),
    packed(33, 64, 72, dtype="fp16"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_right_kernel_passes_on_whole_numbers_and_on_normal_data(fake_driver: ModuleType, problem: Problem) -> None:
    machine = Machine(fake_driver, problem)
    machine.bench.open(problem, 0)
    assert machine.bench.check(machine.job()) == ""
    assert len({out for _, _, out in machine.inputs}) == 2


def wrong_element(out: Any) -> None:
    out[69, 47] = out[69, 47] + 1


def zeroed_tile(out: Any) -> None:
    out[64:, 32:48] = 0


def unwritten(out: Any) -> None:
    out.view(np.uint16)[3, 3] = bench.POISON


@pytest.mark.parametrize(
    ("fault", "words"),
    [(wrong_element, "whole numbers: WRONG: 1 of"), (zeroed_tile, "WRONG"), (unwritten, "1 elements not written")],
)
def test_a_wrong_kernel_is_found(fake_driver: ModuleType, fault: Callable[[Any], None], words: str) -> None:
    problem = packed(70, 48, 100)
    machine = Machine(fake_driver, problem, fault)
    machine.bench.open(problem, 0)
    assert words in machine.bench.check(machine.job())


def test_what_is_written_between_the_rows_of_out_is_found(fake_driver: ModuleType) -> None:
    problem = Problem(m=8, n=16, k=16, a_pitch=16, b_pitch=16, out_pitch=24)

    def fault(out: Any) -> None:
        out[7, 20] = 1

    machine = Machine(fake_driver, problem, fault)
    machine.bench.open(problem, 0)
    assert "1 damaged between the rows" in machine.bench.check(machine.job())


def test_a_product_that_drops_one_k_step_is_found_by_whole_numbers(fake_driver: ModuleType) -> None:
    problem = packed(64, 64, 2048)
    machine = Machine(fake_driver, problem)

    def fault(out: Any) -> None:
        a_at, b_at, _ = machine.inputs[-1]
        a = matrix(a_at, 64, 2048, problem.dtype).astype(np.float32)
        b = matrix(b_at, 64, 2048, problem.dtype).astype(np.float32)
        out[...] = a[:, :-16] @ b[:, :-16].T

    machine.fault = fault
    machine.bench.open(problem, 0)
    assert "whole numbers" in machine.bench.check(machine.job())


def test_a_fault_of_the_driver_comes_out_as_one(fake_driver: ModuleType) -> None:
    problem = packed(8, 16, 16)
    machine = Machine(fake_driver, problem)
    machine.bench.open(problem, 0)
    machine.driver.refuse["cuEventSynchronize"] = [fake_driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
        machine.bench.check(machine.job())


def test_a_candidate_of_two_steps_runs_both_with_scratch_between_them(fake_driver: ModuleType) -> None:
    """And two candidates share it; a larger one gets its own, since captured calls keep their addresses."""
    problem = packed(64, 64, 64)
    driver = fake_driver.FakeDriver()
    real_launch = driver.cuLaunchKernelEx
    seen: list[tuple[int, int]] = []

    def launch(config: Any, kernel: int, parameters: int, extra: int) -> Any:
        pointers = (ctypes.c_uint64 * 2).from_address(parameters)
        seen.append(tuple(ctypes.c_uint64.from_address(pointer).value for pointer in pointers))  # type: ignore[arg-type]
        return real_launch(config, kernel, parameters, extra)

    driver.cuLaunchKernelEx = launch

    def job(runner: int, num_bytes: int) -> Job:
        """Kernels of two pointers each."""
        shape = Launch(grid=1, block=128, cluster=1, smem_bytes=0)
        a, scratch, out = (PointerArgument(name) for name in ("a", "scratch_slices", "out"))
        steps = (
            Step(name="first", binary=Built(BINARY), launch=shape, arguments=(a, scratch)),
            Step(name="second", binary=Built(BINARY), launch=shape, arguments=(scratch, out)),
        )
        return Job(runner, Work(steps=steps, scratch=(Scratch("scratch_slices", num_bytes),)))

    with GpuBench(0, CudaBackend(driver)) as opened:
        num_sets = opened.open(problem, 0)
        before = len(driver.memory)
        for runner, num_bytes in ((1, 4096), (2, 4096), (3, 8192), (4, 512)):
            opened.arm(job(runner, num_bytes))
        small, large = (buffer.address for buffer in opened._scratch)
        assert [buffer.size_bytes for buffer in opened._scratch] == [4096, 8192]
        assert len(driver.memory) == before + 2
        turns = list(zip(seen[::2], seen[1::2], strict=True))
        assert all(first[1] == second[0] in (small, large) for first, second in turns)
        assert len({(first[0], second[1]) for first, second in turns}) == num_sets
        assert [base for base, _ in itertools.groupby(first[1] for first, _ in turns)] == [small, large]
        assert opened.sample(1) > 0
    assert not driver.memory


def test_timed_calls_rotate_over_sets_that_pass_four_times_the_l2(fake_driver: ModuleType) -> None:
    problem = packed(64, 64, 64)
    machine = Machine(fake_driver, problem)
    num_sets = machine.bench.open(problem, 0)
    assert num_sets * set_bytes(problem) > 4 * (16 << 10)
    machine.bench.arm(machine.job())
    assert machine.bench.sample(5) > 0
    assert len(set(machine.inputs)) == num_sets
    contents = {matrix(a_at, 64, 64, problem.dtype).tobytes() for a_at, _, _ in machine.inputs}
    assert len(contents) == num_sets, "equal operands at different addresses"


def test_the_memory_of_one_problem_is_given_back_before_the_next(fake_driver: ModuleType) -> None:
    machine = Machine(fake_driver, packed(8, 16, 16))
    with machine.bench as opened:
        opened.open(packed(8, 16, 16), 0)
        num_sets = opened.open(packed(16, 16, 16), 0)
        assert len(machine.driver.memory) == 1 + 3 * (1 + num_sets), "the flusher, whole numbers, and the sets"
    assert not machine.driver.memory


@pytest.mark.parametrize("n", [1, 31, 32, 33, 50, 1000])
def test_what_is_sampled_holds_the_ends_and_one_of_each_part(n: int) -> None:
    columns = sampled(n, 32, 0)
    assert columns == sorted(set(columns))
    assert (columns[0], columns[-1], len(columns)) == (0, n - 1, min(n, 32))
    gaps = [after - before for before, after in itertools.pairwise(columns)]
    assert max(gaps, default=0) <= 2 * -(-n // 32)


@pytest.mark.parametrize(("batch", "most"), [((), 1), ((5,), 5), ((4096,), 64), ((100, 3), 24), ((9, 1, 50), 16)])
def test_of_a_batch_few_matrices_are_checked_the_first_and_the_last_among_them(batch: Any, most: int) -> None:
    numbers = np.arange(np.prod(batch, dtype=int)).reshape(*batch, 1, 1)
    found = numbers[sampled_matrices(batch, 0)].ravel()
    assert (found[0], found[-1], len(set(found))) == (0, numbers.size - 1, most)


# -- epilogues ---------------------------------------------------------------------------------------------------------


class FusedMachine(Machine):
    """The same with what follows a product: a bias, what is stored of it, a gate and an add, of packed arrays."""

    leaves_out = ""

    def made_of(self, product: Any, a_at: int) -> Any:
        problem = self.problem
        (own,) = (each for each in self.bench._sets if each.a.address == a_at)
        bias, pre, rest = (own.beside[f"epilogue{index}"].address for index in (0, 1, 3))
        if self.leaves_out != "bias":
            product = product + matrix(bias, 1, problem.n, problem.dtype).astype(np.float32)
        if self.leaves_out != "aux":
            matrix(pre, problem.m, problem.n, problem.dtype)[...] = product
        gate, up = np.split(product, 2, axis=1)[:: -1 if self.leaves_out == "order" else 1]
        values = gate / (1 + np.exp(-gate)) * up
        if self.leaves_out != "add":
            values += matrix(rest, problem.m, problem.out_n, problem.dtype).astype(np.float32)
        return values


GATED = with_epilogue(packed(70, 96, 100), Bias("bf16") | Aux("bf16") | Gated("silu") | Add("bf16"))


@pytest.mark.parametrize("leaves_out", ["", "bias", "aux", "order", "add"])
def test_an_epilogue_is_given_its_arrays_and_a_step_that_is_left_out_is_found(
    fake_driver: ModuleType, leaves_out: str
) -> None:
    machine = FusedMachine(fake_driver, GATED)
    machine.leaves_out = leaves_out
    machine.bench.open(GATED, 0)
    found = machine.bench.check(machine.job())
    assert ("WRONG" in found) == bool(leaves_out), found
    assert set_bytes(GATED) == set_bytes(packed(70, 96, 100)) - 70 * 48 * 2 + (96 + 70 * 96 + 70 * 48) * 2


def test_steps_are_checked_on_the_rows_and_columns_that_are_sampled_in_every_layout() -> None:
    problem = packed(9, 20, 8, batch=(3,))
    epilogue = (
        Scale("fp32", "row")
        | RowAmax("fp32")
        | Gated("gelu", "interleaved")
        | Beta(0.5, "fp16")
        | Aux("bf16")
        | Bias("bf16")
    )
    problem = with_epilogue(problem, epilogue)
    generator = np.random.default_rng(0)
    held = beside.memories(problem, lambda dtype, count: generator.standard_normal(count).astype(dtype.numpy))
    matrices, rows, columns = sampled_matrices((3,), 0), [0, 4, 8], [1, 9]
    assert beside.product_columns(problem, columns) == [2, 3, 18, 19]
    assert beside.is_of_whole_rows(problem)
    found = beside.sample(problem, held, matrices, rows, columns)
    assert str(found.epilogue) == str(epilogue)
    scale, amax, c, aux, bias = found.epilogue.arrays
    assert (held["epilogue0"][[0, 4, 8]] == scale).all()  # one for all matrices
    assert amax.shape == (3, 3)
    assert (c == held["epilogue3"].reshape(3, 9, 10)[:, rows][:, :, columns]).all()
    assert np.isnan(aux.astype(np.float32)).all()
    assert (bias == held["epilogue5"][columns]).all()
    held["epilogue4"][:] = np.arange(270)
    for name, (values, pick) in found.written.items():
        values[...] = pick(held[name])
    assert (
        aux.astype(int) == np.arange(270).astype(aux.dtype).astype(int).reshape(3, 9, 10)[:, rows][:, :, columns]
    ).all()


def test_a_column_major_out_is_checked_as_its_transpose() -> None:
    """A vector of its columns is one of rows then."""
    problem = with_epilogue(
        packed(9, 20, 8, out_major="m"), Bias("bf16") | Scale("bf16", "row") | Add("bf16")
    ).row_major
    held = beside.memories(problem, lambda dtype, count: np.arange(count).astype(dtype.numpy))
    found = beside.sample(problem, held, (), [0, 19], [3, 8])
    assert (problem.m, problem.n) == (20, 9)
    assert [step.option for step in found.epilogue.steps] == ["row", "column", ""]
    assert [list(array.astype(int).ravel()) for array in found.epilogue.arrays[:2]] == [[0, 19], [3, 8]]


def test_maxima_are_cleared_first_and_of_a_column_major_out_refused() -> None:
    problem = with_epilogue(packed(9, 20, 8, batch=(3,)), Bias("bf16") | RowAmax("fp32"))
    assert beside.cleared(problem) == (("epilogue1", Rows(0, 1, 27 * 4, 27 * 4)),)
    beside.check_tunable(problem.row_major)
    with pytest.raises(UnsupportedError, match="row-major out"):
        beside.check_tunable(with_epilogue(packed(9, 20, 8, out_major="m"), RowAmax("fp32")).row_major)
