"""PTX text -> words, numbers and signs, each with its line. Comments, white space and debug sections are gone."""

from __future__ import annotations

import re
from typing import NamedTuple

from tilewright.errors import EmulationError

# The groups in order: what is left out, then _KINDS. A section is left out as a whole where that is safe: most of a
# text with -lineinfo is its debug sections.
_TOKEN = re.compile(
    r"""[ \t\r]*(?:(\n[ \t\r\n]*|//[^\n]*|/\*.*?\*/|\.section\s+[.\w]+\s*\{[^{}"/]*\})
    |("[^"\n]*")
    |(0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|\d+\.\d*(?:[eE][-+]?\d+)?|\d+U?)
    |([%$_.A-Za-z](?:[\w$.%]|::)*)
    |([-+{}\[\](),;:@!|<>=~]))""",
    re.VERBOSE | re.DOTALL,
)
_LEFT_OUT = 1
_KINDS = ("", "", "string", "number", "word", "sign")


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    found: list[Token] = []
    line, position = 1, 0
    for match in iter(_TOKEN.scanner(text).match, None):  # type: ignore[attr-defined]  # typeshed has no scanner
        group = match.lastindex
        value = match[group]
        position = match.end()
        if group == _LEFT_OUT:
            line += value.count("\n")
        else:
            found.append(Token(_KINDS[group], value, line))
    rest = text[position:].lstrip(" \t\r")
    if rest:
        raise EmulationError(f"unexpected character {rest[0]!r}", rule="syntax", line=line)
    return found
