"""The shape of a launch, and what is resident of it: CTAs, clusters, and the special registers that tell a thread where
it is. Knows nothing of how threads run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulator.barriers import ClusterBarrier, NamedBarrier
from tilewright.emulator.events import Site
from tilewright.emulator.warpgroups import Warpgroup

if TYPE_CHECKING:
    from tilewright.emulator.team import Fragment, Team

WARP = 32
WARPGROUP = 128


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """One launch.

    Units: CTAs, threads, CTAs a cluster; bytes of dynamic shared memory; registers a thread at launch.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    registers: int

    @property
    def num_ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


@dataclass(eq=False)
class Cta:
    """One block of threads and what belongs to it. `base`: flat address of its shared memory."""

    index: int
    rank: int
    cluster: Cluster
    slot: int
    base: int
    live_threads: int
    barriers: dict[int, NamedBarrier] = field(default_factory=dict)
    spare_registers: int = 0
    register_waiters: list[tuple[Fragment, int]] = field(default_factory=list)
    warp_registers: dict[int, int] = field(default_factory=dict)
    warpgroups: dict[int, Warpgroup] = field(default_factory=dict)
    teams: list[Team] = field(default_factory=list)


@dataclass(eq=False)
class Cluster:
    """CTAs that see each other's shared memory, by rank."""

    index: int
    ctas: list[Cta] = field(default_factory=list)
    barrier: ClusterBarrier = field(default_factory=ClusterBarrier)


def cluster_members(geometry: Geometry, index: int) -> list[int]:
    """Linear CTA indices of a cluster, by rank."""
    (gx, gy, _), (cx, cy, cz) = geometry.grid, geometry.cluster
    nx, ny = gx // cx, gy // cy
    x, y, z = index % nx, index // nx % ny, index // (nx * ny)
    return [
        (x * cx + i) + gx * ((y * cy + j) + gy * (z * cz + k)) for k in range(cz) for j in range(cy) for i in range(cx)
    ]


def special_register(team: Team, name: str, site: Site) -> Any:
    """Source: PTX ISA, special registers."""
    geometry = team.machine.geometry
    threads = team.threads
    (bx, by, _), (gx, gy, _), (cx, cy, _) = geometry.block, geometry.grid, geometry.cluster
    per_lane = np.repeat([cta.index for cta in team.ctas], geometry.threads) if len(team.ctas) > 1 else team.cta.index
    linear = np.asarray(per_lane, np.int64)
    x, y, z = linear % gx, linear // gx % gy, linear // (gx * gy)
    tables: dict[str, tuple[Any, Any, Any]] = {
        "%tid": (threads % bx, threads // bx % by, threads // (bx * by)),
        "%ntid": geometry.block,
        "%ctaid": (x, y, z),
        "%nctaid": geometry.grid,
        "%cluster_nctaid": geometry.cluster,
        "%cluster_ctaid": (x % cx, y % cy, z % geometry.cluster[2]),
        "%clusterid": (x // cx, y // cy, z // geometry.cluster[2]),
        "%nclusterid": tuple(g // c for g, c in zip(geometry.grid, geometry.cluster, strict=True)),  # type: ignore[dict-item]
    }
    base, _, axis = name.partition(".")
    if base in tables and axis in ("x", "y", "z"):
        return np.asarray(tables[base]["xyz".index(axis)]).astype(np.uint32)
    lane = threads % WARP
    one = np.uint64(1)
    singles: dict[str, Callable[[], Any]] = {
        "%laneid": lambda: lane,
        "%warpid": lambda: threads // WARP,
        "%nwarpid": lambda: -(-geometry.threads // WARP),
        "%cluster_ctarank": lambda: team.cta.rank,
        "%cluster_nctarank": lambda: geometry.cluster_size,
        "%is_explicit_cluster": lambda: int(geometry.cluster_size > 1),
        "%smid": lambda: linear,
        "%nsmid": lambda: geometry.num_ctas,
        "%gridid": lambda: 0,
        "%dynamic_smem_size": lambda: geometry.smem_bytes,
        "%total_smem_size": lambda: team.machine.smem.last - team.machine.smem.first,
        "%lanemask_eq": lambda: one << lane.astype(np.uint64),
        "%lanemask_lt": lambda: (one << lane.astype(np.uint64)) - one,
        "%lanemask_le": lambda: (one << (lane.astype(np.uint64) + one)) - one,
        "%lanemask_gt": lambda: ~((one << (lane.astype(np.uint64) + one)) - one),
        "%lanemask_ge": lambda: ~((one << lane.astype(np.uint64)) - one),
        "%clock": lambda: team.machine.blocks_run,
    }
    if name in ("%clock64", "%globaltimer"):
        return np.uint64(team.machine.blocks_run)
    if name not in singles:
        raise team.error(site, "unsupported", f"special register {name} is not in the table")
    return (np.asarray(singles[name]()).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
