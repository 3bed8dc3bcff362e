"""The rule API: what a rule sees (:class:`Run`) and what it says (:class:`Finding`).

A rule thinks in facts. It never knows how a family spells a key, nor a line number: it names facts, and the
run turns them into spans and edits. Every fix carries the peak after it, computed with :meth:`Run.what_if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from memlint import work
from memlint.documents.node import Edit as Edit
from memlint.documents.node import Fault, Span
from memlint.facts.spec import ASSUMED, NOTHING, Fact, Name, TrainingSpec, UnknownModel, named, named_values
from memlint.named_tuple import NamedTuple
from memlint.tape.estimate import FITS, OOM, TIGHT, Estimate

Spelled = tuple[tuple[Name, ...], Sequence[Edit]]  # facts, and the edits that set them

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from memlint.facts.names import Facts
    from memlint.partial import Partial

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (ERROR, WARNING, INFO)

SAFE = "safe"  # cannot change what is learned
UNSAFE = "unsafe"  # may change numerics or speed
DISPLAY = "display"  # changes the optimisation: applied only when asked for by name


# Share of the device peak from which a rule calls a part of it large, and from which it is worth a word.
LARGE_SHARE = 1 / 3
NOTABLE_SHARE = 1 / 20
# What a run is sized for where nobody names a card: those that clusters have had since 2021.
OF_CLUSTERS = "a100-80gb"
# What less is at stake than this is worth no word where no budget is known: an eighth of a card of 16 GiB.
LEAST_AT_STAKE_BYTES = 2 * 2**30


class Fix(NamedTuple):
    """A change of the config with its computed effect.

    device_bytes_after  the estimate with the change; None where there is no estimate
    saved_bytes         device bytes before minus after
    fits                as a check of the changed config says it, with all of the interval; None without a budget
    """

    title: str
    safety: str
    edits: tuple[Edit, ...]
    device_bytes_after: int | None = None
    saved_bytes: int | None = None
    fits: bool | None = None


# What a rule says besides, as it is, or how to make it: that is done for who reads it, and for nobody else. Notes may
# depend on which fixes there are.
Fixes = Sequence[Fix] | Callable[[], Sequence[Fix]]
Notes = Sequence[str] | Callable[[Sequence[Fix]], Sequence[str]]


class Finding(NamedTuple):
    """One problem at one place. ``size_bytes`` are the bytes at stake (0 where none apply)."""

    code: str
    name: str
    severity: str
    message: str
    span: Span
    key: str = ""
    size_bytes: int = 0
    confidence: str = "high"
    related: tuple[tuple[Span, str], ...] = ()
    fixes: tuple[Fix, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Stable across inserted lines: made of code, path and key, not of positions or figures."""
        import hashlib  # brings OpenSSL along, which no other step needs

        text = "\0".join((self.code, self.span.path, self.key))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# Facts that do not touch what one micro batch's forward keeps.
OUTSIDE_FORWARD = (
    "gradient_accumulation_steps",
    "evaluation_batch_size",
    "ema",
    "optimizer",
    "optimizer_implementation",
)

# Between these, one doubling says enough: next to linear, next to quadratic.
CLEAR_EXPONENTS = ((0.9, 1.1), (1.9, 2.1))


class Growth(NamedTuple):
    """How the bytes of the run grow with one fact: ``bytes ~ fact ** exponent`` for what depends on it."""

    fact: Fact
    exponent: float

    @property
    def word(self) -> str:
        if self.exponent < 0.05:
            return "not at all"
        if self.exponent < 0.85:
            return "less than linearly"
        if self.exponent <= 1.15:
            return "linearly"
        if self.exponent < 1.85:
            return "faster than linearly"
        return "quadratically"


Key = tuple[tuple[str, str], ...]  # changes, in an order of their own


