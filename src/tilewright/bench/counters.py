"""Hardware counters of single launches, by Nsight Compute (`ncu`): which are asked for, and what its answer says.

A counter that this ncu or this chip does not know costs its own column alone: what ncu turns down is left out, and the
rest asked for again. Knows nothing of kernels.
"""

from __future__ import annotations

import csv
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.bench.children import rows_of

# What runs a command within some seconds: its exit status (None: stopped) and its output.
Run = Callable[[Sequence[str], float], tuple[int | None, str]]

SECTOR_BYTES = 32  # of the L2: lts__t_sectors
QUERY_LIMIT_S = 12.0

# Why warps wait: of each, how many do so on average whenever a scheduler issues.
STALLS = (
    "math_pipe_throttle", "short_scoreboard", "long_scoreboard", "mio_throttle", "lg_throttle", "barrier", "wait",
    "not_selected", "dispatch_stall", "no_instruction",
)  # fmt: skip

# How instructions use shared memory, as ncu's metrics spell it: ld.shared, st.shared, ldmatrix, stmatrix, cp.async.
SHARED_WAYS = ("ld", "st", "ldsm", "stsm", "ldgsts")

# Column -> (metric of ncu on compute capability 9.0, what one of it stands for). The first metric of a set is the one
# that every ncu since 2020 has.
METRICS: dict[str, dict[str, tuple[str, int]]] = {
    "traffic": {
        "dram_read_bytes": ("dram__bytes_read.sum", 1),
        "dram_written_bytes": ("dram__bytes_write.sum", 1),
        "l2_read_bytes": ("lts__t_sectors_srcunit_tex_op_read.sum", SECTOR_BYTES),
        "l2_bytes": ("lts__t_sectors_srcunit_tex.sum", SECTOR_BYTES),
        "fill_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
        "cycles": ("sm__cycles_elapsed.max", 1),
        "wgmmas": ("sm__inst_executed_pipe_tensor_op_gmma.sum", 1),
    },
    "banks": {
        "dram_read_bytes": ("dram__bytes_read.sum", 1),
        "l2_read_bytes": ("lts__t_sectors_srcunit_tex_op_read.sum", SECTOR_BYTES),
        "fill_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
        "cycles": ("sm__cycles_elapsed.max", 1),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
        "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1),
        "bank_conflicts_all": ("l1tex__data_bank_conflicts_pipe_lsu.sum", 1),
        "bank_reads": ("l1tex__data_bank_reads.sum", 1),
        "bank_writes": ("l1tex__data_bank_writes.sum", 1),
    },
    "utilisation": {
        "cycles": ("sm__cycles_elapsed.max", 1),
        "tensor_pct": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed", 1),
        "hmma_pct": ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
        "shared_pct": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed", 1),
        "l2_pct": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", 1),
        "dram_pct": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
        "warps_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
        "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1),
        "dram_read_bytes": ("dram__bytes_read.sum", 1),
    },
    "ladder": {
        "dram_read_bytes": ("dram__bytes_read.sum", 1),
        "dram_written_bytes": ("dram__bytes_write.sum", 1),
        "l2_read_bytes": ("lts__t_sectors_srcunit_tex_op_read.sum", SECTOR_BYTES),
        "l2_bytes": ("lts__t_sectors_srcunit_tex.sum", SECTOR_BYTES),
        "cycles": ("sm__cycles_elapsed.max", 1),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
        "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1),
        "hmma_pct": ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
        "warps_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    },
    "issue": {
        "dram_read_bytes": ("dram__bytes_read.sum", 1),
        "cycles": ("sm__cycles_elapsed.max", 1),
        "instructions": ("smsp__inst_executed.sum", 1),
        "hmmas": ("sm__inst_executed_pipe_tensor_op_hmma.sum", 1),
        "hmma_pct": ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
        "issued_pct": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
        "fill_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
        "wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
        "bank_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1),
        "lsu_pct": ("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 1),
        "bank_reads": ("l1tex__data_bank_reads.sum", 1),
        "bank_writes": ("l1tex__data_bank_writes.sum", 1),
        **{
            f"{reason}_stall": (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", 1)
            for reason in STALLS
        },
    },
}
METRICS["profile"] = {
    **METRICS["ladder"],
    **METRICS["issue"],
    # smsp__sass_*: of single instructions, by their addresses. The l1tex__* of the same name count as well what meets
    # other traffic at the banks (docs/emulator-hardware.md, "Bank conflicts").
    **{
        f"{way}_{what}": (f"smsp__sass_l1tex_data_{metric}_mem_shared_op_{way}.sum", 1)
        for way in SHARED_WAYS
        for what, metric in (("wavefronts", "pipe_lsu_wavefronts"), ("conflicts", "bank_conflicts_pipe_lsu"))
    },
    "gmmas": ("sm__inst_executed_pipe_tensor_op_gmma.sum", 1),
    "immas": ("sm__inst_executed_pipe_tensor_op_imma.sum", 1),
    "ldsm_instructions": ("smsp__inst_executed_op_ldsm.sum", 1),
    "stsm_instructions": ("smsp__inst_executed_op_stsm.sum", 1),
    "ldgsts_instructions": ("smsp__inst_executed_op_ldgsts.sum", 1),
    "ld_instructions": ("smsp__sass_inst_executed_op_shared_ld.sum", 1),
    "st_instructions": ("smsp__sass_inst_executed_op_shared_st.sum", 1),
    "global_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", 1),
    "global_copy_sectors": ("smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum", 1),
    "global_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", 1),
}

_NUMBER = re.compile(r"-?[\d,]+(\.\d+)?([eE][-+]?\d+)?")
_UNKNOWN = re.compile(r"[Ff]ailed to find metric[^\n]*|[Mm]etric[^\n]*(?:not found|unknown|invalid)[^\n]*")


# What an answer without counters says -> why, and what would work.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM",
        "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)",
        "load the driver's module with NVreg_RestrictProfilingToAdminUsers=0, give the container CAP_SYS_ADMIN, or run "
        "as root",
    ),
    (
        r"unrecogni[sz]ed option|[Pp]rofiling is not supported on|no metric is known to this ncu",
        "this ncu is older than the GPU or than the options that are asked of it",
        "install a newer Nsight Compute: 2022.3 or later for Hopper, 2020.1 for Ampere",
    ),
    (
        r"launches: stopped",
        "its time was over before it ended",
        "ask for a smaller size: ncu repeats a launch many times",
    ),
    (
        r"No kernels were profiled|launches: ok",
        "ncu saw no launch of the kernel",
        "run `tilewright run` with the same words first, which says why it cannot be launched",
    ),
)


