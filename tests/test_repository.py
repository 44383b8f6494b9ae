"""The repository as a whole: sizes, words, layers, and documents that say what is true."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from noloco_node.cli import COMMANDS as CLI_COMMANDS
from noloco_node.cli import group
from noloco_node.cli.node_options import node_config
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.node_sources import CONFIG_VARIABLE, variable
from noloco_node.errors import ExitCode
from noloco_node.telemetry.instruments import Instruments

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "noloco_node"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LONGER_FILES = {
    "noloco_node/core/machine.py": (500, "one handler per event, side by side"),
    "tests/core/exchange_world.py": (450, "one world: network, parent and checkers share its state"),
    "tests/core/test_membership.py": (450, "one story: the claim from search to farewell"),
}
FOREIGN_FLAGS = {"--exclude-editable"}  # of other programs that the documents call
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("benchmarks/*.md"))]
PEER = "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooWPMb3rkiZwL17dnDRaDYWr2YPmnQC15dJ2Q3M7M3qqhqo"


@functools.cache
def tracked() -> tuple[str, ...]:
    """Paths that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(name for name in listed.splitlines() if (ROOT / name).is_file())


def own_python() -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and not name.startswith("noloco_node/wire/")]


@functools.cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_in(document: Path) -> str:
    """Blocks and inline code of a Markdown file."""
    text = document.read_text(encoding="utf-8")
    return "\n".join([*re.findall(r"^```.*?^```", text, re.M | re.S), *re.findall(r"`([^`\n]+)`", text)])


by_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


# --- code -----------------------------------------------------------------------------------------


def test_files_are_short() -> None:
    lengths = {name: text_of(name).count("\n") for name in own_python()}
    allowed = {name: LONGER_FILES.get(name, (FILE_LINES_MAX, ""))[0] for name in lengths}
    assert [(name, n) for name, n in lengths.items() if n > allowed[name]] == []


def test_exceptions_for_long_files_are_still_needed() -> None:
    assert [name for name in LONGER_FILES if text_of(name).count("\n") <= FILE_LINES_MAX] == []


