"""One product in the emulator, checked element by element, and what a run did as rows of tables.

Makes operands, verdicts and rows; how a row looks, the command line knows.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tilewright.backends.emulated import EmulatedBackend, Finding, Report
from tilewright.backends.steps import run_once
from tilewright.check import Check, check, check_exact
from tilewright.host_operands import Kind, host_operands, unwritten
from tilewright.plan import Plan

Row = tuple[str, ...]

WARP = 32
_PRODUCT = re.compile(r"\.m(\d+)n(\d+)k(\d+)\b")
_PER_LANE = {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1, "div": 1}  # FLOPs of one element
_FLOATS = {"f32": 1, "f16": 1, "bf16": 1, "f64": 1, "f16x2": 2, "bf16x2": 2}  # elements of one operand


class Ran(NamedTuple):
    """One run of a plan: the verdict on its numbers, and what all of its launches did together."""

    check: Check
    report: Report


def run_plan(plan: Plan, device: EmulatedBackend, *, kind: Kind = "integer", seed: int = 0) -> Ran:
    """One run of the plan: the copies before its kernel and the sums behind it, where it has such, are part of it.

    Raises: EmulationError: the kernel broke a rule, or the checks of `device` found one.
    """
    problem = plan.problem
    a, b, out = host_operands(problem, seed, kind)
    addresses = {"a": a.view.ctypes.data, "b": b.view.ctypes.data, "out": out.view.ctypes.data}
    reports: list[Report] = []

    def note() -> None:
        assert device.report is not None  # of a launch that has come to its end
        reports.append(device.report)

    run_once(device, plan.work, addresses, launched=note)
    if kind == "integer":
        verdict = check_exact(a.view, b.view, out.view)
    else:
        verdict = check(a.view, b.view, out.view, problem.out_dtype, inputs=problem.dtype, sums=problem.sums)
    verdict = dataclasses.replace(verdict, unwritten=unwritten(out.view, problem.out_dtype))
    return Ran(verdict, functools.reduce(Report.then, reports))


# -- what a run did ----------------------------------------------------------------------------------------------------

FINDING_COLUMNS = ("rule", "CUDA line", "PTX line", "where", "what", "repair")
BANK_COLUMNS = ("instruction", "CUDA line", "PTX lines", "ideal", "wavefronts", "too many")
PATTERN_COLUMNS = ("instruction", "CUDA line", "pattern", "uses", "verdict")
FACT_COLUMNS = ("what", "count")


def finding_rows(findings: Iterable[Finding]) -> list[Row]:
    """One row a finding."""
    rows: list[Row] = []
    for found in findings:
        places = (("CTA", found.cta), ("warp", found.warp), ("lane", found.lane))
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        other = f" (against {found.other_site})" if found.other_site is not None else ""
        barrier = f"; {found.barrier}" if found.barrier else ""
        line = found.site.source or "-"
        rows.append((found.rule, line, str(found.site.line), where, found.message + other + barrier, found.repair))
    return rows


def bank_rows(report: Report) -> list[Row]:
    """Counted wavefronts, one row for each instruction of a CUDA line: unrolled copies of it are one. Worst first."""
    merged: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for site, (wavefronts, ideal) in report.banks.items():
        entry = merged.setdefault((site.opcode, site.source_chain), [site.line, site.line, 0, 0])
        entry[0], entry[1] = min(entry[0], site.line), max(entry[1], site.line)
        entry[2] += ideal
        entry[3] += wavefronts
    rows = sorted(merged.items(), key=lambda item: item[1][2] - item[1][3])
    return [
        (
            opcode,
            _lines(chain),
            _span(first, last),
            str(ideal),
            str(wavefronts),
            f"{wavefronts / max(ideal, 1) - 1:.1%}",
        )
        for (opcode, chain), (first, last, ideal, wavefronts) in rows
    ]


def pattern_rows(report: Report) -> list[Row]:
    """Boxes of TMA and operands of wgmma, judged by rule, one row for each pattern of a CUDA line."""
    merged: dict[tuple[str, tuple[str, ...], str], list[Any]] = {}
    for pattern in report.patterns:
        name = "TMA load" if pattern.site.opcode.startswith("cp.") else pattern.site.opcode.split(".")[0]
        entry = merged.setdefault((name, pattern.site.source_chain, pattern.what), [0, 0, 0, ""])
        entry[0] += pattern.uses
        entry[1] += pattern.wavefronts
        entry[2] += pattern.ideal
        entry[3] = entry[3] or pattern.verdict
    rows: list[Row] = []
    for (name, chain, what), (uses, wavefronts, ideal, verdict) in merged.items():
        times = f"{wavefronts / ideal:.1f} times the wavefronts: " if wavefronts > ideal > 0 else ""
        rows.append((name, _lines(chain), what, str(uses), f"{times}{verdict}" if verdict else "no conflict"))
    return rows


def _lines(chain: tuple[str, ...]) -> str:
    """The two innermost lines of an inlined call: the wrapper of the instruction, and who called it."""
    return " < ".join(chain[:2]) or "-"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def work_facts(report: Report, fewest_bytes: int) -> dict[str, float]:
    """Bytes moved, FLOPs and their ratio. `fewest_bytes`: each operand moved once; what exceeds it the L2 may catch.

    Units: bytes; FLOPs of all lanes, predicated-off ones included, zeros past the edges too.
    """
    traffic = report.traffic
    moved = traffic.get("global read", 0) + traffic.get("global written", 0)
    tensor, plain = flops(report.instructions)
    facts: dict[str, float] = {f"bytes, {name}": count for name, count in sorted(traffic.items())}
    facts["bytes, global, each operand once"] = fewest_bytes
    facts["times each byte passes the L2"] = moved / max(fewest_bytes, 1)
    facts["FLOPs, tensor cores"] = tensor
    facts["FLOPs, other"] = plain
    facts["FLOPs a byte of global traffic"] = (tensor + plain) / max(moved, 1)
    facts["FLOPs a byte at best"] = (tensor + plain) / max(fewest_bytes, 1)
    facts["warp instructions"] = report.warp_instructions
    return facts


def flops(instructions: Mapping[str, int]) -> tuple[int, int]:
    """(tensor cores, other) FLOPs of warp instructions by opcode."""
    tensor = plain = 0
    for opcode, count in instructions.items():
        parts = opcode.split(".")
        shape = _PRODUCT.search(opcode)
        if (shape is not None and parts[0] in ("wgmma", "mma")) or opcode.startswith("wmma.mma"):
            m, n, k = map(int, shape.groups()) if shape is not None else (16, 16, 16)
            each = 2 * m * n * k // (4 if parts[0] == "wgmma" else 1)  # four warps issue one wgmma
            tensor += count * each // (2 if "sp" in parts or "sp::ordered_metadata" in opcode else 1)
        elif parts[0] in _PER_LANE and parts[-1] in _FLOATS:
            plain += count * WARP * _PER_LANE[parts[0]] * _FLOATS[parts[-1]]
    return tensor, plain


def families(instructions: Mapping[str, int]) -> dict[str, int]:
    """Warp instructions by what they are about, the most frequent first."""
    found: dict[str, int] = {}
    for opcode, count in instructions.items():
        name = _family(opcode)
        found[name] = found.get(name, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _family(opcode: str) -> str:
    if opcode.startswith("cp.async.bulk.tensor"):
        return "TMA store" if ".global.shared::cta" in opcode else "TMA load"
    if opcode.startswith("wgmma.") and not opcode.startswith("wgmma.mma_async"):
        return "wgmma groups"
    if opcode.startswith("cp.async."):
        if opcode.startswith("cp.async.bulk"):
            return "cp.async.bulk"
        return "cp.async" if ".global" in opcode else "cp.async groups"
    for start in (
        "wgmma.mma_async",
        "wmma.mma",
        "mbarrier",
        "ld.shared",
        "st.shared",
        "ld.global",
        "st.global",
        "stmatrix",
    ):
        if opcode.startswith(start):
            return start.removesuffix(".mma_async")
    return opcode.split(".")[0]


def document(report: Report | None, findings: Iterable[Finding], fewest_bytes: int) -> dict[str, Any]:
    """All of it as one JSON value. `report` None: the run was stopped."""
    shown: dict[str, Any] = {
        "findings": [dict(zip(FINDING_COLUMNS, row, strict=True)) for row in finding_rows(findings)]
    }
    if report is not None:
        shown |= {
            "width": report.width,
            "banks": [dict(zip(BANK_COLUMNS, row, strict=True)) for row in bank_rows(report)],
            "patterns": [dict(zip(PATTERN_COLUMNS, row, strict=True)) for row in pattern_rows(report)],
            "work": work_facts(report, fewest_bytes),
            "instructions": dict(sorted(report.instructions.items(), key=lambda item: -item[1])),
        }
    return shown
