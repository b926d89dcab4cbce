"""Task kinds: prompts, strict parsers, judging; each with the defects that are known of others."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay.referee import Limits, Referee, Run, Settings, Status
from selfplay.tasks import (
    Abduction,
    Buffer,
    Buffers,
    Deduction,
    FormatError,
    Induction,
    Problem,
    Written,
    all_tasks,
    easy_problems,
    get,
    judge,
    normal_form,
    register,
    solve_rate,
    validate,
)

SQUARE = "def f(x):\n    return x * x\n"
DEDUCTION = Problem("deduction", SQUARE, ((3,),), (9,))
ABDUCTION = Problem("abduction", SQUARE, ((3,),), (9,))
INDUCTION = Problem("induction", SQUARE, tuple((i,) for i in range(6)), tuple(i * i for i in range(6)), "powers")
TASKS = {"deduction": DEDUCTION, "abduction": ABDUCTION, "induction": INDUCTION}


@pytest.fixture(scope="module")
def referee():
    with Referee(Settings(limits=Limits(cpu_seconds=1, wall_seconds=6.0))) as made:
        yield made


def chat(*blocks):
    return "thinking ```python\nno\n```\n<answer>\n" + "\n".join(f"```{tag}\n{body}\n```" for tag, body in blocks) + "\n</answer>"


def propose(referee, kind, text, style="chat", subject=None):
    return validate(referee, [Written(get(kind), text, subject)], style)[0]


def verdict(referee, problem, text, style="chat"):
    return judge(referee, [(get(problem.kind), problem, text)], style)[0].status


def test_a_proposal_becomes_a_problem(referee):
    made = propose(referee, "deduction", chat(("python", SQUARE), ("input", "3")))
    assert made == DEDUCTION
    made = propose(referee, "deduction", f"{SQUARE}in: 3\n", "compact")
    assert made == DEDUCTION
    made = propose(referee, "abduction", chat(("python", SQUARE), ("input", "3")))
    assert made == ABDUCTION
    inputs = [("input", str(i)) for i in range(6)]
    assert propose(referee, "induction", chat(*inputs, ("message", "powers")), subject=SQUARE) == INDUCTION
    lines = "".join(f"in: {i}\n" for i in range(6)) + "msg: powers\n"
    assert propose(referee, "induction", lines, "compact", SQUARE) == INDUCTION


def test_helpers_classes_and_imports_are_fine(referee):
    program = (
        "import math\nfrom collections import Counter\n\nclass P:\n    def __init__(self, x):\n        self.x = x\n\n"
        "def helper(x):\n    def inner(y):\n        return y + 1\n    return inner(P(x).x)\n\n"
        "def f(x):\n    return helper(x) + math.gcd(4, 6) + Counter('aa')['a']\n"
    )
    assert propose(referee, "deduction", chat(("python", program), ("input", "1"))).outputs == (6,)


@pytest.mark.parametrize(
    ("program", "given", "status"),
    [
        ("n = [0]\ndef f(x):\n n[0] += 1\n return n[0]", "1", Status.NONDETERMINISTIC),
        ("def f(x):\n return list({'a', 'b', 'c', 'd', 'e', 'g', 'h'})", "1", Status.NONDETERMINISTIC),
        ("def f(x):\n return repr(object())", "1", Status.NONDETERMINISTIC),
        ("def f(x):\n raise Exception('x')", "1", Status.RAISED),
        ("def f(x):\n raise StopIteration", "1", Status.RAISED),
        ("def f(x):\n raise SystemExit", "1", Status.RAISED),
        ("import os\ndef f(x):\n return 1", "1", Status.FORBIDDEN_IMPORT),
        ("from os import path\ndef f(x):\n return 1", "1", Status.FORBIDDEN_IMPORT),
        ("import sys\ndef f(x):\n return 1", "1", Status.FORBIDDEN_IMPORT),
        ("import ctypes\ndef f(x):\n return 1", "1", Status.FORBIDDEN_IMPORT),
        ("def f(x):\n return 1", "__import__('os').getpid()", Status.BAD_FORMAT),
        ("def f(x):\n return 1", "1 + 1", Status.BAD_FORMAT),
        ("def f(x):\n return 1", "f", Status.BAD_FORMAT),
        ("def g(x):\n return 1", "1", Status.NO_ENTRY_FUNCTION),
        ("def f(x:\n return 1", "1", Status.SYNTAX_ERROR),
        ("class A:\n def __eq__(s, o): return True\ndef f(x):\n return A()", "1", Status.NOT_A_VALUE),
        ("from collections import Counter\ndef f(x):\n return Counter(x)", "'aa'", Status.NOT_A_VALUE),
        ("def f(x):\n return 'a' * 10**7", "1", Status.TOO_LARGE),
        ("def f(x):\n while 1: pass", "1", Status.TIMEOUT),
    ],
)
def test_what_is_no_problem(referee, program, given, status):
    assert propose(referee, "deduction", chat(("python", program), ("input", given))).status is status


def test_long_outputs_are_kept_whole(referee):
    program = "def f(x):\n    return list(range(x))\n"
    made = propose(referee, "deduction", chat(("python", program), ("input", "400")))
    assert made.outputs == (list(range(400)),)
    assert verdict(referee, made, chat(("output", str(list(range(400)))))) is Status.OK
    assert verdict(referee, made, chat(("output", str(list(range(399)))))) is Status.WRONG


def test_nan_can_be_solved(referee):
    made = propose(referee, "deduction", chat(("python", "def f(x):\n    return x * float('nan')\n"), ("input", "2.0")))
    for text in ("nan", "float('nan')", "-nan"):
        assert verdict(referee, made, chat(("output", text))) is Status.OK


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("9", Status.OK),
        ("+9", Status.OK),
        ("9.0", Status.WRONG),
        ("'9'", Status.WRONG),
        ("True", Status.WRONG),
        ("8", Status.WRONG),
        ("3 * 3", Status.BAD_FORMAT),
        ("eval('9')", Status.BAD_FORMAT),
        ("", Status.BAD_FORMAT),
        ("nine", Status.BAD_FORMAT),
    ],
)
def test_deduction(referee, text, status):
    assert verdict(referee, DEDUCTION, chat(("output", text))) is status
    assert verdict(referee, DEDUCTION, f" {text}\n# next", "compact") is status


def test_deduction_of_text_is_not_evaluated_twice(referee):
    for output, text, status in (
        ("5", "'5'", Status.OK),
        ("5", "5", Status.WRONG),
        ("1+1", "2", Status.WRONG),
        ("1+1", "'1+1'", Status.OK),
    ):
        assert verdict(referee, Problem("deduction", SQUARE, ((1,),), (output,)), chat(("output", text))) is status
    for output, text in ((True, "1"), (1, "True"), (1, "1.0"), ((1,), "[1]"), ({1}, "frozenset({1})"), ("5", "5.0")):
        assert verdict(referee, Problem("deduction", SQUARE, ((1,),), (output,)), chat(("output", text))) is Status.WRONG


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("3", Status.OK),
        ("-3", Status.OK),
        ("4", Status.WRONG),
        ("3.0", Status.WRONG),
        ("5) or (True", Status.BAD_FORMAT),
        ("0) or True or f(0", Status.BAD_FORMAT),
        ("3, 4", Status.RAISED),
        ("'a'", Status.RAISED),
        ("x=3", Status.BAD_FORMAT),
        ("10**10**10", Status.BAD_FORMAT),
    ],
)
def test_abduction(referee, text, status):
    assert verdict(referee, ABDUCTION, chat(("input", text))) is status
    assert verdict(referee, ABDUCTION, f" {text}\n\n", "compact") is status


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (SQUARE, Status.OK),
        ("def f(x):\n return x ** 2", Status.OK),
        ("def f(x):\n return [0, 1, 4][x]", Status.RAISED),
        ("def f(x):\n return {0: 0, 1: 1, 2: 4, 3: 9}.get(x)", Status.WRONG),
        ("class A:\n def __eq__(s, o): return True\ndef f(x):\n return A()", Status.NOT_A_VALUE),
        ("n = []\ndef f(x):\n n.append(1)\n return x * x if len(n) % 2 else 0", Status.NONDETERMINISTIC),
        ("def f(x):\n while 1: pass", Status.TIMEOUT),
        ("def f(x) return", Status.SYNTAX_ERROR),
        ("def g(x):\n return x * x", Status.NO_ENTRY_FUNCTION),
        ("import os\ndef f(x):\n return x * x", Status.FORBIDDEN_IMPORT),
        ("", Status.BAD_FORMAT),
    ],
)
def test_induction(referee, program, status):
    assert verdict(referee, INDUCTION, chat(("python", program))) is status
    assert verdict(referee, INDUCTION, program + "\n\nrest", "compact") is status


def test_one_wrong_hidden_example_is_enough(referee):
    for hidden in (3, 4, 5):
        program = f"def f(x):\n return x * x if x != {hidden} else None"
        assert verdict(referee, INDUCTION, chat(("python", program))) is Status.WRONG


def test_induction_shows_half_and_hides_half():
    for style in ("chat", "compact"):
        text = get("induction").answer_prompt(INDUCTION, style)
        assert "powers" in text
        assert all(part in text for part in ("4",))
        assert "16" not in text
        assert "25" not in text


def test_prompts_hide_what_is_asked():
    deduction = Problem("deduction", SQUARE, ((111,),), (12321,))
    abduction = Problem("abduction", SQUARE, ((111,),), (12321,))
    for style in ("chat", "compact"):
        assert "12321" not in get("deduction").answer_prompt(deduction, style)
        text = get("abduction").answer_prompt(abduction, style)
        assert "12321" in text.replace("111", "", 0)
        assert "111," not in text
        assert "in: 111" not in text


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("style", ["chat", "compact"])
def test_proposal_prompts_show_references(kind, style):
    text = get(kind).proposal_prompt(style, [TASKS[kind]], "def f(x):\n    return x + 71\n")
    if kind != "induction" or style == "compact":
        assert "x * x" in text
    assert ("x + 71" in text) == (kind == "induction")
    if kind != "induction":
        other = get("abduction" if kind == "deduction" else "deduction").proposal_prompt(style, [TASKS[kind]])
        assert text != other


@pytest.mark.parametrize(
    "text", ["```python\nx\n```", "```input\n1\n```", "", "<answer></answer>", "```python\n\n```\n```input\n1\n```"]
)
def test_proposals_without_a_part(text):
    with pytest.raises(FormatError):
        Deduction().parse_proposal(text, "chat")


def test_induction_proposals_are_strict():
    inputs = [("input", str(i)) for i in range(6)]
    for blocks in (
        inputs,
        [*inputs[:5], ("message", "m")],
        [*inputs[:5], inputs[0], ("message", "m")],
        [*inputs, ("message", "m")] * 2,
    ):
        with pytest.raises(FormatError):
            Induction().parse_proposal(chat(*blocks), "chat", SQUARE)
    with pytest.raises(ValueError, match="subject"):
        Induction().proposal_prompt("chat", [])
    for bad in (0, 3, -2):
        with pytest.raises(ValueError):
            Induction(bad)


@settings(max_examples=200)
@given(st.text(max_size=300) | st.text(alphabet="`<>/answerpythoniput\n:in msgout1, ()", max_size=200))
def test_parsers_raise_format_errors_only(text):
    for kind, problem in TASKS.items():
        for style in ("chat", "compact"):
            with contextlib.suppress(FormatError):
                get(kind).parse_proposal(text, style, SQUARE)
            with contextlib.suppress(FormatError):
                get(kind).parse_answer(problem, text, style)


def test_batches_keep_their_order(referee):
    texts = ["8", "9", "bad(", "9", "7"]
    answers = [(get("deduction"), DEDUCTION, chat(("output", t))) for t in texts]
    answers += [(get("abduction"), ABDUCTION, chat(("input", t))) for t in ("3", "1 +", "-3", "3")]
    statuses = [v.status.value for v in judge(referee, answers, "chat")]
    assert statuses == ["wrong", "ok", "bad_format", "ok", "wrong", "ok", "bad_format", "ok", "ok"]


def test_solve_rate_leaves_infrastructure_out(referee):
    from selfplay.referee import Verdict

    verdicts = [Verdict(Status.OK), Verdict(Status.WRONG), Verdict(Status.INFRA_ERROR), Verdict(Status.RAISED)]
    assert solve_rate(verdicts) == pytest.approx(1 / 3)
    assert solve_rate([Verdict(Status.INFRA_ERROR)]) is None
    assert solve_rate([]) is None


SAME = [
    "def f(a):\n    return a * a",
    "# comment\ndef f(number: int) -> int:\n    '''Doc.'''\n    return (number *\n            number)\n",
]


def test_normal_form():
    assert len({normal_form(p) for p in [SQUARE, *SAME]}) == 1
    different = [
        SQUARE,
        "def f(x):\n return x + x",
        "def f(x, y):\n return x * y",
        "def f(x):\n y = x\n return y * x",
        "def f(x) return",
    ]
    assert len({normal_form(p) for p in different}) == len(different)
    assert normal_form("def f(len):\n return len(3)") != normal_form("def f(x):\n return len(3)")


def test_buffers_have_no_duplicates():
    buffer = Buffer()
    assert buffer.add(DEDUCTION)
    assert not buffer.add(DEDUCTION)
    assert not buffer.add(Problem("deduction", SAME[1], ((3,),), (9,)))
    assert not buffer.add(Problem("deduction", "def f(x):\n return 9", ((3,),), (9,)))
    assert buffer.add(Problem("deduction", SQUARE, ((4,),), (16,)))
    assert buffer.add(Problem("deduction", "def f(x):\n return 9.0", ((3,),), (9.0,)))
    assert len(buffer) == 3


def test_buffers_keep_the_newest():
    buffer = Buffer(capacity=3)
    problems = [Problem("deduction", SQUARE, ((i,),), (i * i,)) for i in range(10)]
    assert all(buffer.add(p) for p in problems)
    assert list(buffer) == problems[-3:]
    assert buffer.add(problems[0])


def test_buffers_are_saved_and_restored(tmp_path):
    tasks = list(all_tasks().values())
    buffers = Buffers.seeded(tasks, capacity=50)
    odd = Problem("deduction", SQUARE, (({1, (2.5, None)}, b"x", float("inf")),), ([1j, frozenset({"a"})],), "m")
    assert buffers.add(odd)
    buffers.save(tmp_path / "buffers.json")
    again = Buffers.load(tmp_path / "buffers.json")
    assert {k: list(b) for k, b in again.of.items()} == {k: list(b) for k, b in buffers.of.items()}
    assert not again.add(odd)
    rngs = (np.random.default_rng(3), np.random.default_rng(3))
    assert buffers.references("deduction", 2, rngs[0]) == again.references("deduction", 2, rngs[1])
    json.loads((tmp_path / "buffers.json").read_text())


def test_easy_problems_are_what_the_referee_finds(referee):
    for task in (get("deduction"), get("abduction"), Induction(4), Induction(2)):
        found = easy_problems(task)
        assert len({problem.behaviour for problem in found}) == 5
        for problem in found:
            assert [v.value for v in referee.run([Run(problem.program, problem.inputs)])[0]] == list(problem.outputs)
    assert easy_problems(Induction(6)) == []


def test_seeds_are_problems(referee):
    for task in [*all_tasks().values(), Induction(2), Induction(20)]:
        seed = task.seed_problem()
        if task.needs_subject:
            blocks = [("input", ", ".join(map(repr, x))) for x in seed.inputs] + [("message", seed.message)]
            made = validate(referee, [Written(task, chat(*blocks), seed.program)], "chat")[0]
        else:
            made = validate(referee, [Written(task, chat(("python", seed.program), ("input", repr(seed.inputs[0][0]))))], "chat")[0]
        assert made == seed


def test_subjects_come_from_the_union():
    buffers = Buffers.seeded(list(all_tasks().values()))
    buffers.add(Problem("abduction", SQUARE, ((1,),), (1,)))
    rng = np.random.default_rng(0)
    assert {buffers.subject(("deduction", "abduction"), rng) for _ in range(50)} == {SQUARE, "def f(x):\n    return x\n"}
    with pytest.raises(ValueError):
        Buffers([]).subject([], rng)
    assert Buffer().sample(4, rng) == []


def test_registry():
    with pytest.raises(ValueError, match="already"):
        register(Abduction())
    with pytest.raises(ValueError, match="no task kind"):
        get("divination")
