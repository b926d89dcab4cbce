"""Task kinds: what a teacher can propose and a student can be asked."""

from selfplay.tasks.abduction import Abduction
from selfplay.tasks.base import FormatError, Problem, Proposal, Style, Task
from selfplay.tasks.buffers import Buffer, Buffers
from selfplay.tasks.deduction import Deduction
from selfplay.tasks.easy import easy_problems
from selfplay.tasks.induction import Induction
from selfplay.tasks.judging import Written, judge, solve_rate, validate
from selfplay.tasks.normal import normal_form

__all__ = [
    "Abduction",
    "Buffer",
    "Buffers",
    "Deduction",
    "FormatError",
    "Induction",
    "Problem",
    "Proposal",
    "Style",
    "Task",
    "Written",
    "all_tasks",
    "easy_problems",
    "get",
    "judge",
    "normal_form",
    "register",
    "solve_rate",
    "validate",
]

_TASKS: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Make a task kind known by its name.

    Raises:
        ValueError: if the name is taken.
    """
    if task.name in _TASKS:
        raise ValueError(f"there is a task kind {task.name!r} already")
    _TASKS[task.name] = task
    return task


def get(name: str) -> Task:
    """The task kind of a name.

    Raises:
        ValueError: if there is none.
    """
    if name not in _TASKS:
        raise ValueError(f"no task kind {name!r}; there are {', '.join(_TASKS)}")
    return _TASKS[name]


def all_tasks() -> dict[str, Task]:
    """All known task kinds."""
    return dict(_TASKS)


for _task in (Deduction(), Abduction(), Induction()):
    register(_task)
