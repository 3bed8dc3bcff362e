"""Hydra's composition of a config from its defaults list, with every value still knowing its file and line.

The rules are Hydra 1.1 to 1.3's: groups, packages, ``_self_``, overrides in lists and on the command line,
``optional``, interpolated choices. ``hydra/*`` groups and the ``hydra`` node configure the launcher, not the run,
and are left out. ``${...}`` in values stays as it is: :mod:`memlint.documents.interpolation` follows it later.

What Hydra would refuse is a fault at the entry of the defaults list. A config that is not in the config tree but
may be registered in code (a ConfigStore) is MEM004: what it holds is unknown, not wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from memlint import work
from memlint.documents import hydra_grammar
from memlint.documents.interpolation import MISSING, has_interpolation, select
from memlint.documents.load import Unreadable, read_text
from memlint.documents.merge import moved
from memlint.documents.node import Document, Fault, Faults, Keys, Node, Span
from memlint.documents.overrides import OverrideError, put, split_key
from memlint.files import inside, repository_root
from memlint.named_tuple import NamedTuple

MAX_FILES = 256
MAX_ENTRIES = 2_000
MAX_DEPTH = 32
MAX_PACKAGE = 50  # names of a package, each a mapping within the last
MAX_CLIMB = 8  # folders above a group file in which its primary config is looked for
MAX_PRIMARIES = 200
MAX_LOOKED_FOR = 50  # groups that may show where the tree begins
MAX_NAME = 1_000  # characters of an entry: more than a path has
_ENTRY = 20  # steps for one of a defaults list

SELF = "_self_"
GLOBAL = "_global_"
_COMPOSING = "composing a Hydra config"
_HEADER_CHARACTERS = 512  # Hydra looks for `# @package` in so many


def has_defaults(document: Document) -> bool:
    """Whether a document has a defaults list, so that composing it means something."""
    defaults = document.root.value.get("defaults") if isinstance(document.root.value, dict) else None
    return document.format == "yaml" and defaults is not None and defaults.is_list


def compose(document: Document, config_dir: str | None = None, overrides: Sequence[str] = ()) -> Document:
    """The config that Hydra would build from this primary config.

    config_dir  the root of the config tree; by default the primary config's folder, or the nearest folder above
                it that has the groups which its defaults list names absolutely (``/model``)
    overrides   as on Hydra's command line

    Nodes point into the file that set them, and ``sources`` has the text of each. Raises OverrideError for an
    override that Hydra would refuse. Faults in the files are faults of the result.
    """
    folder = _config_root(document) if config_dir is None else config_dir
    return _Composition(document, _Repository(folder), overrides).run()


def roots_of(fragment: str) -> list[str]:
    """Primary configs that compose this group file as they stand, by path."""
    return [path for path, overrides in runs_of(fragment) if not overrides]


def runs_of(fragment: str) -> list[tuple[str, tuple[str, ...]]]:
    """As :meth:`Trees.runs_of`, for one file."""
    return Trees().runs_of(fragment)


class Trees:
    """The config trees around group files. Each folder's primary configs are composed once, whoever asks."""

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}
        self._above: dict[str, list[_Folder]] = {}

    def runs_of(self, fragment: str) -> list[tuple[str, tuple[str, ...]]]:
        """The runs that this group file is part of: primary config, and the overrides that choose the file.

        The primary configs that compose it as they stand; if there are none, those that have its group, with the
        override that selects it (``task=lift``). Looked for in the folders above it, within its repository; the
        highest folder that has some counts, since below it are only other group files.
        """
        real = os.path.realpath(fragment)
        found: list[tuple[str, tuple[str, ...]]] = []
        for folder in self._around(os.path.dirname(fragment) or "."):
            found = folder.runs_of(fragment, real) or found
        return found

    def _around(self, folder: str) -> list[_Folder]:
        """The folder and those above it, lowest first."""
        if folder not in self._above:
            above = self._above[folder] = []
            top = repository_root(folder)
            at = folder
            for _ in range(MAX_CLIMB):
                if at not in self._folders:
                    self._folders[at] = _Folder(at)
                above.append(self._folders[at])
                if os.path.realpath(at) == top:
                    break
                at = os.path.normpath(os.path.join(at, os.pardir))
        return self._above[folder]


