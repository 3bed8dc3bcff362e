"""Numbers that scripts have small programs count: ``$(echo $GPUS | awk -F, '{print NF}')``, ``$(expr $A + 1)``.

Nothing runs: these are the few ways in which scripts count the parts of a list that they hold, or add numbers up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from memlint import work

MOST_CHARACTERS, MOST_WORDS, MOST_DIGITS = 400, 40, 18

_SIGNS_OF_THE_SHELL = "|<>&;()"
_NAMED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_NUMBER = re.compile(r"-?\d+")

Held = Callable[[str], "str | None"]


def output(text: str, known: Held) -> str | None:
    """What a command substitution prints, where that is such a number; None for any other.

    known  name -> what a variable holds; None where that is not known
    """
    if len(text) > MOST_CHARACTERS:
        return None
    work.spend(20, "counting as a script does")
    inner = text[2:-1] if text.startswith("$(") else text[1:-1]
    stages = _stages(inner)
    if not stages:
        return None
    first, rest = stages[0], stages[1:]
    if first[0] == "expr" and not rest:
        return _sum([_filled(word, known) for word in first[1:]])
    fed = first[first.index("<<<") + 1 :] if "<<<" in first else []
    if fed:
        return _counted(_filled(" ".join(fed), known), [first[: first.index("<<<")], *rest])
    said = _filled(" ".join(word for word in first[1:] if word not in ("-n", "-e")), known)
    if first[0] not in ("echo", "printf") or said is None or first[1:2] == ["%s"]:
        return None
    if rest == [["bc"]]:
        return _sum(re.findall(r"\d+|\S", said))
    return _counted(said, rest)


def _stages(text: str) -> list[list[str]]:
    """The words of each program of a pipe, without quotes; [] where that is not plain."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_SIGNS_OF_THE_SHELL)
    lexer.commenters = ""
    lexer.whitespace_split = True
    stages: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == "|":
                stages.append([])
            elif word != "<<<" and not set(word) - set(_SIGNS_OF_THE_SHELL):
                return []
            else:
                stages[-1].append(word)
    except ValueError:
        return []
    return stages if all(stages) and sum(map(len, stages)) <= MOST_WORDS else []


def _filled(word: str, known: Held) -> str | None:
    """A word with the variables that it holds put in; None where one is not known, or more than names is left."""
    parts: list[str] = []
    at = 0
    for found in _NAMED.finditer(word):
        value = known(found[1] or found[2])
        if value is None:
            return None
        parts += [word[at : found.start()], value]
        at = found.end()
    whole = "".join([*parts, word[at:]])
    return None if "$" in whole or "`" in whole else whole


# What programs do with the text that they are given, their words with one blank between them: what stands between two
# parts, or is counted itself.
_PARTS = re.compile(r"(?:awk -F ?(?P<a>\S) \{ ?print NF;? ?\}|tr (?P<b>\S) \\n\|wc -l|sed s/(?P<c>\S)/\\n/g\|wc -l)")
_WORDS = re.compile(r"(?:(?:tr (?P<a>\S)  |sed s/(?P<b>\S)/ /g)\|)?wc -w")
_SIGNS = re.compile(r"(?:tr -cd (?P<a>\S)\|wc -c|grep -o (?P<b>\S)\|wc -l)")
_DIGITS = "grep -o [0-9]|wc -l"


def _counted(said: str | None, stages: Sequence[Sequence[str]]) -> str | None:
    """How many parts programs find in what they are given."""
    if said is None or "\n" in said or not stages:
        return None
    how = "|".join(" ".join(stage) for stage in stages)
    if (found := _PARTS.fullmatch(how)) is not None:
        return str(said.count(_first(found)) + 1)
    if (found := _WORDS.fullmatch(how)) is not None:
        return str(len((said.replace(_first(found), " ") if _first(found) else said).split()))
    if (found := _SIGNS.fullmatch(how)) is not None:
        return str(said.count(_first(found)))
    return str(sum(letter.isdigit() for letter in said)) if how == _DIGITS else None


def _first(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group), "")


def _sum(words: Sequence[str | None]) -> str | None:
    """The number that whole numbers make with signs between them, products first."""
    if not words or len(words) > MOST_WORDS or any(word is None for word in words):
        return None
    terms: list[int] = []
    sign = "+"
    for at, word in enumerate(words):
        if at % 2:
            sign = str(word)
        elif not _NUMBER.fullmatch(str(word)) or len(str(word)) > MOST_DIGITS:
            return None
        elif sign in ("+", "-"):
            terms.append(int(str(word)) if sign == "+" else -int(str(word)))
        elif sign in ("*", "/", "%", "\\*") and (sign in ("*", "\\*") or int(str(word))):
            terms.append(_product(terms.pop(), sign, int(str(word))))
        else:
            return None
    return str(sum(terms)) if len(words) % 2 else None


def _product(one: int, sign: str, other: int) -> int:
    if sign in ("*", "\\*"):
        return one * other
    whole = abs(one) // abs(other) * (1 if one * other >= 0 else -1)
    return whole if sign == "/" else one - whole * other
