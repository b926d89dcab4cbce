"""The proposals that a page shows: all of them up to a limit, beyond it a fair share."""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

from selfplay.report.reading import Event

LIMIT = 20_000
LONGEST = 2_000
"""Characters of one text."""
FIELDS = ("id", "step", "kind", "teacher", "student", "status", "reason", "rho", "reward", "new", "new_cell", "truncated")
COLUMNS = (*FIELDS, "program", "inputs", "outputs", "message", "complexity", "text", "answers")
ANSWER_COLUMNS = ("text", "status", "reason", "reward", "times")


class Problems:
    """Proposals with their answers.

    Which ones are kept beyond the limit is decided by a checksum of their names: even over the run, and the same each time.

    Args:
        limit: how many at most.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.share = limit, 1
        self.seen: Counter[int] = Counter()
        self._kept: dict[str, dict[str, Any]] = {}

    def proposal(self, event: Event) -> None:
        """Take one, or not."""
        self.seen[event["step"]] += 1
        if not self._is_chosen(event["id"]):
            return
        kept = {name: event.get(name) for name in FIELDS}
        for name in ("program", "message", "text", "reason"):
            kept[name] = cut(event.get(name))
        for name in ("inputs", "outputs"):
            kept[name] = None if event.get(name) is None else [cut(text) for text in event[name]]
        self._kept[event["id"]] = {**kept, "complexity": event.get("complexity"), "answers": {}}
        while len(self._kept) > self.limit:
            self.share *= 2
            self._kept = {name: one for name, one in self._kept.items() if self._is_chosen(name)}

    def answer(self, event: Event) -> None:
        """An answer to one of them; equal answers with equal verdicts are counted together."""
        to = self._kept.get(event["problem"])
        if to is not None:
            key = (cut(event["text"]), event["status"], cut(event.get("reason")), event["reward"])
            to["answers"][key] = to["answers"].get(key, 0) + 1

    def rows(self, last_step: int) -> list[list[Any]]:
        """Those of finished steps, in `COLUMNS`; their answers, most frequent first, in `ANSWER_COLUMNS`."""
        kept = [_told(one) for one in self._kept.values() if one["step"] <= last_step]
        return [[one[name] for name in COLUMNS] for one in kept]

    def count(self, last_step: int) -> int:
        """How many there were in finished steps, kept or not."""
        return sum(count for step, count in self.seen.items() if step <= last_step)

    def _is_chosen(self, name: str) -> bool:
        return self.limit > 0 and crc32(name.encode("utf-8", "replace")) % self.share == 0


def cut(text: str | None) -> str | None:
    """A text that is not too long for a page."""
    if text is None or len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} [and {len(text) - LONGEST:,} more characters]"


def _told(one: dict[str, Any]) -> dict[str, Any]:
    counted = sorted(one["answers"].items(), key=lambda item: -item[1])
    return {**one, "answers": [[*key, times] for key, times in counted]}