class _Folder:
    """The primary configs of one folder, by what they compose. They are read for the first who asks."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_read = False
        self.out_of_work: work.OutOfWork | None = None
        self.composing: dict[str, list[str]] = {}  # real path of a file -> primary configs
        self.choosing: dict[str, list[tuple[str, str]]] = {}  # group -> primary config, and its key for the choice

    def runs_of(self, fragment: str, real: str) -> list[tuple[str, tuple[str, ...]]]:
        if self.out_of_work is not None:
            raise self.out_of_work
        if not self.is_read:
            self.is_read = True
            try:
                self.read()
            except work.OutOfWork as error:
                self.out_of_work = error
                raise
        composed = [path for path in self.composing.get(real, ()) if os.path.realpath(path) != real]
        if composed:
            return [(path, ()) for path in composed]
        group, name = os.path.split(os.path.relpath(fragment, self.path))
        choice = os.path.splitext(name)[0]
        choosing = self.choosing.get(group.replace(os.sep, "/"), ())
        return [(path, (f"{key}={choice}",)) for path, key in choosing if os.path.realpath(path) != real]

    def read(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self.path) if name.endswith((".yaml", ".yml")))
        except OSError:
            return
        repository = _Repository(self.path, MAX_PRIMARIES + MAX_FILES)
        for name in names[:MAX_PRIMARIES]:
            config = repository.config(name)
            if config is None or not config.entries:
                continue
            composition = _Composition(config.document, repository, ())
            composition.follow()
            path = os.path.normpath(os.path.join(self.path, name))
            for source in composition.sources:
                self.composing.setdefault(repository.real(source), []).append(path)
            groups: dict[str, str] = {}
            for key in composition.choices:
                groups.setdefault(key.split("@")[0], key)
            for group, key in groups.items():
                if group:
                    self.choosing.setdefault(group, []).append((path, key))


def _config_root(document: Document) -> str:
    folder = os.path.dirname(document.path) or "."
    defaults = document.root.get("defaults")
    wanted = []
    least = 0  # ``../default``: the tree starts that much higher
    for item in defaults.value if defaults is not None and isinstance(defaults.value, list) else ():
        for name in item.value if isinstance(item.value, dict) else [item.value]:
            group = name.split("@")[0].split(" ")[-1] if isinstance(name, str) else ""
            if group.startswith("/") and not f"{group}/".startswith("/hydra/") and ".." not in group:
                wanted.append(group[1:])
            elif group.startswith("../"):
                least = max(least, group.count("../"))
    if not wanted and not least:
        return folder
    wanted = list(dict.fromkeys(wanted))[:MAX_LOOKED_FOR]
    top = repository_root(folder)
    at = folder
    for _ in range(min(least, MAX_CLIMB)):
        if os.path.realpath(at) != top:
            at = os.path.normpath(os.path.join(at, os.pardir))
    folder = at
    for _ in range(MAX_CLIMB if wanted else 0):
        if any(os.path.exists(os.path.join(at, name)) for name in wanted):
            return at
        if os.path.realpath(at) == top:
            break
        at = os.path.normpath(os.path.join(at, os.pardir))
    return folder


class _Entry:
    """One line of a defaults list: ``_self_``, a config by path, or a group with its choice.

    group   the group as written, ``/`` in front where it is absolute; of a config, its path
    value   the choice: a name, several, or None
    folder, above  the group path and the package of the config whose list this is
    """

    __slots__ = (
        "above",
        "deleted",
        "folder",
        "group",
        "header",
        "is_config",
        "optional",
        "override",
        "package",
        "span",
        "value",
    )

    def __init__(
        self,
        group: str,
        value: str | list[str] | None,
        span: Span,
        is_config: bool = False,
        package: str | None = None,
        optional: bool = False,
        override: bool = False,
    ) -> None:
        self.group = group
        self.value = value
        self.span = span
        self.is_config = is_config
        self.package = "" if package == "_here_" else package
        self.optional = optional
        self.override = override
        self.header: str | None = None
        self.folder = ""
        self.above = ""
        self.deleted = False

    def fresh(self, folder: str, above: str) -> _Entry:
        """A copy for one place of the tree: a file may be drawn in more than once."""
        value = list(self.value) if isinstance(self.value, list) else self.value
        entry = _Entry(self.group, value, self.span, self.is_config, self.package, self.optional, self.override)
        entry.folder, entry.above = folder, above
        if entry.package is not None and "_group_" in entry.package:
            entry.package = f"{GLOBAL}.{entry.package.replace('_group_', entry.group_path.replace('/', '.'))}"
        return entry

    @property
    def is_self(self) -> bool:
        return self.is_config and self.group == SELF

    @property
    def name(self) -> str | None:
        """The last part of the config's path; None for a group without a choice."""
        if self.is_config:
            return self.group.rsplit("/", 1)[-1]
        return self.value if isinstance(self.value, str) else None

    @property
    def is_interpolation(self) -> bool:
        return has_interpolation(self.group if self.is_config else self.value)

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path[1:]
        return f"{self.folder}/{path}" if self.folder and path else self.folder or path

    @property
    def group_path(self) -> str:
        if not self.is_config:
            return self._absolute(self.group)
        parent, slash, _ = self.group.rpartition("/")
        return parent[1:] if parent.startswith("/") else "" if slash and not parent else self._absolute(parent)

    @property
    def config_path(self) -> str:
        return self._absolute(self.group) if self.is_config else f"{self.group_path}/{self.name}"

    def final_package(self, with_header: bool = True) -> str:
        package = self.package
        if package is None and with_header:
            package = self.header
        if package is None:
            group = self.group[1:] if self.group.startswith("/") else self.group
            if self.is_config:
                group = group.rpartition("/")[0]
            package = group.replace("/", ".")
        if isinstance(self.name, str):
            package = package.replace("_name_", self.name)
        full = f"{self.above}.{package}" if self.above and package else self.above or package
        at = full.rfind(GLOBAL)
        return full if at < 0 else full[at + len(GLOBAL) + 1 :]

    @property
    def override_key(self) -> str:
        """How a command line names this entry: the group, with its package where that is not the group's own."""
        package = self.final_package(with_header=False)
        if package == self.group_path.replace("/", "."):
            return self.group_path
        return f"{self.group_path}@{package or GLOBAL}"

    def set_header(self, header: str | None) -> None:
        if header is None or header == "_group_":
            return
        if header == "":
            header = GLOBAL
        elif header != GLOBAL and not header.startswith(GLOBAL + "."):
            header = f"{GLOBAL}.{header}"
        self.header = header.replace("_group_", self.group_path.replace("/", "."))


