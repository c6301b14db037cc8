"""The web page `/tokgauge/status`, which answers "is this speed normal?" for a person.

It is one file without anything from elsewhere. All it shows comes from `/tokgauge/live`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

PAGE = files(__name__).joinpath("page.html").read_text("utf-8")


def _hash_of(tag: str) -> str:
    """The source expression of the page's one inline `tag` (Content Security Policy 3, 2.3.1)."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash_of('script')}",
        f"style-src {_hash_of('style')}",
        "img-src data:",  # the icon: without one the browser would ask the engine for it
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy of the page: it runs its own script and asks only its own server."""
