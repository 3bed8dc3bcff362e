"""Family timm: runs of its train.py, and what keeps one from an estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.data import programs
from memlint.dialects import registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, HYPER, Name
from memlint.fixes.edits import apply_edits
from memlint.models import record
from memlint.models.classifier import Classification
from memlint.profiles import shipped
from tests.dialects.language_models import run

COMMAND = "python train.py --data-dir images --model resnet18 -b 8 --opt adamw"
ARGS = """\
model: resnet18
opt: sgd
sched: cosine
batch_size: 8
amp: true
amp_dtype: bfloat16
num_classes: 10
img_size: 160
input_size: null
grad_checkpointing: true
model_ema: true
"""


def test_a_command_is_the_run_that_timm_makes_of_it() -> None:
    spec = run(f"{COMMAND} --amp\n", "run.sh")
    assert spec.architecture == "classifier"
    assert (spec["image_size"], spec["compute_dtype"], spec["parameter_dtype"]) == (224, "float16", "float32")
    assert (spec["optimizer"], spec["optimizer_implementation"]) == ("adamw", "foreach")


def test_its_script_for_several_cards_is_a_run_on_so_many() -> None:
    spec = run(COMMAND.replace("python train.py", "./distributed_train.sh 4") + "\n", "run.sh")
    assert spec.architecture == "classifier"
    assert (spec["device_count"], spec["micro_batch_size"]) == (4, 8)


def test_the_arguments_that_timm_leaves_behind_are_the_same_run() -> None:
    spec = run(ARGS, "args.yaml")
    assert spec.architecture == "classifier"
    assert (spec["image_size"], spec["compute_dtype"], spec["optimizer"]) == (160, "bfloat16", "sgd")
    assert (spec["checkpointing"], spec["ema"]) == ("full", True)
    assert Classification(spec).sizes == {"B": 8, "H": 160, "W": 160, "K": 10}


@pytest.mark.parametrize("name", ["resnet18", "resnet18.a1_in1k", "timm/resnet18", "hf-hub:timm/resnet18.tv_in1k"])
def test_every_spelling_of_a_name_is_the_model_it_names(name: str) -> None:
    spec = run(COMMAND.replace("resnet18", name) + "\n", "run.sh")
    assert record(spec).parameters == 11_689_512


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("--kd-model-name resnet50", "a teacher"),
        ("--torchscript", "a scripted model"),
        ("--torchcompile", "compiled"),
        ("--in-chans 1", "images of 1 channels"),
        ("--model-kwargs img_size=64", "changed by arguments"),
        ("--drop 0.2", "dropout before the last layer"),
        ("--model-dtype bfloat16", "weights in 16 bits"),
    ],
)
def test_what_makes_another_model_or_loop_is_unknown_by_its_name(more: str, reason: str) -> None:
    spec = run(f"{COMMAND} {more}\n", "run.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize("optimizer", ["kron", "madgrad", "adan"])
def test_an_optimizer_that_timm_wrote_is_unknown_by_its_name(optimizer: str) -> None:
    spec = run(COMMAND.replace("adamw", optimizer) + "\n", "run.sh")
    assert f"timm's optimizer {optimizer!r}" in spec.unknown_reason


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        pytest.param("lamb", 8, id="two moments"),
        pytest.param("rmsproptf", 8, id="a mean of squares, and momentum"),
        pytest.param("fusedlamb", 8, id="apex's kernels"),
        pytest.param("fusedadam", 8, id="apex's Adam"),
    ],
)
def test_optimizers_of_timm_s_own_and_of_apex_keep_what_theirs_do(optimizer: str, states: int) -> None:
    spec = run(COMMAND.replace("adamw", optimizer) + "\n", "run.sh")
    assert spec.unknown_reason == ""
    made = record(spec)
    begin = next(at for at, phase in made.tape.marks if phase == "forward")
    births = [event for event in made.tape.events[:begin] if event >= 0]
    kept = sum(made.tape.sizes[event] for event in births if made.tape.labels[event].component == "optimizer")
    assert kept == states * made.trainable_parameters


def test_a_model_whose_program_does_not_ship_is_unknown_by_its_name() -> None:
    spec = run(COMMAND.replace("resnet18", "no_such_net") + "\n", "run.sh")
    assert spec.unknown_reason.startswith("the model no_such_net is none of timm's that memlint knows: ")


OWN = """\
import torch
from timm.models.registry import register_model

class Net(torch.nn.Module): ...

