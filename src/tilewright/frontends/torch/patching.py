"""patch(model) and unpatch(model): tilewright's products in a model that was written for torch, and back.

A torch.nn.Linear is changed by giving it another class: the module itself stays, and with it its parameters, their
ties, hooks, optimizer state, names in state_dict, and whatever else refers to it. So a copy, a pickle or a wrapper of
the model works as before. So is a module that holds such layers, where what follows them can be a part of their kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tilewright import dispatch
from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.frontends.torch import fused_modules, products
from tilewright.frontends.torch.fusion import activation_of, fusion_of
from tilewright.frontends.torch.modules import PatchedLinear, is_memory
from tilewright.frontends.torch.straight import CannotFuseError
from tilewright.kernels.catalog import check_supported
from tilewright.planning import checked_flag


@dataclass(frozen=True)
class PatchReport:
    """What patch() did: the names of the modules that are tilewright's now, and of those that are not, with the reason.

    The model itself has the name "". `fused`: the modules that compute more than a linear layer in one kernel, each
    with what; `unfused`: those that hold such layers beside an activation and do not, with the reason.
    """

    replaced: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    fused: tuple[tuple[str, str], ...] = ()
    unfused: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} of {len(self.replaced) + len(self.kept)} linear modules run on tilewright"]
        lines += [f"  kept {name or '(the model)'}: {reason}" for name, reason in self.kept]
        lines += [f"  one kernel in {name or '(the model)'}: {what}" for name, what in self.fused]
        lines += [f"  not fused {name or '(the model)'}: {reason}" for name, reason in self.unfused]
        return "\n".join(lines)


def patch(
    model: nn.Module,
    *,
    where: Callable[[str, nn.Module], bool] | None = None,
    autocast: bool = False,
    accumulates: bool = False,
    emulates: bool = False,
    fuse: bool = True,
) -> PatchReport:
    """Every torch.nn.Linear of the model that tilewright serves runs on it from now on, in one kernel with the
    activation or the gate that follows it where that can be proven. In place; unpatch() undoes it.

    `where(name, module)` picks among them. `autocast` True: parameters of float32 too, whose products are 16-bit under
    torch.autocast and torch's outside of it. `accumulates`: see Linear. `emulates` True: modules on the CPU too, on the
    emulator: for tests of small models. `fuse` False: linear layers alone are changed, no module that holds them.
    Results are those of torch but for rounding: a call that tilewright does not serve is torch's.
    Raises: UnsupportedError: no module, a `where` that is no function, an option that is neither True nor False.
    Cost: one walk over the model; kernels are compiled at their first call.
    """
    _check_model("patch", model)
    if where is not None and not callable(where):
        raise UnsupportedError(
            asked=f"patch with where = {repr(where)[:60]}",
            rule="it is a function of a module's name and the module, which says whether that one is changed",
            works='pass where=lambda name, module: name != "head" for instance',
        )
    autocast, accumulates = checked_flag("autocast", autocast), checked_flag("accumulates", accumulates)
    emulates, fuse = checked_flag("emulates", emulates), checked_flag("fuse", fuse)
    chosen, kept = [], []
    for name, module in model.named_modules():
        if not _is_linear(module):
            continue
        reason = _reason_against(module, autocast, emulates)
        if not reason and where is not None and not where(name, module):
            reason = "left out by where"
        if reason:
            kept.append((name, reason))
            continue
        chosen.append((name, module))
    for _, module in chosen:  # once `where` has been asked of all: a model is patched as a whole
        module.__class__ = PatchedLinear
        if accumulates:
            module.accumulates = True
        if emulates:
            module.emulates = True
    fused, unfused = _fuse(model) if fuse else ((), ())
    return PatchReport(tuple(name for name, _ in chosen), tuple(kept), fused, unfused)


def _fuse(model: nn.Module) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The modules whose forward runs as a fusion now, each with what; those that hold a layer and an activation and
    stay as they are, with the reason."""
    fused, unfused = [], []
    for name, module in list(model.named_modules()):
        own = list(module.children())
        if not any(type(child) is PatchedLinear for child in own):
            continue
        if fused_modules.is_fused(module):
            if fused_modules.is_whole(module):
                continue
            fused_modules.unfuse(module)  # cut from one that is, as a slice of a Sequential
        try:
            if "forward" in module.__dict__:
                raise CannotFuseError("its forward was replaced on the module itself")
            fusion = fusion_of(module, lambda child: type(child) is PatchedLinear)
            fused_modules.fuse(module, fusion)
        except Exception as error:  # of the model's code too: a module that cannot be read stays as it is
            fused_modules.unfuse(module)
            reason = str(error) if isinstance(error, CannotFuseError) else f"reading it raised {error!r:.80}"
            if any(_is_activation(child) for child in own):
                unfused.append((name, reason))
            continue
        fused.append((name, str(fusion)))
    return tuple(fused), tuple(unfused)


