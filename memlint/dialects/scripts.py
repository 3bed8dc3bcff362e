"""What a training script itself says: the model, the adapters, the quantisation and the trainer that its code makes.

A command's options are one half of a run; the script that it starts is the other. Where that script is in the
repository, it is followed (:mod:`memlint.documents.programs.program`) with the options of the command, and what it
makes is said in the keys of the family whose trainer it makes. A script by itself is a run as well, where its own
values are enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memlint.dialects import companions, own_code
from memlint.dialects import unsloth_calls as unsloth
from memlint.dialects.stated import PATCHED, PLACED_WHOLE
from memlint.documents.node import Command, Document, Node, Span, Unresolved
from memlint.documents.programs import patches
from memlint.documents.programs.call_nodes import TOKENIZERS, argument, name_of, target_of, values_of
from memlint.documents.programs.state import PLACED, WORDS
from memlint.facts.spec import OnTop
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents import notebook
    from memlint.documents.programs.program import Program
    from memlint.documents.programs.state import Repository

# Trainers, as programs call them: the family whose keys their arguments are.
FAMILIES = {
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer", "UnslothTrainer"), "hf-trainer"),
    **dict.fromkeys(("SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer", "GRPOTrainer"), "trl"),
    **dict.fromkeys(("RLOOTrainer", "RewardTrainer", "PPOTrainer", "GKDTrainer", "OnlineDPOTrainer"), "trl"),
}
# What their arguments are made of (transformers 5: training_args.py; TRL 1.16: trl/trainer/*_config.py).
_ARGUMENTS = re.compile(
    r"(?:Seq2Seq|Unsloth)?TrainingArguments|(?:SFT|DPO|KTO|ORPO|CPO|GRPO|RLOO|Reward|PPO|GKD)Config"
)
_MODEL = re.compile(
    r"(?:Auto\w*Model\w*|\w+For(?:CausalLM|SequenceClassification|ConditionalGeneration)|\w+LMHeadModel)"
)
_AUTO_CLASSES = tuple(
    f"AutoModelFor{task}"
    for task in (
        *("CausalLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "Seq2SeqLM"),
    )
)
# Keys of calls, in the words of the families' keys.
_OF_MODEL = {
    **{name: name for name in ("attn_implementation", "load_in_4bit", "load_in_8bit")},
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "use_flash_attention_2": "use_flash_attn",  # transformers 4.34 to 4.57
}
_OF_QUANTISATION = {
    **{name: name for name in ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_quant_storage")},
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
_OF_ADAPTERS = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
}
# peft/utils/constants.py: modules by the type of the model.
PEFTS_TARGETS = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
# What programs call a tokenizer, and the keys that say how long a sample may be.
_TOKENIZES = re.compile(
    rf"(?:^|[._])(?:{'|'.join(TOKENIZERS)})(?:\.(?:__call__|encode|encode_plus|batch_encode_plus))?$"
)
_LENGTHS = ("max_seq_length", "max_length", "model_max_length", "block_size", "max_prompt_length")
_PEFT = re.compile(r"PeftModel\w*\.from_pretrained$")
MAX_WRAPS = 8  # of what is put around a model, one around the other
_OF_TRAINER = ("max_seq_length", "packing")  # SFTTrainer, before TRL 0.20
# Libraries that put other things beside the weights, or other code in a model's place, than any option says.
_OTHERS = {
    "pyreft": "its interventions",
    "adapters": "its adapters",
    "opendelta": "its adapters",
    "loralib": "its layers",
    "tensor_parallel": "its shards of the model",
}
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(" + "|".join(_OTHERS) + r")\b", re.MULTILINE)
_PART = re.compile(r"(?=\w*model)\w+(?:\.\w+)+")  # an attribute of a model
_MAKES = re.compile(r"Trainer\w*[()]")
_LOOPS = re.compile(r"\.backward\(")
_LIBRARIES = ("trl", "transformers", "unsloth")
# Of a card that may not do arithmetic in bfloat16; all since 2020 can.
_HAS_BFLOAT16 = re.compile(r"(not +)?(?:\w+\.)*is_bf(?:loat)?16_supported\(\)")


# What scripts call the function that lists every linear layer (artidoro/qlora: qlora.py, find_all_linear_names).
_ALL_LINEAR = re.compile(r"find_all_linear\w*\(")


class Script(NamedTuple):
    """family: whose trainer it makes; root: what it says, in that family's keys; document: its text;
    unknown: why what it makes is not known, "" else; options: whether that is for its options; declares: whether it
    declares its options itself, which then mean what it makes of them, and nothing else; changed: keys of the root that
    it sets whatever the command says."""

    family: str
    root: Node
    document: Document
    unknown: str = ""
    options: bool = False
    declares: bool = False
    changed: frozenset[str] = frozenset()


def started(command: Command, document: Document, options: Node) -> Script | None:
    """The script that a command of ``document`` starts, with these options; None where there is none to be had, or it
    makes no trainer that is known. Raises OutOfWork."""
    path = file_of(command, document)
    if path is None:
        return None
    given = options.value if isinstance(options.value, dict) else {}
    return read(path, _text(path), {**given, **_words_of(command)}, is_started=True)


def _words_of(command: Command) -> dict[str, Node]:
    """What a program finds in ``sys.argv``, and the words that argparse puts in their places."""
    words = [word for word in command.words if not isinstance(word.value, dict)]
    whole = {WORDS: Node(words, command.span)} if words and len(words) == len(command.words) else {}
    return {**whole, PLACED: Node(list(command.arguments), command.span)} if command.arguments else whole


def file_of(command: Command, document: Document) -> str | None:
    """The program that a command of ``document`` starts, where that is a file of the repository."""
    program = command.program.value
    if not isinstance(program, str):
        return None
    if program.endswith(".py"):
        return companions.find(program, document.path) or companions.elsewhere(program, document.path)
    module = program.replace(".", "/")
    names = (f"{module}.py", f"{module}/__main__.py")  # a package is started by what it calls so
    found = (companions.find(name, document.path) or companions.elsewhere(name, document.path) for name in names)
    return next((path for path in found if path is not None), None)


def _text(path: str) -> str:
    from memlint.documents import load

    try:
        return load.read_text(path)
    except load.Unreadable:
        return ""


def read(path: str, text: str, options: Mapping[str, Node], is_started: bool = False) -> Script | None:
    """A script, or a notebook, that is started with these options; None where it makes no trainer that is known. Raises
    OutOfWork.

    is_started  whether a command starts it: then a module of its repository may make the trainer, and what it is not
                told has its default
    """
    for words, reader in _BY_LIBRARY:
        by_library = reader(path, text, options, is_started) if all(word in text for word in words) else None
        if by_library is not None:
            return by_library
    if _MAKES.search(text) is None and not (is_started and own_code.matches(path, _MAKES)):
        return _own_loop(path, text, options, is_started)
    from memlint.documents.programs import program

    cells, repository = _read_with(path, text)
    found = program.read(path, text, options, cells, repository)
    other = _IMPORT.search(text if cells is None else cells.text)
    if other is not None:
        why = f"{path} uses {other[1]}: {_OTHERS[other[1]]} are not described"
        return Script("hf-trainer", Node({}, Span(path, 1, 1, 1, 1)), found.document, why)
    trainer = next((call for call in reversed(found.calls) if _is_a_library_s(call, found)), None)
    if trainer is None:
        return _own_loop(path, text, options, is_started) or _of_its_own(found, path, is_started)
    made = values_of(trainer)
    before = found.calls[: found.calls.index(trainer)]
    said, resumed = _said(trainer, before, path)
    placed = _placed_whole(before)
    if placed is not None:
        said[PLACED_WHOLE] = Node(True, placed.span, None, PLACED_WHOLE)
    said.update(_patched(before))
    changed = _changed(trainer, found)
    said.update(changed)
    own = made.get("_class_")
    family, why = FAMILIES[name_of(trainer)], _doubt(found, path, said)
    loss = own_code.own_loss(path, str(own.value)) if own is not None else own_code.Loss()
    if loss.family:
        return Script(loss.family, Node({}, Span(path, 1, 1, 1, 1)), found.document)
    auto = said.get("auto_class")
    if loss.scores is not None and auto is not None and auto.value == "AutoModelForSequenceClassification":
        rows = {"sequences_per_sample": loss.scores.sequences, "forward_passes": loss.scores.passes}
        said.update({key: Node(value, trainer.span, None, key) for key, value in rows.items()})
        loss = own_code.Loss()
    why = why or loss.why or _own_model(made.get("model"), path) or resumed
    if any(module.partition(".")[0] == "unsloth" for module in found.imported.values()):
        family, why = (
            "hf-trainer",
            why or unsloth.doubt(path, name_of(trainer), [values_of(call) for call in before], said),
        )
    if family != "hf-trainer":
        said.pop(FILLED, None)
    without = found.parses and not options and not is_started
    if without:
        why = f"{path} reads options, and none are given: check the command that starts it"
    root = Node(said, trainer.span)
    return Script(family, root, found.document, why, without, found.declares, frozenset(changed))


def _said(trainer: Node, before: Sequence[Node], path: str) -> tuple[dict[str, Node], str]:
    """What a trainer is made with and the calls before it, in the keys of its family; and what is not known of adapters
    that are loaded."""
    made = values_of(trainer)
    said = {"trainer_class": Node(name_of(trainer), trainer.span, None, "trainer_class")}
    resumed = ""
    for call in before:
        said.update(said_by(call))
        if _PEFT.search(target_of(call)):
            more, resumed = _resumed(call, path)
            said.update(more)
        elif name_of(call) == "merge_and_unload":  # what stood beside the weights is in them
            said = {name: node for name, node in said.items() if name not in (*_OF_ADAPTERS.values(), "use_peft")}
            resumed = ""
    said.update(length(before, said))
    for name in _OF_TRAINER:
        if name in made:
            said[name] = under(name, made[name])
    model = argument(trainer, "model", 0)
    if model is not None and isinstance(model.value, str):
        said.setdefault("model_name_or_path", under("model_name_or_path", model))
        quantised = made.get("quantization_config")  # TRL 1: trainer/sft_trainer.py, for a model that it loads itself
        if quantised is not None:
            said.update(_renamed(quantised, _OF_QUANTISATION))
    return {name: node for name, node in said.items() if not _is_absent(node)}, resumed


def _changed(trainer: Node, found: Program) -> dict[str, Node]:
    """Fields of a trainer's arguments that were parsed, and set by the program thereafter."""
    given = argument(trainer, "args", 1)
    if given is None or not _ARGUMENTS.fullmatch(name_of(given)):
        return {}
    return {name: under(name, node) for name, node in values_of(given).items() if name in found.changed}


