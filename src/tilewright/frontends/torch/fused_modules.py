"""A module whose forward runs as a Fusion says: the same object, of a class that is made of its own.

The class has the name of the one before, its bases and its forward, which runs wherever the fusion no longer holds:
where a layer in it has hooks, is parametrised or was replaced since, or the call is not served. Knows nothing of how a
fusion is found (fusion.py) nor of whole models (patching.py).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.frontends.torch import ops
from tilewright.frontends.torch.functional import linear_around
from tilewright.frontends.torch.fusion import FUNCTIONS, Fusion, Stage
from tilewright.frontends.torch.modules import PatchedLinear, is_served
from tilewright.frontends.torch.straight import meaning_of

_ATTRIBUTE = "tilewright_fusion"  # of the module itself: so it is copied and pickled with it


def fuse(module: nn.Module, fusion: Fusion) -> None:
    """From now on the module runs so, where it holds."""
    setattr(module, _ATTRIBUTE, fusion)
    kind: Any = type(module)
    module.__class__ = _fused_class(kind)


def unfuse(module: nn.Module) -> None:
    """The module as it was before fuse()."""
    vars(module).pop(_ATTRIBUTE, None)
    if issubclass(type(module), _Fused):
        module.__class__ = _class_before(type(module))


def is_fused(module: nn.Module) -> bool:
    """Whether fuse() changed this module, or one that it was copied or cut from."""
    return issubclass(type(module), _Fused) or _ATTRIBUTE in vars(module)


def is_whole(module: nn.Module) -> bool:
    """Whether a fused module has its fusion."""
    return issubclass(type(module), _Fused) and _ATTRIBUTE in vars(module)


class _Fused:
    """What a fused class has before its own bases."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the class before, and then this one of it: a class that is made at run time has no name to be found by."""
        found: Any = super().__reduce_ex__(protocol)
        if isinstance(found, str) or not found[1] or found[1][0] is not type(self):
            return found  # a way of its own
        make, (kind, *rest), *state = found
        return _remade, (make, _class_before(kind), *rest), *state

    def __init_subclass__(cls, **_: Any) -> None:
        """Tells nobody: a registry of subclasses is for those that somebody wrote."""


def _remade(make: Any, kind: Any, *rest: Any) -> Any:
    return make(_fused_class(kind), *rest)


def _fused_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of fused modules of a kind, as its forward is now."""
    hashable: Any = kind
    return _fused_class_of(hashable, kind.forward)


@functools.cache
def _fused_class_of(kind: type[nn.Module], before: Any) -> type[nn.Module]:

    @functools.wraps(before)  # its name, and its signature for who inspects it
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        fusion = getattr(self, _ATTRIBUTE, None)
        if fusion is not None and kind.forward is before and _holds(self, fusion):
            if len(args) == 1 and not kwargs:
                return _run(self, fusion, args[0])
            if not args and len(kwargs) == 1 and fusion.argument in kwargs:
                return _run(self, fusion, kwargs[fusion.argument])
        return kind.forward(self, *args, **kwargs)  # which somebody may have replaced since

    own = {
        "forward": forward,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (_Fused, kind), own)


def _class_before(kind: type) -> type:
    """The class that a fused one was made of, also where torch has derived another of that since."""
    if _Fused in kind.__bases__:
        return next(base for base in kind.__bases__ if base is not _Fused)
    bases = tuple(_class_before(base) if issubclass(base, _Fused) else base for base in kind.__bases__)
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, bases, own)


# -- a call ------------------------------------------------------------------------------------------------------------


def _holds(module: nn.Module, fusion: Fusion) -> bool:
    """Whether all that the fusion was read from is as it was, and nobody listens to what it leaves out."""
    if not torch.compiler.is_compiling() and nn.modules.module._has_any_global_hook():
        return False
    if fusion.children and tuple(module._modules) != fusion.children:
        return False
    if any(stage.kind == "module" and _child(module, stage.names[0]) is None for stage in fusion.stages):
        return False
    for name in fusion.layers:
        layer = _child(module, name)
        if type(layer) is not PatchedLinear or _has_hooks(layer) or "forward" in layer.__dict__:
            return False
    for activation in fusion.activations:
        child = _child(module, activation.name)
        if not activation.is_still(child) or _has_hooks(child) or "forward" in child.__dict__:
            return False
    held = module.__dict__
    return all(name in held and meaning_of(held[name]) == function for name, function in fusion.functions)


def _child(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        found = module._modules.get(part)
        if found is None:
            return None
        module = found
    return module


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _run(module: nn.Module, fusion: Fusion, x: Any) -> Any:
    values = [x]
    for stage in fusion.stages:
        given = [values[place] for place in stage.inputs]
        if stage.kind == "module":
            values.append(_child(module, stage.names[0])(*given))
        elif stage.kind == "function":
            values.append(FUNCTIONS[stage.function](*given))
        elif stage.kind == "gated":
            values.append(_gated(module, stage, given[0]))
        else:
            values.append(_activated(module, stage, given[0]))
    return values[-1]


def _activated(module: nn.Module, stage: Stage, x: Tensor) -> Tensor:
    """A layer and its activation, or a layer whose halves gate each other."""
    layer = _child(module, stage.names[0])
    weight, bias = layer.weight, layer.bias
    main_grad = layer._main_grad_of(weight)
    is_fusable = _keeps_as_torch(x, weight)
    if stage.kind == "linear":
        if not is_fusable:
            return _activation(module, stage, layer(x))
        out = linear_around(x, weight, bias, stage.function, main_grad)
        if out is not None:
            return out
        if is_served(x, weight, bias, layer.emulates):
            return ops.linear(x, weight, bias, main_grad, stage.function)
        return _activation(module, stage, layer(x))
    if is_fusable and is_served(x, weight, bias, layer.emulates) and weight.shape[0] % 2 == 0:
        return ops.gated_linear(x, weight, bias, main_grad, stage.function, "halves")
    gate, up = layer(x).chunk(2, -1)
    return _activation(module, stage, gate) * up


def _gated(module: nn.Module, stage: Stage, x: Tensor) -> Tensor:
    """Two layers of one x, one the gate of the other."""
    gate, up = (_child(module, name) for name in stage.names)
    weights, biases = (gate.weight, up.weight), (gate.bias, up.bias)
    totals = tuple(layer._main_grad_of(layer.weight) for layer in (gate, up))
    if (
        is_served(x, weights[0], biases[0], gate.emulates)  # first: of a tracer's proxy nothing else can be asked
        and all(_keeps_as_torch(x, weight) for weight in weights)
        and is_served(x, weights[1], biases[1], up.emulates)
        and weights[0].shape == weights[1].shape
        and (biases[0] is None) == (biases[1] is None)
        and (totals[0] is None) == (totals[1] is None)
    ):
        return ops.gated_linear(
            x, weights[0], biases[0], totals[0], stage.function, "halves", weights[1], biases[1], totals[1]
        )
    return _activation(module, stage, gate(x)) * up(x)


def _keeps_as_torch(x: Any, weight: Tensor) -> bool:
    """Whether what a backward keeps of x and weight is what torch keeps: not where x has a gradient and weight none.
    torch keeps neither then, so that x may be changed in place, or be differentiated twice."""
    return not (torch.is_grad_enabled() and getattr(x, "requires_grad", False) is True) or weight.requires_grad


def _activation(module: nn.Module, stage: Stage, value: Tensor) -> Tensor:
    """By the child or the function that the stage stands for."""
    if stage.activation:
        return _child(module, stage.activation)(value)
    return FUNCTIONS[stage.function](value)
