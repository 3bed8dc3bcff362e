"""What a program with a training loop of its own says, in the keys of the family ``training-loop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from memlint.dialects import image_calls, loop_calls, turns
from memlint.dialects.loop_structure import flat
from memlint.dialects.made import (
    MAX_CHAIN,
    is_model,
    optimizer_of,
    own_class,
    root,
    root_number,
)
from memlint.documents.node import Node, Span, Unresolved
from memlint.documents.programs.call_nodes import argument, name_of, target_of, values_of
from memlint.documents.programs.turn import DOUBT, EITHER, FROZEN, HOLDS, ON, PART_OF, SET
from memlint.facts.spec import OnTop

if TYPE_CHECKING:
    from memlint.dialects.scripts import Script
    from memlint.documents.programs.program import Program
    from memlint.documents.programs.turn import Loop, Loops

FAMILY = "training-loop"
# What is left to others where a condition that is not known decides whether it is called.
_DOUBTS = {
    **dict.fromkeys(("get_peft_model", "LoraConfig"), "use_peft"),
    "BitsAndBytesConfig": "load_in_4bit",
    "prepare_model_for_kbit_training": "prepare_model_for_kbit_training",
    "gradient_checkpointing_enable": "gradient_checkpointing",
}
_DTYPES = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
# Wrappers and configs whose memory is not read from their calls.
_NOT_DESCRIBED = {
    "FullyShardedDataParallel": "how FSDP wraps the model is not read from the call",
    "FSDP": "how FSDP wraps the model is not read from the call",
    "fully_shard": "how FSDP2 wraps the model is not read from the call",
    "DataParallel": "DataParallel copies the model and gathers outputs on the first card",
    "add_adapter": "which adapters it adds is not described",
    "load_adapter": "which adapter it loads is not described",
    "FullyShardedDataParallelPlugin": "what it tells FSDP is not described",
    "DeepSpeedPlugin": "what it tells DeepSpeed is not described",
    "MegatronLMPlugin": "what it tells Megatron-LM is not described",
}
_TASKS = {
    "LMHeadModel": "CausalLM",
    "ForCausalLM": "CausalLM",
    "ForSequenceClassification": "SequenceClassification",
    "ForTokenClassification": "TokenClassification",
    "ForQuestionAnswering": "QuestionAnswering",
    "ForMaskedLM": "MaskedLM",
    "ForConditionalGeneration": "Seq2SeqLM",
    "ForSeq2SeqLM": "Seq2SeqLM",
}


def script(found: Loops, path: str) -> Script | None:
    """The run of a program that trains a library's model in a loop of its own; None for any other. Raises OutOfWork."""
    from memlint.dialects.scripts import Script

    program, why, line = found.program, "", 1
    first: tuple[turns.Turn, Script] | None = None
    for loop in found.loops:
        if not any(is_model(entry.callee) for entry in flat(loop.entries)):
            continue
        try:
            turn = turns.read(loop)
        except turns.Stop as stop:
            why, line = why or f"{path}: {stop}", loop.line
            continue
        if first is not None:
            if _is_another(first[0], turn) and not first[1].unknown:
                why = OnTop(f"{path}: {turn.batches.where} trains in another loop, whose memory may be more")
                return first[1]._replace(unknown=why)
            continue
        family, kind = FAMILY, Reader
        if image_calls.made(root(turn.model[0])) is not None:
            from memlint.dialects.image_programs import OfImages

            family, kind = image_calls.FAMILY, OfImages
        said, reason = kind(path, program, turn, loop).said()
        reason = reason or _doubt(program, path, said)
        first = turn, Script(family, Node(said, turn.place), program.document, reason, False, True)
    if first is not None:
        return first[1]
    if not why:
        return None
    return Script(FAMILY, Node({}, Span(path, line, 1, line, 1)), program.document, why, False, True)


def _is_another(one: turns.Turn, other: turns.Turn) -> bool:
    """Whether a second loop does something else, or with other batches."""
    same = one.statements == other.statements and root_number(one.model[0]) == root_number(other.model[0])
    return not same or root_number(_through(one.over)) != root_number(_through(other.over))


