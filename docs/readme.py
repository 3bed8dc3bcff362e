"""Write what memlint says today into README.md, between the markers that name each block.

python docs/readme.py            rewrite the blocks
python docs/readme.py --check    exit 1 where one is stale
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import memlint
from memlint.dialects import schema as schemas
from memlint.tape.estimate import Estimate
from memlint.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"

COMMAND = ("check", "examples/uni3d_dp/uni3d+dp.yaml", "--budget", "16GB")

# What the hand analyses said, and what reference implementations under PyTorch's fake tensors (jax.vjp) measure.
SYSTEMS = """\
| run | what the hand analysis said | what is true | what memlint says |
|---|---|---|---|
| Uni3D in a 3D diffusion policy | 48 GB, 25.8 GB of it attention | 11.4 GiB of tensors at the peak; half of \
what backward needs is the mini-PointNet's; unfused, attention would keep 0.15 GiB. Tuned: 5.75 GiB, in the \
optimizer's step | \
{uni3d} on the card, {uni3d_after} tuned |
| STDiff on 64 x 2048 range images | 0.8 to 1.5 GB | the UNet alone keeps 521 GiB for backward with plain \
attention, 95 GiB with a memory-efficient kernel | {stdiff}; {stdiff_efficient} with that kernel; {stdiff_after} \
tuned |
| DiT3D | XL/2 needs more than 16 GB, Tiny under 0.1 GB | on 64 tokens per video XL/2 keeps 0.2 GiB beside 10.1 GiB \
of weights, gradients and Adam, and fits; frame by frame, as its code runs it, it keeps 75 GiB | {dit3d} before and \
{dit3d_after} tuned, text encoder included; XL/2 in the tuned config {dit3d_xl}, frame by frame {dit3d_frames} |
| few-shot diffusion in JAX, lag mode | 50 to 100 GB of the host's 330 GB | 53.3 GiB of residuals for the whole \
batch, in device memory: 6.8 GiB on each of eight devices | {lag_saved} of residuals; {lag} on one device, where XLA \
fuses some of them away; {lag_eight} on each of eight; {lag_after} tuned |
| video language model, 2B | 12 to 16 GB, tuned 4 to 6 GB | tuned, weights, gradients and AdamW in bf16 are 18.7 GiB \
before the first activation, and the logits of 6,656 tokens 76 GiB | {video}, tuned {video_after}, {video_logits} of \
it logits |
"""


def estimate(config: str, *overrides: str, gpu: str = "") -> Estimate:
    options = {"gpu": gpu} if gpu else {}
    return memlint.estimate(ROOT / "examples" / config, overrides, isolated=True, **options)


def device(config: str, *overrides: str, gpu: str = "") -> str:
    return format_bytes(estimate(config, *overrides, gpu=gpu).device_bytes)


def report() -> str:
    """The report of the README's first command. How long it took is left out: it differs from run to run."""
    command = [sys.executable, "-m", "memlint", *COMMAND, "--color", "never", "--isolated"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=True)
    text = re.sub(r" \([\d.,]+ m?s\)", "", done.stdout)
    return f"```text\n{text.rstrip()}\n```\n"


def systems() -> str:
    """The table of the five systems, with today's figures."""
    stdiff, dit3d = "stdiff/kitti_range_train_config", "dit3d/config.py"
    xl = "DIT_MODEL_SIZE=DiT3D-XL/2"
    lag = "lag_mode/train_lag_mode"
    tuned = estimate("video_llm/config.yaml")
    return SYSTEMS.format(
        uni3d=device("uni3d_dp/uni3d+dp.yaml"),
        uni3d_after=device("uni3d_dp/uni3d+dp_after.yaml"),
        stdiff=device(f"{stdiff}.yaml"),
        stdiff_efficient=device(f"{stdiff}.yaml", "Training.use_xformers=true"),
        stdiff_after=device(f"{stdiff}_after.yaml"),
        dit3d=device("dit3d/config_before.py"),
        dit3d_after=device(dit3d),
        dit3d_xl=device(dit3d, xl),
        dit3d_frames=device(dit3d, xl, "DIT_PATCH_SIZE=2"),
        lag=device(f"{lag}.sh"),
        lag_saved=format_bytes(estimate(f"{lag}.sh").saved_bytes),
        lag_eight=device(f"{lag}.sh", gpu="v100-16gbx8"),
        lag_after=device(f"{lag}_low_mem.sh"),
        video=device("video_llm/config_before.yaml"),
        video_after=format_bytes(tuned.device_bytes),
        video_logits=format_bytes(tuned.component_bytes("logits")),
    )


FORMATS = {"yaml": "YAML", "json": "JSON", "toml": "TOML", "python": "Python", "shell": "command lines"}
# Of those without an estimate, the ones that most readers will look for.
KNOWN = ("detectron2", "maxtext", "simpletuner", "levanter")


def families() -> str:
    """What the schemas say: the families with an estimate, those alike in one row, and how many there are besides."""
    rows: dict[tuple[str, str], list[str]] = {}
    others = []
    for name in schemas.families():
        header = schemas.header(name)
        if "models" in header:
            formats = ", ".join(FORMATS[one] for one in FORMATS if one in header["formats"])
            rows.setdefault((formats, header["models"]), []).append(f"`{name}`")
        elif header.get("module") == "key_facts":
            others.append(name)
    lines = [f"| {', '.join(names)} | {formats} | {models} |" for (formats, models), names in rows.items()]
    named = ", ".join(schemas.header(name)["title"].removesuffix("' training scripts") for name in KNOWN)
    rest = (
        f"{len(others)} more families ({named}, ...) are recognised: their key facts are read, the rules that need no "
        "model apply, and the verdict is UNKNOWN, with what would make the model known."
    )
    table = "\n".join(("| family | formats | models |", "|---|---|---|", *lines))
    return f"{table}\n\n{textwrap.fill(rest, 125)}\n"


def renewed(text: str) -> str:
    """README.md with its blocks as they are today. Raises ValueError where a marker is missing."""
    for name, make in (("report", report), ("systems", systems), ("families", families)):
        found = list(re.finditer(rf"<!-- {name} -->\n(.*?)<!-- end -->\n", text, re.DOTALL))
        if len(found) != 1:
            raise ValueError(f"README.md needs one block <!-- {name} --> ... <!-- end -->")
        start, end = found[0].span(1)
        text = text[:start] + make() + text[end:]
    return text


def main(arguments: list[str]) -> int:
    before = README.read_text(encoding="utf-8")
    after = renewed(before)
    if "--check" in arguments:
        if after != before:
            print("README.md is stale: run python docs/readme.py", file=sys.stderr)
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
