"""Family hf-trainer: TrainingArguments and the model arguments of the scripts around them."""

from __future__ import annotations

import re
from typing import Any

from memlint.architectures import recorded
from memlint.dialects import embedders, frameworks, internvl, joined, known_scripts, llava, towers
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.dialects.unread import own_way
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, DEFAULT, Fact, Name, OnTop, TrainingSpec
from memlint.named_tuple import NamedTuple
from memlint.trainers.table import TRAINERS


class Script(NamedTuple):
    """What transformers' example script of a task trains, and what it does where the length is not stated.

    length  tokens of a sample; 0 where that depends on the tokenizer or the data
    full    whether every row has that length
    target  tokens of an output
    """

    model_class: str
    length: int = 0
    full: bool = False
    target: int = 0


# transformers 5, examples/pytorch: the class that each script builds, and its max_seq_length.
_SCRIPTS = {
    "run_clm": Script("causal_lm", 0, True),
    "run_fim": Script("causal_lm", 0, True),
    "run_mlm": Script("masked_lm"),
    "run_glue": Script("sequence_classification", 128, True),
    "run_classification": Script("sequence_classification", 128, True),
    "run_xnli": Script("sequence_classification", 128, True),
    "run_qa": Script("question_answering", 384, True),
    "run_ner": Script("token_classification"),
    "run_summarization": Script("seq2seq_lm", 1024, target=128),
    "run_translation": Script("seq2seq_lm", 1024, target=128),
    "run_image_classification": Script("image_classification"),
    "run_semantic_segmentation": Script("semantic_segmentation"),
    "run_audio_classification": Script("audio_classification"),
    "run_speech_recognition_seq2seq": Script("seq2seq_lm"),
}


# Options of scripts that train embeddings or scores of pairs with TrainingArguments beside (FlagEmbedding 1.3
# AbsEmbedderDataArguments, Tevatron DataArguments, VLM2Vec TrainingArguments): a sample is a query and several
# passages, each of a length of its own, and no token is predicted. Programs that are described are rows of
# memlint.trainers.embedders.
_EMBEDDERS = (
    *("train_group_size", "train_n_passages", "query_max_len", "passage_max_len", "query_max_length"),
    *("q_max_len", "p_max_len", "gc_q_chunk_size", "grad_cache"),
)


# transformers 5.23, models/auto/modeling_auto.py: types for which MODEL_FOR_CAUSAL_LM_MAPPING_NAMES has the class that
# MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES has, and whose config.json holds a part that sees.
_SEEING_WITH_TEXT = ("gemma3", "gemma3n", "gemma4")
_OF_TEXT = f"{lm.TRANSFORMERS}: AutoModelForCausalLM makes all of the model, and a script that asks for it gives text"


# Words of a script's name by which it trains something else than the next token.
_OTHER_TASK = re.compile(
    r"(^|[_-])(reward|rm|prm|orm|critic|ppo|dpo|kto|orpo|simpo|grpo|rlhf|rerank\w*|embed\w*|retriev\w*|classif\w*"
    r"|distill\w*|kd|contrastive|diffusion)([_-]|$|model)"
)


def recognise(document: Document, root: Node) -> bool:
    """Programs of other families take TrainingArguments too, and an evaluation takes them with ``do_train: false``."""
    trains = root.get("do_train")
    if trains is not None and str(trains.value).lower() in ("false", "no", "0"):
        return False
    return not lm.is_of_another_family(document, root)


def _program(spec: TrainingSpec) -> str:
    """The script that trains, without its suffix; "" where no command names one."""
    return "" if spec.launch is None else spec.launch.called.rsplit("/", 1)[-1].removesuffix(".py")


def _task(spec: TrainingSpec) -> str:
    return _program(spec).removesuffix("_no_trainer")


def _script(spec: TrainingSpec) -> Script:
    return _SCRIPTS.get(_task(spec), Script("causal_lm"))


def _defaults(spec: TrainingSpec) -> None:
    """What the script states of itself."""
    known_scripts.prepare(spec, _program(spec))
    embedders.prepare(spec)
    joined.code(spec).prepare(spec)
    towers.prepare(spec)


def _release(spec: TrainingSpec) -> None:
    joined.code(spec).release(spec)
    lm.release(spec)