def _patched(before: Sequence[Node]) -> dict[str, Node]:
    """The classes of attention that a program gives a pass of its own -> the kernel that it calls."""
    found: dict[str, Node] = {}
    for call in before:
        if name_of(call) == patches.TARGET:
            values = values_of(call)
            found[str(values["name"].value)] = values["kernel"]
    place = next(reversed(found.values())).span if found else None
    return {} if place is None else {PATCHED: Node(found, place, None, PATCHED)}


_NOT_ON_A_CARD = (None, "", "cpu", "meta", "disk")


def _placed_whole(before: Sequence[Node]) -> Node | None:
    """The call that puts all of a model on a card before the arguments of its trainer are made; None where none does,
    or where they are parsed."""
    placed = None
    for call in before:
        if _ARGUMENTS.fullmatch(name_of(call)):
            return placed
        place = values_of(call).get("device_map") if is_a_model(call) else None
        if place is not None and (isinstance(place.value, (dict, Unresolved)) or place.value not in _NOT_ON_A_CARD):
            placed = call
    return None


def _read_with(path: str, text: str) -> tuple[notebook.Program | None, Repository]:
    """The cells of a notebook, and what a program may have of its repository."""
    from memlint.documents import notebook
    from memlint.documents.programs.state import Repository

    cells = notebook.Program(path, text) if path.lower().endswith(notebook.SUFFIX) else None
    return cells, Repository(lambda name, beside: companions.read(name, beside)[0], own_code.imported)


