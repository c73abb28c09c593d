"""``chat=true``: a conversation that keeps its history."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext

from rich.console import Console

from dllm.app.runs.folder import RunFolder
from dllm.app.runs.plan import RunPlan
from dllm.app.runs.samples import warn_of_prompts
from dllm.common.coerce import unwritable
from dllm.common.errors import UserError
from dllm.common.links import from_first
from dllm.common.terminal import as_text, complain, complain_folded, say
from dllm.decoder import Decoder
from dllm.prompts import Message
from dllm.record.environment import environment_of
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch
from dllm.view.live import LiveView
from dllm.view.page import setting_facts

HELP = "Type a message. /reset starts over, /settings shows what decodes, /exit or Ctrl-D leaves."
EMPTY_ANSWER = "(the answer is empty)"


def chat(plan: RunPlan) -> None:
    """Talk until /exit or the end of the input, which may be piped. Raises UserError when the model cannot chat."""
    tokenizer, options = plan.prompts.tokenizer, plan.options
    if tokenizer is None or not tokenizer.has_chat_template:
        raise UserError(f"chat=true needs a chat template; model {plan.prompts.name} has none. Use prompt=TEXT.")
    if options.resume is not None:
        raise UserError("chat=true cannot resume a run: the conversation is gone. Drop resume.")
    plan.refuse_folder()
    model = plan.load()
    console = Console()
    with plan.open_folder(()) as run_folder:
        run_folder.stamp(environment_of(model.transformer, options.seed))
        talk(Conversation(plan, plan.decoder(model), console, run_folder))
        console.print(as_text(f"Run folder: {run_folder.path}", "dim"))


def talk(conversation: Conversation) -> None:
    """Hand every message to the conversation; Ctrl-C stops an answer, not the conversation."""
    for line in typed_lines(conversation.plan.options.prompt):
        if line == "/exit":
            return
        if line.startswith("/"):
            conversation.command(line)
            continue
        if unwritable(line) is not None:  # how Python shows what it cannot decode
            complain("Your message holds bytes that are not UTF-8. Write it in that encoding.")
            continue
        try:
            conversation.say(line)
        except UserError as error:
            complain_folded(f"{error} /reset starts over.")
        except KeyboardInterrupt:
            complain("\nStopped. Your last message is forgotten; /exit leaves.")


def typed_lines(first: str | None) -> Iterator[str]:
    """What the user types, without empty lines."""
    there = sys.stdin.isatty()
    if there:
        complain_folded(HELP)
    if first is not None:
        yield first
    while (line := from_first(lambda: typed_line(there))) is not None:
        if line:
            yield line


def typed_line(there: bool) -> str | None:
    """The next line; None: there is no more. there: somebody types it."""
    try:
        return (input("> ") if there else input()).strip()
    except (EOFError, KeyboardInterrupt):
        if there:
            say()
        return None


class Conversation:
    """The history so far, and how to go on with it."""

    def __init__(self, plan: RunPlan, decoder: Decoder, console: Console, run_folder: RunFolder) -> None:
        self.plan, self.decoder, self.console, self.run_folder = plan, decoder, console, run_folder
        self.history: list[Message] = []

    def command(self, command: str) -> None:
        """A line that begins with a slash, which no model is sent."""
        if command in ("/reset", "/new"):
            self.history.clear()
            complain("A new conversation.")
        elif command == "/settings":
            facts = {**setting_facts(self.plan.config), "gen_length": str(self.plan.options.gen_length)}
            complain("\n".join(f"{name}: {value}" for name, value in facts.items()))
        else:
            complain_folded(HELP if command == "/help" else f"{command} is not a command. {HELP}")

    def say(self, message: str) -> None:
        """Answer one message. The history grows when the answer is complete, and holds no end-of-text tokens."""
        messages: list[Message] = [*self.history, {"role": "user", "content": message}]
        warn_of_prompts(self.decoder.model, [message])
        number = len(self.run_folder.rows)
        request = self.decoder.request(messages, self.plan.options.seed + number)
        options, decoder = self.plan.options, self.decoder
        is_live = self.console.is_terminal if options.live is None else options.live
        watch = Stopwatch.on(decoder.model.transformer.device)
        view = LiveView(self.console, decoder.prompts.text, decoder.model.ids, options.animate, True, watch)
        with view if is_live else nullcontext():
            ((_, result),) = self.decoder.run([request], observe=view if is_live else None, watch=watch)
        say(result.text)
        if not result.text.strip():
            complain(EMPTY_ANSWER)
        if is_live:
            self.console.print(as_text(cost_line(result), "dim"))
        self.history = [*messages, {"role": "assistant", "content": result.text}]
        batch = f"{number + 1}/0"
        row = {"id": f"{number + 1}", "sample": 0, **result.to_json(), "prompt": message, "batch": batch}
        try:
            self.run_folder.write(row)
        except UserError as error:  # the disk's; the answer is there
            complain(f"{error} The conversation goes on, and this answer is not kept.")


def cost_line(result: Result) -> str:
    speed = f"{result.tokens_per_second:.0f} tokens/s"
    cost = f"{count_text(result.useful_tokens, 'token')}, {count_text(result.nfe, 'forward')}"
    return f"{cost}, {result.tpf:.2f} per forward, {speed}"


def count_text(number: int, noun: str) -> str:
    """The number with its noun: ``1 forward``, ``2 forwards``."""
    return f"{number} {noun}{'s' * (number != 1)}"
