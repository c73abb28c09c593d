"""Checkpoints of every family, and a seeded generator that breaks them.

Each mutation says whether it is nonsense, which must be refused by a sentence that names what is wrong, or may leave a
checkpoint that works. What counts as nonsense stands in ``nonsense.py``.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_folders import dream_tokenizer, edit_config, llada_tokenizer, published, random_folder, sdar_tokenizer, shard
from nonsense import BASES, DEEP, HUGE, KEYS, MORE, NONSENSE, SETTINGS
from safetensors.torch import load_file, save_file

LLADAS = ("llada_mha_untied", "llada_gqa_tied")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Broken:
    """What was done. names: parts of the sentence that must refuse it; none: it may be found ready, and must work.
    reported: parts of the notes with which it must be ready."""

    what: str
    names: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()


def build(folder: Path, base: str) -> None:
    """A small complete checkpoint of a family, with tokenizer."""
    ids = {"mask_token_id": 258, "eos_token_id": 257, "pad_token_id": 257}
    write = llada_tokenizer
    if base == "dream_gqa":
        ids, write = {"mask_token_id": 263, "eos_token_id": 258, "pad_token_id": 258}, dream_tokenizer
    if base == "sdar_b4":
        ids, write = {"mask_token_id": 260, "eos_token_id": 256, "pad_token_id": 256}, sdar_tokenizer
    sizes = {"vocab_size": 272, **({"embedding_size": 272} if base in LLADAS else {})}
    random_folder(folder, published(base, **ids, **sizes))
    write(folder)


def make(bases: Mapping[str, Path], folder: Path, number: int) -> tuple[str, Broken]:
    """Case ``number``: its base and what was done to the copy in ``folder``. The kinds of mutation take turns."""
    chance = random.Random(number)
    mutation, base = MUTATIONS[number % len(MUTATIONS)], BASES[number // len(MUTATIONS) % len(BASES)]
    shutil.copytree(bases[base], folder)
    return base, mutation(folder, base, chance)


def config_value(folder: Path, base: str, chance: random.Random) -> Broken:
    key, kind = chance.choice(sorted(KEYS[base].items()))
    value = chance.choice([*NONSENSE[kind], *MORE.get(base, {}).get(key, ())])
    edit_config(folder, **{key: value})
    return Broken(f"{key}={value!r:.80}", ("config.json", key))


def config_contradiction(folder: Path, base: str, chance: random.Random) -> Broken:
    choices = [(key, value) for key, values in MORE.get(base, {}).items() for value in values]
    heads = "n_heads" if base in LLADAS else "num_attention_heads"
    key, value = chance.choice([*choices, (heads, 3), (heads, 64)])
    edit_config(folder, **{key: value})
    return Broken(f"{key}={value!r}", ("config.json", key) if choices and key != heads else ("",))


def config_rotary(folder: Path, base: str, chance: random.Random) -> Broken:
    """Two places that contradict each other about a rotary key, flat or by kind of layer."""
    key, other = chance.choice([("rope_theta", 12345.0), ("partial_rotary_factor", 0.25)])
    place, inner = chance.choice(["rope_parameters", "rope_scaling"]), {key: other}
    given = {key: 0.5 if key == "partial_rotary_factor" else 500000.0}
    nested = chance.choice([inner, {"full_attention": inner}, {"full_attention": given, "sliding_attention": inner}])
    edit_config(folder, **given, **{place: nested})
    return Broken(f"{given}, {place}={nested}", ("config.json", key))


def config_unknown(folder: Path, base: str, chance: random.Random) -> Broken:
    """A key that nothing knows: the folder is ready all the same, and says so (``reported``)."""
    edit_config(folder, **{f"new_{chance.choice(['gate', 'scale'])}": chance.choice([1, "x", [1], {"a": 2}, True])})
    return Broken("an unknown key", reported=("new_",))


def pointer(folder: Path, base: str, chance: random.Random) -> Broken:
    """What ``git clone`` leaves of a file where Git LFS is not installed."""
    file = chance.choice(sorted(file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt")))
    version = chance.choice(["git-lfs.github.com/spec/v1", "hawser.github.com/spec/v1"])
    file.write_text(f"version https://{version}\noid sha256:{'a' * 64}\nsize {chance.randrange(10**10)}\n")
    return Broken(f"a pointer for {file.name}", (file.name, "git lfs pull"))


def prefixed(folder: Path, base: str, chance: random.Random) -> Broken:
    held, prefix = load_file(folder / WEIGHTS), chance.choice(["module.", "base_model.model.", "_orig_mod.", "model."])
    save_file({prefix + name: tensor for name, tensor in held.items()}, folder / WEIGHTS)
    return Broken(f"names begin with {prefix}", (" is missing, and the file has " + prefix,))


def quantised(folder: Path, base: str, chance: random.Random) -> Broken:
    """Tensors of another program's quantisation, with or without a word of it in config.json."""
    held = load_file(folder / WEIGHTS)
    name = chance.choice(sorted(name for name, tensor in held.items() if tensor.ndim == 2))
    leaf = chance.choice(["qweight", "weight_packed", "W_q"])
    held[name.removesuffix("weight") + leaf] = held.pop(name).to(torch.int32)
    save_file(held, folder / WEIGHTS)
    if chance.random() < 0.5:
        return Broken(f"{leaf} in the place of {name}", (leaf, "unquantised"))
    edit_config(folder, quantization_config={"quant_method": (method := chance.choice(["gptq", "awq", "hqq", "new"]))})
    return Broken(method, (method, "unquantised"))


