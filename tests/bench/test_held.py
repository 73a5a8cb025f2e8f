"""bench/held.py on CPU tensors and a pretended GPU: shared memory, cold sets, packed calls that are right."""

from __future__ import annotations

import dataclasses
import sys

import pytest

torch = pytest.importorskip("torch")

from fakes import FakeCompiler, HostBackend  # noqa: E402  torch first: without it this file is skipped
from tilewright.bench import held as module  # noqa: E402
from tilewright.bench.held import Held  # noqa: E402
from tilewright.bench.suite import problem_of  # noqa: E402
from tilewright.calls import Ledger  # noqa: E402
from tilewright.device import preset  # noqa: E402
from tilewright.packing import packed  # noqa: E402
from tilewright.plan import Plan  # noqa: E402
from tilewright.planning import plan_problem  # noqa: E402

STREAM = 7


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> HostBackend:
    """A GPU with 64 KiB of L2."""
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())  # `tilewright.plan` is a function
    return HostBackend(devices=(dataclasses.replace(preset("h200"), l2_bytes=64 << 10),))


def plan_of(cuda: HostBackend, m: int, n: int, k: int) -> Plan:
    return plan_problem(
        problem_of((m, n, k)), cuda.devices[0], backend=lambda: cuda, ledger=Ledger(), use_records=False
    )


def held_of(cuda: HostBackend, *plans: Plan) -> Held:
    return Held(cuda, [(plan.problem, plan.work) for plan in plans], device="cpu")


@pytest.mark.parametrize("sizes", [
    [(9, 64, 96), (24, 64, 96)],  # rows
    [(24, 63, 96), (24, 72, 96)],  # columns, stored without TMA
    [(24, 64, 95), (24, 64, 96), (24, 64, 97)],  # a k that is copied first, into scratch
])  # fmt: skip
def test_every_product_of_a_line_is_right_on_the_same_memory(
    cuda: HostBackend, sizes: list[tuple[int, int, int]]
) -> None:
    plans = [plan_of(cuda, *size) for size in sizes]
    held = held_of(cuda, *plans)
    for plan in plans:
        verdict = held.check(plan.problem, held.candidate(str(plan), plan.problem, plan.work, STREAM))
        assert verdict.ok, (plan, verdict)
        assert verdict.elements == plan.problem.m * plan.problem.n
    assert {stream for _, stream in cuda.launched} == {STREAM}
    assert len(cuda.launched) == sum(len(plan.work.steps) for plan in plans)


def test_a_candidate_that_computes_another_product_is_wrong(cuda: HostBackend) -> None:
    short, whole = plan_of(cuda, 23, 64, 96), plan_of(cuda, 24, 64, 96)
    held = held_of(cuda, short, whole)
    verdict = held.check(whole.problem, held.candidate("short", short.problem, short.work, STREAM))
    assert verdict.unwritten == 64


def test_sets_keep_the_smallest_product_cold_and_calls_take_them_in_turn(cuda: HostBackend) -> None:
    """The smaller one has 22 KiB: 13 sets and one more are over 4 x 64 KiB; of the larger, 69 KiB, 5 would be."""
    small, large = plan_of(cuda, 16, 64, 64), plan_of(cuda, 128, 128, 64)
    held = held_of(cuda, small, large)
    small_bytes = sum(small.problem.extent_bytes.values())
    assert held.num_sets == -(-4 * (64 << 10) // small_bytes) + 1
    assert held.is_cold
    candidate = held.candidate("small", small.problem, small.work, STREAM)
    assert candidate.num_sets == held.num_sets
    calls: list[int] = []
    cuda.computes = False
    cuda.launch = lambda call, _: calls.append(call.addresses["a"])  # type: ignore[method-assign]
    for index in range(held.num_sets + 1):
        candidate.launch(index)
    assert len(set(calls)) == held.num_sets
    assert calls[0] == calls[-1]


def test_memory_is_that_of_the_largest_product_and_limited(cuda: HostBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [plan_of(cuda, m, 64, 64) for m in (16, 128)]
    own = sum(plans[1].problem.extent_bytes.values()) + max(1, plans[1].work.scratch_bytes)
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 3 * own)
    held = held_of(cuda, *plans)
    assert (held.num_sets, held.is_cold) == (3, False)


def test_products_of_different_types_and_none_at_all_are_refused(cuda: HostBackend) -> None:
    work = plan_of(cuda, 16, 64, 64).work
    for products in ([(packed(16, 64, 64, dtype=name), work) for name in ("bf16", "fp16")], []):
        with pytest.raises(ValueError, match="do not share one dtype"):
            Held(cuda, products, device="cpu")
