"""Rows of the table for copies of runs of bytes, for st.async, and for the groups of all bulk copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.copies import BulkCopy
from tilewright.emulator.engines import Work
from tilewright.emulator.events import Site
from tilewright.emulator.isa.memory import vector
from tilewright.emulator.isa.sync import shared_address
from tilewright.emulator.isa.table import Emit, Form, Modifiers
from tilewright.emulator.syntax import TYPE_BYTES, Instruction

if TYPE_CHECKING:  # translate and machine import this module
    from tilewright.emulator.team import Team
    from tilewright.emulator.translate import Emitter

Array = NDArray[Any]

FORMS: list[Form] = []

_HINT = "[<hint:.L2::cache_hint>]"
_MBARRIER = "mbarrier::complete_tx::bytes"


def _form(pattern: str, emit: Emit, family: str, **flags: Any) -> None:
    flags.setdefault("destinations", 0)
    FORMS.append(Form(pattern, emit, family, **flags))


# -- what every copy asks --------------------------------------------------------------------------------------------


def lane_values(values: Array, n: int) -> list[int]:
    found: list[int] = values.tolist()
    return found * n if len(found) == 1 and n > 1 else found


def targets_of(team: Team, s: Any, site: Site, mask: int | None, flat: int, lane: int) -> tuple[int, ...]:
    """Flat bases of the windows that a copy writes to."""
    stride = team.machine.smem.stride
    if mask is None:
        return (flat // stride * stride,)
    cluster = team.cta.cluster
    ranks = [rank for rank in range(16) if mask >> rank & 1]
    if not ranks or ranks[-1] >= len(cluster.ctas):
        message = f"multicast mask {mask:#06x} in a cluster of {len(cluster.ctas)} CTA(s)"
        raise team.error(site, "multicast mask", message, s, lane)
    for rank in ranks:
        if cluster.ctas[rank].live_threads == 0:
            raise team.error(site, "peer exited", f"multicasts to CTA rank {rank}, which has left", s, lane)
    return tuple(cluster.ctas[rank].base for rank in ranks)


# -- groups of bulk copies -------------------------------------------------------------------------------------------

_form("cp.async.bulk.commit_group", lambda e, i, m: e.line(e.call(bulk_commit)), "bulk")
_form("cp.async.bulk.wait_group[<read:.read>]", lambda e, i, m: _bulk_wait(e, i, m), "bulk")


@dataclass(eq=False)
class BulkGroups:
    """One thread's bulk copies: the open group, and those closed that it has not waited for."""

    open: list[Work] = field(default_factory=list)
    closed: list[list[Work]] = field(default_factory=list)
    num_read: int = 0  # of the closed ones from the front: their sources are known to be read
    committed: int = 0


def groups_of(team: Team, lane: int) -> BulkGroups:
    found: BulkGroups | None = team.bulk_groups.get(lane)
    if found is None:
        found = team.bulk_groups[lane] = BulkGroups()
    return found


def bulk_commit(team: Team, s: Any, n: int, site: Site) -> None:
    """cp.async.bulk.commit_group."""
    for lane in (team.lanes if s is None else team.lanes[s]).tolist():
        groups = groups_of(team, lane)
        ops = groups.open
        for op in ops:
            op.group = groups.committed
        if team.machine.observer is not None:
            threads = team.threads[lane : lane + 1]
            team.machine.observer.commit(site, team.cta.index, threads, "bulk", groups.committed, tuple(ops))
        groups.closed.append(ops)
        groups.open = []
        groups.committed += 1


def _bulk_wait(e: Emitter, i: Instruction, m: Modifiers) -> None:
    pending = e.constant_int(i.operands[0])
    if pending is None or pending < 0:
        raise e.error("cp.async.bulk.wait_group takes a literal")
    e.line(e.call(bulk_wait, str(pending), str(bool(m["read"]))))


