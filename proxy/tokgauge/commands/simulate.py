"""`tokgauge simulate`: the simulated engine alone."""

from __future__ import annotations

import click

_DEFAULTS_TEXT = "Default: Qwen2.5-7B in bfloat16 on an RTX A6000, 40.6 tokens/s for one stream."


@click.command(name="simulate", epilog=_DEFAULTS_TEXT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port to listen on.")
@click.option("--model", help="Model id.")
@click.option("--max-model-len", type=click.IntRange(1), help="Context length [tokens].")
@click.option("--api-key", help="Ask for this key on /v1.")
@click.option("--weights-bytes", type=float, help="Bytes of weights read per step.")
@click.option("--bandwidth", type=float, help="Memory bandwidth of the card [bytes/s].")
@click.option("--efficiency", type=float, help="Share of the bandwidth that is reached, 0 to 1.")
@click.option("--neighbour", type=float, help="Share of the card that somebody else takes.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences in one batch.")
@click.option("--num-gpu-blocks", type=click.IntRange(1), help="KV-cache blocks of 16 tokens.")
@click.option("--tokens-per-step", type=float, help="Above 1: speculative decoding.")
@click.option("--tokens-per-event", type=click.IntRange(1), help="vLLM's --stream-interval.")
@click.option("--ttft", "ttft_seconds", type=float, help="Fixed time to first token [s].")
@click.option("--reasoning-tokens", type=click.IntRange(0), help="Reasoning before each answer.")
@click.option("--speed", type=float, help="Run so many times faster than real time.")
@click.option(
    "--chunked-prefill/--no-chunked-prefill",
    default=True,
    show_default=True,
    help="Without it, a long prompt stops every running stream.",
)
@click.option("--mfu-metrics", is_flag=True, help="Count estimated bytes read and operations.")
def command(host: str, port: int, **settings: object) -> None:
    """Run an engine that speaks vLLM's wire format and keeps a GPU's pace, without a GPU.

    A request can ask for a fault with the header x-simulate, for example "cut-after=5" or
    "ttft=3; slow=2". POST /simulator/profile changes the pace while it runs.
    """
    import msgspec

    from tokgauge.simulator.profile import EngineProfile
    from tokgauge.simulator.server import run

    given = {name: value for name, value in settings.items() if value is not None}
    try:
        profile = msgspec.convert(given, EngineProfile)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from None
    run(profile, host, port)
