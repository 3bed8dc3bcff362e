"""Write docs/releases.md: what libraries do from which release on, as memlint/releases/ has it.

python docs/releases.py            rewrite the page
python docs/releases.py --check    exit 1 where it is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from memlint.releases import BEHAVIOURS, LIBRARIES
from memlint.releases.behaviour import Series

PAGE = Path(__file__).resolve().parent / "releases.md"
HEAD = """\
# What changes with a library's release

The same config takes different memory under different releases. Each row below was read from the library's code, as
published in the releases on both sides of the border; `memlint/releases/` is the table, and this page is made of it.

Which release runs a config is what the project pins: a lock file, `requirements.txt`, `environment.yml`,
`pyproject.toml`, `setup.py` or a `Dockerfile` beside the config or above it. Where none does, keys that only some
releases take date it, and else the newest that is known is taken, which the report names among what is assumed. The
interval of the estimate then holds what older releases would take, too, as far back as the run's model, keys and other
pins allow.
"""


def shown(border: Series | None) -> str:
    return "" if border is None else ".".join(map(str, border))


def page() -> str:
    lines = [HEAD]
    for library in sorted({row.library for row in BEHAVIOURS.values()}):
        lines += [
            f"## {LIBRARIES[library].title} (newest known: {LIBRARIES[library].newest})",
            "",
            "| since | until | what | takes | source |",
            "|---|---|---|---|---|",
        ]
        for row in BEHAVIOURS.values():
            if row.library == library:
                lines.append(f"| {shown(row.since)} | {shown(row.until)} | {row.what} | {row.takes} | {row.source} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