def bulk_wait(team: Team, s: Any, n: int, site: Site, pending: int, reads_only: bool) -> None:
    """cp.async.bulk.wait_group: all but the newest groups are done, or have read their sources."""
    machine = team.machine
    for lane in (team.lanes if s is None else team.lanes[s]).tolist():
        groups = groups_of(team, lane)
        count = max(len(groups.closed) - pending, 0)
        ops = tuple(op for group in groups.closed[groups.num_read if reads_only else 0 : count] for op in group)
        for op in ops:
            if reads_only:
                machine.engine.read_sources(op)
            else:
                machine.engine.finish(op)
        if reads_only:
            groups.num_read = max(groups.num_read, count)
        else:
            del groups.closed[:count]
            groups.num_read = max(groups.num_read - count, 0)
        if machine.observer is not None:
            threads = team.threads[lane : lane + 1]
            machine.observer.wait_group(site, team.cta.index, threads, "bulk", ops, reads_only)


# -- runs of bytes ---------------------------------------------------------------------------------------------------

_form(
    f"cp.async.bulk.<to:shared::cluster|shared::cta>.<from:global|shared::cta>.{_MBARRIER}[<multicast:.multicast::cluster>]{_HINT}",
    lambda e, i, m: _bulk_in(e, i, m),
    "bulk",
)
_form(f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}", lambda e, i, m: _bulk_out(e, i, m, ""), "bulk")
_form(
    f"cp.reduce.async.bulk.global.shared::cta.bulk_group{_HINT}.<op:add|min|max|and|or|xor|inc|dec>[.noftz].<type:f16|bf16|b32|u32|s32|b64|u64|s64|f32|f64>",
    lambda e, i, m: _bulk_out(e, i, m, m["op"]),
    "bulk",
)
_form(f"cp.async.bulk.prefetch.L2.global{_HINT}", lambda e, i, m: _bulk_prefetch(e, i), "bulk")
_form(
    "st.async[.weak].shared::cluster.mbarrier::complete_tx::bytes[.<vec:v2|v4>].<type:b32|b64|u32|u64|s32|s64|f32|f64>",
    lambda e, i, m: _st_async(e, i, m),
    "bulk",
)


