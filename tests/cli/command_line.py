"""Command lines run inside the test's process, and what they must come to."""

from __future__ import annotations

from typing import NoReturn

from typer.testing import CliRunner, Result

from tilewright.cli import app
from tilewright.errors import DriverError


def no_driver() -> NoReturn:
    raise DriverError("cuInit", "no libcuda.so.1", "install release 580 or newer", "0")


def call(*words: str, keys: str = "") -> Result:
    """One command line in this process. An exception that typer would have shown as a traceback fails the test."""
    result = CliRunner().invoke(app, list(words), input=keys)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def printed(*words: str) -> str:
    """Standard output of a command line that must succeed."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> str:
    """Standard error, folded into one line, of a command line that must be refused before it prints a result."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())
