"""What the text formats share: source lines, safe printing of foreign text, and column arithmetic."""

from __future__ import annotations

# Controls (C0 without tab, DEL, C1), line separators, and what re-orders text on a terminal (bidirectional
# controls, after the "Trojan Source" paper, CVE-2021-42574).
_UNSAFE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (
        *range(0x09),
        *range(0x0A, 0x20),
        *range(0x7F, 0xA0),
        *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
}
_UNSAFE[0x09] = " "


def clean(text: str) -> str:
    """Foreign text on one line: controls and escapes are shown (``\\x1b``), not sent to the terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_UNSAFE)


def source_lines(text: str, path: str) -> list[str]:
    """The lines of a file without their ends, numbered as the readers number them.

    YAML 1.1 has three more line breaks than other formats (chapter 4.2), and PyYAML counts by them.
    """
    more = ("\x85", "\u2028", "\u2029") if path.lower().endswith((".yaml", ".yml")) else ()
    for line_break in ("\r\n", "\r", *more):
        text = text.replace(line_break, "\n")
    return text.split("\n")


def width(text: str) -> int:
    """Terminal columns of cleaned text: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def harmless_in_actions(line: str) -> str:
    """A line that the GitHub Actions runner cannot take for a workflow command.

    The runner trims blanks and looks for ``::`` at the start, and for the older ``##[`` anywhere in the line
    (actions/runner, ActionCommand.cs: TryParseV2 and TryParse).
    """
    line = line.replace("##[", "##\\[")
    return "\\" + line if line.lstrip().startswith("::") else line
