"""Rows of the table for cp.async: small copies of each thread into shared memory, their groups, their arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator import banks
from tilewright.emulator.copies import LaneArrivals, LaneCopies
from tilewright.emulator.engines import Work
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import tally
from tilewright.emulator.isa.sync import shared_address
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import Instruction, Reg

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []


def _form(pattern: str, emit: Emit) -> None:
    FORMS.append(Form(pattern, emit, "cp.async", destinations=0))


_form(
    "cp.async.<cop:ca|cg>[.<space:shared::cta|shared>].global[<hint:.L2::cache_hint>][.<prefetch:L2::64B|L2::128B|L2::256B>]",
    lambda e, i, m: _cp_async(e, i, m),
)
_form("cp.async.commit_group", lambda e, i, m: e.line(e.call(cp_async_commit)))
_form("cp.async.wait_group", lambda e, i, m: _cp_async_wait(e, i))
_form("cp.async.wait_all", lambda e, i, m: e.line(e.call(cp_async_wait, "-1")))
_form(
    "cp.async.mbarrier.arrive[<noinc:.noinc>][.<space:shared::cta|shared>].b64",
    lambda e, i, m: e.line(e.call(cp_async_arrive, shared_address(e, i.operands[0]), str(bool(m["noinc"])))),
)


def _cp_async(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """[dst], [src], cp-size {, src-size or ignore-src predicate} {, cache policy}."""
    size = e.constant_int(i.operands[2])
    allowed = (4, 8, 16) if m["cop"] == "ca" else (16,)
    if size not in allowed:
        raise e.error(f"cp-size {size} is none of {allowed}")
    target = shared_address(e, i.operands[0])
    source = e.address(i.operands[1], "u64")
    lengths = "None"
    rest = list(i.operands[3:])
    if m["hint"] and rest:
        rest.pop()
    if len(rest) > 1:
        raise e.error(f"{len(i.operands)} operands are too many")
    if rest:
        operand = rest[0]
        if isinstance(operand, Reg) and operand.type == "pred":
            lengths = f"np.where({e.read(operand, 'pred')}, np.uint32(0), np.uint32({size}))"
        else:
            lengths = e.read(operand, "u32", wide=True)
    e.line(e.call(cp_async, target, source, str(size), lengths))


def cp_async(
    team: Team, s: Any, n: int, site: Site, targets: Array, sources: Array, size: int, lengths: Array | None
) -> None:
    """Issues one copy a lane."""
    flat = team.flat(site, targets, size, s)
    if int(np.bitwise_or.reduce(sources)) & (size - 1):
        bad = int(np.argmax((sources & np.uint64(size - 1)) != 0))
        raise team.misaligned(site, int(sources[bad]), size, s, bad)
    if lengths is not None and int(lengths.max()) > size:
        raise team.error(
            site, "cp.async", f"src-size {int(lengths.max())} is past cp-size {size}", s, int(np.argmax(lengths))
        )
    lanes = team.lanes if s is None else team.lanes[s]
    machine = team.machine
    if machine.banks is not None:
        warps = -(-team.width // 32)
        grid, active = np.zeros(warps * 32, np.int64), np.zeros(warps * 32, np.bool_)
        grid[lanes], active[lanes] = flat, True
        tally(team, site, banks.access(grid.reshape(-1, 32), size, active.reshape(-1, 32)))
    work = LaneCopies(
        kind="cp_async",
        site=site,
        cta=team.cta.index,
        threads=team.threads_of(s),
        number=machine.engine.number(),
        team=team,
        lanes=lanes,
        groups=team.cp_async_commits[lanes],
        sources=np.broadcast_to(sources, (n,)),
        targets=flat,
        size=size,
        lengths=lengths,
    )
    team.cp_async_ops.append(work)
    machine.engine.issue(work)


def cp_async_commit(team: Team, s: Any, n: int, site: Site) -> None:
    """cp.async.commit_group."""
    chosen = slice(None) if s is None else s
    before = team.cp_async_commits[chosen]
    observer = team.machine.observer
    if observer is not None:
        inside = np.zeros(team.width, np.bool_)
        inside[chosen] = True
        ops = tuple(
            op for op in team.cp_async_ops if (inside[op.lanes] & (op.groups == team.cp_async_commits[op.lanes])).any()
        )
        for op in ops:
            op.group = int(before[0])
        observer.commit(site, team.cta.index, team.threads_of(s), "cp_async", int(before[0]), ops)
    team.cp_async_commits[chosen] += 1


def _cp_async_wait(e: Emitter, i: Instruction) -> None:
    pending = e.constant_int(i.operands[0])
    if pending is None or pending < 0:
        raise e.error("cp.async.wait_group takes a literal")
    e.line(e.call(cp_async_wait, str(pending)))


def cp_async_wait(team: Team, s: Any, n: int, site: Site, pending: int) -> None:
    """cp.async.wait_group, or wait_all for -1: finishes what the lanes' older groups hold."""
    machine = team.machine
    inside = None
    if s is not None:
        inside = np.zeros(team.width, np.bool_)
        inside[s] = True
    observed: list[Work] = []
    left: list[Any] = []
    for op in team.cp_async_ops:
        due = np.ones(len(op.lanes), np.bool_) if pending < 0 else op.groups < team.cp_async_commits[op.lanes] - pending
        if inside is not None:
            due = due & inside[op.lanes]
        if due.all():
            machine.engine.finish(op)
            observed.append(op)
        else:
            left.append(op)
            if due.any():
                observed.append(op)
                if op.state != "done" and isinstance(op, LaneCopies):
                    op.part(machine, due)
    team.cp_async_ops = left
    if machine.observer is not None:
        ops = tuple(op for op in observed if op.kind == "cp_async")
        machine.observer.wait_group(site, team.cta.index, team.threads_of(s), "cp_async", ops, False)


def cp_async_arrive(team: Team, s: Any, n: int, site: Site, addresses: Array, keeps_count: bool) -> None:
    """cp.async.mbarrier.arrive: an arrival once the lanes' earlier cp.async are done. Without .noinc the pending count
    grows by one for each first."""
    machine = team.machine
    flat = team.flat(site, addresses, 8, s)
    lanes = team.lanes if s is None else team.lanes[s]
    inside = np.zeros(team.width, np.bool_)
    inside[lanes] = True
    earlier: list[Work] = [op for op in team.cp_async_ops if inside[op.lanes].any()]
    for position, place in enumerate(flat.tolist()):
        barrier = machine.mbarriers.get(place)
        if barrier is None:
            where = machine.describe_barrier(place)
            raise team.error(site, "mbarrier before init", f"uses {where}; mbarrier.init has not run", s, position)
        if not keeps_count:
            barrier.pending += 1
    work = LaneArrivals(
        kind="cp_async_arrive",
        site=site,
        cta=team.cta.index,
        threads=team.threads_of(s),
        number=machine.engine.number(),
        barrier=int(flat[0]),
        team=team,
        lanes=lanes,
        barriers=flat,
        earlier=earlier,
    )
    machine.engine.issue(work)
