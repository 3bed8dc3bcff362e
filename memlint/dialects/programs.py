"""What a command's program does: only training is read as training.

A server, an evaluation or a conversion takes the options of the trainer that its library also has (Megatron-LM's text
generation reads every option of its pretraining), so its options do not tell them apart. Its name does, as people name
programs; a name that says neither is a trainer's, if its options are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memlint.documents.node import Command, Node, Unresolved

# Words of names of programs that hold no gradients. A name that also has a word of ``TRAINS`` trains.
ELSE = frozenset(
    (
        *("eval", "evals", "evaluate", "evaluation", "evaluator", "predict", "prediction", "predictions"),
        *("infer", "inference", "inferencing", "generate", "generation", "sampling"),
        *("chat", "chatbot", "serve", "server", "serving", "gradio", "streamlit", "webui"),
        *("convert", "converter", "conversion", "export", "merge", "quantize", "quantization", "consolidate"),
        *(
            "embed",
            "extract",
            "annotate",
            "preprocess",
            "preprocessing",
            "tokenize",
            "tokenization",
            "download",
            "upload",
            "visualize",
            "plot",
        ),
        *("validate", "validator", "verify", "inspect", "inventory", "filter", "audit", "analyze", "compare", "stats"),
        *("report", "estimate", "onnx", "onnxruntime", "tensorrt"),
    )
)
TRAINS = frozenset(
    (
        *("train", "trainer", "training", "pretrain", "pretraining", "posttrain", "finetune", "finetuning"),
        *("fine", "tune", "tuning"),
    )
)
# Words that say nothing beside the name of a method: a demo of GRPO trains, and so does a test of it.
SHOWS = frozenset(("app", "benchmark", "benchmarks", "demo", "test"))
_LESSONS = frozenset(
    ("sft", "dpo", "ipo", "kto", "orpo", "simpo", "cpo", "grpo", "ppo", "rloo", "rlhf", "gkd", "distillation")
)
METHODS = _LESSONS | {"lora", "qlora", "dreambooth"}
# Words of what is done to data before a training, and of tests of one.
_AROUND = frozenset(
    (
        *(
            "data",
            "dataset",
            "datasets",
            "tokenizer",
            "tok",
            "vocab",
            "bpe",
            "sentencepiece",
            "split",
            "prepare",
            "make",
        ),
        *("process", "test", "tests", "check", "download", "build", "collect", "plot", "log", "stop", "kill"),
    )
)
_MODULES = ("train", "pretrain", "finetune", "training")  # python -m train
_ENTRIES = ("main", "__main__", "run", "cli")  # whose folder or package says what they are
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")  # as ``python -m`` has it
_OVERRIDE = re.compile(r"\+{0,2}(?:\w+\.)+(\w+)=")  # of a key below another
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

# transformers' examples train where --do_train says so (``if training_args.do_train`` in each run_*.py).
_DO_TRAIN = ("do_train", "do-train")
_TRUE = ("true", "yes", "1")
# Options of a loop that trains, whatever its program is called.
_RATES = frozenset(("lr", "learning_rate", "base_lr", "max_lr", "init_lr", "peak_lr"))
_LENGTHS = frozenset(
    (
        *("epochs", "n_epochs", "num_epochs", "max_epochs", "num_train_epochs", "train_epochs", "total_epochs"),
        *("max_steps", "num_steps", "max_train_steps", "max_iters", "train_iters", "total_steps", "train_steps"),
        *("warmup_steps", "warmup_ratio"),
    )
)
# Words that leave a loop nothing to train (verl: trainer.val_only, after which ray_trainer.fit returns), also in dots.
_ONLY = re.compile(
    r"(?:\+{0,2}|--)(?:[\w-]+\.)*(?:only[_-](?:eval|test|val)|(?:eval|evaluate|test|val|validate|predict|inference)[_-]only)"
    r"(?:=(?P<value>\w+))?"
)
# Values of --task with which Megatron-LM's tasks/main.py and tasks/msdp/main.py prompt a model or score it; with the
# others they finetune one.
_SCORES = ("LAMBADA", "WIKITEXT103", "ICT-ZEROSHOT-NQ", "RETRIEVER-EVAL", "MSDP-PROMPT", "MSDP-EVAL-F1")
# Options of programs that score a model and are called main.py (bigcode-evaluation-harness, lm-evaluation-harness).
_OF_HARNESSES = frozenset(("allow_code_execution", "save_generations", "metric_output_path", "num_fewshot"))
# Switches with which a program evaluates in place of training (MAE, DETR, Swin), unless its command says how it trains.
_INSTEAD = frozenset(("eval", "evaluate", "test", "validate", "predict", "infer", "inference", "throughput"))
# Options that say what a program does, and what they call anything but training.
_WHAT = frozenset(("mode", "stage", "phase", "run_mode", "run_type"))
_NO_TRAINING = frozenset(("eval", "evaluate", "evaluation", "test", "val", "validate", "predict", "infer", "inference"))
_DO_ELSE = ("do_eval", "do-eval", "do_predict", "do-predict")


# A name by which a file says that what it states runs on the CPU (gpt2-arc-easy--cpu.yaml, runcpu.sh), and no other
# word says what the CPU has of it (zero3-cpu-offload.yaml).
_ON_CPU = re.compile(r"(?:^|[-_.])(?:run)?cpu(?:[-_.]|$)", re.IGNORECASE)
_HELPS = re.compile(r"offload|adam|optim|gpu|cuda|init|ram|load", re.IGNORECASE)


def is_named_after_the_cpu(path: str) -> bool:
    name = path.rpartition("/")[2]
    return _ON_CPU.search(name) is not None and _HELPS.search(name) is None


def trains(command: Command) -> bool:
    """Whether a command may be a training run, by the name of its program and the switches of transformers' examples.

    A variable in the program's place, and a name that says nothing, may be.
    """
    program = command.called
    if not program:
        return True
    name = program.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]
    words = set(_words(name))
    if words & _LESSONS or "rl" in words:  # chat_sft.py trains; eval_sft.py does not, nor does chat_lora.py
        words.discard("chat")
    if not words & TRAINS and (words & ELSE or (words & SHOWS and not words & METHODS)):
        return _does_train(command)  # internvl_chat_mpo.py --do_train True
    if _only_evaluates(command):
        return False
    return not _is_told_not_to(command, name.startswith("run_"))


def says_it_trains(command: Command) -> bool:
    """Whether a Python program's own name says that it trains, and nothing else, or its options say so."""
    program = command.called
    if not (program.endswith(".py") or _MODULE.fullmatch(program) or program in _MODULES):
        return False
    *outer, name = re.split(r"[./]", program.removesuffix(".py"))
    if name in _ENTRIES and outer:
        name = f"{outer[-1]}_{name}"
    words = set(_words(name))
    if words & _AROUND and not _is_told_to(command):
        return False
    return bool(words & TRAINS or (words & METHODS and not words & ELSE)) or _is_told_to(command)