def _attention(spec: TrainingSpec) -> None:
    joined.code(spec).attention(spec)
    lm.attention(spec)
    embedders.attention(spec)


def _optimizer(spec: TrainingSpec) -> None:
    lm.optimizer(spec)
    if _program(spec).endswith("_no_trainer"):
        reason = "examples without the Trainer use torch.optim.AdamW as it is"
        lm.put(spec, "optimizer_implementation", "foreach", reason=reason)


def _outputs(spec: TrainingSpec) -> None:
    if _program(spec).endswith("_no_trainer"):
        kept = TRAINERS["accelerate.loop"].outputs
        reason = "examples without the Trainer name the outputs, which accelerate brings to float32, through backward"
        lm.put(spec, "outputs_kept", kept, reason=reason)


def _unsloth(spec: TrainingSpec) -> Fact | None:
    """What says that Unsloth's own program trains, or one that calls it."""
    called = spec.fact(lm.HYPER + "use_unsloth")
    if called is not None and truth(called.value):
        return called
    return spec.fact("tuning") if _program(spec) == "unsloth-cli" else None


def _kernels(spec: TrainingSpec) -> None:
    if embedders.row(spec) is not None:
        return  # the Trainer patches transformers' own models, and no module around one
    lm.kernels(spec)
    switch, smooth = _unsloth(spec), spec.fact(lm.HYPER + "label_smoothing")
    if switch is not None:
        known_scripts.unsloth_kernels(spec, switch)
    if smooth is not None and smooth.value and spec.get("loss") == "fused":
        lm.put(spec, "loss", "full", smooth, "label smoothing needs the logits")


def _evaluation(spec: TrainingSpec) -> None:
    lm.evaluation(spec)
    lm.liger_in_evaluation(spec)
    switch = _unsloth(spec)
    if switch is not None and "evaluation_batch_size" in spec and spec.get("loss") == "in_forward":
        lm.put(spec, "evaluation_loss", "as_trained", switch)


def _adapters(spec: TrainingSpec) -> str:
    own = joined.code(spec)
    own.targets(spec)
    adapted = lm.adapters(spec)
    own.adapters(spec)
    switch = _unsloth(spec)
    return adapted or (known_scripts.unsloth_gap(spec) if switch is not None else "")


def _quantization(spec: TrainingSpec) -> None:
    lm.quantization(spec)
    switch = _unsloth(spec)
    if switch is not None:
        known_scripts.unsloth_quantizes(spec, switch)


def _checkpointing(spec: TrainingSpec) -> None:
    lm.checkpointing(spec)
    switch = _unsloth(spec)
    if switch is not None:
        known_scripts.unsloth_offloads(spec, switch)


def _precision(spec: TrainingSpec) -> str:
    loaded, own = lm.weights(spec, spec.fact(lm.HYPER + "dtype")), joined.code(spec)
    why = lm.precision(spec, lm.older_weights(spec, loaded) if own.is_dated else loaded)
    known_scripts.dtypes(spec, _program(spec))
    lm.prepared(spec)
    return why or own.dtypes(spec)


class _Model(NamedTuple):
    """What a script trains where its command names nothing; ``beside``: an option that tells it from others of its
    name, "" where the name is enough."""

    model: str
    key: str
    reason: str
    beside: str = ""


_MODELS = {
    "run_image_classification": _Model(
        "google/vit-base-patch16-224-in21k", "model_name_or_path", f"{lm.TRANSFORMERS}: run_image_classification.py"
    ),
    known_scripts.LIGER_PROGRAM: _Model(
        "meta-llama/Meta-Llama-3-8B", "model_name", known_scripts.LIGER, beside="use_liger"
    ),
}


def _model_name(spec: TrainingSpec) -> None:
    """The scripts whose model may be left out, and LLaVA's own checkpoints."""
    name = _task(spec)
    known = _MODELS.get(name)
    told = known is not None and (not known.beside or spec.root.get(known.beside) is not None)
    if told and known is not None and spec.get("model") is None and lm.gap(spec, known.key) is None:
        spec.facts["model"] = Fact("model", known.model, DEFAULT, f"--{known.key}", reason=known.reason)
    joined.code(spec).named(spec)


# Classes of the labels of data sets: first of what run_semantic_segmentation.py takes where a command names none.
_SEGMENTED = {"segments/sidewalk-semantic": 35, "zhoubolei/scene_parse_150": 150, "scene_parse_150": 150}


