"""`memlint fit`: its plan is what a check of the changed files says, changes what it names, and nothing milder fits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

import memlint
from memlint.check import check_paths
from memlint.cli.main import main
from memlint.fixes import levers, limits, search
from memlint.fixes.search import Allowed, Plan
from memlint.plugin import Fix, Run
from memlint.settings import Resolver
from memlint.tape.estimate import FITS
from tests.fixes.test_applied import _COMMENT, PLAIN, placed, shares, texts_below
from tests.fixes.test_promises import WRITTEN, read, readable, samples_per_step
from tests.test_rules import EXAMPLES
from tests.test_spans import Tree

pytestmark = pytest.mark.usefixtures("answers_kept")

SCHEMA = Draft202012Validator(json.loads((EXAMPLES.parent / "schemas" / "fit.schema.json").read_text(encoding="utf-8")))


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["fit", "--isolated", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def planned(path: Path, budget: str, allowed: Allowed = Allowed()) -> tuple[Run, Plan]:  # noqa: B008
    found: list[tuple[Run, Plan | None]] = []
    resolver = Resolver({"budget": budget, "select": ["MEM003"], "work-limit": 200}, "", True)
    check_paths([str(path)], resolver, look=lambda run: found.append((run, search.plan(run, allowed))))
    [(run, plan)] = found
    assert plan is not None
    return run, plan


def hold(path: Path, budget: str) -> None:
    """Apply a plan, look at all that came of it, and ask for one once more."""
    run, plan = planned(path, budget)
    before = texts_below(path.parent)
    comments = {name: _COMMENT.findall(text.decode()) for name, text in before.items()}
    old = memlint.check(str(path), isolated=True, budget=budget, select=["MEM003"]).runs[0]
    told = invoke(str(path), "--budget", budget, "--patch")
    assert texts_below(path.parent) == before, "--patch has written"
    assert told.exit_code == (0 if plan.fits else 2 if plan.edits else 1), told.output
    result = invoke(str(path), "--budget", budget, "--apply")
    after = texts_below(path.parent)
    if not plan.fits:
        assert after == before, "what does not fit was written"
        assert "too much at the nearest" in invoke(str(path), "--budget", budget).stdout
        assert plan.estimate.verdict(run.budget_bytes) != FITS
        return
    assert result.exit_code == 0, result.output
    [now] = memlint.check(str(path), isolated=True, budget=budget, select=["MEM003"]).runs
    assert now.estimate is not None
    assert (now.verdict, now.estimate.device_interval) == (FITS, plan.estimate.device_interval)
    assert now.estimate.device_bytes == plan.estimate.device_bytes
    assert samples_per_step(now) == samples_per_step(old), "another effective batch size"
    for name in before:
        if after[name] != before[name]:
            assert readable(Path(name), read(name)) == ""
            assert _COMMENT.findall(read(name)) == comments[name], "a comment was lost"
    assert "nothing to change" in invoke(str(path), "--budget", budget).stdout
    invoke(str(path), "--budget", budget, "--apply")
    assert texts_below(path.parent) == after, "a second run has changed something"


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", WRITTEN)
def test_families_of_many_formats(name: str, share: float, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    hold(path, shares(path, share))


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("config", PLAIN)
def test_examples(config: str, share: float, tmp_path: Path) -> None:
    shutil.copytree((EXAMPLES / config).parent, tmp_path / "config")
    (tmp_path / ".git").mkdir()
    path = tmp_path / "config" / Path(config).name
    hold(path, shares(path, share))


@pytest.mark.parametrize(
    "config", ["uni3d_dp/uni3d+dp_upstream_default.yaml", "language_models/full_llamafactory.yaml"]
)
def test_without_any_of_its_changes_a_plan_does_not_fit(config: str) -> None:
    path = EXAMPLES / config
    run, plan = planned(path, shares(path, 0.3))
    assert plan.fits
    found = search._Search(run, Allowed())
    every = search.moves(run, Allowed())
    told = {step.said for step in plan.steps}
    tiers = [step.tier for step in plan.steps]
    assert tiers == sorted(tiers)
    for move in every:
        if move.tier < max(tiers):
            continue
        others = [other for other in every if other.tier < max(tiers)]
        assert found._fitting(others) is None, f"the milder changes alone fit, and {told} is named"


def test_values_in_other_files_are_changed_where_they_stand(tmp_path: Path) -> None:
    tree = Tree("uni3d_dp", tmp_path)
    tree.write("size/large.yaml", "# @package _global_\ndataloader:\n  batch_size: 256  # too many\n")
    tree.edit("uni3d+dp.yaml", ("  - task: adroit_hammer\n", "  - task: adroit_hammer\n  - _self_\n  - size: large\n"))
    path = tree.folder / "uni3d+dp.yaml"
    budget = shares(path, 0.3)
    _, plan = planned(path, budget)
    assert {Path(edit.span.path).name for edit in plan.edits} == {"large.yaml", "uni3d+dp.yaml"}
    hold(path, budget)
    assert "# too many" in (tree.folder / "size/large.yaml").read_text()


def test_a_run_that_fits_needs_nothing() -> None:
    _, plan = planned(EXAMPLES / "uni3d_dp/uni3d+dp_after.yaml", "40GB")
    assert (plan.fits, plan.steps, plan.edits) == (True, (), ())


@pytest.mark.parametrize("question", ["--smallest-card", "--fewest-cards"])
def test_json_of_a_question_is_as_its_schema_says(question: str) -> None:
    path = str(EXAMPLES / "uni3d_dp/uni3d+dp_after.yaml")
    budget = [] if question == "--smallest-card" else ["--gpu", "rtx4090"]
    data = json.loads(invoke(path, *budget, "--output-format", "json", question).stdout)
    SCHEMA.validate(data)
    assert "plan" not in data["runs"][0]


def test_json_says_what_the_text_says() -> None:
    path = str(EXAMPLES / "language_models" / "dpo_trl.yaml")
    told = invoke(path, "--budget", "16GB", "--output-format", "json")
    SCHEMA.validate(json.loads(told.stdout))
    [run] = json.loads(told.stdout)["runs"]
    assert (told.exit_code, run["verdict"], run["budget_bytes"]) == (0, "OOM", 16 << 30)
    text = invoke(path, "--budget", "16GB").stdout
    assert run["plan"]["fits"]
    for step in run["plan"]["steps"]:
        assert f"{step['change']}  ({step['tier']})" in text
    told = invoke(path, "--budget", "40GB", "--output-format", "json", "--largest-batch")
    SCHEMA.validate(json.loads(told.stdout))
    [run] = json.loads(told.stdout)["runs"]
    inside, outside = run["largest_batch"]["inside"], run["largest_batch"]["outside"]
    assert int(outside["value"]) == int(inside["value"]) + 1
    assert inside["peak"]["high_bytes"] <= 40 << 30 < outside["peak"]["high_bytes"]
    assert invoke(path, "--budget", "16GB", "--output-format", "json", "--patch").exit_code == 2


FULL = {
    "trl.yaml": (
        "model_name_or_path: Qwen/Qwen2.5-7B  # the base model\nper_device_train_batch_size: 1\nmax_length: 1024\n"
        "output_dir: x\nbf16: true\ngradient_checkpointing: true\n",
        ["use_peft: true", "load_in_4bit: true"],
    ),
    "axolotl.yaml": (
        "base_model: Qwen/Qwen2.5-7B\ndatasets: [{path: a, type: alpaca}]\nsequence_len: 1024\nmicro_batch_size: 1\n"
        "gradient_checkpointing: true\nbf16: true\noptimizer: adamw_torch_fused  # torch's\n",
        ["adapter: lora", "lora_target_linear: true"],
    ),
    "llamafactory.yaml": (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: full  # all of it\n"
        "cutoff_len: 1024\nper_device_train_batch_size: 1\nbf16: true\noutput_dir: x\ntemplate: qwen\ndataset: a\n",
        ["finetuning_type: lora  # all of it"],
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_where_training_all_weights_cannot_fit_adapters_do(name: str, tmp_path: Path) -> None:
    text, written = FULL[name]
    path = tmp_path / name
    path.write_text(text)
    hold(path, "24GB")
    for line in written:
        assert line in path.read_text()


def test_adapters_come_after_whatever_leaves_all_weights_to_train(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FULL["trl.yaml"][0])
    _, plan = planned(path, "80GB")
    assert [step.said for step in plan.steps] == ["add dtype: bfloat16"]


def test_of_two_changes_that_exclude_each_other_the_one_that_fits_is_the_plan(tmp_path: Path) -> None:
    """Weights in half precision, or autocast over those in full: this script takes the one or the other."""
    shutil.copytree(EXAMPLES / "video_llm", tmp_path / "config")
    (tmp_path / ".git").mkdir()
    path = tmp_path / "config" / "config_before.yaml"
    _, plan = planned(path, "48GB")
    assert "dtype float32 -> bfloat16" in [step.said for step in plan.steps]
    hold(path, "48GB")


def test_a_batch_whose_other_pass_is_no_longer_the_larger_one_may_shrink(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 --ds.zero_stage 3 \\\n"
        "  --actor.model_name_or_path Qwen/Qwen2.5-7B --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \\\n"
        "  --train.colocate_all --vllm.enable_sleep --vllm.gpu_memory_utilization 0.5 --reward.remote_url /r.py \\\n"
        "  --train.micro_batch_size 8 --train.batch_size 128 --rollout.micro_batch_size 16 --data.max_len 2048 \\\n"
        "  --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --ds.param_dtype bf16 --ds.packing_samples \\\n"
        "  --actor.gradient_checkpointing_enable --algo.advantage.estimator group_norm\n"
    )
    _, plan = planned(path, shares(path, 0.7))
    assert plan.fits
    assert "--rollout.micro_batch_size 16 -> 4" in " ".join(step.said for step in plan.steps)
    hold(path, shares(path, 0.7))


@pytest.mark.parametrize(
    ("config", "budget", "option", "change"),
    [
        pytest.param("lag_mode/train_lag_mode.sh", "24GB", "--allow-batch", "--batch_size 32 -> 8", id="a batch"),
        pytest.param(
            "video_llm/config_before.yaml", "24GB", "--allow-length", "max_seq_length 8192 -> 512", id="tokens"
        ),
        pytest.param("stdiff/kitti_range_train_config.yaml", "16GB", "--allow-length", "rand_Tp 5 -> 1", id="frames"),
    ],
)
def test_where_nothing_fits_it_is_said_what_else_would(config: str, budget: str, option: str, change: str) -> None:
    path = str(EXAMPLES / config)
    [run] = json.loads(invoke(path, "--budget", budget, "--output-format", "json").stdout)["runs"]
    SCHEMA.validate({"version": 1, "tool": {"name": "memlint", "version": "1"}, "runs": [run]})
    assert not run["plan"]["fits"]
    assert run["plan_beyond"]["options"] == [option]
    assert change in [step["change"] for step in run["plan_beyond"]["steps"]]
    [allowed] = json.loads(invoke(path, "--budget", budget, option, "--output-format", "json").stdout)["runs"]
    assert {"options": [option], **allowed["plan"]} == run["plan_beyond"]
    told = invoke(path, "--budget", budget).stdout
    assert f"with {option} it fits" in told


@pytest.mark.parametrize("config", [*WRITTEN, *PLAIN])
def test_where_a_finding_has_a_fix_that_fits_there_is_a_plan(config: str, tmp_path: Path) -> None:
    path = placed(config, tmp_path) if config in WRITTEN else EXAMPLES / config
    found: list[tuple[Run, Fix]] = []

    def look(run: Run) -> None:
        fix = levers.plan(run)
        if fix is not None:
            found.append((run, fix))

    resolver = Resolver({"budget": shares(path, 0.3), "select": ["MEM003"], "work-limit": 400}, "", True)
    check_paths([str(path)], resolver, details=False, look=look)
    for run, fix in found:
        again = run.read_again(fix.edits)
        assert again is not None
        if search.samples_per_step(again) == search.samples_per_step(run.spec):
            plan = search.plan(run)
            assert plan is not None
            assert plan.fits, f"{fix.title} fits"


def test_changes_that_are_lower_without_another_one_are_a_plan() -> None:
    """Offloaded activations lower the peak of the run as it is, and raise it with everything else done."""
    path = EXAMPLES / "language_models" / "dpo_trl.yaml"
    _, plan = planned(path, "16GB")
    assert plan.fits
    assert not any("offloading" in step.said for step in plan.steps)


def test_what_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    path = placed("megatron, options in a variable", tmp_path)
    result = invoke(str(path), "--budget", "1GiB")
    assert result.exit_code == 1
    assert "too much at the nearest" in result.stdout
    assert "(takes time)" in result.stdout


@pytest.mark.parametrize("question", [limits.largest_batch, limits.longest_sequence])
@pytest.mark.parametrize("share", [0.5, 2])
def test_a_bracket_is_exact(question: object, share: float) -> None:
    path = EXAMPLES / "language_models/full_llamafactory.yaml"
    found: list[tuple[Run, limits.Bracket | None]] = []
    resolver = Resolver({"budget": shares(path, share), "select": ["MEM003"], "work-limit": 200}, "", True)
    check_paths([str(path)], resolver, look=lambda run: found.append((run, question(run))))  # type: ignore[operator]
    [(run, bracket)] = found
    assert bracket is not None
    assert bracket.inside is not None
    assert bracket.outside is not None
    inside, outside = (int(end.value.replace(",", "")) for end in (bracket.inside, bracket.outside))
    assert outside == inside + 1
    name = "micro_batch_size" if question is limits.largest_batch else "sequence_length"
    assert run.fits_if({name: inside})
    assert not run.fits_if({name: outside})


def test_the_smallest_card_is_one_on_which_a_check_says_that_it_fits() -> None:
    path = str(EXAMPLES / "uni3d_dp/uni3d+dp.yaml")
    result = invoke(path, "--smallest-card")
    assert result.exit_code == 0
    inside, outside = (line.split()[1].rstrip(",") for line in result.stdout.splitlines()[1:3])
    assert memlint.check(path, isolated=True, gpu=inside, select=["MEM003"]).runs[0].verdict == FITS
    assert memlint.check(path, isolated=True, gpu=outside, select=["MEM003"]).runs[0].verdict != FITS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param((str(EXAMPLES / "uni3d_dp/uni3d+dp.yaml"),), "there is no budget", id="no budget"),
        pytest.param(("none.yaml", "--budget", "8GB"), "no such file", id="no file"),
        pytest.param(
            (str(EXAMPLES / "uni3d_dp/uni3d+dp.yaml"), "--budget", "8GB", "--run", "no"), "no run named", id="no run"
        ),
        pytest.param(
            (str(EXAMPLES / "uni3d_dp/uni3d+dp.yaml"), "--budget", "8GB", "--apply", "--largest-batch"),
            "go with none of the questions",
            id="a question that is applied",
        ),
    ],
)
def test_what_cannot_be_asked_is_an_error(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_on_a_terminal_a_plan_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(EXAMPLES / "language_models/sft_trl.yaml")
    wide = invoke(path, "--gpu", "rtx4090").stdout
    monkeypatch.setattr("memlint.cli.output._columns", lambda: 60)
    narrow = invoke(path, "--gpu", "rtx4090").stdout
    assert max(map(len, wide.splitlines())) > 100
    assert max(map(len, narrow.splitlines())) < 60
    assert narrow.split() == wide.split()
