"""A hand-written training loop, statement by statement: what is made of the logits, and which names hold what.

The statements of the fact ``loop`` are replayed over meta tensors, whose storages die as Python's do: a name lets go of
a value when it is bound to another one, and what nobody names goes as soon as it is used, or with its statement.

    let 0 model labels autocast   a call of the model, under autocast
    let 1 loss 0                  what it returned: ``loss``, ``logits``
    let 2 cut 1                   an operation on a value (``OPERATIONS``)
    name n0 1, name n0 -          a name is bound, or lets go
    end 2                         of a statement, which made the values from there on
    clear                         gradients are let go
    backward 1, step              where the turn goes backward, and where the optimizer steps

Source: ``transformers`` 5.23 ``modeling_outputs.py``, ``cache_utils.py`` (``DynamicLayer.update``); ``accelerate``
1.15 ``utils/operations.py`` (``ConvertOutputsToFp32``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint.meta import functional as F
from memlint.meta.amp import autocast, to
from memlint.meta.autograd import no_grad
from memlint.meta.tensor import Tensor, bfloat16, component, empty, float16, float32, state
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.outputs import CachedScores, Outputs, has_cache, of_last_step


def _rows(x: Tensor) -> Tensor:
    """(B, S, V) -> (B S, V), where it lies in memory so, or in a copy."""
    out: Tensor = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
    return out


def _cut(x: Tensor) -> Tensor:
    return x[:, :-1]


def _labels(labels: Tensor) -> Tensor:
    """(B, S) -> (B, S - 1): the next token's number at each token but the last."""
    out: Tensor = labels[:, 1:].contiguous()
    return out


def _cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    out: Tensor = F.cross_entropy(x, labels.view(-1))
    return out


def _cross_entropies(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x, labels.view(-1), reduction="none")


def _clone(x: Tensor) -> Tensor:
    out: Tensor = x * 1.0
    return out


def _scaled(x: Tensor) -> Tensor:
    out: Tensor = x / 1.0
    return out


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "cut": _cut,
    "contiguous": F.contiguous,
    "rows": _rows,
    "copied_rows": _rows,
    "float32": lambda x: to(x, float32),
    "float16": lambda x: to(x, float16),
    "bfloat16": lambda x: to(x, bfloat16),
    "clone": _clone,
    "divided": _scaled,
    "cross_entropy": _cross_entropy,
    "cross_entropies": _cross_entropies,
    "scaled": _scaled,
    "added": lambda x, y: x + y,
}


class Returned:
    """What a call of the model returns."""

    def __init__(self, loss: Tensor | None, logits: Tensor | None, cache: list[Any]) -> None:
        self.loss, self.logits, self.cache = loss, logits, cache


