"""Every error travels: between processes and through copies, with its facts and its sentence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest

from tilewright import errors
from tilewright.errors import TilewrightError

ERRORS: tuple[TilewrightError, ...] = (
    TilewrightError("what"),
    errors.RefusalError("asked", "rule", "works"),
    errors.ShapeError("asked", "rule", "works"),
    errors.LayoutError("asked", "rule", "works"),
    errors.DTypeError("asked", "rule", "works"),
    errors.UnsupportedError("asked", "rule", "works"),
    errors.ConfigError("128x256", ["one", "two"]),
    errors.CompileError("unit", "reason", "log", "command"),
    errors.DriverError("cuInit", "CUDA_ERROR", "explanation", "0"),
    errors.LibraryError("cublasLtMatmul", "CUBLAS_STATUS", "explanation", "(1, 2, 3)"),
    errors.EmulationError("finding", rule="race", line=3, source="file.cu:9"),
    errors.CacheError("/folder", "reason", "works"),
    errors.TuningError("4096x4096x4096", ["one", "two"]),
)
WAYS: dict[str, Callable[[TilewrightError], TilewrightError]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "pickle protocol 0": lambda error: pickle.loads(pickle.dumps(error, protocol=0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def _kinds(root: type[TilewrightError]) -> Iterator[type[TilewrightError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def test_the_list_above_has_every_error() -> None:
    assert {kind for kind in _kinds(TilewrightError) if kind.__module__.startswith("tilewright")} == set(
        map(type, ERRORS)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_with_its_facts_and_its_sentence(error: TilewrightError, way: str) -> None:
    error.add_note("seen on a Monday")
    arrived = WAYS[way](error)
    assert type(arrived) is type(error)
    assert vars(arrived) == vars(error)
    assert (arrived.args, str(arrived)) == (error.args, str(error))


def test_the_findings_of_an_emulation_error_arrive_as_well() -> None:
    error = errors.EmulationError("finding", rule="race", line=3)
    error.findings = ("earlier",)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "before that, earlier" in str(error)
