"""Products with few rows, long k or few tiles, each with many configs beside cuBLAS: what the choice rests on.

Which shapes and which configs, and the short table; compare.py times them. Knows nothing of children or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tilewright import model
from tilewright.config import Config
from tilewright.device import Device
from tilewright.legality import SPLITS
from tilewright.packing import packed
from tilewright.problem import Problem

if TYPE_CHECKING:  # a table needs no driver
    from tilewright.backends.cuda import CudaBackend

Row = dict[str, Any]

ROWS = (16, 64, 1, 128, 8, 32)  # a run that is stopped has seen the ends and the middle
WEIGHTS = ((4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (7168, 16384), (2112, 7168))  # (n, k)
FEW_TILES = ((256, 256, 65536), (512, 512, 16384), (128, 128, 128), (384, 128, 256), (512, 512, 512), (1024,) * 3)
# A long k and few tiles: what slices are for. The last has rows of out that are no multiple of 16 bytes.
LONG = (
    (256, 256, 65536),
    (512, 512, 16384),
    (128, 128, 65536),
    (256, 512, 32768),
    (128, 4096, 14336),
    (512, 512, 4096),
    (255, 257, 65536),
)
CANDIDATES = 12  # a shape, in 0.3 s each
SLICED = 6  # more of them, of a small out; of others one
SLICED_OUT = 512 * 512  # elements of a small out
SHOWN = 8  # of a shape with slices, in the short table; of others 2
DEPENDENT_US = 8.0  # below, the start of a kernel is a part of its time that shows
CLUSTER_SHAPE = (64, 64, 64 * 64)  # any that a split of 8 can run


def shapes() -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) of each product, 42 in all."""
    return (*FEW_TILES, *((m, n, k) for m in ROWS for n, k in WEIGHTS))


def candidates(problem: Problem, device: Device) -> list[Config]:
    """The model's fastest, one of each tile, split and pairing: its judgements are what is to be measured. Two are
    neither swapped nor split; and where starts matter, the first is there once more as a dependent launch. Behind them
    the fastest in slices, one of each tile, cluster and number, the first once more without dependent sums."""
    kinds: dict[tuple[int, int, bool, int, int], Config] = {}
    ranked = model.ranked(problem, device, count=1 << 30)
    for each in ranked:
        config = each.config
        if (config.sharing == 1 or config.swap) and config.slices == 1:
            kinds.setdefault((config.tile_m, config.tile_n, config.swap, config.split_k, config.sharing), config)
    found = list(kinds.values())
    whole = [config for config in found if config.split_k == 1 and not config.swap][:2]
    chosen = list(dict.fromkeys([*found[: CANDIDATES - len(whole)], *whole]))
    if ranked[0].prediction.total_us < DEPENDENT_US:
        chosen.append(chosen[0].replace(dependent_launch=True))
    sliced = [each.config for each in ranked if each.config.slices > 1]
    sliced = sliced[: SLICED if problem.m * problem.n <= SLICED_OUT else 1]
    return [*chosen, *sliced, *(config.replace(dependent_sums=False) for config in sliced[:1])]


def problems(wanted: Iterable[tuple[int, int, int]] | None = None) -> Iterator[Problem]:
    """Each of these shapes, or of all, as a decode has it: bf16, both operands with k contiguous."""
    for m, n, k in shapes() if wanted is None else wanted:
        yield packed(m, n, k)


def rows_of(problem: Problem, device: Device, rounds: int | None = None) -> list[Row]:
    """One row a column, cuBLAS's among them, cold and interleaved, each checked first. Needs a GPU and torch."""
    from tilewright.bench.compare import compare  # here: the shapes and the table need no torch

    named: dict[str, Config | None] = {str(config): config for config in candidates(problem, device)}
    found = compare(problem, configs=(), named=named, rounds=rounds, checked=True)
    chosen = str(model.best(problem, device).config)
    return [row | {"is_chosen": row["candidate"] == chosen} for row in found]


def cluster_rows(backend: CudaBackend, ordinal: int = 0) -> list[Row]:
    """How many clusters of each size the device holds at once: SMs come in groups that a cluster does not leave."""
    from tilewright.dispatch import plan  # here: as above

    device = backend.device(ordinal)
    found = []
    for split_k in SPLITS[1:]:
        config = Config(tile_m=64, tile_n=64, consumers=1, stages=10, split_k=split_k)
        made = plan(packed(*CLUSTER_SHAPE), device=device, config=config)
        kernel = backend.load(made.binary, ordinal, made.launch)
        clusters = backend.max_clusters(kernel, made.launch)
        found.append({"candidate": f"clusters of {split_k}", "clusters": clusters, "ctas": clusters * split_k})
    return found


def kernels(device: Device, wanted: Iterable[tuple[int, int, int]] | None = None) -> Iterator[tuple[Problem, Config]]:
    """Everything that rows_of() and cluster_rows() load for these shapes, or for all."""
    for problem in problems(wanted):
        for config in candidates(problem, device):
            yield problem, config
    for split_k in SPLITS[1:]:
        yield packed(*CLUSTER_SHAPE), Config(tile_m=64, tile_n=64, consumers=1, stages=10, split_k=split_k)


def lines_of(rows: Sequence[Row]) -> list[str]:
    """A line a shape: cuBLAS, the fastest, the next, and the model's choice; and whatever is wrong."""
    lines = [f"{row['candidate']}: {row['clusters']}, {row['ctas']} CTAs" for row in rows if "clusters" in row]
    timed = [row for row in rows if "median_us" in row]
    for shape in dict.fromkeys((row["m"], row["n"], row["k"]) for row in timed):
        own = [row for row in timed if (row["m"], row["n"], row["k"]) == shape]
        baseline = next((row["median_us"] for row in own if row["candidate"] == "cublas"), None)
        ours = sorted((row for row in own if row["candidate"] != "cublas"), key=lambda row: float(row["median_us"]))
        plain = [row for row in ours if "dependent" not in row["candidate"].split()]
        shown = SHOWN if any("slices" in row["candidate"] for row in plain) else 2
        parts = [f"{'x'.join(map(str, shape)):18s} cuBLAS {_us(baseline)}"]
        parts += [f"{_us(row['median_us'])} {row['candidate']}" for row in plain[:shown]]
        parts += [f"chosen {_us(row['median_us'])} {row['candidate']}" for row in plain[shown:] if row.get("is_chosen")]
        parts += [f"dependent {_us(row['median_us'])}" for row in ours if row not in plain]
        lines.append(" | ".join(parts))
    lines += [
        f"{row.get('m')}x{row.get('n')}x{row.get('k')} {row.get('candidate')} {row['status']}: {row.get('why')}"[:300]
        for row in rows
        if row.get("status") not in ("ok", None)
    ]
    return lines


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:.2f}"
