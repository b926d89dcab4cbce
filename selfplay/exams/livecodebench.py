"""LiveCodeBench: contest problems, judged by what a program prints or what a method returns.

The public files keep hidden tests as base64 of zlib of a pickle of JSON text. Nothing is unpickled: the pickle's opcodes are
read, and any that do more than hold one text are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from selfplay.exams import reading
from selfplay.exams.problem import Answer, Question, Row, Suite
from selfplay.exams.programs import CALLS, STDIN, Case, staged
from selfplay.referee import Referee, Run, Verdict

LARGEST = 1 << 30
"""Bytes that one problem's hidden tests may unpack to."""
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"})
PRELUDE = "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\nfrom heapq import *\nfrom math import *\nfrom bisect import *\nimport math, collections, itertools, functools, heapq, bisect, re, string, random\n"  # noqa: E501
"""What the contest sites have imported already."""


class LiveCodeBench(Suite):
    """Rows of `code_generation` and `code_generation_lite`, any release: the file says which problems."""

    name = "livecodebench"
    about = "contest problems; the data file is the release (v5, say)"
    hub = ("livecodebench/code_generation_lite", None, "test")
    max_tokens = 2048

    def question(self, row: Row, number: int) -> Question:
        """See `Suite.question`."""
        tests = [*tests_of(row["public_test_cases"]), *tests_of(row["private_test_cases"])]
        metadata = row.get("metadata") or "{}"
        entry = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name")
        starter, text = str(row.get("starter_code") or ""), str(row["question_content"])
        if any(test["testtype"] not in ("stdin", "functional") for test in tests):
            raise ValueError("testtype is neither stdin nor functional")
        if any(test["testtype"] == "functional" for test in tests) and not entry:
            raise ValueError("functional tests, but metadata names no func_name")
        how = f"Complete this:\n\n```python\n{starter}\n```" if starter else "Read the standard input and print the answer."
        chat = f"Solve this problem with a Python program, in one block of Python.\n\n{text}\n\n{how}"
        compact = f"# Problem\n{text}\n\n# {how}\n\n# Program\n```python\n"
        return Question(str(row["question_id"]), chat, compact, ("\n```",), (tests, entry), number)

    def grade(self, referee: Referee, answers: Sequence[Answer]) -> list[Verdict]:
        """See `Suite.grade`."""
        return staged(referee, [_cases(answer) for answer in answers])

    def gold(self, question: Question) -> str:
        """There is none: the published files hold no solutions."""
        raise NotImplementedError("LiveCodeBench publishes no solutions")


def tests_of(field: Any) -> list[dict[str, Any]]:
    """The tests in a field: a list, JSON, or JSON that was pickled and packed.

    Raises:
        ValueError: for anything else, a pickle that holds more than one text among it.
    """
    if isinstance(field, str):
        try:
            field = json.loads(field)
        except ValueError:
            field = json.loads(unpacked(field))
    if not isinstance(field, list) or not all(isinstance(x, dict) and {"input", "output", "testtype"} <= x.keys() for x in field):
        raise ValueError("test cases are no list of input, output and testtype")
    return field


def unpacked(text: str) -> str:
    """The JSON text in a packed field."""
    try:
        packed = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"test cases are neither JSON nor base64 of zlib: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"test cases unpack to more than {LARGEST} bytes")
    return pickled_text(data)


def pickled_text(data: bytes) -> str:
    """The one text that a pickle holds; no pickle machine is run.

    Raises:
        ValueError: for any other pickle.
    """
    try:
        operations = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(data)]
    except (ValueError, IndexError) as error:
        raise ValueError(f"hidden tests are no pickle: {error}") from None
    if strange := [name for name, _ in operations if name not in _TEXTS | _HARMLESS]:
        raise ValueError(f"hidden tests are a pickle that does more than hold a text ({strange[0]}): refused")
    found = [str(argument) for name, argument in operations if name in _TEXTS]
    if len(found) != 1:
        raise ValueError("hidden tests are a pickle of something other than one text: refused")
    return found[0]


def _cases(answer: Answer) -> list[Case]:
    tests, entry = answer.question.facts
    source = reading.program(answer.text, entry)
    return [_functional(source, entry, test) if test["testtype"] == "functional" else _stdin(source, test) for test in tests]


def _stdin(source: str, test: dict[str, Any]) -> Case:
    return Case(Run(STDIN, [(source, test["input"])]), lambda printed: same_output(printed, test["output"]))


def _functional(source: str, entry: str, test: dict[str, Any]) -> Case:
    arguments = tuple(json.loads(line) for line in test["input"].split("\n") if line.strip())
    wanted = json.loads(test["output"])
    return Case(Run(CALLS, [(PRELUDE + source, entry, [arguments], "value")]), lambda value: _listed(value) == [wanted])


def _listed(value: Any) -> Any:
    """JSON has no tuples."""
    return [_listed(x) for x in value] if isinstance(value, list | tuple) else value


def same_output(printed: Any, wanted: str) -> bool:
    """Whether two outputs have the same lines, but for white space at their ends; or lines of the same numbers."""
    if type(printed) is not str:
        return False
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (printed, wanted))
    return len(ours) == len(theirs) and all(a == b or _same_numbers(a, b) for a, b in zip(ours, theirs, strict=True))


def _same_numbers(one: str, two: str) -> bool:
    try:
        return [Decimal(x) for x in one.split()] == [Decimal(x) for x in two.split()]
    except InvalidOperation:
        return False
