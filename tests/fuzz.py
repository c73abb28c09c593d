"""Random command lines: choices of every group, and everything people and scripts get wrong about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

from omegaconf import OmegaConf

from dllm.parts import choices, composed, groups

TOPS = ("sampler", "blocks", "cache", "eos")  # what most command lines choose
# Not decoded here: minutes of compiling, questions from the network, a cluster of processes.
SLOW = {"runtime": ("compile",), "engine": ("ray", "accelerate"), "kernels": ("triton",)}
NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "0.9", "1.0", "1.5", "-0.1", "1e-9", "1e400", "nan", "-inf", "257", "100000")
WORDS = ("null", "true", "false", "high", "all", "block", "''", "0x10", "1_000", "None", "None,", "a b", "é", "\U0001f642", "${seed}",
         "${nope}", "${oc.env:NOPE}", "${oc.env:HOME}", "???", "../../x", "/", "~", "*")  # fmt: skip
SHAPES = ("[]", "[1]", "[1,2]", "[0.5,a]", "[[1]]", "[null]", "[8,8]", "{}", "{a: 1}", "{_target_: os.system}", "[1,", "{a", "'", '"a"',
          "'a", "a=b", "(1)", "x,y", "1,2", "choice(1,2)", "range(3)", "glob(*)", "int(3.5)", "str(1)", "\\", "#", "$(ls)", "a;b")  # fmt: skip
STRAYS = ("static", "=", "", "=x", "sampler", "--", "-x", "--nope", "--cfg", "~", "+", "++", "a..b=1", ".a=1", "a.=1", "1=2",
          "a b=c", "@=1", "sampler@=x", "sampler@x.y=static", "sampler:x=y", "[a]=1", "'a'=b", "-m=1", "\n", "é=é")  # fmt: skip
HYDRA = ("hydra=x", "hydra.run.dir=elsewhere", "hydra.run.dir=null", "hydra.sweep.dir=elsewhere", "hydra.mode=MULTIRUN", "hydra.mode=x",
         "hydra.job.chdir=true", "hydra.verbose=true", "hydra/launcher=nope", "hydra/launcher=basic", "hydra/sweeper=null",
         "hydra.launcher=5", "+hydra.launcher.x=1", "~hydra", "~hydra.run", "hydra.output_subdir=x", "hydra.searchpath=5", "hydra.searchpath=[nowhere]",
         "hydra.sweeper.params=3", "hydra.job_logging=null", "hydra/job_logging=default", "hydra.nope=1", "hydra.callbacks=5")  # fmt: skip
TASKS = (["task=check"], ["task=replay"], ["task=replay", "trace=q.jsonl"], ["task=jsonl", "task.path=q.jsonl"], ["task=jsonl"],
         ["task=parallelbench", "task.tasks=copy", "task.count=1"], ["chat=true"], ["prompts=p.jsonl"], ["compare=true"],
         ["trace=true"], ["samples=2", "batch_size=2"], ["resume=nowhere"], ["live=true"])  # fmt: skip


@cache
def keys(group: str, choice: str) -> list[str]:
    """Dotted names of the options of a choice."""
    config = composed([f"{group}={choice}"])
    return [name for name, _ in flat(OmegaConf.to_container(config[group]), group + ".")]


@cache
def settings() -> list[str]:
    """Dotted names of what belongs to no choice."""
    config: Any = OmegaConf.to_container(composed([]), resolve=False)
    return [name for name, _ in flat(config, "") if name.split(".")[0] not in groups() or name.startswith("model.")]


def flat(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        yield f"{prefix}{key}", value


def command(rng: Random, model: str) -> list[str]:
    """A command line: a sound one, with up to three random changes."""
    chosen = {group: rng.choice(choices(group)) for group in rng.sample(TOPS, rng.choice((0, 1, 1, 2, 4)))}
    line = [f"{group}={choice}" for group, choice in chosen.items()]
    line += [f"model.path={model}", "output=runs", "gen_length=8", *rng.choice((["prompt=w1"], ["prompt=w1"], rng.choice(TASKS)))]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        line += rng.choice(CHANGES)(rng, chosen)
    if rng.random() < 0.15:
        line += ["-m", *rng.choice(SWEEPS)]
    rng.shuffle(line)
    return [word for word in line if not slow(word)]


def slow(word: str) -> bool:
    key, _, value = word.lstrip("+").partition("=")
    return any(name in value for name in SLOW.get(key, ()))


def value(rng: Random) -> str:
    return rng.choice(rng.choice((NUMBERS, NUMBERS, WORDS, SHAPES)))


def option(rng: Random, chosen: dict[str, str]) -> str:
    """A name that can be set here."""
    group = rng.choice([*chosen, None])
    return rng.choice(keys(group, chosen[group]) if group and keys(group, chosen[group]) else settings())


def misspelt(rng: Random, name: str) -> str:
    at = rng.randrange(len(name))
    return name[:at] + rng.choice(("", "x", ".", "/", "_")) + name[at + 1 :]


CHANGES: tuple[Callable[[Random, dict[str, str]], list[str]], ...] = (
    lambda rng, chosen: [f"{option(rng, chosen)}={value(rng)}"],
    lambda rng, chosen: [f"{option(rng, chosen)}={value(rng)}"],
    lambda rng, chosen: [f"{option(rng, chosen)}={value(rng)}"],
    lambda rng, chosen: [f"{rng.choice(groups())}={value(rng)}"],
    lambda rng, chosen: [f"{rng.choice(groups())}=null"],
    lambda rng, chosen: [f"sampler={rng.choice(('credit', 'freedave', 'prophet', 'static'))}", f"sampler/inner={rng.choice(choices('sampler/inner'))}"],
    lambda rng, chosen: [f"sampler/inner@sampler.inner.inner={rng.choice(choices('sampler/inner'))}", "sampler=prophet"],
    lambda rng, chosen: [f"~{rng.choice((option(rng, chosen), rng.choice(groups())))}" + rng.choice(("", "=1"))],
    lambda rng, chosen: [f"{rng.choice(('+', '++'))}{rng.choice((option(rng, chosen), rng.choice(groups()), 'foo', 'sampler.foo', 'a.b'))}={value(rng)}"],
    lambda rng, chosen: [f"{misspelt(rng, option(rng, chosen))}={value(rng)}"],
    lambda rng, chosen: [f"{rng.choice(('sampler', 'cache', 'task'))}._target_={rng.choice(('nope', 'os.system', 'dllm.cache.none.NoCache', 'null', '5'))}"],
    lambda rng, chosen: [rng.choice(STRAYS)],
    lambda rng, chosen: [rng.choice(HYDRA)],
    lambda rng, chosen: [rng.choice(("name", "output", "resume", "prompts", "trace", "stop", "prompt")) + "=" + value(rng)],
    lambda rng, chosen: [f"experiment={rng.choice(choices('experiment'))}"],
    lambda rng, chosen: [f"grids={rng.choice(('5', '[5]', 'null', '{}', '[{}]', '[{a: b}]', '[{sampler: [static, eb]}]', '[{1: 2}]'))}"],
)  # fmt: skip
SWEEPS = (["sampler=static,eb"], ["sampler=static,nope"], ["sampler.threshold=0.5,high"], ["cache=null,none"], ["gen_length=4,8"],
          ["seed=range(2)"], ["task=jsonl", "task.path=q.jsonl", "sampler=static,eb"], ["eos=glob(*)"], [])  # fmt: skip
