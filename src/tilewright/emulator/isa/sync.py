"""Rows of the table for waiting and meeting: barriers of every kind, fences, exits, setmaxnreg, and exchanges in a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.barriers import BarrierError, Mbarrier, NamedBarrier
from tilewright.emulator.events import Site
from tilewright.emulator.integers import WINDOWS
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.ptx import Imm, Instruction, Mem, Name, Not, Operand, Pair, Reg
from tilewright.emulator.values import EXITED, PARKED

if False:  # for annotations only: translate and machine import this module
    from tilewright.emulator.machine import Cta, Fragment, Machine, Team
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


# -- leaving ----------------------------------------------------------------------------------------------------------

_form("ret[.uni]", lambda e, i, m: _leave(e), "control", ends=True)
_form("exit", lambda e, i, m: _leave(e), "control", ends=True)
_form("trap", lambda e, i, m: _trap(e), "control", ends=True)
_form("brkpt", _nothing, "control")
_form("nanosleep.u32", _nothing, "control")
_form("pmevent[.mask]", _nothing, "control")


def _leave(e: Emitter) -> None:
    e.flush()
    e.line(f"return T.exit(T.current, {e.site})")


def _trap(e: Emitter) -> None:
    e.flush()
    e.line(f"return {e.call(trap)}")


def trap(team: Team, s: Any, n: int, site: Site) -> int:
    raise team.error(site, "trap", "the kernel ended itself", s, 0)


# -- named barriers of a CTA --------------------------------------------------------------------------------------------

_form("bar.warp.sync", lambda e, i, m: _bar_warp(e), "barrier", aligned="warp")
_form("bar[.cta].<op:sync|arrive>", lambda e, i, m: _bar(e, i, m), "barrier", aligned="warp", starts=True, ends=True)
_form("barrier[.cta].<op:sync|arrive>.aligned", lambda e, i, m: _bar(e, i, m), "barrier", aligned="warp", starts=True, ends=True)
_form("barrier[.cta].<op:sync|arrive>", lambda e, i, m: _bar(e, i, m), "barrier", aligned="warp", starts=True, ends=True)


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
    if not _uniform(numbers):
        return team.split(numbers)
    if counts is not None and not _uniform(counts):
        return team.split(counts)
    number = int(numbers[0])
    if number >= NAMED_BARRIERS:
        raise team.error(site, "barrier number", f"barrier {number}; a CTA has 0 .. {NAMED_BARRIERS - 1}")
    expected = 0 if counts is None else int(counts[0])
    if expected % WARP or (counts is not None and not expected):
        raise team.error(site, "barrier count", f"{expected} threads is no positive multiple of {WARP}")
    if len(team.ctas) > 1:
        if s is None and not expected and waits and team.num_live == team.width and not any(c.barriers for c in team.ctas):
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
            site, "barrier count", f"barrier {number} is used with {expected} threads while {barrier.expected} are expected"
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
            site: Site = fragment.site
            machine.observer.bar_leave(site, cta.index, threads, barrier.number, generation)
        machine.wake(fragment)


def threads_left(machine: Machine, cta: Cta) -> None:
    """Threads of the CTA have left: barriers that count those who are there may be complete now."""
    for barrier in cta.barriers.values():
        if not barrier.expected:
            _settle_named(machine, cta, barrier)
    _settle_cluster(machine, cta)
    machine.progress_mark = machine.blocks_run


# -- the barrier of a cluster ---------------------------------------------------------------------------------------------

_form("barrier.cluster.arrive[.<sem:release|relaxed>][<aligned:.aligned>]", lambda e, i, m: _cluster(e, m, True), "barrier", aligned="warp", starts=True, ends=True)
_form("barrier.cluster.wait[.<sem:acquire>][<aligned:.aligned>]", lambda e, i, m: _cluster(e, m, False), "barrier", aligned="warp", starts=True, ends=True)


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
            f"waits at the cluster barrier: {barrier.arrived} of {sum(c.live_threads for c in cluster.ctas)} threads of "
            f"{len(cluster.ctas)} CTA(s)"
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
        _cluster_leave(machine, fragment, fragment.site, fragment.semantics)
        machine.wake(fragment)


# -- fences -------------------------------------------------------------------------------------------------------------

_form("fence.proxy.async[.<space:shared::cta|shared::cluster|global>]", lambda e, i, m: _fence(e, "proxy.async" + (f".{m['space']}" if m["space"] else "")), "fence")
_form("fence.proxy.<kind:alias|tensormap::generic.release.cta|tensormap::generic.release.cluster|tensormap::generic.release.gpu|tensormap::generic.release.sys>", lambda e, i, m: _fence(e, f"proxy.{m['kind']}"), "fence")
_form("fence.mbarrier_init.release.cluster", lambda e, i, m: _fence(e, "mbarrier_init"), "fence")
_form("fence[.<sem:sc|acq_rel|acquire|release>].<scope:cta|cluster|gpu|sys>", lambda e, i, m: _fence(e, f"{m['sem'] or 'acq_rel'}.{m['scope']}"), "fence")
_form("membar.<level:cta|gl|sys>", lambda e, i, m: _fence(e, "sc." + {"cta": "cta", "gl": "gpu", "sys": "sys"}[m["level"]]), "fence")
_form("griddepcontrol.<op:launch_dependents|wait>", _nothing, "control")


def _fence(e: Emitter, kind: str) -> None:
    e.line(e.call(fence, repr(kind)))


def fence(team: Team, s: Any, n: int, site: Site, kind: str) -> None:
    """Order matters to the observer alone: values here are sequentially consistent."""
    if team.machine.observer is not None:
        team.machine.observer.fence(site, team.cta.index, team.threads_of(s), kind)


# -- mbarrier -----------------------------------------------------------------------------------------------------------

_SPACE = "[.<space:shared::cta|shared::cluster|shared>]"
_SEM = "[.<sem:release|relaxed|acquire>][.<scope:cta|cluster>]"
_form(f"mbarrier.init{_SPACE}.b64", lambda e, i, m: _mbarrier_init(e, i, m), "mbarrier")
_form(f"mbarrier.inval{_SPACE}.b64", lambda e, i, m: e.line(e.call(mbarrier_inval, _place(e, i.operands[0], m))), "mbarrier")
_form(f"mbarrier.expect_tx[.relaxed][.<scope:cta|cluster>]{_SPACE}.b64", lambda e, i, m: _mbarrier_tx(e, i, m, "expect"), "mbarrier")
_form(f"mbarrier.complete_tx[.relaxed][.<scope:cta|cluster>]{_SPACE}.b64", lambda e, i, m: _mbarrier_tx(e, i, m, "complete"), "mbarrier")
_form(f"mbarrier.arrive[<tx:.expect_tx>]{_SEM}{_SPACE}.b64", lambda e, i, m: _mbarrier_arrive(e, i, m), "mbarrier", destinations=1)
_form(f"mbarrier.arrive[<tx:.expect_tx>]{_SPACE}{_SEM}.b64", lambda e, i, m: _mbarrier_arrive(e, i, m), "mbarrier", destinations=1)
_form(f"mbarrier.arrive.noComplete{_SEM}{_SPACE}.b64", lambda e, i, m: _mbarrier_arrive(e, i, {**m, "tx": ""}), "mbarrier", destinations=1)
_form(f"mbarrier.<op:try_wait|test_wait>[<parity:.parity>]{_SEM}{_SPACE}.b64", lambda e, i, m: _mbarrier_wait(e, i, m), "mbarrier", starts=True, destinations=1)
_form("mbarrier.pending_count.b64", lambda e, i, m: e.write(i.operands[0], "u32", f"({e.read(i.operands[1], 'u64', wide=True)} & np.uint64(0xFFFFF)).astype(u4)"), "mbarrier", destinations=1)


def _place(e: Emitter, operand: Operand, m: Modifiers) -> str:
    """A shared address in 32 bits, of an operand in the generic or a shared window."""
    if not isinstance(operand, Mem):
        raise e.error("an mbarrier must stand in brackets")
    base = operand.base
    wide = isinstance(base, Reg) and base.type[1:] == "64"
    if not wide:
        return e.address(operand, "u32")
    address = e.address(operand, "u64")
    return e.fresh(f"{e.hold(shared_window)}({address})")


def shared_window(addresses: Array) -> Array:
    """Generic addresses in the shared window as 32-bit shared addresses; 32-bit ones stay what they are."""
    start = np.uint64(WINDOWS["shared"])
    return np.where(addresses >= start, addresses - start, addresses).astype(np.uint32)


def _mbarrier_init(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place = _place(e, i.operands[0], m)
    e.line(e.call(mbarrier_init, place, e.read(i.operands[1], "u32")))


def mbarrier_init(team: Team, s: Any, n: int, site: Site, addresses: Array, counts: Array) -> None:
    """mbarrier.init."""
    machine = team.machine
    flat = _own(team, s, site, addresses)
    threads = team.threads_of(s)
    for position, place in enumerate(flat.tolist()):
        live = machine.mbarriers.get(place)
        if live is not None:
            message = f"initialises a live mbarrier: {machine.describe_barrier(place)}; mbarrier.inval comes first"
            raise team.error(site, "mbarrier re-init", message, s, position)
        try:
            machine.mbarriers[place] = Mbarrier(place, int(counts[position if len(counts) > 1 else 0]))
        except BarrierError as broken:
            raise team.error(site, broken.rule, broken.message, s, position) from None
        machine.smem.views[8][place // 8] = 0
        if machine.observer is not None:
            count = machine.mbarriers[place].count
            machine.observer.mbarrier_init(site, team.cta.index, int(threads[position]), place, count)


def mbarrier_inval(team: Team, s: Any, n: int, site: Site, addresses: Array) -> None:
    """mbarrier.inval."""
    machine = team.machine
    for position, place in enumerate(_own(team, s, site, addresses).tolist()):
        barrier = _live(team, s, site, place, position)
        if barrier.waiters:
            raise team.error(site, "mbarrier inval", f"invalidates while {machine.describe_barrier(place)} is waited for", s)
        del machine.mbarriers[place]
        if machine.observer is not None:
            thread = int(team.threads_of(s)[position])
            machine.observer.mbarrier_inval(site, team.cta.index, thread, place)


def _own(team: Team, s: Any, site: Site, addresses: Array) -> Array:
    """Flat places of barriers of the own CTA."""
    flat = team.flat(site, addresses, 8, s)
    if int(addresses.max()) >= 1 << 24 and (flat // team.machine.smem.stride != team.cta.slot).any():
        raise team.error(site, "remote mbarrier", "only arrive, expect_tx and complete_tx may name another CTA's mbarrier")
    return flat


def _live(team: Team, s: Any, site: Site, place: int, position: int) -> Mbarrier:
    barrier = team.machine.mbarriers.get(place)
    if barrier is None:
        where = team.machine.describe_barrier(place)
        raise team.error(site, "mbarrier before init", f"uses {where}; mbarrier.init has not run", s, position)
    return barrier


def _mbarrier_tx(e: Emitter, i: Instruction, m: Modifiers, op: str) -> None:
    place = _place(e, i.operands[0], m)
    e.line(e.call(mbarrier_tx, place, e.read(i.operands[1], "u32"), repr(op)))


def mbarrier_tx(team: Team, s: Any, n: int, site: Site, addresses: Array, amounts: Array, op: str) -> None:
    """mbarrier.expect_tx and mbarrier.complete_tx."""
    machine = team.machine
    for position, place in enumerate(team.flat(site, addresses, 8, s).tolist()):
        barrier = _live(team, s, site, place, position)
        amount = int(amounts[position if len(amounts) > 1 else 0])
        phase = barrier.phase
        try:
            done = barrier.expect(amount) if op == "expect" else barrier.complete(amount)
        except BarrierError as broken:
            raise team.error(site, broken.rule, f"{broken.message}; {machine.describe_barrier(place)}", s, position) from None
        if machine.observer is not None and op == "expect":
            threads = team.threads_of(s)[position : position + 1]
            machine.observer.mbarrier_expect(site, team.cta.index, threads, place, amount, phase)
        if done:
            machine.phase_completed(barrier)


def _mbarrier_arrive(e: Emitter, i: Instruction, m: Modifiers) -> None:
    operands = i.operands
    if isinstance(operands[0], Mem):  # no state asked for
        operands = (Name("_"), *operands)
    place = _place(e, operands[1], m)
    third = e.read(operands[2], "u32") if len(operands) > 2 else "None"
    amounts = (third, "None") if m["tx"] else ("None", third)
    call = e.call(mbarrier_arrive, place, *amounts, repr(m["sem"] or "release"), repr(m["scope"] or "cta"))
    e.write(operands[0], "b64", call)


def mbarrier_arrive(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    expected: Array | None,
    counts: Array | None,
    semantics: str,
    scope: str,
) -> Array:
    """mbarrier.arrive, with or without expect_tx: thread after thread. Returns the phase each arrived on."""
    machine = team.machine
    flat = team.flat(site, addresses, 8, s)
    threads = team.threads_of(s)
    states = np.zeros(n, np.uint64)
    remote = flat // machine.smem.stride != team.cta.slot
    for position, place in enumerate(flat.tolist()):
        barrier = _live(team, s, site, place, position)
        tx = 0 if expected is None else int(expected[position if len(expected) > 1 else 0])
        count = 1 if counts is None else int(counts[position if len(counts) > 1 else 0])
        phase = barrier.phase
        states[position] = phase << 20
        try:
            if tx:
                barrier.expect(tx)
            done = barrier.arrive(count)
        except BarrierError as broken:
            raise team.error(site, broken.rule, f"{broken.message}; {machine.describe_barrier(place)}", s, position) from None
        if machine.observer is not None:
            one = threads[position : position + 1]
            machine.observer.mbarrier_arrive(
                site, team.cta.index, one, place, count, phase, bool(remote[position]), semantics, scope, tx
            )
        if done:
            machine.phase_completed(barrier)
    return states


def _mbarrier_wait(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place = _place(e, i.operands[1], m)
    value = e.read(i.operands[2], "u32" if m["parity"] else "u64", wide=isinstance(i.operands[2], Imm))
    semantics = repr(m["sem"] or "acquire"), repr(m["scope"] or "cta")
    call = e.call(mbarrier_wait, place, value, str(bool(m["parity"])), str(m["op"] == "try_wait"), *semantics)
    result = e.fresh(call)
    e.line(f"if {result} is None: return PARKED")
    e.write(i.operands[0], "pred", result)


def mbarrier_wait(
    team: Team, s: Any, n: int, site: Site, addresses: Array, values: Array, parity: bool, tries: bool, semantics: str, scope: str
) -> Array | None:
    """try_wait and test_wait. None: the threads are parked until the phase completes, and ask again."""
    machine, fragment = team.machine, team.current
    if not _uniform(addresses):
        team.split(addresses)
        return None
    if not _uniform(values):
        team.split(values)
        return None
    flat = int(_own(team, s, site, addresses[:1])[0]) if s is None or team.base.__class__ is int else int(_own(team, s, site, addresses)[0])
    barrier = _live(team, s, site, flat, 0)
    waited = fragment.waits_for
    fragment.waits_for = None
    if parity:
        wanted = int(values[0])
        if wanted > 1:
            raise team.error(site, "parity", f"parity {wanted} is neither 0 nor 1")
        complete = barrier.is_complete(wanted)
        phase = barrier.phase - 1 if complete else barrier.phase
        if waited is not None and waited[0] == flat and barrier.phase > waited[1] + 1:
            raise team.error(
                site,
                "lapped waiter",
                f"waited for phase {waited[1]} and was overtaken: {machine.describe_barrier(flat)}; only the current and the "
                "preceding phase may be asked for",
            )
    else:
        phase = int(values[0]) >> 20
        complete = barrier.phase > phase
    if complete and tries and machine.schedule.fails():
        return np.zeros(n, np.bool_)
    if complete:
        barrier.observed = True
        if machine.observer is not None:
            machine.observer.mbarrier_wait(site, team.cta.index, team.threads_of(s), flat, phase, semantics, scope)
        return np.ones(n, np.bool_)
    if tries and machine.schedule.fails():
        return np.zeros(n, np.bool_)
    what = f"parity {phase & 1} (phase {phase})"
    parked = team.park(fragment.block, lambda: f"waits for {what} of {machine.describe_barrier(flat)}")
    parked.waits_for = (flat, phase)
    barrier.waiters.append(parked)
    return None


def _uniform(values: Array) -> bool:
    if len(values) == 1:
        return True
    first = values[:1].tobytes()
    return values.tobytes() == first * len(values)


# -- setmaxnreg -----------------------------------------------------------------------------------------------------------

_form("setmaxnreg.<op:inc|dec>.sync.aligned.u32", lambda e, i, m: _setmaxnreg(e, i, m), "control", aligned="warpgroup", starts=True, ends=True)


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


# -- exchanges in a warp ----------------------------------------------------------------------------------------------

_form("shfl.sync.<mode:up|down|bfly|idx>.b32", lambda e, i, m: _shfl(e, i, m), "warp", aligned="warp", destinations=1)
_form("elect.sync", lambda e, i, m: _elect(e, i), "warp", aligned="warp", destinations=1)
_form("vote.sync.<mode:all|any|uni>.pred", lambda e, i, m: _vote(e, i, m), "warp", aligned="warp", destinations=1)
_form("vote.sync.<mode:ballot>.b32", lambda e, i, m: _vote(e, i, m), "warp", aligned="warp", destinations=1)
_form("activemask.b32", lambda e, i, m: e.write(i.operands[0], "b32", e.call(active_mask)), "warp", destinations=1)
_form("match.any.sync.<type:b32|b64>", lambda e, i, m: e.write(i.operands[0], "b32", e.call(match_any, e.read(i.operands[1], m["type"], wide=True))), "warp", aligned="warp", destinations=1)
_form("redux.sync.<op:add|min|max>.<type:u32|s32>", lambda e, i, m: _redux(e, i, m), "warp", aligned="warp", destinations=1)
_form("redux.sync.<op:and|or|xor>.<type:b32>", lambda e, i, m: _redux(e, i, m), "warp", aligned="warp", destinations=1)


def _warps(team: Team, s: Any, values: Array, fill: Any = 0) -> tuple[Array, Array]:
    """(values, active), each (warps, 32), of the lanes that are here; a dead lane has `fill`."""
    width = -(-team.width // WARP) * WARP
    if s is None and width == team.width:
        whole = np.broadcast_to(values, (width,))
        return whole.reshape(-1, WARP), np.ones((width // WARP, WARP), np.bool_)
    grid = np.full(width, fill, values.dtype)
    active = np.zeros(width, np.bool_)
    lanes = team.lanes if s is None else team.lanes[s]
    grid[lanes], active[lanes] = values, True
    return grid.reshape(-1, WARP), active.reshape(-1, WARP)


def _back(team: Team, s: Any, grid: Array) -> Array:
    """(warps, 32) values as one array of the lanes that are here."""
    flat = np.ascontiguousarray(grid).reshape(-1)[: team.width]
    return flat if s is None else flat[s]


def _shfl(e: Emitter, i: Instruction, m: Modifiers) -> None:
    value, lane, clamp = (e.read(operand, "b32", wide=True) for operand in i.operands[1:4])
    result = e.fresh(e.call(shuffle, value, lane, clamp, repr(m["mode"])))
    destination = i.operands[0]
    if isinstance(destination, Pair):
        e.write(destination.first, "b32", f"{result}[0]")
        e.write(destination.second, "pred", f"{result}[1]")
    else:
        e.write(destination, "b32", f"{result}[0]")


def shuffle(team: Team, s: Any, n: int, site: Site, values: Array, b: Array, c: Array, mode: str) -> tuple[Array, Array]:
    """Source: PTX ISA, shfl.sync: c holds the segment mask at bits 8 .. 12 and the clamp at 0 .. 4."""
    grid, active = _warps(team, s, values)
    offset = (_warps(team, s, b)[0] & np.uint32(31)).astype(np.int64)
    control = _warps(team, s, c)[0].astype(np.int64)
    clamp, segment = control & 31, (control >> 8) & 31
    lane = np.broadcast_to(np.arange(WARP), grid.shape)
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    if mode == "up":
        source = lane - offset
        valid = source >= highest
    elif mode == "down":
        source = lane + offset
        valid = source <= highest
    elif mode == "bfly":
        source = lane ^ offset
        valid = source <= highest
    else:
        source = lowest | (offset & ~segment)
        valid = source <= highest
    source = np.where(valid, source, lane)
    if not (np.take_along_axis(active, source, axis=1) | ~active).all():
        raise team.error(site, "shuffle", "reads a lane that does not take part")
    warp_met(team, s, n, site)
    return _back(team, s, np.take_along_axis(grid, source, axis=1)), _back(team, s, valid)


def _elect(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0]
    if not isinstance(destination, Pair):
        raise e.error("elect.sync writes d|p")
    result = e.fresh(e.call(elect, e.read(i.operands[1], "u32", wide=True)))
    e.write(destination.first, "b32", f"{result}[0]")
    e.write(destination.second, "pred", f"{result}[1]")


def elect(team: Team, s: Any, n: int, site: Site, members: Array) -> tuple[Array, Array]:
    """The lowest lane of the member mask that is here; every lane is told which."""
    masks, active = _warps(team, s, members)
    lane = np.arange(WARP)
    member = active & ((masks >> lane.astype(np.uint32)) & 1).astype(bool)
    leader = np.argmax(member, axis=1)[:, None]
    warp_met(team, s, n, site)
    chosen = np.broadcast_to(leader, active.shape)
    return _back(team, s, chosen.astype(np.uint32)), _back(team, s, lane == chosen)


def _vote(e: Emitter, i: Instruction, m: Modifiers) -> None:
    source = i.operands[1]
    predicate = e.read(source, "pred", wide=not isinstance(source, (Reg, Not)))
    e.write(i.operands[0], "b32" if m["mode"] == "ballot" else "pred", e.call(vote, predicate, repr(m["mode"])))


def vote(team: Team, s: Any, n: int, site: Site, predicate: Array, mode: str) -> Array:
    """vote.sync."""
    grid, active = _warps(team, s, predicate, False)
    warp_met(team, s, n, site)
    if mode == "ballot":
        bits = (np.where(active, grid, False) * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=1)
        return _back(team, s, np.broadcast_to(bits[:, None], grid.shape).astype(np.uint32))
    every = np.where(active, grid, True).all(axis=1)
    some = np.where(active, grid, False).any(axis=1)
    result = {"all": every, "any": some, "uni": every | ~some}[mode]
    return _back(team, s, np.broadcast_to(result[:, None], grid.shape))


def active_mask(team: Team, s: Any, n: int, site: Site) -> Array:
    """Lanes that are here."""
    return vote(team, s, n, site, np.ones(n, np.bool_), "ballot")


def match_any(team: Team, s: Any, n: int, site: Site, values: Array) -> Array:
    """match.any.sync."""
    grid, active = _warps(team, s, values)
    same = (grid[:, :, None] == grid[:, None, :]) & active[:, None, :]
    bits = (same * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=2)
    return _back(team, s, bits.astype(np.uint32))


def _redux(e: Emitter, i: Instruction, m: Modifiers) -> None:
    value = e.read(i.operands[1], m["type"], wide=True)
    e.write(i.operands[0], m["type"], e.call(redux, value, repr(m["op"])))


_REDUCE: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "add": (np.add.reduce, lambda info: 0),
    "min": (np.minimum.reduce, lambda info: info.max),
    "max": (np.maximum.reduce, lambda info: info.min),
    "and": (np.bitwise_and.reduce, lambda info: info.max),
    "or": (np.bitwise_or.reduce, lambda info: 0),
    "xor": (np.bitwise_xor.reduce, lambda info: 0),
}


def redux(team: Team, s: Any, n: int, site: Site, values: Array, op: str) -> Array:
    """redux.sync."""
    function, neutral = _REDUCE[op]
    grid, active = _warps(team, s, values)
    filled = np.where(active, grid, neutral(np.iinfo(values.dtype)))
    warp_met(team, s, n, site)
    result = function(filled.astype(values.dtype), axis=1, dtype=values.dtype)
    return _back(team, s, np.broadcast_to(result[:, None], grid.shape))


__all__ = ["EXITED", "FORMS", "bar", "threads_left"]