def _model(spec: TrainingSpec) -> str:
    """A model that a recorded program stands for, in a script of its task; else by its config."""
    own = joined.code(spec)
    if own.model is not None:
        return own.model(spec)
    stated, task = spec.fact("model"), _script(spec).model_class
    if task in recorded.TASKS and lm.stated_config() is None and stated is not None and isinstance(stated.value, str):
        found = recorded.known(stated.value, task)
        if found is not None:
            if task == "audio_classification":
                gap = lm.gap(spec, "max_length_seconds", "freeze_feature_encoder")
                if gap is not None:
                    return f"{gap.key} is not known: {gap.reason}"
                found = _sound(spec, found)
            spec.model_name = stated.value.rstrip("/").rsplit("/", 1)[-1]
            lm.put(spec, lm.CONFIG, found, stated, f"the recorded program {found['program']}")
            return ""
    return lm.model(spec)


_SAMPLING = 16_000  # of every published feature extractor of these models
_SECONDS = 20  # run_audio_classification.py: max_length_seconds


def _sound(spec: TrainingSpec, found: dict[str, Any]) -> dict[str, Any]:
    """run_audio_classification.py cuts samples to so many seconds, and freezes what makes features of them."""
    seconds = spec.get(lm.HYPER + "max_length_seconds", _SECONDS)
    frozen = spec.get(lm.HYPER + "freeze_feature_encoder", True)
    return {**found, "samples": int(seconds * _SAMPLING), "frozen": frozen}


def _masked(spec: TrainingSpec) -> str:
    """Why what is known of a model that takes sound does not hold: it is given a mask of what is padding."""
    mask = spec.root.get("attention_mask")
    hears = _script(spec).model_class == "audio_classification" and lm.model_type(spec) == recorded.MODEL_TYPE
    if not hears or not (spec.get(lm.CONFIG) or {}).get("sound"):
        return ""
    if mask is not None and not truth(mask.value):
        return ""
    return OnTop(
        "attention_mask is not false: the mask of padded sound, and the attention that takes it, are not known"
    )


def _labels(spec: TrainingSpec) -> str:
    """Of pixels: each class has a number of its own for each of them."""
    name = _program(spec)
    if _script(spec).model_class != "semantic_segmentation":
        return ""
    data = spec.root.get("dataset_name")
    if data is None and lm.gap(spec, "dataset_name") is not None:
        return lm.not_stated(spec, "dataset_name")
    classes = _SEGMENTED.get("segments/sidewalk-semantic" if data is None else str(data.value))
    if classes is None:
        return OnTop(f"how many classes the labels of {data.value if data else 'the data'} have, no file states")
    lm.put(spec, "labels", classes, reason=f"{name}.py: classes of the data")
    return ""


def _model_class(spec: TrainingSpec) -> str:
    """What the script builds; why the model is not transformers' own."""
    own = _built(spec)
    _seeing_with_text(spec)
    return own


def _built(spec: TrainingSpec) -> str:
    name, task = _program(spec), _task(spec)
    reason = f"what {name or 'it'} builds"
    if joined.is_joined(spec):
        lm.put(spec, "model_class", "vision_language", spec.fact(lm.HYPER + "vision_tower"), reason)
        return ""
    compares = embedders.row(spec)
    if compares is not None:
        return embedders.model_class(spec, compares)
    loaded = spec.fact("model_class")  # with which class a script that was followed loads it
    if loaded is not None and loaded.value is not None and task not in _SCRIPTS:
        return ""
    made = Fact("model_class", _script(spec).model_class, DEFAULT, reason=reason)
    if task not in _SCRIPTS:
        made = Fact("model_class", "causal_lm", ASSUMED, reason="no script says what is trained")
    spec.facts["model_class"] = made
    own = _own_model(spec, name)
    if task not in _SCRIPTS:
        lm.class_by_type(spec)
    return own


def _seeing_with_text(spec: TrainingSpec) -> None:
    """Of most types that see, ``AutoModelForCausalLM`` makes the decoder alone, or nothing; of these, all of it."""
    kind, config = spec.fact("model_class"), spec.get(lm.CONFIG) or {}
    if kind is not None and kind.value == "causal_lm" and config.get("model_type") in _SEEING_WITH_TEXT:
        lm.put(spec, "model_class", "vision_language", kind, _OF_TEXT)