def _bulk_in(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """[dst], [src], size, [mbarrier] {, mask}."""
    target = shared_address(e, i.operands[0])
    source = e.address(i.operands[1], "u64") if m["from"] == "global" else shared_address(e, i.operands[1])
    size = e.read(i.operands[2], "u32")
    barrier = shared_address(e, i.operands[3])
    mask = e.read(i.operands[4], "u16", wide=True) if m["multicast"] else "None"
    e.line(e.call(bulk_in, target, source, str(m["from"] == "global"), size, barrier, mask))


def _bulk_out(e: Emitter, i: Instruction, m: Modifiers, op: str) -> None:
    """[dst], [src], size."""
    target, source = e.address(i.operands[0], "u64"), shared_address(e, i.operands[1])
    e.line(e.call(bulk_out, target, source, e.read(i.operands[2], "u32"), repr(op), repr(m.get("type", ""))))


def _bulk_prefetch(e: Emitter, i: Instruction) -> None:
    """[src], size."""
    e.line(e.call(bulk_prefetch, e.address(i.operands[0], "u64"), e.read(i.operands[1], "u32")))


def bulk_prefetch(team: Team, s: Any, n: int, site: Site, sources: Array, sizes: Array) -> None:
    """cp.async.bulk.prefetch.L2: moves nothing that is seen; what it names has to be there."""
    starts, counts = lane_values(sources, n), lane_values(sizes, n)
    for lane in range(n):
        start, size = starts[lane], counts[lane]
        _check_run(team, s, site, size, (start,), lane)
        if team.machine.memory.find(start, start + size) is None:
            where = team.machine.memory.explain(start, size)
            raise team.error(site, "out of bounds", f"the prefetch of {size} bytes is {where}", s, lane)


def _check_run(team: Team, s: Any, site: Site, size: int, addresses: tuple[int, ...], lane: int) -> None:
    if size % 16 or any(address % 16 for address in addresses):
        shown = ", ".join(f"{address:#x}" for address in addresses)
        raise team.error(
            site, "misaligned", f"{size} bytes at {shown}: size and addresses are multiples of 16", s, lane
        )


def bulk_in(
    team: Team,
    s: Any,
    n: int,
    site: Site,
    targets: Array,
    sources: Array,
    from_global: bool,
    sizes: Array,
    barriers: Array,
    masks: Array | None,
) -> None:
    """cp.async.bulk into shared memory, the own or a peer's."""
    machine = team.machine
    stride = machine.smem.stride
    flat_targets = team.flat(site, targets, 16, s).tolist()
    flat_barriers = team.flat(site, barriers, 8, s).tolist()
    starts = lane_values(sources, n) if from_global else team.flat(site, sources, 16, s).tolist()
    threads = team.threads_of(s)
    for lane in range(n):
        target, barrier = flat_targets[lane % len(flat_targets)], flat_barriers[lane % len(flat_barriers)]
        size, source = lane_values(sizes, n)[lane], starts[lane % len(starts)]
        _check_run(team, s, site, size, (target, source), lane)
        mask = None if masks is None else int(masks[lane % len(masks)])
        bases = targets_of(team, s, site, mask, target, lane)
        if target % stride + size > machine.smem.last or (
            not from_global and source % stride + size > machine.smem.last
        ):
            raise team.error(
                site, "out of bounds", f"{size} bytes end past shared memory, {machine.smem.last:#x}", s, lane
            )
        work = BulkCopy(
            kind="bulk_load" if from_global else "bulk_copy",
            site=site,
            cta=team.cta.index,
            threads=threads[lane : lane + 1],
            number=machine.engine.number(),
            barrier=barrier,
            source_space="global" if from_global else "shared",
            source=source,
            target_space="shared",
            targets=tuple(base + target % stride for base in bases),
            num_bytes=size,
            barriers=(barrier,) if mask is None else tuple(base + barrier % stride for base in bases),
        )
        machine.engine.issue(work)


def bulk_out(
    team: Team, s: Any, n: int, site: Site, targets: Array, sources: Array, sizes: Array, op: str, element: str
) -> None:
    """cp.async.bulk and cp.reduce.async.bulk to global memory."""
    machine = team.machine
    starts = team.flat(site, sources, 16, s).tolist()
    ends = lane_values(targets, n)
    threads = team.threads_of(s)
    lanes = (team.lanes if s is None else team.lanes[s]).tolist()
    for lane in range(n):
        size, source = lane_values(sizes, n)[lane], starts[lane % len(starts)]
        _check_run(team, s, site, size, (ends[lane], source), lane)
        if source % machine.smem.stride + size > machine.smem.last:
            raise team.error(
                site, "out of bounds", f"{size} bytes end past shared memory, {machine.smem.last:#x}", s, lane
            )
        work = BulkCopy(
            kind="bulk_store",
            site=site,
            cta=team.cta.index,
            threads=threads[lane : lane + 1],
            number=machine.engine.number(),
            source_space="shared",
            source=source,
            target_space="global",
            targets=(ends[lane],),
            num_bytes=size,
            reduction=op,
            element=element.replace("b", "u") if element.startswith(("b3", "b6")) else element,
        )
        groups_of(team, lanes[lane]).open.append(work)
        machine.engine.issue(work)


def _st_async(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """[dst], value, [mbarrier]: both of one CTA of the cluster."""
    kind = m["type"]
    size = TYPE_BYTES[kind]
    items = vector(e, i.operands[1], m["vec"])
    values = [e.read(item, kind, wide=True) + (f".view(u{size})" if kind[0] == "f" else "") for item in items]
    values = [e.fresh(value) for value in values]
    target, barrier = shared_address(e, i.operands[0]), shared_address(e, i.operands[2])
    e.line(e.call(st_async, target, f"({', '.join(values)},)", str(size), barrier))


def st_async(
    team: Team, s: Any, n: int, site: Site, targets: Array, values: tuple[Array, ...], size: int, barriers: Array
) -> None:
    """st.async: a store that signals an mbarrier beside its target."""
    machine = team.machine
    whole = size * len(values)
    flats, places = team.flat(site, targets, whole, s).tolist(), team.flat(site, barriers, 8, s).tolist()
    threads = team.threads_of(s)
    for lane in range(n):
        data = np.array([int(value[lane]) for value in values], f"u{size}").view(np.uint8)
        work = BulkCopy(
            kind="st_async",
            site=site,
            cta=team.cta.index,
            threads=threads[lane : lane + 1],
            number=machine.engine.number(),
            barrier=places[lane % len(places)],
            source_space="registers",
            source=0,
            target_space="shared",
            targets=(flats[lane % len(flats)],),
            num_bytes=whole,
            barriers=(places[lane % len(places)],),
            data=data,
            state="read",
        )
        machine.engine.issue(work)