class _Config(NamedTuple):
    """A file of the config tree: its content without the defaults list, and that list."""

    document: Document
    content: Node
    entries: tuple[_Entry, ...]
    faults: tuple[Fault, ...]
    header: str | None


class _Tree:
    __slots__ = ("children", "entry")

    def __init__(self, entry: _Entry) -> None:
        self.entry = entry
        self.children: list[_Tree] = []


class _Repository:
    """The config tree below one folder. Files are read once."""

    def __init__(self, folder: str, max_files: int = MAX_FILES) -> None:
        self.folder = folder
        self.max_files = max_files
        self.top = repository_root(folder)
        self._real: dict[str, str] = {}
        self._options: dict[str, list[str]] = {}
        self.configs: dict[str, _Config | None] = {}
        self.problems: dict[str, str] = {}  # why a config is not to be had, where it is not simply missing

    def path(self, config_path: str) -> str | None:
        """The file of a config; None where it would be outside the tree."""
        if os.path.isabs(config_path) or "\0" in config_path:
            return None
        relative = os.path.normpath(config_path)
        if relative == os.pardir or relative.startswith(os.pardir + os.sep):
            return None
        return os.path.normpath(os.path.join(self.folder, relative))

    def is_group(self, group: str) -> bool:
        path = self.path(group)
        return path is not None and os.path.isdir(path)

    def real(self, path: str) -> str:
        if path not in self._real:
            self._real[path] = os.path.realpath(path)
        return self._real[path]

    def options(self, group: str) -> list[str]:
        if group not in self._options:
            path = self.path(group)
            try:
                names = os.listdir(path) if path is not None and inside(path, self.top) else []
            except OSError:
                names = []
            work.spend(len(names), _COMPOSING)
            self._options[group] = sorted(name[:-5] for name in names if name.endswith(".yaml"))
        return self._options[group]

    def config(self, config_path: str) -> _Config | None:
        if config_path in self.configs:
            return self.configs[config_path]
        if len(self.configs) >= self.max_files:
            self.problems[config_path] = f"more than {self.max_files} files: not composed any further"
            return None
        found = self.configs[config_path] = self.read(config_path)
        return found

    def read(self, config_path: str) -> _Config | None:
        path = self.path(config_path)
        if path is None:
            self.problems[config_path] = f"{config_path} leads out of the config tree"
            return None
        for candidate in (path,) if path.endswith((".yaml", ".yml")) else (f"{path}.yaml", f"{path}.yml"):
            if not os.path.lexists(candidate):
                continue
            if not inside(candidate, self.top):
                self.problems[config_path] = f"{config_path} leads out of the config tree"
                return None
            try:
                text = read_text(candidate)
            except Unreadable as error:
                self.problems[config_path] = f"{config_path} cannot be read: {error.reason}"
                return None
            from memlint.documents import yaml

            return config_of(yaml.read(candidate, text))
        return None