@register_model
def resnet18(pretrained=False, **kwargs):
    return Net()

def resnet50(): ...
"""


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param("nets.py", "import nets", id="a module"),
        pytest.param("nets.py", "from nets import resnet18 as made", id="a name of it"),
        pytest.param("models/nets.py", "from models import nets", id="a module of a package"),
        pytest.param("models/__init__.py", "import models", id="a package"),
        pytest.param("train.py", "", id="the program itself"),
    ],
)
def test_a_model_that_the_program_registers_goes_before_timm_s(place: str, said: str, tmp_path: Path) -> None:
    """MetaFormer's train.py takes convformer_s18 from a file beside it, and timm's of that name was estimated."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "train.py").write_text(f"import timm\n{said}\n", encoding="utf-8")
    kept = (tmp_path / place).read_text(encoding="utf-8") if (tmp_path / place).exists() else ""
    (tmp_path / place).write_text(kept + OWN, encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(COMMAND + "\n" + COMMAND.replace("resnet18", "resnet50") + "\n", encoding="utf-8")
    own, other = registry.specs(load(str(script)))
    assert own.architecture is None
    assert own.unknown_reason.startswith(f"the model resnet18 is this repository's own, in {place}, which memlint does")
    assert other.architecture == "classifier"  # a function that nothing registers is no model


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param("other.py", "import nets", id="a module that the program does not import"),
        pytest.param("timm/nets.py", "from timm import nets", id="a copy of timm itself"),
    ],
)
def test_what_another_file_registers_is_no_model_of_the_program_s(place: str, said: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "timm").mkdir()
    (tmp_path / "train.py").write_text(f"import timm\n{said}\n", encoding="utf-8")
    (tmp_path / place).write_text(OWN, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"{COMMAND}\n", encoding="utf-8")
    [spec] = registry.specs(load(str(tmp_path / "run.sh")))
    assert spec.architecture == "classifier"


def test_weights_of_another_data_set_leave_the_classes_to_say() -> None:
    named = COMMAND.replace("resnet18", "resnet18.fb_swsl_ig1b")
    assert "--num-classes" in run(f"{named}\n", "run.sh").unknown_reason
    assert not run(f"{named} --num-classes 12\n", "run.sh").unknown_reason


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("vit_base_patch16_224_in21k", "vit_base_patch16_224.augreg_in21k"),
        ("tf_efficientnet_b0_ns", "tf_efficientnet_b0.ns_jft_in1k"),
        ("ssl_resnet18", "resnet18.fb_ssl_yfcc100m_ft_in1k"),
        ("efficientnet_es_pruned", "efficientnet_es"),
    ],
)
def test_a_name_of_older_releases_is_the_model_that_has_another_today(former: str, today: str) -> None:
    one, other = (run(COMMAND.replace("resnet18", name) + " --num-classes 7\n", "run.sh") for name in (former, today))
    assert (record(one).parameters, one["image_size"]) == (record(other).parameters, other["image_size"])


def test_a_name_that_today_s_timm_mistakes_for_another_model_s_is_unknown() -> None:
    assert run(COMMAND.replace("resnet18", "ig_resnext101_32x48d") + "\n", "run.sh").architecture is None


@pytest.mark.parametrize(
    ("name", "side"),
    [("resnet50", 224), ("resnet50.a1_in1k", 224), ("resnet50.a3_in1k", 160), ("convnext_tiny_384_in22ft1k", 384)],
)
def test_images_are_of_the_size_that_the_weights_of_a_tag_are_for(name: str, side: int) -> None:
    spec = run(COMMAND.replace("resnet18", name) + " --num-classes 7\n", "run.sh")
    assert spec["image_size"] == side


def test_a_model_that_is_made_without_a_last_layer_leaves_the_classes_to_say() -> None:
    spec = run(COMMAND.replace("resnet18", "vit_base_patch14_dinov2") + "\n", "run.sh")
    assert "--num-classes" in spec.unknown_reason


def test_a_model_that_is_made_with_other_than_a_thousand_classes_has_so_many() -> None:
    spec = run(COMMAND.replace("resnet18", "vit_base_patch16_224_miil") + "\n", "run.sh")
    assert Classification(spec).sizes["K"] == 11_221


def test_dropped_paths_are_taken_at_the_model_s_own_rate() -> None:
    fact = run(f"{COMMAND} --drop-path 0.1\n", "run.sh").facts[HYPER + "drop_path"]
    assert fact.origin == ASSUMED


