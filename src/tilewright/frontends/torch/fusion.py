"""What of a module's own forward is one kernel: an activation behind a linear layer, and a gate of two.

    act(fc1(x))                             linear(x, w, b, activation=act)
    act(gate(x)) * up(x)                    gated_linear(x, (w, w'), (b, b'), activation=act)
    act(c) * d, c, d = both(x).chunk(2, -1)     gated_linear(x, w, b, activation=act, split="halves")

fusion_of() reads a forward and says what can be proven of it; the class that runs it is fused_modules.py's. A forward
is traced by torch.fx, with every child a leaf, once its code is known to be a straight line (straight.py): then the
trace is all that it does, whatever changes later. Knows nothing of whole models.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from tilewright.frontends.torch.straight import CALLED, CannotFuseError, check_straight, meaning_of

F = nn.functional

Kind = Literal["module", "function", "half", "linear", "gated", "halves"]


@dataclass(frozen=True)
class Stage:
    """One thing that a forward does to values that were made before, which it names by their places; 0 is x.

    `names`: the children that it calls: of "linear" and "halves" the layer, of "gated" those of gate and up.
    `function`: of "function" its name in FUNCTIONS, of what is fused the activation as functional.py calls it. A "half"
    is of a layer's columns, in no Fusion.
    `activation`: the child that is the activation; "" where a function is.
    """

    kind: Kind
    inputs: tuple[int, ...]
    names: tuple[str, ...] = ()
    function: str = ""
    activation: str = ""

    def __str__(self) -> str:
        act, *names = (self.function, *self.names)
        if self.kind == "gated":
            return f"{act}({names[0]}) * {names[1]}"
        return f"{act}({names[0]})" + (" * its other half" if self.kind == "halves" else "")


@dataclass(frozen=True)
class Activation:
    """A child that is an activation: its class and what its forward reads of it, which must be so when it is called."""

    name: str
    kind: type[nn.Module]
    attributes: tuple[tuple[str, Any], ...]
    forward: Any = None  # its class's, as it was read

    def is_still(self, module: nn.Module) -> bool:
        """Whether the module is this activation still."""
        if type(module) is not self.kind or self.kind.forward is not self.forward:
            return False
        held = module.__dict__
        return all(name in held and meaning_of(held[name]) == value for name, value in self.attributes)


@dataclass(frozen=True)
class Fusion:
    """A forward as stages, each of which makes one more value; the last one is the result.

    `argument`: the name of x. `activations`: the children of that kind that fused stages stand for; `functions`: the
    attributes that are functions, each with meaning_of() it. `children`: of a Sequential the names of all, in order;
    else ().
    """

    argument: str
    stages: tuple[Stage, ...]
    activations: tuple[Activation, ...] = ()
    functions: tuple[tuple[str, Any], ...] = ()
    children: tuple[str, ...] = ()

    @property
    def fused(self) -> tuple[Stage, ...]:
        """The stages that are one kernel each."""
        return tuple(stage for stage in self.stages if stage.kind not in ("module", "function"))

    @property
    def layers(self) -> tuple[str, ...]:
        """The linear layers in them."""
        return tuple(name for stage in self.fused for name in stage.names)

    def __str__(self) -> str:
        return ", ".join(map(str, self.fused))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "mul": operator.mul,
    "add": operator.add,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")
_PLAIN_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


def fusion_of(module: nn.Module, is_layer: Callable[[nn.Module], bool]) -> Fusion:
    """What of the module's forward is one kernel. `is_layer` says which children are linear layers to fuse.

    Raises: CannotFuseError: nothing, or a forward of which it cannot be proven; with the reason.
    """
    if isinstance(module, fx.GraphModule) or type(module).__call__ is not nn.Module.__call__:
        raise CannotFuseError("its class is made for it, and runs its forward in a way of its own")
    layers = {name for name, child in module.named_modules() if name and is_layer(child)}
    if type(module).forward is nn.Sequential.forward and type(module).__iter__ is nn.Sequential.__iter__:
        reader = _Reader(module, layers)
        for name in module._modules:
            reader.add("module", (len(reader.stages),), name)  # of what the one before made
        return reader.fusion("input", tuple(module._modules))
    functions = check_straight(module)
    graph = _traced(module)
    reader = _Reader(module, layers)
    argument = reader.read(graph)
    return reader.fusion(argument, functions=functions)


# -- tracing -----------------------------------------------------------------------------------------------------------


class _Leaves(fx.Tracer):  # type: ignore[misc]  # torch is Any to the checker
    """A tracer for which every child is a leaf."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(module: nn.Module) -> Any:
    try:
        return _Leaves().trace(module)
    except Exception as error:  # of the model's code, or of fx
        raise CannotFuseError(f"torch.fx cannot trace its forward: {str(error).splitlines()[0][:80]}") from error


