"""Answers of a model behind an address that speaks OpenAI's chat interface (``model=endpoint``).

The client is OpenAI's own: it tries again where the address is busy, fails or is silent, and waits as long as a
``Retry-After`` says. Of a decode only the text, its number of tokens and its time are known: no forwards, no trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import torch

from dllm.app.runs.answers import AnswerSource, Batch, SampleAnswer, answer_shape, batches_of, prompt_text, sample_seed
from dllm.app.runs.decisions import DecisionCount
from dllm.app.runs.samples import NamedSample
from dllm.common.errors import Refusal, Undecodable, first_line
from dllm.common.installing import not_installed
from dllm.common.versions import version_of
from dllm.prompts import Message
from dllm.record.code_hash import code_hash, targets
from dllm.record.collector import first_stop
from dllm.record.environment import environment_stamp
from dllm.record.results import Result
from dllm.tasks.base import Item

if TYPE_CHECKING:
    from openai import OpenAI, OpenAIError

LET_PASS = 10  # questions without an answer, after which no more is asked
LONGEST_MODEL_NAME = 200  # characters that are kept of what an address calls its model and of why the text ended
MOST_STOPS = 4  # strings that OpenAI's interface takes; the text is cut at all of them here
ENDED = {"stop": "eos"}  # our words for ``finish_reason``, where they differ
_Question = TypeVar("_Question")
_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True)
class Fault:
    """Why a question has no answer."""

    sentence: str  # for the user
    ends: bool  # the next question would have none either


class EndpointAnswers(AnswerSource):
    """Asks each sample by itself, ``model.at_once`` at a time. Raises UserError for what no endpoint can answer."""

    width = architecture = None

    def __init__(self, config: Mapping[str, Any], items: Mapping[str, Item]) -> None:
        self.config, self.model, self.items = config, config["model"], items
        self.url, self.name = str(self.model["url"]), str(self.model["name"])
        self.key = key_from(self.model["key_env"])
        self.client = openai_client(self.model, self.key)
        for item in items.values():
            messages_of(item)  # refuses
        self.batches = batches_of(
            (
                (answer_shape(config, item), NamedSample(item.id, number, prompt_text(item)))
                for item in items.values()
                for number in range(config["samples"])
            ),
            1,
        )
        code = code_hash(list(targets(config["task"])))
        self.content = {"checkpoint": f"{self.name} behind an address", "task's code": code}
        self.draws = config["sampling"]["temperature"] > 0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # which scores between two answers

    def environment(self) -> dict[str, Any]:
        stamp = environment_stamp(self.device, torch.float32, self.config["seed"])
        unknown = {"device": urlsplit(self.url).netloc, "processor": "not known", "dtype": "not known", "gpus": []}
        return {**stamp, **unknown, "versions": {**stamp["versions"], "openai": version_of("openai")}}

    def answers(self, batches: Iterable[Batch[NamedSample]]) -> Iterator[SampleAnswer]:
        faults: list[Fault] = []
        unspoilt = takewhile(lambda _: len(faults) < LET_PASS and not any(fault.ends for fault in faults), batches)
        for outcome in at_once(self._outcome, unspoilt, self.model["at_once"]):
            if isinstance(outcome, Fault):
                faults.append(outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                yield outcome
        if faults:
            gravest = next((fault for fault in faults if fault.ends), faults[0])
            raise Undecodable("{why:value}", {"why": gravest.sentence})

    def _outcome(self, batch: Batch[NamedSample]) -> SampleAnswer | Fault | Exception:
        """An answer, or why there is none. Raises nothing: it runs in a thread."""
        from openai import OpenAIError

        try:
            return self._answer(batch)
        except OpenAIError as error:
            return self._fault(error, batch.samples[0].id)
        except Exception as error:
            return error

    def _answer(self, batch: Batch[NamedSample]) -> SampleAnswer | Fault:
        sample = batch.samples[0]
        seed = sample_seed(self.config["seed"], sample.id, sample.sample)
        raw = self.client.chat.completions.with_raw_response.create(
            model=self.name, messages=cast(Any, messages_of(self.items[sample.id])), extra_body=self._body(batch, seed)
        )
        try:
            reply = json.loads(raw.http_response.text)
            choice, count = reply["choices"][0], (reply.get("usage") or {}).get("completion_tokens")
            text, reason = choice["message"]["content"] or "", short_name(choice.get("finish_reason")) or "not known"
            text.encode()  # no half of a surrogate pair, which no file can hold
            result = Result(
                [],
                [],
                text[: first_stop(text, batch.shape.stop)],
                [],
                0,
                0,
                raw.http_response.elapsed.total_seconds(),
                ENDED.get(reason, reason),
                seed,
                [],
                device="endpoint",
                runtime="endpoint",
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Fault(self._sentence(f"question {sample.id} got no text", raw.http_response.text), ends=False)
        known = type(count) is int and 0 <= count < 2**31
        measures = {"useful_tokens": count if known else 0, "answered_by": short_name(reply.get("model"))}
        return SampleAnswer(batch, 0, {**result.to_json(), **DecisionCount().columns(0), **measures})

    def _body(self, batch: Batch[NamedSample], seed: int) -> dict[str, Any]:
        """The fields of a request beside the model and the messages."""
        sampling, (length, stop) = self.config["sampling"], batch.shape
        noise = {"seed": seed % 2**31, "top_p": sampling["top_p"]} if self.draws else {}
        usual = {"max_tokens": length, "temperature": sampling["temperature"], "stop": list(stop)[:MOST_STOPS] or None}
        return {
            key: value for key, value in {**usual, **noise, **(self.model["body"] or {})}.items() if value is not None
        }

    def _fault(self, error: OpenAIError, question: str) -> Fault:
        """What the client could not mend."""
        import openai

        from dllm.app.runs.bounded_reply import UnboundedReply

        if isinstance(error.__cause__, UnboundedReply):  # openai 2 takes it for a fault of the connection
            error = error.__cause__
        count, code = self.model["retries"] + 1, getattr(error, "status_code", None)
        tries = "1 try" if count == 1 else f"{count} tries"
        match error:
            case UnboundedReply():
                return Fault(f"{self.url}: the reply to question {question} {error}.", ends=False)
            case openai.APITimeoutError():
                words = f"nothing came in {self.model['timeout']:g} s, in {tries}. Raise model.timeout"
            case openai.APIConnectionError():
                words = f"it cannot be reached ({first_line(error.__cause__ or error)}), in {tries}. Start it"
            case openai.RateLimitError():
                wait = error.response.headers.get("retry-after")
                wait_hint = f", and asks to wait {wait} s" if wait else ""
                words = f"it takes no more requests for now (429){wait_hint}. Lower model.at_once, raise model.retries"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                words = f"it takes no request without the right key ({code}). Name its variable by model.key_env"
            case openai.NotFoundError():
                return Fault(self._sentence(f"no model.name={self.name} is there (404)", error), ends=True)
            case openai.APIStatusError() if error.status_code < 500:
                return Fault(self._sentence(f"question {question} is refused ({code})", error), ends=False)
            case _:
                return Fault(self._sentence(f"it failed ({code}), in {tries}", error), ends=True)
        return Fault(f"{self.url}: {words}.", ends=True)

    def _sentence(self, what: str, reply: object) -> str:
        """A sentence with what the address said, in which there must be no key."""
        text = str(reply) if self.key is None else str(reply).replace(self.key, "***")
        line = (text.strip().splitlines() or ["nothing"])[0]
        return f"{self.url}: {what}: {line[:200].rstrip('.')}."


def key_from(variable: str | None) -> str | None:
    """The key that a variable of the environment holds. Raises UserError where it holds none."""
    if variable is not None and not os.environ.get(variable):
        raise Refusal("{model.key_env} is not set here. Export it before, with the key of the address.", [variable])
    return None if variable is None else os.environ[variable]


def openai_client(model: Mapping[str, Any], key: str | None) -> OpenAI:
    """OpenAI's client. Without a key of ours it must not send that of its own variable to the address."""
    try:
        from openai import DefaultHttpxClient, OpenAI
    except ImportError:
        raise not_installed("{model=endpoint}", "openai", "endpoint") from None
    from dllm.app.runs.bounded_reply import PLAIN_REPLIES, BoundedReader

    return OpenAI(
        api_key=key or "none",
        base_url=model["url"],
        timeout=model["timeout"],
        max_retries=model["retries"],
        default_headers=PLAIN_REPLIES,
        http_client=DefaultHttpxClient(event_hooks={"response": [BoundedReader(model["timeout"])]}),
    )