def single_file(folder: Path, base: str, chance: random.Random) -> Broken:
    """A whole single file beside an index, or shards, of an earlier save: it counts alone."""
    whole = (folder / WEIGHTS).read_bytes()
    shard(folder)
    (folder / WEIGHTS).write_bytes(whole)
    kind = chance.choice(["shards", "gone", "broken"])
    for number in (1, 2) if kind != "shards" else ():
        (folder / f"model-0000{number}-of-00002.safetensors").unlink()
    if kind == "broken":
        (folder / INDEX).write_text("{")
    return Broken(f"an index beside a single file, {kind}", reported=(INDEX,))


def config_family(folder: Path, base: str, chance: random.Random) -> Broken:
    value = chance.choice([5, {}, [5], [["x"]], "LLaDAModelLM", ["GPT2LMHeadModel"], True, [None]])
    edit_config(folder, architectures=value)
    return Broken(f"architectures={value!r}", ("config.json", "architectures"))


def config_lacks(folder: Path, base: str, chance: random.Random) -> Broken:
    needed = {"d_model", "n_layers", "n_heads", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
              "num_experts", "num_experts_per_tok", "expert_intermediate_size", "moe_intermediate_size"}  # fmt: skip
    content = json.loads((folder / "config.json").read_text())
    key = chance.choice(sorted(needed & content.keys()))
    del content[key]
    (folder / "config.json").write_text(json.dumps(content))
    return Broken(f"no {key}", ("config.json", key))


def config_several(folder: Path, base: str, chance: random.Random) -> Broken:
    """Values of the right type and any size: most do not fit the weights, some change the model and fit."""
    keys = chance.sample(sorted(KEYS[base]), 3)
    values = {key: chance.choice([1, 2, 3, 8, 16, 64, 1e-4, 0.5, 1000.0, True, False, None]) for key in keys}
    edit_config(folder, **values)
    return Broken(f"{values}")


def any_text(folder: Path, base: str, chance: random.Random) -> Broken:
    """A JSON or template file that is none any more."""
    file = chance.choice(sorted(file for file in folder.iterdir() if file.suffix in (".json", ".jinja")))
    bad = [b"", b"\xff\xfe\x00", b"\x00" * 64, DEEP.encode(), b"[]", b'"x"', file.read_bytes()[:-5]]
    if file.suffix == ".jinja":
        bad = [b"\xff\xfe", b"{% for %}", b"{{ '", b"{% if x %}"]
    file.write_bytes(chance.choice(bad))
    return Broken(
        f"{file.name} holds {file.read_bytes()[:20]!r}",
        ("tokenizer" if file.name in ("vocab.json", "tokenizer.json") else file.name,),
    )


