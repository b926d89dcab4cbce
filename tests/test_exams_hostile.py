"""Programs that try to pass without being right, against every way in which programs are judged."""

import base64
import json
import pickle
import zlib
from dataclasses import replace

import pytest
from exam_rows import verdicts

from selfplay.exams.livecodebench import LARGEST, pickled_text, same_output
from selfplay.exams.livecodebench import tests_of as hidden_tests
from selfplay.exams.problem import Answer
from selfplay.exams.suites import suite
from selfplay.referee import Referee, Status

HEAD = "def f(a):\n    '''Twice a.'''\n"
HUMANEVAL = {
    "task_id": "h", "prompt": HEAD, "entry_point": "f", "canonical_solution": "    return 2 * a\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(candidate(3)) == 12\n",
}  # fmt: skip
MBPP = {
    "task_id": 1,
    "text": "Twice a.",
    "code": "def f(a):\n    return 2 * a\n",
    "test_list": ["assert f(2) == 4", "assert f(3) == 6"],
}
PLUS = {
    "task_id": "m", "prompt": '"""\nTwice a.\n"""\n', "entry_point": "f", "canonical_solution": "def f(a):\n    return 2 * a\n",
    "base_input": [[2]], "plus_input": [[3]], "atol": 0, "assertion": "assert f(2) == 4",
}  # fmt: skip
LCB = {
    "question_id": "l", "question_content": "Twice.", "starter_code": "", "metadata": "{}", "private_test_cases": "[]",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
}  # fmt: skip
FUNCTIONAL = {
    **LCB, "metadata": '{"func_name": "f"}', "starter_code": "class Solution:\n    def f(self, a: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
}  # fmt: skip
ROWS = {"humaneval": HUMANEVAL, "mbpp": MBPP, "mbpp+": PLUS, "livecodebench": FUNCTIONAL}
HOSTILE = {
    "exit 0": "import sys\nsys.exit(0)\n",
    "exit in the call": "def f(a):\n    import sys\n    sys.exit(0)\n",
    "os._exit": "import os\nos._exit(0)\n",
    "os._exit in the call": "def f(a):\n    import os\n    os._exit(0)\n",
    "prints": "print('passed')\ndef f(a):\n    print('passed', 4)\n",
    "atexit": "import atexit\natexit.register(lambda: print('passed'))\ndef f(a):\n    return None\n",
    "equal to everything": "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(a):\n    return E(7)\n",
    "equal object": "class E:\n    def __eq__(self, o): return True\ndef f(a):\n    return E()\n",
    "no assertions": "import builtins\nbuiltins.AssertionError = Exception\n__debug__2 = False\ndef f(a):\n    return 0\n",
    "builtins": "import builtins\nbuiltins.abs = builtins.len = builtins.all = lambda *a: True\ndef f(a):\n    return 0\n",
    "the harness's names": "def check(c): pass\ndef f(a): return 0\nimport sys\nsys.modules['__main__'].__dict__['f'] = f\n",
    "frames": "import sys\ndef f(a):\n    frame = sys._getframe()\n    while frame:\n"
    "        frame.f_globals['plain'] = lambda x: [['passed']]\n"
    "        frame.f_globals['f'] = lambda *a: ['passed', []]\n        frame = frame.f_back\n    return 0\n",
    "a list that is too long": "def f(a):\n    import sys\n    sys._getframe(1).f_globals['plain'] = lambda x: [4] * 9\n"
    "    return 0\n",
    "raises AssertionError": "def f(a):\n    raise AssertionError\n",
    "raises SystemExit": "raise SystemExit(0)\n",
    "loops": "def f(a):\n    while True: pass\n",
    "nothing": "",
    "no function": "x = 1\n",
    "generator": "def f(a):\n    yield 2 * a\n",
    "recursion": "def f(a):\n    return f(a)\n",
    "a value that is no value": "def f(a):\n    return object()\n",
}


@pytest.fixture(scope="module")
def judged():
    """All of them, by suite, as chat answers."""
    found = {}
    for name, row in ROWS.items():
        question = suite(name).questions([row])[0]
        answers = [Answer(question, f"```python\n{text}```", "chat") for text in [*HOSTILE.values(), MBPP["code"]]]
        own = suite(name)
        quick = replace(own.settings, limits=replace(own.settings.limits, cpu_seconds=1))
        with Referee(quick) as referee:
            found[name] = own.grade(referee, answers)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_nothing_hostile_passes(judged, name):
    *hostile, honest = judged[name]
    passed = [what for what, verdict in zip(HOSTILE, hostile, strict=True) if verdict.ok]
    assert passed == []
    assert not any(v.blameless for v in hostile), "a program's failure is its own"
    assert honest.ok, honest