def _of_ultralytics(path: str, text: str, options: Mapping[str, Node], is_started: bool) -> Script | None:
    """A program that trains by the package ultralytics. Raises OutOfWork."""
    from memlint.dialects import yolo_scripts
    from memlint.documents.programs import program

    cells, repository = _read_with(path, text)
    return yolo_scripts.script(program.read(path, text, options, cells, repository), path, is_started or bool(options))


def _of_detectron2(path: str, text: str, options: Mapping[str, Node], is_started: bool) -> Script | None:
    """A program that trains by detectron2's trainer, in one process: ``launch`` starts several. Raises OutOfWork."""
    if "launch(" in text:
        return None
    from memlint.dialects import detectron2_scripts

    cells, repository = _read_with(path, text)
    return detectron2_scripts.script(path, text, options, cells, repository, is_started)


# Libraries whose programs are told by what they make: words of such a program, and who reads it.
def _of_nanogpt(path: str, text: str, options: Mapping[str, Node], is_started: bool) -> Script | None:
    """nanoGPT's train.py and its forks': its own assignments are the run, with what the command says over them."""
    place = Span(path, 1, 1, 1, 1)
    document = Document(path, "python", text, Node({}, place), (), (), {path: text})
    return Script("nanogpt", document.root, document) if is_started else None


