"""The warm path costs little: counted in operations, and measured against a dictionary look-up in the same run."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tilewright
from fake_torch import Tensor, make_torch
from fakes import FakeCompiler, HostBackend, gpu
from tilewright.arrays import registry
from tilewright.config import Config
from tilewright.dispatch import Dispatcher
from tilewright.jit.source import Source

PACKAGE = str(Path(tilewright.__file__).parent)


class SilentBackend(HostBackend):
    def launch(self, call, stream):
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    module = make_torch()
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "BY_TYPE", table := {})
    monkeypatch.setattr(sys.modules["tilewright.calls"], "BY_TYPE", table)
    monkeypatch.setattr(sys.modules["tilewright.plan"], "build", FakeCompiler())
    return module


@pytest.fixture
def operands(fake):
    return tuple(Tensor(gpu((64, 64), seed=seed).host, fake) for seed in range(3))


def python_calls_of(function, *arguments) -> tuple[Counter[str], Counter[str]]:
    """Functions of the package that one call enters, and the built-in functions that these call."""
    entered: Counter[str] = Counter()
    built_in: Counter[str] = Counter()

    def note(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            entered[frame.f_code.co_name] += 1
        elif event == "c_call":
            built_in[argument.__qualname__] += 1

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return entered, built_in


def test_a_warm_matmul_enters_three_functions_of_the_package_and_two_dictionaries(operands):
    matmul = Dispatcher(SilentBackend).matmul
    matmul(*operands)
    entered, built_in = python_calls_of(matmul, *operands)
    assert entered == {"matmul": 1, "run": 1, "describe": 1}
    # by type, by layout, by addresses
    assert built_in == {"dict.get": 3}


def test_a_warm_run_of_a_plan_enters_two(operands):
    plan = Dispatcher(SilentBackend).plan(*operands)
    plan.run(*operands)
    entered, built_in = python_calls_of(plan.run, *operands)
    assert entered == {"run": 1, "describe": 1}
    assert built_in == {"dict.get": 3}


def test_a_warm_matmul_without_out_adds_the_allocation(operands):
    matmul = Dispatcher(SilentBackend).matmul
    kept = [matmul(*operands[:2]) for _ in range(2)]
    address = kept[0].data_ptr()
    adapter = registry.adapter_of(operands[0], "a")
    adapter.empty = lambda *_: (kept[0], address)  # an allocator that gives the same memory again, as torch's does
    entered, _ = python_calls_of(matmul, *operands[:2])
    assert entered == {"matmul": 1, "run": 1, "describe": 1}


@pytest.mark.parametrize("with_plan", [True, False])
def test_a_warm_call_checks_renders_hashes_and_reads_nothing(operands, monkeypatch, with_plan):
    dispatcher = Dispatcher(SilentBackend)
    call = dispatcher.plan(*operands).run if with_plan else dispatcher.matmul
    call(*operands)

    def forbidden(*_args, **_kwargs):
        raise AssertionError("a warm call reached the cold path")

    with monkeypatch.context() as patch:
        patch.setattr(Config, "violations", forbidden)
        patch.setattr(Source, "digest", forbidden)
        patch.setattr(sys.modules["tilewright.plan"], "render", forbidden)
        patch.setattr(sys.modules["tilewright.calls"], "check_addresses", forbidden)
        patch.setattr(registry.adapter_of(operands[0], "a"), "view", forbidden)
        patch.setattr(os, "environ", None)
        call(*operands)


@pytest.mark.parametrize("with_plan", [True, False])
def test_a_warm_call_costs_less_than_sixty_dictionary_look_ups(operands, with_plan):
    # 60 look-ups, each in a function of its own, are about 10 us where one is 0.17 us (2-core x86 host: 20 of them with
    # these tensors, whose every access is a Python call). Processor time of this thread, interleaved: a machine with
    # more work than cores stops one of the two loops for longer than it takes; by the clock the ratio was 2 to 147.
    dispatcher = Dispatcher(SilentBackend)
    call = dispatcher.plan(*operands).run if with_plan else dispatcher.matmul
    call(*operands)
    addresses = {tuple(x.data_ptr() for x in operands): True}
    key = next(iter(addresses))
    for tensor in operands:  # the stand-in reads NumPy's metadata slowly; torch keeps its own
        strides, address = tensor.stride(), tensor.data_ptr()
        tensor.stride, tensor.data_ptr = (lambda value=strides: value), (lambda value=address: value)

    def seconds(function, *arguments, repeats: int) -> float:
        start = time.thread_time()
        for _ in range(repeats):
            function(*arguments)
        return (time.thread_time() - start) / repeats

    def look_up(wanted):
        return addresses.get(wanted)

    ratios = [seconds(call, *operands, repeats=500) / seconds(look_up, key, repeats=5000) for _ in range(15)]
    assert statistics.median(ratios) < 60


@pytest.mark.parametrize("keeps_out", [True, False])
def test_scratch_of_torch_tensors_is_torchs_and_held_until_the_last_launch(fake, keeps_out):
    """B115, B121, B128: the caching allocator gives it to this stream alone, or to the graph that is being captured."""
    alive = []

    class Watching(HostBackend):
        def launch(self, call, stream):
            alive.append([held() is not None for held in fake.scratch])
            super().launch(call, stream)

    backend = Watching()
    a, b, out = (Tensor(gpu(shape, seed=1).host, fake) for shape in ((15, 21), (21, 24), (15, 24)))
    matmul = Dispatcher(lambda: backend).matmul
    for _ in range(2):
        alive.clear()
        fake.scratch.clear()
        found = matmul(a, b, out) if keeps_out else matmul(a, b)
        assert np.array_equal(found.host, (a.host.astype(float) @ b.host.astype(float)).astype(out.host.dtype))
        assert alive == [[True], [True]]
        assert [held() for held in fake.scratch] == [None]
    assert (backend.counts["allocate"], backend.counts["load"]) == (0, 2)


def test_scratch_of_slices_is_torchs_and_held_until_the_sums_are_enqueued(fake):
    """B115, B121, as above."""
    alive = []

    class Watching(HostBackend):
        def launch(self, call, stream):
            alive.append([held() is not None for held in fake.scratch])
            super().launch(call, stream)

    backend = Watching()
    a, b, out = (Tensor(gpu(shape, seed=1).host, fake) for shape in ((16, 256), (256, 24), (16, 24)))
    config = Config(tile_m=64, tile_n=64, consumers=1, stages=4, store_slots=1, slices=4)
    plan = Dispatcher(lambda: backend).plan(a, b, out, config=config)
    for _ in range(2):
        alive.clear()
        fake.scratch.clear()
        plan.run(a, b, out)
        assert np.array_equal(out.host, (a.host.astype(float) @ b.host.astype(float)).astype(out.host.dtype))
        assert alive == [[True], [True]]
        assert [held() for held in fake.scratch] == [None]
    assert (backend.counts["allocate"], backend.counts["load"]) == (0, 2)


def test_a_misaligned_tensor_leaves_the_way_of_aligned_ones_as_short_as_it_was(operands, fake):
    matmul = Dispatcher(SilentBackend).matmul
    flat = gpu((64 * 64 + 8,), seed=1).host
    matmul(Tensor(flat[1:4097].reshape(64, 64), fake), *operands[1:])
    matmul(*operands)
    entered, built_in = python_calls_of(matmul, *operands)
    assert entered == {"matmul": 1, "run": 1, "describe": 1}
    assert built_in == {"dict.get": 3}


def test_calls_of_several_steps_count_against_the_bound_on_packed_calls(fake, monkeypatch):
    monkeypatch.setattr(sys.modules["tilewright.calls"], "MAX_CALLS", 4)
    dispatcher = Dispatcher(HostBackend)
    plan = dispatcher.plan(*(Tensor(gpu(shape).host, fake) for shape in ((15, 21), (21, 24), (15, 24))))
    kept = []
    for _ in range(9):
        arrays = tuple(Tensor(gpu(shape).host, fake) for shape in ((15, 21), (21, 24), (15, 24)))
        kept.append(arrays)
        plan.run(*arrays)
    (bound,) = plan._by_place.values()
    assert len(bound.calls) < 4