@dataclass(frozen=True)
class Launched:
    """One launch as ncu saw it: the kernel's name, its counters by metric, and its CTAs where the answer says them."""

    kernel: str
    values: Mapping[str, float]
    grid: int | None = None


@dataclass(frozen=True)
class Child:
    """A child's last row, its launch as ncu saw it, and how it ended: "ok", or why there is no launch."""

    row: Mapping[str, Any]
    launch: Launched | None
    status: str

    def columns(self, kind: str) -> dict[str, Any]:
        """The status and the counters as columns of a row."""
        if self.launch is None:
            return {"status": "not counted", "why": self.status}
        return {"status": "ok"} | columns(kind, self.launch.values)


def command(metrics: Sequence[str], program: Sequence[str], log: str) -> list[str]:
    """ncu over a program: one row a launch and metric, as CSV in the file `log`; clocks are left as they are."""
    return [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--log-file", log,
        "--metrics", ",".join(metrics), *program,
    ]  # fmt: skip


def profile(
    metrics: Sequence[str],
    program: Sequence[str],
    log: str,
    read_log: Callable[[], str],
    run: Run,
    limit_s: float,
    refused: set[str],
) -> tuple[list[Launched], str]:
    """The launches of a program, in their order, and how it ended: "ok", or what went wrong.

    `refused` are metrics not to ask for; those that this ncu turns down are added to it.
    Raises: OSError: there is no ncu. Cost: ncu's start, some seconds; a launch is repeated some times.
    """
    wanted = [name for name in metrics if name not in refused]
    status = "no metric is known to this ncu"
    while wanted:
        code, output = run(command(wanted, program, log), limit_s)
        text = read_log()
        found = parsed(text)
        if found or code is None:
            return found, "ok" if code == 0 else "stopped" if code is None else f"exit {code}"
        status = f"exit {code}: {(output + text).strip()[-400:]}"
        unknown = refused_of(wanted, output + text) or set(wanted) - known(wanted, run)
        if not unknown:  # another reason: asking for less would not help
            break
        refused |= unknown
        wanted = [name for name in wanted if name not in unknown]
    return [], status


