"""The settings of each part that its authors published, for answers of 32 tokens.

Those of ``experiment=published/...`` are read from there. ELSEWHERE holds those of scripts, READMEs and other papers,
by the part: each one is a group of words of the command line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from dllm.compose.parts import choice_of, choices, composed, configurations

GROUPS = ("sampler", "cache", "blocks", "eos")
CHOOSING = (*GROUPS, "gen_length")
LENGTH = 32
OF_ANOTHER_VOCABULARY = {"delimiter_ids", "filter"}
ELSEWHERE = {
    "sampler=adas": ("sampler/inner=frechet", "sampler/inner=factor"),  # the paper's other inner rules
    "sampler=confidence": ("sampler.threshold=0.8",),  # dInfer
    "sampler=credit": (  # dInfer, SGLang
        "sampler.beta=0.8 sampler.alpha=0.7", "sampler.alpha=0.7 sampler.beta=0.65 sampler.gamma=0.5",
    ),
    "sampler=dawn": ("sampler.low_threshold=0.7",),
    "sampler=dream": ("sampler.alg=maskgit_plus", "sampler.alg=topk_margin"),  # ParallelBench
    "sampler=d3llm": ("sampler.threshold=0.4", "sampler.threshold=0.45 sampler.form=dream"),
    "sampler=dus": (
        "blocks.block_length=8", "blocks.block_length=16", "sampler.levels=dilated",
    ),
    "sampler=easing": (
        "sampler.alpha=0.4", "sampler.alpha=0.3 sampler.suffix_window=32",  # the latter of Dream
        "sampler.suffix_window=32", "sampler.suffix_window=192",
    ),
    "sampler=eb": ("sampler.gamma=0.01", "sampler.gamma=0.693"),  # pc-sampler; DUS, which says 1 bit
    "sampler=factor": tuple(f"sampler.factor={factor}" for factor in (0.7, 1.3, 1.6, 1.9)),  # ParallelBench
    "sampler=frechet": ("sampler.margin=0.02",),
    "sampler=freedave": ("sampler.draft_steps=8", "sampler/inner=confidence sampler.inner.threshold=0.95"),
    "sampler=joint_threshold": ("sampler.edit_threshold=null",),  # LLaDA2.0, which does not edit
    "sampler=klass": (
        "sampler.threshold=0.6", "sampler.threshold=0.7", "sampler.kl=0.001", "sampler.kl=0.005",
        "sampler.threshold=0.8 sampler.kl=0.001",
    ),
    "sampler=learn2pd": ("sampler.threshold=0.9",),
    "sampler=lopa": ("sampler.threshold=0.95", "sampler.branching_factor=4"),
    "sampler=pc": ("sampler.decay=0.0", "sampler.decay=0.5", "sampler.decay=1.0", "sampler.cap=1.0"),
    "sampler=prophet": ("sampler.region=none",),  # the released code where no region is named
    "sampler=remdm": ("sampler.per_step=2 sampler.number=1",),  # nothing is published: ours
    "sampler=saber": ("sampler.form=dream",),
    "sampler=spaced": ("sampler/inner=eb sampler.inner.gamma=1.386", "sampler.inner.threshold=0.5"),
    "sampler=static": ("sampler.score=margin", "sampler.score=entropy"),  # ParallelBench
    "sampler=wino": tuple(f"sampler.threshold={bar}" for bar in (0.5, 0.8)),
    "cache=dkv": tuple(f"cache.refresh_interval={every}" for every in (2, 4, 16)),
    "cache=dllm_cache": tuple(
        f"cache.prompt_interval={prompt} cache.response_interval={response}"
        for prompt, response in (
            (50, 1), (50, 2), (50, 5), (100, 5), (51, 3), (25, 4), (100, 4), (5, 1), (25, 2), (10, 8),
        )
    ),
    "cache=dpad": (
        "cache.suffix_sigma=3.0 cache.suffix_scale=2.3 cache.suffix_window=512",
        "cache.suffix_sigma=3.0 cache.suffix_scale=2.3 cache.suffix_window=128",
    ),
    "cache=elastic": ("cache.window_length=32",),
    "cache=flash_dllm": ("cache.track_windows=3",),
    "cache=sliding": ("cache.prefix_window=4 cache.as_published=true",),
    "cache=streaming": ("cache.suffix_window=32", "cache.suffix_window=192"),
    "cache=vicinity": ("cache.prefix_look=0 cache.after_look=0 cache.warmup=0",),
}  # fmt: skip


def published_settings() -> dict[str, list[str]]:
    """The settings other than the default, as words of the command line, by the part: ``sampler=klass``."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for words in experiments():
        config = composed(words)
        for group in GROUPS:
            name = choice_of(group, config[group])
            if name in choices(group):
                found[f"{group}={name}"][setting(group, name, config)] = None
    for part, settings in ELSEWHERE.items():
        found[part] |= dict.fromkeys(settings)
    return {part: [words for words in settings if words] for part, settings in found.items()}


def experiments() -> Iterator[list[str]]:
    """The words of every published table's rows that choose parts."""
    for name in choices("experiment"):
        if not name.startswith("published/"):
            continue
        rows = ["", *(str(row.settings) for row in composed([f"experiment={name}"]).published.rows)]
        chosen = {tuple(word for word in words.split() if word.startswith(CHOOSING)): None for words in rows}
        yield from ([f"experiment={name}", *words] for words in chosen)


def setting(group: str, name: str, config: Any) -> str:
    """What differs from the part's default, in words; a sampler's with the length of its blocks, if they are short."""
    usual = configurations(group, name)[group]
    chosen = OmegaConf.to_container(config[group], resolve=True)
    assert isinstance(chosen, dict)
    words = [*differences(group, chosen, usual, LENGTH / (config.gen_length or LENGTH))]
    length = config.blocks.get("block_length", LENGTH)
    if group == "sampler" and length < LENGTH:
        words.append(f"blocks.block_length={length}")
    return " ".join(words)


def differences(group: str, chosen: Mapping[Any, Any], usual: Mapping[str, Any], scale: float) -> Iterator[str]:
    """Words for the options that are not the default. scale: of numbers of steps, which go with the answer's length."""
    for key, value in chosen.items():
        if isinstance(value, Mapping):
            inner = choice_of("sampler", value)
            if value["_target_"] != usual[key]["_target_"]:
                yield f"{group}/{key}={inner}"
            continue
        if key == "steps" and value is not None:
            value = int(value * scale)
        if key == "block_length":
            value = min(value, LENGTH)
        if key not in OF_ANOTHER_VOCABULARY and value != usual[key]:
            yield f"{group}.{key}={written(value)}"


def written(value: Any) -> str:
    """A value on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"'{value}'" if isinstance(value, str) and " " in value else str(value).replace(" ", "")