_BY_LIBRARY: tuple[tuple[tuple[str, ...], Callable[[str, str, Mapping[str, Node], bool], Script | None]], ...] = (
    (("ultralytics", "YOLO("), _of_ultralytics),
    (("detectron2", "DefaultTrainer"), _of_detectron2),
    (("exec(open(", "configurator", ".backward()", "gradient_accumulation_steps"), _of_nanogpt),
)


def _own_loop(path: str, text: str, options: Mapping[str, Node], is_started: bool) -> Script | None:
    """A program that trains a library's model in a loop of its own. Raises OutOfWork."""
    if _LOOPS.search(text) is None and not (is_started and own_code.matches(path, _LOOPS)):
        return None
    from memlint.dialects import loop_scripts, own_loops
    from memlint.documents.programs import training_loops

    cells, repository = _read_with(path, text)
    code = text if cells is None else cells.text
    if not options and not is_started and not training_loops.does_something(path, code):
        return None
    found = training_loops.read(path, text, options, cells, repository)
    script = loop_scripts.script(found, path) or own_loops.script(found, path, code)
    if script is None or options or is_started or not found.program.parses:
        return script
    model = values_of(script.root).get("model_name_or_path")
    is_bounded = not script.unknown or isinstance(script.unknown, OnTop)
    if is_bounded and model is not None and isinstance(model.value, str) and model.value:
        return script  # its options have defaults
    why = f"{path} reads options, and none are given: check the command that starts it"
    return script._replace(root=Node({}, script.root.span), unknown=why, options=True)


def is_a_model(call: Node | None) -> bool:
    """Whether a call makes a model of transformers', also one that sentence-transformers loads."""
    if is_an_embedder(call):
        return True
    if call is None or name_of(call) not in ("from_pretrained", "from_config", "_from_config"):
        return False
    return _MODEL.search(target_of(call)) is not None and _PEFT.search(target_of(call)) is None


def is_an_embedder(call: Node | None) -> bool:
    """Whether a call loads a model as sentence-transformers does (5.1: SentenceTransformer.py): by its name, with
    ``AutoModel.from_pretrained``, and modules without weights to speak of around it."""
    return name_of(call) == "SentenceTransformer" and isinstance(
        getattr(argument(call, "model_name_or_path", 0), "value", None), str
    )


def _of_its_own(program: Program, path: str, is_started: bool) -> Script | None:
    """A script that makes a trainer of its repository's own, where that is described, or has a loss that nobody
    describes; None for any other. Raises OutOfWork."""
    made = next((call for call in reversed(program.calls) if name_of(call).endswith("Trainer")), None)
    name = "" if made is None else str(values_of(made).get("_class_", values_of(made)["_target_"]).value)
    if not name and is_started:
        name = own_code.made_out_of_sight(path)
    found = own_code.own_loss(path, name.partition(".")[0]) if name else own_code.Loss()
    if not found.family and not found.why:
        return None
    return Script(found.family or "hf-trainer", Node({}, Span(path, 1, 1, 1, 1)), program.document, found.why)


