"""PTX text -> instructions with resolved registers, labels and source lines. Knows grammar, no instruction's meaning.

Scopes nest, each with its own registers and labels (inline asm repeats label names). Lines of -lineinfo are kept for
each instruction, from the innermost call outwards.
"""

from __future__ import annotations

import re

from tilewright.emulator.declarations import (
    LIMIT_BYTES,
    MAX_PARAMETER_BYTES,
    MAX_REGISTERS,
    alignment_fault,
    initial_bytes,
    padded,
)
from tilewright.emulator.events import Site
from tilewright.emulator.reader import Reader
from tilewright.emulator.syntax import (
    TYPE_BYTES,
    Entry,
    Instruction,
    Mem,
    Name,
    Not,
    Operand,
    Pair,
    Program,
    Reg,
    Variable,
    Vec,
)

_LINE_DIRECTIVES = {".version", ".target", ".address_size", ".loc", ".file", ".maxntid", ".minnctapersm", ".reqntid",
                    ".maxnreg", ".explicitcluster", ".reqnctapercluster", ".maxclusterrank", ".noreturn", ".pragma",
                    ".maxnctapersm"}  # fmt: skip
MAX_DEPTH = 2  # of operands: {coordinates} in brackets
_SPACES = {".shared", ".global", ".const", ".local"}
_VARIABLE_PREFIXES = {".extern", ".visible", ".weak", ".common"}


def parse(text: str) -> Program:
    """The module in the text.

    Raises: EmulationError: text that is not PTX, with its line.
    """
    parser = _Parser(text)
    try:
        return parser.module()
    except (ValueError, IndexError, KeyError) as failure:  # a directive with fewer or other words than it has
        parser.at = max(parser.at - 1, 0)
        raise parser.error(f"malformed text at {parser.peek()[:40]!r}") from failure


