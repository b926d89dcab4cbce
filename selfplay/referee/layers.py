"""What each layer gives when it stands alone: the self-test under several settings, for `lora-evo referee check`."""

from __future__ import annotations

import logging
from dataclasses import replace

from selfplay.referee.guarantees import Report
from selfplay.referee.limits import Settings
from selfplay.referee.referee import Referee

NAMESPACES = frozenset({"user_namespace", "network_namespace", "ipc_namespace", "pid_namespace", "empty_root"})

SETS: dict[str, frozenset[str]] = {
    "all layers": frozenset(),
    "seccomp only": NAMESPACES | {"landlock"},
    "landlock only": NAMESPACES | {"seccomp"},
    "namespaces only": frozenset({"seccomp", "landlock"}),
    "none of these": NAMESPACES | {"seccomp", "landlock"},
}
"""Layers left out in each examination; limits and the change of user stay."""


def examine(settings: Settings | None = None, sets: dict[str, frozenset[str]] = SETS) -> dict[str, Report]:
    """The self-test's report for each set of layers, the first with all of them."""
    settings = settings or Settings()
    found = {}
    log = logging.getLogger("selfplay.referee")
    before, log.disabled = log.disabled, True  # degraded on purpose
    try:
        for name, without in sets.items():
            with Referee(replace(settings, without=without, allow_degraded=True)) as referee:
                assert referee.report is not None
                found[name] = referee.report
    finally:
        log.disabled = before
    return found
