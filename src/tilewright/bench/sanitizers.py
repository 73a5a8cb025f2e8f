"""compute-sanitizer over small products: what is run under which tool, and what its output says.

Every form of the production kernel under every tool, and every rung of the ladder under racecheck. A report is kept
with its text, so that a false one can be shown to be so. Knows nothing of how a child is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.bench.cases import FORMS, Case, small_cases
from tilewright.config import Config
from tilewright.device import Device
from tilewright.jit.source import Source
from tilewright.kernels.catalog import family
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.ladder import RUNGS
from tilewright.kernels.render import render

Row = dict[str, Any]

TOOLS = ("memcheck", "racecheck", "synccheck")
ERROR_CODE = 9  # what the tool exits with when it has reported something
KEPT_LINES = 60  # of a tool's output in a row
KEPT_REPORTS = 20  # different reports in a row

_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")
_PREFIX = "========="
_HEAD = re.compile(r"=+ *((?:Error|Warning|Info|Invalid|Barrier|Program|Race|Out-of|Uninitialized|Misaligned)\b.*)")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One kernel under some tools. `rung`: its name in the ladder, or "" for the production kernel with `config`."""

    config: Config
    tools: tuple[str, ...] = TOOLS
    rung: str = ""

    @property
    def name(self) -> str:
        """As a row says it."""
        return self.rung or str(self.config)

    def words(self) -> list[str]:
        """What tells a child of benchmarks/h200.py which target it runs."""
        return ["--rung", self.rung] if self.rung else ["--configs", ",".join(self.config.words())]

    def cases(self, device: Device) -> list[Case]:
        """The small products that it can run."""
        return [case for case in small_cases(self.config) if not self.config.violations(case.problem, device)]


def targets() -> Iterator[Target]:
    """All that is sanitized where nothing else was asked for."""
    yield Target(config=Config())
    for config in FORMS.values():
        yield Target(config=config)
    for rung in RUNGS:
        yield Target(config=rung.config, rung=rung.name, tools=("racecheck",))


def sources(device: Device) -> list[Source]:
    """Every unit that the children load, for a machine whose compiler is another or none."""
    return [
        render(family(target.rung) if target.rung else HOPPER, case.problem, target.config, device)
        for target in targets()
        for case in target.cases(device)
    ]


def prefix(tool: str) -> list[str]:
    """What a child's command begins with."""
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(ERROR_CODE)]


def row_of(target: Target, tool: str, status: str, results: Sequence[Row], output: str, seconds: float) -> Row:
    """What one tool said of one target.

    `reports` has each different report once, with its whole text and how often it was made.
    """
    return {
        "kind": "sanitize",
        "tool": tool,
        "config": target.name,
        "status": status,
        "summary": summary_of(output),
        "products": sum(row["status"] != "skipped" for row in results),
        "wrong": sum(row["status"] not in ("ok", "skipped") for row in results),
        "seconds": round(seconds, 1),
        "reports": reports_of(output),
        "report": [line for line in output.splitlines() if line.startswith(_PREFIX)][:KEPT_LINES],
    }


def summary_of(output: str) -> str:
    """The tool's last word, or that it had none."""
    found = _SUMMARY.findall(output)
    return str(found[-1]) if found else "no summary: " + output.strip()[-200:]


def reports_of(output: str) -> list[Row]:
    """The different reports of a tool's output, most frequent first: `text` of the first of them, `count` of all.

    A report begins with a head such as "Error: Race reported between ..." and ends with an empty line. Two are alike
    when their heads are.
    """
    texts: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    current: list[str] | None = None
    for line in output.splitlines():
        head = _HEAD.fullmatch(line.rstrip())
        if head is not None:
            counts[head[1]] = counts.get(head[1], 0) + 1
            current = texts.setdefault(head[1], []) if counts[head[1]] == 1 else None
        elif not line.startswith(_PREFIX) or line.strip() == _PREFIX or _SUMMARY.search(line):
            current = None
        if current is not None:
            current.append(line.removeprefix(_PREFIX).strip())
    ordered = sorted(counts, key=lambda head: -counts[head])
    return [{"count": counts[head], "text": "\n".join(texts[head])} for head in ordered[:KEPT_REPORTS]]
