"""Whether a text is a shell script: the grammar of bash, as ``bash -n`` judges it.

The grammar that gives the syntax tree (tree-sitter-bash) recovers from everything and rejects constructs that bash
takes, so the verdict is not left to it. This one builds nothing: it reads once from the start to the end, and stops at
the first place that bash would not take. As in bash, the inside of backquotes and the bodies of heredocs are not
judged, for they are parsed when they are expanded. Three things bash judges otherwise: a line may end in ``\\r\\n``,
where bash counts the ``\\r`` to the last word; patterns like ``@(a|b)`` are taken in a script that names ``extglob``,
for bash would have to run it to know; and an alias is not expanded.

Source: the Bash Reference Manual 5.2, "Shell Syntax", "Shell Commands", "Here Documents".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memlint import work
from memlint.named_tuple import NamedTuple

COMMAND = 10  # steps to read a command, beside those for its characters

_BLANK = frozenset((" ", "\t", "\\", "#"))
_META = frozenset(" \t\n;&|()<>")
_OPENING = frozenset(("{", "if", "for", "select", "while", "until", "case", "[[", "("))
_CLOSING = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "}", "in", "]]"))
_TAKES_ARRAYS = frozenset(("declare", "typeset", "export", "local", "readonly", "alias", "eval", "let"))
_CASE_ENDS = (";;&", ";;", ";&")
_BINARY = frozenset(("=", "==", "!=", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "<", ">"))

_SPACE = re.compile(r"(?:[ \t]|\\\n)*")
_COMMENT = re.compile(r"#[^\n]*")
_TOKEN = re.compile(r"[^ \t\n;&|()<>'\"\\$`]{1,9}(?=[ \t\n;&|()<>]|\\\n|\Z)")
_PLAIN = re.compile(r"[^ \t\n;&|()<>'\"\\$`?*+@!\[]+")
_REDIRECTION = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(?:<<<|<<-|<<|<>|<&|<(?!\()|>>|>&|>\||>(?!\())|&>>|&>", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNARY = re.compile(r"-[a-hknoprstuvwxzGLNORS](?=[ \t\n])")
_SIGN = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[<>](?!\()|[;&|()\n]")
_NOTHING = re.compile(r"(?:\s|\\\n|(?:(?<=\s)|(?<=`)|(?<=\())#[^\n]*)*")


class Broken(Exception):
    """The text is no shell script: ``str()`` says why, ``at`` is the offset where it shows."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class Verdict(NamedTuple):
    """What is wrong with a script (None: nothing), and places in it as (start, end).

    empty       command substitutions that hold nothing but comments: they are no text at all, and people write
                comments between the lines of a command with them
    arithmetic  ``((...))`` and ``$((...))``
    """

    broken: Broken | None
    empty: tuple[tuple[int, int], ...]
    arithmetic: tuple[tuple[int, int], ...]


def judge(text: str) -> Verdict:
    """Read a script to its end, or to where bash would stop. Raises RecursionError where it is nested too deeply."""
    work.spend(len(text), "checking the syntax of a script")
    reader = _Reader(text)
    broken = None
    try:
        reader.commands(())
        if reader.at < len(text):
            raise reader.unexpected()
    except Broken as error:
        broken = error
    return Verdict(broken, tuple(sorted(reader.empty)), tuple(sorted(reader.sums)))


