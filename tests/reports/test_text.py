"""What the text formats share, at its bounds. The characters that are not seen are held against Unicode's own table."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from memlint.reports.text import clean, folded, harmless_in_actions, head, lines_of, shorten, source_lines, tail, width

# General categories of what no reader sees: controls, formats, surrogates, separators of lines and paragraphs.
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Others that take no room, by their names.
FILLERS = (
    "VARIATION SELECTOR",
    "HANGUL FILLER",
    "CHOSEONG FILLER",
    "JUNGSEONG FILLER",
    "VOWEL INHERENT",
    "GRAPHEME JOINER",
)
# Formats that are seen: signs around numbers, and what joins hieroglyphs.
SEEN = ("SIGN", "AYAH", "POUND MARK", "PIASTRE MARK", "ABBREVIATION MARK", "EGYPTIAN", "NUMBER MARK", "MARKER")


def is_unseen(character: str) -> bool:
    name = unicodedata.name(character, "")
    if any(word in name for word in FILLERS):
        return True
    seen = any(word in name for word in SEEN) and not name.startswith("TAG ")
    return unicodedata.category(character) in UNSEEN and not seen


def test_what_is_not_seen_is_written_and_nothing_else() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    # Beside a letter, as plain text of ASCII is not looked through.
    written = {character for character in characters if clean(f"\u00e9{character}") != f"\u00e9{character}"}
    wanted = {character for character in characters if is_unseen(character)}
    assert wanted <= written, [hex(ord(character)) for character in sorted(wanted - written)]
    reserved = {character for character in written if unicodedata.category(character) == "Cn"}
    assert written - reserved == wanted, [hex(ord(character)) for character in sorted(written - reserved - wanted)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00", "\\x00"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\xff\xad", "\xff\\xad"),
        ("\u034f\uffa0", "\\u034f\\uffa0"),
        ("\U0001bca0", "\\U0001bca0"),
        ("\U000e0001", "\\U000e0001"),
        ("a\tb", "a b"),
        ("\u00e9\t\U0001f600", "\u00e9 \U0001f600"),
        ("\ud800", "\\ud800"),
        ("\uff00", "\uff00"),
    ],
)
def test_how_it_is_written(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_lines_of_ours_stay_lines() -> None:
    assert lines_of("a\nb\x07\u2028") == ["a", "b\\x07\\u2028"]
    assert lines_of("") == [""]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        pytest.param("abc", 3, id="latin"),
        pytest.param("\u00e9e\u0301", 2, id="a combining accent takes none"),
        pytest.param("\u4f60\u597d", 4, id="Chinese takes two"),
        pytest.param("\uff21", 2, id="full width takes two"),
        pytest.param("\uff71", 1, id="half width takes one"),
        pytest.param("", 0, id="nothing"),
    ],
)
def test_width(text: str, columns: int) -> None:
    assert width(text) == columns


def test_shorten() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."
    assert shorten("", 3) == ""


@pytest.mark.parametrize(
    ("text", "columns", "first", "last"),
    [
        pytest.param("abcdef", 6, "abcdef", "abcdef", id="all of it"),
        pytest.param("abcdefg", 6, "abc...", "...efg", id="what there is room for"),
        pytest.param(
            "\u4f60\u597d\u4f60\u597d", 8, "\u4f60\u597d\u4f60\u597d", "\u4f60\u597d\u4f60\u597d", id="wide, all of it"
        ),
        pytest.param(
            "\u4f60\u597d\u4f60\u597d", 7, "\u4f60\u597d...", "...\u4f60\u597d", id="wide, what there is room for"
        ),
        pytest.param("\u4f60\u597d\u4f60\u597d", 6, "\u4f60...", "...\u597d", id="wide, without half a character"),
        pytest.param("\u4f60abc\u597d", 4, "...", "...", id="wide, where a narrow one would have had room"),
        pytest.param("abcd", 3, "...", "...", id="there is room for none"),
        pytest.param("abcd", -9, "...", "...", id="nor for less"),
        pytest.param("", 0, "", "", id="nothing"),
    ],
)
def test_the_beginning_and_the_end_of_a_text_in_so_many_columns(text: str, columns: int, first: str, last: str) -> None:
    assert head(text, columns) == first
    assert tail(text, columns) == last


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        pytest.param(0, ["a" * 20 + " " + "b" * 20], id="no terminal"),
        pytest.param(39, ["a" * 20 + " " + "b" * 20], id="one that has no room for prose"),
        pytest.param(40, ["a" * 20, "  " + "b" * 20], id="the narrowest"),
        pytest.param(41, ["a" * 20, "  " + "b" * 20], id="the last column stays free"),
        pytest.param(42, ["a" * 20 + " " + "b" * 20], id="one that is wide enough"),
    ],
)
def test_a_line_is_folded_to_the_terminal(columns: int, lines: list[str]) -> None:
    assert folded("a" * 20 + " " + "b" * 20, columns, 2) == lines


def test_neither_words_nor_paths_are_broken() -> None:
    path = "some-where/" * 9
    assert folded(f"in {path} there", 40, 0) == ["in", path, "there"]
    assert folded(" " * 50, 40, 0) == [" " * 50]


@pytest.mark.parametrize(
    ("text", "path", "lines"),
    [
        pytest.param("a\r\nb\rc\nd", "a.sh", ("a", "b", "c", "d"), id="the line ends of all formats"),
        pytest.param("a\x85b\u2028c\u2029d", "a.json", ("a\x85b\u2028c\u2029d",), id="JSON has no more"),
        pytest.param("a\x85b\u2028c\u2029d", "A.YAML", ("a", "b", "c", "d"), id="YAML 1.1 has three more"),
        pytest.param("a\x85b", "a.yml", ("a", "b"), id="so has a .yml"),
        pytest.param("", "a.py", ("",), id="an empty file has one"),
    ],
)
def test_source_lines(text: str, path: str, lines: tuple[str, ...]) -> None:
    assert tuple(source_lines(text, path)) == lines


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::x", "\\::error::x"),
        ("  ::error::x", "\\  ::error::x"),
        ("x ::error::x", "x ::error::x"),
        ("a ##[error]x", "a ##\\[error]x"),
        ("##vso[task]", "##vso\\[task]"),
        ("# [x]", "# [x]"),
    ],
)
def test_no_line_is_a_command_of_the_runner(line: str, shown: str) -> None:
    assert harmless_in_actions(line) == shown