def config_of(document: Document) -> _Config:
    children = dict(document.root.value) if isinstance(document.root.value, dict) else {}
    defaults = children.pop("defaults", None)
    content = Node(children, document.root.span)
    faults = list(document.faults)
    entries: list[_Entry] = []
    if defaults is not None and defaults.is_list:
        assert isinstance(defaults.value, list)
        for item in defaults.value:
            entry = _entry(item)
            if isinstance(entry, _Entry):
                entries.append(entry)
            else:
                faults.append(Fault("MEM003", entry, item.span))
    elif defaults is not None:
        faults.append(Fault("MEM003", "a defaults list must be a list", defaults.key_span or defaults.span))
    return _Config(document, content, tuple(entries), tuple(faults), _package_header(document.text))


def _entry(item: Node) -> _Entry | str:
    """An item of a defaults list, or what is wrong with it."""
    if any(len(text) > MAX_NAME for text in _texts(item)):
        return f"an entry of a defaults list has no more than {MAX_NAME:,} characters"
    if isinstance(item.value, str):
        path, at, package = item.value.partition("@")
        if path == SELF and at:
            return "_self_ takes no package"
        return _Entry(path, None, item.span, is_config=True, package=package if at else None)
    if not isinstance(item.value, dict):
        return "an entry of a defaults list is a name, or a group with its choice"
    pairs = dict(item.value)
    old_optional = pairs.pop("optional", None) if len(pairs) == 2 else None
    if len(pairs) != 1:
        return "an entry of a defaults list has one group"
    ((key, choice),) = pairs.items()
    words, at, package = key.partition("@")
    *keywords, group = words.split(" ")
    value = choice.value
    names: list[str] | None = None
    if isinstance(value, list):
        names = [name.value for name in value if isinstance(name.value, str)]
        if len(names) != len(value):
            return "the choices of a group are names"
    elif value is not None and not isinstance(value, str):
        return f"the choice of a group is a name, a list of names or null, not {value!r}"
    if not group.strip("/"):
        return "an entry of a defaults list names a group"
    optional = "optional" in keywords or (old_optional is not None and old_optional.value is True)
    chosen = names if names is not None else value
    assert chosen is None or isinstance(chosen, (str, list))
    return _Entry(
        group,
        chosen,  # type: ignore[arg-type]  # names, where it is a list
        item.span,
        package=package.split(":")[0] if at else None,
        optional=optional,
        override="override" in keywords,
    )


def _texts(item: Node) -> Iterator[str]:
    """What is written in an item of a defaults list."""
    for node in item.walk():
        if isinstance(node.value, str):
            yield node.value
        elif isinstance(node.value, dict):
            yield from node.value


def _package_header(text: str) -> str | None:
    for line in text[:_HEADER_CHARACTERS].splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        if not stripped.startswith("#"):
            return None
        words = stripped.lstrip("#").split()
        if not words or not words[0].startswith("@"):
            return None
        if words[0] == "@package":
            return words[1] if len(words) > 1 else None
    return None


