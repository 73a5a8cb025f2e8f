"""Threads in vectors: who runs which block, where paths part and meet. Knows no instruction.

A Team is a vector of neighbouring threads of one width, with one register file. Where its threads part, it is several
Fragments: a selection of lanes and the block they stand before. The fragment at the lowest block runs; fragments that
meet at a block become one. A fragment that waits is parked with whoever will wake it; nothing polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.emulator.blocks import Block, used_registers
from tilewright.emulator.events import Site, error_facts
from tilewright.emulator.isa import sync
from tilewright.emulator.launch import WARP, WARPGROUP, Cta, special_register
from tilewright.emulator.values import EXITED, PARKED, UNWRITTEN, InFlight, Matrices, Partial, Unusable
from tilewright.errors import EmulationError

if TYPE_CHECKING:
    from tilewright.emulator.machine import Machine

Selection = slice | NDArray[np.intp] | None
Index = NDArray[np.intp]

REJOINING = (-1, -1)  # in Fragment.waits_for: waits for the rest of its warp


@dataclass(eq=False)
class Fragment:
    """Threads of a team that go the same way. `selection` None: the whole team."""

    team: Team
    selection: Selection
    count: int
    block: int
    is_pinned: bool = False  # split off at its block on purpose: must run before it may merge
    has_yielded: bool = False  # its turn ended while it could run
    waits_for: tuple[int, int] | None = None  # (flat mbarrier, phase) that it was parked on
    reason: Callable[[], str] | None = None  # while parked: what it waits for, in words
    cluster_generation: int = -1  # of the cluster barrier that it has arrived at and not waited for
    site: Site | None = None  # while parked at a barrier: the instruction that parked it
    semantics: str = ""
    counted: tuple[Selection, int] = (None, 0)  # the selection whose warps were counted last, and how many they were

    def num_warps(self) -> int:
        """Warps that have a thread in the selection: a warp's instruction is one, however many lanes take part."""
        selection, num_warps = self.counted
        if selection is not self.selection or selection is None:
            num_warps = _warps_of(self.selection, self.team.width)
            self.counted = (self.selection, num_warps)
        return num_warps


