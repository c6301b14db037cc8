"""Applications as users write them, run by servers in processes of their own."""

import tokgauge.asgi
from fastapi import FastAPI

mounted = FastAPI(lifespan=tokgauge.asgi.lifespan)


@mounted.get("/own")
def own() -> dict[str, str]:
    return {"answered by": "the host"}


mounted.mount("/llm", tokgauge.asgi.app)

forgotten = FastAPI()
forgotten.mount("/llm", tokgauge.asgi.app)
