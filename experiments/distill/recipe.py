"""What a student depends on. Options are the fields of ``Recipe`` and ``Place``, written NAME=VALUE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dllm.common.coerce import coerce, words_of
from dllm.common.errors import UserError, in_choices, in_range, nearest
from dllm.models.config import ModelConfig

SMALL = 200_000_000  # parameters; larger models get an adapter unless ``tune`` says otherwise
# What the released code does for each layout, where an option is null. Dream's is that of prediction shift 1.
RELEASED: dict[str, dict[str, Any]] = {
    "llada": {"segment": "block", "beta": 2.0, "epochs": 6, "schedule": "constant", "warmup": 0.0, "rank": 128},
    "dream": {"segment": "answer", "beta": 1.0, "epochs": 3, "schedule": "cosine", "warmup": 0.05, "rank": 32},
}


@dataclass(frozen=True)
class Tuning:
    """What learns of a model. tune: lora or full. rank, alpha: of an adapter; its scale is alpha over rank. seed: of an
    adapter's first weights."""

    model: str
    tune: str | None
    rank: int | None
    alpha: float | None
    seed: int


@dataclass(frozen=True)
class Recipe:
    """null: what the released code does for the model's layout.

    model: a name, folder or hub id, the teacher and the student's first weights. data: a JSON-lines file, or ``mini``.
    count: prompts per task of ``mini``. held_out: prompts kept for the measurement (of ``mini``: per task). chat: apply
    the chat template to prompts (null: if there is one). gen_length: masks after a prompt. length: tokens of a
    sequence, cut or filled with end-of-text tokens (null: prompt and gen_length). teacher: static (one token a forward)
    or confidence (all above teacher_threshold). decode_rows: decoded at once. segment: block or answer. beta, certain:
    see ``loss``. tune: lora or full (null: by size). batch: sequences a step; micro: of them at once. epochs; steps
    (null: of all epochs). threshold: of the measurement, in nats.
    """

    model: str = "mini-llada"
    data: str = ""
    count: int = 200
    held_out: int = 100
    chat: bool | None = None
    gen_length: int = 256
    length: int | None = None
    block_length: int = 32
    teacher: str = "static"
    teacher_threshold: float = 0.95
    decode_rows: int = 8
    segment: str | None = None
    beta: float | None = None
    certain: str = "right"
    tune: str | None = None
    rank: int | None = None
    alpha: float | None = None
    dtype: str = "float32"
    batch: int = 64
    micro: int = 1
    epochs: int | None = None
    steps: int | None = None
    learning_rate: float = 2e-5
    schedule: str | None = None
    warmup: float | None = None
    weight_decay: float = 0.01
    threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UserError for a value that no run can have."""
        for name in (
            "count",
            "gen_length",
            "length",
            "block_length",
            "decode_rows",
            "rank",
            "batch",
            "micro",
            "epochs",
            "steps",
        ):
            in_range(name, getattr(self, name), 1)
        for name in ("held_out", "beta", "alpha", "learning_rate", "weight_decay", "threshold", "seed"):
            in_range(name, getattr(self, name), 0)
        for name in ("teacher_threshold", "warmup"):
            in_range(name, getattr(self, name), 0, 1)
        for name, known in CHOICES.items():
            if getattr(self, name) is not None:
                in_choices(name, getattr(self, name), known)
        if not self.data:
            raise UserError("data= is missing: give a JSON-lines file of prompts, or data=mini for the demo suite.")
        if self.batch % self.micro:
            raise UserError(f"batch={self.batch} must be a multiple of micro={self.micro}.")

    @property
    def tuning(self) -> Tuning:
        return Tuning(self.model, self.tune, self.rank, self.alpha, self.seed)

    def resolved(self, config: ModelConfig, parameters: int) -> Recipe:
        """Without nulls that the layout or the size decides. Raises UserError for a model of another layout, and for
        full training in few bits."""
        if config.family not in RELEASED:
            raise UserError(
                f"model={self.model!r} is of the family {config.family}, and distillation is for the layouts of "
                f"{' and '.join(RELEASED)}, whose tokens see the whole canvas. Choose such a model."
            )
        usual = {**RELEASED[config.family], "tune": usual_tune(parameters)}
        found = replace(self, **{key: value for key, value in usual.items() if getattr(self, key) is None})
        found = replace(found, alpha=found.rank if found.alpha is None else found.alpha)
        refuse_rounding(found.tune, found.dtype, found.learning_rate)
        return found


def usual_tune(parameters: int) -> str:
    """What learns of a model of this size, unless it is said."""
    return "full" if parameters <= SMALL else "lora"


def refuse_rounding(tune: str | None, dtype: str, rate: float) -> None:
    """Raise UserError for full training in few bits."""
    if tune == "full" and dtype != "float32":
        raise UserError(
            f"tune=full with dtype={dtype} would round away steps of {rate:g}. Use dtype=float32, or tune=lora, whose "
            "own weights are float32."
        )


CHOICES = {
    "teacher": ("static", "confidence"),
    "segment": ("block", "answer"),
    "certain": ("right", "all"),
    "tune": ("lora", "full"),
    "schedule": ("constant", "cosine"),
    "dtype": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class Place:
    """Where and how a run runs, which does not change what it learns. out: the run's folder. device: cpu or cuda; under
    ``accelerate launch`` each process takes its own GPU. threads: of a CPU. save_every: steps between states. stop_at:
    end training at this step (0: at its end); the same command goes on later."""

    out: str = "runs/distilled"
    device: str = "cpu"
    threads: int = 1
    save_every: int = 50
    stop_at: int = 0

    def __post_init__(self) -> None:
        in_choices("device", self.device, ("cpu", "cuda"))
        for name, least in (("threads", 1), ("save_every", 1), ("stop_at", 0)):
            in_range(name, getattr(self, name), least)


# Named ones: ``recipe=NAME``, with options after it that change it.
RECIPES: dict[str, dict[str, Any]] = {
    # On a core of its own: 0.07 s for each short answer of the teacher and 0.7 s for each long one at most (untrained
    # models, whose answers never end), and 0.31 s a step; eight sequences at once, by length, take 0.6 of the time of
    # 32. That is 12 minutes, and 5 more for each student that has the teacher's answers. Six epochs, as released: 14
    # gave the same forwards and scores, to a point.
    "mini-llada-distilled": {
        "model": "mini-llada",
        "data": "mini",
        "count": 240,
        "held_out": 20,
        "block_length": 32,
        "decode_rows": 32,
        "tune": "full",
        "batch": 32,
        "micro": 8,
        "learning_rate": 1e-4,
        "schedule": "cosine",
        "warmup": 0.05,
    }
}


def parse(arguments: Sequence[str]) -> tuple[Recipe, Place]:
    """Raises UserError for what is not an option, or no value of its kind."""
    kinds = {entry.name: str(entry.type) for kind in (Recipe, Place) for entry in fields(kind)}
    given: dict[str, Any] = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if name == "recipe" and value:
            in_choices("recipe", value, RECIPES)
            given = {**RECIPES[value], "out": f"runs/{value}", **given}
        elif name in kinds and value:
            given[name] = coerce(name, read(value, kinds[name]), kinds[name])
        else:
            raise UserError(
                f"{argument!r} is not an option; write NAME=VALUE with one of recipe, {', '.join(kinds)}."
                f"{nearest(name, kinds)}"
            )
    return Recipe(**only(given, Recipe)), Place(**only(given, Place))


def only(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """What a dataclass has fields for."""
    return {entry.name: given[entry.name] for entry in fields(kind) if entry.name in given}


def read(text: str, kind: str) -> Any:
    """A value as its kind has it: null, true, false, a number, or the text itself."""
    words = words_of(kind)
    if "None" in words and text in ("null", "None"):
        return None
    if "bool" in words and text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        if number.__name__ in words:
            try:
                return number(text)
            except ValueError:
                continue
    return text