def _doubt(program: Program, path: str, said: Mapping[str, Node]) -> str:
    """Why what is beside the weights is not known."""
    for name, key in (
        ("LoraConfig", "use_peft"),
        ("get_peft_model", "use_peft"),
        ("BitsAndBytesConfig", "load_in_4bit"),
    ):
        if name in program.doubts and key not in said:
            return f"{path}: whether it calls {name} depends on line {program.doubts[name]}, which is not known"
    for call in program.calls:
        adapter = name_of(_adapter(call, program))
        if adapter.endswith("Config") and adapter != "LoraConfig":  # what else makes one may make LoRA's
            return f"{path}: line {call.span.line}: {name_of(call)} is given {adapter}, which is not described"
        given = argument(call, "model", 0) if name_of(call) == "get_peft_model" else None
        if given is not None and isinstance(given.value, Unresolved) and _PART.fullmatch(given.value.text):
            what = (
                f"adapters are put into {given.value.text}, a part of the model: whether the rest trains is not known"
            )
            return OnTop(f"{path}: line {call.span.line}: {what}")  # PEFT freezes what it is given, and nothing else
    return ""


def _adapter(call: Node, program: Program) -> Node | None:
    """The config of PEFT's that a call is given, which says what adapters a model gets and freezes all else of it."""
    if name_of(call) == "get_peft_model":
        return argument(call, "peft_config", 1)
    return argument(call, "peft_config", -1) if _is_a_library_s(call, program) else None


def _is_absent(node: Node) -> bool:
    """Whether a value is that of an option which nobody gave, and whose default is the library's."""
    return isinstance(node.value, Unresolved) and node.value.reason.startswith("there is no ")


def _is_a_library_s(call: Node, program: Program) -> bool:
    """Whether a call makes one of the trainers, and not what another project calls so."""
    if name_of(call) not in FAMILIES:
        return False
    first = str(values_of(call)["_target_"].value).partition(".")[0]
    return program.imported.get(first, "").partition(".")[0] in _LIBRARIES


def said_by(call: Node) -> dict[str, Node]:
    """What one call says, in the families' keys."""
    values, name, target = values_of(call), name_of(call), target_of(call)
    if unsloth.is_call(target):
        return {key: under(key, node) for key, node in unsloth.said(call, name, values).items()}
    if name == "from_pretrained" and _MODEL.search(target):
        return dict(_of_model(call))
    if name == "LoraConfig":
        switch = Node(True, call.span, None, "use_peft")
        said = _renamed(call, _OF_ADAPTERS)
        targets = said.get("lora_target_modules")
        if targets is not None and isinstance(targets.value, Unresolved) and PEFTS_TARGETS in targets.value.text:
            del said["lora_target_modules"]  # what PEFT takes of such a model unless it is told
        return {**said, "use_peft": switch}
    if _ARGUMENTS.fullmatch(name):
        said = {key: under(key, node) for key, node in values.items() if not key.startswith("_")}
        loads = said.pop("model_init_kwargs", None)  # TRL's trainers hand them to from_pretrained
        return {**said, **(dict(_of_loading(loads)) if loads is not None else {})}
    if name in ("prepare_model_for_kbit_training", "prepare_model_for_int8_training"):
        checkpointed = values.get("use_gradient_checkpointing", Node(True, call.span))
        return {
            "prepare_model_for_kbit_training": Node(True, call.span, None, "prepare_model_for_kbit_training"),
            **({"gradient_checkpointing": under("gradient_checkpointing", checkpointed)} if checkpointed.value else {}),
        }
    if name == "gradient_checkpointing_enable":
        return {"gradient_checkpointing": Node(True, call.span, None, "gradient_checkpointing")}
    return {}


def _own_model(model: Node | None, path: str) -> str:
    """Why the model that a trainer is given is not one that a library loads: it is of a class of the program's."""
    for _ in range(MAX_WRAPS):
        if model is None or not isinstance(model.value, dict):
            return ""
        own = values_of(model).get("_class_")
        if own is not None:
            from memlint.dialects import joined

            known = own.value in joined.CLASSES
            return "" if known else f"{path} trains a model of a class of its own, {own.value}"
        given = values_of(model).get("_args_", values_of(model).get("model"))
        model = given.value[0] if given is not None and isinstance(given.value, list) and given.value else given
    return ""


