"""Grammar as LanguageTool judges it: a server of yours, one started from its folder, or one that is downloaded.

The verdict is 1 when LanguageTool finds nothing in the text (en-US), else 0. Other versions find other things, so the
version belongs to every score. That is why requests are made here: language_tool_python's answers lack the version, and
do not tell a text that is too long from a server that fails.
"""

from __future__ import annotations

import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from dllm.errors import UserError
from dllm.tasks.parallelbench.language_tool import check_library, started, unpacked

REPLY_SECONDS = 30  # for one text; a server that has just started needs some 5 for its first
TOO_LONG = 413
TRIES, PAUSE = 3, 0.5  # requests, and seconds after the first that failed


class GrammarChecker:
    """``setting``: the URL of a server, a LanguageTool folder (or its languagetool-server.jar), or ``download``.

    Raises UserError when nothing is there.
    """

    def __init__(self, setting: str) -> None:
        self.setting = setting
        if setting.startswith(("http://", "https://")):
            self.version  # noqa: B018 - asked now, so that a server that is down is refused before the run
        elif setting == "download":
            check_library(setting)
        else:
            unpacked(Path(setting))

    @cached_property
    def url(self) -> str:
        """Where the server answers; starts it if need be."""
        if self.setting == "download":
            return started(None)
        if self.setting.startswith(("http://", "https://")):
            return self.setting.rstrip("/").removesuffix("/check").removesuffix("/v2")
        return started(unpacked(Path(self.setting)))

    @cached_property
    def version(self) -> str:
        software = self._ask("All is well.").get("software", {})
        return f"{software.get('name', 'LanguageTool')} {software.get('version', 'unknown')}"

    def __call__(self, text: str) -> float | None:
        """1 or 0; None for a text that is longer than the server takes."""
        text = text.strip()
        if not text:
            return 0.0
        found = self._ask(text)
        return None if found.get("too long") else float(not found["matches"])

    def _ask(self, text: str) -> dict[str, Any]:
        """The server's answer. Tries again, as a busy server may miss a request."""
        body = urlencode({"language": "en-US", "text": text}, errors="replace").encode()
        for left in reversed(range(TRIES)):
            try:
                with urlopen(Request(f"{self.url}/v2/check", body), timeout=REPLY_SECONDS) as reply:
                    return self._read(reply.read())
            except HTTPError as error:
                if error.code == TOO_LONG:
                    return {"too long": True}
                trouble = f"answered {error.code} {error.reason}."
            except OSError as error:
                reason = error.reason if isinstance(error, URLError) else error
                trouble = f"does not answer: {reason}."
            if left:
                time.sleep(PAUSE * (TRIES - left))
        raise UserError(
            f"task.grammar={self.setting!r} {trouble} Start a LanguageTool server there and run the same command again "
            "(finished samples are kept), or set task.grammar=null to leave the scores that need it out."
        )

    def _read(self, reply: bytes) -> dict[str, Any]:
        try:
            found = json.loads(reply)
            assert isinstance(found["matches"], list)
        except (ValueError, KeyError, TypeError, AssertionError):
            raise UserError(f"task.grammar={self.setting!r} is not a LanguageTool server: {reply[:60]!r}.") from None
        return found
