"""The layers around a program: what the worker puts on itself, and what each program's process puts on itself.

Each layer is tried, and what the kernel said is kept: `on`, or the reason why not. Nothing is assumed.
"""

from __future__ import annotations

import os
import resource

from selfplay.referee.inside import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

ON = "on"
_NOBODY = 65534
_SPACES = {
    "network_namespace": kernel.NEW_NET,
    "ipc_namespace": kernel.NEW_IPC | kernel.NEW_UTS,
    "pid_namespace": kernel.NEW_PID,
}
_MOUNT_POINTS = ("/tmp", "/proc", "/usr", "/var", "/mnt", "/dev")


class Jail:
    """The layers of one worker; `said` maps each layer's name to ON or to why it is missing."""

    def __init__(self, without: Collection[str], limits: dict[str, Any]) -> None:
        self.without = set(without)
        self.limits = limits
        self.said: dict[str, str] = {}
        self.ruleset = -1
        self.filter: Any = None
        self.steps: list[Callable[[], int]] = []

    def attempt(self, layer: str, put_on: Callable[[], object]) -> bool:
        """Put a layer on and note how it went."""
        if layer in self.without:
            self.said[layer] = "left out"
            return False
        try:
            put_on()
        except (OSError, ValueError) as error:
            self.said[layer] = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return False
        self.said[layer] = ON
        return True

    # The keeper, before it starts the worker.

    def leave_namespaces(self) -> None:
        """New namespaces for the processes to come: directly as root, else inside a user namespace."""
        if not self._privileged():
            if os.geteuid() == 0 and "unprivileged" not in self.without:
                self.attempt("unprivileged", _become_nobody)
            self.attempt("user_namespace", _new_user)
        for layer, flag in _SPACES.items():
            self.attempt(layer, lambda flag=flag: kernel.unshare(flag))  # type: ignore[misc]

    def _privileged(self) -> bool:
        if os.geteuid() != 0:
            return False
        try:
            kernel.unshare(kernel.NEW_UTS)
        except OSError:
            return False
        self.said["user_namespace"] = "not needed: started by root"
        return True

    # The worker, before it serves.

    def close(self) -> None:
        """Put on everything a worker can live with; the rest is left to `enter`."""
        if self.said["pid_namespace"] != ON:
            self.said["empty_root"] = "needs a process namespace"
        if self.said["pid_namespace"] != ON or not self.attempt("empty_root", _empty_root):
            _stand_nowhere()
        if os.geteuid() == 0 and self.said.get("unprivileged") != ON:
            self.attempt("unprivileged", _become_nobody)
        else:
            self.said.setdefault("unprivileged", "not needed: started by an ordinary user")
        if "unprivileged" not in self.without:
            kernel.drop_capabilities()
        self.attempt("no_new_privileges", kernel.no_new_privileges)
        self.attempt("rlimits", self._limit_worker)
        self.attempt("landlock", self._make_ruleset)
        self.attempt("seccomp", self._make_filter)

    def _limit_worker(self) -> None:
        for which, amount in (
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_NOFILE, 32),
            (resource.RLIMIT_STACK, 8 << 20),
            (resource.RLIMIT_AS, self.limits["memory_mb"] << 20),
        ):
            hard = resource.getrlimit(which)[1]
            if hard == resource.RLIM_INFINITY or hard > amount:
                resource.setrlimit(which, (amount, amount))

    def _make_ruleset(self) -> None:
        self.ruleset = kernel.landlock_ruleset()

    def _make_filter(self) -> None:
        self.filter = kernel.seccomp_program()

    # The program's process, before the program.

    def prepare(self) -> None:
        """Make the list of what every program's process does, so that doing it touches little memory."""
        self.steps = self._steps(())

    def _steps(self, without: Collection[str]) -> list[Callable[[], int]]:
        steps: list[Callable[[], int]] = []
        if self.said.get("pid_namespace") != ON:
            steps.append(kernel.call_die_with_parent())
        if self.said["rlimits"] == ON and "rlimits" not in without:
            seconds = self.limits["cpu_seconds"]
            steps.append(kernel.call_limit(resource.RLIMIT_CPU, seconds, seconds + 1))
            steps.append(kernel.call_limit(resource.RLIMIT_NPROC, 0, 0))
        if self.ruleset >= 0:
            if "landlock" not in without:
                steps.append(kernel.call_landlock(self.ruleset))
            steps.append(kernel.call_close(self.ruleset))
        if self.filter is not None and "seccomp" not in without:
            steps.append(kernel.call_seccomp(self.filter))
        return steps

    def enter(self, without: Collection[str]) -> None:
        """Put on the last layers; `without` leaves some out (the self-test's way of asking each alone).

        Raises:
            OSError: if one that worked for this worker before now does not.
        """
        os.setsid()
        for step in self._steps(without) if without else self.steps:
            if step() < 0:
                raise kernel.failed()


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kernel.stay_readable()


def _new_user() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{_NOBODY} {user} 1"), ("gid_map", f"{_NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _empty_root() -> None:
    kernel.unshare(kernel.NEW_MOUNT)
    error: OSError | None = None
    for place in _MOUNT_POINTS:
        try:
            return kernel.enter_empty_root(place)
        except OSError as refused:
            error = refused
    assert error is not None
    raise error


def _stand_nowhere() -> None:
    """The working directory becomes an empty folder that is already deleted: nothing can be made in it."""
    import tempfile  # only here: it brings a dozen libraries that every fork would pay for

    try:
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
    except OSError:
        os.chdir("/")
