"""The generator's modules lie beside its script and are no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "grafana"))
