"""The documents say what the code does, and their commands work."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tokgauge.commands.serve import command as serve
from tokgauge.relay.states import TRANSITIONS, State

from docs.generate import generate
from tests.support.process import environment, run

pytestmark = pytest.mark.socketless

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_generated_parts_are_up_to_date() -> None:
    assert generate(check=True) == [], "run: python docs/generate.py"


def console_commands() -> list[tuple[str, str]]:
    """Commands after `$` in blocks marked `console`: they need no network, engine or Docker."""
    found = []
    for document in DOCUMENTS:
        for block in re.findall(r"^```console\n(.*?)^```", document.read_text(), re.M | re.S):
            lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
            found += [(document.name, line) for line in lines]
    return found


@pytest.mark.parametrize(("document", "line"), console_commands())
def test_console_commands_work(document: str, line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "tokgauge", f"{document}: only tokgauge is run: {line}"
    ended = run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_there_are_console_commands() -> None:
    assert console_commands()


def serve_lines() -> list[str]:
    """Every `tokgauge serve …` that a document shows, wherever it stands."""
    texts = [document.read_text() for document in DOCUMENTS]
    return [line for text in texts for line in re.findall(r"tokgauge serve( --[^`\n…]+)", text)]


@pytest.mark.parametrize("flags", serve_lines())
def test_shown_flags_of_serve_exist(flags: str) -> None:
    known = {option for parameter in serve.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", flags)) - {"--help"} <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_modules_that_exist(document: Path) -> None:
    for path in re.findall(r"`(proxy/[\w/.]+|docs/[\w/.]+|config/[\w/.]+)`", document.read_text()):
        assert (ROOT / path).exists(), path


def test_the_readme_has_the_two_make_commands_and_the_makefile_has_them() -> None:
    readme = (ROOT / "README.md").read_text()
    assert sorted(re.findall(r"^make (\w+)$", readme, re.M)) == ["demo", "test"]
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 180
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    unlinked = {
        str(page.relative_to(ROOT)) for page in pages if f"{page.relative_to(ROOT)})" not in readme
    }
    assert unlinked == set()


def test_every_dependency_is_explained() -> None:
    """By a comment of its line in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    lines = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in PROJECT["project"]["optional-dependencies"].values() for line in extra),
    ]
    for line in lines:
        assert re.search(rf'^.*"{re.escape(line)}".*# \w+', text, re.M), line


def test_the_life_of_a_request_has_the_transitions_of_the_code() -> None:
    """A row `| FROM | TO | when |` for each transition, and none besides."""
    text = (ROOT / "docs" / "life-of-a-request.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| ([A-Z]+) \| .+ \|$", text, re.M)
    told = {(State[before], State[after]) for before, after in rows}
    assert len(told) == len(rows), "a transition has two rows"
    assert told == {(before, after) for before, later in TRANSITIONS.items() for after in later}


# packages


def test_the_table_of_packages_is_the_import_contract() -> None:
    """docs/design.md says what a package may import, pyproject.toml who may import it."""
    text = (ROOT / "docs" / "design.md").read_text()
    told = {
        (package, imported)
        for package, imports in re.findall(r"^\| `(\w+)/?` \| .+ \| (.+) \|$", text, re.M)
        for imported in re.findall(r"`([\w.]+)/?`", imports)
    }
    held = set()
    for contract in PROJECT["tool"]["importlinter"]["contracts"]:
        (protected,) = contract["protected_modules"]
        for importer in contract["allowed_importers"]:
            held.add((_short(importer), _short(protected)))
        for ignored in contract.get("ignore_imports", []):
            importer, imported = ignored.split(".** -> ")
            held.add((_short(importer), _short(imported)))
    assert told == held


def _short(module: str) -> str:
    return module.removeprefix("tokgauge.")


def test_every_package_is_under_the_import_contract() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    protected = {_short(name) for contract in contracts for name in contract["protected_modules"]}
    folders = {path.parent.name for path in (ROOT / "proxy" / "tokgauge").glob("*/__init__.py")}
    assert folders == protected | {"settings"}  # a leaf that everybody may import


# locked dependencies


def locked(name: str) -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^ ;\\]+)", (ROOT / name).read_text(), re.M):
        found.setdefault(canonicalize_name(package), []).append(Version(version))
    return found


def requirements(*, everything: bool) -> list[Requirement]:
    lines = list(PROJECT["project"]["dependencies"])
    if everything:
        for extra in PROJECT["project"]["optional-dependencies"].values():
            lines += extra
        lines += PROJECT["dependency-groups"]["dev"]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_the_locks_fit_the_project(name: str) -> None:
    versions = locked(name)
    for requirement in requirements(everything=name == "requirements-dev.lock"):
        pinned = versions.get(canonicalize_name(requirement.name))
        assert pinned, f"{requirement} is not in {name}: see docs/operations.md"
        assert all(version in requirement.specifier for version in pinned), requirement


def test_the_locks_agree() -> None:
    everything = locked("requirements-dev.lock")
    for package, versions in locked("requirements.lock").items():
        assert everything[package] == versions


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"]
)
def test_the_locks_have_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "index-url" not in text
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


# the wheel and the image


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as the Dockerfile builds it, from a copy of what goes into the image's context."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: make test installs it")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True, env=environment(), timeout=60,
    )  # fmt: skip
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_has_everything_that_is_in_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {f"proxy/{name}" for name in archive.namelist() if name.startswith("tokgauge/")}
    listed = subprocess.run(
        ["git", "ls-files", "proxy"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    there = {name for name in listed.stdout.split() if (ROOT / name).exists()}
    assert "proxy/tokgauge/gpu/cards.tsv" in there
    assert there - packed == set()


def test_the_wheel_runs_without_a_writable_home(wheel: Path, tmp_path: Path) -> None:
    """As in the image: installed files only, a home that is not there, nothing written."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "from tokgauge.cli import main; main(prog_name='tokgauge')"
    ended = subprocess.run(
        [sys.executable, "-c", code, "ceiling", "--json", "--gpu", "RTX A6000", "--params", "7e9"],
        cwd="/", capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1",
             "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "768" in ended.stdout


def test_the_image_copies_only_what_is_let_through() -> None:
    """.dockerignore lets single paths through; COPY must not name others."""
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    named = {path for line in copies for path in line.split()}
    assert named == let_through
    assert all((ROOT / path).exists() for path in named)
