"""A plan knows all that does not depend on addresses, runs, and explains itself."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import warnings

import numpy as np
import pytest

from fakes import GpuArray, HostBackend, arrays, equals, gpu
from tilewright import device
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.errors import ConfigError, DTypeError, LayoutError, UnsupportedError
from tilewright.jit.build import FlawedKernelWarning
from tilewright.jit.source import Resources
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.tma import MAX_EXTENT

# -- without a GPU -----------------------------------------------------------------------------------------------------


def test_a_problem_is_planned_without_a_driver_and_compiled_when_the_binary_is_asked_for(unplugged, compiler):
    plan = unplugged.plan(packed(4096, 4096, 4096), device="h200")
    assert compiler.built == []
    assert plan.binary is plan.binary
    assert [source.arch for source in compiler.built] == ["sm_90a"]


def test_the_largest_sizes_are_planned_in_whole_numbers(unplugged):
    # 64-bit quantities: 2^31 rows of 2^20 elements are 2^52 bytes
    plan = unplugged.plan(packed(MAX_EXTENT, 1 << 12, 1 << 20))
    assert plan.launch.grid <= 132
    assert plan.problem.flops == 2 * MAX_EXTENT * 2**32
    assert all(isinstance(number, int) for number in dataclasses.astuple(plan.launch))


# -- explain -----------------------------------------------------------------------------------------------------------


def test_the_explanation_holds_the_facts_of_plan_model_and_compiler(unplugged):
    plan = unplugged.plan(packed(4096, 4096, 4096), num_sms=100)
    explanation, prediction = plan.explain(), plan.prediction
    assert explanation.grid == plan.launch.grid <= 100
    assert explanation.smem_bytes == plan.config.smem_bytes(plan.problem)
    assert (explanation.registers, explanation.spill_bytes) == (168, 0)
    assert (explanation.predicted_us, explanation.terms) == (prediction.total_us, prediction.terms)
    assert (explanation.waves, explanation.roofline_share) == (prediction.waves, prediction.roofline_share)


def test_the_explanation_reads_as_lines_that_name_everything(unplugged):
    text = str(unplugged.plan(packed(4096, 4096, 4096)).explain())
    for word in (
        "4096x4096x4096",
        "hopper",
        "config",
        "why",
        "CTAs",
        "waves",
        "168 registers",
        "bytes of shared memory",
    ):
        assert word in text
    assert "of the roofline" in text
    assert text.splitlines()[-1].count(" us") == len(unplugged.plan(packed(4096, 4096, 4096)).prediction.terms)


@pytest.mark.parametrize(("shape", "words"), [((0, 8, 8), "empty"), ((8, 0, 8), "empty"), ((8, 8, 0), "zeros")])
def test_an_empty_problem_is_planned_and_explained(unplugged, shape, words):
    plan = unplugged.plan(packed(*shape))
    assert words in str(plan.explain())
    assert plan.config.violations(packed(8, 8, 8), plan.device) == ()


def test_a_plan_reads_as_its_problem_device_and_config(unplugged):
    plan = unplugged.plan(packed(64, 64, 64))
    assert str(plan) == repr(plan) == f"{plan.problem} on NVIDIA H200: hopper {plan.config}"


# -- run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
def test_a_plan_of_arrays_runs_them_and_others_of_their_layout(dispatcher, backend, out_dtype):
    first = arrays(64, 32, 128, out_dtype)
    plan = dispatcher.plan(*first)
    second = arrays(64, 32, 128, out_dtype)
    for operands in (first, second):
        assert plan.run(*operands) is operands[2]
        assert equals(operands[2], *operands[:2])
    assert backend.counts["load"] == 1


def test_a_plan_of_a_problem_runs_arrays_of_that_layout(dispatcher):
    plan = dispatcher.plan(packed(64, 32, 128))
    operands = arrays(64, 32, 128)
    plan.run(*operands)
    assert equals(operands[2], *operands[:2])


def test_a_plan_made_without_out_takes_an_out_as_it_would_be_allocated(dispatcher):
    a, b, out = arrays(64, 32, 128, "fp32")
    plan = dispatcher.plan(a, b, out_dtype="fp32")
    plan.run(a, b, out)
    assert equals(out, a, b)


def test_a_plan_serves_operands_at_any_address_with_the_same_kernel(dispatcher, backend):
    a, b, out = arrays(64, 32, 128)
    plan = dispatcher.plan(a, b, out)
    odd = gpu((8200,), seed=3)[1:8193].reshape(64, 128)
    for operand in (a, odd, a):
        plan.run(operand, b, out)
        assert equals(out, operand, b)
    assert backend.counts["load"] == 3  # the product's kernel for each of its two sets of arguments
    assert plan.work.scratch == ()
    assert [step.name for step in dispatcher.plan(odd, b, out).work.steps] == ["repack a", "hopper"]


def test_an_explanation_names_the_copies_with_their_bytes_and_time(unplugged):
    padded, plan = unplugged.plan(packed(4095, 4095, 4095)), unplugged.plan(packed(4095, 4095, 4095, padded=False))
    assert padded.explain().copies is None
    explanation = plan.explain()
    assert explanation.copies.operands == ("a", "b")
    assert explanation.copies.scratch_bytes == plan.work.scratch_bytes == 2 * 4095 * 8192
    alone = unplugged.plan(packed(4095, 4095, 4095), config=plan.config).explain()  # which starts as late
    assert explanation.predicted_us == alone.predicted_us + explanation.copies.predicted_us
    assert explanation.terms[0] == ("repack", explanation.copies.predicted_us)
    assert plan.config == padded.config.replace(dependent_launch=True)
    assert plan.launch.is_dependent
    text = str(explanation)
    assert "repack a and b, which TMA cannot read there: 8190 CTAs of 256 threads, 67.1 MB read" in text


def test_an_explanation_names_the_sums_of_slices_with_their_bytes_and_time(unplugged):
    config = Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=32)
    plan = unplugged.plan(packed(256, 256, 65536), config=config)
    told = plan.explain()
    assert told.launch.grid == 128
    assert told.sums.launch.grid == 128
    assert (told.sums.read_bytes, told.sums.written_bytes) == (plan.work.scratch_bytes, 2 * 256 * 256)
    assert told.terms[-1] == ("sums", told.sums.predicted_us)
    assert sum(dict(told.terms)[name] for name in ("launch", "ramp", "sums", told.bound)) <= told.predicted_us * 1.001
    assert "then       add 32 slices of k in their order: 128 CTAs of 128 threads, 8.4 MB of scratch read" in str(told)
    assert unplugged.plan(packed(8192, 8192, 8192)).explain().sums is None


def test_copies_and_slices_are_told_apart(unplugged):
    config = Config(tile_m=128, tile_n=128, stages=6, store_slots=1, slices=8)
    plan = unplugged.plan(packed(250, 256, 65536, a_major="m", padded=False), config=config)
    told = plan.explain()
    assert [step.name for step in plan.work.steps] == ["repack a", "hopper", "sums of 8 slices"]
    assert [piece.name for piece in plan.work.scratch] == ["scratch_a", "scratch_slices"]
    assert told.copies.scratch_bytes == 65536 * 512
    assert told.copies.scratch_bytes + told.sums.read_bytes == plan.work.scratch_bytes
    assert told.predicted_us == pytest.approx(plan.prediction.total_us + told.copies.predicted_us)


def test_a_column_major_out_copies_the_callers_operands(dispatcher):
    """The kernel's a is the caller's b."""
    a, b = gpu((64, 128), seed=1), gpu((32, 129), seed=2)[:, :128].t()
    out = gpu((32, 64)).t()
    plan = dispatcher.plan(a, b, out)
    assert [piece.name for piece in plan.work.scratch] == ["scratch_b"]
    plan.run(a, b, out)
    assert equals(out, a, b)


def test_a_plan_serves_every_device_of_its_capability_and_refuses_others(compiler):
    presets = ("h200", "h20", "a100")
    backend = HostBackend(devices=tuple(map(device.preset, presets)))
    plan = Dispatcher(lambda: backend).plan(packed(64, 32, 128))
    for ordinal in (0, 1, 0):
        operands = arrays(64, 32, 128)
        backend.homes = {array.address: ordinal for array in operands}
        plan.run(*operands)
        assert equals(operands[2], *operands[:2])
    assert [ordinal for ordinal, _ in backend.launched] == [0, 1, 0]
    operands = arrays(64, 32, 128)
    backend.homes = {array.address: 2 for array in operands}
    with pytest.raises(ConfigError, match="A100"):
        plan.run(*operands)


def test_memory_that_moved_to_another_device_is_launched_there(compiler):
    # addresses may come again on another device once they were freed: they name no device by themselves
    backend = HostBackend(devices=(device.preset("h200"),) * 2)
    plan = Dispatcher(lambda: backend).plan(packed(64, 32, 128))
    operands = arrays(64, 32, 128)
    plan.run(*operands)
    backend.homes = {array.address: 1 for array in operands}
    plan.run(*operands)
    assert [ordinal for ordinal, _ in backend.launched] == [0, 1]


def test_an_empty_plan_runs_without_a_kernel(dispatcher, backend, compiler):
    out = gpu((4, 8), fill=7.0)
    dispatcher.plan(packed(4, 8, 0)).run(gpu((4, 0)), gpu((0, 8)), out)
    assert np.all(out.host == 0)
    assert compiler.built == []
    assert not backend.counts.keys() & {"load", "launch"}


def test_a_kernel_that_the_compiler_spilled_is_served_with_a_warning(unplugged, compiler, monkeypatch):
    spilled = Resources(168, 8, 8, 0, 0, 16)
    monkeypatch.setattr(
        sys.modules["tilewright.plan"], "build", lambda source: dataclasses.replace(compiler(source), resources=spilled)
    )
    plan = unplugged.plan(packed(64, 64, 64))
    with pytest.warns(
        FlawedKernelWarning, match=r"registers spill \(8 bytes stored, 8 bytes loaded a thread\).*slower"
    ):
        assert plan.binary.resources == spilled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan.binary.resources == spilled  # said once


def test_a_copied_plan_is_the_plan_itself(unplugged):
    plan = unplugged.plan(packed(64, 64, 64))
    assert copy.copy(plan) is plan
    assert copy.deepcopy({"plan": plan})["plan"] is plan


def test_a_pickled_plan_is_refused_and_the_advised_values_make_it_anew(unplugged):
    plan = unplugged.plan(packed(4096, 4096, 4096), device="h20", config={"group_m": 3}, num_sms=50)
    with pytest.raises(
        UnsupportedError, match=r"tilewright\.plan\(problem, device=device, config=config, num_sms=num_sms"
    ):
        pickle.dumps(plan)
    problem, *rest = pickle.loads(pickle.dumps((plan.problem, plan.device, plan.config, plan.num_sms)))
    again = unplugged.plan(problem, **dict(zip(("device", "config", "num_sms"), rest, strict=True)))
    assert (again.launch, again.arguments, str(again)) == (plan.launch, plan.arguments, str(plan))


@pytest.mark.parametrize("dtype", [np.float32, np.dtype(np.float32), "float32"], ids=repr)
def test_out_dtype_may_be_the_librarys_own(dispatcher, dtype):
    a, b, _ = arrays(64, 32, 128)
    assert dispatcher.plan(a, b, out_dtype=dtype).problem.out_dtype.name == "fp32"
    with pytest.raises(DTypeError, match="dtype 5"):
        dispatcher.plan(a, b, out_dtype=5)


@pytest.mark.parametrize("m", [4, 1])
def test_an_empty_plan_refuses_an_out_without_memory(dispatcher, backend, m):
    plan = dispatcher.plan(packed(m, 8, 0))
    with pytest.raises(LayoutError, match="out at address 0"):
        plan.run(gpu((m, 0)), gpu((0, 8)), Hollow((m, 8)))
    assert not backend.counts["zero"]


class Hollow(GpuArray):
    """An array whose library gives it no memory."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(gpu(shape).host)

    @property
    def __cuda_array_interface__(self):
        return {**super().__cuda_array_interface__, "data": (0, False)}


def test_a_plan_is_a_plan():
    assert isinstance(Dispatcher(HostBackend).plan(packed(8, 8, 8)), Plan)