class Run:
    """What a rule sees: facts, estimate, budget, and what-if.

    estimator  TrainingSpec -> Estimate; raises nothing for settings a config can state
    spell      (spec, fact names -> values) -> (some of the names, the edits that set them in the family's spelling),
               one after the other: no edits where the family has no keys
    saved      TrainingSpec -> bytes that autograd holds at the end of forward, the quick half of an estimate
    allocated  TrainingSpec -> the estimate's allocated_bytes, without what the allocator makes of them
    within     (TrainingSpec, bytes) -> ``estimator``'s; None for one that reserves more, which is quicker to see
    packed     () -> what the run's reserved bytes cannot be less than, whatever the allocator's settings
    first_pass () -> most bytes live until the second micro-batch begins; 0 where there is none, or that is not known
    whole      TrainingSpec -> the estimate with all of its interval; ``estimator``'s is of the newest releases alone
    fitting    (TrainingSpec, bytes) -> ``whole``'s where all of its interval fits; None where it does not, which is
               quicker to see
    again      edits -> this run as it is read from the texts with them; None where these cannot be read, or more is
               wrong with them than before
    details    whether anybody reads the fixes and notes of findings; those that a rule would have to make stay unmade
    partial    the peak as a function of a size that is not stated, where there is no estimate for want of it
    """

    def __init__(
        self,
        spec: TrainingSpec,
        estimate: Estimate | None,
        budget_bytes: int | None,
        estimator: Callable[[TrainingSpec], Estimate],
        spell: Callable[[TrainingSpec, Mapping[Name, Any]], Iterable[Spelled]],
        host_budget_bytes: int | None = None,
        gpu: str = "",
        faults: Iterable[Fault] = (),
        options: dict[str, Any] | None = None,
        saved: Callable[[TrainingSpec], int] | None = None,
        allocated: Callable[[TrainingSpec], int] | None = None,
        within: Callable[[TrainingSpec, int], Estimate | None] | None = None,
        packed: Callable[[], int] | None = None,
        first_pass: Callable[[], int] | None = None,
        whole: Callable[[TrainingSpec], Estimate] | None = None,
        fitting: Callable[[TrainingSpec, int], Estimate | None] | None = None,
        again: Callable[[Sequence[Edit]], TrainingSpec | None] | None = None,
        details: bool = True,
        partial: Partial | None = None,
    ) -> None:
        self.spec = spec
        self.estimate = estimate
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes
        self.gpu = gpu
        self.faults = tuple(faults)
        self.options = options or {}
        self.details = details
        self.partial = partial
        self._estimator = estimator
        self._spell = spell
        self._saved = saved or (lambda changed: estimator(changed).saved_bytes)
        self._allocated = allocated or (lambda changed: estimator(changed).allocated_bytes)
        self._within = within or (lambda changed, _: estimator(changed))
        self._packed = packed or (lambda: estimate.allocated_bytes if estimate else 0)
        self._first_pass = first_pass
        self._whole = whole or estimator
        self._fitting = fitting or self._whole_within
        self._again = again
        self._held: dict[Fix, Fix | None] = {}
        self._seen: dict[str, tuple[Any, int]] = {}  # fact -> a value tried alone, and the bytes saved with it
        self._specs: dict[Key, TrainingSpec] = {}
        self._memo: dict[Key, Estimate] = {}

    # -- facts

    def fact(self, name: Name) -> Fact | None:
        return self.spec.fact(name)

    def those(self, *names: Name) -> list[Fact]:
        """The facts that are known, of these."""
        return [fact for fact in map(self.spec.fact, names) if fact is not None]

    def value(self, name: Name, default: Any = None) -> Any:
        return self.spec.get(name, default)

    def share(self, component: str) -> float:
        """Part of the device peak that a component takes, 0 to 1; 0 without an estimate."""
        if self.estimate is None or self.estimate.device_bytes == 0:
            return 0.0
        return self.estimate.component_bytes(component) / self.estimate.device_bytes

    @property
    def verdict(self) -> str:
        return "UNKNOWN" if self.estimate is None else self.estimate.verdict(self.budget_bytes)

    @property
    def over_budget(self) -> bool:
        return self.verdict == OOM

    @property
    def is_short(self) -> bool:
        """Whether the budget is in question: the run does not fit it, or may not."""
        return self.verdict in (OOM, TIGHT)

    @property
    def card_bytes(self) -> int:
        """The budget; without one, what a card has that clusters have had since 2021 (80 GB)."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        from memlint.data.catalogue import parse_gpu

        return parse_gpu(OF_CLUSTERS)[0].usable_bytes

    @property
    def has_room(self) -> bool:
        """Whether twice of all that the run may take fits the budget: what would lower its peak is nobody's concern."""
        if self.budget_bytes is None or self.estimate is None:
            return False
        return 2 * self.estimate.device_interval.high_bytes <= self.budget_bytes

    def is_worth_saving(self, finding: Finding) -> bool:
        """Whether what is at stake in a finding may matter. Without a budget the run may be for any card, and little
        decides for few of them."""
        return self.budget_bytes is not None or not 0 < finding.size_bytes < LEAST_AT_STAKE_BYTES

    @property
    def is_launched(self) -> bool:
        """Whether it is stated on how many devices a language model trains: by a key, a command, or ``--gpu NAMExN``.
        Configs of these are launched on one or on many, and fit with what these share; other models' mean one."""
        count = self.fact("device_count")
        if self.spec.architecture != "language_model" or self.spec.launch is not None:
            return True
        return count is not None and count.origin != ASSUMED

    # -- shares of the peak

    def is_large(self, size_bytes: int, share: float = LARGE_SHARE) -> bool:
        """Whether these bytes are a large part of the device peak."""
        return self.estimate is not None and size_bytes >= share * self.estimate.device_bytes

    @property
    def activation_bytes(self) -> int:
        """Activations and logits at the peak."""
        if self.estimate is None:
            return 0
        return self.estimate.component_bytes("activations") + self.estimate.component_bytes("logits")

    @property
    def activations_dominate(self) -> bool:
        """Activations are the largest component of the peak, and a large part of it."""
        if self.estimate is None:
            return False
        others = (c.size_bytes for c in self.estimate.components if c.name not in ("activations", "logits"))
        return self.activation_bytes > max(others, default=0) and self.is_large(self.activation_bytes)

    @property
    def attention_bytes(self) -> int:
        """What plain attention needs beyond a fused kernel: the part that is quadratic in the tokens."""
        if self.value("attention") != "eager" or self.estimate is None:
            return 0
        return max(0, self.estimate.device_bytes - self.what_if(attention="sdpa").device_bytes)

    # -- what if

    def what_if(self, changes: Mapping[Name, Any] = NOTHING, /, **more: Unpack[Facts]) -> Estimate:
        """This run with some facts changed, under the newest releases alone. Remembered: asking twice costs once."""
        changes = {**changes, **named_values(more)}
        key, spec = self._changed(changes)
        if key not in self._memo:
            found = self._memo[key] = self._estimator(spec)
            alone = [name for name in changes if name not in OUTSIDE_FORWARD]
            if len(alone) == 1:
                self._seen[alone[0]] = (changes[alone[0]], found.saved_bytes)
        return self._memo[key]

    def fits_if(self, changes: Mapping[Name, Any] = NOTHING, /, **more: Unpack[Facts]) -> bool:
        """Whether the run with some facts changed surely fits the budget: with all of its interval, as `check` of the
        changed config would say."""
        if self.budget_bytes is not None and self.allocated_if(changes, **more) > self.budget_bytes:
            return False  # whatever the allocator makes of it
        if self.what_if(changes, **more).verdict(self.budget_bytes) != FITS:
            return False
        _, spec = self._changed({**changes, **named_values(more)})
        return self.budget_bytes is not None and self._fitting(spec, self.budget_bytes) is not None

    def allocated_if(self, changes: Mapping[Name, Any] = NOTHING, /, **more: Unpack[Facts]) -> int:
        """``what_if(...).allocated_bytes``, which takes half the time where nothing else is asked."""
        key, spec = self._changed({**changes, **named_values(more)})
        return self._memo[key].allocated_bytes if key in self._memo else self._allocated(spec)

    def read_again(self, edits: Sequence[Edit]) -> TrainingSpec | None:
        """This run as it is read from the texts with some edits; None where these cannot be read, or more is wrong with
        them than before. Raises work.OutOfWork."""
        if self._again is None:
            return None
        found = self._again(edits)
        same = found is not None and found.architecture == self.spec.architecture
        return self.spec.read_as(found) if found is not None and same else None

    def fits_as(self, spec: TrainingSpec) -> Estimate | None:
        """The estimate of this run with other facts, with all of its interval, where it surely fits the budget; None
        where it does not, which is asked of what is live first. Raises UnknownModel."""
        if self.budget_bytes is None or self._allocated(spec) > self.budget_bytes:
            return None
        return self._fitting(spec, self.budget_bytes)

    def estimate_as(self, spec: TrainingSpec) -> Estimate:
        """The estimate of this run with other facts, with all of its interval. Raises UnknownModel."""
        return self._whole(spec)

    def _whole_within(self, spec: TrainingSpec, budget_bytes: int) -> Estimate | None:
        whole = self._whole(spec)
        return whole if whole.verdict(budget_bytes) == FITS else None

    def allocated_as(self, spec: TrainingSpec) -> int:
        """``estimate_as(spec).allocated_bytes``, in half the time. Raises UnknownModel."""
        return self._allocated(spec)

    def least_if(self, changes: Mapping[Name, Any]) -> int:
        """What the device peak cannot be less than with some facts changed that leave the card and its libraries as
        they are: what is live, and what is there beside it. Takes half the time of :meth:`what_if`."""
        if self.estimate is None:
            return 0
        beside = self.estimate.device_bytes - self.estimate.reserved_bytes
        return self.allocated_if(changes) + max(0, beside - self.estimate.component_bytes("communication"))

    def saved_if(self, changes: Mapping[Name, Any], share: float) -> int:
        """Bytes of the device peak that such changes save; 0 where they are less than this share of it. What that can
        be at most is asked first, and the allocator is simulated no further than until too much is reserved."""
        if self.estimate is None:
            return 0
        before, only_allocator = self.estimate.device_bytes, set(changes) == {"allocator_conf"}
        least = before - self.estimate.reserved_bytes + self._packed() if only_allocator else self.least_if(changes)
        if not self.is_large(before - least, share):
            return 0
        key, spec = self._changed(changes)
        if only_allocator and key not in self._memo:
            found = self._within(spec, int(self.estimate.reserved_bytes - share * before))
            if found is None:
                return 0
            self._memo[key] = found
        saved = before - self.what_if(changes).device_bytes
        return saved if self.is_large(saved, share) else 0

    def _changed(self, changes: Mapping[Name, Any]) -> tuple[Key, TrainingSpec]:
        """The run with some facts changed, which is made once."""
        key = tuple(sorted((name, repr(value)) for name, value in changes.items()))
        if key not in self._specs:
            self._specs[key] = self.spec.with_facts(changes)
        return key, self._specs[key]

    @property
    def first_pass_bytes(self) -> int:
        """Most bytes live until the second micro-batch begins: what one alone takes at least, where its collectives do
        not wait for the last one. 0 where there is no second one, or where that is not known."""
        waits = self.value("parallelism.strategy") in ("fsdp1", "fsdp2")
        if self._first_pass is None or waits or (self.value("parallelism.pipeline") or 1) > 1:
            return 0
        return self._first_pass()

    def growth(self, name: Name) -> Growth | None:
        """How the bytes that autograd keeps grow with a numeric fact, measured by re-estimating.

        One other value decides where the exponent is clear (one that a fix has tried already, else the double);
        else two doublings take out what does not depend on the fact: for ``a * x**n + c`` the differences of
        successive doublings have the ratio ``2**n``.
        """
        import math

        fact = self.spec.fact(name)
        if fact is None or self.estimate is None or not isinstance(fact.value, int) or fact.value < 1:
            return None
        base = self.estimate.saved_bytes
        other, bytes_with_other = self._seen.get(name, (None, 0))
        if not isinstance(other, int) or other == fact.value or bytes_with_other <= 0:
            other = fact.value * 2
            bytes_with_other = self._saved(self.spec.with_facts({name: other}))
        if bytes_with_other == base or base == 0:
            return Growth(fact, 0.0)
        exponent = math.log(bytes_with_other / base) / math.log(other / fact.value)
        if not any(low <= exponent <= high for low, high in CLEAR_EXPONENTS):
            once = self._saved(self.spec.with_facts({name: fact.value * 2}))
            twice = self._saved(self.spec.with_facts({name: fact.value * 4}))
            exponent = math.log2((twice - once) / (once - base)) if twice > once > base else 0.0
        return Growth(fact, exponent)

    # -- saying it

    def can_set(self, name: Name, value: Any) -> bool:
        """Whether this family has a key for the fact, and a spelling for the value."""
        return any(edits for _, edits in self.spelled({name: value}))

    def spelled(self, changes: Mapping[Name, Any]) -> Iterator[Spelled]:
        """(facts, the edits that set them), one after the other; without edits where there is no key."""
        return iter(self._spell(self.spec, changes))

    def edits(self, changes: Mapping[Name, Any] = NOTHING, /, **more: Unpack[Facts]) -> tuple[Edit, ...]:
        """How these facts are written in this family. Raises nothing; () where there is no key."""
        found: list[Edit] = []
        for _, edits in self.spelled({**changes, **named_values(more)}):
            # Two facts may be made of one key.
            found.extend(edit for edit in edits if edit not in found)
        if len(found) < 2 or len({edit.span for edit in found}) == len(found):
            return tuple(found)
        from memlint.dialects.insertion import together

        return together(found)

    def fix(self, title: str, safety: str, changes: Mapping[Name, Any] = NOTHING, /, **more: Unpack[Facts]) -> Fix:
        """A fix that sets facts, with its re-estimated peak. Edits are empty where the family has no key."""
        edits = self.edits(changes, **more)
        if self.estimate is None:
            return Fix(title, safety, edits)
        after = self.what_if(changes, **more)
        fits = None if self.budget_bytes is None else self.fits_if(changes, **more)
        return Fix(title, safety, edits, after.device_bytes, self.estimate.device_bytes - after.device_bytes, fits)

    def held(self, fix: Fix) -> Fix | None:
        """A fix as the texts with its edits keep it: with their peak. None for one that breaks them, or that does not
        lower the peak, or fit, as it says: a key that is written may make another one count."""
        if self._again is None or not fix.edits:
            return fix
        if fix not in self._held:
            try:
                self._held[fix] = self._kept(fix, self._again(fix.edits))
            except UnknownModel:
                self._held[fix] = None
            except work.OutOfWork:  # where all values are known, it is what was estimated, as far as anybody can tell
                self._held[fix] = None if self.spec.missing or self.faults else fix
        return self._held[fix]

    def _kept(self, fix: Fix, spec: TrainingSpec | None) -> Fix | None:
        if spec is None or fix.device_bytes_after is None or self.estimate is None:
            return None if spec is None else fix
        if spec.architecture != self.spec.architecture:
            return None
        read = self.spec.read_as(spec)
        found = self._estimator(read).device_bytes
        if found == fix.device_bytes_after:
            return fix
        saved = self.estimate.device_bytes - found
        fits = None if self.budget_bytes is None else self.fits_as(read) is not None
        if (saved > 0) != ((fix.saved_bytes or 0) > 0) or (fix.fits and not fits):
            return None
        return fix._replace(device_bytes_after=found, saved_bytes=saved, fits=fits)

    def parent_span(self, fact: Fact) -> Span | None:
        """For a key that is not written: the key of the closest section that would hold it; of a command, its program,
        also where the family has no option for the fact."""
        if self.spec.launch is not None and (fact.key.startswith("-") or (not fact.key and self._is_command)):
            return self.spec.launch.program.span
        path = fact.key
        while "." in path:
            path = path.rpartition(".")[0]
            node = self.spec.root.get(path)
            if node is not None and node.key_span is not None:
                return node.key_span
        return None

    @property
    def at_fault(self) -> Fact | None:
        """The key that keeps the run from an estimate, written or missing: reasons begin with it. Where a reason begins
        with no key, what names the model; None where that is not written either."""
        from memlint.dialects.trees import find

        word = self.spec.unknown_reason.partition(" ")[0].rstrip(":,")
        for fact in self.spec.facts.values():
            if fact.key == word and fact.node is not None:
                return fact
        name = word.lstrip("-")
        node = find(self.spec.root, name) if name else None
        if node is not None:
            return Fact(named(name), None, key=word, node=node)
        if "." in name or word != name:
            return Fact(named(name), None, key=word)
        model = self.fact("model")
        return model if model is not None and model.node is not None else None

    @property
    def _is_command(self) -> bool:
        """Whether the run's settings are the options of a command, not a file that it names."""
        return self.spec.launch is not None and self.spec.document.format == "shell"

    def root_span(self) -> Span:
        """Where a finding about the whole run goes: the first line of the file, or the program of the command."""
        if self.spec.launch is not None and self._is_command:
            return self.spec.launch.program.span
        span = self.spec.root.span
        return Span(span.path, span.line, span.column, span.line, span.column)


