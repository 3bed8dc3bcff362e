"""One turn of a hand-written training loop, in the words of a family: which model it calls, what it takes of what the
model returns, which names hold that and until when, and what it goes backward from.

Nothing is guessed: what a turn does that is not described here makes the run UNKNOWN, by the line where it does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memlint.dialects import image_calls
from memlint.dialects import loop_calls as calls
from memlint.dialects.loop_structure import flat, inner_loop, is_backward, is_step, steps
from memlint.dialects.made import (
    chain,
    flag,
    is_known_context,
    is_model,
    makes_rows,
    optimizer_of,
    root,
    root_number,
    text,
    tokenizes,
    without_gradients,
)
from memlint.documents.node import Node, Span, Unresolved
from memlint.documents.programs.call_nodes import name_of, target_of, values_of
from memlint.documents.programs.turn import (
    CALL,
    FUNCTION,
    Bind,
    Branch,
    End,
    Entry,
    Inner,
    Leave,
    Loop,
    Make,
)
from memlint.facts.spec import OnTop
from memlint.named_tuple import NamedTuple

# Sorts of values. SMALL: what a classifier of images returns, and all that is made of it.
BATCH, OUTPUTS, LOSS, LOGITS, PLAIN, STRANGE = "batch", "outputs", "loss", "logits", "plain", "strange"
SMALL = "small"
NEXT, LABELS = "next", "labels"  # a view of a batch from each row's second token on, and a copy of that


class Stop(Exception):
    """Why a turn is not known."""


class Sort(NamedTuple):
    """why: of what is STRANGE; of: the value that a LOSS or LOGITS is made of, as it is numbered in the statements."""

    kind: str
    number: int = 0
    why: str = ""


class Turn(NamedTuple):
    """What one turn does.

    model        the chain of what the model is made of, outermost first
    over         what gives the turn its batch
    batches      how the model is called: the arguments of the call
    statements   of the fact ``loop``
    autocast     the context that the model is called in; None for none
    accumulation micro-batches of a step: a node, or a number, 0 where that is not known
    optimizers   that step
    clears       how gradients are let go: the call's arguments; None where nothing does
    clears_late  they are there until the forward pass is over
    engine       DeepSpeed's, which goes backward and steps
    accelerator  accelerate's, where it goes backward
    tokenizers   calls of a tokenizer within the turn
    labelled     the model makes the loss
    shorter      by how many tokens rows are cut before the model takes them
    why          why it is not known
    place        where the model is called
    """

    model: list[Node]
    over: Node | None
    batches: Make
    statements: tuple[str, ...]
    autocast: Node | None
    accumulation: Node | int
    optimizers: list[Node]
    clears: dict[str, Node] | None
    clears_late: bool
    engine: bool
    accelerator: Node | None
    tokenizers: list[Make]
    labelled: bool
    shorter: int
    why: str
    place: Span


def read(loop: Loop) -> Turn:
    """What a turn of a loop does. Raises Stop."""
    parents: list[list[Entry]] = [loop.entries]
    turns: int | None = None
    while (inner := inner_loop(parents[-1])) is not None:
        parents.append(inner.body)
        turns = inner.turns
    in_turn = steps(parents[-1])
    reader = _Reader()
    if len(parents) > 1 and not in_turn:  # micro-batches within a step
        reader.accumulation = turns or 2
        before = next((at for at, one in enumerate(parents[-2]) if isinstance(one, Inner)), None)
        if before is None:
            raise Stop("whether the loop goes backward depends on a condition that is not known")
        reader.follow(parents[-2][:before])
        reader.statements.clear()
        reader.follow(parents[-1])
        reader.follow(parents[-2][before + 1 :])
    else:
        reader.follow(parents[-1])
    return reader.told()


class _Reader:
    def __init__(self) -> None:
        self.sorts: dict[int, Sort] = {}
        self.statements: list[str] = []
        self.names: dict[tuple[int, str], str] = {}
        self.held: dict[tuple[int, str], int] = {}
        self.calls: list[Make] = []
        self.backward: list[Make] = []
        self.optimizers: list[Node] = []
        self.accumulation: Node | int = 1
        self.clears: dict[str, Node] | None = None
        self.clears_late = False
        self.engine = False
        self.accelerator: Node | None = None
        self.tokenizers: list[Make] = []
        self.labelled = False
        self.why = ""
        self.over: Node | None = None
        self.shorter = 0
        self.stepped = False
        self.is_followed = True
        self.takes_loss = False
        self.asked = False

    def follow(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Make):
                self.make(entry)
            elif isinstance(entry, Bind):
                self.bind(entry)
            elif isinstance(entry, Leave):
                for key in [key for key in self.held if key[0] == entry.scope]:
                    self.lets_go(key)
            elif isinstance(entry, End):
                if self.statements and not self.statements[-1].startswith("end "):
                    self.statements.append(f"end {entry.since}")
            elif isinstance(entry, Branch):
                self.branch(entry)

    # ------------------------------------------------------------------------------------------ conditions

    def branch(self, entry: Branch) -> None:
        """Under a condition that is not known."""
        taken, other = entry.body, entry.otherwise
        if entry.leaves[0]:
            taken, other = other, []
        elif entry.leaves[1]:
            other = []
        made = [[one for one in flat(way) if not without_gradients(one)] for way in (taken, other)]
        matters = [[one for one in way if self.decides(one)] for way in made]
        if any(is_step(one) for one in (*made[0], *made[1])) and not any(
            is_backward(one) for one in (*made[0], *made[1])
        ):
            if self.accumulation == 1 and not entry.leaves[0]:
                self.accumulation = entry.divisor if entry.divisor is not None else 0
            self.follow(taken)
            return
        if not matters[0] and not matters[1]:
            self.follow([one for one in taken if not isinstance(one, (Inner,))])
            return
        if matters[0] and matters[1] and not self.agree(*matters):
            raise Stop(f"what the loop does depends on line {entry.line}, which is not known")
        if bool(matters[0]) != bool(matters[1]):
            raise Stop(f"what the loop does depends on line {entry.line}, which is not known")
        self.follow(taken)

    def agree(self, one: Sequence[Make], other: Sequence[Make]) -> bool:
        """Whether two ways do the same, but for a scaler."""
        said = [[(make.kind, make.name) for make in way if make.name not in ("scale",)] for way in (one, other)]
        return said[0] == said[1]

    def decides(self, entry: Make) -> bool:
        """Whether a call decides what memory a turn takes."""
        if entry.kind == CALL:
            return is_model(entry.callee)
        return is_backward(entry) or (entry.kind == FUNCTION and entry.name.endswith("cross_entropy"))

    # ------------------------------------------------------------------------------------------ values

    def sort(self, number: int | None) -> Sort:
        return self.sorts.get(number or 0, Sort(PLAIN))

    def make(self, entry: Make) -> None:
        small = any(self.sort(number).kind == SMALL for number in entry.values if number is not None)
        if small and not is_backward(entry) and not is_step(entry):
            self.sorts[entry.number] = Sort(PLAIN if without_gradients(entry) else SMALL)
            return
        self.sorts[entry.number] = getattr(self, f"_{entry.kind}")(entry)

    def let(self, entry: Make, words: str, kind: str) -> Sort:
        self.statements.append(f"let {entry.number} {words}")
        return Sort(kind, entry.number)

    def _turn(self, entry: Make) -> Sort:
        if entry.callee is not None or entry.name:
            self.over = entry.callee
        return Sort(BATCH)

    def _rebuilt(self, entry: Make) -> Sort:
        kinds = [self.sort(number) for number in entry.values if number is not None]
        strange = next((one for one in kinds if one.kind in (OUTPUTS, LOGITS, STRANGE)), None)
        if strange is not None and strange.kind == STRANGE:
            return strange
        if strange is not None:
            return Sort(STRANGE, 0, f"{entry.where} puts what the model returns into something else")
        return kinds[0] if kinds else Sort(PLAIN)

    def _either(self, entry: Make) -> Sort:
        one, other = (self.sort(number) for number in entry.values)
        if one.kind == other.kind and one.kind in (BATCH, PLAIN):
            return one
        if one.kind == other.kind == LOSS:
            return one
        return Sort(STRANGE, 0, f"what {entry.where} takes depends on what is not known")

    def _part(self, entry: Make) -> Sort:
        of = self.sort(entry.values[0])
        if of.kind == OUTPUTS:
            if entry.name in ("0", "loss", "logits", "1"):
                first = "loss" if self.labelled else "logits"
                what = {"0": first, "1": "logits" if self.labelled else "past_key_values"}.get(entry.name, entry.name)
                return self.taken(entry, of, what)
            if entry.name == ":2":
                return of
            return Sort(STRANGE, 0, f"{entry.where} takes [{entry.name}] of what the model returns")
        if of.kind == LOGITS:
            if calls.ALL_BUT_THE_LAST.fullmatch(entry.name):
                return self.let(entry, f"cut {of.number}{flag(entry)}", LOGITS)
            return Sort(STRANGE, 0, f"{entry.where} takes [{entry.name[:40]}] of the logits")
        if of.kind == BATCH and entry.name in (":,:-1", "...,:-1"):
            return Sort(BATCH, -1)
        if of.kind == BATCH and entry.name in (":,1:", "...,1:"):
            return Sort(NEXT)
        if of.kind == BATCH and ":" in entry.name:
            return Sort(STRANGE, 0, f"{entry.where} takes [{entry.name[:40]}] of the batch")
        return of

    def taken(self, entry: Make, of: Sort, what: str) -> Sort:
        if what == "loss" and not self.labelled:
            self.bounded(f"{entry.where} takes a loss of a model that is given no labels")
        self.takes_loss = self.takes_loss or what == "loss"
        if what in ("loss", "logits"):
            return self.let(entry, f"{what} {of.number}", LOSS if what == "loss" else LOGITS)
        return Sort(STRANGE, 0, f"{entry.where} takes {what} of what the model returns")

    def _attribute(self, entry: Make) -> Sort:
        of = self.sort(entry.values[0])
        if of.kind == OUTPUTS:
            return self.taken(entry, of, entry.name)
        if entry.name in calls.ON_THE_HOST:
            return Sort(PLAIN)
        if of.kind == LOGITS:
            return Sort(STRANGE, 0, f"{entry.where} takes .{entry.name} of the logits")
        return of

    def _operation(self, entry: Make) -> Sort:
        kinds = [self.sort(number) for number in entry.values if number is not None]
        strange = next((one for one in kinds if one.kind == STRANGE), None)
        if strange is not None:
            return strange
        if any(one.kind in (LOGITS, OUTPUTS) for one in kinds):
            if len(kinds) == 1 and entry.name in ("Div", "Mult"):
                return self.let(entry, f"divided {kinds[0].number}{flag(entry)}", LOGITS)
            return Sort(STRANGE, 0, f"{entry.where} computes with the logits")
        losses = [one for one in kinds if one.kind == LOSS]
        if not losses:
            return kinds[0] if kinds else Sort(PLAIN)
        words = " ".join(str(one.number) for one in losses)
        return self.let(entry, f"{'scaled' if len(losses) == 1 else 'added'} {words}{flag(entry)}", LOSS)

    def _method(self, entry: Make) -> Sort:
        if entry.callee is not None:
            return self.of_object(entry)
        of = self.sort(entry.values[0])
        if is_backward(entry):
            return self.goes_backward(entry, of)
        if entry.name in calls.ON_THE_HOST or of.kind == PLAIN:
            return Sort(PLAIN)
        if of.kind == NEXT and entry.name in ("contiguous", "reshape", "flatten", "clone"):
            return self.let(entry, "labels", LABELS)
        if of.kind in (BATCH, NEXT, LABELS):
            return self.reshaped(entry, of)
        if of.kind == OUTPUTS:
            if entry.name == "get" and entry.given and entry.given[0].value in ("loss", "logits"):
                return self.taken(entry, of, str(entry.given[0].value))
            return Sort(STRANGE, 0, f"{entry.where} calls .{entry.name}() of what the model returns")
        if of.kind == LOSS:
            if entry.name == "detach":
                return Sort(PLAIN)
            if entry.name in calls.OF_A_LOSS:
                return self.let(entry, f"scaled {of.number}{flag(entry)}", LOSS)
            return Sort(STRANGE, 0, f"{entry.where} calls .{entry.name}() of the loss")
        if of.kind == LOGITS:
            return self.of_logits(entry, of)
        return of

    def reshaped(self, entry: Make, of: Sort) -> Sort:
        """What a call makes of a batch: a batch, unless it has other rows or lengths."""
        name = entry.name.rpartition(".")[2]
        if name in calls.RESHAPES and of.kind == BATCH:
            return Sort(STRANGE, 0, f"{entry.where} makes another batch of it ({name})")
        return of

    def of_logits(self, entry: Make, of: Sort) -> Sort:
        what = calls.OF_LOGITS.get(entry.name, "")
        if entry.name == "to":
            said = entry.given[0].value if entry.given else None
            text = said.text if isinstance(said, Unresolved) else str(said)
            if text in ("torch.float32", "torch.float"):
                what = "float32"
            elif not text.startswith("torch.") or "device" in text:
                return of  # it is where it goes
        if what == "rows" and not makes_rows(entry):
            what = ""
        if not what:
            return Sort(STRANGE, 0, f"{entry.where} calls .{entry.name}() of the logits")
        if entry.name == "reshape" or entry.name == "flatten":
            what = "copied_rows"
        return self.let(entry, f"{what} {of.number}{flag(entry)}", LOGITS)

    def _function(self, entry: Make) -> Sort:
        name = entry.name.rpartition(".")[2]
        kinds = [self.sort(number) for number in entry.values if number is not None]
        if name == "cross_entropy":
            return self.cross_entropy(entry, entry.named)
        of = kinds[0] if kinds else Sort(PLAIN)
        if name in calls.OF_A_LOSS and of.kind == LOSS and len(kinds) == 1:
            return self.let(entry, f"scaled {of.number}{flag(entry)}", LOSS)
        if name in ("getattr",) and len(entry.given) > 1 and kinds[0].kind == OUTPUTS:
            return self.taken(entry, kinds[0], str(entry.given[1].value))
        return self.unknown_call(entry, name, kinds)

    def unknown_call(self, entry: Make, name: str, kinds: Sequence[Sort]) -> Sort:
        if without_gradients(entry) or all(one.kind == PLAIN for one in kinds):
            return Sort(PLAIN)
        if all(one.kind in (BATCH, NEXT, LABELS, PLAIN) for one in kinds):
            return self.reshaped(entry, next(one for one in kinds if one.kind != PLAIN))
        if name in calls.LOOKS_AT:
            return Sort(PLAIN)
        strange = next((one for one in kinds if one.kind == STRANGE), None)
        if strange is not None:
            return strange
        what = (
            "the loss"
            if all(one.kind in (LOSS, BATCH, NEXT, LABELS, PLAIN) for one in kinds)
            else "what the model returns"
        )
        return Sort(STRANGE, 0, f"{entry.where} gives {what} to {name}()")

    def _call(self, entry: Make) -> Sort:
        kinds = [self.sort(number) for number in entry.values if number is not None]
        made = root(entry.callee)
        if is_model(entry.callee):
            return self.model(entry)
        if name_of(made) == "CrossEntropyLoss":
            return self.cross_entropy(entry, values_of(made))
        if tokenizes(made):
            self.tokenizers.append(entry)
            return Sort(BATCH)
        return self.unknown_call(entry, entry.name, kinds)

    def model(self, entry: Make) -> Sort:
        if without_gradients(entry):
            if root_number(entry.callee) != root_number(self.calls[0].callee if self.calls else entry.callee):
                self.why = self.why or OnTop(f"{entry.where} asks another model beside the one that trains")
            return Sort(PLAIN)
        for argument_ in (*entry.given, *entry.named.values()):
            number = getattr(argument_.value, "number", None)
            if self.sort(number).kind == STRANGE:
                self.bounded(self.sort(number).why)
            elif self.sort(number).kind not in (BATCH, NEXT, LABELS, PLAIN):
                self.bounded(f"{entry.where} gives the model something else than a batch")
            if self.sort(number).number < 0:
                self.shorter = 1
        self.calls.append(entry)
        if image_calls.made(root(entry.callee)) is not None:
            self.is_followed = False
            return Sort(SMALL)
        for name in calls.OTHER_OUTPUTS:
            told = entry.named.get(name)
            if told is not None and told.value not in (None, False):
                self.why = self.why or OnTop(f"{entry.where} calls the model with {name}")
        labels = entry.named.get("labels")
        self.labelled = "**" in entry.named or (labels is not None and labels.value is not None)
        self.asked = "**" in entry.named and labels is None  # whether labels are among them is not seen
        words = "model labels" if self.labelled else "model"
        return self.let(entry, f"{words}{flag(entry)}", OUTPUTS)

    def cross_entropy(self, entry: Make, options: Mapping[str, Node]) -> Sort:
        first = next((number for number in entry.values if number is not None), None)
        of = self.sort(first)
        if of.kind == STRANGE:
            return of
        if of.kind != LOGITS:
            return Sort(PLAIN if of.kind != OUTPUTS else STRANGE, 0, f"{entry.where}: a loss of what is not known")
        odd = [name for name in options if not name.startswith("_") and name not in calls.PLAIN_LOSS]
        if odd:
            return Sort(STRANGE, 0, f"{entry.where}: cross entropy with {odd[0]} is not described")
        reduction = options.get("reduction")
        kind = "cross_entropies" if reduction is not None and reduction.value == "none" else "cross_entropy"
        asked = next((one for one in map(self.sort, entry.values) if one.kind == LABELS), None)
        words = str(of.number) if asked is None else f"{of.number} {asked.number}"
        return self.let(entry, f"{kind} {words}{flag(entry)}", LOSS)

    # ------------------------------------------------------------------------------------------ what objects do

    def of_object(self, entry: Make) -> Sort:
        """A method of something that the program made."""
        made, name = root(entry.callee), entry.name
        kinds = [self.sort(number) for number in entry.values if number is not None]
        model = is_model(entry.callee)
        if name == "backward":
            self.engine = self.engine or model
            self.accelerator = entry.callee if name_of(made) == "Accelerator" else self.accelerator
            of = kinds[0] if kinds else Sort(PLAIN)
            if of.kind == LOSS and self.accelerator is not None:  # accelerate 1.15: accelerator.py, backward
                of = self.let(entry, f"scaled {of.number}", LOSS)
            return self.goes_backward(entry, of)
        if name == "scale" and kinds and kinds[0].kind == LOSS:
            return self.let(entry, f"scaled {kinds[0].number}{flag(entry)}", LOSS)
        if is_step(entry):
            self.steps(entry, made)
            return Sort(PLAIN)
        if name == "zero_grad":
            self.clear(entry)
            return Sort(PLAIN)
        if tokenizes(made):
            self.tokenizers.append(entry)
            return Sort(BATCH)
        if model and any(one.kind in (BATCH, LOGITS, OUTPUTS) for one in kinds) and not without_gradients(entry):
            if name in ("forward", "__call__"):
                return self.model(entry)
            if not self.calls:
                raise Stop(f"{entry.where} asks a part of the model (.{name}), which is not described")
            self.bounded(f"{entry.where} asks a part of the model (.{name}), which is not described")
        if model and name == "generate":
            self.why = self.why or OnTop(f"{entry.where} samples from the model within the loop")
        if name in calls.REPORTS:
            return Sort(PLAIN)
        return self.unknown_call(entry, name, kinds)

    def steps(self, entry: Make, made: Node | None) -> None:
        self.stepped = True
        if name_of(made) == "GradScaler":
            given = entry.given[0] if entry.given else None
            made = root(given)
        if made is not None and optimizer_of(made) is not None:
            number = root_number(made)
            if all(root_number(one) != number for one in self.optimizers):
                self.optimizers.append(made)
        if self.backward:
            self.statements.append("step")

    def clear(self, entry: Make) -> None:
        self.clears = dict(entry.named.items())
        if entry.given:
            self.clears.setdefault("set_to_none", entry.given[0])
        if self.calls and not self.backward:
            self.clears_late = True
            self.statements.append("clear")

    def bounded(self, why: str) -> None:
        """What is not known of the turn comes on top of weights, gradients and states."""
        self.why = self.why or OnTop(why)
        self.is_followed = False

    def goes_backward(self, entry: Make, of: Sort) -> Sort:
        if of.kind == STRANGE:
            self.bounded(of.why + ": what the loss keeps is not described")
        elif of.kind not in (LOSS, SMALL):
            self.bounded(f"{entry.where} goes backward from what is not followed")
        elif self.backward:
            self.bounded(f"the loop goes backward twice in a turn ({self.backward[0].where} and {entry.where})")
        elif any(name in entry.named for name in ("retain_graph", "create_graph")):
            self.bounded(f"{entry.where} keeps the graph")
        self.backward.append(entry)
        self.statements.append(f"backward {of.number}")
        return Sort(PLAIN)

    # ------------------------------------------------------------------------------------------ names

    def bind(self, entry: Bind) -> None:
        key = (entry.scope, entry.name)
        sort = self.sort(entry.number) if entry.number is not None else Sort(PLAIN)
        if sort.kind in (OUTPUTS, LOSS, LOGITS, LABELS):
            self.names.setdefault(key, f"n{len(self.names)}")
            self.held[key] = sort.number
            self.statements.append(f"name {self.names[key]} {sort.number}")
        else:
            if sort.kind == STRANGE and "logits" in sort.why:
                self.why = self.why or OnTop(f"{sort.why}: what it holds is not described")
            if key in self.held:
                self.lets_go(key)

    def lets_go(self, key: tuple[int, str]) -> None:
        del self.held[key]
        self.statements.append(f"name {self.names[key]} -")

    # ------------------------------------------------------------------------------------------ the end

    def told(self) -> Turn:
        """Raises Stop."""
        if not self.calls:
            raise Stop("the loop calls no model of a library that is described")
        if len(self.calls) > 1:
            lines = " and ".join(one.where for one in self.calls[:2])
            self.bounded(f"the loop calls the model more than once ({lines})")
        if not self.backward:
            raise Stop("what the loop goes backward from is not followed")
        if not self.stepped:
            raise Stop("no step of an optimizer is found in the loop")
        call = self.calls[0]
        explicit = [one for one in call.within if name_of(one) == "autocast" or target_of(one).endswith(".autocast")]
        strange = [one for one in call.within if not is_known_context(one)]
        if strange:
            self.why = self.why or f"{call.where} calls the model within {text(strange[0])}, which is not described"
        return Turn(
            chain(call.callee),
            self.over,
            call,
            tuple(self.trimmed()) if self.is_followed else (),
            explicit[-1] if explicit else None,
            self.accumulation,
            self.optimizers,
            self.clears,
            self.clears_late,
            self.engine,
            self.accelerator,
            self.tokenizers,
            self.labelled,
            self.shorter,
            self.why,
            call.place,
        )

    def trimmed(self) -> Iterator[str]:
        """The statements, numbered anew, without ends where nothing was made since the one before."""
        numbers: dict[str, str] = {}
        for statement in self.statements:
            kind, *words = statement.split()
            if self.asked and not self.takes_loss:  # who makes a loss of the logits gives the model no labels
                words = [word for word in words if word != "labels" or kind != "let" or words[1] != "model"]
            if kind in ("let", "backward"):
                words = [numbers.setdefault(word, str(len(numbers))) if word.isdigit() else word for word in words]
            elif kind == "end":
                words = [str(sum(int(number) < int(words[0]) for number in numbers))]
            elif kind == "name" and words[1] != "-":
                words[1] = numbers.setdefault(words[1], str(len(numbers)))
            yield " ".join((kind, *words))