class Team:
    """A vector of threads. Generated code and the functions of the table see it as T."""

    def __init__(self, machine: Machine, ctas: list[Cta], first_thread: int, width: int) -> None:
        self.machine = machine
        self.ctas = ctas
        self.cta = ctas[0]
        self.width = width
        self.first_thread = first_thread
        self.registers: list[Any] = [UNWRITTEN] * len(machine.kernel.entry.registers)
        self.lanes: Index = np.arange(width)
        per_cta = machine.geometry.threads
        self.threads: NDArray[np.int64] = (self.lanes % per_cta if len(ctas) > 1 else self.lanes + first_thread).astype(
            np.int64
        )
        self.base: Any = ctas[0].base
        if len(ctas) > 1:
            self.base = np.repeat(np.array([cta.base for cta in ctas], np.int64), per_cta)
        self.live = np.ones(width, np.bool_)
        self.num_live = width
        self.ready: list[Fragment] = [Fragment(self, None, width, 0)]
        self.parked: list[Fragment] = []
        self.current: Fragment = self.ready[0]
        self.is_queued = True
        self.functions: list[Any] = [None] * len(machine.kernel.blocks)
        self.masked_functions: list[Any] = [None] * len(machine.kernel.blocks)
        self.cp_async_commits = np.zeros(width, np.int64)
        self.cp_async_ops: list[Any] = []
        self.bulk_groups: dict[int, Any] = {}
        self.wgmma: Any = None
        self.fenced: list[Any] | None = None  # register values at the last wgmma.fence
        self.fenced_ids: set[int] | None = None  # their identities, when first asked for
        self.matrices = Matrices()
        self.local: NDArray[np.uint8] | None = None
        self.cluster_size = machine.geometry.cluster_size
        self.specials: dict[str, NDArray[Any]] = {}

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, turn: int) -> None:
        """Runs ready fragments, the lowest block first, until none is ready or the turn is over."""
        machine, ready = self.machine, self.ready
        kernel, counts = machine.kernel, machine.block_warps
        blocks = kernel.blocks
        end = len(blocks)
        whole = -(-self.width // WARP)
        machine.turn_end = machine.blocks_run + turn
        while ready:
            fragment = ready[0] if len(ready) == 1 else self._lowest()
            ready.remove(fragment)
            self.current = fragment
            block = fragment.block
            while True:
                if machine.blocks_run >= machine.turn_end:
                    fragment.block = block
                    fragment.has_yielded = True
                    ready.append(fragment)
                    return
                if block == end:
                    self.exit(fragment, blocks[-1].site)
                    break
                selection = fragment.selection
                if selection is not None and blocks[block].aligned and not self._has_converged(fragment, blocks[block]):
                    fragment.block = block
                    self.parked.append(fragment)
                    fragment.reason = self._join_reason(blocks[block])
                    break
                selection = fragment.selection
                functions = self.functions if selection is None else self.masked_functions
                function = functions[block]
                if function is None:
                    function = functions[block] = kernel.function(block, self.width, selection is not None)
                machine.blocks_run += 1
                counts[block] += whole if selection is None else fragment.num_warps()
                fragment.is_pinned = False
                fragment.block = block
                try:
                    result = function(self, self.registers, selection, fragment.count)
                except EmulationError:
                    raise
                except Exception as failure:  # whatever NumPy says of a register that holds no value
                    raise self._diagnosis(fragment, blocks[block], failure) from failure
                if result.__class__ is int:
                    if result < 0:  # PARKED or EXITED
                        break
                    block = result
                    if ready or self.parked:
                        fragment.block = block
                        if self._meets(fragment):
                            break
                        if any(f.block < block and not f.has_yielded for f in ready):
                            ready.append(fragment)
                            break
                else:
                    self._part(fragment, result)
                    break

    def _lowest(self) -> Fragment:
        """The ready fragment at the lowest block. Those that have had a whole turn, or only asked, come last."""
        waiting = [fragment for fragment in self.ready if not fragment.has_yielded]
        if not waiting:
            waiting = self.ready
            for fragment in waiting:
                fragment.has_yielded = False
        return min(waiting, key=lambda fragment: fragment.block)

    def _part(self, fragment: Fragment, branch: tuple[NDArray[np.bool_], int, int]) -> None:
        predicate, taken, other = branch
        lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
        for block, chosen in ((taken, predicate), (other, ~predicate)):
            part = lanes[chosen]
            other_part = Fragment(self, _selection(part), len(part), block)
            other_part.cluster_generation = fragment.cluster_generation
            self.arrive(other_part)

    def arrive(self, fragment: Fragment) -> None:
        """The fragment is ready at its block; it joins who is there already."""
        if fragment.is_pinned or not self._meets(fragment):
            self.ready.append(fragment)

    def _meets(self, fragment: Fragment) -> bool:
        """Joins a fragment that stands at the same block, ready or waiting for the rest of its warp."""
        for other in self.ready:
            if other.block == fragment.block and not other.is_pinned and other is not fragment:
                self._merge(other, fragment)
                return True
        for other in self.parked:
            if other.block == fragment.block and other.waits_for == REJOINING:
                self.parked.remove(other)
                other.reason, other.waits_for = None, None
                self._merge(other, fragment)
                self.ready.append(other)
                return True
        return False

    def _merge(self, into: Fragment, other: Fragment) -> None:
        into.count += other.count
        into.cluster_generation = max(into.cluster_generation, other.cluster_generation)
        if into.count == self.width:
            into.selection = None
        else:
            into.selection = _selection(
                np.sort(np.concatenate([self.lanes[into.selection], self.lanes[other.selection]]))
            )

    def split(self, keys: NDArray[Any]) -> int:
        """Parts the running fragment by key at its block, when an instruction needs one key for all."""
        fragment = self.current
        lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
        for key in np.unique(keys):
            part = lanes[np.broadcast_to(keys, lanes.shape) == key]
            split_off = Fragment(self, _selection(part), len(part), fragment.block, is_pinned=True)
            split_off.cluster_generation = fragment.cluster_generation
            self.ready.append(split_off)
        return PARKED

    def park(self, block: int, reason: Callable[[], str]) -> Fragment:
        """The running fragment waits before `block`. Whoever holds it wakes it through Machine.wake."""
        fragment = self.current
        fragment.block = block
        fragment.reason = reason
        self.parked.append(fragment)
        return fragment

    def _has_converged(self, fragment: Fragment, block: Block) -> bool:
        """Whether the fragment holds every live thread of each warp (or warpgroup) that it touches."""
        size = WARP if block.aligned == "warp" else WARPGROUP
        selection = fragment.selection
        if isinstance(selection, slice) and selection.start % size == 0 and selection.stop % size == 0:
            return True
        inside = np.zeros(-(-self.width // size) * size, np.bool_)
        inside[self.lanes[selection]] = True
        live = np.zeros_like(inside)
        live[: self.width] = self.live
        groups, living = inside.reshape(-1, size), live.reshape(-1, size)
        touched = groups.any(axis=1)
        if (groups[touched] == living[touched]).all():
            return True
        complete = touched & (groups == living).all(axis=1)
        if complete.any():  # whole warps need not wait for those that are not
            lanes = self.lanes[selection]
            whole = complete[lanes // size]
            rest = lanes[~whole]
            waiting = Fragment(self, _selection(rest), len(rest), fragment.block, waits_for=REJOINING)
            waiting.reason = self._join_reason(block)
            self.parked.append(waiting)
            fragment.selection, fragment.count = _selection(lanes[whole]), int(whole.sum())
            return True
        fragment.waits_for = REJOINING
        return False

    def _join_reason(self, block: Block) -> Callable[[], str]:
        return lambda: (
            f"waits for the other threads of its {block.aligned or 'warp'}, which went another way, "
            f"at {block.site.opcode}"
        )

    def exit(self, fragment: Fragment, site: Site) -> int:
        """The fragment's threads leave."""
        machine = self.machine
        selection = slice(None) if fragment.selection is None else fragment.selection
        self.live[selection] = False
        self.num_live -= fragment.count
        if machine.observer is not None:
            machine.observer.exit(site, self.cta.index, self.threads[selection])
        if len(self.ctas) > 1:
            slots = np.bincount(self.lanes[selection] // machine.geometry.threads, minlength=len(self.ctas))
            left = list(zip(self.ctas, slots.tolist(), strict=True))
        else:
            left = [(self.cta, fragment.count)]
        for cta, count in left:
            cta.live_threads -= count
            if count:
                sync.threads_left(machine, cta)
                if cta.live_threads == 0 and machine.observer is not None:
                    machine.observer.cta_exit(cta.index)
        for other in [f for f in self.parked if f.waits_for == REJOINING]:  # their warp may be whole now
            self.parked.remove(other)
            other.waits_for = None
            self.ready.append(other)
        return EXITED

    # -- what generated code and the table's functions ask ----------------------------------------------------------

    def threads_of(self, selection: Selection) -> NDArray[np.int64]:
        """Thread indices in the CTA."""
        return self.threads if selection is None else self.threads[selection]

    def special_register(self, name: str, site: Site) -> NDArray[Any]:
        """The value of %tid.x and the like for every lane of the team."""
        found = self.specials.get(name)
        if found is None or name.startswith(("%clock", "%globaltimer")):
            found = self.specials[name] = np.broadcast_to(special_register(self, name, site), (self.width,)).copy()
        return found

    def symbol(self, name: str, site: Site) -> NDArray[np.uint64]:
        """The address of a variable in its own space, for every lane."""
        key = (name, self.width)
        found = self.machine.special_cache.get(key)
        if found is None:
            machine = self.machine
            for table in (machine.smem_symbols, machine.parameter_offsets, machine.local_symbols):
                if name in table:
                    address = table[name]
                    break
            else:
                buffers = [buffer for buffer in machine.memory.buffers if buffer.name == name]
                if not buffers:
                    raise self.error(site, "syntax", f"{name} is no variable, parameter or special register")
                address = buffers[0].address
            found = machine.special_cache[key] = np.full(self.width, address, np.uint64)
        return found

    def error(
        self, site: Site, rule: str, message: str, selection: Selection = None, lane: int | None = None
    ) -> EmulationError:
        """An EmulationError at this instruction, with the CTA and, where known, the thread."""
        place = f"CTA {self.cta.index}"
        if lane is not None:
            lanes = self.lanes if selection is None else self.lanes[selection]
            position = int(lanes[lane])
            cta = self.ctas[position // self.machine.geometry.threads] if len(self.ctas) > 1 else self.cta
            thread = int(self.threads[position])
            place = f"CTA {cta.index}, thread {thread} (warp {thread // WARP}, lane {thread % WARP})"
        return EmulationError(f"{site.opcode}: {message} [{place}]", rule=rule, **error_facts(site))

    def flat(self, site: Site, addresses: NDArray[Any], size: int, selection: Selection) -> NDArray[np.int64]:
        """Flat addresses of .shared::cluster (or own) addresses, checked for bounds and alignment of `size` bytes."""
        smem = self.machine.smem
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        base = self.base if selection is None or self.base.__class__ is int else self.base[selection]
        if high < 1 << 24:
            if low < smem.first or high + size > smem.last:
                bad = int(np.argmax((addresses < smem.first) | (addresses.astype(np.int64) + size > smem.last)))
                raise self._outside(site, int(addresses[bad]), size, selection, bad)
            result = addresses.astype(np.int64) + base
        else:
            offsets = (addresses & 0xFFFFFF).astype(np.int64)
            ranks = (addresses >> 24).astype(np.int64) - 1
            outside = (offsets < smem.first) | (offsets + size > smem.last) | (ranks >= self.cluster_size)
            if outside.any():
                bad = int(np.argmax(outside))
                raise self._outside(site, int(addresses[bad]), size, selection, bad)
            first = self.cta.base - self.cta.rank * smem.stride
            result = offsets + np.where(ranks < 0, base, first + ranks * smem.stride)
            for rank in np.unique(ranks[ranks >= 0]).tolist():
                if self.cta.cluster.ctas[rank].live_threads == 0:
                    raise self.error(
                        site, "peer exited", f"the shared memory of CTA rank {rank} is gone: that CTA has left"
                    )
        if size > 1 and int(np.bitwise_or.reduce(addresses)) & (size - 1):
            bad = int(np.argmax((addresses & (size - 1)) != 0))
            raise self.misaligned(site, int(addresses[bad]), size, selection, bad)
        return np.asarray(result)

    def _outside(self, site: Site, address: int, size: int, selection: Selection, lane: int) -> EmulationError:
        smem = self.machine.smem
        message = (
            f"shared address {address:#x} with {size} bytes is outside the {smem.last - smem.first} bytes of shared "
            f"memory at {smem.first:#x} .. {smem.last - 1:#x}"
        )
        return self.error(site, "out of bounds", message, selection, lane)

    def misaligned(self, site: Site, address: int, size: int, selection: Selection, lane: int) -> EmulationError:
        return self.error(
            site,
            "misaligned",
            f"address {address:#x} is not a multiple of the access's {size} bytes",
            selection,
            lane,
        )

    # -- reports ----------------------------------------------------------------------------------------------------

    def site_of(self, fragment: Fragment) -> Site:
        """The instruction that the fragment waits at, or is about to run."""
        blocks = self.machine.kernel.blocks
        return fragment.site or blocks[min(fragment.block, len(blocks) - 1)].site

    def describe(self) -> list[str]:
        """One line for each fragment: who, where, and what it waits for."""
        found = []
        for fragment in [*self.parked, *self.ready]:
            lanes = self.lanes if fragment.selection is None else self.lanes[fragment.selection]
            site = self.site_of(fragment)
            what = fragment.reason() if fragment.reason is not None else "can run"
            for cta in self.ctas:
                own = lanes if len(self.ctas) == 1 else lanes[lanes // self.machine.geometry.threads == cta.slot]
                if len(own):
                    threads = self.threads[own]
                    warps = _ranges(np.unique(threads // WARP).tolist())
                    part = "" if len(own) % WARP == 0 else f" ({len(own)} threads from {int(threads[0])})"
                    found.append(f"CTA {cta.index} warp {warps}{part} at {site}: {what}")
        return found

    def unusable(self, site: Site, name: str, value: Unusable, selection: Selection = None) -> EmulationError:
        """That the register holds no value for the selected lanes, where an instruction uses it."""
        if isinstance(value, InFlight):
            message = f"{name} is an accumulator of {value.tile.site} which no wgmma.wait_group has waited for"
            return self.error(site, "accumulator in flight", message)
        lane = int(np.argmax(value.unwritten)) if isinstance(value, Partial) else None
        message = f"{name} is read but was never written{'' if lane is None else ' by this thread'}"
        return self.error(site, "uninitialised register", message, selection, lane)

    def _diagnosis(self, fragment: Fragment, block: Block, failure: Exception) -> EmulationError:
        """Why a block failed: its instruction read a register that holds no value, or else a fault of the emulator."""
        site, selection = block.site, fragment.selection
        inside = failure.__traceback__ and failure.__traceback__.tb_next  # the block's own function
        if inside is not None:
            kernel = self.machine.kernel
            item, held = kernel.step_at(block.index, self.width, selection is not None, inside.tb_lineno)
            site = item.instruction.site
            for reg in used_registers(item):
                if reg.index in held:
                    value = inside.tb_frame.f_locals.get(held[reg.index])
                else:
                    value = self.registers[reg.index]
                    if selection is not None and not isinstance(value, InFlight):
                        value = value[selection]
                if isinstance(value, Unusable):
                    return self.unusable(site, reg.name, value, selection)
        return self.error(site, "internal", f"the emulator failed here: {type(failure).__name__}: {failure}")


def _warps_of(selection: Selection, width: int) -> int:
    if isinstance(selection, slice):
        first, last, _ = selection.indices(width)
        return (last - 1) // WARP - first // WARP + 1
    if selection is None:
        return -(-width // WARP)
    warps = selection // WARP  # sorted
    return 1 + int(np.count_nonzero(warps[1:] != warps[:-1]))


def _selection(lanes: Index) -> Selection:
    """A slice where the lanes are neighbours."""
    if len(lanes) and int(lanes[-1]) - int(lanes[0]) + 1 == len(lanes):
        return slice(int(lanes[0]), int(lanes[-1]) + 1)
    return lanes


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in parts)
