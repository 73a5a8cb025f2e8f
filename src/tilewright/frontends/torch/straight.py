"""Whether a forward is a straight line: what may be known of it from its code, before any of it runs.

A trace shows what a forward did once; its bytecode shows what it may do. Here it is read instruction by instruction: no
jump, nothing stored but into local names, nothing written in place, nothing read but children and functions that are
known. Knows nothing of graphs or of what can be fused (fusion.py).
"""

from __future__ import annotations

import dis
import functools
import operator
import re
from typing import Any

import torch
from torch import nn

F = nn.functional


class CannotFuseError(Exception):
    """Why a forward stays as it is, in words for a report."""


def meaning_of(value: Any) -> Any:
    """What a function is: of a partial, which equals no other, its function and keywords. Any other value is itself."""
    if isinstance(value, functools.partial):
        return value.func, tuple(value.keywords.items())
    return value


CALLED: dict[Any, str] = {
    operator.mul: "mul", torch.mul: "mul", "mul": "mul", operator.add: "add", torch.add: "add", "add": "add",
    F.relu: "relu", torch.relu: "relu", "relu": "relu", F.silu: "silu", F.gelu: "gelu",
    torch.chunk: "chunk", "chunk": "chunk", operator.getitem: "getitem",
}  # fmt: skip
_NAMESPACES = (torch, nn, F)
_WORDS = {"nn", "functional", "gelu", "silu", *(name for name in CALLED if isinstance(name, str))}  # behind a dot

# The instructions of a straight line that makes values of values: no jump, nothing stored but into local names, no
# closure, no context. Of CPython 3.11 to 3.14.
_STRAIGHT = re.compile(
    r"RESUME|NOP|CACHE|EXTENDED_ARG|PUSH_NULL|PRECALL|KW_NAMES|CALL(_KW|_METHOD|_FUNCTION|_FUNCTION_KW)?|COPY|SWAP|"
    r"POP_TOP|LOAD_(FAST|CONST|SMALL_INT|ATTR|METHOD|GLOBAL)\w*|STORE_FAST\w*|RETURN_(VALUE|CONST)|BINARY_OP|"
    r"BINARY_SUBSCR|UNPACK_SEQUENCE"
)


def check_straight(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """The module's attributes that are functions which its forward calls.

    Raises: CannotFuseError: a forward that does more than call children and functions that are known.
    """
    forward = type(module).forward
    code = getattr(forward, "__code__", None)
    if code is None:
        raise CannotFuseError("its forward is no Python function")
    if code.co_flags & 0x0C or code.co_argcount != 2 or code.co_kwonlyargcount:  # *args, **kwargs
        raise CannotFuseError("its forward takes more than one argument")
    functions: list[tuple[str, Any]] = []
    owner: Any = None  # what the instruction before has loaded, where that is a module or a namespace
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("EXTENDED_ARG", "CACHE"):
            continue
        if not _STRAIGHT.fullmatch(instruction.opname):
            raise CannotFuseError(
                f"its forward is no straight line ({instruction.opname} in line {_line(instruction)})"
            )
        if instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):  # a tracer's proxy cannot: it adds
            raise CannotFuseError(f"its forward writes to what it has ({instruction.argrepr})")
        loaded = None
        if "LOAD_FAST" in instruction.opname:
            last = name[-1] if isinstance(name, tuple) else name  # of an instruction that loads two
            loaded = module if last == code.co_varnames[0] else None
        elif instruction.opname == "LOAD_GLOBAL":
            loaded = forward.__globals__.get(name)
            if not (_is_namespace(loaded) or _is_called(loaded)):
                raise CannotFuseError(f"its forward calls {name}, of which nothing is known")
        elif instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            if owner is module and name in vars(module) and _is_called(vars(module)[name]):
                functions.append((name, meaning_of(vars(module)[name])))
            else:
                loaded = _attribute(module, owner, name)
        owner = loaded
    return tuple(dict(functions).items())


def _attribute(module: nn.Module, owner: Any, name: str) -> Any:
    """What a forward loads with this name: a child, or a namespace; else None: a function, or a value's method.

    `owner`: what it loads it from: a module, a namespace, or None for a value. Raises: CannotFuseError: anything else.
    """
    if isinstance(owner, nn.Module):
        if name in owner._modules and not _has_own(owner, name):
            return owner._modules[name]
    elif name in _WORDS and _is_namespace(owner):
        return getattr(owner, name, None)
    elif name in _WORDS and not any(_has_own(each, name) for each in module.modules()):  # a local name may be a module
        return None
    raise CannotFuseError(f"its forward reads {name}, which may change")


def _has_own(module: nn.Module, name: str) -> bool:
    """Whether a module has something else than a child of this name."""
    return name in vars(module) or hasattr(type(module), name)


def _is_namespace(value: Any) -> bool:
    return any(value is each for each in _NAMESPACES)


def _line(instruction: dis.Instruction) -> Any:
    positions = instruction.positions
    return None if positions is None else positions.lineno


def _is_called(value: Any) -> bool:
    """Whether it is a function of CALLED, or one with some of its keywords given."""
    if isinstance(value, functools.partial) and not value.args:
        value = value.func
    return callable(value) and not isinstance(value, nn.Module) and _key(value) in CALLED


def _key(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return None
    return value
