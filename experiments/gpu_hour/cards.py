"""Peak memory bandwidth of cards by the name that the driver gives them, from NVIDIA's data sheets."""

from __future__ import annotations

# The first entry whose words all are in the name counts.
PEAKS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("GH200", "144G"), 4.9e12),
    (("GH200",), 4.0e12),
    (("H200",), 4.8e12),
    (("H100", "NVL"), 3.9e12),
    (("H100", "PCIe"), 2.0e12),
    (("H100",), 3.35e12),
    (("A100", "PCIe", "80GB"), 1.935e12),
    (("A100", "PCIE", "40GB"), 1.555e12),
    (("A100", "40GB"), 1.555e12),
    (("A100", "80GB"), 2.039e12),
    (("L40S",), 0.864e12),
    (("L4",), 0.3e12),
)


def peak_bytes(name: str) -> float | None:
    """Bytes/s; None for a card that is not in the table: then only measured rates are shown."""
    said = name.lower().replace("-", " ").split()
    for words, peak in PEAKS:
        if all(any(word.lower() in one for one in said) for word in words):
            return peak
    return None
