"""Defects that are known of other self-play loops on the same tasks, one test each. All are shown to be absent here."""
# ruff: noqa: E501

import pytest

from selfplay.referee import Limits, Referee, Settings, Status
from selfplay.rewards import teacher_reward
from selfplay.tasks import Buffer, Problem, Written, get, judge, solve_rate, validate

SQUARE = "def f(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def referee():
    with Referee(Settings(limits=Limits(cpu_seconds=1, wall_seconds=6.0))) as made:
        yield made


def proposed(referee, program, given="1", kind="deduction"):
    return validate(referee, [Written(get(kind), f"{program.strip()}\nin: {given}\n")], "compact")[0]


def answered(referee, kind, program, inputs, outputs, text):
    return judge(referee, [(get(kind), Problem(kind, program, inputs, outputs), text)], "compact")[0].status


def test_01_the_determinism_check_fires(referee):
    assert proposed(referee, "n = [0]\ndef f(x):\n    n[0] += 1\n    return n[0]").status is Status.NONDETERMINISTIC


@pytest.mark.parametrize("error", ["Exception()", "StopIteration()", "SystemExit()", "ValueError()", "KeyboardInterrupt()"])
def test_02_a_program_that_raises_is_no_problem(referee, error):
    assert proposed(referee, f"def f(x):\n    raise {error}").status is Status.RAISED


@pytest.mark.parametrize("result", ["list(set('abcdefgh'))", "id(x)", "repr(object())", "hash('a')"])
def test_03_processes_with_other_hash_seeds_must_agree(referee, result):
    assert proposed(referee, f"def f(x):\n    return {result}").status is Status.NONDETERMINISTIC


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import os.path",
        "from os import path",
        "from os import environ",
        "import sys",
        "import shutil",
        "import socket",
        "import ctypes",
        "import importlib",
        "os = __import__('os')",
    ],
)
def test_04_the_import_list_cannot_be_named_around(referee, line):
    assert proposed(referee, f"{line}\ndef f(x):\n    return 1").status is Status.FORBIDDEN_IMPORT


@pytest.mark.parametrize("given", ["__import__('os').getpid()", "open('/etc/passwd')", "[i for i in 'ab']", "x"])
def test_05_inputs_are_literals_too(referee, given):
    assert proposed(referee, SQUARE, given).status is Status.BAD_FORMAT


@pytest.mark.parametrize("text", ["5) or (True", "0) or True or f(0", "3)); (f(3"])
def test_06_abduction_is_not_pasted_into_code(referee, text):
    assert answered(referee, "abduction", SQUARE, ((3,),), (9,), text) is Status.BAD_FORMAT


EQUAL = "class E:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return E()\n"


def test_07_nothing_is_equal_to_everything(referee):
    inputs = tuple((i,) for i in range(6))
    assert answered(referee, "induction", SQUARE, inputs, tuple(i * i for i in range(6)), EQUAL) is Status.NOT_A_VALUE
    assert proposed(referee, EQUAL, kind="abduction").status is Status.NOT_A_VALUE


@pytest.mark.parametrize(("gold", "text"), [("5", "'5.0'"), ("5", "5"), ("1+1", "2"), (True, "1"), (1, "1.0"), (1, "True")])
def test_08_outputs_are_compared_as_typed_values(referee, gold, text):
    assert answered(referee, "deduction", SQUARE, ((1,),), (gold,), text) is Status.WRONG


def test_08_what_is_not_a_literal_is_no_output(referee):
    assert proposed(referee, "from collections import Counter\ndef f(x):\n    return Counter('ab')").status is Status.NOT_A_VALUE


def test_09_nan_is_a_value_and_solvable(referee):
    problem = proposed(referee, "def f(x):\n    return float('nan')")
    assert judge(referee, [(get("deduction"), problem, "nan")], "compact")[0].ok


def test_10_long_outputs_are_not_cut(referee):
    problem = proposed(referee, "def f(x):\n    return 'ab' * 1000")
    assert problem.outputs == ("ab" * 1000,)
    right, wrong = "ab" * 1000, "ab" * 200 + "xy" * 600 + "ab" * 200
    verdicts = judge(referee, [(get("deduction"), problem, repr(t)) for t in (right, wrong)], "compact")
    assert [v.ok for v in verdicts] == [True, False]


def test_11_a_reward_of_nothing_stays_nothing():
    problem = get("deduction").seed_problem()
    assert teacher_reward(problem, 0.0) == 0
    assert teacher_reward(problem, 1.0) == 0
    assert teacher_reward(problem, 0.125) == 0.875


def test_12_no_answer_is_no_reward():
    assert solve_rate([]) is None
    assert teacher_reward(get("deduction").seed_problem(), None) is None


def test_13_hidden_examples_that_fail_count(referee):
    inputs = tuple((i,) for i in range(6))
    outputs = tuple(i * i for i in range(6))
    for broken in ("raise KeyError", "return None", "return lambda: 1"):
        program = f"def f(x):\n    if x == 5: {broken}\n    return x * x\n"
        assert answered(referee, "induction", SQUARE, inputs, outputs, program) in (Status.RAISED, Status.WRONG, Status.NOT_A_VALUE)


def test_14_helpers_and_methods_are_allowed_and_prompts_differ(referee):
    program = "class A:\n    def f(self):\n        return 1\ndef g(x):\n    def f(y):\n        return y\n    return f(x)\ndef f(x):\n    return g(x)"
    assert isinstance(proposed(referee, program), Problem)
    prompts = [get(kind).proposal_prompt("chat", []) for kind in ("deduction", "abduction")]
    assert "output" in prompts[0]
    assert "find an input" in prompts[1]


def test_14_references_may_hold_any_marker(referee):
    marked = Problem(
        "deduction", "def f(x):\n    return '</answer> <think> in: out: ```'\n", ((1,),), ("</answer> <think> in: out: ```",)
    )
    text = "<answer>\n```output\n'</answer> <think> in: out: ```'\n```\n</answer>"
    assert judge(referee, [(get("deduction"), marked, " '</answer> <think> in: out: ```'\n")], "compact")[0].ok
    assert judge(referee, [(get("deduction"), marked, text)], "chat")[0].status in (Status.OK, Status.BAD_FORMAT)


def test_15_the_newest_are_kept():
    buffer = Buffer(2)
    for i in range(5):
        buffer.add(Problem("deduction", SQUARE, ((i,),), (i * i,)))
    assert [p.inputs for p in buffer] == [((3,),), ((4,),)]


def test_16_duplicates_are_not_stored():
    buffer = Buffer()
    added = [buffer.add(Problem("deduction", f"def f({n}):\n    return {n} * {n}\n", ((3,),), (9,))) for n in "xyz"]
    assert added == [True, False, False]


def test_17_programs_run_in_parallel(referee):
    import os

    assert len(referee.workers) >= max(2, len(os.sched_getaffinity(0)))
