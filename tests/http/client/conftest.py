"""Both event loops for every test, with a watch over what it leaves behind."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, None]], None]


def open_files() -> set[tuple[str, str]]:
    """The descriptors of this process, each with what it stands for."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end; fail on stray errors and on file descriptors left open."""

    def runner(main: Coroutine[Any, Any, None]) -> None:
        stray: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: stray.append(context))
            # uvloop opens a descriptor of its own for the first server of a loop.
            (await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)).close()
            await asyncio.sleep(0.001)
            before = open_files()
            await asyncio.wait_for(main, 60)
            gc.collect()
            # Proxies that other tests keep in this process open connections now and then, and close
            # each after four seconds: those are no leaks of this test.
            left = open_files() - before
            for _ in range(700):
                if not left:
                    break
                await asyncio.sleep(0.01)
                left &= open_files()
            assert left == set()

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        gc.freeze()  # the collections below look at this test's objects only: fast
        try:
            with asyncio.Runner(loop_factory=factory) as loop_runner:
                loop_runner.run(watched())
            gc.collect()
        finally:
            gc.unfreeze()
        assert stray == []

    return runner
