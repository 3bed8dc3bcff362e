"""What a repository's own program does in a library's place: options of its own, and trainers with a loss of their own.

A command's options may all be transformers' and the run something else: the program that it starts makes a trainer
whose loss is its own, as those of SPIN, SPPO and of every embedding model do. The program and the modules of its
repository that it imports are read, and nothing of them ever runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator

from memlint import files
from memlint.dialects import companions
from memlint.documents.python.source import Reading
from memlint.facts.spec import OnTop
from memlint.named_tuple import NamedTuple

MAX_MODULES = 12  # that a program draws in, nearest first
MAX_REGISTERED = 96  # of which one registers a model: a package of models has a module for each kind
MAX_HOPS = 6  # from a name to the class that it stands for
MAX_BYTES = 1 << 20

# What transformers' Trainer, and TRL's before 1.0, have their loss made by (transformers 5: trainer.py; TRL 0.29:
# dpo_trainer.py), and the loop around it, which a PPO writes anew (FreedomIntelligence/HuatuoGPT-o1:
# ppo_trainer_medo1.py). A class that calls the library's in its own has the library's loss.
_LOSSES = ("compute_loss", "get_batch_loss_metrics", "training_step", "_inner_training_loop")
_LOOP = "train"
_LOOPS = ("_inner_training_loop", _LOOP)
_LIBRARIES = ("trl", "transformers", "unsloth")

# Trainers that repositories keep a copy of: the digest of what makes their loss (see ``shape``) -> the family that
# describes them. The methods are those that make the model's batch, its loss and what is beside it.
_METHODS = (
    *("__init__", *_LOSSES),
    *("concatenated_inputs", "concatenated_forward", "get_batch_logps", "simpo_loss"),
)
DESCRIBED = {
    "32d3444a9056ba74": "simpo",  # princeton-nlp/SimPO at 1b3e8f3: scripts/simpo_trainer.py, SimPOTrainer
}
_WORD = re.compile(r"[A-Za-z_]\w*")

_modules: dict[tuple[str, int, int], Module | None] = {}  # while the files stay as they are
_MOST_KEPT = 64


class Module(NamedTuple):
    """A module's classes, its imported names -> (the module that each is from, its name there), and its functions that
    are registered by a decorator -> the names of their decorators."""

    path: str
    text: str
    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, str]]
    registered: dict[str, tuple[str, ...]]


def module(path: str) -> Module | None:
    """A file of Python; None where it cannot be read as one. Raises OutOfWork."""
    from memlint.documents import load

    try:
        status = os.stat(path)
        key = (path, status.st_mtime_ns, status.st_size)
        if key not in _modules:
            if len(_modules) >= _MOST_KEPT:
                del _modules[next(iter(_modules))]
            _modules[key] = read(path, load.read_text(path) if status.st_size <= MAX_BYTES else "")
    except (OSError, load.Unreadable):
        return None
    return _modules[key]


def read(path: str, text: str) -> Module | None:
    """A text of Python as a module; None where it is none. Raises OutOfWork."""
    tree = Reading().parse(path, text)
    if tree is None:
        return None
    classes: dict[str, ast.ClassDef] = {}
    imported: dict[str, tuple[str, str]] = {}
    registered: dict[str, tuple[str, ...]] = {}
    for node in _statements(tree):
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            registered[node.name] = tuple(map(_decorator, node.decorator_list))
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            imported.update({alias.asname or alias.name: (source, alias.name) for alias in node.names})
        elif isinstance(node, ast.Import):
            imported.update({alias.asname or alias.name: (alias.name, "") for alias in node.names})
    return Module(path, text, classes, imported, registered)


def _decorator(node: ast.expr) -> str:
    """The last name of a decorator, called or not."""
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, outer ones first, and what else holds some (handlers, cases)."""
    waiting: deque[ast.AST] = deque(tree.body)
    while waiting:
        node = waiting.popleft()
        yield node
        for held in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, held, None)
            if isinstance(inner, list):
                waiting.extend(inner)


