"""Graphics cards, and what a plan must leave free on them."""

from rlkit.config import unknown

MiB, GiB = 2**20, 2**30

CARDS: dict[str, int] = {
    "t4": 15360,
    "l4": 23034,
    "a10": 23028,
    "a100-40": 40960,
    "a100-80": 81920,
    "h100": 81559,
    "h200": 143771,
    "b200": 183359,
    "rtx3090": 24576,
    "rtx4090": 24564,
    "rtx5090": 32607,
}
"""Name -> MiB of memory, as nvidia-smi shows them."""

RESERVE = 1 * GiB
"""For what no plan sees: the CUDA context (about 0.5 GiB), cuBLAS workspaces, fragments."""


def card_bytes(name: str) -> int:
    """What a card leaves to tensors: its memory without RESERVE.

    Raises ValueError for an unknown card, with the nearest name.
    """
    key = name.lower().replace(" ", "").replace("_", "-")
    if key not in CARDS:
        raise ValueError(unknown("device", name, CARDS))
    return CARDS[key] * MiB - RESERVE


def memory_bytes(memory: int | float | str) -> int:
    """Bytes of "24GiB", "16 GB", "t4", or a number of bytes.

    Raises ValueError for anything else.
    """
    if isinstance(memory, int | float) and not isinstance(memory, bool):
        if memory <= 0:
            raise ValueError(f"memory={memory} must be above 0 bytes")
        return int(memory)
    text = str(memory).replace(" ", "").lower()
    for unit, size in (("gib", GiB), ("mib", MiB), ("gb", 10**9), ("mb", 10**6)):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return int(float(number) * size)
    try:
        return card_bytes(str(memory))
    except ValueError as error:
        raise ValueError(f"{error}; or give memory like '24GiB'") from None


def readable(size: float) -> str:
    """Bytes for people: 512 B, 3.2 MiB, 15.04 GiB."""
    if abs(size) >= GiB:
        return f"{size / GiB:.2f} GiB"
    if abs(size) >= MiB:
        return f"{size / MiB:.1f} MiB"
    return f"{size / 1024:.1f} KiB" if abs(size) >= 1024 else f"{int(size)} B"
