"""Whose code computes a decoder: that of its trainer's library, of transformers, or what comes with its weights."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel, split
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.parts import XIELU_KERNEL

# By the fact ``implementation``: modules of this folder. Their ``model(spec, config, kind, options)`` is None for a
# decoder that the library leaves to transformers.
LIBRARIES = {
    "torchtune": "implementations",
    "torchtitan": "implementations",
    "litgpt": "implementations",
    "nanogpt": "gpt2",
    "llm_c": "gpt2",
    "llm_foundry": "llm_foundry",
    "megatron": "megatron",
    "olmo": "olmo",
    "neox": "megatron",
    "nanotron": "nanotron",
    "nanotron qwen2": "nanotron",
}

# By ``Decoder.code``: a module of this folder, and its class.
CLASSES = {
    "baichuan": ("baichuan", "BaichuanModel"),
    "bloom": ("bloom", "BloomModel"),
    "chatglm": ("chatglm1", "ChatGlmModel"),
    "chatglm2": ("chatglm", "TokensFirstModel"),
    "codegen": ("gptj", "GptjModel"),
    "falcon": ("falcon", "FalconModel"),
    "falcon_h1": ("mamba2", "BesideModel"),
    "glm4_chat": ("chatglm", "GlmModel"),
    "gemma4": ("gemma4", "Gemma4Model"),
    "gpt_neo": ("gptj", "GptNeoModel"),
    "gptj": ("gptj", "GptjModel"),
    "internlm": ("like_llama", "InternLmModel"),
    "llama4": ("llama4", "Llama4Model"),
    "minicpm": ("like_llama", "MiniCpmModel"),
    "mpt": ("mpt", "MptModel"),
    "qwen": ("qwen", "QwenModel"),
}
STATE_SPACE = ("mamba2", "InsteadModel")
LINEAR_ATTENTION, CONVOLUTION = ("gated_delta", "HybridModel"), ("short_convolution", "LfmModel")


def decoder(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel:
    """The modules of a decoder. ``kind``: of attention. Raises UnknownModel for what its code has not."""
    library = LIBRARIES.get(spec.get("implementation", "transformers"))
    made: LanguageModel | None = None
    if library is not None:
        made = import_module(f"memlint.models.language.{library}").model(spec, config, kind, options)
    return _of_transformers(spec, config, kind, options) if made is None else made


def _of_transformers(spec: TrainingSpec, config: Decoder, kind: str, options: dict[str, Any]) -> LanguageModel:
    if spec.get("checkpointing") == "blocks" or (spec.get("checkpointing_chunk") or 1) > 1:
        raise UnknownModel("recomputing some layers, or several together, is known in Megatron's code alone")
    kernels = spec.get("fused_kernels") or ()
    if config.hybrid or config.space is not None or config.code in ("gemma4", "llama4"):
        _refuse_what_is_unusual(spec, config, options)
    if config.linear is not None and "gated_delta_rule" in kernels:
        config = config._replace(linear=config.linear._replace(kernels=True))
    if config.activation == "xielu" and "xielu" in kernels:
        config = config._replace(activation=XIELU_KERNEL)
    found = CLASSES.get(config.code)
    if config.hybrid:
        found = LINEAR_ATTENTION if config.linear is not None else CONVOLUTION
    if config.space is not None and config.space.layers:
        found = STATE_SPACE
    if found is None:
        return LanguageModel(config, kind, **options)
    module, name = found
    made: LanguageModel = getattr(import_module(f"memlint.models.language.{module}"), name)(config, kind, **options)
    return made


def _refuse_what_is_unusual(spec: TrainingSpec, config: Decoder, options: dict[str, Any]) -> None:
    for mechanism, met in (
        ("parallelism within the model", split.is_split(spec)),
        ("torch.compile", options["compile"]),
        ("a loop that names what the model returns", spec.get("outputs_kept", False)),
        ("sampling", spec.get("generated_rows")),
        ("a row of several samples, which mamba_ssm's kernels keep apart,", config.space and spec.get("padding_free")),
        ("tuning by a prefix or a prompt", spec.get("tuning") in ("prefix", "adaption_prompt")),
    ):
        if met:
            raise UnknownModel(f"{mechanism} is not known for {config.adapters.name}")
