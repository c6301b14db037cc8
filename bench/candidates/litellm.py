"""LiteLLM's proxy, one worker, without database, keys or logging."""

from __future__ import annotations

from bench.candidates.launch import Launch, Place, from_pypi, installed_version
from bench.engine import MODEL

NAME = "LiteLLM"

_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{engine_port}/v1
      api_key: sk-bench
litellm_settings:
  telemetry: false
general_settings:
  dangerously_permit_weak_or_unset_master_key: true
"""


def start(place: Place) -> Launch:
    path = from_pypi("litellm", "litellm[proxy]", "litellm")
    config = place.directory / "litellm.yaml"
    config.write_text(_CONFIG.format(model=MODEL, engine_port=place.engine_port))
    return Launch(
        (
            str(path), "--config", str(config), "--host", "127.0.0.1",
            "--port", str(place.port), "--num_workers", "1",
        ),
        {
            # Prices come from the package instead of the network, and it writes no request lines.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            # It has a single engine, and must carry as many streams as the others.
            "AIOHTTP_CONNECTOR_LIMIT": "16000",
            "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "16000",
        },
    )  # fmt: skip


def version() -> str:
    path = from_pypi("litellm", "litellm[proxy]", "litellm")
    return installed_version(path.with_name("python"), "litellm")
