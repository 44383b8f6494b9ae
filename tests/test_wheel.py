"""The wheel as another machine gets it: all parts inside, and a program that starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from noloco_node import __version__

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "noloco_node")

pytestmark = pytest.mark.slow


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(name="program", scope="module")
def _program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed into an empty environment that borrows the libraries of this one, but not its editable package."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([folder / "bin" / "python", "-m", "pip", *install], check=True, timeout=120)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "noloco-node"


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], cwd=program.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "noloco_node").rglob("*") if path.suffix in SUFFIXES}
    assert {name for name in inside if name.startswith("noloco_node/")} == package | {"noloco_node/py.typed"}
    assert {name.split("/")[0] for name in inside} == {"noloco_node", f"noloco_node-{__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_installed_program_tells_its_version(program: Path) -> None:
    assert f"noloco-node       {__version__}" in run(program, "version")


def test_installed_program_has_all_commands_and_its_own_code(program: Path) -> None:
    assert "Train a small model in a swarm" in run(program, "--help")
    asked = "import noloco_node; print(noloco_node.__file__)"
    where = run(program.with_name("python"), "-c", asked)
    assert where.startswith(str(program.parents[1]))


def test_installed_program_writes_a_run_spec(program: Path, tmp_path: Path) -> None:
    spec = tmp_path / "swarm.toml"
    assert "wrote" in run(program, "swarm", "new", str(spec))
    assert spec.exists()


SUFFIXES = (".py", ".pyi")
