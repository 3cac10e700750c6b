"""Free memory: the bytes that this process may still allocate on Linux; infinite where unknown."""

from pathlib import Path

SYSTEM, CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_memory_bytes() -> float:
    """The system's available memory, or the remaining limit of a container."""
    return min(free_system_bytes(), free_container_bytes())


def free_system_bytes() -> float:
    try:
        lines = SYSTEM.read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return float("inf")


def free_container_bytes() -> float:
    try:
        most, now = ((CONTAINER / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if most == "max" else float(int(most) - int(now))
    except (OSError, ValueError):
        return float("inf")
