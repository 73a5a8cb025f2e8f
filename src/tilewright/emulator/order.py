"""Whether an access comes after an earlier one it conflicts with, by what its agent knows. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.clocks import FENCED_SHARED, Clock, time_of
from tilewright.emulator.shadow import NEVER, Access, AnyAccess, AsyncAccess, Granules, Shadow

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Meeting:
    """Where two unordered accesses meet: threads (-1: an asynchronous operation as a whole) and the bytes."""

    thread: int
    other_thread: int
    first: int
    last: int


def unordered(
    access: AnyAccess, clock: Clock, threads: Any, other: AnyAccess, row: int, granules: Granules, shadow: Shadow
) -> Meeting | None:
    """Where `access` meets `other` without knowing of it; None: it does know, or they touch different bytes.

    `clock`: what the agent of `access` knew; `threads`: its threads that had this clock.
    """
    if isinstance(other, Access):
        return _with_threads(access, clock, threads, other, row, granules, shadow)
    return _with_async(access, clock, threads, other, granules, shadow)


def _with_threads(
    access: AnyAccess, clock: Clock, threads: Any, other: Access, row: int, granules: Granules, shadow: Shadow
) -> Meeting | None:
    block = clock.get(other.cta)
    if block is not None:
        unknown: Mask = block[row, other.threads] < other.times
        if not unknown.any():
            return None
    else:
        unknown = np.ones(len(other.threads), np.bool_)
    for cta, place, time in other.arrivals:
        if time_of(clock, cta, place, row) >= time:
            return None
    times = np.broadcast_to(other.times, unknown.shape)
    mine, runs = granules.numbers(), granules.runs()
    if isinstance(access, Access):
        in_turn = access.cta == other.cta and (access.op is None or other.order < access.order)
        own = access.threads[runs] if in_turn else np.full(len(mine), -1)
        if access.cta == other.cta and other.op is not None:  # cp.async: its own thread must have waited
            waiting = unknown & (times == NEVER)
            found = _meet(shadow, other, waiting, mine, np.full(len(mine), -1), access, runs)
            if found is not None:
                return found
            unknown &= ~waiting
        return _meet(shadow, other, unknown, mine, own, access, runs)
    trace = access.trace
    if len(threads) == 1 and trace.op.cta == other.cta:  # what the issuing thread itself did
        limit = trace.now if row < FENCED_SHARED else trace.fenced[row - FENCED_SHARED]
        unknown &= ~((other.threads == threads[0]) & (times <= limit))
        if not unknown.any():
            return None
    return _meet(shadow, other, unknown, mine, np.full(len(mine), -1), None, runs)


def _with_async(
    access: AnyAccess, clock: Clock, threads: Any, other: AsyncAccess, granules: Granules, shadow: Shadow
) -> Meeting | None:
    own_cta = access.cta if isinstance(access, Access) else access.trace.op.cta
    own_now = NEVER if isinstance(access, Access) and access.op is None else _issue_time(access)
    knowing: list[Any] = []
    for cta, where, time in other.ends:
        if isinstance(where, int):
            if time_of(clock, cta, where) >= time:
                return None
            continue
        block = clock.get(cta)
        if block is not None and int(block[0, where].max()) >= time:
            return None
        if cta == own_cta and own_now >= time:
            knowing.append(where)
    mine = granules.numbers()
    who = np.full(len(mine), -1)
    if knowing or isinstance(access, Access):
        known_to = np.concatenate(knowing) if knowing else np.empty(0, np.int64)
        if isinstance(access, Access):
            who = access.threads[granules.runs()]
            left = ~np.isin(who, known_to)
            mine, who = mine[left], who[left]
        elif bool(np.isin(threads, known_to).all()):
            return None
    if not len(mine):
        return None
    return Meeting(int(who[0]), -1, shadow.address(int(mine.min())), shadow.address(int(mine.max()) + 1) - 1)


def _issue_time(access: AnyAccess) -> int:
    return access.trace.now if isinstance(access, AsyncAccess) else NEVER


def _meet(
    shadow: Shadow, other: Access, chosen: Mask, mine: Any, own: Any, access: Access | None, runs: Any
) -> Meeting | None:
    """Granules that chosen threads of `other` touch and another thread (`own`, -1: anybody) touches now."""
    if not chosen.any():
        return None
    theirs = shadow.index(other.starts[chosen], other.size)
    owners = np.broadcast_to(other.threads[chosen][:, None], theirs.shape).reshape(-1)
    theirs = theirs.reshape(-1)
    order = np.argsort(theirs, kind="stable")
    theirs, owners = theirs[order], owners[order]
    begin = np.flatnonzero(np.concatenate([[True], theirs[1:] != theirs[:-1]]))
    present, lowest, highest = theirs[begin], np.minimum.reduceat(owners, begin), np.maximum.reduceat(owners, begin)
    place = np.minimum(np.searchsorted(present, mine), len(present) - 1)
    hit = (present[place] == mine) & ((lowest[place] != own) | (highest[place] != own))
    if not hit.any():
        return None
    first = int(np.argmax(hit))
    met = int(place[first])
    thread = int(access.threads[runs[first]]) if access is not None else -1
    other_thread = int(lowest[met]) if lowest[met] != own[first] else int(highest[met])
    bytes_hit = mine[hit]
    return Meeting(
        thread, other_thread, shadow.address(int(bytes_hit.min())), shadow.address(int(bytes_hit.max()) + 1) - 1
    )
