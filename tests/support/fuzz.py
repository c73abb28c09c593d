"""Random command lines: choices of every group, and everything people and scripts get wrong about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import yaml
from omegaconf import OmegaConf

from dllm.parts import INSTEAD, SETTINGS, choices, composed, config_groups

TOPS = ("sampler", "blocks", "cache", "eos")  # what most command lines choose
# Left out: minutes of compiling, a cluster of processes, kernels in an interpreter, and numbers that only take long.
LONG = (
    "runtime=compile",
    "engine=ray",
    "engine=accelerate",
    "kernels=triton",
    "samples=100000",
    "draft_steps=100000",
    "min_forwards=100000",
)
NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "0.9", "1.0", "1.5", "-0.1", "1e-9", "1e400", "nan", "-inf", "100000")
WORDS = ("null", "true", "false", "high", "all", "block", "''", "0x10", "1_000", "None", "None,", "a b", "é",
         "\U0001f642", "${seed}", "${nope}", "${oc.env:NOPE}", "???", "../../x", "/", "~", "*")  # fmt: skip
SHAPES = ("[]", "[1]", "[1,2]", "[0.5,a]", "[[1]]", "[null]", "{}", "{a: 1}", "{_target_: os.system}", "[1,", "{a",
          "'", '"a"', "'a", "a=b", "(1)", "x,y", "1,2", "choice(1,2)", "range(3)", "interval(0,1)", "glob(*)",
          "int(3.5)", "\\", "#", "$(ls)", "a;b", "[" * 99)  # fmt: skip
STRAYS = ("static", "=", "", "=x", "sampler", "--", "-x", "--nope", "--cfg", "--multi", "~", "+", "++", "a..b=1",
          ".a=1", "a.=1", "1=2", "a b=c", "@=1", "sampler@=x", "sampler@x.y=static", "[a]=1", "-m=1", "\n", "é=é", "-1",
          "--help", "--version", "--resolve", "--shell-completion")  # fmt: skip
HYDRA = ("hydra=x", "hydra.run.dir=elsewhere", "hydra.run.dir=null", "hydra.sweep.dir=elsewhere", "hydra.mode=MULTIRUN",
         "hydra.job.chdir=true", "hydra.verbose=true", "hydra/launcher=nope", "hydra/launcher=basic",
         "hydra/sweeper=null", "hydra.launcher=5", "+hydra.launcher.x=1", "~hydra", "~hydra.run", "hydra.nope=1",
         "hydra.output_subdir=x", "hydra.searchpath=5", "hydra.callbacks=5", "hydra/job_logging=default")  # fmt: skip
TASKS = (["task=check"], ["task=replay"], ["task=replay", "trace=q.jsonl"], ["task=jsonl", "task.path=q.jsonl"],
         ["task=jsonl"], ["task=parallelbench", "task.tasks=copy", "task.count=1"], ["chat=true"],
         ["prompts=p.jsonl"], ["compare=true"], ["trace=true"], ["samples=2", "batch_size=2"], ["resume=nowhere"],
         ["live=true"])  # fmt: skip
GRIDS = ("5", "[5]", "null", "{}", "[{}]", "[]", "[{a: b}]", "[{sampler: [static, eb]}]", "[{1: 2}]")
SWEEPS = (
    ["sampler=static,eb"],
    ["sampler=static,nope"],
    ["sampler.threshold=0.5,high"],
    ["cache=null,none"],
    ["gen_length=4,8"],
    ["seed=range(2)"],
    ["eos=glob(f*)"],
    ["grids=[{sampler: [static, eb]}]"],
    [],
)
BROUGHT = (*SETTINGS, *INSTEAD)  # words of other programs
BARE = ("Sort the list: b, a", "What is x=3?", "chat", "run", "mini-llada", "EB", "q.jsonl", "p.jsonl", "a\nb", "it's")
MODELS = ("LLaDA-8B-Instruct", "GSAI-ML/LLaDA-8B-Instruct", "Mini-LLaDA", "./here", "nowhere/model", "llada", "/")
UNCLOSED = ("grids=[{sampler: eb, gen_length: 4]", "stop=[a", "sampler.threshold={a: [1}", "sampler=[eb", "seed=1]")
TARGETS = (
    "nope",
    "nope.Nope",
    "dllm.parts.samplers.eb.EBB",
    "dllm.parts.samplers",
    "dllm.parts.samplers.nope.A",
    "a..b",
    "os.system",
    "dllm.parts.cache.none.NoCache",
    "null",
    "5",
)
TEXTS = ("name", "output", "resume", "prompts", "trace", "stop", "prompt", "model.path", "model.device")
TRUST = ("task.packages=[evilmod]", "task.packages=", "task.packages=[", "+task.packages=a", "task.packages={a: 1}",
         "task.run=os.system", "task.run=evilmod.run", "task.run=null", "+task._target_=evilmod.Mine", "resume=p.jsonl",
         "resume=theirs", "--config-dir=theirs", "--config-dir=nowhere", "-cd", "sampler=theirs")  # fmt: skip
INNER = ("sampler/inner", "sampler/inner@sampler.inner.inner")


def command(rng: Random, model: str) -> list[str]:
    """A command line: a sound one, with up to three random changes."""
    chosen = {group: rng.choice(plain(group)) for group in rng.sample(TOPS, rng.choice((0, 1, 1, 2, 4)))}
    task = rng.choice((["prompt=w1"], ["prompt=w1"], rng.choice(TASKS)))
    line = [*(f"{group}={name}" for group, name in chosen.items()), f"model.path={model}", "output=runs", *task]
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        line.append(rng.choice(CHANGES)(rng, chosen))
    if rng.random() < 0.1:
        task = rng.choice((["task=jsonl", "task.path=q.jsonl"], []))
        line = [word for word in line if not word.startswith("experiment")] + ["-m", *task, *rng.choice(SWEEPS)]
    rng.shuffle(line)
    return ["gen_length=8", *(word for word in line if not word.endswith(LONG))]


def plain(group: str) -> list[str]:
    """Its choices, without published settings, whose questions come from the hub."""
    return [name for name in choices(group) if "/" not in name]


def value(rng: Random) -> str:
    return rng.choice(rng.choice((NUMBERS, NUMBERS, WORDS, SHAPES)))


def option(rng: Random, chosen: dict[str, str]) -> str:
    """A name that can be set here."""
    names = [name for group, choice in chosen.items() for name in keys(group, choice)]
    return rng.choice(names if names and rng.random() < 0.6 else settings())


def key(rng: Random, chosen: dict[str, str]) -> str:
    return rng.choice((option(rng, chosen), rng.choice(config_groups()), "foo", "sampler.foo", "a.b"))


def misspelt(rng: Random, name: str) -> str:
    at = rng.randrange(len(name))
    return name[:at] + rng.choice(("", "x", ".", "/", "_")) + name[at + 1 :]


CHANGES: tuple[Callable[[Random, dict[str, str]], str], ...] = (
    *3 * (lambda rng, chosen: f"{option(rng, chosen)}={value(rng)}",),
    lambda rng, chosen: f"{rng.choice(config_groups())}={value(rng)}",
    lambda rng, chosen: f"{rng.choice(config_groups())}=null",
    lambda rng, chosen: f"sampler={rng.choice(('credit', 'freedave', 'prophet', 'static'))}",
    lambda rng, chosen: f"{rng.choice(INNER)}={rng.choice(choices('sampler/inner'))}",
    lambda rng, chosen: f"~{key(rng, chosen)}" + rng.choice(("", "=1")),
    lambda rng, chosen: rng.choice(("+", "++")) + f"{key(rng, chosen)}={value(rng)}",
    lambda rng, chosen: f"{misspelt(rng, option(rng, chosen))}={value(rng)}",
    lambda rng, chosen: f"{rng.choice(('sampler', 'cache', 'task'))}._target_={rng.choice(TARGETS)}",
    lambda rng, chosen: rng.choice(STRAYS),
    lambda rng, chosen: rng.choice(HYDRA),
    lambda rng, chosen: f"{rng.choice(TEXTS)}={value(rng)}",
    lambda rng, chosen: f"{rng.choice(BROUGHT)}={value(rng)}",
    lambda rng, chosen: f"--{rng.choice(BROUGHT).replace('_', '-')}{rng.choice(('', '=1'))}",
    lambda rng, chosen: f"sampler.{rng.choice(BROUGHT)}={value(rng)}",
    lambda rng, chosen: rng.choice((*BARE, *UNCLOSED)),
    lambda rng, chosen: f"model={rng.choice(MODELS)}",
    lambda rng, chosen: f"experiment={rng.choice(plain('experiment'))}",
    lambda rng, chosen: f"grids={rng.choice(GRIDS)}",
    lambda rng, chosen: rng.choice(TRUST),
)


ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 2**70, "", "x", "a.b", "${prompt}", "${oc.env:HOME}", "${nope}",
    "~", "evilmod.Mine", "os.system", "/dev/zero", [], [1], [[]], {}, {"a": 1}, "2026-11-29", "\x1b[2J", "é",
    {"_target_": "evilmod.Mine"}, [{"_target_": "evilmod.Mine"}],
    {"_target_": "pandas.read_pickle", "filepath_or_buffer": "p.pkl"},
)  # fmt: skip
BROKEN = ("[", "\t", "a: [1", "!!python/object/apply:os.system ['touch mark']", "a: &a [*a]", "---\n---\n", "\x00",
          "? [a]\n: b", "a: 1\na: 2", "{" * 3000, "- 1", "5", "# @package\nx: 1", "# @package hydra\na: 1", "<<: 1",
          "&a a: *a", "%YAML 9")  # fmt: skip


def bent(rng: Random, config: Any) -> Any:
    """Settings with an odd value, or an odd name, in one place."""
    if isinstance(config, dict) and config and rng.random() < 0.85:
        name = rng.choice(sorted(config, key=str))
        if rng.random() < 0.1:
            return {**config, misspelt(rng, str(name)) or "x": config[name]}
        return {**config, name: bent(rng, config[name])}
    return rng.choice(ODD)


def theirs(rng: Random, config: dict[str, Any], head: str = "") -> str:
    """A YAML file of somebody else: a configuration with up to four changes, or broken. head: its first line."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        changed = bent(rng, config)
        config = changed if isinstance(changed, dict) else config
    text = head + yaml.safe_dump(config, allow_unicode=True)
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(BROKEN) + text[at + rng.choice((0, 0, 5)) :]
    return text


@cache
def keys(group: str, choice: str) -> list[str]:
    """Dotted names of the options of a choice."""
    config: Any = OmegaConf.to_container(composed([f"{group}={choice}"])[group])
    return list(flat(config, f"{group}."))


@cache
def settings() -> list[str]:
    """Dotted names of what belongs to no choice."""
    config: Any = OmegaConf.to_container(composed([]), resolve=False)
    return [name for name in flat(config, "") if name.split(".")[0] not in config_groups() or name.startswith("model.")]


def flat(config: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, entry in config.items():
        if isinstance(entry, dict):
            yield from flat(entry, f"{prefix}{name}.")
        yield f"{prefix}{name}"
