"""Redirections of a command: words that stand behind them, and heredocs, which may be scripts themselves."""

from __future__ import annotations

from typing import Any

from memlint.documents.shell.conditions import SUCCESS
from memlint.documents.shell.loops import Loops
from memlint.documents.shell.tree import parsed
from memlint.documents.shell.words import BREAK, Items, Piece, Pieces, Source, fields, limited, part, reason_of, text_of

MAX_DEPTH = 12  # functions within functions, eval within eval

_SUBSHELLS = frozenset(("sbatch", "bash", "sh", "zsh", "srun", "ssh", "qsub", "bsub", "salloc", "ksh", "dash"))

_NOT_WORDS = frozenset(("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment"))


class Redirections(Loops):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.depth = 0
        self.behind: dict[int, list[Any]] = {}  # words of a command that stand behind its redirections, by its node

    def _words(self, node: Any, source: Source) -> list[Pieces]:
        """The words of a command, without its assignments and redirections."""
        items: Items = []
        run: list[Any] = []
        for child in node.children:
            if child.type in _NOT_WORDS:
                items += [*self.word_list(run, source), BREAK]
                run = []
            elif child.type == "command_name" and len(child.children) == 1:
                run.append(child.children[0])
            elif child.is_named or child.type in ("=", "==", "=~"):  # an operator that the grammar sees in a word
                run.append(child)
        return fields([*items, *self.word_list([*run, *self.behind.get(node.id, ())], source)])

    def _redirected(self, node: Any, source: Source) -> str:
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        status = self._fed(node, heredocs, source)
        for heredoc in heredocs:  # cat > FILE <<EOF && next
            for at, child in enumerate(heredoc.children[:-1]):
                if child.type in ("&&", "||") and not self.jump:
                    status = self._then(status, child.type, heredoc.children[at + 1], source)
        return status

    def _fed(self, node: Any, heredocs: list[Any], source: Source) -> str:
        """A command with what it reads and where it writes."""
        body = node.child_by_field_name("body")
        self._note_words_behind(node, body)
        if heredocs and body is not None and body.type == "command":
            words = self._words(body, source)
            name = text_of(words[0]).rpartition("/")[2] if words and not reason_of(words[0]) else ""
            if name in _SUBSHELLS and not any(text_of(word) == "-c" for word in words):
                self._run_text(self._heredoc(heredocs[0], source), source, exported_only=True)
                return SUCCESS
            if name == "read":
                self._read_into(words, self._heredoc(heredocs[0], source))
                return SUCCESS
            targets = [
                source.of(child).lstrip("<>&| 0123456789")
                for redirect in (node, *heredocs)
                for child in redirect.children
                if child.type == "file_redirect"
            ]
            targets += [text_of(word) for word in words[1:]] if name == "tee" else []
            if name in ("cat", "tee") and any(
                target.strip("\"'").endswith((".sh", ".slurm", ".sbatch", ".bash", ".job")) for target in targets
            ):
                self._run_text(self._heredoc(heredocs[0], source), source, exported_only=True)
                return SUCCESS
        status = self.statement(body, source) if body is not None else SUCCESS
        for heredoc in heredocs:  # cat <<EOF | bash
            for child in heredoc.children:
                if child.type == "pipeline":
                    text = source.of(child).lstrip("| \t")
                    if text.split()[:1] and text.split()[0].rpartition("/")[2] in _SUBSHELLS:
                        self._run_text(self._heredoc(heredoc, source), source, exported_only=True)
        return status

    def _note_words_behind(self, node: Any, body: Any) -> None:
        """``python > log --b 2``: the grammar counts words behind a redirection to it. They are the command's, which of
        several is the last one."""
        words: list[Any] = []
        for redirect in node.children:
            if redirect.type == "file_redirect":
                words += redirect.children_by_field_name("destination")[1:]
            elif redirect.type == "heredoc_redirect":
                words += redirect.children_by_field_name("argument")
        while words and body is not None and body.type in ("list", "pipeline", "negated_command"):
            body = body.named_children[-1]
        if words and body is not None:
            self.behind[body.id] = words

    def _read_into(self, words: list[Pieces], pieces: Pieces) -> None:
        """``read -r -d '' NAME <<EOF``: the whole text, without the white space around it."""
        texts = [text_of(word) for word in words[1:]]
        names = [text for text in texts if text.isidentifier()]
        whole = "-d" in texts or any(text[:1] == "-" and text.endswith("d") for text in texts)
        if len(names) == 1 and whole:
            [name] = names
            text = text_of(pieces)
            lead = len(text) - len(text.lstrip())
            self._set(name, part(pieces, lead, len(text.rstrip())))
        else:
            for name in names:
                self._set(name, [Piece("$" + name, reason="it is read while the script runs")])

    def _run_text(self, pieces: Pieces, source: Source, exported_only: bool = False) -> str:
        """Evaluate expanded text as a script: of ``eval``, ``bash -c``, a heredoc."""
        if self.depth >= MAX_DEPTH:
            return SUCCESS
        tree, derived = parsed(source.derived(limited(pieces)))
        self.trees.append(tree)
        self.depth += 1
        if exported_only:
            kept = self.environment
            positional, self.positional = self.positional, None
            self.environment = kept.exported()
            self.statements(tree.root_node, derived)
            self.environment = kept
            self.positional = positional
            self.jump = ""
        else:
            self.statements(tree.root_node, derived)
        self.depth -= 1
        return SUCCESS
