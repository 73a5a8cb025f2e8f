"""PTX text as words taken one after another, and whole numbers and literals of them. Knows no statement."""

from __future__ import annotations

import re
import struct

from tilewright.emulator.syntax import Imm
from tilewright.emulator.tokens import tokens_of
from tilewright.errors import EmulationError


class Reader:
    """The words of a text, and which of them is next."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens_of(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        if self.at >= len(self.tokens):
            last = self.tokens[-1].line if self.tokens else 1
            raise EmulationError(f"the text ends where {expected or 'more'} was expected", rule="syntax", line=last)
        token = self.tokens[self.at]
        if expected and token.text != expected:
            raise self.error(f"expected {expected!r}, found {token.text[:40]!r}")
        self.at += 1
        return token.text

    def error(self, message: str) -> EmulationError:
        line = self.tokens[min(self.at, len(self.tokens) - 1)].line if self.tokens else 1
        return EmulationError(message, rule="syntax", line=line)

    def line_rest(self) -> list[str]:
        """The tokens left on the line of the last one taken."""
        line = self.tokens[self.at - 1].line
        found = []
        while self.at < len(self.tokens) and self.tokens[self.at].line == line and self.peek() not in ("{", "}"):
            found.append(self.take())
        return found

    def skip_braces(self) -> None:
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
            if depth == 0:
                return

    def integer(self) -> int:
        sign = -1 if self.peek() == "-" else 1
        if self.peek() in ("-", "+"):
            self.take()
        word = self.take().rstrip("U")
        try:
            return sign * int(word, 0) if not re.fullmatch(r"0\d+", word) else sign * int(word, 8)
        except ValueError:
            self.at -= 1
            raise self.error(f"expected a whole number, found {word[:40]!r}") from None

    def number(self) -> Imm:
        sign = 1
        while self.peek() in ("-", "+"):
            sign = -sign if self.take() == "-" else sign
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token.kind != "number":
            raise self.error(f"expected a number, found {self.peek()!r}")
        word = token.text
        if word[:2] in ("0f", "0F"):
            self.take()
            value = struct.unpack(">f", bytes.fromhex(word[2:]))[0]
            return Imm(sign * value if sign < 0 else value, int(word[2:], 16) ^ (0x80000000 if sign < 0 else 0))
        if word[:2] in ("0d", "0D"):
            self.take()
            value = struct.unpack(">d", bytes.fromhex(word[2:]))[0]
            return Imm(sign * value if sign < 0 else value, int(word[2:], 16) ^ ((1 << 63) if sign < 0 else 0))
        if "." in word:
            self.take()
            return Imm(sign * float(word))
        return Imm(sign * self.integer())
