"""The model's arithmetic knows neither the GPU library, nor sockets, nor settings."""

import ast
import sys
from pathlib import Path

import pytest
import tokgauge.model

pytestmark = pytest.mark.socketless

MODULES = sorted(Path(tokgauge.model.__path__[0]).glob("*.py"))
NOT_ITS_JOB = {"socket", "asyncio", "http", "urllib", "ssl", "subprocess"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_imports(module: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
    foreign = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert all(
        name.startswith("tokgauge.model.") or name.split(".")[0] == "gguf" for name in foreign
    )
    assert not NOT_ITS_JOB & {name.split(".")[0] for name in imported}
