"""A process of our own that is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any


def killed_after(seconds: float, target: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run the function in another process and kill it with SIGKILL after so long."""
    other = multiprocessing.get_context("fork").Process(target=target, args=arguments, kwargs=options)
    other.start()
    time.sleep(seconds)
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()
