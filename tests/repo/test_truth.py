"""What documents and docstrings name exists: attributes, modules, files, settings, commands, arguments, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.known_names import OBJECTS, ROOT, Names, Source

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SUFFIXES = "py|md|yaml|yml|json|jsonl|html|toml|txt|svg|png|pt|safetensors|csv|log|conf|gguf|service|lark|cff"
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
# Names of other programs and of the papers' code, which nothing here defines.
FOREIGN = """
    L T tl re asyncio tempfile nohup promtool booktabs NO_COLOR web_search max_fails upstream
    CUDA_VISIBLE_DEVICES HTTPS_PROXY HF_HOME sampler=confidance
    transfer_index num_block x0_p decoder_forward_passes decoded_token_threshold o_proj inv_freq
    scaled_dot_product_attention _weight_int8pack_mm avx512_bf16 linspace fullmatch merge_and_unload
    BertForMaskedLM ModernBertForMaskedLM AwqConfig GPTQConfig gemv marlin image_token maxNewTokens
    convert_rope_params_to_dict _get_resolved_checkpoint_files max_thinking_tokens end_think_token_id
    dynamic_complete GrammarBuilder inst_level antlr4_9_3 submitit_local letx u00
    paraphrase_summarize samsum bench_serving DiffusionLLMServing DiscreteDDIMScheduler
    CreditThresholdParallelDecoder _sample_multi_block generate_multi_block generate_scheduled
    generate_with_Flash_dLLM block_decode_with_full_attention_FreeDave stable_confident_decode
    generate_with_pc_sampler vanilla_generate diffusion_generate generate_dlm llada_remdm_sample generate_with_saber
    generate_cb_sampler_spaced generate_eb_sampler_spaced decoding_wino generate_block
    get_num_transfer_tokens tokenizer_backend ANTHROPIC_BASE_URL ANTHROPIC_MODEL
    generation_diffusion_gemma.py modeling_diffusion_gemma.py configuration_diffusion_gemma.py qwen.py
    RESPONSES_TOOLS JSON_SCHEMA mask_truncated_completions
    """  # one name after another


@cache
def known() -> Names:
    return Names()


@cache
def foreign() -> set[str]:
    return set(FOREIGN.split())


def dotted(name: str) -> str | None:
    """What is wrong with ``package.module.Name``, ``Class.attribute``, ``object.attribute`` or ``group.option``."""
    names, (first, *rest) = known(), name.split(".")
    if first in ("dllm", "experiments", "tests"):
        return _of_module(name)
    if first in names.source.kinds:
        return names.source.lacks(first, rest)
    problems = []
    if first in names.options:
        problems.append(None if rest[0] in names.options[first] else f"no choice of {first} has the option {rest[0]}")
    if first in OBJECTS:
        problems.append(names.source.lacks(OBJECTS[first], rest))
    if first == "sampling":
        problems.append(None if rest[0] in names.settings else f"no setting {name}")
    return None if None in problems or not problems else problems[0]


def _of_module(name: str) -> str | None:
    module = known().module(name)
    if module is None:
        return f"no module {name}"
    rest = name.removeprefix(module).strip(".").split(".")
    if rest == [""]:
        return None
    inner = known().source.modules.get(module, set())
    text = known().tools.get(module, "")
    if rest[0] not in inner and not re.search(rf"\b{rest[0]}\b", text):
        return f"{module} has no {rest[0]}"
    return known().source.lacks(rest[0], rest[1:])


def setting(word: str) -> str | None:
    """What is wrong with ``name=value`` of the command line, where the name is lower case."""
    key, _, value = word.partition("=")
    group = key.partition("@")[0].removesuffix("/inner")
    if group in known().choices and "/" not in group:
        chosen = [one for one in value.strip("[]'\"").split(",") if re.fullmatch(r"[a-z][a-z\d_/-]*", one)]
        missing = [one for one in chosen if one not in known().choices[group] and one not in ("null", "mine")]
        return f"{group} has no {missing[0]}" if missing else None
    if "." in key:
        return dotted(key)
    return None if key in known().words | foreign() or "/" in key else f"no setting {key}"


def command(line: str) -> str | None:
    """What is wrong with the programs of a command line."""
    target = re.match(r"make ([a-z-]+)", line)
    if target and target[1] not in known().targets:
        return f"no target {target[1]}"
    module = re.search(r"-m ((?:dllm|experiments)[\w.]*)", line)
    if module and known().module(module[1]) != module[1]:
        return f"no module {module[1]}"
    words = re.findall(r"(?<![\w/.{'\"-])[a-z_]+(?:[./@][\w.]+)*=[^\s=]+", line)
    if module and module[1] == "experiments.rl":
        words = [word for word in words if not word.startswith("task=")]  # of the mini suite, not a choice of the group
    return next((problem for word in words if (problem := setting(word))), None)


def span(text: str, own: Container[str] = ()) -> str | None:
    """What is wrong with a text in backticks; ``own``: words that the page itself defines."""
    if text in foreign() or text in own:
        return None
    if re.fullmatch(r"(?:dllm|tests|experiments|docs|deploy)/[\w./-]+", text):
        return None if re.search(r"NAME|/mine\b", text) or (ROOT / text).exists() else "no such file"
    if re.fullmatch(r"[\w-]+\.(?:py|md)", text):
        exists = text in known().files or text in known().words or Path(text).stem in own
        return None if exists else "no file has this name"
    if re.fullmatch(rf"[\w.-]+\.(?:{SUFFIXES})", text):
        return None
    if re.fullmatch(r"[A-Za-z_]\w*(?:\.\w+)+", text):
        return dotted(text)
    if re.fullmatch(r"[A-Za-z_]\w*", text):
        exists = text in known().words or _of_metrics(text)
        placeholder = re.fullmatch(r"[A-Z]+\d?|[0-9a-f]{7}", text)  # NAME; a commit
        return None if exists or placeholder else "nothing here has this name"
    if any(word in own for word in re.findall(r"[\w.]+", text)):
        return None
    return command(text)


def _of_metrics(text: str) -> bool:
    """A metric: ``dllm_`` and a field of the figures, or a name as it is registered, before its ``_total``."""
    names = {text.removesuffix("_total"), text.removeprefix("dllm_").removesuffix("_total")}
    return text.startswith("dllm_") and bool(names & known().words)


def page_problems(text: str) -> Iterator[tuple[str, str]]:
    """Each text in backticks, or indented command, that names what is not there, and what is wrong."""
    fences = " ".join(FENCE.findall(text))
    plain = FENCE.sub("", text)
    added = re.findall(r"^`([\w/.]+)`:$", plain, re.MULTILINE)  # files that the page tells its reader to write
    own = {*added, *(Path(name).stem for name in added), *(set(re.findall(r"[\w.]+", fences)) - known().words)}
    found = re.findall(r"`([^`\n]+)`", plain) + re.findall(r"^    ((?:python|make|dllm) .*)$", plain, re.MULTILINE)
    yield from ((text, problem) for text in found if (problem := span(text, own)))


def docstrings(source: Source) -> Iterator[tuple[str, str, set[str]]]:
    """Name, docstring and what it may explain: parameters, of a class also its fields and attributes."""
    made: dict[int, set[str]] = {}
    for entry in source.callables:
        may = set(entry.parameters)
        if entry.owner is not None and entry.node.name in ("__init__", "__call__"):
            made.setdefault(id(entry.owner), set()).update(may)
        if text := ast.get_docstring(entry.node):
            yield entry.node.name, text, may | (set(entry.owner.members) if entry.owner else set())
    for name, kind in source.kinds.items():
        if text := ast.get_docstring(kind.node):
            yield name, text, made.get(id(kind), set()) | {key for one in source.lineage(name) for key in one.members}


HEADS = {"Args", "Returns", "Raises", "Yields", "Example", "Examples", "Attributes", "None", "True", "False"}


def explained(text: str) -> Iterator[str]:
    """Names that a docstring explains: ``name:`` where a sentence begins, at the start of a line."""
    before = "."
    for line in map(str.strip, text.splitlines()):
        names = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*)(?: \([^)]*\))?:(?: |$)", line)
        if names and before[-1:] in ".;:":
            yield from names[1].split(", ")
        before = line or "."


def false_arguments(source: Source) -> list[str]:
    return [
        f"{name}: {word}"
        for name, text, may in docstrings(source)
        for word in explained(text)
        if word not in may | HEADS
    ]


def of_pages(problems: Callable[[Path, str], Iterator[Any]]) -> dict[str, list[Any]]:
    every = {str(page.relative_to(ROOT)): list(problems(page, page.read_text("utf-8"))) for page in PAGES}
    assert len(every) > 25
    return {page: found for page, found in every.items() if found}


def test_what_pages_name_exists() -> None:
    assert of_pages(lambda page, text: page_problems(text)) == {}


def test_what_docstrings_and_comments_name_exists() -> None:
    texts = {
        name: re.findall(r"``([^`\n]+)``", file.read_text("utf-8"))
        for file in (ROOT / "dllm").rglob("*.py")
        for name in [str(file.relative_to(ROOT))]
    }
    assert [(file, text, found) for file, spans in texts.items() for text in spans if (found := span(text))] == []


def test_a_docstring_explains_arguments_that_there_are() -> None:
    assert false_arguments(known().source) == []


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as the site makes them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip()) for head in plain}


def broken_links(page: Path, text: str) -> Iterator[str]:
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if "://" not in target and not target.startswith("mailto:"):
            wanted = {anchor} if anchor and file.suffix == ".md" else set()
            if not file.exists() or wanted - (
                anchors(text if file == page else file.read_text("utf-8")) if wanted else wanted
            ):
                yield target


# Guides to the contract: there a word must be one of the contract, of parts or of their configuration, not of anything.
GUIDES = ("add_a_sampler", "add_a_cache", "blocks")
ROOMS = ("contract", "parts", "compose", "laws")


@cache
def contract_words() -> set[str]:
    names = known()
    rooms = (words for name, words in names.source.words_of.items() if name.partition(".")[2].startswith(ROOMS))
    return {"alternate"}.union(*rooms, names.settings, *names.options.values(), *names.choices.values())


def outside_the_contract(text: str) -> list[str]:
    return sorted(set(re.findall(r"`([a-z]\w*)`", FENCE.sub("", text))) - contract_words() - foreign())


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_to_the_contract_uses_its_words(guide: str) -> None:
    assert outside_the_contract((ROOT / "docs" / f"{guide}.md").read_text("utf-8")) == []


def test_links_lead_to_pages_and_headings() -> None:
    assert of_pages(broken_links) == {}


# -- that these tests can fail ----------------------------------------------------------------------------------

FALSE = {
    "`View.opened_twice`": "View has no opened_twice",
    "`view.scores.tokens`": "Scores has no tokens",
    "`CacheTraits.slides`": "CacheTraits has no slides",
    "`dllm.parts.samplers.nothing`": "dllm.parts.samplers has no nothing",
    "`dllm/parts/cache/never.py`": "no such file",
    "`never_written.py`": "no file has this name",
    "`sampler=confidense`": "sampler has no confidense",
    "`sampler.treshold=0.9`": "no choice of sampler has the option treshold",
    "`sampling.heat`": "no setting sampling.heat",
    "`python run.py gen_lenght=3`": "no setting gen_lenght",
    "    make tests": "no target tests",
    "    python -m experiments.nothing": "no module experiments.nothing",
    "`keep_opened_long`": "nothing here has this name",
    "`dllm_unheard_of_total`": "nothing here has this name",
}


@pytest.mark.parametrize("text", FALSE)
def test_a_false_page_is_found(text: str) -> None:
    assert [problem for _, problem in page_problems(f"# Page\n\n{text}\n")] == [FALSE[text]]


def test_a_false_docstring_is_found() -> None:
    text = 'def f(rows):\n    """Counts.\n\n    rows: theirs.\n    lines: none.\n    """\n'
    assert false_arguments(Source({"m": text})) == ["f: lines"]
    field = 'class A:\n    """Holds.\n\n    size, width: both.\n    """\n    size: int\n'
    assert false_arguments(Source({"m": field})) == ["A: width"]


def test_a_field_that_the_contract_lost_is_found() -> None:
    assert outside_the_contract("Return a step with `edit` and `hold`.") == ["hold"]


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "diffusion.md"
    text = "# One head\n\n[a](blocks.md) [b](#one-head) [c](nowhere.md) [d](#other) [e](blocks.md#nothing)"
    assert list(broken_links(page, text)) == ["nowhere.md", "#other", "blocks.md#nothing"]


def test_the_page_names_every_environment_variable_that_is_read() -> None:
    page = (ROOT / "docs" / "serving_operate.md").read_text().partition("## Environment variables")[2]
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", page.partition("\n## ")[0]))
    read = set[str]()
    for file in sorted((ROOT / "dllm").rglob("*.py")):
        text = file.read_text()
        words = re.findall(r"environ(?:ment)?(?:\.get\(|\.setdefault\(|\[)\*?([\w\"']+)", text)
        for word in [*words, *re.findall(r"([\"']\w+[\"']|\b[A-Z_]{3,}) (?:not )?in os\.environ\b", text)]:
            known = re.search(rf"^{word} = \(?\"(\w+)\"", text, re.MULTILINE)
            read |= set(re.findall(r"^[A-Z][A-Z_]+$", known[1] if known else word.strip("\"'")))
    assert read - told - {"KEY_VARIABLE", "HYDRA_FULL_ERROR"} == set() and "DLLM_API_KEY" in told
    assert {"XDG_CACHE_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "RANK", "DLLM_DEBUG"} <= read