def messages_of(item: Item) -> list[Message]:
    """A question as a conversation. Raises UserError for one that only a network can answer."""
    if item.choices:
        raise Refusal(
            f"question {item.id} is answered by the likeliest of given texts, and {{model=endpoint}} tells no "
            "likelihood. Choose a task whose answers are written, such as {task=gsm8k}."
        )
    if isinstance(item.prompt, str):
        return [{"role": "user", "content": item.prompt}]
    if isinstance(item.prompt, list) and all(isinstance(message, Mapping) for message in item.prompt):
        return cast(list[Message], item.prompt)
    raise Refusal(
        f"question {item.id} brings token ids or the beginning of its answer, and {{model=endpoint}} takes messages. "
        "Choose another task, or a model of this machine."
    )


def short_name(value: object) -> str | None:
    """What an address says in a word or two (None: nothing that a line of a file or of a table can show)."""
    return value[:LONGEST_MODEL_NAME] if isinstance(value, str) and value.isprintable() else None


def at_once(ask: Callable[[_Question], _Outcome], questions: Iterable[_Question], most: int) -> Iterator[_Outcome]:
    """Yield what ``ask`` returns for each question, as soon as it is there. At most ``most`` questions are under way or
    in the hands of the caller, who has kept the results before that. A process that ends waits for none."""
    outcomes, running = SimpleQueue[_Outcome](), 0
    for question in questions:
        Thread(target=lambda question=question: outcomes.put(ask(question)), daemon=True).start()  # type: ignore[misc]
        running += 1
        if running == most:
            yield outcomes.get()
            running -= 1
    for _ in range(running):
        yield outcomes.get()
