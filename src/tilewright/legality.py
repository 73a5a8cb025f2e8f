"""What is legal: every reason why a config cannot run a problem on a device, in words with numbers.

The rules of the Hopper family, and those that all families share; a family's own config has further ones, or others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from functools import cache
from typing import Any, cast

from tilewright.device import Device
from tilewright.epilogue_form import WRITTEN, Access, Form
from tilewright.errors import ConfigError
from tilewright.problem import Problem
from tilewright.tiling import MAX_TILES, SCHEDULES, SWIZZLE_BYTES, WGMMA_M, Tiling
from tilewright.tma import MAX_PITCH_BYTES, TMA_ALIGNMENT_BYTES

WGMMA_MAX_N = 256  # columns of one wgmma, PTX ISA
MAX_STAGES = 32  # of the smallest slots, 9 KB of a 64x8 tile, 25 fit
SPLITS: tuple[int, ...] = (1, 2, 4, 8)  # 8 CTAs is the largest cluster that every device takes (CUDA programming guide)
# CTAs below each other x side by side that load for each other; of more than 4 a share is hardly worth its load.
CLUSTERS: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
MAX_SLICES = 1024  # a judgement: 132 SMs have work for 264 slices of a single tile in two waves
MAX_SLICES_BYTES = 1 << 30  # of their sums: sums.cu counts chunks of 16 bytes in 32 bits, and no gain comes near

# Registers of an epilogue's steps, by how an array is reached: 16-bit values in pairs of columns, and any others, of
# which more are on their way. Source: 177 random compositions of up to five steps in random legal configs, half of them
# within 14 registers of the limit: 175 did not spill, one did, 12 bytes, and a split whose columns do not divide, of
# whose sums more are counted since (NVRTC 13.5, sm_90a, 2026-11-30). Of 191 others, all within 14 registers and most
# of kinds that were suspected, 13 did, 4 to 72 bytes (docs/decisions.md). Columns of m are the most: of each block 4
# addresses a pitch apart, which the compiler keeps.
_READ_REGISTERS: dict[Access, tuple[int, int]] = {"columns": (4, 8), "rows": (4, 4), "n": (16, 44), "m": (56, 56)}
_WRITTEN_REGISTERS: dict[Access, tuple[int, int]] = {"columns": (8, 8), "rows": (20, 20), "n": (16, 20), "m": (56, 56)}
_ACTIVATIONS = frozenset({"gelu", "silu", "gated"})
_ACTIVATION_REGISTERS = 12

# What a field's annotation asks of its value: the exact type, and its name in a sentence. True is no whole number.
KINDS: dict[Any, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "bool": (bool, "True or False"),
    "Schedule": (str, "a word"),
}


class Rules(Tiling):
    """Which values of a Config are legal, and for what."""

    def violations(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why this config cannot run the problem on the device, in words with numbers; () when it can."""
        if wrong_types := self._wrong_types():
            return tuple(wrong_types)  # no rule below can be stated about a value that is no number
        if refused := [*self._slices_violations(problem), *self._epilogue_violations(problem)]:
            return (*refused, *self._shape_violations())  # there is no problem to state the others about
        problem = self.computed(problem)
        found = [*self._shape_violations(), *self._problem_violations(problem)]
        if device.sm != (9, 0):
            found.append(
                f"the hopper family uses wgmma and TMA, which compute capability 9.0 alone has; {device.name} has "
                f"{device.sm[0]}.{device.sm[1]}, which AmpereConfig is for"
            )
        if not found:  # the numbers below mean something only for a config that is sound in itself
            found += self._budget_violations(problem, device)
        return tuple(found)

    def check(self, problem: Problem, device: Device) -> None:
        """Raises ConfigError with every violation when there is one."""
        found = self.violations(problem, device)
        if found:
            raise ConfigError(str(self), found)

    def _wrong_types(self) -> list[str]:
        """Fields whose value is not of their kind."""
        return [
            f"{field.name} = {value!r} is not {KINDS[field.type][1]}"
            for field in fields_of(cast("Hashable", type(self)))
            for value in [getattr(self, field.name)]
            if type(value) is not KINDS[field.type][0]
        ]

    def _shape_violations(self) -> list[str]:
        found = []
        if self.consumers not in (1, 2):
            found.append(f"consumers = {self.consumers} is outside 1 .. 2")
        else:
            step = WGMMA_M * (1 if self.pingpong else self.consumers)
            if self.tile_m < 1 or self.tile_m % step or self.tile_m > 256:
                found.append(f"tile_m = {self.tile_m} is not a multiple of {step} (64 rows a consumer) up to 256")
            elif self.staggered and (self.pingpong or self.wgmmas_m != 2):
                blocks = "ping-pong already hides the stores" if self.pingpong else f"not {self.wgmmas_m}"
                found.append(f"staggered = True is for consumers that share tiles and have 2 row blocks; {blocks}")
        if self.pingpong and self.consumers != 2:
            found.append(f"pingpong = True alternates between 2 consumers, not {self.consumers}")
        if self.tail_n and (self.tail_n % 8 or not 8 <= self.tail_n < self.tile_n):
            found.append(f"tail_n = {self.tail_n} is not 0 or a multiple of 8 below tile_n = {self.tile_n}")
        if self.tail_n and (self.cluster != 1 or self.pingpong):
            found.append(f"tail_n = {self.tail_n} is for single CTAs whose consumers share their tiles")
        if self.tile_n % 8 or not 8 <= self.tile_n <= WGMMA_MAX_N:
            found.append(f"tile_n = {self.tile_n} is not a multiple of 8 from 8 to {WGMMA_MAX_N}, the widths of wgmma")
        if not 2 <= self.stages <= MAX_STAGES:
            found.append(f"stages = {self.stages} is outside 2 .. {MAX_STAGES}")
        if (self.cluster_m, self.cluster_n) not in CLUSTERS:
            known = ", ".join(f"{rows} x {columns}" for rows, columns in CLUSTERS)
            found.append(f"cluster_m x cluster_n = {self.cluster_m} x {self.cluster_n} is not one of {known}")
        found += self._walk_violations()
        if not 1 <= self.store_slots <= 8:
            found.append(f"store_slots = {self.store_slots} is outside 1 .. 8")
        if self.split_k not in SPLITS:
            found.append(
                f"split_k = {self.split_k} is not one of {', '.join(map(str, SPLITS))}, the sizes of a cluster"
            )
        elif self.split_k > 1 and self.sharing > 1:
            found.append(
                f"split_k = {self.split_k} takes the whole cluster; cluster_m x cluster_n = {self.cluster_m} x "
                f"{self.cluster_n} is not 1 x 1"
            )
        for name, value in (("swap", self.swap), ("split_k", self.split_k if self.split_k > 1 else False)):
            forms = [form for form in ("pingpong", "staggered", "tail_n") if getattr(self, form)]
            if value and forms:
                found.append(f"{name} = {value} is for consumers that share wide tiles, not for {', '.join(forms)}")
        return found

    def _walk_violations(self) -> list[str]:
        """Of the order of tiles, which both families walk alike."""
        found = []
        if self.schedule not in SCHEDULES:
            found.append(f"schedule = {self.schedule!r} is not one of {', '.join(SCHEDULES)}")
        if not 1 <= self.group_m <= 65536:
            found.append(f"group_m = {self.group_m} is outside 1 .. 65536")
        if not 0 <= self.square <= 65536:
            found.append(f"square = {self.square} is outside 0 .. 65536")
        return found

    def _slices_violations(self, problem: Problem) -> list[str]:
        """Of a problem that is not sliced yet."""
        if self.slices == 1:
            return ["dependent_sums = True is for slices; there are none"] if self.dependent_sums else []
        if not 1 <= self.slices <= MAX_SLICES:
            return [f"slices = {self.slices} is outside 1 .. {MAX_SLICES}"]
        if problem.batch and not problem.out_is_padded:
            return [f"slices = {self.slices} is for a single product, not for a batch {problem.batch}"]
        found = []
        step = TMA_ALIGNMENT_BYTES // problem.dtype.size
        if not problem.batch and problem.k % (self.slices * step):
            found.append(
                f"slices = {self.slices} of k = {problem.k} are not parts of whole {TMA_ALIGNMENT_BYTES}-byte steps; "
                f"use a k that is a multiple of {self.slices * step}, or fewer slices"
            )
        sliced = self.sliced(problem)
        if any(stride * problem.dtype.size >= MAX_PITCH_BYTES for stride in (*sliced.a_batch, *sliced.b_batch)):
            found.append(f"slices = {self.slices} lie 2^40 bytes apart or more, which no tensor map takes")
        if (num_bytes := self.slices_bytes(problem)) > MAX_SLICES_BYTES:
            found.append(
                f"slices = {self.slices} of {problem.m} x {problem.n} fp32 sums are {num_bytes} bytes of scratch, more "
                f"than {MAX_SLICES_BYTES}; such a product has tiles enough without"
            )
        return found

    def _epilogue_violations(self, problem: Problem) -> list[str]:
        """Of a problem as it is given."""
        form = problem.epilogue
        if form is None:
            return []
        found = [
            f"{step.kind} is no step of the {self.family} family's epilogues"
            for step in form.steps
            if step.kind not in self.steps
        ]
        if form.split == "apart" and self.slices > 1:
            found.append(f"slices = {self.slices} of gate and up in two arrays: slices are a batch of one b")
        if form.is_gated and self.slices == 1:  # sums of slices are gated where they are added up
            found += self._gated_violations(problem)
        return found

    def _gated_violations(self, problem: Problem) -> list[str]:
        forms = [form for form in ("swap", "tail_n") if getattr(self, form)]
        if self.split_k > 1:
            forms.append("split_k")
        found = [f"{form}: a gated epilogue needs both halves of a tile's columns in one CTA" for form in forms]
        step = 16 * max(self.cluster_m, 1) if problem.b_major == "k" else 2 * SWIZZLE_BYTES // problem.dtype.size
        if self.tile_n % step:
            found.append(
                f"tile_n = {self.tile_n} of a gated epilogue is not a multiple of {step}: half of its columns are gates"
            )
        return [*found, *problem.gate_refusals]

    def _problem_violations(self, problem: Problem) -> list[str]:
        if not problem.is_for_wgmma:
            return [f"the hopper family multiplies bf16 and fp16 with fp32 sums; {problem} is for AmpereConfig"]
        found = []
        if self.tile_k * problem.dtype.size != SWIZZLE_BYTES:
            found.append(
                f"tile_k = {self.tile_k} of {problem.dtype} is not one {SWIZZLE_BYTES}-byte swizzle row; "
                f"use {SWIZZLE_BYTES // problem.dtype.size}"
            )
        if problem.b_major == "n" and self.tile_n % (SWIZZLE_BYTES // problem.dtype.size):
            operand = "m-contiguous a" if self.swap else "n-contiguous b"
            found.append(
                f"tile_n = {self.tile_n} of an {operand} is not a multiple of "
                f"{SWIZZLE_BYTES // problem.dtype.size}, the columns of one {SWIZZLE_BYTES}-byte swizzle row"
            )
        if problem.b_major == "n" and self.tail_n % (SWIZZLE_BYTES // problem.dtype.size):
            found.append(
                f"tail_n = {self.tail_n} of an n-contiguous b is not a multiple of "
                f"{SWIZZLE_BYTES // problem.dtype.size}"
            )
        if self.tail_n and problem.batch:
            found.append(f"tail_n = {self.tail_n} is for a single product, not for a batch {problem.batch}")
        if self.staggered and problem.out_dtype.size != 2:
            found.append(f"staggered = True keeps rounded 16-bit values, and out is {problem.out_dtype}")
        if self.staggered and problem.k <= self.tile_k:
            found.append(f"staggered = True needs two k tiles or more; k = {problem.k} is one")
        if self.split_k > 1 and self.tile_k > 0 and -(-problem.k // self.tile_k) < self.split_k:
            tiles = -(-problem.k // self.tile_k)
            most = max((split for split in SPLITS if split <= tiles), default=1)  # of k = 0 there is no tile at all
            found.append(
                f"split_k = {self.split_k} needs a k tile for each CTA; k = {problem.k} has only {tiles}; use "
                f"split_k = {most}"
            )
        return found

    def _budget_violations(self, problem: Problem, device: Device) -> list[str]:
        found = []
        if self.has_too_many_tiles(problem):
            rows, columns = self.tiles(problem)
            matrices = f"{problem.num_matrices} x " if problem.batch else ""
            fewest = -(-problem.m // 256) * -(-problem.n // 128) * problem.num_matrices  # that tile is always legal
            works = "split the product along m or n" if fewest >= MAX_TILES else "use a larger tile, such as 256x128"
            found.append(f"{matrices}{rows} x {columns} tiles are past the 2^30 that the schedule counts; {works}")
        if self.cluster > device.num_sms:
            found.append(f"clusters of {self.cluster} CTAs do not fit the {device.num_sms} SMs of {device.name}")
        if self.tail_n and self.tail_stages(problem) < 2:
            found.append(
                f"tail_n = {self.tail_n} leaves room for fewer than 2 slots of {self.narrow_bytes(problem)} bytes"
            )
        smem = self.smem_bytes(problem)
        if smem > device.smem_per_cta_bytes:
            partials = f" and {self.partial_bytes} of partial sums" if self.split_k > 1 else ""
            found.append(
                f"{self.stages} stages of {self.stage_bytes(problem)} bytes and {self.store_bytes(problem)} bytes of "
                f"store slots{partials} are {smem} bytes of shared memory; {device.name} gives a CTA "
                f"{device.smem_per_cta_bytes}; {self._works_in_smem(problem, smem - device.smem_per_cta_bytes)}"
            )
        state, (_, registers) = self._state_registers(problem), self.registers(problem)
        if self.split_k > 1 and problem.epilogue is not None:  # sums that are made while an epilogue waits for them
            state += self.wgmmas_m * self.stored_n * 5 // 4  # 2.5 times as many: ptxas loads further ones meanwhile
        if self.accumulators + state > registers:
            found.append(
                f"{self.accumulators} accumulators a thread and {state} registers of state exceed the "
                f"{registers} registers of a consumer; use a smaller tile"
                + (" or 2 consumers" if self.consumers == 1 else " or no pingpong" if self.pingpong else "")
            )
        return found

    def _works_in_smem(self, problem: Problem, excess_bytes: int) -> str:
        """What a config of so many bytes too many of shared memory may change to fit."""
        fewer = self.stages + -excess_bytes // (self.stage_bytes(problem) + self._slot_overhead_bytes(problem))
        if fewer >= 2 and not self.tail_n:  # narrow tiles have as many slots as there is room for
            return f"use {fewer} stages"
        return "use a smaller tile" + (" or fewer stages" if fewer >= 2 else "")

    def _state_registers(self, problem: Problem) -> int:
        """Registers of a consumer beside its accumulators: addresses, descriptors, the tile, the way out.

        Source: with these none of 640 random legal configs spilled or had its wgmmas serialised, half of them near the
        limit (NVRTC 13.5, 2026-11-30). With less: 8 of 8 spilled through TMA at 24, and 2 of 11 with fp32 out at 31.
        Batches of one dimension need no more, since a consumer finds its matrix when it stores; of several 2 of 65
        spilled at 31. Where out is stored without TMA, whatever its type and the batch, 1 of 165 with 31 to 48 spilled
        (16 bytes; staggered, a tail, one consumer), and 15 of 15 at 24; stored element by element, as a transposed one
        is, 43 of 63 did at 24 to 40. In clusters that share both operands a lane also keeps the rank that it tells of
        free slots; 4 more are taken to be enough, and of 120 random legal ones none spilled.
        """
        batch = 4 if len(problem.batch) > 1 else 0
        batch += 0 if problem.epilogue is None else epilogue_registers(problem.epilogue, len(problem.batch) > 1)
        peers = 4 if self.shares_both else 0
        if not problem.out_through_tma:
            return peers + (31 + (batch if problem.epilogue else 0) if problem.out_major == "n" else 44 + batch)
        return peers + (32 if problem.out_dtype.size == 4 else 28) + batch


def epilogue_registers(form: Form, has_dimensions: bool) -> int:
    """Registers of a consumer for an epilogue, of a problem as it is computed: addresses of arrays and how far they go,
    values on their way, what activations hold meanwhile. `has_dimensions`: the batch has several.
    """
    found = _ACTIVATION_REGISTERS if any(step.kind in _ACTIVATIONS for step in form.steps) else 0
    for step in form.steps:
        if step.array is not None:
            access = step.array.access
            lean, other = _WRITTEN_REGISTERS[access] if step.kind in WRITTEN else _READ_REGISTERS[access]
            is_lean = step.array.is_paired and step.array.dtype.size == 2
            found += (lean if is_lean else other) + (2 if has_dimensions else 0)
    return found


@cache
def fields_of(kind: Hashable) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a kind of config; once: a choice looks at them hundreds of times."""
    return dataclasses.fields(cast("type[Any]", kind))