_EVALUATES = re.compile(r"(?:^|[-_])(?:eval|evaluate|evaluation|infer|inference|predict)(?:[-_.]|$)")


def is_named_after_an_evaluation(path: str) -> bool:
    """Whether a script's own name says that it evaluates, and no word of it that it trains (evaluate_lm.sh)."""
    name = path.rpartition("/")[2].rpartition(".")[0].lower()
    return _EVALUATES.search(name) is not None and not set(_words(name)) & (TRAINS | METHODS)


def is_an_entry(command: Command) -> bool:
    """Whether a program's name says that it is the entry to something, and not to what: ``main.py``."""
    return command.called.removesuffix(".py").rpartition("/")[2].rpartition(".")[2] in _ENTRIES


def _is_told_to(command: Command) -> bool:
    """Whether options, or overrides (``optim.lr=1``), say that something trains: ``--do_train``, or a learning rate
    and how long it is in force."""
    options = command.options.value
    if not isinstance(options, dict):
        return False
    names = {name.replace("-", "_") for name in options}
    for word in command.words:
        said = word.value.text if isinstance(word.value, Unresolved) else word.value
        override = _OVERRIDE.match(said) if isinstance(said, str) else None
        if override is not None:
            names.add(override[1])
    return _does_train(command) or (bool(names & _RATES) and bool(names & _LENGTHS))


def _does_train(command: Command) -> bool:
    """Whether ``--do_train`` is true."""
    options = command.options.value
    said = [options[name].value for name in _DO_TRAIN if name in options] if isinstance(options, dict) else []
    return bool(said) and str(said[-1]).lower() in _TRUE


def _only_evaluates(command: Command) -> bool:
    """Whether a word of a command says that it evaluates and no more."""
    options = command.options.value
    names = {name.replace("-", "_") for name in options} if isinstance(options, dict) else set()
    if names & _OF_HARNESSES and not names & _RATES:
        return True
    task = options.get("task") if isinstance(options, dict) else None
    if task is not None and str(task.value).upper() in _SCORES:
        return True
    if isinstance(options, dict) and _evaluates_instead(options, names):
        return True
    told = [word.value for word in command.words]
    for index, word in enumerate(told):
        said = _ONLY.fullmatch(word) if isinstance(word, str) else None
        if said is None or (said["value"] is None and not str(word).startswith("--")):
            continue
        following = told[index + 1] if index + 1 < len(told) else ""
        value = said["value"] or (following if str(following).lower() in ("false", "no", "0") else "true")
        if str(value).lower() in _TRUE:
            return True
    return False


def _evaluates_instead(options: dict[str, Node], names: set[str]) -> bool:
    """``--mode test``, or a switch like ``--eval``; beside a learning rate, or a number of epochs, it evaluates as it
    trains."""
    given = {name.replace("-", "_"): str(node.value).lower() for name, node in options.items()}
    if any(given.get(name, "") in _NO_TRAINING for name in _WHAT):
        return True
    if names & (_RATES | _LENGTHS) or names & {name.replace("-", "_") for name in _DO_TRAIN}:
        return False
    return any(given[name] in _TRUE for name in names & _INSTEAD)


def _words(name: str) -> Iterator[str]:
    return (word.lower() for word in _WORD.findall(name))


def _is_told_not_to(command: Command, example: bool) -> bool:
    """Whether options say that nothing is trained. A False is one of any program; that ``--do_eval`` is there and
    ``--do_train`` is not says it of transformers' examples, and others train all the same."""
    options = command.options.value
    if not isinstance(options, dict):
        return False
    said = [options[name].value for name in _DO_TRAIN if name in options]
    if said:
        return str(said[-1]).lower() in ("false", "no", "0")
    return example and asks_for_else(command)


def asks_for_else(command: Command) -> bool:
    """Whether a command is told to evaluate or to predict, and not whether to train: a program that asks for
    ``do_train`` trains nothing then."""
    options = command.options.value
    if not isinstance(options, dict) or any(name in options for name in _DO_TRAIN):
        return False
    return any(name in options and str(options[name].value).lower() in _TRUE for name in _DO_ELSE)
