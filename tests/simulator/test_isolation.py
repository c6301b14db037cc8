"""The simulator is a room of its own: nothing but its commands uses it, and it uses nothing."""

import ast
from pathlib import Path

import tokgauge

ROOT = Path(tokgauge.__file__).parent
USERS = {ROOT / "commands" / "simulate.py", ROOT / "commands" / "demo.py"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_only_its_commands_import_the_simulator() -> None:
    users = {
        path
        for path in ROOT.rglob("*.py")
        if any(name.startswith("tokgauge.simulator") for name in imported(path))
    }
    assert {path for path in users if path.parent != ROOT / "simulator"} <= USERS
    assert ROOT / "commands" / "simulate.py" in users


def test_the_simulator_imports_nothing_else_of_the_package() -> None:
    for path in (ROOT / "simulator").rglob("*.py"):
        ours = {name for name in imported(path) if name.split(".")[0] == "proxy"}
        assert all(name.startswith("tokgauge.simulator") or name == "proxy" for name in ours), path