def test_functions_are_short() -> None:
    found = []
    for name in own_python():
        for node in ast.walk(ast.parse(text_of(name))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found += [(name, node.name, lines)] if lines > FUNCTION_LINES_MAX else []
    assert found == []


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
    assert [name for name in tracked() if name.endswith(CODE) and words.search(text_of(name))] == []


def test_no_path_of_one_machine_and_no_registry_host() -> None:
    paths = re.compile(r"(?<![\w.}/])/(work|root|farm|opt/pypi|opt/wheels)(?=[/\s\"'`]|$)|\.pye" r"nv", re.M)
    hosts = re.compile(r"(py" r"pi\.org|pythonho" r"sted\.org|download\.pyt" r"orch\.org|registry\.npm)")
    texts = {name: text_of(name) for name in tracked() if name.endswith((*CODE, ".md", ".lock"))}
    assert [name for name, text in texts.items() if paths.search(text) or hosts.search(text)] == []


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their bare names."""
    names = [Path(name).name for name in tracked() if name.startswith("tests/") and name.endswith(".py")]
    twice = [name for name, count in Counter(names).items() if count > 1 and name != "conftest.py"]
    assert twice == []


def test_every_module_has_a_docstring() -> None:
    modules = [name for name in own_python() if name.startswith("noloco_node/") and text_of(name)]
    assert [name for name in modules if ast.get_docstring(ast.parse(text_of(name))) is None] == []


def test_every_part_stands_in_one_layer_that_exists() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    layers = sorted(part.strip().removeprefix("noloco_node.") for line in lines for part in line.split("|"))
    parts = {path.stem if path.suffix == ".py" else path.name for path in PACKAGE.iterdir() if part_of_package(path)}
    assert layers == sorted(parts)


def part_of_package(path: Path) -> bool:
    is_package = path.is_dir() and (path / "__init__.py").exists()
    return is_package or (path.suffix == ".py" and not path.name.startswith("__"))


def test_scripts_are_clean_shell() -> None:
    for script in (ROOT / ".ci/run", *ROOT.glob("deploy/*.sh")):
        assert script.stat().st_mode & 0o111, f"{script} cannot be executed"
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        if shutil.which("shellcheck"):
            assert subprocess.run(["shellcheck", script], check=False).returncode == 0


def test_lock_pins_every_dependency() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {plain(re.split(r"[<>=!~\[; ]", line)[0]) for line in wanted}
    pinned = {plain(line.split("==")[0]) for line in text_of("requirements.lock").split() if "==" in line}
    assert names - pinned == set()
    assert "setuptools" in pinned  # the build of the package itself, without isolation


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- documents ------------------------------------------------------------------------------------


def test_made_sections_and_pages_are_up_to_date() -> None:
    assert load_script("docs/generate.py").drift() == []


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem + "_script", ROOT / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "lines"), [("README.md", 150), ("ARCHITECTURE.md", 300)])
def test_documents_are_short(name: str, lines: int) -> None:
    assert len(text_of(name).splitlines()) <= lines


@by_document
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", document.read_text("utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


@by_document
def test_named_tests_exist(document: Path) -> None:
    named = set(re.findall(r"\btest_[a-z0-9_]+\b(?!\.py)", document.read_text("utf-8")))
    assert named - known_tests() - {Path(name).stem for name in own_python()} == set()


@functools.cache
def known_tests() -> set[str]:
    sources = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"def (test_\w+)", source)}


@by_document
def test_named_files_exist(document: Path) -> None:
    words = re.findall(r"[\w./-]+", code_in(document))
    named = {word.removeprefix("./") for word in words if "/" in word.strip("/") and word.endswith(SOURCES)}
    assert {name for name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))} == set()


@by_document
def test_named_metrics_exist(document: Path) -> None:
    metrics = {name for metric in Instruments().registry.collect() for name in series(metric.name)}
    named = set(re.findall(r"\bnoloco_(?!node\b)[a-z0-9_]*[a-z0-9]\b", document.read_text("utf-8")))
    assert named - metrics == set()


def series(family: str) -> Iterator[str]:
    yield from (family, *(family + ending for ending in ("_total", "_bucket", "_sum", "_count")))


@by_document
def test_named_variables_exist(document: Path) -> None:
    known = {variable(name) for name in NodeConfig.model_fields} | {CONFIG_VARIABLE}
    named = set(re.findall(r"\bNOLOCO_[A-Z0-9_]*[A-Z0-9]\b", document.read_text("utf-8")))
    assert named - known == set()


@by_document
def test_named_flags_exist(document: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]\b", document.read_text("utf-8")))
    assert named - flags_of(group) - flags_of_scripts() - FOREIGN_FLAGS == set()


def flags_of(command: click.Command) -> set[str]:
    context = click.Context(command)
    own = {flag for option in command.get_params(context) for flag in (*option.opts, *option.secondary_opts)}
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    subcommands = [command.get_command(context, name) for name in names]  # type: ignore[attr-defined]
    return own.union(*(flags_of(subcommand) for subcommand in subcommands if subcommand is not None))


def flags_of_scripts() -> set[str]:
    """Of this repository's own scripts outside the package."""
    scripts = [name for name in own_python() if not name.startswith(("noloco_node/", "tests/"))]
    return {flag for name in scripts for flag in re.findall(r"\"(--[a-z-]+)\"", text_of(name))}


@by_document
def test_named_constants_exist(document: Path) -> None:
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", code_in(document)))
    sources = "\n".join(text_of(name) for name in (*own_python(), "Makefile", "Dockerfile"))
    known = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", sources))
    assert {name for name in named if not name.startswith("NOLOCO_")} - known == set()


@by_document
def test_named_make_targets_exist(document: Path) -> None:
    calls = re.findall(r"(?:^|`)make ([a-z]+(?: [a-z]+)*)", code_in(document) + document.read_text("utf-8"), re.M)
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.M))
    assert {target for call in calls for target in call.split()} - targets == set()


