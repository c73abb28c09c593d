"""Where a checkpoint is: shipped, a folder, a GGUF file, or on the hub."""

from __future__ import annotations

from pathlib import Path

from dllm.common.errors import Refusal, first_line, nearest
from dllm.common.hub import hub_reachable, stay_offline_without_hub
from dllm.models.formats.gguf_file import GGUF_SUFFIX, is_gguf
from dllm.models.weights.hub_name import HubName
from dllm.models.weights.shipped import plain_folder, shipped_folder, shipped_models

# Published models whose config.json comes with the package, so that questions of size need neither files nor a net.
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


def locate(path: str | Path, weights: bool = True) -> Path:
    """The folder of a shipped model, a local folder or a hub id, or a GGUF file, here or on the hub (owner/name/FILE).

    A hub id may end with a revision (owner/name@REVISION: a branch, a tag or a commit). It is downloaded: data files
    only, never code, and no weights of a folder if ``weights`` is False. Raises UserError when there is no such model.
    """
    name, names, folder = str(path), shipped_models(), Path(path).expanduser()
    if name in names:
        folder = shipped_folder(name)
    if folder.is_dir():
        return plain_folder(folder)
    if is_gguf(folder):
        return folder
    if folder.is_file():
        raise Refusal("{model.path:quoted} is a file, and no GGUF. Give the folder that holds the checkpoint.", [name])
    hub = HubName.of(name)
    if folder.suffix.lower() == GGUF_SUFFIX and (hub is None or not hub.file):
        raise Refusal("{model.path:quoted} is not a file here. Download it, and give its path.", [name])
    if hub is None:
        raise Refusal(
            f"{{model.path:quoted}} is not a shipped model ({', '.join(names) or 'there are none'}), a folder or a "
            "hub id of the form owner/name (of a GGUF file: owner/name/FILE.gguf; at a revision: "
            f"owner/name@REVISION).{nearest(name.partition('@')[0], names)}",
            [str(path)],
        )
    stay_offline_without_hub()
    from huggingface_hub import snapshot_download

    try:
        patterns = hub.patterns(weights)
        there = Path(snapshot_download(hub.repo, revision=hub.revision, allow_patterns=patterns)) / hub.file
    except Exception as error:
        offline = not hub_reachable() and type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled")
        why = "the hub cannot be reached from here" if offline else first_line(error)
        kind = "file" if hub.file else "folder"
        raise Refusal(
            f"{{model.path:quoted}} is no {kind} here, and could not be downloaded as a hub id ({why}). Download it "
            f"elsewhere and pass the {kind}: {{model.path={kind.upper()}}}.",
            [str(path)],
        ) from error
    if hub.file and not is_gguf(there):
        raise Refusal(
            f"{{model.path:quoted}}: {hub.repo} on the hub has no file {hub.file}. Give the name of one that it has.",
            [str(path)],
        )
    return there


def description_of(hub_id: str) -> Path | None:
    """The folder with the config.json of a published model; None: its shape is not known here."""
    name = hub_id.partition("@")[0].casefold()
    return next((DESCRIPTIONS / shape for shape, ids in SAME_SHAPE.items() if name in map(str.casefold, ids)), None)


def folder_label(path: str | Path) -> str:
    """What reports call a model: its folder's name."""
    return Path(path).expanduser().resolve().name
