"""What an observer hears: every event of real kernels, in an order that makes sense; and that it changes no bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from products import H200, Product, binary, multiply, product
from snippets import execute, kernel

from tilewright.backends.emulated import emulated
from tilewright.config import Config
from tilewright.emulator.events import AsyncOp, Finding, Observer, Site
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.run import Grid, run
from tilewright.kernels.hopper import HOPPER
from tilewright.packing import packed
from tilewright.problem import Problem


class Recorder(Observer):
    """Keeps (name, arguments) of every call."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in EVENTS:
            method = getattr(Observer, name)
            events = object.__getattribute__(self, "events")

            def hear(*arguments: Any) -> None:
                method(self, *arguments)  # the number of arguments is the protocol's
                events.append((name, arguments))

            return hear
        return object.__getattribute__(self, name)

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for event, arguments in self.events if event == name]


EVENTS = {name for name in vars(Observer) if not name.startswith("_")}


def record(problem: Problem, config: Config, num_sms: int, given: Product | None = None, **choices: Any) -> Recorder:
    """The events of the Hopper kernel; its numbers are checked on the way."""
    given = given or product(problem)
    backend = emulated()
    launch = HOPPER.launch(problem, config, H200, num_sms)
    for array in given.rows:
        backend.lend(array.ctypes.data, array.nbytes)
    addresses = {name: array.ctypes.data for name, array in zip(("a", "b", "out"), given.rows, strict=True)}
    loaded = backend.load(binary(HOPPER, problem, config), 0, launch)
    call = backend.pack(loaded, launch, HOPPER.arguments(problem, config, launch), addresses)
    memory = GlobalMemory()
    for name, array in zip(("a", "b", "out"), given.rows, strict=True):
        memory.add(name, array, array.ctypes.data)
    recorder = Recorder()
    shape = Grid(grid=launch.grid, block=launch.block, cluster=launch.cluster, smem_bytes=launch.smem_bytes)
    run(loaded.binary.ptx, loaded.binary.entry, shape, call.parameters, memory, observer=recorder, **choices)
    assert given.excess() <= 1
    return recorder


@pytest.mark.parametrize(("schedule", "width"), [("lazy", None), ("eager", None), ("random", None), ("random", "warp")])
@pytest.mark.parametrize("cluster_m", [1, 2])
def test_hopper_kernel_tells_a_consistent_story(schedule: str, width: str | None, cluster_m: int) -> None:
    problem, config = packed(256, 128, 200), Config(tile_m=128, tile_n=128, cluster_m=cluster_m, stages=2)
    recorder = record(problem, config, 2, schedule=schedule, width=width)
    counts = Counter(name for name, _ in recorder.events)
    num_k_tiles, num_ctas = 4, 2
    assert counts["begin"] == counts["end"] == 1
    assert counts["cta_start"] == counts["cta_exit"] == num_ctas
    assert counts["mbarrier_init"] == 2 * config.stages * num_ctas
    assert counts["op_issue"] == counts["op_done"]
    kinds = Counter(op.kind for (op,) in recorder.named("op_issue"))
    assert kinds["tma_load"] == 2 * num_k_tiles * num_ctas
    assert kinds["wgmma"] == 4 * num_k_tiles * num_ctas * config.consumers
    assert kinds["tma_store"] == 2 * 8 * num_ctas
    loaded = Counter(op.kind for op, space, _, _ in recorder.named("op_write") if space == "shared")
    assert loaded == {"tma_load": kinds["tma_load"]}
    assert sum(n for _, _, n, _ in recorder.named("op_complete_tx")) == num_k_tiles * num_ctas * 32768
    fulls = [barrier for barrier, phase in recorder.named("mbarrier_phase")]
    assert len(fulls) >= 2 * num_k_tiles * num_ctas - 2 * num_ctas


