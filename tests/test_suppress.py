"""Suppression comments: where comments are, what they cover, and what is said about idle and malformed ones."""

from __future__ import annotations

import io
import tokenize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.check import check_text
from memlint.discover import Pattern
from memlint.documents.node import Span
from memlint.fixes.edits import apply_edits
from memlint.plugin import ERROR, Finding
from memlint.rules_registry import RuleInfo, built_in
from memlint.settings import Settings
from memlint.suppress import apply, comments, scan
from tests import demo_family

RULES = (
    RuleInfo("MEM006", "duplicate-key", ""),
    RuleInfo("MEM201", "token-explosion", ""),
    RuleInfo("MEM305", "foreach-step-peak", ""),
)


def finding(line: int, code: str = "MEM201", end_line: int = 0, name: str = "token-explosion") -> Finding:
    return Finding(code, name, ERROR, "...", Span("x.yaml", line, 1, end_line or line, 5))


def hidden(text: str, *findings: Finding, path: str = "x.yaml") -> list[bool]:
    placed = [entry._replace(span=entry.span._replace(path=path)) for entry in findings]
    suppressions = scan(path, text, RULES)
    assert suppressions.bad == ()
    kept, _ = apply(placed, {path: suppressions})
    return [entry not in kept for entry in placed]


# -- where comments are

COMMENTS = [
    pytest.param("yaml", "a: 1 # memlint: x", [(1, 6, False)], id="yaml after a value"),
    pytest.param("yaml", "  # memlint: x\na: 1", [(1, 3, True)], id="yaml alone on a line"),
    pytest.param("yaml", "a: '# memlint: x'\nb: \"# memlint: x\"", [], id="yaml in quotes"),
    pytest.param("yaml", "a: |\n  # memlint: x\nb: 1", [], id="yaml in a block scalar"),
    pytest.param("yaml", "a: | # memlint: x\n  text\nb: 1", [(1, 6, False)], id="yaml after a block scalar's head"),
    pytest.param("yaml", "a: |\n  text\n# memlint: x\nb: 1", [(3, 1, True)], id="yaml after a block scalar"),
    pytest.param("yaml", "a: 1# memlint: x", [], id="yaml without a blank before it is a value"),
    pytest.param("yaml", "a: [1, # memlint: x\n  2]", [(1, 8, False)], id="yaml inside a flow list"),
    pytest.param("yaml", "a: 名 # memlint: x", [(1, 6, False)], id="yaml after wide characters"),
    pytest.param("yaml", "# memlint: x\na: [1", [(1, 1, True)], id="yaml that does not parse further down"),
    pytest.param("yaml", "a: 'x # memlint: y'  # memlint: x", [(1, 22, False)], id="yaml quotes then a comment"),
    pytest.param("toml", "a = 1 # memlint: x", [(1, 7, False)], id="toml after a value"),
    pytest.param("toml", "a = '# memlint: x' # memlint: y", [(1, 20, False)], id="toml in quotes then a comment"),
    pytest.param("toml", "a = '''\n# memlint: x\n'''\n# memlint: y", [(4, 1, True)], id="toml in a long string"),
    pytest.param("toml", 'a = "\\"# memlint: x"\n', [], id="toml after an escaped quote"),
    pytest.param("toml", 'a = "\\\\" # memlint: x', [(1, 10, False)], id="toml after an escaped backslash"),
    pytest.param("toml", 'a = """\nb""" # memlint: x', [(2, 6, False)], id="toml behind a long string's end"),
    pytest.param("toml", "# memlint: x\n# memlint: y", [(1, 1, True), (2, 1, True)], id="toml one below the other"),
    pytest.param("python", "a = 1  # memlint: x", [(1, 8, False)], id="python after a value"),
    pytest.param("python", "a = '''\n# memlint: x\n'''", [], id="python in a long string"),
    pytest.param("python", "a = (1\n# memlint: x", [(2, 1, True)], id="python that does not parse"),
    pytest.param("shell", "python t.py --a 1  # memlint: x", [(1, 20, False)], id="shell after a command"),
    pytest.param("shell", "echo '# memlint: x' \"# memlint: y\"", [], id="shell in quotes"),
    pytest.param("shell", "cat <<EOF\n# memlint: x\nEOF\n# memlint: y", [(4, 1, True)], id="shell in a heredoc"),
    pytest.param("shell", "echo é a#b # memlint: x", [(1, 12, False)], id="shell inside a word and after an accent"),
    pytest.param("json", '{"a": "# memlint: x"}', [], id="json has none"),
]


@pytest.mark.parametrize(("kind", "text", "expected"), COMMENTS)
def test_comments(kind: str, text: str, expected: list[tuple[int, int, bool]]) -> None:
    assert [(found.line, found.column, found.alone) for found in comments(text, kind)] == expected


