"""Bodies of requests that tests send."""

from typing import Any, Final

CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "Hello"}]}
"""The smallest chat completion; lay the fields of a test over it: `CHAT | {"n": 2}`."""
