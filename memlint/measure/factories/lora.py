"""LoRA around a library's model, as peft wraps it. Facts: ``tuning`` (full, lora, dora) and ``lora.*``.

Where ``lora.targets`` is not stated, peft's own list for the model decides.
"""

from __future__ import annotations

from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories.base import Request, library, said

# peft's task types, by what a class of transformers is called.
TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHead": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}


# peft.LoraConfig's names for the facts.
OPTIONS = {
    "lora.r": "r",
    "lora.alpha": "lora_alpha",
    "lora.dropout": "lora_dropout",
    "lora.targets": "target_modules",
    "lora.modules_to_save": "modules_to_save",
}


def wanted(request: Request) -> bool:
    """Whether the run trains adapters. Raises MeasureError for a kind of tuning that is not full and not LoRA."""
    tuning = request["facts"].get("tuning")
    if tuning in (None, "", "full"):
        return False
    if tuning in ("lora", "dora"):
        return True
    raise MeasureError(
        f"{request['keys']['tuning']}: {tuning} wraps the model in a way that only the training code knows: write "
        "[probe] model, batch and step in memlint.toml"
    )


def config(request: Request, class_name: str) -> Any:
    """A peft.LoraConfig of the facts. Raises MeasureError without peft."""
    facts, key = request["facts"], request["keys"]["tuning"]
    peft = library("peft", f"{key} = {facts['tuning']} wraps the model")
    options = {option: facts[fact] for fact, option in OPTIONS.items() if facts.get(fact) is not None}
    task = next((task for part, task in TASKS.items() if part in class_name), None)
    try:
        return peft.LoraConfig(task_type=task, use_dora=facts["tuning"] == "dora", **options)
    except (TypeError, ValueError) as error:
        raise MeasureError(f"{key}: peft does not take {options}: {said(error)}") from None


def wrapped(model: Any, request: Request) -> Any:
    """A transformers model with adapters, the rest of it frozen (``peft.get_peft_model``)."""
    settings = config(request, type(model).__name__)
    import peft

    # Adapters beside 16-bit weights are fp32, unless they are told to stay.
    kept = request["facts"].get("lora.dtype") in (None, "float32")
    try:
        return peft.get_peft_model(model, settings, autocast_adapter_dtype=kept)
    except ValueError as error:
        raise MeasureError(f"{request['keys']['tuning']}: {said(error)}") from None