def of_child(kind: str, program: Callable[[Path], Sequence[str]], run: Run, limit_s: float, refused: set[str]) -> Child:
    """What ncu counts of `kind` of a child's one kernel.

    `program` is the child's command, given the file for its rows; the "entry" of the last one names the kernel, of
    whose launches the last counts. Raises: OSError: there is no ncu. Cost: see profile().
    """
    with tempfile.TemporaryDirectory() as folder:
        log, answer = Path(folder) / "rows.jsonl", Path(folder) / "ncu.csv"

        def read() -> str:
            return answer.read_text(errors="replace") if answer.exists() else ""

        launches, status = profile(metrics_of(kind), program(log), str(answer), read, run, limit_s, refused)
        rows = rows_of(log)
    row = rows[-1] if rows else {}
    own = [launch for launch in launches if launch.kernel == row.get("entry")]
    if status != "ok" or not own:
        return Child(row, None, f"{len(own)} launches: {status}")
    return Child(row, own[-1], "ok")


def reason(status: str) -> tuple[str, str]:
    """Why nothing was counted, by how ncu ended, and what would work."""
    for pattern, rule, works in _FAILURES:
        if re.search(pattern, status):
            return rule, works
    return f"ncu counted nothing: {status}", "run ncu itself on `tilewright run` for its own words"


def known(metrics: Sequence[str], run: Run) -> set[str]:
    """Those of the metrics that this ncu lists for its GPU; all of them where it gives no list."""
    _, output = run(["ncu", "--query-metrics"], QUERY_LIMIT_S)
    listed = set(re.findall(r"^[ \t]*([a-z0-9]\w*__\w+)", output, re.MULTILINE))
    return {name for name in metrics if name.split(".")[0] in listed} or set(metrics)


def refused_of(metrics: Iterable[str], output: str) -> set[str]:
    """The metrics that an error of ncu names."""
    complaints = " ".join(match[0] for match in _UNKNOWN.finditer(output))
    names = [name for name in metrics if re.search(rf"(?<![\w.]){re.escape(name.split('.')[0])}(?!\w)", complaints)]
    return set(names)


def parsed(text: str) -> list[Launched]:
    """The launches in ncu's CSV, wide (a column a metric) or long (a row a metric), in the order of their IDs."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    head = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return []
    rows = list(csv.DictReader(lines[head:]))
    found: dict[int, tuple[str, dict[str, float], int | None]] = {}
    for row in rows:
        if not (row.get("ID") or "").isdigit():  # the row of units
            continue
        _, values, _ = found.setdefault(int(row["ID"]), (_kernel(row), {}, _grid(row)))
        pairs = [(row["Metric Name"], row["Metric Value"])] if "Metric Name" in row else list(row.items())
        for metric, value in pairs:
            number = _number(value)
            if "__" in str(metric) and number is not None:
                values[str(metric)] = number
    return [Launched(name, values, grid) for _, (name, values, grid) in sorted(found.items())]


def columns(kind: str, values: Mapping[str, float]) -> dict[str, float | None]:
    """The counters of one launch by column; None: not counted."""
    return {
        column: None if values.get(metric) is None else values[metric] * size
        for column, (metric, size) in METRICS[kind].items()
    }


def metrics_of(kind: str) -> list[str]:
    """What ncu is asked for."""
    return [metric for metric, _ in METRICS[kind].values()]


def _kernel(row: Mapping[str, str]) -> str:
    return (row.get("Kernel Name") or "").split("(")[0].strip()


def _grid(row: Mapping[str, str]) -> int | None:
    """CTAs of "(132, 1, 1)"."""
    extents = re.findall(r"\d+", row.get("Grid Size") or "")
    return math.prod(map(int, extents)) if extents else None


def _number(text: object) -> float | None:
    match = _NUMBER.fullmatch(str(text).strip())
    return float(match[0].replace(",", "")) if match else None
