"""Every exception that leaves tilewright. Each holds its facts; str() writes the sentence.

A refusal says three things: what was asked, the rule with its numbers, and what would work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TilewrightError(Exception):
    """Root of every exception that tilewright raises on purpose. Each can be pickled and copied with its facts."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls the class with `args`, which a keyword-only argument refuses.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TilewrightError], arguments: tuple[object, ...], facts: dict[str, Any]) -> TilewrightError:
    """The error that __reduce__ took apart, in this process or another."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(facts)
    return error


class RefusalError(TilewrightError):
    """A call that was refused before any launch."""

    def __init__(self, asked: str, rule: str, works: str) -> None:
        self.asked = asked
        self.rule = rule
        self.works = works
        super().__init__(asked, rule, works)

    def __str__(self) -> str:
        return f"{self.asked}: {self.rule}; {self.works}"


class ShapeError(RefusalError, ValueError):
    """Sizes that do not fit each other or the index range of the kernels."""


class LayoutError(RefusalError, ValueError):
    """Strides, pitches, addresses or overlaps that no kernel can serve."""


class DTypeError(RefusalError, TypeError):
    """An element type, or a combination of them, that no kernel serves."""


class UnsupportedError(RefusalError, RuntimeError):
    """A device, an array library or a feature that this build does not serve."""


class ConfigError(TilewrightError, ValueError):
    """A config that cannot run this problem on this device; holds every reason."""

    def __init__(self, config: str, violations: Sequence[str]) -> None:
        self.config = config
        self.violations = tuple(violations)
        super().__init__(config, self.violations)

    def __str__(self) -> str:
        return f"config {self.config} cannot run: " + "; ".join(self.violations)


class CompileError(TilewrightError, RuntimeError):
    """NVRTC or ptxas refused a unit, or built it in a way that tilewright refuses (spills, serialised wgmma)."""

    def __init__(self, source: str, reason: str, log: str, command: str) -> None:
        self.source = source
        self.reason = reason
        self.log = log
        self.command = command
        super().__init__(source, reason, log, command)

    def __str__(self) -> str:
        return f"{self.source} did not compile: {self.reason}\n  command: {self.command}\n{self.log}".rstrip()


class _FailedCallError(RuntimeError):
    """A call into somebody else's library that failed: what DriverError and LibraryError hold and say."""

    def __init__(self, call: str, status: str, explanation: str, arguments: str = "") -> None:
        self.call = call
        self.status = status
        self.explanation = explanation
        self.arguments = arguments
        super().__init__(call, status, explanation, arguments)

    def __str__(self) -> str:
        return f"{self.call}({self.arguments}) returned {self.status}: {self.explanation}"


class DriverError(_FailedCallError, TilewrightError):
    """A CUDA driver call that failed, or a driver that is missing or too old."""


class LibraryError(_FailedCallError, TilewrightError):
    """A call of another vendor library (cuBLASLt, a baseline) that failed."""


class EmulationError(TilewrightError, RuntimeError):
    """The emulator stopped: the PTX broke a rule, or is not in the table of instructions.

    `rule` is the rule's short name, `finding` the sentence, `line` the PTX line (0: no one line), `source` the CUDA
    line as "file.cu:123" ("" when the PTX was built without -lineinfo). `findings`: what the checks had found before.
    """

    def __init__(self, finding: str, *, rule: str = "", line: int = 0, source: str = "") -> None:
        self.findings: tuple[object, ...] = ()
        self.finding = finding
        self.rule = rule
        self.line = line
        self.source = source
        super().__init__(finding, rule, line, source)

    def __str__(self) -> str:
        places = [f"PTX line {self.line}"] if self.line else []
        if self.source:
            places.append(self.source)
        text = f"{', '.join(places)}: {self.finding}" if places else self.finding
        return "\n".join([text, *(f"before that, {earlier}" for earlier in self.findings)])


class CacheError(TilewrightError, OSError):
    """A cache folder that may not be used. A bad entry never raises this: it is a miss."""

    def __init__(self, folder: str, reason: str, works: str) -> None:
        self.folder = folder
        self.reason = reason
        self.works = works
        super().__init__(folder, reason, works)

    def __str__(self) -> str:
        return f"cache folder {self.folder} is not used: {self.reason}; {self.works}"


class TuningError(TilewrightError, RuntimeError):
    """A problem for which no candidate could be measured; holds what became of each."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(what, self.reasons)

    def __str__(self) -> str:
        return f"nothing was measured for {self.what}: " + "; ".join(self.reasons)