class _Composition:
    def __init__(self, document: Document, repository: _Repository, overrides: Sequence[str]) -> None:
        self.document = document
        self.repository = repository
        self.faults = Faults()
        self.sources: dict[str, str] = {}
        self.entries = 0
        self.choices: dict[str, str | list[str] | None] = {}  # override key -> what was chosen
        # What replaces the choice of an entry, by override key: the outermost list wins over the inner ones.
        self.replaced: dict[str, tuple[str | list[str] | None, Span | None]] = {}
        self.used: set[str] = set()
        self.deletions: dict[str, str | None] = {}
        self.appended: list[_Entry] = []
        self.values: list[hydra_grammar.Override] = []
        self.texts: dict[str, str] = {}
        self.root = Node({}, document.root.span)
        for index, text in enumerate(overrides):
            self.take(hydra_grammar.parse(text, index))

    # -- overrides from the command line

    def take(self, override: hydra_grammar.Override) -> None:
        key = override.key
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            return
        value = None if override.value is None else override.value.plain()
        if isinstance(value, dict) or not self.repository.is_group(key):
            self.values.append(override)
            return
        full = key if override.package is None else f"{key}@{override.package}"
        self.texts[full] = override.text
        span = override.value.span if override.value is not None else self.document.root.span
        if override.kind == hydra_grammar.DELETE:
            self.deletions[full] = value if isinstance(value, str) else None
        elif override.kind == hydra_grammar.FORCE:
            raise OverrideError(f"{override.text!r}: a group is added with one '+'")
        elif value is not None and not isinstance(value, (str, list)):
            raise OverrideError(f"{override.text!r}: the choice of a group is a name, or a list of names")
        elif override.kind == hydra_grammar.ADD:
            self.appended.append(_Entry(key, value, span, package=override.package))
        else:
            self.replaced[full] = (value, None)

    # -- the tree of defaults lists

    def follow(self) -> _Tree:
        """The tree of defaults lists: what is composed (``sources``) and what was chosen (``choices``)."""
        folder = self.repository.folder
        relative = os.path.relpath(self.document.path, folder).replace(os.sep, "/")
        if relative.startswith("../"):  # a config from elsewhere on top of this tree
            relative = os.path.basename(relative)
        name = relative[:-5] if relative.endswith(".yaml") else relative
        self.repository.configs[name] = config_of(self.document)
        entry = _Entry(name, None, self.document.root.span, is_config=True)
        return self.tree(entry, True, False, ())

    def run(self) -> Document:
        tree = self.follow()
        for full, (_, span) in self.replaced.items():
            if full not in self.used:
                self.unused(full, span)
        for full in self.deletions:
            if full not in self.used:
                raise OverrideError(f"{self.texts[full]!r}: there is no {full} in the defaults list to remove")
        self.add_all(tree, None)
        for override in self.values:
            self.apply(override)
        assert isinstance(self.root.value, dict)
        self.root.value.pop("hydra", None)
        self.sources.setdefault(self.document.path, self.document.text)
        root = Node(self.root.value, self.document.root.span)
        return self.document._replace(root=root, faults=self.faults.told(), sources=self.sources)

    def unused(self, key: str, span: Span | None) -> None:
        if span is None:
            raise OverrideError(f"{self.texts[key]!r}: there is no {key} in the defaults list; add it with +{key}=...")
        message = f"there is no {key} in the defaults list to override: this file is part of a larger config"
        self.faults.append(Fault("MEM004", message, span))

    def tree(self, entry: _Entry, is_root: bool, interpolated: bool, active: tuple[str, ...]) -> _Tree:
        """The entry with the entries of its own defaults list below it, last first, as Hydra goes."""
        tree = _Tree(entry)
        self.entries += 1
        work.spend(_ENTRY, _COMPOSING)
        if self.entries > MAX_ENTRIES or len(active) > MAX_DEPTH:
            self.stop(entry, f"the defaults lists do not end ({MAX_ENTRIES:,} entries, {MAX_DEPTH} levels)")
            return tree
        config = None
        if entry.name is not None and entry.name != MISSING:
            config = self.repository.config(entry.config_path)
            if config is not None:
                entry.set_header(config.header)
        if not entry.is_config:
            key = entry.override_key
            if key in self.deletions and self.deletions[key] in (None, entry.name):
                entry.deleted = True
                self.used.add(key)
                return tree
            self.choices.setdefault(key, entry.value)
        if entry.name is None:
            return tree
        if entry.name == MISSING:
            self.missing_choice(entry)
            return tree
        path = entry.config_path
        if config is None:
            if not entry.optional or path in self.repository.problems:
                self.not_found(entry)
            entry.deleted = True
            return tree
        if path in active:
            self.stop(entry, f"{path} includes itself: {' -> '.join((*active[active.index(path) :], path))}")
            return tree
        self.sources[config.document.path] = config.document.text
        self.faults.extend(config.faults)
        work.spend(2 * len(config.entries), _COMPOSING)
        entries = [item.fresh(entry.group_path, entry.final_package()) for item in config.entries]
        if entries or (is_root and self.appended):
            self.ensure_self(entries, config)
        self.collect_overrides(entries)
        if is_root:
            entries.extend(item.fresh("", "") for item in self.appended)
        self.expand(tree, entries, interpolated, (*active, path))
        return tree

    def ensure_self(self, entries: list[_Entry], config: _Config) -> None:
        if not any(item.is_self for item in entries) and any(
            not item.override for item in entries or [_Entry(SELF, None, config.content.span, True)]
        ):
            entries.append(_Entry(SELF, None, config.content.span, is_config=True))

    def collect_overrides(self, entries: list[_Entry]) -> None:
        early: _Entry | None = None
        for item in entries:
            early = item if item.override else early
            if early is not None and not item.override and not item.is_self:
                message = f"'override {early.group}' stands before other entries: overrides come last"
                self.faults.append(Fault("MEM003", message, early.span))
                early = None
            if item.override and not _is_launcher(item):
                key = item.override_key
                if key not in self.replaced:
                    self.replaced[key] = (item.value, item.span)

    def expand(self, tree: _Tree, entries: list[_Entry], interpolated: bool, active: tuple[str, ...]) -> None:
        children: list[_Tree] = []
        for item in reversed(entries):
            if item.is_self:
                children.append(_Tree(item))
                continue
            if item.override or _is_launcher(item):
                continue
            if not item.is_config and item.override_key in self.replaced:
                key = item.override_key
                item.value = self.replaced[key][0]
                self.used.add(key)
            if not item.is_config and isinstance(item.value, list):
                for name in reversed(item.value):
                    one = _Entry(f"{item.group}/{name}", None, item.span, True, item.package, item.optional)
                    one = one.fresh(item.folder, item.above)
                    children.append(self.tree(one, False, interpolated, active))
                self.choices.setdefault(item.override_key, item.value)
            elif item.is_interpolation:
                children.append(_Tree(item))  # when the choices that it names are known
            else:
                children.append(self.tree(item, False, interpolated, active))
        for index, child in enumerate(children):
            if child.entry.is_interpolation:
                if self.interpolate(child.entry, entries):
                    children[index] = self.tree(child.entry, False, True, active)
                else:
                    child.entry.deleted = True
        tree.children = list(reversed(children))

    def interpolate(self, entry: _Entry, entries: list[_Entry]) -> bool:
        """``${group}`` in a choice stands for what was chosen there."""
        text = entry.group if entry.is_config else entry.value
        assert isinstance(text, str)
        pieces: list[str] = []
        rest = text
        while "${" in rest:
            before, _, rest = rest.partition("${")
            name, brace, rest = rest.partition("}")
            name = name.strip()
            choice = self.choices.get(name)
            words = name.split(".")
            if len(words) == 3 and words[0] == "defaults" and words[1].isdigit() and int(words[1]) < len(entries):
                choice = entries[int(words[1])].value  # ${defaults.0.group}: Hydra 1.0's way
            if not brace or not isinstance(choice, str):
                self.stop(entry, f"${{{name}}} names no choice of this defaults list")
                return False
            pieces += [before, choice]
        result = "".join(pieces) + rest
        if len(result) > MAX_NAME:
            self.stop(entry, f"the name of a config has no more than {MAX_NAME:,} characters")
            return False
        if entry.is_config:
            entry.group = result
        else:
            entry.value = result
        return True

    # -- what is wrong

    def stop(self, entry: _Entry, message: str) -> None:
        entry.deleted = True
        self.faults.append(Fault("MEM003", message, entry.span))

    def missing_choice(self, entry: _Entry) -> None:
        entry.deleted = True
        options = self.repository.options(entry.group_path)
        message = f"the choice of {entry.override_key} is given when the run is started"
        if options:
            message += f": {_some(options)}"
        self.faults.append(Fault("MEM004", message, entry.span))

    def not_found(self, entry: _Entry) -> None:
        path = entry.config_path
        problem = self.repository.problems.get(path)
        if problem is not None:
            self.faults.append(Fault("MEM003", problem, entry.span))
            return
        options = self.repository.options(entry.group_path) if entry.group_path else []
        if options:
            message = f"there is no config {path}; {entry.group_path} has {_some(options)}"
            self.faults.append(Fault("MEM003", message, entry.span))
        else:
            message = f"{path} is not in this config tree (registered in code, or on another search path): unknown"
            self.faults.append(Fault("MEM004", message, entry.span))

    # -- the values

    def add_all(self, tree: _Tree, parent: _Tree | None) -> None:
        if tree.children:
            for child in tree.children:
                self.add_all(child, tree)
            return
        entry = tree.entry
        if entry.deleted or (entry.name is None and not entry.is_config) or entry.name == MISSING:
            return
        owner = parent.entry if entry.is_self and parent is not None else entry
        config = self.repository.config(owner.config_path)
        if config is None:
            return
        package = owner.final_package()
        names = package.split(".") if package else []
        if len(names) > MAX_PACKAGE:
            self.stop(owner, f"a package of {len(names):,} names: not composed deeper than {MAX_PACKAGE}")
            return
        keys: Keys = ""
        for name in names:
            keys = (keys, name)
        content = moved(config.content, keys)
        for name in reversed(names):
            assert isinstance(content.keys, tuple)
            content = Node({name: content}, content.span, None, content.keys[0])
        self.overlay(self.root, content)

    def overlay(self, base: Node, over: Node) -> None:
        """OmegaConf's merge of ``over`` into the mapping ``base``, in place: mappings key by key, all else
        replaced, ``???`` replaces nothing. ``base`` is ours, and so is ``over``: both were copied here."""
        assert isinstance(base.value, dict)
        assert isinstance(over.value, dict)
        work.spend(len(over.value), _COMPOSING)
        for name, child in over.value.items():
            known = base.value.get(name)
            if known is None:
                base.value[name] = child
            elif child.value == MISSING:
                continue
            elif not isinstance(child.value, dict):
                base.value[name] = child
            else:
                if has_interpolation(known.value):
                    # Followed now, in the tree as it is at this moment, for this is when OmegaConf does it.
                    target = select(self.root, known)
                    known = known if target is None else target
                if isinstance(known.value, dict):
                    self.overlay(known, child)
                    child.value = known.value
                    child.key_span = child.key_span or known.key_span  # a package is written nowhere in its file
                base.value[name] = child

    def apply(self, override: hydra_grammar.Override) -> None:
        keys = split_key(override.key)
        text = override.text
        if override.package is not None:
            raise OverrideError(f"{text!r}: there is no group {override.key} in this config tree")
        known = self.root.get(".".join(keys))
        if override.kind == hydra_grammar.DELETE:
            if known is None:
                raise OverrideError(f"{text!r}: there is no {override.key} to remove")
            if override.value is not None and override.value.plain() != known.plain():
                raise OverrideError(f"{text!r}: {override.key} is {known.plain()!r}")
            self.root = _without(self.root, keys)
            return
        value = override.value
        assert value is not None
        if override.kind == hydra_grammar.CHANGE and known is None:
            raise OverrideError(f"{text!r}: there is no {override.key} in this config; add it with +{text}")
        container = isinstance(value.value, (dict, list))
        unset = known is None or known.value is None or known.value == MISSING
        if override.kind == hydra_grammar.ADD and not unset and not container:
            raise OverrideError(f"{text!r}: {override.key} is there already; write ++{override.key}=...")
        self.root = put(self.root, keys, value, text)


def _without(node: Node, keys: list[str]) -> Node:
    name, rest = keys[0], keys[1:]
    if isinstance(node.value, list):
        index = int(name)
        items = list(node.value)
        if rest:
            items[index] = _without(items[index], rest)
        else:
            del items[index]
            items = [moved(item, (node.keys, place)) for place, item in enumerate(items)]
        return Node(items, node.span, node.key_span, node.keys, node.via)
    assert isinstance(node.value, dict)
    children = dict(node.value)
    if rest:
        children[name] = _without(children[name], rest)
    else:
        del children[name]
    return Node(children, node.span, node.key_span, node.keys, node.via)


def _is_launcher(entry: _Entry) -> bool:
    return f"{entry.group.lstrip('/')}/".startswith("hydra/")


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