def _file_of(source: str, beside: str) -> str | None:
    """The file of a module of the repository; None for any other one."""
    level = len(source) - len(source.lstrip("."))
    name = source[level:].replace(".", "/")
    if level:
        root = files.repository_root(os.path.dirname(beside) or os.curdir)
        folder = os.path.join(os.path.dirname(beside), *(level - 1) * (os.pardir,))
        paths = (os.path.normpath(os.path.join(folder, path)) for path in (name + ".py", f"{name}/__init__.py"))
        return next((path for path in paths if os.path.isfile(path) and files.inside(path, root)), None)
    return companions.find(name + ".py", beside) or companions.find(f"{name}/__init__.py", beside)


def imported(source: str, beside: str) -> tuple[str, str] | None:
    """(path, text) of a module of the repository, as a file of it imports that; None for any other one."""
    path = _file_of(source, beside) if source.strip(".") else None
    found = module(path) if path is not None else None
    return None if found is None else (found.path, found.text)


def registers(path: str, name: str, decorator: str, library: str) -> str:
    """The file of a program's repository in which a function ``name`` is registered by a decorator of a library's, the
    program itself among them; "" where none is. A copy of the library in the repository is the library's.

    Only what the program imports is looked into, as only that is registered when it runs. Raises OutOfWork."""
    for one in _with_imports(path, MAX_REGISTERED, library):
        if any(one.imported.get(word, ("", word))[1] == decorator for word in one.registered.get(name, ())):
            return one.path
    return ""


def matches(path: str, pattern: re.Pattern[str]) -> bool:
    """Whether the text of a program, or of a module of its repository that it imports, has a match."""
    return any(pattern.search(one.text) is not None for one in _with_imports(path))


def goes_backward(path: str) -> bool:
    """Whether a program, or a module of its repository that it imports, has a backward pass and a step behind it."""
    for one in _with_imports(path):
        at = one.text.find(".backward(")
        if at >= 0 and one.text.find(".step(", at) >= 0:
            return True
    return False


def words(path: str) -> frozenset[str]:
    """The names in a program and in the modules of its repository that it imports."""
    return frozenset(word for one in _with_imports(path) for word in _WORD.findall(one.text))


# What a program has in it that trains: a backward pass, an optimizer, or somebody's trainer.
_TRAINING = re.compile(r"backward|[Oo]ptim|[Tt]rainer|\.fit\(")
# Packages that compute, read and report, and train nothing unless they are asked to by one of these words.
_TOOLS = frozenset(
    (
        *("torch", "transformers", "accelerate", "datasets", "tokenizers", "sentencepiece", "tiktoken", "safetensors"),
        *("huggingface_hub", "numpy", "pandas", "scipy", "sklearn", "tqdm", "requests", "vllm", "openai", "wandb"),
        *("matplotlib", "PIL", "yaml", "regex", "filelock", "fire", "nltk", "pyarrow", "rustbpe", "jsonlines"),
    )
)


def may_train(path: str) -> bool:
    """Whether a program may train: it, or a module of its repository that it imports, speaks of that, or takes in a
    package that may train of itself. False only where all of them were read. Raises OutOfWork."""
    modules = list(_with_imports(path))
    if not modules or len(modules) >= MAX_MODULES:
        return True
    for one in modules:
        if _TRAINING.search(one.text) is not None:
            return True
        for source, _ in one.imported.values():
            package = source.partition(".")[0]
            if not package or package in _TOOLS or package in sys.stdlib_module_names:
                continue
            file = _file_of(source, one.path)
            if file is None or module(file) is None:
                return True
    return False


def _with_imports(path: str, most: int = MAX_MODULES, without: str = "") -> Iterator[Module]:
    """A program and the modules of its repository that it imports, nearest first; those of one package left out."""
    waiting, seen = [path], {path}
    while waiting and len(seen) <= most:
        found = module(waiting.pop(0))
        if found is None:
            continue
        yield found
        for source in dict.fromkeys(_sources(found)):
            file = None if without and source.partition(".")[0] == without else _file_of(source, found.path)
            if file is not None and file not in seen and len(seen) < most:
                seen.add(file)
                waiting.append(file)


def _sources(of: Module) -> Iterator[str]:
    """What a module imports: the module itself, and where a package's names are asked for, the modules of that name
    that it may have."""
    for source, name in of.imported.values():
        yield source
        if name and name != "*":
            yield f"{source}{name}" if source.endswith(".") else f"{source}.{name}"


class Scores(NamedTuple):
    """A loss of one number a row: rows of a sample, and forward passes that they are spread over."""

    sequences: int = 1
    passes: int = 1


