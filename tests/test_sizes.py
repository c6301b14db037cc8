"""What is small can be read: limits for modules, functions and classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.socketless

ROOT = Path(__file__).parent.parent / "proxy" / "tokgauge"

LINES_OF_A_MODULE = 400
LINES_OF_A_FUNCTION = 60
ATTRIBUTES_OF_A_CLASS = 20

TABLES = {
    "commands/plan.py: command": "its options, one a line",
    "engine/metrics_page.py: EngineReading": "what an engine's page tells",
    "export/families.py": "every metric",
    "settings/fields.py: Settings": "every setting",
    "settings/fields.py: Engine": "every setting of an engine",
    "serve/relay_app.py: RelaySettings": "the settings that a relay has to know",
    "measure/record.py: Record": "what is sent of one exchange",
    "diagnosis/evidence.py: Evidence": "all that is known of one model",
    "model/config.py: ModelConfig": "what a config.json tells",
    "simulator/profile.py: EngineProfile": "every setting of a simulated engine",
    "simulator/scheduler.py: Sequence": "a request's parameters, and its own figures",
}
"""Rows of figures or options: nothing is hidden in their length."""


def attributes(found: ast.ClassDef) -> set[str]:
    """Fields that the class declares, and what its methods set on `self`."""
    names = set()
    for statement in found.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
        names |= {each.id for each in targets if isinstance(each, ast.Name)}
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return {name for name in names if not name.startswith("__")}


def large(source: str) -> Iterator[str]:
    """Names of functions and classes that are too large; "" for the module itself."""
    if source.count("\n") > LINES_OF_A_MODULE:
        yield ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or 0) - node.lineno + 1 > LINES_OF_A_FUNCTION:
                yield node.name
        elif isinstance(node, ast.ClassDef) and len(attributes(node)) > ATTRIBUTES_OF_A_CLASS:
            yield node.name


def test_modules_functions_and_classes_are_small() -> None:
    """Also fails for an exception that is no longer one."""
    found = set()
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        found |= {f"{place}: {name}" if name else place for name in large(path.read_text())}
    assert found == TABLES.keys()


def test_what_is_large_is_seen() -> None:
    lines = "    pass\n" * LINES_OF_A_FUNCTION
    assert list(large(f"def short():\n{lines[:-9]}")) == []
    assert list(large(f"async def long():\n{lines}")) == ["long"]
    fields = "".join(f"    a{number}: int\n" for number in range(ATTRIBUTES_OF_A_CLASS))
    assert list(large(f"class Narrow:\n{fields}")) == []
    sets = "    def go(self):\n        self.b, self.a1 = 1, 2\n"
    assert list(large(f"class Wide:\n{fields}{sets}")) == ["Wide"]
    assert list(large("\n" * (LINES_OF_A_MODULE + 1))) == [""]
