"""Models of a repository's own, followed: their steps are those that torch takes with the same sources."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel
from tests.differential.own_models import GPT, LLAMA, TRAIN
from tests.differential.test_language_models import TOLERANCE, spec_of
from tests.differential.training import adamw, in_meta, in_torch

ROWS, LENGTH, VOCABULARY = 2, 128, 50304
OF_GPT = TRAIN.format(
    config="GPTConfig",
    model="GPT",
    more="dropout=dropout, bias=bias, written_out=extra",
    call="logits, loss = model(X, Y)",
)
OF_LLAMA = TRAIN.format(
    config="Sizes", model="Model", more="n_kv=2", call="logits = model(X, Y)\n    loss = model.last_loss"
)


def run(source: str, program: str, said: dict[str, Any], dtype: str) -> TrainingSpec:
    told = {"program": "__main__", "sources": {"__main__": program, "model": source}, "said": said, "fixed": {}}
    facts: dict[str, Any] = {
        **{"own_model": told, "micro_batch_size": ROWS, "sequence_length": LENGTH, "compute_dtype": dtype},
        **{"autocast": dtype != "float32", "optimizer": "adamw", "optimizer_implementation": "loop"},
    }
    told["fixed"] = {"meta_vocab_size": None}
    made = spec_of(facts)
    made.architecture = "own_model"
    return made


def reference(source: str, config: str, model: str, arguments: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"print": lambda *_: None, "__name__": "builtins"}
    code = compile(source, "model.py", "exec", dont_inherit=True)
    builtins.exec(code, names)
    held: dict[str, Any] = {}

    def loss(made: Any, batch: Any) -> Any:
        held["logits"] = made(*batch)
        return held["logits"][1] if isinstance(held["logits"], tuple) else made.last_loss

    return SimpleNamespace(
        build_model=lambda _: names[model](names[config](**arguments)).train(),
        make_batch=lambda _: [torch.zeros(ROWS, LENGTH, dtype=torch.int64) for _ in range(2)],
        training_loss=loss,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param({}, id="by one kernel"),
        pytest.param({"extra": True, "bias": True}, id="attention and activation written out"),
        pytest.param({"extra": True, "dropout": 0.1, "n_layer": 3}, id="with dropout"),
        pytest.param({"dropout": 0.1, "n_embd": 256, "n_head": 8}, id="by one kernel, with dropout"),
    ],
)
def test_a_gpt_of_somebody_s_own_takes_what_it_takes_in_torch(said: dict[str, Any], dtype: str) -> None:
    sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0, "bias": False, "extra": False, **said}
    arguments = {name: value for name, value in sizes.items() if name != "extra"}
    arguments |= {"written_out": sizes["extra"], "block_size": LENGTH, "vocab_size": VOCABULARY}
    theirs = in_torch(reference(GPT, "GPTConfig", "GPT", arguments), {}, adamw("loop"), autocast=dtype)
    ours = in_meta(run(GPT, OF_GPT, said, dtype))
    assert (ours.parameters, ours.saved) == (theirs.parameters, theirs.saved)
    assert ours.phases == pytest.approx(theirs.phases, rel=TOLERANCE)


def test_a_list_of_places_copies_what_it_chooses() -> None:
    source = GPT.replace("x = self.transformer.ln_f(x)", "x = self.transformer.ln_f(x)\n        x = x[:, [0, 2, 4], :]")
    source = source.replace("targets.view(-1)", "targets[:, [0, 2, 4]].reshape(-1)")
    arguments = {"n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0, "bias": False, "written_out": False}
    arguments |= {"block_size": LENGTH, "vocab_size": VOCABULARY}
    theirs = in_torch(reference(source, "GPTConfig", "GPT", arguments), {}, adamw("loop"))
    ours = in_meta(run(source, OF_GPT, {}, "float32"))
    assert ours.parameters == theirs.parameters
    assert ours.phases == pytest.approx(theirs.phases, rel=TOLERANCE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_llama_of_somebody_s_own_takes_what_it_takes_in_torch(dtype: str) -> None:
    arguments = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_kv": 2, "block_size": LENGTH, "vocab_size": VOCABULARY}
    theirs = in_torch(reference(LLAMA, "Sizes", "Model", arguments), {}, adamw("loop"), autocast=dtype)
    ours = in_meta(run(LLAMA, OF_LLAMA, {}, dtype))
    assert (ours.parameters, ours.saved) == (theirs.parameters, theirs.saved)
    assert ours.phases == pytest.approx(theirs.phases, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        pytest.param("x = self.act(x)", "x = torch.special.erf(x)", "special", id="an operation that nobody describes"),
        pytest.param(
            "if self.written_out:\n            scores",
            "if x.sum() > 0:\n            scores",
            "condition",
            id="a condition on numbers",
        ),
        pytest.param("return logits, loss", "return logits, logits", "no loss", id="another thing than a loss"),
        pytest.param("self.out(y)", "ours(y)", "ours is not known", id="a function that is not there"),
        pytest.param(
            "class Block(nn.Module)", "class Block(nn.Linear)", "library's", id="a layer with a forward of its own"
        ),
    ],
)
def test_what_is_not_followed_is_told_with_its_line(old: str, new: str, why: str) -> None:
    assert old in GPT
    with pytest.raises(UnknownModel, match=why):
        in_meta(run(GPT.replace(old, new), OF_GPT, {}, "float32"))