def length(calls: Sequence[Node], said: Mapping[str, Node]) -> dict[str, Node]:
    """The longest sample that a program's own call of its tokenizer makes, where no key says it."""
    if any(key in said for key in _LENGTHS):
        return {}
    cut = [
        limit
        for call in calls
        if _TOKENIZES.search(target_of(call)) and _cuts(values := values_of(call))
        for limit in [values.get("max_length")]
        if limit is not None and type(limit.value) is int
    ]
    longest = max(cut, key=lambda limit: int(str(limit.value)), default=None)
    if longest is None:
        return {}
    cuts = [values for call in calls if _TOKENIZES.search(target_of(call)) and _cuts(values := values_of(call))]
    full = all("padding" in values and values["padding"].value == "max_length" for values in cuts)
    filled = {FILLED: Node(True, longest.span, None, FILLED)} if full else {}
    return {"max_seq_length": under("max_seq_length", longest), **filled}


FILLED = "pad_to_max_length"


def tokenizes(call: Node) -> bool:
    """Whether a call is of a tokenizer."""
    return _TOKENIZES.search(target_of(call)) is not None


def _cuts(values: Mapping[str, Node]) -> bool:
    """Whether a call of a tokenizer cuts at a length, or fills up to it."""
    truncates, pads = values.get("truncation"), values.get("padding")
    return bool(truncates is not None and truncates.value) or (pads is not None and pads.value == "max_length")


def _resumed(call: Node, path: str) -> tuple[dict[str, Node], str]:
    """What an adapter says that a program goes on with: (its keys, why it is not known)."""
    values = values_of(call)
    given = values.get("_args_")
    names = given.value if given is not None and isinstance(given.value, list) else []
    folder = values.get("model_id", names[1] if len(names) > 1 else None)
    name = folder.value if folder is not None and isinstance(folder.value, str) else ""
    trains = values.get("is_trainable")
    if trains is None or trains.value is False:
        return {}, f"{path} loads the adapter {name} beside the weights, and does not train it".replace("  ", " ")
    document = companions.read(name.rstrip("/") + "/adapter_config.json", path)[0] if name else None
    if document is None:
        # PEFT freezes what stands under it (peft 0.21: peft_model.py, from_pretrained): that is a bound
        why = OnTop(f"{path}: the adapter {name} that training goes on with is not there to state its rank")
        return {"use_peft": Node(True, call.span, None, "use_peft")}, why
    config = document.root.value if isinstance(document.root.value, dict) else {}
    switch = Node(True, call.span, None, "use_peft")
    return {
        **{key: under(key, config[name]) for name, key in _OF_ADAPTERS.items() if name in config},
        "use_peft": switch,
    }, ""


def _of_model(call: Node) -> Iterator[tuple[str, Node]]:
    values = values_of(call)
    given = values.get("_args_")
    first = values.get("pretrained_model_name_or_path")
    if given is not None and isinstance(given.value, list) and given.value:
        first = given.value[0]
    if first is not None and first.value is not None:
        yield "model_name_or_path", under("model_name_or_path", first)
    loader = target_of(call).split(".")[-2:][0]
    if loader in _AUTO_CLASSES:
        yield "auto_class", Node(loader, call.span, None, "auto_class")
        if "num_labels" in values:
            yield "num_labels", under("num_labels", values["num_labels"])
    yield from _of_loading(call)


def _of_loading(call: Node) -> Iterator[tuple[str, Node]]:
    """What ``from_pretrained`` is told of how it loads."""
    yield from _renamed(call, _OF_MODEL).items()
    quantised = values_of(call).get("quantization_config")
    if quantised is not None:
        yield from _renamed(quantised, _OF_QUANTISATION).items()


def _renamed(call: Node, names: Mapping[str, str]) -> dict[str, Node]:
    values = values_of(call)
    return {key: under(key, values[name]) for name, key in names.items() if name in values}


def under(key: str, node: Node) -> Node:
    """A value under a family's key; a dtype of torch's by its name. What a call makes is not known as one."""
    value = node.value
    if isinstance(value, dict) and "_target_" in value:
        value = Unresolved(f"what {target_of(node)} makes is only known when it runs", f"{target_of(node)}()")
    text = value.text if isinstance(value, Unresolved) else str(value)
    supported = _HAS_BFLOAT16.fullmatch(text)
    if supported is not None:
        value = supported[1] is None
    elif re.fullmatch(r"torch\.\w+", text):
        value = text.removeprefix("torch.")
    elif isinstance(value, Unresolved) and _ALL_LINEAR.match(text):
        value = "all-linear"
    return Node(value, node.span, node.key_span, key, node.via)
