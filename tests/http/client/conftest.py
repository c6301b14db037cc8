"""Both event loops for every test, with a watch over what it leaves behind."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import psutil
import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, None]], None]


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
            before = process.num_fds()
            await asyncio.wait_for(main, 60)
            gc.collect()
            # A proxy that other tests keep in this process opens a connection to its engine now and
            # then, and closes it after four seconds: that is no leak of this test.
            for _ in range(700):
                if process.num_fds() <= before:
                    break
                await asyncio.sleep(0.01)
            assert process.num_fds() <= before

        process = psutil.Process()
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