def _doubt(program: Program, path: str, said: Mapping[str, Node]) -> str:
    for name, line in program.doubts.items():
        key = _DOUBTS.get(name)
        if key is not None and key not in said:
            return f"{path}: whether it calls {name} depends on line {line}, which is not known"
        if name in _NOT_DESCRIBED:
            return f"{path}: whether it calls {name} depends on line {line}, which is not known"
    return ""


class Reader:
    """A program and the turn of its loop, on their way to a family's keys."""

    def __init__(self, path: str, program: Program, turn: turns.Turn, loop: Loop) -> None:
        self.path, self.program, self.turn, self.loop = path, program, turn, loop
        self.keys: dict[str, Node] = {}
        self.why = f"{path}: {turn.why}" if turn.why else ""
        if isinstance(turn.why, OnTop):
            self.why = OnTop(self.why)

    def put(self, key: str, node: Node | None, value: object = ...) -> None:
        from memlint.dialects.scripts import under

        if node is None:
            return
        if value is not ...:
            node = Node(value, node.span)  # type: ignore[arg-type]
        self.keys[key] = under(key, node)

    def stop(self, why: str, at: Span | Node) -> None:
        place = at if isinstance(at, Span) else at.span
        if not self.why or isinstance(self.why, OnTop):  # what is not known of the states is no bound of them
            self.why = f"{place.path}: line {place.line}: {why}"

    def said(self) -> tuple[dict[str, Node], str]:
        """The family's keys, and why the run is not known."""
        self.model()
        self.about_model()
        self.beside()
        self.optimizer()
        self.precision()
        self.batch()
        self.length()
        self.accumulation()
        self.gradients()
        if self.turn.statements:
            statements = [Node(statement, self.place) for statement in self.turn.statements]
            self.keys["loop"] = Node(statements, self.place, None, "loop")
        return self.keys, self.why

    @property
    def place(self) -> Span:
        return self.turn.place

    # ------------------------------------------------------------------------------------------ the model

    def model(self) -> None:
        """What the model is, from what was made first to what was put around it last."""
        from memlint.dialects import scripts

        for one in reversed(self.turn.model):
            call = values_of(one)[ON] if PART_OF in values_of(one) else one
            name = name_of(call)
            if scripts.is_a_model(call):
                self.loaded(call)
            elif HOLDS in values_of(call):
                self.held(call)
            elif name in _DTYPES:
                self.put("dtype", call, _DTYPES[name])
            elif name in _NOT_DESCRIBED:
                self.stop(f"{name}: {_NOT_DESCRIBED[name]}", call)
            elif name in _AROUND_A_MODEL:
                _AROUND_A_MODEL[name](self, call)
            else:
                self.keys.update(scripts.said_by(call))

    def held(self, call: Node) -> None:
        """A module of the program's own holds the model: what it has besides comes on top, where it leaves that whole
        and lets it train."""
        inner = values_of(call)[HOLDS].value
        changed = [one for one in inner if _changes(one)] if isinstance(inner, list) else []
        what = f"the model is held by a class of the program's own, {values_of(call)['_class_'].value}"
        if changed:
            self.stop(f"{what}, which changes it", changed[0])
        self.why = self.why or OnTop(f"{self.path}: {what}")

    def doubted(self, call: Node) -> None:
        self.stop("what is done to the model depends on a condition that is not known", call)

    def adapted(self, call: Node) -> None:
        self.adapters(argument(call, "peft_config", 1), call)

    def moved(self, call: Node) -> None:
        """``to`` takes a device, a dtype, or both."""
        dtype = dtype_of(argument(call, "dtype", 0)) or dtype_of(argument(call, "dtype", 1))
        if dtype:
            self.put("dtype", call, dtype)

    def compiled(self, call: Node) -> None:
        self.put("torch_compile", call, True)

    def distributed(self, call: Node) -> None:
        self.put("distributed", call, "ddp")

    def given_to_deepspeed(self, call: Node) -> None:
        self.put("deepspeed", argument(call, "config", 5) or argument(call, "config_params", 9))
        if "deepspeed" not in self.keys:
            self.stop("deepspeed.initialize is given no config that is known", call)

    def loaded(self, call: Node) -> None:
        from memlint.dialects import scripts

        if scripts.is_an_embedder(call):
            self.embedder(call)
            return
        loader = target_of(call).split(".")[-2:][0] if name_of(call) != "from_config" else target_of(call).split(".")[0]
        task = next((task for end, task in _TASKS.items() if loader.endswith(end)), "")
        self.keys.update(scripts.said_by(call))
        if name_of(call) == "from_config":
            config = argument(call, "config", 0)
            if name_of(config) != "from_pretrained" or len(values_of(config)) > 4:
                self.stop("the sizes of the model that from_config makes are not known", call)
            else:
                self.put("model_name_or_path", argument(config, "pretrained_model_name_or_path", 0))
        if task:
            self.put("auto_class", call, f"AutoModelFor{task}")
        elif loader == "AutoModel" and own_class(self.turn.model[0]) is not None:
            self.put("auto_class", call, "AutoModelForSequenceClassification")  # the same without a head of words
            self.put("num_labels", call, 1)
        else:
            self.stop(f"{loader} is asked for what it computes before a head", call)
        self.put("use_cache", values_of(call).get("use_cache"))
        self.configured(values_of(call).get("config"))
        if name_of(values_of(call).get("quantization_config")) not in ("", "BitsAndBytesConfig"):
            self.stop("its quantisation is not described", call)

    def embedder(self, call: Node) -> None:
        """What sentence-transformers loads is a model without a head; what it computes of a batch is not followed."""
        self.put("model_name_or_path", argument(call, "model_name_or_path", 0))
        self.put("auto_class", call, "AutoModelForSequenceClassification")  # the same without a head of words
        self.put("num_labels", call, 1)
        for key in ("model_kwargs", "config_kwargs", "modules"):
            if values_of(call).get(key) is not None:
                self.stop(f"SentenceTransformer is given {key}, which are not read", call)
        self.why = self.why or OnTop(f"{self.path}: line {call.span.line}: what SentenceTransformer computes")

    def configured(self, config: Node | None) -> None:
        """A config that the model is loaded with is its own, unless the program changes it."""
        if config is None or config.value is None:
            return
        number = root_number(config)
        changed = [key for key in values_of(root(config)) if not key.startswith("_")]
        for call in self.before_the_loop():
            if target_of(call) == SET and root_number(values_of(call)[ON]) == number:
                changed += [key for key in values_of(call) if not key.startswith("_")]
        odd = [key for key in changed if key not in loop_calls.HARMLESS]
        if name_of(root(config)) != "from_pretrained" or odd:
            self.stop(f"the model's config is changed{f' ({odd[0]})' if odd else ''}, which is not described", config)

    def adapters(self, config: Node | None, call: Node) -> None:
        from memlint.dialects import scripts

        if name_of(config) != "LoraConfig":
            self.stop(f"get_peft_model is given {name_of(config) or 'a config'}, which is not described", call)
            return
        assert config is not None
        values = values_of(config)
        odd = [
            name for name in loop_calls.NOT_PLAIN_LORA if name in values and values[name].value not in (None, {}, [])
        ]
        if "bias" in values and values["bias"].value != "none":
            odd.append("bias")
        if odd:
            self.stop(f"what {odd[0]} of LoraConfig changes is not described", config)
        self.keys.update(scripts.said_by(config))

    def about_model(self) -> None:
        """What the program calls of the model, and sets of it."""
        from memlint.dialects import scripts

        number = root_number(self.turn.model[0])
        adapted = "use_peft" in self.keys
        for call in self.before_the_loop():
            name, values = name_of(call), values_of(call)
            if target_of(call) == FROZEN:
                self.freezes(values["of"], values["value"], adapted)
                continue
            if name in _NOT_DESCRIBED and name not in ("FSDP", "FullyShardedDataParallel", "DataParallel"):
                self.stop(f"{name}: {_NOT_DESCRIBED[name]}", call)
            owner = values.get("_on_")
            if owner is None or root_number(owner) != number:
                continue
            if name == "gradient_checkpointing_enable":
                self.keys.update(scripts.said_by(call))
                options = values_of(argument(call, "gradient_checkpointing_kwargs", 0))
                self.put("use_reentrant", options.get("use_reentrant"))
            elif name == "gradient_checkpointing_disable":
                self.keys.pop("gradient_checkpointing", None)
            elif name == "requires_grad_":
                given = argument(call, "requires_grad", 0)
                self.freezes(call, given or Node(True, call.span), adapted)
            elif target_of(call) == SET:
                self.put("use_cache", values.get("use_cache"))
                attribute = next((key for key in values if not key.startswith("_")), "")
                if attribute not in loop_calls.HARMLESS and attribute != "requires_grad":
                    self.stop(f"what setting .{attribute} of the model changes is not described", call)
                if "requires_grad" in values and not adapted:
                    self.freezes(call, values["requires_grad"], adapted)

    def freezes(self, of: Node, value: Node, adapted: bool) -> None:
        """Beside adapters everything else is frozen already (PEFT 0.21: mark_only_adapters_as_trainable)."""
        on = value.value is True
        everything = str(of.value).rstrip().endswith((".parameters()", ".named_parameters()"))
        if (adapted and not on) or (not adapted and on and everything):
            return
        self.stop("which parameters train, requires_grad decides, and that is not followed", of)

    def before_the_loop(self) -> Iterator[Node]:
        """What the program made before the turn was followed."""
        last = self.turn.batches.number
        for call in self.program.calls:
            number = values_of(call).get("_number_")
            if number is None or int(str(number.value)) < last:
                yield call

    def beside(self) -> None:
        """Other models that the program loads before the loop."""
        from memlint.dialects import scripts

        number = root_number(self.turn.model[0])
        for call in self.before_the_loop():
            copied = name_of(call) == "deepcopy" and is_model(argument(call, "x", 0))
            if (copied or (scripts.is_a_model(call) and root_number(call) != number)) and not self.why:
                self.why = OnTop(f"{self.path}: line {call.span.line} makes another model beside the one that trains")

    # ------------------------------------------------------------------------------------------ optimizer, precision

    def optimizer(self) -> None:
        made = self.turn.optimizers or self.handed_to_deepspeed()
        if not made:
            if self.turn.engine and "deepspeed" in self.keys:
                return
            self.stop("which optimizer steps is not followed", self.place)
            return
        if len(made) > 1:
            self.stop("several optimizers step", made[1])
        one = made[0]
        name = name_of(one)
        library = self.library(target_of(one))
        if name == loop_calls.OF_DEEPSPEED:
            return
        if name not in loop_calls.OPTIMIZERS.get(library, {}):
            self.stop(f"the optimizer {target_of(one)} is not described", one)
            return
        self.put("optimizer", one, f"{library}:{name}")
        values = values_of(one)
        for key in ("foreach", "fused", "momentum", "weight_decay"):
            self.put(key, values.get(key))
        if not self.takes_all(argument(one, "params", 0)):
            self.stop("which parameters the optimizer is given is not followed", one)

    def handed_to_deepspeed(self) -> list[Node]:
        """The optimizer that DeepSpeed's engine is given, where its config has none."""
        for one in self.turn.model:
            call = values_of(one)[ON] if PART_OF in values_of(one) else one
            given = root(argument(call, "optimizer", 2)) if name_of(call) == "initialize" else None
            if given is not None and optimizer_of(given) is not None:
                return [given]
        return []

    def library(self, target: str) -> str:
        """The package that a name is imported from."""
        first = target.partition(".")[0]
        return self.program.imported.get(first, first).partition(".")[0]

    def takes_all(self, given: Node | None) -> bool:
        """Whether an optimizer is given all that trains: the model's parameters, with or without a filter."""
        if given is None:
            return False
        if name_of(given) in loop_calls.PARAMETERS and name_of(given) != "filter":
            owner = values_of(given).get("_on_")
            return owner is not None and root_number(owner) == root_number(self.turn.model[0])
        if isinstance(given.value, Unresolved):
            return "parameters()" in given.value.text or "param" in given.value.text
        if isinstance(given.value, list):
            return all(
                self.takes_all(argument(one, "params", 0) or values_of(one).get("params")) for one in given.value
            )
        return name_of(given) == "filter"

    def precision(self) -> None:
        accelerator = self.accelerator()
        context = self.turn.autocast
        if accelerator is not None:
            self.put("accelerator", accelerator, True)
            mixed = values_of(accelerator).get("mixed_precision")
            if mixed is not None:
                if isinstance(mixed.value, Unresolved):
                    self.stop("which mixed_precision the Accelerator is given is not known", mixed)
                elif mixed.value in ("bf16", "fp16"):
                    self.put(str(mixed.value), mixed, True)
                elif mixed.value not in ("no", None):
                    self.stop(f"mixed_precision {mixed.value} is not described", mixed)
        if context is None or name_of(root(values_of(context).get("_on_"))) == "Accelerator":
            return
        enabled, dtype = values_of(context).get("enabled"), argument(context, "dtype", 1)
        if enabled is not None and enabled.value is False:
            return
        if enabled is not None and enabled.value is not True:
            self.stop("whether autocast is enabled is not known", enabled)
        text = "float16" if dtype is None else dtype_of(dtype)
        device = argument(context, "device_type", 0)
        if dtype is None and device is not None and device.value == "cpu":
            text = "bfloat16"
        if text not in ("float16", "bfloat16"):
            self.stop("the dtype of autocast is not known", context)
        else:
            self.put("bf16" if text == "bfloat16" else "fp16", dtype or context, True)

    def accelerator(self) -> Node | None:
        """accelerate's, where it goes backward or has prepared the model."""
        if self.turn.accelerator is not None:
            return root(self.turn.accelerator)
        for call in self.turn.model:
            whole = values_of(call).get("_on_")
            if name_of(call) == "prepare" and name_of(root(whole)) == "Accelerator":
                return root(whole)
            inner = values_of(whole).get("_on_")
            if name_of(whole) == "prepare" and name_of(root(inner)) == "Accelerator":
                return root(inner)
        return None

    # ------------------------------------------------------------------------------------------ the batch

    def batch(self) -> None:
        shape = self.made_up()
        if shape:
            self.put("batch_size", shape[0])
            self.put("max_seq_length", shape[1])
            self.put("pad_to_max_length", shape[1], True)
            return
        loader = _through(self.turn.over)
        if name_of(loader) not in ("DataLoader", "StatefulDataLoader"):
            if self.why == "":
                at = self.place.line if self.turn.over is None else self.loop.line
                self.why = OnTop(f"{self.path}: line {at}: how many samples the loop takes at once is not followed")
            return
        assert loader is not None
        size = argument(loader, "batch_size", 1)
        if size is None and "batch_sampler" in values_of(loader):
            self.why = self.why or OnTop(
                f"{self.path}: line {loader.span.line}: the batch_sampler's batches are not known"
            )
        self.put("batch_size", size if size is not None else loader, ... if size is not None else 1)

    def made_up(self) -> list[Node]:
        """Rows and tokens of a batch whose numbers the program makes itself: ``torch.randint(0, V, (B, S))``."""
        call = self.turn.batches
        given = call.named.get("input_ids") or (call.given[0] if call.given else None)
        kind = loop_calls.MADE_UP.get(name_of(given))
        if kind is None:
            return []
        key, places = kind
        for place in places:
            shape = argument(given, key, place)
            if shape is None:
                continue
            if isinstance(shape.value, list) and len(shape.value) == 2:
                return shape.value
        return []

    def length(self) -> None:
        from memlint.dialects import scripts

        if "max_seq_length" in self.keys:
            return
        loader = _through(self.turn.over)
        rows = values_of(argument(loader, "dataset", 0))
        stated_by_rows = next((rows[name] for name in loop_calls.LENGTHS if name in rows), None)
        calls: list[Node] = list(self.program.calls)
        for entry in self.turn.tokenizers:
            callee = Node("tokenizer", entry.callee.span if entry.callee is not None else self.place)
            calls.append(Node({"_target_": callee, **entry.named}, callee.span))
        self.keys.update(scripts.length(calls, self.keys))
        if stated_by_rows is not None and type(stated_by_rows.value) is int:
            cut = self.keys.get("max_seq_length")
            if cut is None or cut.value != stated_by_rows.value:
                self.put("max_seq_length", stated_by_rows)
                self.keys.pop("pad_to_max_length", None)
        odd = (values_of(call).get("max_length") for call in calls if scripts.tokenizes(call))
        told = next((node for node in odd if node is not None), None)
        if "max_seq_length" not in self.keys and told is not None and type(told.value) is not int:
            self.put("max_seq_length", told)
        stated = self.keys.get("max_seq_length")
        if stated is not None and type(stated.value) is int and self.turn.shorter:
            self.put("max_seq_length", stated, stated.value - self.turn.shorter)

    def accumulation(self) -> None:
        told = self.turn.accumulation
        accumulates = any(name_of(context) == "accumulate" for context in self.turn.batches.within)
        accelerator = self.accelerator()
        if accumulates and accelerator is not None:
            stated = values_of(accelerator).get("gradient_accumulation_steps")
            plugin = values_of(accelerator).get("gradient_accumulation_plugin")
            self.put("gradient_accumulation_steps", stated or argument(plugin, "num_steps", 0))
        elif isinstance(told, Node):
            self.put("gradient_accumulation_steps", told)
        elif told == 0:
            unknown = Unresolved("when the optimizer steps depends on a condition that is not known")
            self.keys["gradient_accumulation_steps"] = Node(unknown, self.place, None, "gradient_accumulation_steps")
        elif told > 1:
            self.keys["gradient_accumulation_steps"] = Node(told, self.place, None, "gradient_accumulation_steps")

    def gradients(self) -> None:
        """When gradients are let go, and how."""
        if self.turn.engine:
            return
        clears = self.turn.clears
        how = "never" if clears is None else "after_forward" if self.turn.clears_late else "before_forward"
        self.keys["zero_grad"] = Node(how, self.place, None, "zero_grad")
        if clears is not None:
            self.put("set_to_none", clears.get("set_to_none"))


