"""The irregular shape of the Ampere source text, 384 x 128 x 256, alone and in batches: steps, rows, tables.

Knows the steps from WMMA to the production family and what was expected of each, in the text's order, which puts
prefetch before the conflicts. Times nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ampere_config import AmpereConfig
from tilewright.backends.base import Backend
from tilewright.backends.emulated import emulated
from tilewright.bench.ladder import occupancy_pct, rung_plan
from tilewright.bench.profile_counts import emulated_counts
from tilewright.bench.published import published_parts
from tilewright.bench.tables import NOT_MEASURED, caption, markdown
from tilewright.calls import Ledger
from tilewright.device import Device, preset
from tilewright.errors import ConfigError
from tilewright.kernels.ampere import AMPERE
from tilewright.packing import packed
from tilewright.plan import Plan
from tilewright.problem import Problem

Row = dict[str, Any]

KIND = "irregular"  # of every committed row; `part` says which: check, time, emulated, child
M, N, K = 384, 128, 256
BATCHES = (1, 16, 256, 1024, 4096)
SHOWN = 1024  # the batch that expectations are of
WMMA = "WMMA"  # the step that others are compared with
CUBLAS, CHOICE = "cublas", "tilewright"  # columns beside the steps: torch.bmm, and matmul's own choice

COLUMNS = ("matrices", "step", "config", "us", "TFLOPS", "TB/s", "over WMMA", "over cuBLAS", "expected us", "spread")
EMULATED_COLUMNS = (
    "step", "config", "registers", "shared KiB", "warps of an A100", "warps of an H200", "wavefronts a matrix",
    "of them conflicts", "mma.sync a wavefront",
)  # fmt: skip
_KEPT = (
    "status", "why", "case", "step", "batch", "candidate", "config", "num_sets", "is_cold", "mode", "median_us",
    "lower_us", "upper_us", "spread", "rounds", "rate_tflops", "ratio", "ratio_lower", "ratio_upper", "watts",
    "clock_mhz", "error_over_bound", "registers", "smem_bytes", "occupancy_a100_pct", "occupancy_h200_pct",
    "wavefronts", "conflicts", "products",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A rung of the Ampere ladder with some constants changed, or a config of the production family.

    `expected_us` of SHOWN matrices on an H200, a judgement before it was measured: docs/ladder/irregular.md says from
    what.
    """

    name: str
    expected_us: float
    rung: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    own: AmpereConfig | None = None

    def plan(self, problem: Problem, device: Device, backend: Callable[[], Backend]) -> Plan:
        """Raises: ConfigError: it cannot run the problem on the device."""
        if self.own is None:
            return rung_plan(self.rung, problem, device, backend, changes=dict(self.changes))
        return Plan(
            problem,
            device,
            AMPERE,
            self.own,
            why=self.name,
            num_sms=None,
            backend=backend,
            ledger=Ledger(),
        )


def _own(tile: tuple[int, int, int], warps: tuple[int, int], stages: int, **fields: Any) -> AmpereConfig:
    (tile_m, tile_n, tile_k), (warps_m, warps_n) = tile, warps
    return AmpereConfig(
        tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, warps_m=warps_m, warps_n=warps_n, stages=stages, **fields
    )


STEPS: tuple[Step, ...] = (
    Step(WMMA, 560, "a0"),
    Step("ldmatrix and mma.sync", 545, "a1"),
    Step("16-byte loads", 240, "a2"),
    Step("prefetch, by cp.async", 235, "a5", (("swizzled", False),)),
    Step("swizzled", 125, "a5"),
    Step(
        "64 x 64 a warp",
        118,
        "a7",
        (("tile_n", 128), ("warps_m", 2), ("warps_n", 2), ("stages", 3), ("min_ctas", 2)),
    ),
    Step("production, two CTAs", 109, own=_own((128, 128, 64), (2, 2), 3, ctas=2)),
    Step("production, three ahead", 107, own=_own((128, 128, 64), (2, 2), 3, ctas=2, ahead=3)),
    Step("production, six slots", 115, own=_own((128, 128, 64), (2, 4), 6, split_barrier=True)),
    Step("production, two tiles a matrix", 107, own=_own((192, 128, 64), (4, 2), 5)),
    Step("production, two tiles, three ahead", 105, own=_own((192, 128, 64), (4, 2), 5, ahead=3)),
    Step("production, two tiles, split", 101, own=_own((192, 128, 64), (4, 2), 5, ahead=3, split_barrier=True)),
)
BY_NAME = {step.name: step for step in STEPS}


def problem_of(batch: int) -> Problem:
    """`batch` products of fp16, one below the other; 1 is a single one."""
    return packed(M, N, K, dtype="fp16", batch=() if batch == 1 else (batch,))


def checked_problems() -> tuple[Problem, ...]:
    """The shape alone and twice, and batches that end inside tiles and inside a k tile."""
    odd = ((130, 70, 96, 3), (1, 129, 8, 5))
    return (problem_of(1), problem_of(2), *(packed(m, n, k, dtype="fp16", batch=(batch,)) for m, n, k, batch in odd))


