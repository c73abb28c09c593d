"""``task=parallelbench``: 17 tasks whose tokens depend on each other (ParallelBench, arXiv 2510.04767)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from dllm.common.digest import json_digest
from dllm.common.errors import UserError, nearest
from dllm.common.installing import not_installed
from dllm.tasks.base import AnswerScores, Item, Task
from dllm.tasks.mini import suite as mini
from dllm.tasks.parallelbench import text_metrics
from dllm.tasks.parallelbench.catalog import SUITES
from dllm.tasks.parallelbench.classic import classic_questions
from dllm.tasks.parallelbench.grammar import GrammarChecker
from dllm.tasks.parallelbench.metrics import Judges, metric_scores
from dllm.tasks.parallelbench.text_metrics import BERTScore

MINI = "mini"
NEEDS_GRAMMAR = ("sentence_to_words_score", "sentence_to_words_grammar", "summary_score", "paraphrase_score")


class ParallelBench(Task):
    """suite: ``r1`` (the paper's), ``r2`` (its rewrite) or ``mini`` (for the models that come along); never mixed.

    tasks: ``all`` (the 17), or names, short names and groups. count: questions of each task (None: all there are).
    seed: of the generated questions; 42 is the benchmark's. path: your copy of the benchmark, a folder or a hub id;
    None: generated here. grammar: a LanguageTool server's URL, a LanguageTool folder, or ``download``. bertscore: a
    model, such as ``roberta-large``. Without these two the scores that need them are None. Raises UserError.
    """

    name = "parallelbench"

    def __init__(
        self,
        suite: str = "r1",
        tasks: str | list[str] = "all",
        count: int | None = None,
        seed: int = 42,
        path: str | None = None,
        grammar: str | None = None,
        bertscore: str | None = None,
    ) -> None:
        suites = [*SUITES, MINI]
        if suite not in suites:
            hint = nearest(str(suite), suites)
            raise UserError(f"task.suite={suite!r} is unknown; choose one of {', '.join(suites)}.{hint}")
        if count is not None and (type(count) is not int or count < 1):
            raise UserError(f"task.count={count!r} must be a whole number of at least 1, or null for all there are.")
        if not isinstance(tasks, str | list):
            raise UserError(f"task.tasks={tasks!r} must be all, a name or a list of names.")
        if suite == MINI and path is not None:
            raise UserError(f"task.path={path!r} holds no questions of suite=mini. Set task.suite=r1 or r2.")
        self.suite, self.path, self.seed = suite, path, seed
        names = task_names(suite, tasks)
        questions = mini.questions(names, count, seed) if suite == MINI else None
        self.questions = questions or classic_questions(suite, names, count, seed, path)
        self._refuse_unused("grammar", grammar, *NEEDS_GRAMMAR)
        self._refuse_unused("bertscore", bertscore, "paraphrase_score")
        self.grammar = None if grammar is None else GrammarChecker(grammar)
        self.bertscore = None if bertscore is None else BERTScore(bertscore)
        self.judges = Judges(self.grammar, self.bertscore)

    def _needs(self, *metrics: str) -> bool:
        return any(item.truth.get("metric") in metrics for item in self.questions.items)

    def _refuse_unused(self, judge: str, setting: str | None, *metrics: str) -> None:
        if setting is not None and not self._needs(*metrics):
            raise UserError(f"task.{judge}={setting!r} judges none of the tasks chosen. Set task.{judge}=null.")

    def items(self) -> Sequence[Item]:
        return self.questions.items

    def score(self, item: Item, text: str) -> AnswerScores:
        if self.suite == MINI:
            return mini.mini_scores(item, text)
        return metric_scores(item.truth["metric"], text, item.truth["answer"], self.judges)

    def missing(self) -> dict[str, str]:
        """Tasks without questions and metrics without a judge, each with a sentence that says why."""
        out = dict(self.questions.missing)
        if self._needs(*NEEDS_GRAMMAR) and self.grammar is None:
            out["grammar_score"] = (
                "Grammar is not judged, and the scores that depend on it are missing: give a LanguageTool server or "
                "folder as task.grammar=URL."
            )
        if self._needs("paraphrase_score") and self.bertscore is None:
            out["bertscore_score"] = "BERTScore is missing: set task.bertscore=roberta-large, or its folder."
        if self._needs("paraphrase_score") and not text_metrics.has_bleu():
            out["inv_bleu_score"] = str(not_installed("BLEU", "sacrebleu", "text"))
        if self._needs("summary_score") and not text_metrics.has_rouge():
            out["rougeL_score"] = str(not_installed("ROUGE", "rouge-score", "text"))
        return out

    def stamp(self) -> dict[str, str]:
        return self._stamp

    @cached_property
    def _stamp(self) -> dict[str, str]:
        contents = [[item.id, item.prompt, item.truth] for item in self.questions.items]
        wording = self.questions.wording
        return {
            "suite": self.suite,
            "source": "generated" if self.path is None else "copy",
            "template": json_digest(wording),
            "data": json_digest(contents),
            "grammar": "none" if self.grammar is None else self.grammar.version,
            "bertscore": "none" if self.bertscore is None else self.bertscore.name,
        }


def task_names(suite: str, tasks: str | list[str]) -> list[str]:
    """Full names in the suite's order. Raises UserError, with the nearest name, for one that does not exist."""
    specs = {} if suite == MINI else SUITES[suite]
    all_names = list(specs) or list(mini.SUITE_NAMES)
    if tasks == "all":
        return [name for name in all_names if not (specs and specs[name].extra)]
    names: set[str] = set()
    for name in [tasks] if isinstance(tasks, str) else tasks:
        names |= _matches(name, all_names)
    if not names:
        raise UserError("task.tasks=[] asks for nothing. Name tasks, or write task.tasks=all.")
    return [name for name in all_names if name in names]


def _matches(name: str, names: list[str]) -> set[str]:
    """A full name, every task of a group, or a short name, whose first owner is meant."""
    if name in names:
        return {name}
    group = {full for full in names if full.partition("/")[0] == name}
    short = [full for full in names if full.rpartition("/")[2] == name]
    if group or short:
        return group or {short[0]}
    parts = dict.fromkeys(part for full in names for part in (full, full.partition("/")[0], full.rpartition("/")[2]))
    hint = nearest(str(name), parts)
    raise UserError(f"task.tasks={name!r} is unknown; known are {', '.join(names[:17])}.{hint}")