@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_effects_of_an_operation_lie_between_its_issue_and_its_end(schedule: str) -> None:
    recorder = record(packed(128, 128, 200), Config(tile_m=128, tile_n=128), 1, schedule=schedule)
    begun: set[AsyncOp] = set()
    ended: set[AsyncOp] = set()
    observed: set[AsyncOp] = set()
    phases: dict[int, int] = {}
    for name, arguments in recorder.events:
        if name == "op_issue":
            begun.add(arguments[0])
        elif name in ("op_read", "op_write", "op_complete_tx"):
            assert arguments[0] in begun - ended
        elif name == "op_done":
            assert arguments[0].state == "done"
            ended.add(arguments[0])
        elif name == "wait_group":
            ops, read_only = arguments[4], arguments[5]
            assert all(op in ended or (read_only and op.state in ("read", "done")) for op in ops)
            assert all(op.group is not None for op in ops)
            observed |= set(ops)
        elif name == "mbarrier_phase":
            barrier, phase = arguments
            assert phase == phases.get(barrier, -1) + 1
            phases[barrier] = phase
        elif name == "mbarrier_wait":
            assert arguments[4] <= phases.get(arguments[3], -1)
    assert begun == ended
    assert {op for op in begun if op.kind == "wgmma"} <= observed
    assert {op for op in begun if op.kind == "tma_store"} <= observed


def test_accesses_name_threads_spaces_and_owners() -> None:
    module = ".shared .align 16 .b8 buffer[256];"
    body = """
mov.u32 %r5, buffer;
shl.b32 %r6, %r0, 2;
add.u32 %r6, %r6, %r5;
st.shared.u32 [%r6], %r0;
bar.sync 0;
ld.shared.u32 %r1, [%r6];
atom.global.add.u32 %r2, [%rd0], 1;
ld.acquire.gpu.global.u32 %r3, [%rd0];
st.global.u32 [%rd4], %r1;
"""
    recorder = Recorder()
    execute(kernel(body, module), block=64, out_bytes=256, observer=recorder, width="cta")
    machine = recorder.named("begin")[0][0]
    heard = [(a[3], a[6], a[5], a[8], a[9]) for a in recorder.named("access")]
    assert heard == [
        ("shared", "write", 4, "weak", ""),
        ("shared", "read", 4, "weak", ""),
        ("global", "atomic", 4, "relaxed", "gpu"),
        ("global", "read", 4, "acquire", "gpu"),
        ("global", "write", 4, "weak", ""),
    ]
    site, cta, threads, _, addresses, *_ = recorder.named("access")[0]
    assert isinstance(site, Site)
    assert cta == 0
    assert (threads == np.arange(64)).all()
    assert (np.diff(addresses) == 4).all()
    assert machine.smem_stride % 1024 == 0
    arrived, left = recorder.named("bar_arrive"), recorder.named("bar_leave")
    assert [a[3:] for a in arrived] == [(0, 0, True)]
    assert [a[3:] for a in left] == [(0, 0)]


def test_one_event_never_spans_two_ctas() -> None:
    recorder = Recorder()
    execute(kernel("st.global.u32 [%rd4], %r0;"), grid=3, block=64, out_bytes=256, observer=recorder, width="grid")
    assert [(a[1], len(a[2])) for a in recorder.named("access")] == [(0, 64), (1, 64), (2, 64)]


def test_observer_changes_no_bytes() -> None:
    problem, config = packed(136, 136, 136), Config(tile_m=128, tile_n=128)
    plain, watched = product(problem), product(problem)
    multiply(plain, config, num_sms=2)
    record(problem, config, 2, watched)
    assert plain.out.tobytes() == watched.out.tobytes()


def test_finding_tells_rule_places_and_repair_line_by_line() -> None:
    site = Site(12, "ld.shared.u32", "", ("a.cu:3", "b.cu:9"))
    finding = Finding(
        rule="race",
        message="two accesses meet",
        repair="put a barrier between",
        site=site,
        other_site=site,
        cta=1,
        warp=2,
    )
    text = str(finding)
    assert len(text.split("\n")) == 4
    for part in (
        "race: two accesses meet",
        "PTX line 12",
        "a.cu:3 from b.cu:9",
        "CTA 1, warp 2",
        "repair: put a barrier",
    ):
        assert part in text