class _Reader:
    """A place in a text; each method reads one construct of the grammar from there."""

    def __init__(self, text: str) -> None:
        windows = "\r\n" in text
        self.text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n") if windows else text
        self.line_end = " " if windows else ""
        self.extglob = "extglob" in text
        self.at = 0
        self.heredocs: list[tuple[str, bool, bool]] = []  # (delimiter, whether tabs are dropped, whether it is quoted)
        self.empty: set[tuple[int, int]] = set()
        self.sums: set[tuple[int, int]] = set()
        self.substitutions = 0  # around this place
        self.ends: dict[int, int] = {}  # of substitutions by where they begin: what turns out to be none is read again

    # -- signs and blanks

    def here(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at)

    def take(self, sign: str) -> bool:
        if not self.here(sign):
            return False
        self.at += len(sign)
        return True

    def blank(self) -> None:
        """Skip blanks, continued lines and a comment."""
        if self.text[self.at : self.at + 1] not in _BLANK:
            return
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        if self.here("#"):
            self.at = _COMMENT.match(self.text, self.at).end()  # type: ignore[union-attr]

    def newlines(self) -> bool:
        """Skip blanks and the ends of lines; whether there was one."""
        found = False
        self.blank()
        while self.take("\n"):
            found = True
            self._bodies()
            self.blank()
        return found

    def token(self) -> str:
        """The next word, where it could be a reserved one; else the sign that stands there, or ""."""
        found = _TOKEN.match(self.text, self.at) or _SIGN.match(self.text, self.at)
        return found.group() if found else ""

    def reserved(self, word: str) -> bool:
        if self.token() != word:
            return False
        self.at += len(word)
        return True

    def expect(self, word: str, opening: str, start: int) -> None:
        self.blank()
        if self.reserved(word):
            return
        if self.at >= len(self.text):
            raise Broken(f"{opening} has no {word}", start)
        raise self.unexpected()

    def unexpected(self) -> Broken:
        if self.at >= len(self.text):
            return Broken("the script ends in the middle of a command", len(self.text))
        if self.here("\n"):
            return Broken("the line ends in the middle of a command", self.at)
        sign = _SIGN.match(self.text, self.at)
        end = sign.end() if sign else self.at + 1
        while not sign and end < len(self.text) and end < self.at + 40 and self.text[end] not in _META:
            end += 1
        return Broken(f"{self.text[self.at : end]} is not expected here", self.at)

    # -- commands

    def commands(self, stops: tuple[str, ...]) -> int:
        """Commands up to a word or sign of ``stops``, or to the end; how many."""
        count = 0
        self.newlines()
        while self.at < len(self.text) and self.token() not in stops:
            self.pipeline()
            count += 1
            self.blank()
            while self.take("&&") or self.take("||"):
                self.newlines()
                self.pipeline()
                self.blank()
            if self.token() in (";", "&"):
                self.at += 1
                self.newlines()
            elif not self.newlines() and self.at < len(self.text) and self.token() not in stops:
                raise self.unexpected()
        return count

    def body(self, opening: str, start: int, *stops: str) -> None:
        """At least one command, then one of the stops, which is not read."""
        if not self.commands(stops):
            if self.at < len(self.text):
                raise Broken(f"there is no command after {opening}", self.at)
            raise Broken(f"{opening} has no {stops[-1]}", start)

    def pipeline(self) -> None:
        work.spend(COMMAND, "checking the syntax of a script")
        prefixed = False
        while True:
            self.blank()
            if self.reserved("time"):
                self.blank()
                self.reserved("-p")
            elif not self.reserved("!"):
                break
            prefixed = True
        if prefixed and (self.at >= len(self.text) or self.token() in ("\n", ";")):
            return
        self.command()
        self.blank()
        while not self.here("||") and (self.take("|&") or self.take("|")):
            self.newlines()
            self.command()
            self.blank()

    def command(self) -> None:
        self.blank()
        token = self.token()
        if token in _OPENING:
            self.compound(token)
        elif token in _CLOSING or token == "!":
            raise self.unexpected()
        elif token == "function":
            self.at += len(token)
            self.blank()
            if not self.word():
                raise self.unexpected()
            self.blank()
            if self.take("("):
                self.blank()
                if not self.take(")"):
                    raise self.unexpected()
            self.function_body()
        elif token == "coproc":
            self.at += len(token)
            self.blank()
            begin = self.at
            if self.token() not in _OPENING:
                self.word()  # a name, where a compound command follows
                self.blank()
            if self.token() in _OPENING:
                self.compound(self.token())
            else:
                self.at = begin
                self.simple()
        else:
            self.simple()

    def function_body(self) -> None:
        self.newlines()
        token = self.token()
        if token not in _OPENING:
            raise self.unexpected()
        self.compound(token)

    def compound(self, token: str) -> None:
        start = self.at
        if token == "(":
            if not self.here("((") or not self.arithmetic(2):
                self.at = start + 1
                self.body("(", start, ")")
                self.expect(")", "(", start)
        else:
            self.at += len(token)
            _COMPOUND[token](self, token, start)
        self.redirections()

    def redirections(self) -> None:
        self.blank()
        while self.redirection():
            self.blank()

    def group(self, token: str, start: int) -> None:
        self.body("{", start, "}")
        self.expect("}", "{", start)

    def if_(self, token: str, start: int) -> None:
        while True:
            self.body(token, start, "then")
            self.expect("then", "if", start)
            self.body("then", start, "elif", "else", "fi")
            if not self.reserved("elif"):
                break
            token = "elif"
        if self.reserved("else"):
            self.body("else", start, "fi")
        self.expect("fi", "if", start)

    def while_(self, token: str, start: int) -> None:
        self.body(token, start, "do")
        self.loop(token, start)

    def loop(self, token: str, start: int) -> None:
        self.expect("do", token, start)
        self.body("do", start, "done")
        self.expect("done", token, start)

    def for_(self, token: str, start: int) -> None:
        self.blank()
        if token == "for" and self.here("(("):
            begin = self.at
            if not self.arithmetic(2):
                raise self.unexpected()
            if self.text.count(";", begin, self.at) < 2:
                raise Broken("for (( )) takes three expressions", begin)
            self.blank()
            self.take(";")
            self.newlines()
        else:
            if not self.word():
                raise self.unexpected()
            self.newlines()
            if self.reserved("in"):
                self.blank()
                while self.word():
                    self.blank()
                if not self.take(";") and not self.here("\n"):
                    raise Broken(f"{token} has no do", start) if self.at >= len(self.text) else self.unexpected()
            else:
                self.take(";")
            self.newlines()
        if self.reserved("{"):
            self.group("{", start)
        else:
            self.loop(token, start)

    def case(self, token: str, start: int) -> None:
        self.blank()
        if not self.word():
            raise self.unexpected()
        self.newlines()
        self.expect("in", "case", start)
        self.newlines()
        while not self.reserved("esac"):
            if self.at >= len(self.text):
                raise Broken("case has no esac", start)
            self.take("(")
            while True:
                self.blank()
                if not self.word():
                    raise self.unexpected()
                self.blank()
                if not self.take("|"):
                    break
            if not self.take(")"):
                raise self.unexpected()
            self.commands((*_CASE_ENDS, "esac"))
            if any(self.take(end) for end in _CASE_ENDS):
                self.newlines()
            elif self.token() != "esac":
                raise Broken("case has no esac", start)

    def test(self, token: str, start: int) -> None:
        self.blank()
        if not self.reserved("]]"):  # an empty one is an error only when it runs
            self.condition(start)
            self.expect("]]", "[[", start)

    def condition(self, start: int) -> None:
        while True:
            self.term(start)
            self.newlines()
            if not (self.take("&&") or self.take("||")):
                return

    def term(self, start: int) -> None:
        self.newlines()
        if self.at >= len(self.text):
            raise Broken("[[ has no ]]", start)
        if self.reserved("!"):
            return self.term(start)
        if self.take("("):
            self.condition(start)
            if not self.take(")"):
                raise self.unexpected()
            return None
        unary = _UNARY.match(self.text, self.at)
        if self.token() == "]]":
            raise self.unexpected()
        if not self.word():
            raise self.unexpected()
        self.blank()
        operator = self.token()
        if operator in _BINARY and not unary:  # -f == is about a file of that name
            self.at += len(operator)
            self.blank()
            if self.token() == "]]" or not self.word(pattern=operator in ("=", "==", "!="), regex=operator == "=~"):
                raise self.unexpected()
        elif unary:
            if operator == "]]" or not self.word():
                raise self.unexpected()
        elif self.at < len(self.text) and operator not in ("]]", "&&", "||", ")"):
            raise self.unexpected()
        return None

    def simple(self) -> None:
        start = self.at
        words = 0
        arrays = True  # whether `name=(` begins an array here
        while True:
            self.blank()
            if self.redirection():
                continue
            begin = self.at
            assigned = arrays and self.assignment()
            if assigned and self.take("("):
                self.array(begin)
            if not self.word(begin=begin):
                break
            if assigned:
                continue
            words += 1
            if words == 1:
                arrays = self.text[begin : self.at] in _TAKES_ARRAYS
                self.blank()
                if begin == start and self.take("("):
                    self.blank()
                    if not self.take(")"):
                        raise self.unexpected()
                    return self.function_body()
        if self.at == start:
            raise self.unexpected()
        return None

    def assignment(self) -> bool:
        """Read ``name=``, ``name+=`` or ``name[...]=``, if it stands here."""
        start = self.at
        name = _NAME.match(self.text, start)
        if name is not None:
            self.at = name.end()
            if self.take("["):
                self.matched("]", "[", start, opening="[")
            self.take("+")
            if self.take("="):
                return True
        self.at = start
        return False

    def array(self, start: int) -> None:
        while True:
            self.newlines()
            if self.take(")"):
                return
            begin = self.at
            if self.take("["):
                self.matched("]", "[", begin, opening="[")
            if not self.word(begin=begin):
                if self.at >= len(self.text):
                    raise Broken("an array has no )", start)
                raise self.unexpected()

    def redirection(self) -> bool:
        found = _REDIRECTION.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        self.blank()
        start = self.at
        number = _REDIRECTION.match(self.text, start)  # > 2>&1, where >&2>&1 is fine
        if (number and not found.group().endswith("&")) or not self.word():
            raise self.unexpected()
        sign = found.group()[found.group().index("<") :] if "<" in found.group() else ""
        if sign in ("<<", "<<-"):
            delimiter = self.text[start : self.at]
            plain = re.sub(r"\\(.)|['\"]", r"\1", delimiter, flags=re.DOTALL)
            self.heredocs.append((plain, sign.endswith("-"), plain != delimiter))
        return True

    def _bodies(self) -> None:
        """The bodies of the heredocs that the line before began. One that never ends is taken, as bash takes it."""
        for delimiter, drops_tabs, is_quoted in self.heredocs:
            continued = False
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                told = line.lstrip("\t") if drops_tabs else line
                rest = told[len(delimiter) :] if told.startswith(delimiter) and not continued else None
                if rest is not None and self.substitutions and ")" in rest:
                    self.at = end - len(rest)  # $(cat <<EOF ... EOF)
                    break
                self.at = min(end + 1, len(self.text))
                if rest is not None and rest in ("", self.line_end):
                    break
                slashes = len(line) - len(line.rstrip("\\"))
                continued = not is_quoted and slashes % 2 == 1
        self.heredocs = []

    # -- words

    def word(self, begin: int = -1, pattern: bool = False, regex: bool = False) -> bool:
        """Read to the end of a word; whether there is one."""
        text = self.text
        start = self.at if begin < 0 else begin
        depth = 0  # of parentheses in a regular expression
        while self.at < len(text):
            plain = _PLAIN.match(text, self.at)
            if plain is not None:
                self.at = plain.end()
                continue
            character = text[self.at]
            following = text[self.at + 1 : self.at + 2]
            if character in _QUOTING:
                _QUOTING[character](self)
            elif character in "<>" and following == "(" and not regex:
                self.substitution(2)
            elif regex and (character in "()|<>&;" or depth):
                depth += (character == "(") - (character == ")")
                if depth < 0 or (depth == 0 and character in "&;"):
                    break
                self.at += 1
            elif character in "?*+@!" and following == "(" and (pattern or self.extglob):
                self.at += 2
                self.matched(")", "(", self.at - 1, opening="(")
            elif character in _META:
                break
            else:
                self.at += 1
        return self.at > start

    def escape(self) -> None:
        self.at = min(self.at + 2, len(self.text))

    def single_quoted(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Broken("a single quote is never closed", self.at)
        self.at = end + 1

    def double_quoted(self) -> None:
        start = self.at
        self.at += 1
        self.matched('"', "a double quote", start, quoted=True)

    def backquoted(self) -> None:
        start = self.at
        self.at += 1
        while self.at < len(self.text) and not self.here("`"):
            self.at += 2 if self.here("\\") else 1
        if self.at >= len(self.text):
            raise Broken("a backquote is never closed", start)
        self.at += 1
        nothing = _NOTHING.match(self.text, start + 1, self.at - 1)
        if nothing is not None and nothing.end() == self.at - 1:
            self.empty.add((start, self.at))

    def dollar(self, quoted: bool = False) -> None:
        start = self.at
        following = self.text[start + 1 : start + 2]
        if following == "(":
            if not self.here("$((") or not self.arithmetic(3):
                self.at = start
                self.substitution(2)
        elif following == "{":
            self.at += 2
            self.matched("}", "${", start)
        elif following == "[":
            self.at += 2
            self.matched("]", "$[", start, opening="[")
        elif following == "'" and not quoted:
            self.at += 2
            while self.at < len(self.text) and not self.here("'"):
                self.at += 2 if self.here("\\") else 1
            if self.at >= len(self.text):
                raise Broken("a single quote is never closed", start)
            self.at += 1
        else:
            self.at += 1

    def matched(self, closing: str, name: str, start: int, opening: str = "", quoted: bool = False) -> None:
        """Read behind the sign that closes what has begun. ``quoted``: directly within double quotes, where a single
        quote is a character."""
        text = self.text
        depth = 1
        while self.at < len(text):
            character = text[self.at]
            if character == closing:
                self.at += 1
                depth -= 1
                if not depth:
                    return
            elif opening and character == opening:
                self.at += 1
                depth += 1
            elif character == "\\":
                self.at += 2
            elif character == "'" and not quoted:
                self.single_quoted()
            elif character == '"':
                self.double_quoted()
            elif character == "`":
                self.backquoted()
            elif character == "$":
                self.dollar(quoted)
            else:
                self.at += 1
        raise Broken(f"{name} is never closed", start)

    def substitution(self, lead: int) -> None:
        """``$(...)``, ``<(...)``."""
        start = self.at
        if start not in self.ends:
            pending, self.heredocs = self.heredocs, []
            self.at += lead
            self.substitutions += 1
            self.commands((")",))
            if not self.take(")"):
                raise Broken(f"{self.text[start : start + lead]} is never closed", start)
            self.substitutions -= 1
            self.heredocs = pending
            nothing = _NOTHING.match(self.text, start + lead, self.at - 1)
            if nothing is not None and nothing.end() == self.at - 1 and self.text[start] == "$":
                self.empty.add((start, self.at))
            self.ends[start] = self.at
        self.at = self.ends[start]

    def arithmetic(self, lead: int) -> bool:
        """``((...))`` or ``$((...))``; False, and nothing read, where the parentheses turn out to be commands."""
        start = self.at
        key = -start - 1  # beside the substitutions that begin here
        if key not in self.ends:
            self.at += lead
            try:
                self.matched(")", "((", start, opening="(")
                self.ends[key] = self.at + 1 if self.here(")") else start
            except Broken:
                self.ends[key] = start
            work.spend((self.at - start) // 2, "looking for the end of arithmetic")
        self.at = self.ends[key]
        if self.at > start:
            self.sums.add((start, self.at))
        return self.at > start


_QUOTING: dict[str, Callable[[_Reader], None]] = {
    "\\": _Reader.escape,
    "'": _Reader.single_quoted,
    '"': _Reader.double_quoted,
    "`": _Reader.backquoted,
    "$": _Reader.dollar,
}
_COMPOUND: dict[str, Callable[[_Reader, str, int], None]] = {
    "{": _Reader.group,
    "if": _Reader.if_,
    "for": _Reader.for_,
    "select": _Reader.for_,
    "while": _Reader.while_,
    "until": _Reader.while_,
    "case": _Reader.case,
    "[[": _Reader.test,
}