class Loss(NamedTuple):
    """family: that describes a trainer of a repository's own, "" where none does; why: its loss is not its library's,
    and nobody describes it, "" else; scores: what it is where the model is one that scores rows, and nothing else."""

    family: str = ""
    why: str = ""
    scores: Scores | None = None


def own_loss(path: str, name: str) -> Loss:
    """What is known of the loss of a trainer that a program calls ``name``; nothing where it is its library's, or where
    that cannot be told. Raises OutOfWork.

    path  the program's file
    """
    at, called = module(path), name
    for _ in range(MAX_HOPS):
        if at is None:
            return Loss()
        made = at.classes.get(called)
        if made is not None:
            method = _loss_of(made)
            if method and (family := DESCRIBED.get(shape(made), "")):
                return Loss(family)
            if method:
                what = "a loop" if method in _LOOPS else "a loss"
                why = f"{name} has {what} of its own ({os.path.basename(at.path)}: {called}.{method})"
                if method not in _LOOPS or _has_gradients(made):
                    why = OnTop(why)
                return Loss("", why, scores(made, at.text) if method == "compute_loss" else None)
            bases = [base.id for base in made.bases if isinstance(base, ast.Name) and base.id.endswith("Trainer")]
            if not bases or bases[-1] == called:
                return Loss()
            called = bases[-1]
        elif called in at.imported:
            source, called = at.imported[called]
            if source.partition(".")[0] in _LIBRARIES:
                return Loss()
            file = _file_of(source, at.path)
            if file is None:
                return Loss("", f"{name} is of {source}, whose trainers are not described")
            at = None if file is None else module(file)
        else:
            return Loss()
    return Loss()


# The two answers of a pair, as the columns of programs call them that train a reward model with transformers' Trainer.
_ANSWERS = (("input_ids_j", "input_ids_k"), ("input_ids_chosen", "input_ids_rejected"))
# What such a loss calls beside its model: it picks, compares and averages one number a row.
_OF_SCORES = frozenset(
    (
        *("logsigmoid", "sigmoid", "log", "mean", "sum", "float", "to", "tensor", "size", "arange", "view", "squeeze"),
        *("flatten", "pop", "get", "mse_loss", "MSELoss", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits"),
        *("cross_entropy", "CrossEntropyLoss"),
    )
)
_INPUTS = frozenset((None, "input_ids", "attention_mask", "token_type_ids"))  # None: all of them, by ``**inputs``
_NOT_PLAIN = (ast.For, ast.While, ast.With, ast.Try, ast.Lambda, ast.ListComp, ast.GeneratorExp)


def scores(made: ast.ClassDef, text: str) -> Scores | None:
    """A trainer's loss that runs its model over the inputs and makes a number of one score a row; None where it does
    anything else.

    That of a pair, ``-logsigmoid(chosen - rejected).mean()``, many programs have from TRL's first examples
    (examples/stack_llama/scripts/reward_modeling.py): with one pass for each answer, or with one of rows whose collator
    alternates them.

    text  of its module
    """
    method = next(node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "compute_loss")
    parts = list(ast.walk(method))
    if len(method.args.args) < 3 or any(isinstance(part, _NOT_PLAIN) for part in parts):
        return None
    model = method.args.args[1].arg
    calls = [part for part in parts if isinstance(part, ast.Call)]
    passes = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == model]
    kept = [part for part in parts if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call)]
    named = {one.id for part in kept for one in part.targets if isinstance(one, ast.Name)}  # loss_fct = MSELoss()
    known = {model, *named}
    others = [_called(call) for call in calls if not (isinstance(call.func, ast.Name) and call.func.id in known)]
    of_text = all(not call.args and {word.arg for word in call.keywords} <= _INPUTS for call in passes)
    if not of_text or not _OF_SCORES.issuperset(others):
        return None
    pair = next((pair for pair in _ANSWERS if all(name in text for name in pair)), None)
    if pair is None:
        return Scores() if len(passes) == 1 and "logsigmoid" not in others else None
    if "logsigmoid" not in others:
        return None
    apart = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    if len(passes) == 2 and apart.issuperset(pair):
        return Scores(2, 2)
    return Scores(2) if len(passes) == 1 and "arange" in others else None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def shape(made: ast.ClassDef) -> str:
    """A digest of what the methods of a trainer that make its loss do: names, values and structure, without layout,
    comments and docstrings, and the same in every release of Python."""
    said = hashlib.sha256()
    for method in sorted(
        (node for node in made.body if isinstance(node, ast.FunctionDef) and node.name in _METHODS),
        key=lambda node: node.name,
    ):
        parts = list(ast.walk(method))
        texts = [part for part in parts if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
        left_out = {id(part) for text in texts for part in (text, text.value)}  # docstrings
        for node in parts:
            if id(node) in left_out:
                continue
            words = [type(node).__name__, *(getattr(node, field, "") for field in ("id", "attr", "arg", "name"))]
            words += [_constant(node.value)] if isinstance(node, ast.Constant) else []
            said.update("\0".join(str(word) for word in words).encode())
    return said.hexdigest()[:16]


def _constant(value: object) -> str:
    """A value as text; a number of more digits than Python spells out as the kind that it is."""
    try:
        return repr(value)
    except ValueError:
        return type(value).__name__


def made_out_of_sight(path: str) -> str:
    """The name of a trainer that a program, or a module of its repository that it imports, makes of a class of the
    repository's own; "" where there is none, or a library's is made, too. Raises OutOfWork.

    path  the program's file
    """
    modules = list(_with_imports(path))
    own = {name for one in modules for name, made in one.classes.items() if _is_a_trainer(made)}
    if not own:
        return ""
    called = {word for one in modules for word in _CALLED.findall(one.text)}
    made = {word for word in called if word in own or word.endswith("Trainer")}
    return min(made) if made and made <= own else ""


_CALLED = re.compile(r"(?<!class )\b([A-Z]\w*)\(")


def _is_a_trainer(made: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id.endswith("Trainer") for base in made.bases)


def _has_gradients(made: ast.ClassDef) -> bool:
    """Whether a class that has a loop of its own asks for a backward pass: some train without (MeZO), or update each
    parameter as its gradient is made (LOMO)."""
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(made))


