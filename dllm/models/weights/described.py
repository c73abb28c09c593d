"""Published models whose config.json comes with the package, so that questions of size need neither files nor a net."""

from __future__ import annotations

from pathlib import Path

DESCRIPTIONS = Path(__file__).parents[1] / "descriptions"
# Hub ids by the folder of their shape: a model, and what was trained further from it.
SAME_SHAPE = {
    "llada-8b": (
        "GSAI-ML/LLaDA-8B-Instruct",
        "GSAI-ML/LLaDA-8B-Base",
        "GSAI-ML/LLaDA-1.5",
        "Zigeng/dParallel-LLaDA-8B-instruct",
    ),
    "dream-7b": ("Dream-org/Dream-v0-Instruct-7B", "Dream-org/Dream-v0-Base-7B", "Zigeng/dParallel_Dream_7B_Instruct"),
    "llada2-mini": ("inclusionAI/LLaDA2.0-mini",),
    "llada2-flash": ("inclusionAI/LLaDA2.0-flash", "inclusionAI/LLaDA2.1-flash"),
    "diffusiongemma-26b": ("google/diffusiongemma-26B-A4B-it",),
}


def description_of(hub_id: str) -> Path | None:
    """The folder with the config.json of a published model; None: its shape is not known here."""
    name = hub_id.partition("@")[0].casefold()
    return next((DESCRIPTIONS / shape for shape, ids in SAME_SHAPE.items() if name in map(str.casefold, ids)), None)