def peak(more: str, text: str = COMMAND) -> dict[str, int]:
    """Bytes by component that are alive when backward begins, summed over what the tape says."""
    tape = record(run(f"{text} {more}\n", "run.sh")).tape
    end = max(at for at, name in tape.marks if name == "backward")
    alive: set[int] = set()
    for event in tape.events[:end]:
        if event >= 0:
            alive.add(event)
        else:
            alive.discard(~event)
    found: dict[str, int] = {}
    for number in alive:
        component = tape.labels[number].component
        found[component] = found.get(component, 0) + tape.sizes[number]
    return found


IMAGES = 8 * 3 * 224 * 224 * 4


def test_the_prefetcher_has_the_next_images_on_the_card() -> None:
    assert sum(peak("").values()) - sum(peak("--no-prefetcher").values()) == IMAGES


def test_channels_last_leaves_the_loader_its_own_images() -> None:
    assert sum(peak("--channels-last").values()) - sum(peak("").values()) == IMAGES


def test_an_average_on_the_host_takes_nothing_of_the_card() -> None:
    assert peak("--model-ema")["ema"] > 4 * 11_689_512
    assert "ema" not in peak("--model-ema --model-ema-force-cpu")


def test_sgd_keeps_a_state_where_it_has_momentum() -> None:
    text = COMMAND.replace("--opt adamw", "")
    assert peak("", text)["optimizer"] == 4 * 11_689_512
    assert "optimizer" not in peak("--momentum 0", text)


def test_checkpointing_is_the_blocks_that_timm_checkpoints() -> None:
    assert peak("--grad-checkpointing")["activations"] < 0.6 * peak("")["activations"]


@pytest.mark.parametrize(
    ("fact", "value", "words"),
    [("checkpointing", "full", " --grad-checkpointing"), ("gradient_accumulation_steps", 2, " --grad-accum-steps 2")],
)
def test_a_key_that_is_absent_is_added_with_dashes(fact: Name, value: object, words: str) -> None:
    text = f"{COMMAND}\n"
    spec = run(text, "run.sh")
    assert apply_edits(text, spell(spec, fact, value)) == f"{COMMAND}{words}\n"


def test_every_program_that_ships_is_one() -> None:
    names = programs.names("timm")
    assert "resnet50" in names
    for name in names:
        program = shipped.program(f"timm/{name}")
        assert {"B", "H", "W", "K"} == set(program.sizes)


def test_every_program_that_ships_is_found_by_a_command_that_names_its_model() -> None:
    for name in programs.names("timm"):
        spec = run(f"python train.py --data-dir images --model {name} -b 8 --num-classes 7\n", "run.sh")
        assert (spec.architecture, spec.unknown_reason) == ("classifier", ""), name
        assert spec["image_size"] == shipped.program(f"timm/{name}").sizes["H"], name


@pytest.mark.parametrize("name", ["../secrets", "timm/../../x", "timm/no_such_net", "", "timm/" + "x" * 300])
def test_a_name_that_is_no_program_reads_no_file(name: str) -> None:
    with pytest.raises(KeyError):
        shipped.program(name)


@pytest.mark.parametrize(
    ("options", "family", "known"),
    [
        ("--model vit_b_16 --epochs 300 --batch-size 512 --opt adamw --amp", "torchvision", True),
        ("--model mobilenet_v2 -b 32", "torchvision", True),
        ("--model vit_l_32 --opt adamw -b 8", "torchvision", False),
        ("--model vit_b_16 --opt adamw --sched cosine", "timm", False),
        ("--model resnet50 --opt sgd -b 32", "timm", True),
        ("--model resnet50 --batch-size 32 --amp", "program", False),
    ],
    ids=["its name and options", "a batch", "no program", "an option of timm's", "a name of both", "nothing tells"],
)
def test_a_name_that_torchvision_alone_has_is_of_its_script(options: str, family: str, known: bool) -> None:
    spec = run(f"torchrun --nproc_per_node=8 train.py {options}\n", "run.sh")
    assert (spec.family, spec.architecture == "classifier") == (family, known)
    whose = "none of timm's" if family == "timm" else f"made by the code of {family}"
    assert known or family == "program" or whose in spec.unknown_reason


def test_the_folder_of_torchvision_s_script_tells_as_well() -> None:
    command = "torchrun --nproc_per_node=2 vision/references/classification/train.py --model resnet50 -b 32"
    assert run(f"{command}\n", "run.sh").family == "torchvision"