def test_subclasses_of_plain_types_are_what_they_equal():
    question = suite("mbpp").questions(
        [
            {
                "task_id": 1,
                "text": ".",
                "code": "def f(s):\n    return {c: s.count(c) for c in s}\n",
                "test_list": ["assert f('aab') == {'a': 2, 'b': 1}"],
            }
        ]
    )[0]
    text = "from collections import Counter\ndef f(s):\n    return Counter(s)\n"
    assert verdicts("mbpp", [Answer(question, text, "compact")])["1"].ok


STDIN = {
    "reads": ("print(2 * int(input()))", True),
    "main": ("import sys\nif __name__ == '__main__':\n    print(2 * int(sys.stdin.readline()))\n    sys.exit()", True),
    "buffer": ("import sys\nsys.stdout.buffer.write(b'%d\\n' % (2 * int(sys.stdin.buffer.read())))", True),
    "spaces": ("print(' 4  ')", True),
    "float": ("print('4.0')", True),
    "wrong": ("print(5)", False),
    "more": ("print(4)\nprint(4)", False),
    "nothing": ("", False),
    "exit 0 unprinted": ("import os\nos._exit(0)", False),
    "fails after printing": ("print(4)\nraise ValueError", False),
    "exit 1": ("print(4)\nimport sys\nsys.exit(1)", False),
}


@pytest.mark.parametrize("what", STDIN)
def test_programs_that_read_and_print(what):
    text, right = STDIN[what]
    question = suite("livecodebench").questions([LCB])[0]
    assert verdicts("livecodebench", [Answer(question, f"```python\n{text}\n```", "chat")])["l"].ok == right


def test_outputs_are_compared_line_by_line():
    assert same_output("1 2\n3\n\n", "1 2 \n3")
    assert same_output("1.50 2", "1.5 2.0")
    assert not same_output("1\n2", "1 2")
    assert not same_output("yes", "no")
    assert not same_output(None, "")


def packed(value, protocol=4):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


class Evil:
    """Unpickled, it would call exit."""

    def __reduce__(self):
        return exit, (1,)


def test_hidden_tests_are_read_without_unpickling():
    tests = [{"input": "1\né", "output": "2" * 300, "testtype": "stdin"}]
    assert hidden_tests(json.dumps(tests)) == tests
    for protocol in range(1, 6):
        assert hidden_tests(packed(json.dumps(tests), protocol)) == tests
        assert pickled_text(pickle.dumps("text", protocol)) == "text"
    for value in (Evil(), ["[]"], {"a": 1}, 7, ("[]", "[]")):
        with pytest.raises(ValueError, match="refused"):
            hidden_tests(packed(value))
    with pytest.raises(ValueError, match="neither JSON nor base64"):
        hidden_tests("?")
    with pytest.raises(ValueError, match="no pickle"):
        hidden_tests(base64.b64encode(zlib.compress(b"\x80\x04X\xff\xff\xff\x7f")).decode())


def test_hidden_tests_do_not_fill_the_memory(monkeypatch):
    assert LARGEST >= 1 << 20
    monkeypatch.setattr("selfplay.exams.livecodebench.LARGEST", 1000)
    with pytest.raises(ValueError, match="unpack to more than 1000 bytes"):
        hidden_tests(packed(json.dumps([{"input": "x" * 5000, "output": "", "testtype": "stdin"}])))


def test_tests_and_programs_never_share_a_process():
    """Even a program that takes over its process sees no expected value: it cannot return what it has not been told."""
    row = {**HUMANEVAL, "test": "def check(c):\n    assert c(2) == 4\n    assert 'secret'\n"}
    question = suite("humaneval").questions([row])[0]
    text = (
        "    import gc, sys\n"
        "    found = [x for x in gc.get_objects() if type(x) is str and 'assert' in x]\n"
        "    return 4 if any('secret' + '' in x for x in found) else 0\n"
    )
    found = verdicts("humaneval", [Answer(question, text, "compact")])
    assert found["h"].status is Status.WRONG


def test_answers_of_mathematics_run_nothing(tmp_path):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    question = suite("gsm8k").questions([{"question": "?", "answer": "#### 2"}])[0]
    attack = f"__import__('os').system('touch {tmp_path}/broken')"
    shapes = ("\\boxed{{{}}}", "The answer is {}", "{}", "${}$", "1+{}", "The answer is ({})*2", "\\boxed{{9**9**9**9}}")
    for shape in shapes:
        assert not verdicts("gsm8k", [Answer(question, shape.format(attack), "chat")])["0"].ok
    assert list(tmp_path.iterdir()) == []