PYTHON_LINES = st.lists(
    st.sampled_from(["a = 1", "# memlint: x", "b = '# memlint: y'", "c = 2  # memlint: z", "d = (", "3)", "'''", ""]),
    max_size=8,
)


@given(PYTHON_LINES)
def test_python_comments_are_pythons_own(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    own = [(t.start[0], t.start[1] + 1) for t in tokens if t.type == tokenize.COMMENT]
    assert [(found.line, found.column) for found in comments(text, "python")] == own


# -- what they cover


COVERED = [
    pytest.param("a: 1  # memlint: ignore[MEM201] why\nb: 2\n", [True, False], id="the end of a line covers the line"),
    pytest.param("# memlint: ignore[MEM201]\na: 1\nb: 2\n", [False, True, False], id="above covers the next line"),
    pytest.param(
        "# memlint: ignore[MEM201]\n\n# more words\na: 1\nb: 2\n",
        [False, False, False, True, False],
        id="blank lines and comments between are passed",
    ),
    pytest.param(
        "# memlint: ignore[MEM201]\na:\n  b: 1\n  c:\n    d: 1\ne: 1\n",
        [False, True, True, True, True, False],
        id="above a block covers the whole block",
    ),
    pytest.param(
        "a:  # memlint: ignore[MEM201]\n  b: 1\n", [True, False], id="after a block's key covers the key alone"
    ),
    pytest.param(
        "x: 1\n# memlint: file-ignore[MEM201] why\na: 1\n", [True, True, True], id="file-ignore covers every line"
    ),
    pytest.param(
        "a: 1\n# memlint: disable[MEM201]\nb: 1\n# memlint: enable[MEM201]\nc: 1\n",
        [False, True, True, True, False],
        id="disable covers up to enable",
    ),
    pytest.param("a: 1\n# memlint: disable[MEM201]\nb: 1\nc: 1\n", [False, True, True, True], id="to the end"),
    pytest.param(
        "# memlint: disable[MEM201, MEM305]\na: 1\n# memlint: enable[MEM305]\nb: 1\n",
        [True, True, True, True],
        id="what is enabled again is the other code",
    ),
    pytest.param(
        "# memlint: disable[MEM201, MEM305]\na: 1\n# memlint: enable[MEM201]\nb: 1\n",
        [True, True, True, False],
        id="what is enabled again is one of two codes",
    ),
    pytest.param(
        "a: 1  # a remark\nb: 1  # memlint: ignore[MEM201]\n", [False, True], id="a remark above is no suppression"
    ),
    pytest.param("a: 1  # memlint: ignore[token-explosion]\n", [True], id="a name"),
    pytest.param("a: 1  # memlint: ignore[MEM2] all of them\n", [True], id="a prefix"),
    pytest.param("a: 1  # memlint: ignore[MEM305, MEM201] two\n", [True], id="one of several codes"),
    pytest.param("a: 1  # memlint: ignore[MEM305]\n", [False], id="another code"),
    pytest.param("a: 1  # noqa # memlint: ignore[MEM201]\n", [True], id="behind another tool's comment"),
    pytest.param("a: 1  #memlint:ignore[MEM201]\n", [True], id="without blanks"),
]


@pytest.mark.parametrize(("text", "expected"), COVERED)
def test_coverage_in_yaml(text: str, expected: list[bool]) -> None:
    assert hidden(text, *[finding(line + 1) for line in range(len(expected))]) == expected


def test_a_comment_on_any_line_of_a_finding_covers_it() -> None:
    text = "a: [1,\n  2,\n  3]  # memlint: ignore[MEM201]\nb: 1\n"
    assert hidden(text, finding(1, end_line=3), finding(1, end_line=2), finding(4)) == [True, False, False]


def test_a_finding_that_ends_where_a_line_begins_takes_nothing_of_it() -> None:
    """A block's span ends at the first column of the line behind it."""
    text = "a:\n  b: 1\nc: 1  # memlint: ignore[MEM201]\n"
    block = finding(1)._replace(span=Span("x.yaml", 1, 1, 3, 1))
    reaching = finding(1)._replace(span=Span("x.yaml", 1, 1, 3, 2))
    empty = finding(3)._replace(span=Span("x.yaml", 3, 1, 3, 1))
    assert hidden(text, block, reaching, empty) == [False, True, True]


def test_a_comment_above_a_shell_command_covers_its_continuation_lines() -> None:
    text = "# memlint: ignore[MEM201]\npython train.py \\\n  --batch_size 4 \\\n  --epochs 3\necho done\n"
    assert hidden(text, *[finding(line) for line in range(1, 6)], path="x.sh") == [False, True, True, True, False]


def test_a_comment_above_a_python_class_covers_the_class() -> None:
    text = "# memlint: ignore[MEM201]\nclass Config:\n    A = 1\n    B = (1,\n         2)\nC = 1\n"
    assert hidden(text, *[finding(line) for line in range(1, 7)], path="x.py") == [False, True, True, True, True, False]


def test_json_has_a_key_for_it() -> None:
    text = '{"//": "memlint: file-ignore[MEM201] tried on the card", "a": 1}\n'
    assert hidden(text, finding(1), finding(1, "MEM305", name="foreach-step-peak"), path="x.json") == [True, False]
    several = '{"//": ["a remark", "memlint: file-ignore[MEM201]"], "a": 1}\n'
    assert hidden(several, finding(1), path="x.json") == [True]


def test_an_internal_error_cannot_be_hidden() -> None:
    text = "# memlint: file-ignore[MEM0]\na: 1\n"
    assert hidden(text, finding(2, "MEM001", name="internal-error")) == [False]


# -- malformed ones

BAD = [
    pytest.param("a: 1  # memlint: ignore", "ignore needs codes", id="no codes"),
    pytest.param("a: 1  # memlint: ignore[]", "names no code", id="empty codes"),
    pytest.param("a: 1  # memlint: ignore[ALL]", "no form that hides everything", id="blanket"),
    pytest.param("a: 1  # memlint: ignore[MEM999]", "unknown rule 'MEM999'", id="an unknown code"),
    pytest.param("a: 1  # memlint: ignore[token-explosions]", "did you mean token-explosion?", id="a mistyped name"),
    pytest.param("a: 1  # memlint: ignroe[MEM201]", "'ignroe' is no suppression", id="a mistyped form"),
    pytest.param(
        "a: 1  # memlint: please",
        "'please' is no suppression: write ignore, file-ignore, disable or enable",
        id="a request",
    ),
    pytest.param("a: 1  # memlint:", "is no suppression", id="nothing"),
    pytest.param("a: 1  # memlint: file-ignore[MEM201]", "stands alone on its line", id="file-ignore behind a value"),
    pytest.param("# memlint: enable[MEM201]\na: 1", "without a disable above it", id="enable alone"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_malformed_suppressions_are_findings_and_hide_nothing(text: str, message: str) -> None:
    suppressions = scan("x.yaml", text + "\n", RULES)
    (bad,) = suppressions.bad
    assert (bad.code, bad.name, bad.severity) == ("MEM005", "bad-suppression", "warning")
    assert message in bad.message
    line = text.splitlines()[bad.span.line - 1]
    assert line[bad.span.column - 1 : bad.span.end_column - 1].startswith("# memlint:")
    assert suppressions.directives == ()


def test_what_is_enabled_again_is_what_was_disabled() -> None:
    suppressions = scan("x.yaml", "# memlint: disable[MEM201]\n# memlint: enable[MEM305]\na: 1\n", RULES)
    (bad,) = suppressions.bad
    assert (bad.span.line, bad.message) == (2, "enable[MEM305] without a disable above it")
    assert [(one.codes, one.first) for one in suppressions.directives] == [(("MEM201",), 1)]


def test_json_knows_one_form_only() -> None:
    (bad,) = scan("x.json", '{"//": "memlint: ignore[MEM201]"}', RULES).bad
    assert "JSON knows only" in bad.message


@given(st.text(alphabet="memlint: ignore[]MEM201,#'\"|\n-{}x", max_size=80))
def test_no_text_makes_the_scan_raise(text: str) -> None:
    for path in ("x.yaml", "x.json", "x.toml", "x.py"):
        scan(path, "# memlint: " + text, RULES)


# -- the whole way


@pytest.fixture
def _demo(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_family.install(monkeypatch)


def found(text: str, **options: object) -> list[tuple[int, str, str]]:
    report = check_text("x.yaml", text, Settings(**options))  # type: ignore[arg-type]
    return [(entry.span.line, entry.code, entry.message) for entry in report.findings]


@pytest.mark.usefixtures("_demo")
def test_a_used_suppression_leaves_nothing() -> None:
    assert found("demo:\n  batch: 4  # memlint: ignore[MEM990] measured\n") == []


@pytest.mark.usefixtures("_demo")
def test_no_ignores_shows_what_is_hidden_and_calls_nothing_unused() -> None:
    text = "demo:\n  batch: 4  # memlint: ignore[MEM990]\n  width: 1024  # memlint: ignore[MEM006]\n"
    assert [entry[:2] for entry in found(text, no_ignores=True)] == [(2, "MEM990")]


@pytest.mark.usefixtures("_demo")
def test_an_unused_suppression_is_a_finding() -> None:
    text = "demo:\n  batch: 1  # memlint: ignore[MEM990, MEM006] once needed\n"
    assert found(text) == [(2, "MEM002", "ignore[MEM990, MEM006] hides nothing")]


@pytest.mark.usefixtures("_demo")
def test_a_partly_used_suppression_names_the_idle_code() -> None:
    text = "demo:\n  batch: 4  # memlint: ignore[MEM990, MEM006] once needed\n"
    assert found(text) == [(2, "MEM002", "ignore[MEM006] hides nothing")]


@pytest.mark.usefixtures("_demo")
@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param("  batch: 1  # memlint: ignore[MEM990]", {"ignore": ("MEM990",)}, id="a rule that is off"),
        pytest.param("  batch: 1  # memlint: ignore[MEM992]", {}, id="a rule in preview"),
        pytest.param("  batch: 1  # memlint: ignore[MEM190]", {}, id="a budget rule without a budget"),
        pytest.param("  batch: 1  # memlint: ignore[MEM99]", {}, id="a prefix of which some rules did not run"),
        pytest.param("  batch: 1  # memlint: ignore[MEM990]\n  model: x", {"ignore": ("MEM007",)}, id="no estimate"),
        pytest.param("  batch: 1  # memlint: ignore[MEM990, MEM002] kept", {}, id="hiding the finding about itself"),
    ],
)
def test_suppressions_that_could_not_be_judged_are_not_called_unused(text: str, options: dict[str, object]) -> None:
    assert found("demo:\n" + text + "\n", **options) == []


@pytest.mark.usefixtures("_demo")
def test_unused_and_bad_findings_can_be_switched_off() -> None:
    text = "demo:\n  batch: 1  # memlint: ignore[MEM990]\n  width: 1024  # memlint: what\n"
    assert [entry[1] for entry in found(text)] == ["MEM002", "MEM005"]
    assert [entry[1] for entry in found(text, ignore=("MEM002",))] == ["MEM005"]
    assert [entry[1] for entry in found(text, ignore=("MEM005",))] == ["MEM002"]
    everywhere = ((Pattern("/", "*.yaml"), ("MEM002",)),)
    assert [entry[1] for entry in found(text, per_file_ignores=everywhere)] == ["MEM005"]


FIXES = [
    pytest.param("demo:\n  batch: 1  # memlint: ignore[MEM990] once\n", "demo:\n  batch: 1\n", id="behind a value"),
    pytest.param(
        "demo:\n  # memlint: ignore[MEM990] once\n  batch: 1\n", "demo:\n  batch: 1\n", id="alone: the whole line"
    ),
    pytest.param(
        "demo:\n  batch: 4  # memlint: ignore[MEM006, MEM990] why\n",
        "demo:\n  batch: 4  # memlint: ignore[MEM990] why\n",
        id="one of two codes: the other stays",
    ),
    pytest.param(
        "demo:\n  batch: 1  # small # memlint: ignore[MEM990]\n", "demo:\n  batch: 1  # small\n", id="words stay"
    ),
    pytest.param("demo:\n  batch: 1 # memlint: ignore[MEM990]\n", "demo:\n  batch: 1\n", id="one blank before it"),
]


@pytest.mark.usefixtures("_demo")
@pytest.mark.parametrize(("text", "after"), FIXES)
def test_the_fix_removes_what_is_not_needed(text: str, after: str) -> None:
    report = check_text("x.yaml", text, Settings())
    (unused,) = report.findings
    assert unused.code == "MEM002"
    (fix,) = unused.fixes
    assert fix.safety == "safe"
    assert apply_edits(text, fix.edits) == after
    assert check_text("x.yaml", after, Settings()).findings == ()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("a: 1  # memlint: ignore[MEM201]\n", "x.yaml", id="at the end of a line"),
        pytest.param("# memlint: file-ignore[MEM201]\na: 1\n", "x.yaml", id="for a file"),
        pytest.param('{"//": "memlint: file-ignore[MEM201]"}\n', "x.json", id="in JSON"),
        pytest.param("# memlint: disable[MEM201]\na: 1\n", "x.yaml", id="from here on"),
    ],
)
def test_where_reasons_are_required_a_suppression_without_one_hides_nothing(text: str, path: str) -> None:
    assert len(scan(path, text, built_in()).directives) == 1
    required = scan(path, text, built_in(), reasons=True)
    assert required.directives == ()
    assert [finding.code for finding in required.bad] == ["MEM005"]
    assert "without a reason" in required.bad[0].message
    explained = scan(path, text.replace("[MEM201]", "[MEM201] fits our cards"), built_in(), reasons=True)
    assert (len(explained.directives), explained.bad) == (1, ())
