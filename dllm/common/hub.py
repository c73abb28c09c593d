"""Whether the hub can be reached, found out before libraries retry for half a minute."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_SECONDS = 3.0  # for an answer: a name that is not resolved, or a connection that hangs, counts as no network
_PORTS = {"https": 443, "http": 80}
OFFLINE = "HF_HUB_OFFLINE"


@cache
def hub_reachable() -> bool:
    """Whether the hub, or the proxy before it, takes a connection. False where the user says so by HF_HUB_OFFLINE."""
    if os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    answers: list[bool] = []
    asking = Thread(
        target=lambda: answers.append(_connects(url.hostname or "", url.port or _PORTS.get(url.scheme, 443))),
        daemon=True,
    )
    asking.start()
    asking.join(_SECONDS)
    return any(answers)


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except OSError:
        return False
    return True


def stay_offline_without_hub() -> None:
    """Tell the hub's libraries to use what they have downloaded, and nothing else, where the hub is out of reach."""
    if hub_reachable():
        return
    os.environ[OFFLINE] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):
        if name in sys.modules:  # it has read the environment already
            setattr(sys.modules[name], OFFLINE, True)
