"""``dllm pull NAME`` and ``dllm list``: checkpoints of the hub on this machine.

Nothing heavy is imported before the arguments are read, so that help comes at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.app.command_line.commands import HUBS
from dllm.app.command_line.program import command
from dllm.common.errors import UserError, first_line, nearest
from dllm.common.terminal import VisibleParser, say
from dllm.compose.config_choices import choices, options_of_choices

if TYPE_CHECKING:
    from dllm.models.weights.hub_name import HubName

GIB = 2**30


def run_pull(arguments: Sequence[str]) -> None:
    """Fetch a checkpoint into the hub's cache, where it goes on after an interruption. Raises UserError for what is not
    a checkpoint of the hub, cannot be decoded here, or has no place on the disk: before weights are fetched."""
    does = "Fetch a checkpoint of the hub, or go on with it. Run it again after an interruption."
    parser = VisibleParser(command("pull"), description=does)
    parser.add_argument("name", metavar="NAME", help="a word of model=, owner/name[@REVISION], or owner/name/FILE.gguf")
    word = parser.parse_args(arguments).name
    from dllm.models.weights.checkpoint_path import locate
    from dllm.models.weights.shipped import shipped_models

    path = hub_path(word)
    if path in shipped_models() or Path(path).is_dir():
        say(f"{word} is here: dllm run {word} 'PROMPT'")
        return
    name = _hub_name(path)
    _check(name)
    there = locate(_path_of(name))
    say(f"{there}\nDecode with it: dllm run {word if word in choices('model') else _path_of(name)} 'PROMPT'")


def hub_path(path: str) -> str:
    """What ``model.path`` is of a word of ``model=``, of a name of the hub, or of one as Ollama's users write it
    (``hf.co/owner/name:QUANT``)."""
    word = path.casefold()
    if word in choices("model"):
        return str(options_of_choices("model")[word]["path"])
    for prefix in HUBS:
        path = path.removeprefix(prefix)
    return path


def _hub_name(path: str) -> HubName:
    """A name of the hub; of ``owner/name:QUANT`` the GGUF file of that kind. Raises UserError."""
    from dllm.models.weights.hub_name import HubName

    repo, colon, kind = path.partition(":")
    name = HubName.of(repo)
    if name is None:
        words = choices("model")
        raise UserError(
            f"{path!r} is not a model of the hub: write owner/name, owner/name/FILE.gguf or one of {', '.join(words)}. "
            f"Names without an owner, as Ollama's, are of autoregressive models.{nearest(path, words)}"
        )
    if not colon:
        return name
    files = [file for file in _files(name) if file.lower().endswith(".gguf")]
    mine = [file for file in files if kind.casefold() in file.casefold()]
    if len(mine) != 1:
        names = ", ".join(sorted(files)) or "none"
        raise UserError(f"{path!r} is not one GGUF file: {name.repo} has {names}. Write {name.repo}/FILE.gguf.")
    return HubName(name.repo, name.revision, mine[0])


def _path_of(name: HubName) -> str:
    """What ``model.path`` is of a name of the hub."""
    return name.repo + f"/{name.file}" * bool(name.file) + (f"@{name.revision}" if name.revision else "")


def _files(name: HubName) -> dict[str, int]:
    """Bytes of a repository's files by their names. Raises UserError where the hub does not tell."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True)
    except Exception as error:
        gated = type(error).__name__ == "GatedRepoError"
        way_out = "Accept its terms on the hub, then run hf auth login." if gated else "Check its name."
        raise UserError(f"{name.repo} is not to be had from the hub ({first_line(error)}). {way_out}") from None
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _check(name: HubName) -> None:
    """Say what is fetched. Raises UserError for a checkpoint that no family here can read, for one without weights, and
    for a disk that is too small. Without the hub nothing is asked: what is here may be enough."""
    from dllm.common.hub import hub_reachable
    from dllm.models.weights.checkpoint_path import locate
    from dllm.models.weights.weights import read_model_config

    if not hub_reachable():
        return
    sizes = _files(name)
    downloads = {
        file: size for file, size in sizes.items() if any(fnmatch(file, pattern) for pattern in name.patterns())
    }
    weights = [file for file in downloads if file.endswith((".safetensors", ".gguf"))]
    if not weights:
        kinds = ", ".join(sorted({Path(file).suffix for file in sizes if Path(file).suffix})) or "nothing"
        raise UserError(f"{_path_of(name)} has no safetensors and no GGUF file, only {kinds}: name another.")
    if not name.file:
        read_model_config(locate(_path_of(name), weights=False))  # refuses what no family here can read
    total, cache = sum(downloads.values()), _cache()
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
    say(f"{_path_of(name)}: {len(downloads)} files, {total / GIB:.2f} GiB; {free / GIB:.1f} GiB are free in {cache}")
    blobs = cache / f"models--{name.repo.replace('/', '--')}" / "blobs"  # files that are here, whole or in part
    here = sum(file.stat().st_size for file in blobs.iterdir()) if blobs.is_dir() else 0
    if total - here > free:
        raise UserError(
            f"{_path_of(name)} takes {total / GIB:.1f} GiB, and {free / GIB:.1f} are free in {cache}. Free "
            "some, or set HF_HOME to another disk."
        )


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def run_list(arguments: Sequence[str]) -> None:
    """Print the checkpoints that are here, with their sizes."""
    does = "The checkpoints on this machine that can be decoded."
    VisibleParser(command("list"), description=does).parse_args(arguments)
    from dllm.models.weights.shipped import shipped_models

    rows = [(name, "comes along") for name in shipped_models()] + [*_cached()]
    width = max(len(name) for name, _ in rows)
    for name, note in rows:
        say(f"{name:{width}}  {note}")


def _cached() -> Iterator[tuple[str, str]]:
    """Names and sizes of the hub's checkpoints in its cache that can be read here."""
    from huggingface_hub import scan_cache_dir

    from dllm.models.weights.hub_name import HubName
    from dllm.models.weights.weights import read_model_config

    if not _cache().is_dir():
        return
    for repo in sorted(scan_cache_dir(_cache()).repos, key=lambda repo: repo.repo_id):
        revision: Any = max(repo.revisions, key=lambda entry: entry.last_modified, default=None)
        if repo.repo_type != "model" or revision is None:
            continue
        folder = Path(revision.snapshot_path)
        files = [f"/{file.relative_to(folder)}" for file in folder.rglob("*.gguf")] or [""]
        for file in files:
            place = folder / file.lstrip("/")
            whole = bool(file) or any(folder.glob("*.safetensors"))
            try:
                family = read_model_config(place).family if whole else ""
            except UserError:
                continue
            if family:
                size = place.stat().st_size if file else revision.size_on_disk
                yield _path_of(HubName(repo.repo_id)) + file, f"{size / GIB:.2f} GiB, {family}"
