"""Kinds of short texts that settings and fields of the resource share."""

from typing import Annotated

from pydantic import StringConstraints

ItemName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*)$"),
]
"""A name that people give to an entry of a list."""

Share = Annotated[str, StringConstraints(max_length=6, pattern=r"^(0\.[0-9]{1,4}|1(\.0{1,4})?)$")]
"""A decimal from 0 to 1 as text: floats do not survive every client unchanged."""