def bytes_anywhere(folder: Path, base: str, chance: random.Random) -> Broken:
    """Bytes flipped, lost or doubled in some file: it may still work. Weights are left as they are: a forward of
    changed weights says nothing about what was checked."""
    file = chance.choice(sorted(file for file in folder.iterdir() if file.suffix != ".safetensors"))
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 3])):
        place = chance.randrange(len(data))
        data[place : place + chance.choice([1, 1, 4])] = chance.choice([b"", b"0", b"9", b"\xc3", b'"', b"-", b"null"])
    file.write_bytes(bytes(data))
    return Broken(f"bytes of {file.name}")


def header(folder: Path) -> tuple[dict[str, Any], bytes]:
    """A safetensors file taken apart: its header and its data."""
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(folder: Path, content: dict[str, Any], data: bytes) -> None:
    text = json.dumps(content).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data)


def header_entry(folder: Path, base: str, chance: random.Random) -> Broken:
    """One tensor's entry: as safetensors allows, but not as the model needs, or broken in itself."""
    content, data = header(folder)
    name = chance.choice(sorted(name for name in content if name != "__metadata__"))
    entry, shape = content[name], content[name]["shape"]
    kind = chance.choice(["dtype", "shape", "negative", "dimension", "offsets", "rename", "float"])
    entry |= {
        "dtype": {"dtype": chance.choice(["I32", "U32", "F8", 5])},
        "shape": {"shape": [*shape, 1]},
        "negative": {"shape": [-1, *shape]},
        "dimension": {"shape": [2**62, 2**62]},
        "float": {"shape": ["64"]},
        "offsets": {"data_offsets": [0, 10**12]},
    }.get(kind, {})
    if kind == "rename":
        content[f"{name}x"] = content.pop(name)
    write_header(folder, content, data)
    inside = kind in ("shape", "rename") or entry["dtype"] in ("I32", "U32")
    return Broken(f"{kind} of {name}", (name,) if inside else (WEIGHTS,))


def header_bytes(folder: Path, base: str, chance: random.Random) -> Broken:
    file = folder / WEIGHTS
    data = file.read_bytes()
    bad = {
        "cut": data[: chance.randrange(len(data) - 1)],
        "empty": b"",
        "tail": data + b"xx",
        "no header": b"\x00" * 8 + data[8:],
        "long header": HUGE.to_bytes(8, "little") + data[8:],
        "deep": len(DEEP).to_bytes(8, "little") + DEEP.encode(),
    }
    kind = chance.choice(sorted(bad))
    file.write_bytes(bad[kind])
    return Broken(f"{kind} {WEIGHTS}", (WEIGHTS,))


def tensors(folder: Path, base: str, chance: random.Random) -> Broken:
    """Tensors that lack, that nobody asked for, or that have another shape; a size without rows bounds nothing."""
    held = load_file(folder / WEIGHTS)
    name = chance.choice(sorted(held))
    kind = chance.choice(["missing", "extra", "rows", "columns", "none at all", "empty rows"])
    if kind == "missing":
        del held[name]
    elif kind == "extra":
        held[name := "model.extra.weight"] = torch.zeros(3)
    elif kind == "empty rows":
        held["model.extra.weight"] = torch.zeros(0, HUGE)
        key = "d_model" if base in LLADAS else "hidden_size"
        edit_config(folder, **{key: 2**23})
        name = key
    elif kind == "none at all":
        held, name = {}, "config.json"
    else:
        held[name] = held[name][:-1].contiguous() if kind == "rows" else held[name][..., :-1].contiguous()
    save_file(held, folder / WEIGHTS)
    return Broken(f"{kind}: {name}", (name,))