def published(rows: Sequence[Row]) -> list[Row]:
    """The rows as they are committed."""
    return published_parts(rows, KIND, _KEPT)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a column of a batch: the steps in their order, then matmul's own choice and cuBLAS.

    Units: microseconds of all matrices; bytes that have to move over that time; ratios of two medians of one batch.
    """
    timed = [row for row in rows if row.get("kind") == KIND and row["part"] == "time" and "median_us" in row]
    lines: list[tuple[str, ...]] = []
    order = (*BY_NAME, CHOICE, CUBLAS)
    for batch in dict.fromkeys(row["batch"] for row in timed):
        own = {row["step"]: row for row in timed if row["batch"] == batch}
        moved = problem_of(batch).min_bytes
        for name in (name for name in order if name in own):
            row = own[name]
            lines.append(
                (
                    str(batch),
                    _title(name),
                    row.get("config") or "-",
                    f"{row['median_us']:.1f}",
                    f"{row['rate_tflops']:.1f}",
                    f"{moved / row['median_us'] * 1e-6:.2f}",
                    _over(own.get(WMMA), row),
                    _over(own.get(CUBLAS), row),
                    f"{BY_NAME[name].expected_us:.0f}" if batch == SHOWN and name in BY_NAME else "-",
                    f"{100 * row['spread']:.0f} %",
                )
            )
    return lines


def emulated_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a step: what its kernel takes of an SM, and what shared memory does for one matrix, emulated."""
    own = {row["step"]: row for row in rows if row.get("kind") == KIND and row["part"] == "emulated"}
    return [
        (
            name,
            row["config"],
            str(row["registers"]),
            f"{row['smem_bytes'] / 1024:.0f}",
            f"{row['occupancy_a100_pct']:.1f} %" if row.get("occupancy_a100_pct") is not None else "-",
            f"{row['occupancy_h200_pct']:.1f} %",
            "-" if row.get("wavefronts") is None else f"{row['wavefronts']:,.0f}",
            "-" if row.get("conflicts") is None else f"{row['conflicts']:,.0f}",
            "-" if row.get("wavefronts") is None else f"{row['products'] / row['wavefronts']:.2f}",
        )
        for name, row in ((name, own[name]) for name in BY_NAME if name in own)
    ]


def emulated_rows() -> Iterator[Row]:
    """One row a step: registers, occupancy by arithmetic, and the emulator's counts of one of SHOWN matrices.

    Of WMMA no wavefronts: PTX leaves its fragments open. Cost: some 20 s of one core.
    """
    problem = problem_of(SHOWN)
    chip = emulated("h200")
    for step in STEPS:
        plan = step.plan(problem, chip.model, lambda: chip)
        found = emulated_counts(plan)
        counts = found.counts
        try:
            a100 = occupancy_pct(step.plan(problem, preset("a100"), lambda: chip))
        except ConfigError:  # more shared memory or registers than an A100 has: its cell stays empty
            a100 = None
        row: Row = {
            "kind": "emulated",
            "status": "ok" if counts else "not counted",
            "why": found.how,
            "step": step.name,
            "config": str(plan.config),
            "registers": plan.binary.resources.registers,
            "smem_bytes": plan.launch.smem_bytes + plan.binary.resources.smem_bytes,
            "occupancy_a100_pct": a100,
            "occupancy_h200_pct": occupancy_pct(plan),
            "products": counts.get("hmmas", 0.0) / SHOWN,
        }
        if counts and not counts["wmma_instructions"]:
            for name in ("wavefronts", "conflicts"):
                row[name] = sum(count for key, count in counts.items() if key.endswith(f"_{name}")) / SHOWN
        yield row


def _title(name: str) -> str:
    return {CHOICE: "matmul's choice: the Hopper kernel", CUBLAS: "cuBLAS"}.get(name, name)


def _over(base: Row | None, row: Row) -> str:
    return "-" if base is None or base is row else f"**{base['median_us'] / row['median_us']:.2f}**"


def irregular_table(rows: Sequence[Row]) -> str:
    """One line a step and batch of the irregular shape, and what was measured beside them."""
    own = [row for row in rows if row.get("kind") == KIND and row["part"] == "time"]
    checks = [row for row in rows if row.get("kind") == KIND and row["part"] == "check"]
    if not own:
        return NOT_MEASURED
    counts = {name: sum(row[name] for row in checks) for name in ("ok", "wrong")}
    meaning = (
        "Microseconds of all matrices, interleaved with cuBLAS, inputs cold where all sets together exceed four times "
        "the L2, every column's result checked first; TB/s of the bytes that have to move. Ratios are of two medians."
    )
    if checks:
        meaning += f" Whole numbers, bit for bit: {counts['ok']} products right, {counts['wrong']} wrong."
    return markdown(COLUMNS, cells(rows)) + caption(own, meaning)


def irregular_emulated_table(rows: Sequence[Row]) -> str:
    """One line a step of the irregular shape: what it takes of an SM and what shared memory does for one matrix."""
    own = [row for row in rows if row.get("kind") == KIND and row["part"] == "emulated"]
    meaning = (
        "Warps: of those that an SM can hold; a dash where an A100 has not the shared memory. PTX leaves the layout of "
        "WMMA's fragments open: its wavefronts are not known before a GPU counts them."
    )
    return markdown(EMULATED_COLUMNS, emulated_cells(rows)) + caption(own, meaning)


TABLES = {"irregular": irregular_table, "irregular-emulated": irregular_emulated_table}