class Rule:
    """One risk. Subclass it in a file of ``rules/``; the class docstring is the rule's manual page.

    code, name   both are accepted wherever a rule is named
    severity     the default: ERROR, WARNING or INFO
    facts        the facts that must exist for the rule to apply at all (checked before ``check`` is called)
    needs_estimate  False for rules that work on the text or the facts alone
    preview      only with --preview
    saves        True: it says what would take less memory; nothing of a run that has room for twice as much, and
                 without a budget nothing of less than LEAST_AT_STAKE_BYTES
    invalid, valid  example configs that are the rule's tests
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[str] = WARNING
    facts: ClassVar[tuple[Name, ...]] = ()
    needs_estimate: ClassVar[bool] = True
    preview: ClassVar[bool] = False
    saves: ClassVar[bool] = False
    invalid: ClassVar[tuple[Example, ...]] = ()
    valid: ClassVar[tuple[Example, ...]] = ()

    def check(self, run: Run) -> Iterator[Finding]:
        raise NotImplementedError

    def finding(
        self,
        run: Run,
        message: str,
        fact: Fact | str | None = None,
        *,
        span: Span | None = None,
        size_bytes: int = 0,
        severity: str = "",
        confidence: str = "high",
        related: Sequence[Fact] = (),
        fixes: Fixes = (),
        notes: Notes = (),
    ) -> Finding:
        """A finding on a fact's key: the key itself where it is written, else the section that would hold it,
        else the first related fact that is written, else the first line."""
        if not run.details:
            fixes = notes = ()
        made = tuple(fixes() if callable(fixes) else fixes)
        if isinstance(fact, str):
            fact = run.fact(named(fact))
        place = span or (fact.span if fact is not None else None)
        if place is None and fact is not None:
            place = run.parent_span(fact)
        if place is None:
            place = next((other.span for other in related if other.span is not None), None)
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            message=message,
            span=place or run.root_span(),
            key=fact.key if fact is not None else "",
            size_bytes=size_bytes,
            confidence=confidence,
            related=tuple(
                (other.span, f"{other.label}: {other.written}")
                for other in related
                if other.span is not None and other.span != place  # it is shown as it is
            ),
            fixes=made,
            notes=tuple(notes(made) if callable(notes) else notes),
        )


class Example(NamedTuple):
    """A config on which a rule fires (or not).

    path     a file below ``examples/`` when ``text`` is empty, else the name under which ``text`` is checked
    replace  (old, new) pairs applied to the example's text: what makes it an example of this rule
    expect   the text that the finding's span must select (invalid examples)
    files    (name, old, new) of files beside it that are changed too
    """

    path: str
    text: str = ""
    replace: tuple[tuple[str, str], ...] = ()
    expect: str = ""
    budget: str = ""
    host_budget: str = ""
    overrides: tuple[str, ...] = ()
    note: str = ""
    gpu: str = ""
    files: tuple[tuple[str, str, str], ...] = ()
