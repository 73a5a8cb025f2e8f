"""Functions that torch.compile leaves alone: it breaks its graph there and calls them as they are.

It would follow them otherwise, through plans, compilers and drivers, and trace addresses and locks. What is marked runs
whole outside of the graph; inside of one a product is tilewright.torch's, and the reason that torch prints says so.
Knows nothing of what the functions do, and imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

_REASON = (
    "tilewright.matmul and plans run outside of torch's graphs; call tilewright.torch.matmul, an op that compiles into "
    "them, for fullgraph=True and without a graph break"
)
_marked: list[Any] = []  # functions, until torch knows them

_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """The function itself, marked as torch.compiler.disable() marks its wrappers: a call of it in what is compiled
    breaks the graph. When it is then called, its frame is one that torch would compile by itself: see tell_torch().
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = _REASON
    _marked.append(marked)
    tell_torch()
    return function


def tell_torch() -> None:
    """Where torch is loaded: no compiler evaluates the frames of marked functions from now on, nor those below them.

    What the wrappers of torch.compiler.disable() do at each call. A torch without these C functions follows the frames.
    Cost: microseconds, once.
    """
    private = getattr(sys.modules.get("torch"), "_C", None)
    evaluator: Any = getattr(getattr(private, "_dynamo", None), "eval_frame", None)
    if not hasattr(evaluator, "set_code_exec_strategy"):  # no torch yet, or another one
        return
    skip = evaluator._FrameAction.SKIP
    strategy = evaluator._FrameExecStrategy(skip, skip)  # of this frame, and of those below
    while _marked:
        function = _marked.pop()
        # A code object of its own: of one that was compiled before, torch._dynamo.reset() takes this back.
        function.__code__ = function.__code__.replace()
        evaluator.set_code_exec_strategy(function.__code__, strategy)