def _is_activation(module: nn.Module) -> bool:
    try:
        return activation_of(module) is not None
    except Exception:  # of the module's own code
        return False


def unpatch(model: nn.Module) -> tuple[str, ...]:
    """The names of the modules that patch() had changed, which are torch.nn.Linear again; the very same objects."""
    _check_model("unpatch", model)
    restored = []
    for name, module in model.named_modules():
        if fused_modules.is_fused(module):
            fused_modules.unfuse(module)
        if type(module) is PatchedLinear or _is_derived_by_torch(type(module)):
            for own in ("accumulates", "emulates"):
                module.__dict__.pop(own, None)
            module.__class__ = _class_before(type(module))
            restored.append(name)
    return tuple(restored)


def _is_derived_by_torch(kind: type) -> bool:
    """Whether torch made this class of PatchedLinear while it ran; a subclass that somebody wrote is left alone."""
    return issubclass(kind, PatchedLinear) and kind.__module__.startswith("torch.")


def _class_before(kind: type) -> type:
    """nn.Linear of PatchedLinear; of a class that torch derived from it since, for a parametrisation or a sharding, the
    same derived from nn.Linear."""
    if kind is PatchedLinear:
        return nn.Linear  # type: ignore[no-any-return]  # torch is Any to the checker
    bases = tuple(_class_before(base) if issubclass(base, PatchedLinear) else base for base in kind.__bases__)
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__.replace("Patched", ""), bases, own)


def _check_model(name: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedError(
            asked=f"{name} of {repr(model)[:60]}",
            rule="it changes the modules of a torch.nn.Module in place",
            works=f"call {name}(model) with the model itself",
        )


def _is_linear(module: nn.Module) -> bool:
    """Whether a reader of the report asks about this module: a Linear, or what is called one."""
    return isinstance(module, nn.Linear) or "Linear" in type(module).__name__


def _reason_against(module: nn.Module, autocast: bool, emulates: bool) -> str:
    """Why the module stays as it is; "" where nothing is against it."""
    kind = type(module)
    if kind is PatchedLinear:
        return "patched before"
    if nn.utils.parametrize.is_parametrized(module):
        return "parametrised: its weight is computed at each access; remove the parametrisation first"
    if kind is not nn.Linear:
        return f"its class is {kind.__module__}.{kind.__qualname__}, not torch.nn.Linear"
    if "forward" in module.__dict__:
        return "its forward was replaced on the module itself, which another class would not change"
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None:
        return "it has no weight of its own"
    if not (is_memory(weight) or hasattr(weight, "to_local")):  # a DTensor: of FSDP it is plain memory in forward
        return f"its weight is a {type(weight).__qualname__}, whose memory is not its value"
    served = (*products.INPUTS, torch.float32) if autocast else products.INPUTS
    if weight.dtype not in served:
        hint = "; under torch.autocast patch(model, autocast=True) serves it" if weight.dtype == torch.float32 else ""
        return f"its weight is {_word(weight.dtype)}, products are of bfloat16 and float16{hint}"
    if bias is not None and bias.dtype != weight.dtype:
        return f"its bias is {_word(bias.dtype)}, its weight {_word(weight.dtype)}"
    return _reason_against_device(weight.device, emulates)


def _reason_against_device(device: torch.device, emulates: bool) -> str:
    if device.type == "cuda":
        try:
            check_supported(dispatch.device_of(device.index or 0))
        except TilewrightError as refusal:
            return str(refusal)
        return ""
    if device.type == "cpu":
        return "" if emulates else "it is on the CPU: move the model to a GPU first (emulates=True is for tests)"
    return f"it is on {device}: patch the model where it runs, on a CUDA device"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
