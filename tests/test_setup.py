"""Set-up: the pins agree everywhere, and the commands of the README exist."""

import importlib
import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

import fa_numba

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def requirements(lines):
    return {each.name.replace("_", "-"): each for each in map(Requirement, lines)}  # conda writes jupyter_client


def test_conda_and_pip_have_the_same_pins(project, conda):
    pip_only = {"numba-cuda"}  # no conda package for every platform
    wanted = {name: str(each.specifier) for name, each in requirements(project["dependencies"]).items()}
    listed = [line for line in conda["dependencies"] if isinstance(line, str)]
    given = {name: str(each.specifier) for name, each in requirements(listed).items()}
    assert {name: spec for name, spec in wanted.items() if name not in pip_only} == {
        name: spec for name, spec in given.items() if name not in ("python", "pip", "make")
    }
    assert set(given["python"].split(",")) == set(project["requires-python"].split(","))


def test_conda_installs_the_package_with_pip(conda, project):
    (pip,) = (entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert pip == ["--editable .[cu12,test]"]
    assert {"cu12", "cu13", "torch", "test"} == set(project["optional-dependencies"])
    assert conda["channels"] == ["conda-forge"]


def test_numba_cuda_goes_with_numpy_below_2_5(project):
    """numba-cuda 0.30 uses a function that NumPy 2.5 dropped."""
    pins = requirements(project["dependencies"])
    assert "2.4.9" in pins["numpy"].specifier
    assert "2.5.0" not in pins["numpy"].specifier
    every = [pins["numba-cuda"]]
    every += [requirements(project["optional-dependencies"][extra])["numba-cuda"] for extra in ("cu12", "cu13")]
    for pin in every:
        assert "0.30.4" in pin.specifier
        assert "0.31.0" not in pin.specifier
        assert not pin.marker.evaluate({"sys_platform": "darwin"})
        assert pin.marker.evaluate({"sys_platform": "linux"})


def test_the_floors_are_the_lowest_versions(project):
    lines = [line for line in (ROOT / "tests" / "floors.txt").read_text().splitlines() if not line.startswith("#")]
    floors = [Requirement(line) for line in lines]
    for name, pin in requirements(project["dependencies"]).items():
        lowest = next(Version(s.version) for s in pin.specifier if s.operator == ">=")
        pinned = [Version(next(iter(each.specifier)).version) for each in floors if each.name == name]
        if name == "jupyter":  # a metapackage
            continue
        assert pinned, f"{name} has no floor"
        assert min(pinned).release[:2] == lowest.release[:2], name
        assert all(version in pin.specifier for version in pinned), name


def test_python_versions(project):
    """Those of the Makefile, of pyproject.toml and of the README."""
    assert project["requires-python"] == ">=3.10,<3.14"
    assert "(3, 10) <= sys.version_info < (3, 14)" in (ROOT / "Makefile").read_text()
    assert "Python 3.10 to 3.13" in (ROOT / "README.md").read_text()


def test_every_command_of_the_readme_exists():
    readme = (ROOT / "README.md").read_text()
    for target in set(re.findall(r"\bmake (\w+)", readme)):
        finished = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
    for command in set(re.findall(r"fa-numba (\w+)", readme)):
        finished = subprocess.run([sys.executable, "-m", "fa_numba", command, "--help"], capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
    for link in re.findall(r"\]\((?!http)([^)]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_make_run_leaves_the_notebooks_and_the_memory_figure_in_build():
    printed = subprocess.run(["make", "--dry-run", "run"], cwd=ROOT, capture_output=True, text=True).stdout
    calls = [line for line in printed.splitlines() if line.startswith(".venv/bin/fa-numba")]
    assert calls == [".venv/bin/fa-numba run --output build", ".venv/bin/fa-numba memory --output build"]


def test_the_script_is_packaged(project):
    """It starts in a module beside the package, which a wheel must hold too."""
    module, function = project["scripts"]["fa-numba"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert f"{module}.py" in build["targets"]["wheel"]["packages"]


def test_the_public_names():
    for name in fa_numba.__all__:
        assert getattr(fa_numba, name) is not None
    assert callable(fa_numba.device.launch)
    assert re.fullmatch(r"\d+\.\d+\.\d+", fa_numba.__version__)


def test_continuous_integration_runs_the_readme_s_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert script.rstrip().endswith("make test")
    assert "make test" in (ROOT / "README.md").read_text()


def test_make_installs_pytorch_without_cuda(project):
    """PyPI has none for Linux; a version that ends in +cpu is never taken from there."""
    command = ["make", "--dry-run", "--always-make", ".venv/tests-installed"]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (pinned,) = set(re.findall(r" torch(?!\")(\S*?);?\s", recipe))
    assert pinned == ("==2.13.0" if sys.platform == "darwin" else "==2.13.0+cpu")
    (extra,) = map(Requirement, project["optional-dependencies"]["torch"])
    assert pinned[2:] in extra.specifier