def join(spec: TrainingSpec) -> str:
    """What sees beside the decoder, and what it is given to see; why it is not known."""
    kind = spec.fact("model_class")
    if kind is not None and kind.reason == _OF_TEXT:
        lm.put(spec, "images_per_sample", 0, kind, _OF_TEXT)
    return embedders.join(spec) or joined.code(spec).join(spec) or _labels(spec) or _masked(spec)


def _own_model(spec: TrainingSpec, name: str) -> str:
    """Why the model is not transformers' own."""
    if (tower := towers.tower_of(spec)) is not None:
        return towers.beside(spec, tower)
    if why := frameworks.other(spec):
        return why
    if name.startswith("internvl"):
        spec.facts["model_class"] = Fact("model_class", "vision_language", DEFAULT, reason=f"what {name} builds")
        return f"{name}: of InternVL's own code {' and '.join(internvl.PROGRAMS)} are known, and no other trainer"
    if _task(spec) not in _SCRIPTS and (word := _OTHER_TASK.search(name.lower())) is not None:
        return f"{name}.py: its own code makes the model and the loss, which by its name ({word[2]}) are no causal LM's"
    if own := own_way(spec):
        return own
    for key in _EMBEDDERS:
        if spec.root.get(key) is not None:
            who = (spec.launch.called if spec.launch is not None else "") or "the script"
            lm.put(spec, "model_class", "sequence_classification", reason="what embeds or scores has no head of words")
            return OnTop(f"--{key}: {who} compares queries and passages; what it makes of them is not described")
    made = _instantiated(spec.root)
    if made is not None:
        return f"{made.key_path} {made.value}: a class of the program's own makes the model"
    kind, path = spec.fact(lm.HYPER + "model_type"), spec.fact("model")
    if path is None and kind is not None and kind.value:
        return f"{kind.key} {kind.value}: a model from scratch, whose sizes no file states"
    return ""


_LIBRARIES = ("transformers", "peft", "trl", "torch")


def _instantiated(root: Node) -> Node | None:
    """The class by which a config of Hydra's has its model made, where that is no library's
    (``model: {_target_: models.llama.LlamaForConditionalGeneration.from_pretrained}``)."""
    model = root.get("model")
    made = model.get("_target_") if model is not None and model.is_mapping else None
    text = made.value if made is not None else None
    return made if isinstance(text, str) and text.partition(".")[0] not in _LIBRARIES else None


def _length(spec: TrainingSpec) -> None:
    """The longest sample: as stated and cut to what the model takes, else the script's own default."""
    script, name = _script(spec), _program(spec)
    compares = embedders.row(spec)
    if compares is not None:
        embedders.length(spec, compares)
        return
    own = joined.code(spec).length
    if own is not None:
        own(spec)
        return
    llava.captions(spec)
    source = spec.fact(lm.HYPER + "max_source_length")
    stated = spec.fact("sequence_length")
    if stated is None and source is not None and source.value:
        lm.put(spec, "sequence_length", source.value, source)
        stated = spec.fact("sequence_length")
    target = spec.fact(lm.HYPER + "max_target_length")
    if target is not None and target.value:
        lm.put(spec, "target_length", target.value, target)
    elif script.target:
        lm.put(spec, "target_length", script.target, reason=f"{lm.TRANSFORMERS}: {name}.py")
    elif lm.has_one_size(spec) and spec.get(lm.HYPER + "generation_max_length"):
        written = spec.fact(lm.HYPER + "generation_max_length")
        assert written is not None
        reason = "no label is longer than what is generated"
        spec.facts["target_length"] = written._replace(name="target_length", origin=ASSUMED, reason=reason)
    if (stated is None or stated.value is None) and script.length:
        lm.put(spec, "sequence_length", script.length, reason=f"{lm.TRANSFORMERS}: {name}.py")
        stated = spec.fact("sequence_length")
    if stated is None and lm.gap(spec, "block_size", "max_seq_length") is None:
        stated = _default_length(spec, name.removesuffix("_no_trainer"))
    # each of them takes min(..., model_max_length), but for those that write outputs
    limit = lm.position_limit(spec) if name in _SCRIPTS and script.model_class != "seq2seq_lm" else None
    if stated is not None and isinstance(stated.value, int) and limit is not None and stated.value > limit:
        lm.put(spec, "sequence_length", limit, stated, f"cut to the {limit} positions of the model")
    if script.full and "packing" not in spec:
        lm.put(spec, "packing", True, reason=f"{name}.py fills or pads every row")
    padded = spec.fact(lm.HYPER + "pad_to_max_length")
    if padded is not None and padded.value is False and name != "run_clm":
        lm.put(spec, "packing", False, padded)


