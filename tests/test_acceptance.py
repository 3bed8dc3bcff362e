"""What the first milestone promises, as a user meets it: counts in JSON, the README's report, and what goes wrong."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memlint.cli.main import main
from memlint.units import GiB
from tests import demo_family

pytestmark = pytest.mark.usefixtures("answers_kept")

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@cache
def as_json(config: str, *overrides: str) -> dict[str, Any]:
    options = [argument for override in overrides for argument in ("-o", override)]
    result = invoke("check", str(EXAMPLES / config), "--isolated", "--exit-zero", "--output-format", "json", *options)
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)["files"]
    return dict(found)


def parameters(config: str, part: str, *overrides: str) -> int:
    """Parameters of a run, or of one part of it."""
    model = as_json(config, *overrides)["model"]
    if not part:
        return int(model["parameters"])
    [found] = [entry for entry in model["parts"] if entry["name"] == part]
    return int(found["parameters"])


# -- parameters, to the last one ---------------------------------------------------------------------------------

UNI3D = "uni3d_dp/uni3d+dp.yaml"
POINTNET = (
    "policy.pointnet_type=pointnet",
    "policy.use_pc_color=false",
    "+policy.pointcloud_encoder_cfg.out_channels=64",
    "+policy.pointcloud_encoder_cfg.use_layernorm=true",
    "+policy.pointcloud_encoder_cfg.final_norm=layernorm",
)
STDIFF = "stdiff/kitti_range_train_config.yaml"
FIRST_VERSION = (
    "STDiff.Diffusion.unet_config.block_out_channels=[128,256,512,768,1024]",
    "STDiff.Diffusion.unet_config.attention_head_dim=[null,32,64,192,256]",
    "Dataset.batch_size=1",
)
LAG = "lag_mode/train_lag_mode.sh"
VIDEO = "video_llm/config.yaml"
QWEN = ("model.llm.name=Qwen/Qwen2-1.5B",)


def latents(size: str) -> tuple[str, ...]:
    """The DiT paper's models in this family's keys: one frame of 4-channel latents, and no text."""
    return (
        f"DIT_MODEL_SIZE=DiT3D-{size}/2",
        "INPUT_SHAPE=[4,1,32,32]",
        "DIT_VIDEO_SIZE=[1,32,32]",
        "DIT_PATCH_SIZE=[1,2,2]",
        "DIT_LEARN_SIGMA=true",
        "TEXT_EMBED_DIM=null",
        "TEXT_ENCODER_MODEL=null",
    )


UNI3D_ENCODER = "obs_encoder.extractor.point_encoder"
COUNTS = [
    pytest.param(UNI3D, "model", POINTNET, 255_153_306, id="the 1-D UNet with 26 actions"),
    pytest.param(UNI3D, "", POINTNET, 255_218_138, id="a diffusion policy with PointNet"),
    pytest.param(UNI3D, "obs_encoder.extractor", POINTNET, 59_072, id="PointNet"),
    pytest.param(UNI3D, UNI3D_ENCODER, (), 6_384_448, id="Uni3D's tiny point encoder"),
    pytest.param(UNI3D, "", (), 261_609_114, id="a diffusion policy with Uni3D"),
    pytest.param(STDIFF, "tde_model.motion_encoder", (), 1_812_480, id="STDiff's motion encoder"),
    pytest.param(STDIFF, "tde_model.dynamics", (), 4_720_640, id="STDiff's nets of the differential equation"),
    pytest.param(STDIFF, "tde_model.gru", (), 3_539_712, id="STDiff's ConvGRU"),
    pytest.param(STDIFF, "diffusion_unet", (), 194_150_465, id="STDiff's UNet"),
    pytest.param(STDIFF, "", (), 204_223_297, id="STDiff"),
    pytest.param(STDIFF, "", FIRST_VERSION, 532_990_017, id="STDiff's first version"),
    pytest.param(LAG, "dit", (), 27_965_352, id="lag mode's DiT"),
    pytest.param(LAG, "encoder", (), 5_733_014, id="lag mode's set encoder"),
    pytest.param(LAG, "time_embed", (), 82_432, id="lag mode's time embedding"),
    pytest.param(LAG, "", (), 27_965_352 + 5_733_014 + 82_432, id="lag mode"),
    pytest.param("dit3d/config.py", "", latents("S"), 32_865_056, id="DiT-S/2"),
    pytest.param("dit3d/config.py", "", latents("B"), 130_315_808, id="DiT-B/2"),
    pytest.param("dit3d/config.py", "", latents("L"), 457_840_672, id="DiT-L/2"),
    pytest.param("dit3d/config.py", "", latents("XL"), 674_834_720, id="DiT-XL/2"),
    pytest.param(VIDEO, "llm", (), 2_506_172_416, id="Gemma 2B"),
    pytest.param(VIDEO, "llm", QWEN, 1_543_714_304, id="Qwen2 1.5B"),
]


@pytest.mark.parametrize(("config", "part", "overrides", "count"), COUNTS)
def test_parameters_in_the_json_report(config: str, part: str, overrides: tuple[str, ...], count: int) -> None:
    assert parameters(config, part, *overrides) == count


SAVED = [
    # A group norm on CUDA copies what attention leaves channels-last (5.25 GiB), and the parts around the UNet keep
    # 1.4 GiB: the traced figures are the UNet's alone.
    pytest.param(STDIFF, (), 521.4 + 5.25 + 1.37, id="STDiff with plain attention"),
    pytest.param(STDIFF, ("Training.use_xformers=true",), 95.3 + 5.25 + 1.37, id="STDiff with xformers"),
    pytest.param(UNI3D, (), 6.48 + 0.33, id="Uni3D and the 1-D UNet"),
    pytest.param(LAG, (), 53.3, id="lag mode"),
    pytest.param(LAG, ("mode_conditioning=film",), 44.0, id="film mode"),
]


@pytest.mark.parametrize(("config", "overrides", "gib"), SAVED)
def test_saved_bytes_in_the_json_report(config: str, overrides: tuple[str, ...], gib: float) -> None:
    assert as_json(config, *overrides)["estimate"]["saved_bytes"] / GiB == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize("config", [UNI3D, STDIFF, LAG, VIDEO, "dit3d/config.py"])
def test_components_add_up_to_the_peak(config: str) -> None:
    estimate = as_json(config)["estimate"]
    assert sum(component["bytes"] for component in estimate["components"]) == estimate["device_bytes"]
    assert estimate["low_bytes"] <= estimate["device_bytes"] <= estimate["high_bytes"]
    for component in estimate["components"]:
        assert sum(part["bytes"] for part in component["parts"]) <= component["bytes"]


# -- the README --------------------------------------------------------------------------------------------------


def readme_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_what_memlint_says_today() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_script().renewed(text) == text, "run python docs/readme.py"


def test_the_readme_needs_its_markers() -> None:
    with pytest.raises(ValueError, match="needs one block <!-- report -->"):
        readme_script().renewed("# memlint\n")


def test_the_readmes_first_command_is_the_one_that_is_shown() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"\.venv/bin/memlint (check .*)$", text.partition("<!-- report -->")[0], re.MULTILINE)
    assert tuple(command.split()) == readme_script().COMMAND


def test_the_first_command_says_where_the_memory_goes() -> None:
    result = invoke("check", str(EXAMPLES / UNI3D), "--isolated", "--budget", "16GB")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert re.match(
        r"FITS examples/.*: peak .*, budget 16\.0 GiB .*: [\d.]+ GiB free$", lines[0].replace(f"{ROOT}/", "")
    )
    assert "261,609,114 parameters" in lines[1]
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("activations"))
    assert lines[start + 1].endswith("(mini-PointNet)"), "the largest part of the activations comes first"
    largest, second = (float(line.split()[0]) for line in lines[start + 1 : start + 3])
    assert largest > second > 1
    [attention] = [line for line in lines if "attention probabilities" in line]
    # 256 clouds x 3 heads x 65 x 65 tokens x 4 B x 12 layers: not the 25.8 GB of the analysis
    exact = 256 * 3 * 65 * 65 * 4 * 12
    assert attention.strip() == (
        f"0 B  attention probabilities: the kernel is fused (plain attention would keep {exact / 2**20:.0f} MiB)"
    )


def test_the_first_command_gives_the_right_number_and_the_right_line() -> None:
    found = as_json(UNI3D)
    estimate = found["estimate"]
    assert 11.2 * GiB <= estimate["allocated_bytes"] <= 11.5 * GiB
    assert 11.4 * GiB <= estimate["device_bytes"] <= 14 * GiB
    assert estimate["attention"] == {"kept_bytes": 0, "avoided_bytes": 256 * 3 * 65 * 65 * 4 * 12}
    [finding] = [finding for finding in found["findings"] if finding["code"] == "MEM201"]
    line = (EXAMPLES / UNI3D).read_text(encoding="utf-8").splitlines()[finding["line"] - 1]
    assert line == "  batch_size: 128"
    assert line[finding["column"] - 1 : finding["end_column"] - 1] == "batch_size"
    assert "batch_size 128 x n_obs_steps 2 x num_group 64 x group_size 32 = 524,288 points" in finding["message"]


# -- what goes wrong ---------------------------------------------------------------------------------------------

MALFORMED = [
    pytest.param("config.yaml", "training:\n  batch_size: [4\n", 3, id="YAML"),
    pytest.param("config.json", '{"training": {"batch_size": 4,}}\n', 1, id="JSON"),
    pytest.param("config.toml", "[training]\nbatch_size =\n", 2, id="TOML"),
    pytest.param("train.sh", "python main_jax.py \\\n  --batch_size $((1 +\n", 2, id="shell"),
    pytest.param("config.py", "class Config:\n    BATCH_SIZE = (1,\n", 2, id="Python"),
]


@pytest.mark.parametrize(("name", "text", "line"), MALFORMED)
def test_a_malformed_file_is_a_parse_error_on_its_line(name: str, text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    result = invoke("check", str(tmp_path / name), "--isolated", "--output-format", "json")
    assert result.exit_code == 1
    [found] = json.loads(result.stdout)["files"]
    assert found["estimate"] is None
    [finding] = found["findings"]
    assert (finding["code"], finding["severity"], finding["line"]) == ("MEM003", "error", line)


@pytest.mark.parametrize(("name", "text", "line"), MALFORMED)
def test_a_malformed_file_met_in_a_folder_is_passed_over(name: str, text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    result = invoke("check", str(tmp_path), "--isolated", "-v")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "memlint: no training configs found in " in result.stderr
    assert f"{name}: passed over, line {line}: " in result.stderr


WRONG_TYPES = [
    pytest.param(VIDEO, "batch_size: 4", 'batch_size: "many"', '"many"', id="YAML"),
    pytest.param("dit3d/config.py", "BATCH_SIZE = 1 ", 'BATCH_SIZE = "many" ', '"many"', id="Python"),
    pytest.param(LAG, "BATCH_SIZE=32", "BATCH_SIZE=many", "many", id="shell"),
    pytest.param(
        UNI3D, "\ndataloader:\n  batch_size: 128", '\ndataloader:\n  batch_size: "many"', '"many"', id="Hydra"
    ),
    pytest.param(STDIFF, "  batch_size: 2\n", "  batch_size: 0\n", "0", id="a number out of bounds"),
]


@pytest.mark.parametrize(("config", "old", "new", "selected"), WRONG_TYPES)
def test_a_wrong_type_is_an_error_on_the_value_and_no_estimate_is_guessed(
    config: str, old: str, new: str, selected: str, tmp_path: Path
) -> None:
    source = EXAMPLES / config
    for path in source.parent.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ".py", ".sh"):
            target = tmp_path / path.relative_to(source.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    text = source.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / source.name
    path.write_text(text.replace(old, new), encoding="utf-8")
    result = invoke("check", str(path), "--isolated", "--output-format", "json")
    assert result.exit_code == 1
    [found] = json.loads(result.stdout)["files"]
    [finding] = [finding for finding in found["findings"] if finding["code"] == "MEM008"]
    line = path.read_text(encoding="utf-8").splitlines()[finding["line"] - 1]
    assert line[finding["column"] - 1 : finding["end_column"] - 1] == selected
    assert found["estimate"] is None
    assert "MEM007" in {finding["code"] for finding in found["findings"]}


def test_a_missing_file(tmp_path: Path) -> None:
    result = invoke("check", str(tmp_path / "none.yaml"), "--isolated")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("none.yaml: no such file or folder\n")


def test_a_folder_without_configs(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("title: notes\n")
    result = invoke("check", str(tmp_path), "--isolated")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("memlint: no training configs found in ")


@pytest.mark.parametrize("command", ["check", "explain", "rule", "gpus", "config"])
def test_an_unknown_option(command: str) -> None:
    result = invoke(command, "--budgte", "16GB")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--budgte" in result.stderr


def test_a_rule_that_raises_is_a_finding_and_the_others_are_still_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    demo_family.install(monkeypatch)
    path = tmp_path / "config.yaml"
    path.write_text("demo:\n  batch: 200\n  width: 13\n")  # a width that one of the demonstration's rules breaks on
    result = invoke("check", str(path), "--isolated", "--output-format", "concise", "--exit-zero")
    assert result.exit_code == 2
    _, first, second = result.stdout.splitlines()
    assert re.search(r"config\.yaml:1:1: MEM001 rule MEM991 raised KeyError", first)
    assert " MEM990 " in second


def test_a_real_rule_that_raises_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint.rules.mem306_ema_on_gpu import EmaOnGpu

    def check(self: EmaOnGpu, run: Any) -> Any:
        raise ZeroDivisionError("broken")

    before = invoke("check", str(EXAMPLES / UNI3D), "--isolated", "--output-format", "concise").stdout.splitlines()
    monkeypatch.setattr(EmaOnGpu, "check", check)
    result = invoke("check", str(EXAMPLES / UNI3D), "--isolated", "--output-format", "concise")
    assert result.exit_code == 2
    after = result.stdout.splitlines()
    assert [line for line in before if "MEM306" not in line] == [line for line in after if "MEM001" not in line]
    [crash] = [line for line in after if "MEM001" in line]
    assert "rule MEM306 raised ZeroDivisionError: broken" in crash
