"""The configurations that kernels are tuned over, all of them.

The first of a list is the default: what runs where nothing can be measured, and what is compiled
ahead of time.
"""

from dataclasses import dataclass

MIN_ROWS = 16
"""The matrix units of every target take at least this many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Sizes of one attention program.

    Attributes:
        block_m: rows of its score tile: queries times heads that share a key head.
        tile: keys of its score tile.
    """

    block_m: int
    tile: int
    num_warps: int
    num_stages: int


def _config(block_m: int, tile: int, num_warps: int, num_stages: int) -> AttentionConfig:
    return AttentionConfig(block_m=block_m, tile=tile, num_warps=num_warps, num_stages=num_stages)


def attention_configs(
    dim: int, group: int, element_bytes: int, decode_queries: int | None
) -> tuple[AttentionConfig, ...]:
    """Candidates for a class of attention calls.

    Args:
        dim: head_dim rounded up to a power of two.
        group: heads that share a key head.
        element_bytes: of the products' operands: 2, or 4 for float32.
        decode_queries: every row has this many, one program's worth, and memory is the limit;
            None: chunks, or a mixture.
    """
    rows = max(MIN_ROWS, power_of_two(group))
    if element_bytes == 4:
        return (_config(rows, 32 if dim < 256 else 16, 4, 2),)
    if decode_queries is not None:
        rows = max(rows, min(64, power_of_two(group * decode_queries)))
        if dim == 256:
            return (_config(rows, 32, 4, 2), _config(rows, 64, 8, 2))
        return (
            _config(rows, 32, 4, 2),
            _config(rows, 32, 2, 3),
            _config(rows, 64, 4, 2),
            _config(rows, 128, 4, 2),
        )
    if dim == 256:
        return (_config(max(rows, 64), 32, 8, 2), _config(max(rows, 128), 32, 8, 2))
    return (
        _config(max(rows, 128), 32, 8, 2),
        _config(max(rows, 128), 64, 8, 2),
        _config(max(rows, 128), 64, 8, 3),
        _config(max(rows, 64), 32, 4, 2),
        _config(max(rows, 64), 64, 4, 2),
    )


def split_count(programs: int, max_context: int, num_processors: int, tile: int) -> int:
    """Parts into which every context is cut so that all processors have work.

    Args:
        programs: that an unsplit call has.
        max_context: tokens that a row can have.
        num_processors: of the device.
        tile: keys of a program's tile; a part has at least four.

    Returns:
        A power of two, 1 to 32.
    """
    wanted = min(2 * num_processors // max(1, programs), max_context // (4 * tile), 32)
    return 1 if wanted < 2 else power_of_two(wanted + 1) // 2


def power_of_two(count: int) -> int:
    """The smallest one that is at least count."""
    return 1 << max(0, count - 1).bit_length()