# What is put around a model, and who reads it.
_AROUND_A_MODEL: dict[str, Callable[[Reader, Node], None]] = {
    DOUBT: Reader.doubted,
    "get_peft_model": Reader.adapted,
    "to": Reader.moved,
    "compile": Reader.compiled,
    "DistributedDataParallel": Reader.distributed,
    "DDP": Reader.distributed,
    "initialize": Reader.given_to_deepspeed,
}


def _given(call: Node) -> list[Node]:
    """The arguments of a call."""
    listed = values_of(call).get("_args_")
    named = [node for name, node in values_of(call).items() if not name.startswith("_")]
    return [*named, *(listed.value if listed is not None and isinstance(listed.value, list) else [])]


def _changes(call: Node) -> bool:
    """Whether a module takes something of what it holds away, puts another in its place, or keeps it from training."""
    attribute = next((key for key in values_of(call) if not key.startswith("_")), "")
    is_set = target_of(call) == SET and attribute not in loop_calls.HARMLESS
    if "_class_" in values_of(call) and any(is_model(one) for one in _given(call)):
        return True  # what another class of the program's own does to it is not followed
    return is_set or target_of(call) == FROZEN or name_of(call) in ("requires_grad_", "get_peft_model", "freeze")


def _through(node: Node | None) -> Node | None:
    """What gives the items that a loop goes through, whatever counts and shows them."""
    for _ in range(MAX_CHAIN):
        made = root(node)
        if name_of(made) == EITHER:
            ways = [_through(argument(made, "", at)) for at in (0, 1)]
            same = root_number(ways[0]) is not None and root_number(ways[0]) == root_number(ways[1])
            return ways[0] if same else None
        if name_of(made) not in loop_calls.PASSES:
            return made
        node = argument(made, "iterable", 0)
    return None


def dtype_of(node: Node | None) -> str:
    """A dtype of torch's by its name; "" for anything else."""
    value = node.value if node is not None else None
    text = value.text if isinstance(value, Unresolved) else str(value)
    name = text.removeprefix("torch.")
    return name if name in ("float16", "bfloat16", "float32", "float64") else {"half": "float16"}.get(name, "")
