"""A model that is known by the program of its forward pass: recorded calls, run over meta tensors.

Everything beside the calls is the engine's, as for a model that is written here: what autograd keeps, autocast,
checkpointing, adapters, optimizers. The modules are a tree like the library's own, so that what wraps or freezes
modules by name does so here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memlint import releases, work
from memlint.facts.spec import Name, TrainingSpec
from memlint.meta.autograd import tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, float32, state
from memlint.models import UnknownModel
from memlint.models.program_operations import DATED, LOOKING, OPERATIONS, UNTRACKED, linear
from memlint.profiles.expression import parse
from memlint.profiles.program import Program

# What a dtype that follows the run is called in a program.
PARAMETER, COMPUTE = "parameter", "compute"
# Of what a norm gives: fp32 under autocast, else that of the parameters.
NORMED = "normed"
# fp32 for bfloat16, which is what code does around torch's upsampling, and no change for other dtypes.
UPSAMPLED = "upsampled"
# Passes are recorded in fp32 and in bfloat16: what is called in 16 bits is the same in both kinds of them.
_RECORDED = {"float16": "bfloat16"}


# The facts that the sizes of a program are made of.
_FACTS: dict[str, Name] = {
    **{"B": "micro_batch_size", "H": "image_size", "W": "image_size"},
    **{"F": "frames", "L": "sequence_length"},
}


def _newest(behaviour: str) -> bool:
    return releases.does(behaviour, None)


def _said(spec: TrainingSpec | None, guard: str) -> str:
    """What a run states of the sizes in a guard, by its keys."""
    facts = {} if spec is None else {_FACTS[name]: spec.fact(_FACTS[name]) for name in _FACTS if name in guard}
    stated = [f"{fact.key} {fact.value}" for fact in facts.values() if fact is not None and fact.key]
    return f"{', '.join(stated)}: " if stated else ""


class Run:
    """A program with sizes: what its modules share while they run.

    values  the sizes, by the names in ``program.sizes``
    dtype   of the parameters
    spec    the run, for what its release of torch does, and how its keys are called; the newest habits without it

    Raises UnknownModel where the program holds for no such sizes or dtype.
    """

    def __init__(
        self, program: Program, values: Mapping[str, int], dtype: DType, spec: TrainingSpec | None = None
    ) -> None:
        broken = program.outside(values)
        if broken:
            sizes = ", ".join(f"{name} = {value}" for name, value in values.items())
            said = _said(spec, broken)
            raise UnknownModel(f"{said}{program.name} was recorded for {broken}, which {sizes} does not meet")
        if _RECORDED.get(dtype.name, dtype.name) not in program.dtypes:
            raise UnknownModel(f"{program.name} was recorded with parameters in {program.dtypes[0]}, not {dtype.name}")
        self.program = program
        self.values = dict(values)
        self.dtype = dtype
        self.root: Module | None = None
        self.constants: list[Tensor] = []
        self._sizes: dict[str, int] = {}
        self._does = _newest if spec is None else spec.does
        self._operations: dict[str, Callable[..., Any]] = {}

    def resize(self, values: Mapping[str, int]) -> None:
        """Go on with other sizes (a batch of evaluation's)."""
        if broken := self.program.outside(values):
            raise UnknownModel(f"{self.program.name} was recorded for {broken}")
        self.values = dict(values)
        self._sizes.clear()

    def inputs(self) -> list[Tensor]:
        """Fresh tensors of what the model is called with, in the order of ``program.inputs``."""
        return [self.tensor(shape, dtype) for _, shape, dtype in self.program.inputs]

    def function(self, name: str) -> Callable[..., Any]:
        """What an operation's name stands for. Raises UnknownModel."""
        known = OPERATIONS.get(name) or self._operations.get(name)
        if known is None:
            dated = DATED.get(name)
            if dated is None:
                raise UnknownModel(f"{self.program.name} calls {name}, which is not known")
            known = self._operations[name] = dated(self._does)
        return known

    def size(self, text: str) -> int:
        known = self._sizes.get(text)
        if known is None:
            known = self._sizes[text] = int(parse(text).value(self.values))
        return known

    def shape(self, shape: list[Any]) -> tuple[int, ...]:
        return tuple(self.size(d.removeprefix("=")) if isinstance(d, str) else d for d in shape)

    def dtype_of(self, name: str) -> DType:
        name = name.removeprefix(":")
        if name == PARAMETER:
            return self.dtype
        if name == COMPUTE:
            return state.autocast or self.dtype
        if name == NORMED:
            return float32 if state.autocast is not None else self.dtype
        if name == UPSAMPLED:
            computed = state.autocast or self.dtype
            return float32 if computed.name == "bfloat16" else computed
        if name not in DTYPES:
            raise UnknownModel(f"{self.program.name} has tensors of {name}")
        return DTYPES[name]

    def tensor(self, shape: list[Any], dtype: str) -> Tensor:
        return Tensor(self.shape(shape), self.dtype_of(dtype))


class Recorded(Module):
    """One module of a program. What it does is said by who calls it (a module may be called in several ways).

    checkpointed  it keeps its inputs alone; ``reentrant``: by the older of torch's implementations
    beside        (result, inputs) -> the result with what an adapter adds
    """

    _run: Run
    checkpointed = False
    reentrant = False
    beside: Module | None = None

    def forward(self, body: dict[str, Any], *args: Tensor) -> Any:
        return _Call(self, body, args).result()


class Product(Linear):
    """A linear layer of a program, which adapters may be put beside."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Whole(Recorded):
    """The model itself: called with its inputs, gives the tensors that the library's model returns, as a tuple."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        outputs: tuple[Tensor, ...] = super().forward(self._run.program.bodies[-1], *inputs, *self._run.constants)
        return outputs

    def checkpoint(self, paths: Iterable[str] | None = None, reentrant: bool = False) -> None:
        """Have modules keep their inputs alone; those that the library's own checkpointing is for, unless named."""
        for path in self._run.program.checkpoints if paths is None else paths:
            module = found(self, path)
            if not isinstance(module, Recorded):
                raise UnknownModel(f"{self._run.program.name} checkpoints {path}, which is one operation")
            module.checkpointed, module.reentrant = True, reentrant

    def adapt(self, wanted: Callable[[str], bool], adapter: Callable[[Linear], Module]) -> int:
        """Put adapters in the place of linear layers whose paths are ``wanted``; how many there were."""
        return _adapt(self, "", wanted, adapter)

    def convolutions(self) -> list[tuple[str, Recorded, list[Any]]]:
        """(path, module, arguments of ``conv2d`` behind input and weights) of each module that is one convolution."""
        known: dict[str, tuple[str, Recorded, list[Any]]] = {}
        bodies = self._run.program.bodies

        def walk(body: dict[str, Any], prefix: str) -> None:
            for row in body["rows"]:
                if row[0][0] != ">":
                    continue
                path = row[0][2:] if row[0][1] == "@" else prefix + row[0][1:]
                called = bodies[row[1]]
                rows = called["rows"]
                if len(rows) == 1 and rows[0][0] == "conv2d":
                    module = found(self, path)
                    known.setdefault(path, (path, module, rows[0][2][3:]))
                else:
                    walk(called, path + ".")

        walk(bodies[-1], "")
        return list(known.values())


def _adapt(module: Module, path: str, wanted: Callable[[str], bool], adapter: Callable[[Linear], Module]) -> int:
    count = 0
    for name, child in list(module.children()):
        if isinstance(child, Linear) and wanted(path + name):
            setattr(module, name, adapter(child))
            count += 1
        else:
            count += _adapt(child, f"{path}{name}.", wanted, adapter)
    return count


class _Call:
    """One call of a module: the tensors that it names, for as long as the library's code named them."""

    __slots__ = ("body", "module", "run", "tensors")

    def __init__(self, module: Recorded, body: dict[str, Any], args: tuple[Tensor, ...]) -> None:
        self.module = module
        self.run = module._run
        self.body = body
        self.tensors: dict[int, Tensor] = {-1 - at: x for at, x in enumerate(args)}

    def result(self) -> Any:
        tensors = self.tensors
        for row in self.body["rows"]:
            name, outs = row[0], row[1]
            if name[0] == ">":
                outs = row[3]
                made: Any = self.called(name[1:], self.run.program.bodies[row[1]], [tensors[n] for n in row[2]])
            elif name[0] == UNTRACKED:
                made = self.untracked(name[1:], row[2][0], row[2][1], row[3])
            else:
                made = self.operation(name, row[2], row[3])
            if isinstance(made, Tensor):
                if outs[0] is not None:
                    tensors[outs[0]] = made
            else:
                for number, x in zip(outs, made):
                    if number is not None:
                        tensors[number] = x
                    del x
            del made
            for number in row[4]:
                tensors.pop(number, None)
        return tuple([tensors[number] for number in self.body["outputs"]])

    def called(self, path: str, body: dict[str, Any], args: list[Tensor]) -> Any:
        module = found(self.run.root, path[1:]) if path[0] == "@" else found(self.module, path)
        if not isinstance(module, Recorded):
            return module(*args) if args else module(self.value(body["rows"][0][2][0]))  # a buffer, by its name
        if module.checkpointed:
            return checkpoint(lambda *given: module(body, *given), *args, use_reentrant=module.reentrant)
        if module.beside is not None:
            return (module.beside(*module(body, *args), *args),)
        return module(body, *args)

    def operation(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = self.run.function(name)
        try:
            return function(*map(self.value, args), **{key: self.value(x) for key, x in kwargs.items()})
        except (TypeError, ValueError, IndexError) as error:
            raise UnknownModel(f"{self.run.program.name} calls {name} in a way that is not known: {error}") from None

    def untracked(self, name: str, sources: list[Any], operands: list[Any], looks: list[Any]) -> list[Tensor]:
        if name not in LOOKING and tracked(*map(self.value, operands)):
            raise UnknownModel(f"{self.run.program.name} calls {name} on what trains, which is not known")
        made = []
        for source, (shape, dtype) in zip(sources, looks):
            if source is None:
                made.append(self.run.tensor(shape, dtype))
            else:
                made.append(Tensor(self.run.shape(shape), self.run.dtype_of(dtype), self.value(source).storage))
        return made

    def value(self, item: Any) -> Any:
        """An argument of a call."""
        kind = type(item)
        if kind is str:
            mark = item[0]
            if mark == "%":
                return self.tensors[int(item[1:])]
            if mark == "@":
                return self.parameter(item[1:])
            if mark == "=":
                return self.run.size(item[1:])
            if mark == ":":
                return self.run.dtype_of(item)
            if mark == "'":
                return item[1:]
            return Ellipsis
        if kind is list:
            return [self.value(x) for x in item]
        if kind is dict:
            return slice(*[self.value(x) for x in item["slice"]])
        return item

    def parameter(self, path: str) -> Tensor:
        one: Tensor = found(self.run.root, path[1:]) if path[0] == "@" else found(self.module, path)
        return one


def build(run: Run) -> Whole:
    """The program's model, over fresh parameters of the run's dtype."""
    work.spend(len(run.program.modules), "building a model")
    tied: list[tuple[Module, str, str]] = []
    model = Whole()
    model._run = run
    _fill(model, run, run.program.modules[-1], tied)
    for module, name, path in tied:
        setattr(module, name, found(model, path))
    run.root = model
    run.constants = [run.tensor(*look) for look in run.program.constants]
    return model


def found(module: Any, path: str) -> Any:
    """The module or tensor of a dotted path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _module(run: Run, place: int, tied: list[tuple[Module, str, str]]) -> Module:
    one = run.program.modules[place]
    module: Module
    if one.get("kind") == "Linear":
        module = Product.__new__(Product)
        module.bias = None
    elif one.get("kind") == "Embedding":
        module = Embedding.__new__(Embedding)
    else:
        module = Recorded()
        module._run = run
    _fill(module, run, one, tied)
    return module


def _fill(module: Module, run: Run, one: dict[str, Any], tied: list[tuple[Module, str, str]]) -> None:
    """Parameters, buffers and children. A name of a tensor in the place of a shape: the same tensor again."""
    for name, shape in one.get("parameters", []):
        if isinstance(shape, str):
            tied.append((module, name, shape))
            setattr(module, name, None)
        else:
            setattr(module, name, parameter(*run.shape(shape), dtype=run.dtype))
    for name, *rest in one.get("buffers", []):
        if len(rest) == 1:
            tied.append((module, name, rest[0]))
        else:
            setattr(module, name, buffer(*run.shape(rest[0]), dtype=run.dtype_of(rest[1])))
    for name, child in one.get("children", []):
        setattr(module, name, _module(run, child, tied))