# What the loss of a model is taken with: one pass, a choice of what is returned, and names.
_OF_ITS_OWN_LOSS: tuple[type[ast.AST], ...] = (
    *(ast.Assign, ast.Return, ast.If, ast.IfExp, ast.Expr, ast.Call, ast.keyword),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.expr_context),
)


def _takes_the_models_loss(method: ast.FunctionDef) -> bool:
    """Whether ``compute_loss`` runs its model once, over labels as well, and returns the loss that it gives: what
    transformers' own does."""
    parts = [part for statement in method.body for part in ast.walk(statement)]
    if len(method.args.args) < 3 or not all(isinstance(part, _OF_ITS_OWN_LOSS) for part in parts):
        return False
    calls = [part for part in parts if isinstance(part, ast.Call)]
    passes = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == method.args.args[1].arg]
    if len(passes) != 1 or any(_called(call) != "isinstance" for call in calls if call not in passes):
        return False
    given = {word.arg for word in passes[0].keywords}
    if not given & {None, "labels"}:
        return False
    taken: set[object] = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    places = [part.slice for part in parts if isinstance(part, ast.Subscript)]
    taken |= {place.value for place in places if isinstance(place, ast.Constant)}
    return bool(taken & {"loss", 0})


def _loss_of(made: ast.ClassDef) -> str:
    """The method by which a class makes a loss of its own, or a loop; "" where it has none, or asks its base for it."""
    for method in made.body:
        if not isinstance(method, ast.FunctionDef) or method.name not in (*_LOSSES, _LOOP):
            continue
        if method.name == "compute_loss" and _takes_the_models_loss(method):
            continue
        if not _asks_its_base(method):
            return method.name
    return ""


def _asks_its_base(method: ast.FunctionDef) -> bool:
    """Whether a method calls another's of its name; a loop, where models have that method too, its base's."""
    asked = [node.value for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr == method.name]
    if method.name == _LOOP:
        return any(_is_a_base(one) for one in asked)
    return any(not isinstance(one, ast.Name) or one.id != "self" for one in asked)


def _is_a_base(node: ast.expr) -> bool:
    """Whether a value is ``super()``, or a class by its name."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and (called.id == "super" or (called is node and called.id[:1].isupper()))
