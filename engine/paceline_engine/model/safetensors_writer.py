"""Write a safetensors file tensor by tensor, so that a conversion never holds a whole model.

Source: https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of the header; dtype in the format's own words (F32, F16, BF16)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def write_safetensors(path: Path, entries: Sequence[TensorEntry], data: Iterable[bytes]) -> None:
    """Write the header, then the bytes of each entry in order.

    Raises:
        ValueError: the data do not match the entries.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.num_bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for entry, values in zip(entries, data, strict=True):
            if len(values) != entry.num_bytes:
                raise ValueError(
                    f"tensor {entry.name} must have {entry.num_bytes} bytes, got {len(values)}"
                )
            file.write(values)
