"""Rows of the table for mbarriers: init, arrivals, bytes, waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.barriers import BarrierError, Mbarrier
from tilewright.emulator.events import Site
from tilewright.emulator.isa.sync import shared_address, uniform
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Imm, Instruction, Mem, Name

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []

# The 64-bit state of an arrival, opaque in PTX: the phase above the arrivals that were pending before it. The latter is
# what mbarrier.pending_count gives (golden vector mbarrier_counts).
STATE_BITS = 20


def _form(pattern: str, emit: Emit, **flags: Any) -> None:
    flags.setdefault("destinations", 0)
    FORMS.append(Form(pattern, emit, "mbarrier", **flags))


_SPACE = "[.<space:shared::cta|shared::cluster|shared>]"
_SEM = "[.<sem:release|relaxed|acquire>][.<scope:cta|cluster>]"
_form(f"mbarrier.init{_SPACE}.b64", lambda e, i, m: _mbarrier_init(e, i, m))
_form(
    f"mbarrier.inval{_SPACE}.b64",
    lambda e, i, m: e.line(e.call(mbarrier_inval, shared_address(e, i.operands[0]))),
)
_form(
    f"mbarrier.expect_tx[.relaxed][.<scope:cta|cluster>]{_SPACE}.b64",
    lambda e, i, m: _mbarrier_tx(e, i, m, "expect"),
)
_form(
    f"mbarrier.complete_tx[.relaxed][.<scope:cta|cluster>]{_SPACE}.b64",
    lambda e, i, m: _mbarrier_tx(e, i, m, "complete"),
)
_form(
    f"mbarrier.arrive[<drop:_drop>][<tx:.expect_tx>]{_SEM}{_SPACE}.b64",
    lambda e, i, m: _mbarrier_arrive(e, i, m),
    destinations=1,
)
_form(
    f"mbarrier.arrive[<drop:_drop>][<tx:.expect_tx>]{_SPACE}{_SEM}.b64",
    lambda e, i, m: _mbarrier_arrive(e, i, m),
    destinations=1,
)
_form(
    f"mbarrier.arrive[<drop:_drop>].noComplete{_SEM}{_SPACE}.b64",
    lambda e, i, m: _mbarrier_arrive(e, i, {**m, "tx": ""}),
    destinations=1,
)
_form(
    f"mbarrier.<op:try_wait|test_wait>[<parity:.parity>]{_SEM}{_SPACE}.b64",
    lambda e, i, m: _mbarrier_wait(e, i, m),
    starts=True,
    destinations=1,
    unread=1,  # how long try_wait may take
)
_form(
    "mbarrier.pending_count.b64",
    lambda e, i, m: e.write(
        i.operands[0], "u32", f"({e.read(i.operands[1], 'u64', wide=True)} & np.uint64(0xFFFFF)).astype(u4)"
    ),
    destinations=1,
)


def _mbarrier_init(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place = shared_address(e, i.operands[0])
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
            raise team.error(
                site, "mbarrier inval", f"invalidates while {machine.describe_barrier(place)} is waited for", s
            )
        del machine.mbarriers[place]
        if machine.observer is not None:
            thread = int(team.threads_of(s)[position])
            machine.observer.mbarrier_inval(site, team.cta.index, thread, place)


def _own(team: Team, s: Any, site: Site, addresses: Array) -> Array:
    """Flat places of barriers of the own CTA."""
    flat = team.flat(site, addresses, 8, s)
    if int(addresses.max()) >= 1 << 24 and (flat // team.machine.smem.stride != team.cta.slot).any():
        raise team.error(
            site, "remote mbarrier", "only arrive, expect_tx and complete_tx may name another CTA's mbarrier"
        )
    return flat


def _live(team: Team, s: Any, site: Site, place: int, position: int) -> Mbarrier:
    barrier = team.machine.mbarriers.get(place)
    if barrier is None:
        where = team.machine.describe_barrier(place)
        raise team.error(site, "mbarrier before init", f"uses {where}; mbarrier.init has not run", s, position)
    return barrier


def _mbarrier_tx(e: Emitter, i: Instruction, m: Modifiers, op: str) -> None:
    place = shared_address(e, i.operands[0])
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
            raise team.error(
                site, broken.rule, f"{broken.message}; {machine.describe_barrier(place)}", s, position
            ) from None
        if machine.observer is not None and op == "expect":
            threads = team.threads_of(s)[position : position + 1]
            machine.observer.mbarrier_expect(site, team.cta.index, threads, place, amount, phase)
        if done:
            machine.phase_completed(barrier)


def _mbarrier_arrive(e: Emitter, i: Instruction, m: Modifiers) -> None:
    operands = i.operands
    if isinstance(operands[0], Mem):  # no state asked for
        operands = (Name("_"), *operands)
    if len(operands) > 3:
        raise e.error(f"{len(i.operands)} operands are too many")
    place = shared_address(e, operands[1])
    third = e.read(operands[2], "u32") if len(operands) > 2 else "None"
    amounts = (third, "None") if m["tx"] else ("None", third)
    call = e.call(
        mbarrier_arrive, place, *amounts, repr(m["sem"] or "release"), repr(m["scope"] or "cta"), str(bool(m["drop"]))
    )
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
    drops: bool,
) -> Array:
    """mbarrier.arrive and arrive_drop, with or without expect_tx: thread after thread.

    Returns the state of each: the phase it arrived on.
    """
    machine = team.machine
    flat = team.flat(site, addresses, 8, s)
    threads = team.threads_of(s)
    remote = flat // machine.smem.stride != team.cta.slot
    if n > 1 and expected is None and counts is None and not drops and uniform(flat):
        barrier = _live(team, s, site, int(flat[0]), 0)
        if barrier.pending >= n:
            return _arrive_together(team, s, site, barrier, threads, bool(remote[0]), semantics, scope)
    states = np.zeros(n, np.uint64)
    for position, place in enumerate(flat.tolist()):
        barrier = _live(team, s, site, place, position)
        tx = 0 if expected is None else int(expected[position if len(expected) > 1 else 0])
        count = 1 if counts is None else int(counts[position if len(counts) > 1 else 0])
        phase = barrier.phase
        states[position] = phase << STATE_BITS | barrier.pending
        try:
            if tx:
                barrier.expect(tx)
            if drops:
                barrier.count -= count  # of the phases after this one
            done = barrier.arrive(count)
        except BarrierError as broken:
            raise team.error(
                site, broken.rule, f"{broken.message}; {machine.describe_barrier(place)}", s, position
            ) from None
        if machine.observer is not None:
            one = threads[position : position + 1]
            machine.observer.mbarrier_arrive(
                site, team.cta.index, one, place, count, phase, bool(remote[position]), semantics, scope, tx
            )
        if done:
            machine.phase_completed(barrier)
    return states


def _arrive_together(
    team: Team, s: Any, site: Site, barrier: Mbarrier, threads: Array, remote: bool, semantics: str, scope: str
) -> Array:
    """One arrival of each thread on one barrier, all of them on its present phase."""
    machine, place, phase, n = team.machine, barrier.address, barrier.phase, len(threads)
    states = (phase << STATE_BITS) + barrier.pending - np.arange(n)
    try:
        done = barrier.arrive(n)
    except BarrierError as broken:
        raise team.error(site, broken.rule, f"{broken.message}; {machine.describe_barrier(place)}", s, 0) from None
    if machine.observer is not None:
        machine.observer.mbarrier_arrive(site, team.cta.index, threads, place, 1, phase, remote, semantics, scope, 0)
    if done:
        machine.phase_completed(barrier)
    return states.astype(np.uint64)


def _mbarrier_wait(e: Emitter, i: Instruction, m: Modifiers) -> None:
    place = shared_address(e, i.operands[1])
    value = e.read(i.operands[2], "u32" if m["parity"] else "u64", wide=isinstance(i.operands[2], Imm))
    semantics = repr(m["sem"] or "acquire"), repr(m["scope"] or "cta")
    call = e.call(mbarrier_wait, place, value, str(bool(m["parity"])), str(m["op"] == "try_wait"), *semantics)
    result = e.fresh(call)
    e.line(f"if {result} is None: return PARKED")
    e.write(i.operands[0], "pred", result)


def mbarrier_wait(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    addresses: Array,
    values: Array,
    parity: bool,
    tries: bool,
    semantics: str,
    scope: str,
) -> Array | None:
    """try_wait and test_wait. None: the threads are parked until the phase completes, and ask again."""
    machine, fragment = team.machine, team.current
    if not uniform(addresses):
        team.split(addresses)
        return None
    if not parity:
        values = values >> np.uint64(STATE_BITS)  # the phase: the count below it differs from thread to thread
    if not uniform(values):
        team.split(values)
        return None
    flat = (
        int(_own(team, s, site, addresses[:1])[0])
        if s is None or team.base.__class__ is int
        else int(_own(team, s, site, addresses)[0])
    )
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
                f"waited for phase {waited[1]} and was overtaken: {machine.describe_barrier(flat)}; only the "
                "current and the preceding phase may be asked for",
            )
    else:
        phase = int(values[0])
        complete = barrier.phase > phase
    if complete and tries and machine.schedule.fails():
        return np.zeros(n, np.bool_)
    if complete:
        barrier.observed = True
        if machine.observer is not None:
            machine.observer.mbarrier_wait(site, team.cta.index, team.threads_of(s), flat, phase, semantics, scope)
        return np.ones(n, np.bool_)
    if not tries:
        machine.spin()
        return np.zeros(n, np.bool_)
    if machine.schedule.fails():
        return np.zeros(n, np.bool_)
    what = f"parity {phase & 1} (phase {phase})"
    parked = team.park(fragment.block, lambda: f"waits for {what} of {machine.describe_barrier(flat)}")
    parked.waits_for = (flat, phase)
    barrier.waiters.append(parked)
    return None