class _Parser(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text_lines = text.split("\n")
        self.used_bytes: dict[tuple[str, str], int] = {}  # by entry ("": the module) and space
        self.program = Program({}, [], "", "")
        self.entry: Entry | None = None
        self.scopes: list[dict[str, Reg]] = []
        self.scope_numbers: list[int] = []
        self.next_scope = 0
        self.files: dict[int, str] = {}
        self.chain: tuple[tuple[int, int], ...] = ()
        self.inlined: dict[tuple[int, int, str], tuple[tuple[int, int], ...]] = {}
        self.sites: list[tuple[Site, tuple[tuple[int, int], ...]]] = []

    # -- module ---------------------------------------------------------------------------------------------------

    def module(self) -> Program:
        while self.at < len(self.tokens):
            word = self.peek()
            if word == ".section":
                while self.peek() != "{":
                    self.take()
                self.skip_braces()
            elif word in (".visible", ".weak", ".extern", ".entry", ".func"):
                self.declaration()
            elif word in _SPACES:
                self.variable([], self.program.variables)
            elif word in _LINE_DIRECTIVES:
                self.directive()
            else:
                raise self.error(f"{word!r} cannot stand at the level of the module")
        for site, chain in self.sites:
            named = tuple(f"{self.files.get(number, number)}:{line}" for number, line in chain if line)
            object.__setattr__(site, "source_chain", named)
        return self.program

    def declaration(self) -> None:
        prefixes = []
        while self.peek() in _VARIABLE_PREFIXES:
            prefixes.append(self.take())
        if self.peek() == ".entry":
            self.take()
            self.read_entry()
        elif self.peek() == ".func":  # a call to it is refused where it stands
            while self.peek() not in ("{", ";"):
                self.take()
            if self.peek() == "{":
                self.skip_braces()
            else:
                self.take()
        else:
            self.variable(prefixes, self.program.variables)

    def directive(self) -> None:
        word = self.take()
        rest = self.line_rest()
        if word == ".version":
            self.program.version = "".join(rest)
        elif word == ".target":
            self.program.target = "".join(rest)
        elif word == ".file" and len(rest) >= 2:
            self.files[int(rest[0])] = re.split(r"[/\\]", rest[1].strip('"'))[-1]
        elif word == ".loc":
            self.location(rest)
        elif self.entry is not None and word in (".maxntid", ".reqntid", ".reqnctapercluster", ".maxclusterrank"):
            self.entry.directives[word] = tuple(int(part) for part in rest if part != ",")
        elif self.entry is not None and word == ".explicitcluster":
            self.entry.directives[word] = ()

    def location(self, rest: list[str]) -> None:
        """.loc file line column [, function_name label, inlined_at file line column]."""
        place = (int(rest[0]), int(rest[1]))
        if "inlined_at" in rest:
            at = rest.index("inlined_at")
            outer = (int(rest[at + 1]), int(rest[at + 2]))
            key = (*outer, "")
            self.chain = (place, *self.inlined.get(key, (outer,)))
        else:
            self.chain = (place,)
        self.inlined[(*place, "")] = self.chain

    def variable(self, prefixes: list[str], into: list[Variable]) -> None:
        """.space [.align n] .type name [size] [= values] ;"""
        space = self.take()[1:]
        alignment = 0
        kind = ""
        while self.peek().startswith("."):
            word = self.take()
            if word == ".align":
                alignment = self.alignment()
            elif word[1:] in TYPE_BYTES:
                kind = word[1:]
            elif word not in (".attribute", ".managed"):
                raise self.error(f"{word!r} is not in the table of variable attributes")
        if not kind:
            raise self.error("a variable without a type")
        while True:
            name = self.take()
            count, sized = 1, True
            while self.peek() == "[":
                self.take()
                if self.peek() == "]":
                    sized = False
                else:
                    count *= self.extent()
                self.take("]")
            initial = b""
            if self.peek() == "=":
                self.take()
                initial, number = self.initializer(kind)
                count, sized = max(count, number), True
            size = TYPE_BYTES[kind] * count if sized else 0
            variable = Variable(name, space, alignment or TYPE_BYTES[kind], size, initial)
            self.reserve(variable)
            into.append(variable)
            if self.take() == ";":
                return

    def reserve(self, variable: Variable) -> None:
        """Counts the variable's bytes where its space has a limit."""
        key = (self.entry.name if self.entry is not None else "", variable.space)
        used = padded(self.used_bytes.get(key, 0), variable.alignment) + variable.size
        if used > (limit := LIMIT_BYTES.get(variable.space, used)):
            raise self.error(f"{variable.name} makes {used} bytes of .{variable.space} memory; {limit} are the limit")
        self.used_bytes[key] = used

    def alignment(self) -> int:
        value = self.integer()
        if fault := alignment_fault(value):
            raise self.error(fault)
        return value

    def extent(self) -> int:
        count = self.integer()
        if count < 0:
            raise self.error(f"{count} elements; an array has 0 or more")
        return count

    def initializer(self, kind: str) -> tuple[bytes, int]:
        values: list[bytes] = []
        depth = 0
        while True:
            word = self.peek()
            if word == "{":
                depth += 1
                self.take()
            elif word == "}":
                depth -= 1
                self.take()
            elif word == ",":
                self.take()
            else:
                raw = initial_bytes(self.number(), kind)
                if raw is None:
                    self.at -= 1
                    raise self.error(f"{self.peek()[:40]} is no value of type {kind}")
                values.append(raw)
            if depth == 0:
                break
        return b"".join(values), len(values)

    # -- entries --------------------------------------------------------------------------------------------------

    def read_entry(self) -> None:
        line = self.tokens[self.at - 1].line
        entry = self.entry = Entry(self.take(), line=line)
        if self.peek() == "(":
            self.take()
            while self.peek() != ")":
                self.parameter(entry)
                if self.peek() == ",":
                    self.take()
            self.take(")")
        while self.peek() != "{":
            if self.peek() not in _LINE_DIRECTIVES:
                raise self.error(f"{self.peek()!r} is not in the table of entry directives")
            self.directive()
        self.program.entries[entry.name] = entry
        self.body(entry)
        self.entry = None

    def parameter(self, entry: Entry) -> None:
        self.take(".param")
        alignment, kind = 0, ""
        while self.peek().startswith("."):
            word = self.take()
            if word == ".align":
                alignment = self.alignment()
            elif word[1:] in TYPE_BYTES:
                kind = word[1:]
            elif word not in (".ptr", ".global", ".shared", ".const", ".local"):
                raise self.error(f"{word!r} is not in the table of parameter attributes")
        name, count = self.take(), 1
        if self.peek() == "[":
            self.take()
            count = self.extent()
            self.take("]")
        if not kind:
            raise self.error(f"parameter {name[:40]} without a type")
        size = TYPE_BYTES[kind] * count
        alignment = alignment if count > 1 or kind == "b8" else TYPE_BYTES[kind]
        offset = padded(entry.parameter_bytes, max(alignment, 1))
        if offset + size > MAX_PARAMETER_BYTES:
            raise self.error(f"{offset + size} bytes of parameters; {MAX_PARAMETER_BYTES} are the limit")
        entry.parameters.append((name, offset, size, kind))
        entry.parameter_bytes = offset + size

    def body(self, entry: Entry) -> None:
        depth = 0
        while True:
            word = self.peek()
            if word == "{":
                self.take()
                depth += 1
                self.scopes.append({})
                self.scope_numbers.append(self.next_scope)
                self.next_scope += 1
            elif word == "}":
                self.take()
                depth -= 1
                self.scopes.pop()
                self.scope_numbers.pop()
                if depth == 0:
                    return
            elif word == ";":
                self.take()
            elif word == ".reg":
                self.registers(entry)
            elif word in _SPACES:
                self.variable([], entry.variables)
            elif word in _LINE_DIRECTIVES:
                if word == ".pragma":
                    while self.take() != ";":
                        pass
                else:
                    self.directive()
            elif self.at + 1 < len(self.tokens) and self.tokens[self.at + 1].text == ":":
                name = self.take()
                self.take(":")
                key = (self.scope_numbers[-1], name)
                if key in entry.labels:
                    raise self.error(f"label {name} is there twice in one scope")
                entry.labels[key] = len(entry.instructions)
            else:
                entry.instructions.append(self.instruction())

    def registers(self, entry: Entry) -> None:
        self.take(".reg")
        kind = self.take()[1:]
        if kind not in TYPE_BYTES:
            raise self.error(f"registers of type {kind!r} are not in the table")
        while True:
            name = self.take()
            names = [name]
            if self.peek() == "<":
                self.take()
                count = self.extent()
                if len(entry.registers) + count > MAX_REGISTERS:
                    raise self.error(f"{count} registers {name}; {MAX_REGISTERS} an entry are the limit")
                self.take(">")
                names = [f"{name}{i}" for i in range(count)]
            for each in names:
                reg = Reg(len(entry.registers), kind, each)
                entry.registers.append(reg)
                self.scopes[-1][each] = reg
            if self.take() == ";":
                return

    def instruction(self) -> Instruction:
        line = self.tokens[self.at].line
        guard = None
        if self.peek() == "@":
            self.take()
            negated = self.peek() == "!"
            if negated:
                self.take()
            reg = self.operand()
            if not isinstance(reg, Reg):
                raise self.error("a guard must be a predicate register")
            guard = (reg, negated)
        opcode = self.take()
        operands: list[Operand] = []
        while self.peek() != ";":
            operands.append(self.operand())
            if self.peek() == ",":
                self.take()
            elif self.peek() != ";":
                raise self.error(f"unexpected {self.peek()!r} in the operands of {opcode}")
        self.take(";")
        site = Site(line, opcode, self.text_lines[line - 1].strip()[:200])
        self.sites.append((site, self.chain))
        return Instruction(opcode, tuple(operands), guard, site, tuple(self.scope_numbers))

    def operand(self, depth: int = 0) -> Operand:
        """One operand. `depth`: how many braces, brackets and signs it stands in."""
        if depth > MAX_DEPTH:
            raise self.error("operands within operands, deeper than any instruction has")
        word = self.peek()
        if word == "!":
            self.take()
            return Not(self.operand(depth + 1))
        if word == "{":
            self.take()
            items = []
            while self.peek() != "}":
                items.append(self.operand(depth + 1))
                if self.peek() == ",":
                    self.take()
            self.take("}")
            return Vec(tuple(items))
        if word == "[":
            return self.memory(depth + 1)
        if word in ("-", "+") or (self.at < len(self.tokens) and self.tokens[self.at].kind == "number"):
            return self.number()
        first = self.named(self.take())
        if self.peek() == "|":
            self.take()
            return Pair(first, self.operand(depth + 1))
        return first

    def memory(self, depth: int) -> Operand:
        self.take("[")
        base = self.operand(depth)
        offset = 0
        coordinates: tuple[Operand, ...] | None = None
        if self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            offset = sign * self.integer()
        if self.peek() == ",":
            self.take()
            vector = self.operand(depth)
            coordinates = vector.items if isinstance(vector, Vec) else (vector,)
        self.take("]")
        return Mem(base, offset, coordinates)

    def named(self, word: str) -> Operand:
        for scope in reversed(self.scopes):
            if (found := scope.get(word)) is not None:
                return found
        if not re.match(r"[%$_A-Za-z]", word):
            self.at -= 1
            raise self.error(f"unexpected {word!r} where an operand was expected")
        return Name(word)
