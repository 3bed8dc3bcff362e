"""Record what PyTorch's real CUDA caching allocator does, without a GPU.

    python tests/tape/recorder/record.py --torch DIR --cuda DIR

``--torch`` is the ``torch`` folder of an unpacked CUDA wheel (its ``lib/libc10_cuda.so`` and its headers), ``--cuda`` a
CUDA toolkit of the wheel's version (its headers). The allocator runs unchanged; only the runtime and driver calls
under it are replaced, by a shim that hands out addresses and keeps count of a byte budget. The results are
``tests/tape/fixtures/real_allocator.json``, traces event by event, and which settings torch accepts, and
``real_streams.json``, traces of several streams.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FIXTURE = HERE.parent / "fixtures" / "real_allocator.json"
STREAMS_FIXTURE = HERE.parent / "fixtures" / "real_streams.json"
MiB = 2**20

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[4:2,16:8,64:1,>:16]",
    "large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:32",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.2,per_process_memory_fraction:0.7,max_split_size_mb:32",
    "per_process_memory_fraction:0.6",
    "expandable_segments:True,per_process_memory_fraction:0.5",
    "throw_on_cudamalloc_oom:True",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.8,garbage_collection_threshold:0.5",
)

SETTINGS = (
    *("expandable_segments:True", "expandable_segments:true", "expandable_segments:1", "expandable_segment:True"),
    *("Expandable_Segments:True", "expandable_segments:[True]", "expandable_segments::True", "expandable_segments"),
    *("max_split_size_mb:10", "max_split_size_mb:20", "max_split_size_mb:-1", "max_split_size_mb:abc"),
    *("max_split_size_mb:64abc", "max_split_size_mb:", "max_split_size_mb", "max_split_size_mb 64"),
    *("max_split_size_mb=64", "max_split_size_mb:64;expandable_segments:True", "max_split_size_mb:+64"),
    *("max_split_size_mb:1e3", "max_split_size_mb:0x40", "max_split_size_mb:99999999999999999999999"),
    *("max_split_size_mb:64,", "max_split_size_mb:64 , expandable_segments:True", "max_split_size_mb,64"),
    *("max_split_size_mb:10,max_split_size_mb:64", "max_split_size_mb:64,max_split_size_mb:128"),
    *("max_non_split_rounding_mb:10", "max_non_split_rounding_mb:21", "large_segment_size_mb:10"),
    *("large_segment_size_mb:11", "large_segment_size_mb:30,max_split_size_mb:25"),
    *("max_split_size_mb:25,large_segment_size_mb:30", "large_segment_size_mb:12,max_split_size_mb:12"),
    *("garbage_collection_threshold:0", "garbage_collection_threshold:1.0", "garbage_collection_threshold:0.8"),
    *("garbage_collection_threshold:0.8x", "garbage_collection_threshold:nan", "garbage_collection_threshold:80"),
    *("garbage_collection_threshold:8e-1", "garbage_collection_threshold:.5", "garbage_collection_threshold:"),
    *("roundup_power2_divisions:3", "roundup_power2_divisions:0", "roundup_power2_divisions:8"),
    *("roundup_power2_divisions:[256:1,512:2,>:8]", "roundup_power2_divisions:[100:2]"),
    *("roundup_power2_divisions:[256:3]", "roundup_power2_divisions:[256:2", "roundup_power2_divisions:[>:4]"),
    *("roundup_power2_divisions:[]", "roundup_power2_divisions:[256:1 512:2]", "roundup_power2_divisions:[256:1,]"),
    *("backend:native", "backend:foo", "backend:Native", "pinned_num_register_threads:3"),
    *("pinned_num_register_threads:256", "pinned_num_register_threads:8", "pinned_use_background_threads:True"),
    *("pinned_use_cuda_host_register:True", "release_lock_on_cudamalloc:True", "release_lock_on_hipmalloc:True"),
    *("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb:5", "pinned_free_catch_all:True"),
    *("graph_capture_record_stream_reuse:True", "per_process_memory_fraction:1.5"),
    *("per_process_memory_fraction:0.5", "throw_on_cudamalloc_oom:True", "pinned_max_round_threshold_mb:64"),
    *("pinned_max_cached_size_mb:64", "expandable_segments_handle_type:posix_fd", "page_size:1g", "", ",", ":"),
)


def random_events(rng: random.Random, count: int, largest: int) -> list[int]:
    """Allocations of a few recurring sizes, as training makes them, some odd ones, and frees in any order."""
    ranges = ((1, 4096), (1, MiB), (MiB, 12 * MiB), (min(10 * MiB, largest), largest))
    palette = [rng.randint(*rng.choice(ranges)) for _ in range(rng.randint(3, 30))]
    events: list[int] = []
    live: list[int] = []
    allocated = 0
    balance = rng.uniform(0.45, 0.6)
    while len(events) < count:
        if live and rng.random() > balance:
            events.append(~live.pop(rng.randrange(len(live))))
        else:
            events.append(rng.choice(palette) if rng.random() < 0.8 else rng.randint(0, largest))
            live.append(allocated)
            allocated += 1
    return events


def build(folder: Path, torch: Path, cuda: Path) -> None:
    shim, include = folder / "libcudart.so.13", f"-I{cuda / 'include'}"
    (folder / "versions").write_text("libcudart.so.13 { global: *; };")
    libraries = (f"-L{torch / 'lib'}", "-lc10_cuda", "-lc10", shim, f"-Wl,-rpath,{torch / 'lib'}")
    program = (HERE / "replay.cpp", *libraries, "-o", folder / "replay")
    shared = ("-shared", "-fPIC", "-w")
    link = (f"-Wl,--version-script={folder / 'versions'}", "-Wl,-soname,libcudart.so.13")
    commands = (
        ("gcc", "-c", "-fPIC", "-w", HERE / "runtime_stubs.c", "-o", folder / "stubs.o"),
        ("gcc", *shared, HERE / "nvml_stub.c", "-o", folder / "libnvidia-ml.so.1"),
        ("g++", *shared, include, HERE / "driver_shim.cpp", folder / "stubs.o", *link, "-o", shim),
        ("g++", "-std=c++20", include, f"-I{torch / 'include'}", *program),
    )
    for command in commands:
        subprocess.run([str(word) for word in command], check=True)


def replay(
    folder: Path, conf: str, capacity: int, events: list[int], streams: list[int] | None = None
) -> tuple[list[str], str]:
    """``streams``: by allocation; 0 is the default one."""
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTORCH_ALLOC_CONF": conf}
    of = iter(streams or ())
    named = [f"{event}@{stream}" if event >= 0 and (stream := next(of, 0)) else str(event) for event in events]
    words = " ".join((str(capacity), *named))
    run = subprocess.run([folder / "replay"], input=words, env=variables, capture_output=True, text=True)
    return run.stdout.splitlines(), run.stderr


def trace(
    folder: Path, conf: str, capacity: int, events: list[int], streams: list[int] | None = None
) -> dict[str, object]:
    lines, _ = replay(folder, conf, capacity, events, streams)
    served = [line.split() for line in lines]
    oom = next((index for index, words in enumerate(served) if len(words) > 4), None)
    served = served[:oom]
    return {
        "conf": conf,
        "capacity": capacity,
        "events": events,
        "allocated": [int(words[0]) for words in served],
        "reserved": [int(words[1]) for words in served],
        "peaks": [int(served[-1][2]), int(served[-1][3])] if served else [0, 0],
        "oom": oom,
        **({} if streams is None else {"streams": streams}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--cuda", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(20)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, options.torch.resolve(), options.cuda.resolve())
        traces = []
        for conf in CONFS * 3:
            largest = rng.choice((30 * MiB, 100 * MiB, 400 * MiB))
            capacity = rng.choice((2**40, rng.randint(largest, 4 * largest), rng.randint(largest, 4 * largest)))
            traces.append(trace(folder, conf, capacity, random_events(rng, rng.randint(60, 160), largest)))
        several = []
        for conf in CONFS * 2:
            largest = rng.choice((30 * MiB, 100 * MiB, 400 * MiB))
            capacity = rng.choice((2**40, rng.randint(2 * largest, 6 * largest), rng.randint(2 * largest, 6 * largest)))
            events = random_events(rng, rng.randint(60, 160), largest)
            streams = [rng.choice((0, 0, 1, 2)) for event in events if event >= 0]
            several.append(trace(folder, conf, capacity, events, streams))
        settings = []
        for text in SETTINGS:
            lines, errors = replay(folder, text, 2**30, [512])
            said = [line.partition("what():")[2].strip() for line in errors.splitlines() if "what():" in line]
            settings.append({"text": text, "error": None if lines else said[0].partition(" INTERNAL")[0]})
    version: dict[str, str] = {}
    exec((options.torch / "version.py").read_text(), version)
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in traces)
    accepted = ",\n".join(json.dumps(row) for row in settings)
    FIXTURE.write_text(
        f'{{"torch": "{version["__version__"]}",\n"traces": [\n{rows}\n],\n"settings": [\n{accepted}\n]}}\n'
    )
    print(f"{len(traces)} traces, {len(settings)} settings -> {FIXTURE}")
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in several)
    STREAMS_FIXTURE.write_text(f'{{"torch": "{version["__version__"]}",\n"traces": [\n{rows}\n]}}\n')
    print(f"{len(several)} traces of several streams -> {STREAMS_FIXTURE}")


if __name__ == "__main__":
    main()