# What the tokenizer takes is less than the table of positions has rows: those of padding and before it.
_ROWS_BEFORE = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}


def _default_length(spec: TrainingSpec, name: str) -> Fact | None:
    """Language modelling fills rows as long as the tokenizer allows, at most 1,024 tokens of what the model takes
    (run_clm.py where the tokenizer allows more than the model, run_mlm.py whatever the model takes)."""
    if name not in ("run_clm", "run_mlm"):
        return None
    limit = lm.position_limit(spec)
    if limit is not None:
        limit -= _ROWS_BEFORE.get(lm.text_config(spec[lm.CONFIG]).get("model_type", ""), 0)
    length = min(1024, limit or 1024)
    key = "block_size" if name == "run_clm" else "max_seq_length"
    if limit is not None and limit <= 1024:
        reason = f"{lm.TRANSFORMERS}: {name}.py, as many as the model has positions"
    else:
        reason = f"{lm.TRANSFORMERS}: {name}.py, where the tokenizer sets no limit below the model's"
    fact = Fact("sequence_length", length, ASSUMED, key, reason=reason)
    spec.facts["sequence_length"] = fact
    if name == "run_mlm":
        by_line = spec.fact(lm.HYPER + "line_by_line")
        if "packing" not in spec and not (by_line is not None and by_line.value):
            lm.put(spec, "packing", True, reason="run_mlm.py joins samples and cuts them to rows")
    return fact


def _unbounded(spec: TrainingSpec) -> str:
    """Why the longest sample is not known."""
    script, name = _script(spec), _program(spec)
    if spec.get("sequence_length") is not None or lm.has_one_size(spec):
        return ""
    if script.model_class == "image_classification":
        return f"{name}.py: the size of an image is the image processor's, which no file states"
    if lm.gap(spec, "max_seq_length", "model_max_length", "max_length", "block_size") is not None:
        return lm.not_stated(spec, "max_seq_length", "model_max_length", "max_length", "block_size")
    key = "block_size" if name.startswith(("run_clm", "run_fim")) else "max_seq_length"
    null = spec.fact("sequence_length")
    key = null.key if null is not None and null.node is not None else key
    return OnTop(
        f"{key} is not stated: the longest sample is the tokenizer's limit or the data's, which no file states"
    )


FAMILY = lm.Family(
    stated=Graph(
        Step(_defaults, tuple(dict.fromkeys((*known_scripts.FACTS, *joined.FACTS, *embedders.FACTS, *towers.FACTS)))),
        Step(_release, ("transformers_version",)),
        Step(_model_name, ("model",)),
        Step(_model, lm.MODEL_FACTS),
    ),
    follows=Graph(
        Step(lm.on_cpu),
        Step(_model_class, ("model_class",)),
        Step(join, tuple(dict.fromkeys((*joined.JOINED, *embedders.JOINED)))),
        Step(_length, ("sequence_length", "target_length", "packing", "sequence_bound")),
        Step(_unbounded),
        Step(_attention, ("attention",)),
        Step(lm.older_defaults, (lm.HYPER + "optim",)),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_outputs, ("outputs_kept",)),
        Step(_kernels, ("loss", "loss_chunks", "fused_kernels")),
        Step(lm.compiled, ("compile",)),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(_quantization, lm.QUANTIZATION_FACTS),
        Step(lm.processes, lm.PROCESS_FACTS),
        Step(_checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_precision, (*lm.PRECISION_FACTS, "float32_parts", "quantization.prepared", "projector_dtype")),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("on_cpu", "model_class", "model", "join", "adapters", "sharing", "precision", "unbounded"),
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Keys beside TrainingArguments are changed where they stand: not every script has them."""
    return lm.spell(spec, fact, value)
