"""PTX text -> words, numbers and signs, each with its line. Comments and white space are gone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.errors import EmulationError

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|//[^\n]*|/\*.*?\*/)|(?P<newline>\n)
    |(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|\d+\.\d*(?:[eE][-+]?\d+)?|\d+U?)
    |(?P<word>[%$_.A-Za-z](?:[\w$.%]|::)*)
    |(?P<sign>[-+{}\[\](),;:@!|<>=~])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    found: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise EmulationError(f"unexpected character {text[position]!r}", rule="syntax", line=line)
        kind, value = str(match.lastgroup), match.group()
        if kind not in ("skip", "newline"):
            found.append(Token(kind, value, line))
        line += value.count("\n")
        position = match.end()
    return found
