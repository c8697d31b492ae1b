"""How much memory this process may still take: the machine's and its control group's answer."""

from pathlib import Path

_UNLIMITED = 1 << 60
"""Control groups of version 1 write "no limit" as a huge number."""


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken without pushing anything out but page cache.

    Args:
        root: where proc and sys/fs/cgroup are looked up; tests give a folder of their own.
    """
    free = [_meminfo(root / "proc/meminfo")]
    cgroup = root / "sys/fs/cgroup"
    free += _group(cgroup, "memory.max", "memory.current", "inactive_file")
    free += _group(
        cgroup / "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    )
    return min(free)


def _meminfo(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{path} has no line MemAvailable; expected Linux 3.14 or newer")


def _group(folder: Path, limit_file: str, usage_file: str, cache_key: str) -> list[int]:
    """Limit less usage, page cache counted as free; empty when there is no limit."""
    try:
        limit = (folder / limit_file).read_text(encoding="ascii").strip()
        usage = int((folder / usage_file).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    if limit == "max" or int(limit) >= _UNLIMITED:
        return []
    cached = next((int(line.split()[1]) for line in stat if line.split()[0] == cache_key), 0)
    return [max(0, int(limit) - usage + cached)]
