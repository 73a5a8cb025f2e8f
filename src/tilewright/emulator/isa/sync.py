"""Rows of the table for waiting and meeting: barriers of every kind, fences, exits, setmaxnreg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.barriers import NamedBarrier
from tilewright.emulator.events import Site
from tilewright.emulator.integers import WINDOWS
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Instruction, Mem, Operand, Reg
from tilewright.emulator.values import PARKED

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.launch import Cta
    from tilewright.emulator.machine import Machine
    from tilewright.emulator.team import Fragment, Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

WARP = 32
NAMED_BARRIERS = 16
REGISTER_MIN, REGISTER_MAX = 24, 256  # of setmaxnreg. Source: PTX ISA

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    flags.setdefault("destinations", 0)
    FORMS.append(Form(pattern, emit, family, **flags))


def _nothing(e: Emitter, i: Instruction, m: Modifiers) -> None:
    return None


# -- leaving ---------------------------------------------------------------------------------------------------------

_form("ret[.uni]", lambda e, i, m: _leave(e), "control", ends=True)
_form("exit", lambda e, i, m: _leave(e), "control", ends=True)
_form("trap", lambda e, i, m: _trap(e), "control", ends=True)
_form("brkpt", _nothing, "control")
_form("nanosleep.u32", _nothing, "control", unread=1)
_form("pmevent[.mask]", _nothing, "control", unread=1)


def _leave(e: Emitter) -> None:
    e.flush()
    e.line(f"return T.exit(T.current, {e.site})")


def _trap(e: Emitter) -> None:
    e.flush()
    e.line(f"return {e.call(trap)}")


def trap(team: Team, s: Any, n: int, site: Site) -> int:
    raise team.error(site, "trap", "the kernel ended itself", s, 0)


# -- what several families use ---------------------------------------------------------------------------------------


def shared_address(e: Emitter, operand: Operand) -> str:
    """The 32-bit shared address of [a], where a may be 64 bits wide or generic."""
    base = operand.base if isinstance(operand, Mem) else operand
    if isinstance(base, Reg) and base.type[1:] == "64":
        return e.fresh(f"{e.hold(shared_window)}({e.address(operand, 'u64')})")
    return e.address(operand, "u32")


def shared_window(addresses: Array) -> Array:
    """Generic addresses in the shared window as 32-bit shared addresses; 32-bit ones stay what they are."""
    start = np.uint64(WINDOWS["shared"])
    return np.where(addresses >= start, addresses - start, addresses).astype(np.uint32)


def uniform(values: Array) -> bool:
    if len(values) == 1:
        return True
    first = values[:1].tobytes()
    return values.tobytes() == first * len(values)


# -- named barriers of a CTA -----------------------------------------------------------------------------------------

_form("bar.warp.sync", lambda e, i, m: _bar_warp(e), "barrier", aligned="warp", unread=1)
_form("bar[.cta].<op:sync|arrive>", lambda e, i, m: _bar(e, i, m), "barrier", aligned="warp", starts=True, ends=True)
_form(
    "barrier[.cta].<op:sync|arrive>.aligned",
    lambda e, i, m: _bar(e, i, m),
    "barrier",
    aligned="warp",
    starts=True,
    ends=True,
)
_form(
    "barrier[.cta].<op:sync|arrive>", lambda e, i, m: _bar(e, i, m), "barrier", aligned="warp", starts=True, ends=True
)


def _bar_warp(e: Emitter) -> None:
    e.line(e.call(warp_met))


def warp_met(team: Team, s: Any, n: int, site: Site) -> None:
    """The lanes are together: tells the observer."""
    if team.machine.observer is not None:
        team.machine.observer.warp_sync(site, team.cta.index, team.threads_of(s))


def _bar(e: Emitter, i: Instruction, m: Modifiers) -> None:
    number = e.read(i.operands[0], "u32")
    count = e.read(i.operands[1], "u32") if len(i.operands) > 1 else "None"
    e.flush()
    e.line(f"return {e.call(bar, number, count, str(m['op'] == 'sync'), str(e.next_block))}")


def bar(team: Team, s: Any, n: int, site: Site, numbers: Array, counts: Array | None, waits: bool, after: int) -> int:
    """bar.sync and bar.arrive of whole warps."""
    if not uniform(numbers):
        return team.split(numbers)
    if counts is not None and not uniform(counts):
        return team.split(counts)
    number = int(numbers[0])
    if number >= NAMED_BARRIERS:
        raise team.error(site, "barrier number", f"barrier {number}; a CTA has 0 .. {NAMED_BARRIERS - 1}")
    expected = 0 if counts is None else int(counts[0])
    if expected % WARP or (counts is not None and not expected):
        raise team.error(site, "barrier count", f"{expected} threads is no positive multiple of {WARP}")
    if len(team.ctas) > 1:
        if (
            s is None
            and not expected
            and waits
            and team.num_live == team.width
            and not any(c.barriers for c in team.ctas)
        ):
            return after  # every thread of every CTA is here
        lanes = team.lanes if s is None else team.lanes[s]
        owners = lanes // team.machine.geometry.threads
        if owners[0] != owners[-1]:
            return team.split(owners)
        cta = team.ctas[int(owners[0])]
    else:
        cta = team.cta
    return _bar_of(team, cta, s, n, site, number, expected, waits, after)


def _bar_of(
    team: Team, cta: Cta, s: Any, n: int, site: Site, number: int, expected: int, waits: bool, after: int
) -> int:
    machine = team.machine
    barrier = cta.barriers.get(number)
    if barrier is None:
        barrier = cta.barriers[number] = NamedBarrier(number)
    if barrier.arrived and barrier.expected != expected:
        raise team.error(
            site,
            "barrier count",
            f"barrier {number} is used with {expected} threads while {barrier.expected} are expected",
        )
    barrier.expected = expected
    threads = team.threads_of(s)
    arriving = WARP * len(np.unique(threads // WARP)) if s is not None else -(-n // WARP) * WARP
    barrier.arrived += arriving
    needed = expected or _live_threads(cta)
    if barrier.arrived > needed:
        raise team.error(
            site, "barrier over-arrival", f"{barrier.arrived} threads at barrier {number}, which expects {needed}"
        )
    generation = barrier.generation
    if machine.observer is not None:
        machine.observer.bar_arrive(site, cta.index, threads, number, generation, waits)
    if waits:
        fragment = team.park(
            after,
            lambda: f"waits at barrier {number}: {barrier.arrived} of {barrier.expected or _live_threads(cta)} threads",
        )
        barrier.waiters.append(fragment)
        fragment.site = site
    _settle_named(machine, cta, barrier)
    return PARKED if waits else after


def _live_threads(cta: Cta) -> int:
    """Threads that barriers without a count expect: those of warps that have not left."""
    return -(-cta.live_threads // WARP) * WARP


def _settle_named(machine: Machine, cta: Cta, barrier: NamedBarrier) -> None:
    if not barrier.arrived or barrier.arrived < (barrier.expected or _live_threads(cta)):
        return
    waiters, barrier.waiters = barrier.waiters, []
    generation = barrier.generation
    barrier.generation += 1
    barrier.arrived = 0
    for fragment in waiters:
        if machine.observer is not None:
            threads = fragment.team.threads_of(fragment.selection)
            site = fragment.site
            assert site is not None  # set where it was parked
            machine.observer.bar_leave(site, cta.index, threads, barrier.number, generation)
        machine.wake(fragment)


def threads_left(machine: Machine, cta: Cta) -> None:
    """Threads of the CTA have left: barriers that count those who are there may be complete now."""
    for barrier in cta.barriers.values():
        if not barrier.expected:
            _settle_named(machine, cta, barrier)
    _settle_cluster(machine, cta)
    machine.progress_mark = machine.blocks_run
    machine.exits += 1


# -- the barrier of a cluster ----------------------------------------------------------------------------------------

_form(
    "barrier.cluster.arrive[.<sem:release|relaxed>][<aligned:.aligned>]",
    lambda e, i, m: _cluster(e, m, True),
    "barrier",
    aligned="warp",
    starts=True,
    ends=True,
)
_form(
    "barrier.cluster.wait[.<sem:acquire>][<aligned:.aligned>]",
    lambda e, i, m: _cluster(e, m, False),
    "barrier",
    aligned="warp",
    starts=True,
    ends=True,
)


def _cluster(e: Emitter, m: Modifiers, arrives: bool) -> None:
    e.flush()
    function = cluster_arrive if arrives else cluster_wait
    e.line(f"return {e.call(function, repr(m['sem'] or ('release' if arrives else 'acquire')), str(e.next_block))}")


def cluster_arrive(team: Team, s: Any, n: int, site: Site, semantics: str, after: int) -> int:
    """barrier.cluster.arrive."""
    machine, barrier, fragment = team.machine, team.cta.cluster.barrier, team.current
    if fragment.cluster_generation >= barrier.generation:
        raise team.error(site, "cluster barrier", "arrives twice without barrier.cluster.wait between")
    fragment.cluster_generation = barrier.generation
    barrier.arrived += n
    if machine.observer is not None:
        machine.observer.cluster_arrive(site, team.cta.index, team.threads_of(s), barrier.generation, semantics)
    _settle_cluster(machine, team.cta)
    return after


def cluster_wait(team: Team, s: Any, n: int, site: Site, semantics: str, after: int) -> int:
    """barrier.cluster.wait."""
    machine, barrier, fragment = team.machine, team.cta.cluster.barrier, team.current
    generation = fragment.cluster_generation
    if generation < 0:
        raise team.error(site, "cluster barrier", "waits without barrier.cluster.arrive before")
    if barrier.generation > generation:
        _cluster_leave(machine, fragment, site, semantics)
        return after
    cluster = team.cta.cluster
    parked = team.park(
        after,
        lambda: (
            f"waits at the cluster barrier: {barrier.arrived} of {sum(c.live_threads for c in cluster.ctas)} threads "
            f"of {len(cluster.ctas)} CTA(s)"
        ),
    )
    parked.site, parked.semantics = site, semantics
    barrier.waiters.append(parked)
    return PARKED


def _cluster_leave(machine: Machine, fragment: Fragment, site: Site, semantics: str) -> None:
    if machine.observer is not None:
        team = fragment.team
        threads = team.threads_of(fragment.selection)
        machine.observer.cluster_leave(site, team.cta.index, threads, fragment.cluster_generation, semantics)
    fragment.cluster_generation = -1


def _settle_cluster(machine: Machine, cta: Cta) -> None:
    barrier = cta.cluster.barrier
    if not barrier.arrived or barrier.arrived < sum(other.live_threads for other in cta.cluster.ctas):
        return
    waiters, barrier.waiters = barrier.waiters, []
    barrier.arrived = 0
    barrier.generation += 1
    for fragment in waiters:
        assert fragment.site is not None  # set where it was parked
        _cluster_leave(machine, fragment, fragment.site, fragment.semantics)
        machine.wake(fragment)


# -- fences ----------------------------------------------------------------------------------------------------------

_form(
    "fence.proxy.async[.<space:shared::cta|shared::cluster|global>]",
    lambda e, i, m: _fence(e, "proxy.async" + (f".{m['space']}" if m["space"] else "")),
    "fence",
)
_form(
    "fence.proxy.<kind:alias|tensormap::generic.release.cta|tensormap::generic.release.cluster|tensormap::generic.release.gpu|tensormap::generic.release.sys>",
    lambda e, i, m: _fence(e, f"proxy.{m['kind']}"),
    "fence",
)
_form("fence.mbarrier_init.release.cluster", lambda e, i, m: _fence(e, "mbarrier_init"), "fence")
_form(
    "fence[.<sem:sc|acq_rel|acquire|release>].<scope:cta|cluster|gpu|sys>",
    lambda e, i, m: _fence(e, f"{m['sem'] or 'acq_rel'}.{m['scope']}"),
    "fence",
)
_form(
    "membar.<level:cta|gl|sys>",
    lambda e, i, m: _fence(e, "sc." + {"cta": "cta", "gl": "gpu", "sys": "sys"}[m["level"]]),
    "fence",
)
_form("griddepcontrol.<op:launch_dependents|wait>", _nothing, "control")


def _fence(e: Emitter, kind: str) -> None:
    e.line(e.call(fence, repr(kind)))


def fence(team: Team, s: Any, n: int, site: Site, kind: str) -> None:
    """Order matters to the observer alone: values here are sequentially consistent."""
    if team.machine.observer is not None:
        team.machine.observer.fence(site, team.cta.index, team.threads_of(s), kind)


# -- setmaxnreg ------------------------------------------------------------------------------------------------------

_form(
    "setmaxnreg.<op:inc|dec>.sync.aligned.u32",
    lambda e, i, m: _setmaxnreg(e, i, m),
    "control",
    aligned="warpgroup",
    starts=True,
    ends=True,
)


def _setmaxnreg(e: Emitter, i: Instruction, m: Modifiers) -> None:
    count = e.constant_int(i.operands[0])
    e.flush()
    e.line(f"return {e.call(setmaxnreg, repr(m['op']), repr(count), str(e.next_block))}")


def setmaxnreg(team: Team, s: Any, n: int, site: Site, op: str, count: int | None, after: int) -> int:
    """Registers of whole warps go to the CTA's pool or come from it; more than it has must wait."""
    if count is None or count % 8 or not REGISTER_MIN <= count <= REGISTER_MAX:
        message = f"{count} registers; a literal multiple of 8 from {REGISTER_MIN} to {REGISTER_MAX} is allowed"
        raise team.error(site, "setmaxnreg", message)
    cta = team.cta
    warps = np.unique(team.threads_of(s) // WARP).tolist()
    change = 0
    for warp in warps:
        held = cta.warp_registers[warp]
        if (op == "inc" and count < held) or (op == "dec" and count > held):
            raise team.error(site, "setmaxnreg", f"{op} to {count} by warp {warp}, which has {held} registers a thread")
        change += (count - held) * WARP
    if change > cta.spare_registers:
        parked = team.park(
            team.current.block,
            lambda: f"waits for {change} registers; the CTA's pool has {cta.spare_registers} to spare",
        )
        cta.register_waiters.append((parked, change))
        return PARKED
    cta.spare_registers -= change
    for warp in warps:
        cta.warp_registers[warp] = count
    machine = team.machine
    if machine.observer is not None:
        machine.observer.setmaxnreg(site, cta.index, team.threads_of(s), op, count)
    if change < 0:
        waiters, cta.register_waiters = cta.register_waiters, []
        for fragment, _ in waiters:
            machine.wake(fragment)
    return after