class Loop:
    """The loop around a model. Names live from one turn into the next one."""

    def __init__(self, model: LanguageModel, statements: Sequence[str], widened: bool, cached: bool) -> None:
        self.model, self.widened, self.cached = model, widened, cached
        self.statements = [tuple(statement.split()) for statement in statements]
        self.at_backward = next(n for n, words in enumerate(self.statements) if words[0] == "backward")
        self.names: dict[str, Any] = {}
        self.pending: list[str] = []  # that let go before the next turn
        self.started = False
        self.labels: Tensor
        self.outputs = Outputs()
        self.forward, self.head = model.forward, model.logits
        if cached and has_cache(model):
            for layer in model.layers:
                plain: Any = layer
                plain.self_attn.scores = CachedScores(plain.self_attn.scores, self.outputs)

    # ------------------------------------------------------------------------------------------ a turn

    def turn(self, given: Tensor, labels: Tensor) -> Tensor:
        """The forward pass and the loss."""
        if not self.started:
            self.started = True
            if not self.model.padded:  # the longest of padded batches follows a shorter one
                self.leave_last_turn(given, labels)
        self.let_go(self.pending)
        self.pending = [words[1] for words in self.statements[self.at_backward + 1 :] if words[0] == "name"]
        self.labels = labels
        return self.run(lambda autocasts, labelled: self.call(given, labels if labelled else None, autocasts))

    def run(self, call: Callable[[bool, bool], Returned]) -> Tensor:
        values: dict[str, Any] = {}
        named: set[str] = set()
        for words in self.statements[: self.at_backward]:
            if words[0] == "let":
                values[words[1]] = self.made(words[2:], values, named, call)
            elif words[0] == "name":
                if words[2] == "-":
                    self.names.pop(words[1], None)
                else:
                    named.add(words[2])
                    self.names[words[1]] = values[words[2]]
            elif words[0] == "clear" and state.grad_enabled:
                for parameter in self.model.parameters():
                    parameter.grad = None
            elif words[0] == "end":
                held = {id(value) for value in self.names.values()}
                since = int(words[1])
                values = {n: value for n, value in values.items() if int(n) < since or id(value) in held}
        loss = values.get(self.statements[self.at_backward][1])
        assert isinstance(loss, Tensor)
        return loss

    def made(self, words: Sequence[str], values: dict[str, Any], named: set[str], call: Any) -> Any:
        """A value; what it is made of goes where nobody names it."""
        kind, autocasts = words[0], words[-1] == "autocast"
        if kind == "model":
            return call(autocasts, "labels" in words)
        numbers = [word for word in words[1:] if word.isdigit()]
        operands = [values[number] if number in named else values.pop(number) for number in numbers]
        if kind in ("loss", "logits"):
            return getattr(operands[0], kind)
        if kind == "labels":
            return _labels(self.labels)
        if kind in ("cross_entropy", "cross_entropies") and len(operands) == 1:
            operands.append(self.labels if self.labels.numel == operands[0].shape[0] else _labels(self.labels))
        with component("logits"), autocast(state.autocast if autocasts else None):
            return OPERATIONS[kind](*operands)

    def call(self, given: Tensor, labels: Tensor | None, autocasts: bool) -> Returned:
        """A forward pass, and what the model hands out; what its layers cached is in it."""
        made: list[Tensor] = []

        def logits(x: Tensor) -> Tensor:
            found = self.head(x)
            made.append(found)
            return found

        replaced: Any = self.model
        replaced.logits = logits
        try:
            if labels is None:
                with component("logits"):
                    logits(self.model.hidden(given))
                loss = None
            else:
                loss = self.forward(given, labels)
        finally:
            replaced.logits = self.head
        cache, self.outputs.made = self.outputs.made, []
        scores = made.pop() if made else None
        if self.widened and state.autocast is not None and scores is not None:
            with component("logits"):
                scores = to(scores, float32)
        return Returned(loss, scores, cache)

    # ------------------------------------------------------------------------------------------ between turns

    def leave_last_turn(self, given: Tensor, labels: Tensor) -> None:
        """What a turn before this one left behind, as large as this one's."""
        self.labels = labels
        begin = len(state.tape.events)
        with no_grad():
            scores, *cache = of_last_step(self.model, given, self.widened)
            returned = Returned(empty((), float32), scores, cache if self.cached else [])
            del scores, cache
            found = [returned]
            del returned
            self.run(lambda autocasts, labelled: found.pop())
        self.let_go([words[1] for words in self.statements[self.at_backward + 1 :] if words[0] == "name"])
        events = state.tape.events
        freed = {~event for event in events[begin:] if event < 0}
        events[begin:] = [event for event in events[begin:] if event >= 0 and event not in freed]

    def let_go(self, names: Sequence[str]) -> None:
        for name in names:
            self.names.pop(name, None)

    def after_backward(self) -> None:
        """Names that the turn lets go of before the optimizer's step."""
        for words in self.statements[self.at_backward + 1 :]:
            if words[0] == "step":
                break
            if words[0] == "name":
                self.names.pop(words[1], None)


def follow(model: LanguageModel, statements: Sequence[str], widened: bool, cached: bool) -> Loop:
    """Have the model trained by such a loop.

    widened  accelerate's mixed precision: logits leave the model in fp32
    cached   the model keeps keys and values, as its config says unless the program says otherwise
    """
    loop = Loop(model, statements, widened, cached)
    replaced: Any = model
    replaced.forward = loop.turn
    return loop