def activation_of(module: nn.Module) -> tuple[str, Activation] | None:
    """The function that a module without parameters is, and what has to stay so; None: none that kernels have."""
    kind = type(module)
    if kind in _PLAIN_ACTIVATIONS:
        return _PLAIN_ACTIVATIONS[kind], Activation("", kind, (), kind.forward)
    if kind is nn.GELU:
        word = "gelu_tanh" if module.approximate == "tanh" else "gelu"
        return word, Activation("", kind, (("approximate", module.approximate),), kind.forward)
    if module._modules or module._parameters or module._buffers or kind.__module__.startswith("torch."):
        return None
    try:
        functions = check_straight(module)
        reader = _Reader(module, set())
        reader.read(_traced(module))
    except CannotFuseError:
        return None
    words = [stage.function for stage in reader.stages]
    return (
        (words[0], Activation("", kind, functions, kind.forward))
        if words in [[word] for word in _ACTIVATIONS]
        else None
    )


# -- from a trace to stages --------------------------------------------------------------------------------------------


class _Reader:
    """Stages as they come, and then those that become one."""

    def __init__(self, module: nn.Module, layers: set[str]) -> None:
        self.module, self.layers = module, layers
        self.stages: list[Stage] = []  # stage i makes value i + 1
        self.places: dict[Any, int] = {}  # node -> value
        self.chunks: dict[Any, Any] = {}  # node of a chunk in two -> of what

    def add(self, kind: Kind, inputs: tuple[int, ...], name: str = "", function: str = "") -> int:
        """One more stage; the place of what it makes."""
        self.stages.append(Stage(kind, inputs, (name,) if name else (), function))
        return len(self.stages)

    def read(self, graph: Any) -> str:
        """The name of the argument; stages of all that the graph does."""
        argument = ""
        for node in graph.nodes:
            if node.op == "placeholder":
                argument, self.places[node] = str(node.target), 0
            elif node.op == "output":
                if not self.stages or self.places.get(node.args[0]) != len(self.stages):
                    raise CannotFuseError("what it returns is not the last thing that it computes")
            elif node.op == "call_module":
                self._check_child(str(node.target))
                self.places[node] = self.add("module", self._inputs(node, 1), str(node.target))
            elif node.op in ("call_function", "call_method"):
                self._read_call(node)
            else:
                raise CannotFuseError(f"it reads {node.target}, which may change")
        return argument

    def _check_child(self, name: str) -> None:
        """Raises CannotFuseError: a child that has several names, or is found by its place: which of them the forward
        means, the trace does not tell."""
        child = self.module.get_submodule(name)
        names = [own for own, each in self.module.named_modules(remove_duplicate=False) if each is child]
        parent = self.module.get_submodule(name.rpartition(".")[0])
        if len(names) > 1 or isinstance(parent, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            raise CannotFuseError(f"it calls {name}, which has other names or is found by its place")

    def _inputs(self, node: Any, count: int, **served: Any) -> tuple[int, ...]:
        """The places of a call's arguments. Raises: CannotFuseError: others than `count` values, and `served`."""
        if len(node.args) != count or any(
            name not in served or served[name] != value for name, value in node.kwargs.items()
        ):
            raise CannotFuseError(f"it calls {_name(node)} otherwise than of {count} values")
        if not all(isinstance(value, fx.Node) and value in self.places for value in node.args):
            raise CannotFuseError(f"it calls {_name(node)} of something else than what it computed")
        return tuple(self.places[value] for value in node.args)

    def _read_call(self, node: Any) -> None:
        name = CALLED.get(node.target)
        if name is None:
            raise CannotFuseError(f"it calls {_name(node)}")
        if name == "chunk":
            asked = dict(zip(("input", "chunks", "dim"), node.args, strict=False)) | node.kwargs
            source = asked.pop("input", None)
            if asked != {"chunks": 2, "dim": -1} or source not in self.places:
                raise CannotFuseError("it chunks otherwise than in two along the last dimension")
            self.chunks[node] = source
        elif name == "getitem":
            source, index = node.args
            if source not in self.chunks or index not in (0, 1):
                raise CannotFuseError("it takes parts of what it computed")
            self.places[node] = self.add("half", (self.places[self.chunks[source]],), function=str(index))
        elif name == "gelu":
            approximate = node.kwargs.get("approximate", "none")
            inputs = self._inputs(node, 1, approximate=approximate)
            self.places[node] = self.add("function", inputs, function="gelu_tanh" if approximate == "tanh" else "gelu")
        else:
            count, served = (1, {"inplace": False}) if name in _ACTIVATIONS else (2, {})
            self.places[node] = self.add("function", self._inputs(node, count, **served), function=name)

    def fusion(
        self, argument: str, children: tuple[str, ...] = (), functions: tuple[tuple[str, Any], ...] = ()
    ) -> Fusion:
        """The stages, fused.

        Raises: CannotFuseError: none is.
        """
        activations: dict[str, Activation] = {}
        stages = tuple(_joined([self._as_activation(stage, activations) for stage in self.stages], self.layers))
        if any(stage.kind == "half" for stage in stages):
            raise CannotFuseError("it does more with the halves of a layer than gate one by the other")
        found = Fusion(argument, stages, (), functions, children)
        if not found.fused:
            raise CannotFuseError("no activation follows one of its linear layers alone")
        used = dict.fromkeys(stage.activation for stage in found.fused if stage.activation)
        return replace(found, activations=tuple(activations[name] for name in used))

    def _as_activation(self, stage: Stage, activations: dict[str, Activation]) -> Stage:
        """A child that is an activation as that."""
        if stage.kind != "module" or stage.names[0] in self.layers:
            return stage
        name = stage.names[0]
        found = activation_of(self.module.get_submodule(name))
        if found is None:
            return stage
        word, activation = found
        activations[name] = replace(activation, name=name)
        return replace(stage, function=word, activation=name)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _joined(stages: list[Stage], layers: set[str]) -> list[Stage]:
    """The stages, what is one kernel in the place of the last of what it stands for."""
    users = Counter(place for stage in stages for place in stage.inputs)
    made = list(stages)
    gone: set[int] = set()

    def maker(place: int, kind: Kind, uses: int = 1) -> Stage | None:
        """The stage of this kind that made a value which others use so often."""
        found = made[place - 1] if place > 0 and users[place] == uses else None
        return found if found is not None and found.kind == kind else None

    def layer(place: int, uses: int = 1) -> Stage | None:
        found = maker(place, "module", uses)
        return found if found is not None and found.names[0] in layers else None

    def is_quiet(first: int, last: int, *own: int) -> bool:
        """Whether nothing is called between these values that may write to x: no child but layers and its `own`."""
        between = ((place, stages[place - 1]) for place in range(first + 1, last))
        return all(each.kind != "module" or place in own or each.names[0] in layers for place, each in between)

    for index, stage in enumerate(stages):
        if stage.function not in _ACTIVATIONS or stage.kind not in ("module", "function"):
            continue
        (place,) = stage.inputs
        if (source := layer(place)) and is_quiet(place, index + 1):
            made[index] = replace(stage, kind="linear", inputs=source.inputs, names=source.names)
            gone.add(place)
        elif half := maker(place, "half"):  # the activation of one, until it meets the other
            made[index] = replace(
                stage, kind="half", inputs=half.inputs, names=(), function=f"{half.function} {stage.function}"
            )
            gone.add(place)
    for index, stage in enumerate(stages):
        if stage.kind != "function" or stage.function != "mul":
            continue
        for gate, up in (stage.inputs, stage.inputs[::-1]):
            first, second = maker(gate, "linear"), layer(up)
            if (
                first
                and second
                and first.inputs == second.inputs
                and first.names != second.names
                and is_quiet(min(*stages[gate - 1].inputs, up), index + 1, gate)
            ):
                made[index] = replace(first, kind="gated", names=first.names + second.names)
                gone |= {gate, up}
                break
            first, second = maker(gate, "half"), maker(up, "half")
            if first and second and first.inputs == second.inputs and second.function == "1":
                source = layer(first.inputs[0], 2)
                if source and first.function.startswith("0 ") and is_quiet(first.inputs[0], index + 1, gate):
                    function = first.function.removeprefix("0 ")
                    made[index] = replace(
                        first, kind="halves", inputs=source.inputs, names=source.names, function=function
                    )
                    gone |= {gate, up, first.inputs[0]}
                    break
    places = {0: 0}
    kept: list[Stage] = []
    for index, stage in enumerate(made):
        if index + 1 not in gone:
            kept.append(replace(stage, inputs=tuple(places[place] for place in stage.inputs)))
            places[index + 1] = len(kept)
    return kept
