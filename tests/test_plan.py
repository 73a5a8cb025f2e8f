"""A plan knows all that does not depend on addresses, refuses what it was not made for, and explains itself."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys

import numpy as np
import pytest

from fakes import T4, FakeCompiler, GpuArray, HostBackend, gpu, product
from tilewright import device, model
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.errors import ConfigError, DTypeError, LayoutError, ShapeError, UnsupportedError
from tilewright.kernels.ampere_ladder import AMPERE_RUNGS
from tilewright.kernels.ladder import RUNGS
from tilewright.plan import Plan
from tilewright.problem import MAX_EXTENT, packed


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    fake = FakeCompiler()
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", fake)
    return fake


@pytest.fixture
def backend(compiler: FakeCompiler) -> HostBackend:
    return HostBackend()


@pytest.fixture
def dispatcher(backend: HostBackend) -> Dispatcher:
    return Dispatcher(lambda: backend)


@pytest.fixture
def unplugged(compiler: FakeCompiler) -> Dispatcher:
    """Of a machine without a GPU."""

    def no_driver() -> HostBackend:
        raise AssertionError("planning a problem touched the driver")

    return Dispatcher(no_driver)


def arrays(m: int, n: int, k: int, out_dtype: str = "bf16") -> tuple[GpuArray, GpuArray, GpuArray]:
    return gpu((m, k), seed=1), gpu((n, k), seed=2).t(), gpu((m, n), out_dtype, fill=float("nan"))


def equals(out: GpuArray, a: GpuArray, b: GpuArray) -> bool:
    return np.array_equal(out.host, product(a, b).astype(out.host.dtype))


# -- without a GPU -----------------------------------------------------------------------------------------------------


def test_a_problem_is_planned_without_a_driver_and_compiled_when_the_binary_is_asked_for(unplugged, compiler):
    plan = unplugged.plan(packed(4096, 4096, 4096), device="h200")
    assert compiler.built == []
    assert plan.binary is plan.binary
    assert [source.arch for source in compiler.built] == ["sm_90a"]


def test_the_plan_takes_the_models_choice(unplugged):
    problem, h200 = packed(512, 768, 1024), device.preset("h200")
    choice, plan = model.best(problem, h200), unplugged.plan(problem, device=h200)
    assert (plan.family, plan.config, plan.record, plan.device) == (choice.family, choice.config, None, h200)
    assert plan.why == f"untuned: the model's choice: {choice.why}"
    assert plan.launch == choice.family.launch(problem, choice.config, h200)
    assert plan.arguments == choice.family.arguments(problem, choice.config, plan.launch)
    assert plan.prediction == choice.prediction


def test_changes_by_field_name_change_the_models_choice_and_nothing_else(unplugged):
    problem = packed(4096, 4096, 4096)
    chosen, changed = unplugged.plan(problem), unplugged.plan(problem, config={"group_m": 5})
    assert changed.config == dataclasses.replace(chosen.config, group_m=5)
    assert "group_m" in changed.why


def test_a_whole_config_is_taken_as_it_is(unplugged):
    config = Config(tile_m=128, tile_n=128, stages=3)
    assert unplugged.plan(packed(4096, 4096, 4096), config=config).config == config


def test_an_illegal_config_is_refused_with_every_violation(unplugged):
    problem, h200 = packed(64, 64, 64), device.preset("h200")
    config = Config(tile_m=100, stages=1, store_slots=0)
    with pytest.raises(ConfigError) as refusal:
        unplugged.plan(problem, config=config)
    assert refusal.value.violations == config.violations(problem, h200)
    with pytest.raises(ConfigError, match="tile_q is no field"):
        unplugged.plan(problem, config={"tile_q": 3})


def test_more_shared_memory_than_the_device_gives_is_refused(unplugged):
    with pytest.raises(ConfigError, match="bytes of shared memory"):
        unplugged.plan(packed(64, 64, 64), config=Config(stages=16))


def test_a_device_without_kernels_is_refused_before_any_compile(unplugged, compiler):
    with pytest.raises(UnsupportedError, match="compute capability 7"):
        unplugged.plan(packed(64, 64, 64), device=T4)
    assert compiler.built == []


def test_an_unknown_preset_is_refused_with_the_known_ones(unplugged):
    with pytest.raises(UnsupportedError, match="h200"):
        unplugged.plan(packed(64, 64, 64), device="h900")


@pytest.mark.parametrize("num_sms", [0, -3, 79, 2.0, True])
def test_num_sms_is_bounded_by_the_device(unplugged, num_sms):
    with pytest.raises(ConfigError, match="num_sms"):
        unplugged.plan(packed(64, 64, 64), device="h20", num_sms=num_sms)


def test_num_sms_may_be_any_librarys_whole_number(unplugged):
    plan = unplugged.plan(packed(4096, 4096, 4096), num_sms=np.int64(10))
    assert (plan.num_sms, type(plan.num_sms), plan.launch.grid) == (10, int, 10)


def test_a_cluster_wider_than_num_sms_is_refused(unplugged):
    with pytest.raises(ConfigError, match="fewer than the 2 CTAs"):
        unplugged.plan(packed(4096, 4096, 4096), config=Config(cluster_m=2), num_sms=1)


def test_the_largest_sizes_are_planned_in_whole_numbers(unplugged):
    # 64-bit quantities: 2^31 rows of 2^20 elements are 2^52 bytes
    plan = unplugged.plan(packed(MAX_EXTENT, 1 << 12, 1 << 20))
    assert plan.launch.grid <= 132
    assert plan.problem.flops == 2 * MAX_EXTENT * 2**32
    assert all(isinstance(number, int) for number in dataclasses.astuple(plan.launch))


def test_a_problem_put_together_by_hand_is_checked(unplugged):
    with pytest.raises(LayoutError, match="flip"):
        unplugged.plan(dataclasses.replace(packed(64, 64, 64), a_pitch=-65))


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


@pytest.mark.parametrize("config", [{"slices": 4}, {"split_k": 2}, {"staggered": True}, Config(tile_m=256, split_k=8)])
def test_no_config_is_judged_where_no_kernel_runs(unplugged, config):
    plan = unplugged.plan(packed(8, 8, 0), config=config)
    assert "no kernel runs" in str(plan.explain())
    with pytest.raises(ConfigError, match="is no field"):
        unplugged.plan(packed(8, 8, 0), config={"tiles": 4})


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
    assert explanation.predicted_us == padded.explain().predicted_us + explanation.copies.predicted_us
    assert explanation.terms[0] == ("repack", explanation.copies.predicted_us)
    assert plan.config == padded.config.replace(dependent_launch=True)
    assert plan.launch.is_dependent
    text = str(explanation)
    assert "repack a and b, which TMA cannot read there: 8190 CTAs of 256 threads, 67.1 MB read" in text


def test_a_product_behind_copies_waits_as_an_ordinary_launch_when_the_caller_says_so(unplugged):
    problem = packed(4095, 4095, 4095, padded=False)
    plan = unplugged.plan(problem, config={"dependent_launch": False})
    assert not plan.launch.is_dependent
    own = Config(tile_m=128, tile_n=128)
    assert unplugged.plan(problem, config=own).config == own  # a whole config is taken as it is


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


def test_the_model_cuts_a_long_k_of_few_tiles_and_an_invariant_plan_never_does(unplugged):
    fast, invariant = (
        unplugged.plan(packed(256, 256, 65536), reduction=reduction) for reduction in ("fast", "invariant")
    )
    assert fast.config.slices > 1
    assert invariant.config.slices == 1
    with pytest.raises(ConfigError, match="slices = 4 and not 1: reduction 'invariant'"):
        unplugged.plan(packed(256, 256, 65536), config={"slices": 4, "split_k": 1}, reduction="invariant")


def test_a_column_major_out_copies_the_callers_operands(dispatcher):
    """The kernel's a is the caller's b."""
    a, b = gpu((64, 128), seed=1), gpu((32, 129), seed=2)[:, :128].t()
    out = gpu((32, 64)).t()
    plan = dispatcher.plan(a, b, out)
    assert [piece.name for piece in plan.work.scratch] == ["scratch_b"]
    plan.run(a, b, out)
    assert equals(out, a, b)


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


def test_the_compiler_refuses_spills_of_a_production_kernel(unplugged, monkeypatch):
    asked = []
    module = sys.modules["tilewright.plan"]
    real = module.build
    monkeypatch.setattr(module, "build", lambda source, *, refuse: asked.append(refuse) or real(source, refuse=refuse))
    _ = unplugged.plan(packed(64, 64, 64)).binary
    assert asked == [True]


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


@pytest.mark.parametrize("config", ["tile_n=64", "", ["tile_n"], [("tile_n", 64)], 5, True, {"tile_n"}], ids=repr)
def test_a_config_that_is_none_is_refused_with_one_that_is(unplugged, dispatcher, config):
    for call in (
        lambda: unplugged.plan(packed(64, 64, 64), config=config),
        lambda: dispatcher.matmul(*arrays(64, 64, 64), config=config),
        lambda: dispatcher.plan(*arrays(64, 64, 64), config=config),
    ):
        with pytest.raises(
            ConfigError, match=r"neither a Config nor changes by field name; pass config=\{'tile_n': 192\}"
        ):
            call()


@pytest.mark.parametrize("where", [0, 1, False, 5.0, ["h200"]], ids=repr)
def test_a_device_that_is_none_is_refused_and_an_ordinal_is_none(unplugged, where):
    with pytest.raises(UnsupportedError, match=r"a Device, or for one of the presets h200"):
        unplugged.plan(packed(64, 64, 64), device=where)
    assert unplugged.plan(packed(64, 64, 64), device=None).device == device.preset("h200")


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


@pytest.mark.parametrize("rung", [RUNGS[3], AMPERE_RUNGS[8]], ids=lambda rung: rung.name)
def test_a_config_of_a_rung_of_the_ladder_is_refused_by_name(dispatcher: Dispatcher, rung) -> None:
    for target in ("h200", "a100"):
        with pytest.raises(ConfigError, match="is for a rung of the ladder; pass a Config or AmpereConfig"):
            dispatcher.plan(packed(256, 256, 256), device=target, config=rung.config)
