"""What the benchmarks of constraints measure: five languages with random texts of each, and a vocabulary of 126,000."""

from __future__ import annotations

import json
import random
import site
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from dllm.constraints import Constraint, Json, JsonSchema, Regex

SIZE, END = 126_000, "<|endoftext|>"
TEXT_BYTES = 40_000_000
TRAINED = Path("outputs") / "bench_constraints"

WORD, NUMBER, PRICE, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def some(entry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": entry}


ADDRESS = record(
    street=WORD,
    number=NUMBER,
    city=WORD,
    postcode={"type": "string", "pattern": "^[0-9]{5}$"},
    country={"enum": ["DE", "FR", "GB", "US"]},
)
PERSON = record(name=WORD, age=NUMBER, email=WORD, city=WORD, active=FLAG)
ORDER = record(
    id=NUMBER,
    created={"type": "string", "format": "date"},
    status={"enum": ["new", "paid", "shipped", "cancelled"]},
    customer=record(name=WORD, email=WORD, vip=FLAG, address=ADDRESS),
    items=some(record(sku=WORD, title=WORD, quantity=NUMBER, price=PRICE, tags=some(WORD))),
    shipping=record(method={"enum": ["standard", "express"]}, cost=PRICE),
    total=PRICE,
    currency={"enum": ["EUR", "USD"]},
    note=WORD,
    gift=FLAG,
)

TITLE, BODY = ({"type": "string", "maxLength": count} for count in (200, 4000))
LETTER = record(title=TITLE, body=BODY)


def example(schema: dict[str, Any], draw: random.Random) -> Any:
    """A random value of the small part of JSON Schema used here."""
    words = ["Grace", "Hopper", "blue", "kettle", "Rue de Rivoli", "grace@example.org", "Lyon", "as soon as possible"]
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema["type"]:
        case "object":
            return {name: example(field, draw) for name, field in schema["properties"].items()}
        case "array":
            return [example(schema["items"], draw) for _ in range(draw.randint(1, 2))]
        case "string" if "format" in schema:
            return f"20{draw.randint(10, 29)}-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}"
        case "string" if "pattern" in schema:
            return str(draw.randint(10_000, 99_999))
        case "string":
            return " ".join(draw.sample(words, 2))
        case "number":
            return draw.randint(1, 9999) / 100
        case "boolean":
            return draw.random() < 0.5
    return draw.randint(0, 999)


def written(schema: dict[str, Any]) -> Callable[[random.Random], str]:
    return lambda draw: json.dumps(example(schema, draw), indent=draw.choice([None, None, 2]))


def date(draw: random.Random) -> str:
    return example({"type": "string", "format": "date"}, draw)


LANGUAGES: dict[str, tuple[Constraint, Callable[[random.Random], str]]] = {
    "date": (Regex(r"\d{4}-\d{2}-\d{2}"), date),
    "person": (JsonSchema(PERSON), written(PERSON)),
    "order": (JsonSchema(ORDER), written(ORDER)),
    "json": (Json(), written(ORDER)),
    "letter": (JsonSchema(LETTER), written(LETTER)),
}


def texts() -> Iterator[str]:
    """Python files of this environment, 40 MB at most."""
    left = TEXT_BYTES
    for file in sorted(Path(site.getsitepackages()[0]).rglob("*.py")):
        text = file.read_text(encoding="utf-8", errors="ignore")[:100_000]
        yield text
        left -= len(text)
        if left < 0:
            return


def trained(folder: Path) -> Path:
    """The folder of a byte-level BPE of 126,000 tokens, trained where it is not there yet."""
    if not (folder / "tokenizer.json").is_file():
        print(f"training a vocabulary of {SIZE:,} tokens", flush=True)
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
        backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(
            texts(),
            trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, special_tokens=[END], show_progress=False),
        )
        folder.mkdir(parents=True, exist_ok=True)
        backend.save(str(folder / "tokenizer.json"))
    return folder