@by_document
def test_named_exit_codes_exist(document: Path) -> None:
    codes = re.findall(r"\b(?:exit|exits with|ends with) code (\d+)", document.read_text("utf-8"))
    assert {int(code) for code in codes} <= {int(code) for code in ExitCode}


def test_ci_runs_the_test_command_of_the_readme() -> None:
    section = text_of("README.md").split("## Tests", 1)[1]
    (command,) = re.findall(r"```sh\n(.*?)\n```", section, re.S)
    assert text_of(".ci/run").rstrip().splitlines()[-1] == command


def test_code_map_names_every_part_and_every_file_of_the_core() -> None:
    text = text_of("ARCHITECTURE.md").split("## Code map", 1)[1].split("\n## ", 1)[0]
    folders = [f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and part_of_package(path)]
    single = (*(PACKAGE / "core").glob("[a-z]*.py"), *PACKAGE.glob("[a-z]*.py"))
    files = [str(path.relative_to(PACKAGE)) for path in single]
    assert [name for name in (*folders, *files) if f"`{name}" not in text and f"`{name.rstrip('/')}" not in text] == []


# --- commands of the documents --------------------------------------------------------------------


def commands_in(document: Path) -> Iterator[str]:
    """Every line of a shell block, and inline code, that calls the program; also `eval --spec ...` without its name."""
    text = document.read_text("utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"noloco-node(?: (?!\|)[^|)#]*)?", line)[:1]
    yield from re.findall(r"`(noloco-node [^`]*)`", text)
    named = "|".join(CLI_COMMANDS)
    for words in re.findall(rf"`((?:{named}) [^`\n]*--[^`\n]*)`", text):
        if not re.search(r"--[a-z-]+$", words):  # else it only names the flag
            yield f"noloco-node {words}"


COMMANDS = sorted({command.strip() for document in DOCUMENTS for command in commands_in(document)})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_document_is_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its execution: options known, values of the right kind."""
    monkeypatch.chdir(tmp_path)
    for folder in ("node-a", "node-b", "model"):
        (tmp_path / folder).mkdir()
    arguments = shlex.split(command.replace("$PEER", PEER))[1:]
    if "COMMAND" in arguments:
        return
    try:
        parsed = parse(group, arguments)
    except click.exceptions.Exit:  # --help
        return
    if parsed.command.name == "run":
        node_config(dict(parsed.params))


def parse(command: click.Command, arguments: list[str]) -> click.Context:
    """The context of the innermost command, ready to run."""
    context = command.make_context(command.name, list(arguments), obj={})
    rest: list[Any] = [*context._protected_args, *context.args]
    if not isinstance(command, click.Group) or not rest:
        return context
    name, subcommand, rest = command.resolve_command(context, rest)
    assert subcommand is not None, name
    return parse(subcommand, rest)


def test_command_without_the_programs_name_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "`eval --checkpoints a` also measures; `swarm new --name`; `eval` does; `running --fast` is no command"
    )
    (command,) = commands_in(tmp_path / "page.md")
    with pytest.raises(click.MissingParameter, match="spec"):
        parse(group, shlex.split(command)[1:])


def test_readme_shows_how_to_join_by_hand() -> None:
    shown = list(commands_in(ROOT / "README.md"))
    assert sum(command.startswith("noloco-node run") for command in shown) == 2
    assert {"swarm", "run", "status", "export", "eval", "generate"} <= {command.split()[1] for command in shown}


CODE = (".py", ".pyi", ".toml", ".yaml", ".yml", ".proto", ".sh", "Makefile", "Dockerfile", ".ci/run", ".json")
SOURCES = (".py", ".md", ".toml", ".yaml", ".json", ".proto", "/run")