def weights_gone(folder: Path, base: str, chance: random.Random) -> Broken:
    file = folder / WEIGHTS
    if chance.random() < 0.5:
        file.rename(folder / "pytorch_model.bin")
        return Broken("a pickle", ("pytorch_model.bin",))
    file.unlink()
    edit_config(folder, **{"n_layers" if base in LLADAS else "num_hidden_layers": 9999})
    return Broken("no weights, and 9999 layers", ("",))


def index(folder: Path, base: str, chance: random.Random) -> Broken:
    """Two shards, and an index that lies about them. One lie points to a whole file outside, which must not be read."""
    second = chance.choice(shard(folder))
    shutil.copy(folder / "model-00002-of-00002.safetensors", folder.parent / "outside.safetensors")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    lies = ["../outside.safetensors", str(folder.parent / "outside.safetensors"), "/etc/passwd", "..", ".", "", 5, None,
            ["a"], {}, True, "model-00003-of-00002.safetensors", "x\x00.safetensors", "config.json",
            "\ud800.safetensors", "sub/../model-00002-of-00002.safetensors"]  # fmt: skip
    lie = chance.choice(lies)
    (folder / INDEX).write_text(json.dumps({"weight_map": {**weight_map, second: lie}}))
    return Broken(f"weight_map[{second}]={lie!r}", (INDEX,))


def index_whole(folder: Path, base: str, chance: random.Random) -> Broken:
    second = chance.choice(shard(folder))
    one, two = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    kind = chance.choice(["map", "gone", "dropped", "doubled"])
    if kind == "map":
        (folder / INDEX).write_text(json.dumps({"weight_map": chance.choice([None, [], {}, "x", 5])}))
        return Broken("weight_map of another type", (INDEX, "weight_map"))
    if kind == "gone":
        two.unlink()
        return Broken("a shard is gone", (two.name,))
    held, other = load_file(two), load_file(one)
    if kind == "doubled":  # the index names one of both: no mistake
        save_file({**other, second: held[second], "model.unnamed": torch.zeros(2)}, one)
        return Broken(f"{second} doubled", reported=("model.unnamed",))
    del held[second]
    save_file(held, two)
    return Broken(f"{second} {kind}", (second,))


def settings(folder: Path, base: str, chance: random.Random) -> Broken:
    """A setting of the tokenizer's files of another type than it has."""
    name = chance.choice(sorted(SETTINGS))
    key = chance.choice(sorted(SETTINGS[name]))
    value, file = chance.choice(SETTINGS[name][key]), folder / name
    if key == "chat_template":
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**content, key: value}))
    return Broken(f"{name}: {key}={value!r}", (name, key))


def vocabulary(folder: Path, base: str, chance: random.Random) -> Broken:
    """tokenizer.json, or vocab.json and merges.txt, with other contents than a vocabulary."""
    if not (folder / "tokenizer.json").is_file():
        file = folder / "vocab.json"
        bad: Any = chance.choice([{"a": -1}, {"a": "x"}, {"a": 2**40}, [], {}, {"a": 0}, {"a": 4000000000}])
        if chance.random() < 0.3:
            file = folder / "merges.txt"
            (file.unlink if chance.random() < 0.5 else lambda: file.write_bytes(b"\xff\xfe \xff"))()
            return Broken("merges.txt", ("merges.txt",) if not file.is_file() else ("tokenizer",))
        file.write_text(json.dumps(bad))
        return Broken(f"vocab.json={bad}", ("token",))
    content = json.loads((folder / "tokenizer.json").read_text())
    key = chance.choice(sorted(content))
    bad = chance.choice([5, "x", [5], {"type": "x"}, {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}])
    (folder / "tokenizer.json").write_text(json.dumps({**content, key: bad}))
    return Broken(f"tokenizer.json: {key}={bad}")


MUTATIONS: list[Callable[[Path, str, random.Random], Broken]] = [
    config_value, settings, header_entry, index, any_text, config_value, tensors, config_contradiction, bytes_anywhere,
    config_value, vocabulary, header_bytes, config_several, index_whole, settings, config_value, config_lacks,
    weights_gone, config_family, config_rotary, pointer, prefixed, quantised, single_file, config_unknown,
]  # fmt: skip
