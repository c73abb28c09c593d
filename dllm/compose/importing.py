"""The class that ``MODULE.CLASS`` names, and in one sentence why it cannot be had: a user's file may hold anything."""

from __future__ import annotations

import inspect
import traceback
from importlib import import_module
from pathlib import Path

from dllm.errors import UserError, first_line, nearest

MOVED = {  # modules of earlier states of this project, which parts in somebody's own files may still import
    **{f"dllm.{old}": f"dllm.contract.{new}" for old, new in (
        ("canvas", "canvas"), ("shapes", "shapes"), ("attending", "attention_weights"), ("beside", "beside"),
        ("logits", "logits"), ("setting", "setting"), ("traits", "traits"), ("kept", "checks"),
    )},
    **{f"dllm.{old}": f"dllm.loop.{new}" for old, new in (
        ("denoise", "denoise"), ("forward", "forward"), ("rows", "rows"), ("proposing", "proposals"),
        ("probing", "probe"), ("recorded", "recorded"), ("runner", "runner"), ("pace", "pace"),
    )},
    **{f"dllm.{old}": f"dllm.{new}" for old, new in (
        ("tasks.shapes", "tasks.answer_formats"),
        ("constraints.languages.schema.arrays", "constraints.languages.schema.array_trees"),
        ("tasks.parallelbench.vocabulary", "mini.word_lists"),
        ("tasks.parallelbench.word_lists", "mini.word_lists"), ("serve.metrics", "serve.prometheus"),
        ("app.lm_eval.requests", "app.lm_eval.instances"), ("constraints.refusals", "constraints.unsatisfiable"),
        ("contract.attention", "contract.attention_weights"),
        ("constraints.languages.words", "constraints.languages.terminals"),
        ("tasks.mini.words", "mini.lexicon"), ("tasks.mini.lexicon", "mini.lexicon"),
        ("tasks.mini.wordings", "mini.wordings"), ("tasks.mini.outside", "mini.outside"),
        ("cache.rows", "cache.columns"),
        ("constraints.rows", "constraints.row_sets"), ("tasks.standard.rows", "tasks.standard.json_lines"),
        ("analysis.limits", "analysis.bounds"), ("serve.formats", "serve.response_formats"),
        ("common.kinds", "common.coerce"), ("decisions.files", "decisions.question_files"),
        ("decisions.decide", "decisions.protocol"), ("app.runs.places", "app.runs.destinations"),
        ("constraints.languages.ecma.places", "constraints.languages.ecma.boundaries"),
        ("tasks.mini.tables", "tasks.mini.records"),
        ("constraints.languages.compiled", "constraints.languages.automaton_of"),
        ("runtime.compiled", "runtime.compiled_layers"), ("app.lm_eval.settings", "app.lm_eval.configuration"),
        ("record.settings", "record.decode_config"), ("view.table", "view.summary"),
        ("kernels.choose", "kernels.dispatch"), ("serve.choose", "serve.request_parts"),
        ("serve.keys", "serve.api_keys"), ("constrained.fits", "constrained.reproposals"),
        ("runtime.fits", "runtime.out_of_memory"), ("models.order", "models.visibility"),
        ("common.whole", "common.atomic_write"), ("serve.reading", "serve.body_reader"),
        ("constraints.languages.grammar", "constraints.languages.lark_grammar"),
        ("models.stream", "models.packed_calls"), ("record.stream", "record.live_answer"),
    )},
    "dllm.constraints.exchanged": "dllm.contract.constrained",
    "dllm.steering": "dllm.constrained",
    "dllm.blocks.list": "dllm.blocks.lengths", "dllm.cache.flash": "dllm.cache.flash_dllm",
    "dllm.eos.keep": "dllm.eos.none", "dllm.eos.cut_open": "dllm.eos.stop_at_eos",
    "dllm.eos.cut_last": "dllm.eos.stop_at_last_eos", "dllm.eos.cut_canvas": "dllm.eos.truncate_at_eos",
    "dllm.constrained.steered": "dllm.constrained.row",
}  # fmt: skip


def imported_class(name: str, target: str, base: type) -> type:
    """The class of a setting ``name``. Raises UserError, which names the file and the line to be mended, or the classes
    derived from ``base`` that the module has."""
    module_name, _, last = target.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever importing somebody's module raises
        raise UserError(f"{name}={target!r} {_unimported(module_name, error)}") from error
    kind = getattr(module, last, None)
    if not isinstance(kind, type):
        own = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, base)
               and value.__module__ == module.__name__]  # fmt: skip
        there = f": {module_name} has {', '.join(own)}" if own else ""
        what = "is no class" if hasattr(module, last) else "names no class"
        raise UserError(f"{name}={target!r} {what}{there}.{nearest(last, own)} Write MODULE.CLASS.")
    return kind


def place_of_error(error: BaseException) -> str:
    """The file and line of somebody's code that an error comes from, or nothing where it is Python's own."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.parent.name != "importlib" and not frame.filename.startswith("<"):
            return "" if file.parent == Path(__file__).parent else f"{file}, line {frame.lineno}"
    return ""


def _unimported(module: str, error: Exception) -> str:
    """Why a module cannot be imported, and what to do."""
    if isinstance(error, SyntaxError):
        text = f" in {error.text.strip()!r}" if error.text else ""
        return f"cannot be imported: {error.filename}, line {error.lineno}: {error.msg}{text}. Mend that line."
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing in MOVED:
        where = place_of_error(error)
        return f"cannot be imported{': ' * bool(where)}{where}: {missing} is now {MOVED[missing]}. Mend that line."
    if missing is not None and (module == missing or module.startswith(f"{missing}.")):
        rule = "Write MODULE.CLASS, with the module's folder in PYTHONPATH"
        return f"names no class: there is no module {missing}. {rule}."
    if not module or isinstance(error, ValueError | TypeError) and not place_of_error(error):
        return "must be MODULE.CLASS."
    where = place_of_error(error) or module
    return f"cannot be imported: {where}: {type(error).__name__}: {first_line(error)}. Mend that line."
