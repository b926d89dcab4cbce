"""The few system calls that Python has no name for, through ctypes. Every function raises OSError when the kernel refuses."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from _functools import partial  # the plain one: `functools` brings `collections`, for every fork to carry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NEW_USER, NEW_PID, NEW_NET, NEW_MOUNT = 0x10000000, 0x20000000, 0x40000000, 0x00020000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x08000000, 0x04000000, 0x02000000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 32, 16384, 1 << 18
_DETACH = 2
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)

_MACHINE = os.uname().machine if sys.platform == "linux" else ""
_SECCOMP, _PIVOT_ROOT, _CAPSET = {"x86_64": (317, 155, 126), "aarch64": (277, 41, 91)}.get(_MACHINE, (-1, -1, -1))


def failed() -> OSError:
    """The error of the last call that returned less than 0."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _done(result: int) -> int:
    if result < 0:
        raise failed()
    return result


def _prctl(option: int, value: int) -> None:
    _done(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def die_with_parent() -> None:
    """Get SIGKILL when the thread that started this process ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def trim_memory() -> None:
    """Give freed memory back, so that forks need not carry it."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stay_readable() -> None:
    """Keep the own /proc entry writable after a change of user, as the maps of a user namespace need it."""
    _prctl(_PR_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    """Never gain a privilege again, and let no equal user look inside."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


def unshare(flags: int) -> None:
    """Leave the named namespaces for new ones."""
    _done(_libc.unshare(flags))


def drop_capabilities() -> None:
    """Give up every capability."""
    header = struct.pack("<Ii", 0x20080522, 0)
    _done(_libc.syscall(_CAPSET, header, bytes(24)))


def enter_empty_root(place: str) -> None:
    """Make a fresh, empty, read-only file system the root; `place` is a folder to mount it on. Needs a mount namespace."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("none", place, "tmpfs", flags, "size=4k,nr_inodes=1,mode=555")
    os.chdir(place)
    _done(_libc.syscall(_PIVOT_ROOT, b".", b"."))
    _done(_libc.umount2(b".", _DETACH))
    os.chdir("/")
    _mount(None, "/", None, _MS_REMOUNT | _MS_RDONLY | flags)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    text = [x.encode() if x is not None else None for x in (source, target, kind, data)]
    _done(_libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]))


def landlock_ruleset() -> int:
    """A descriptor of rules that allow nothing: no file, no TCP, no signal or abstract socket beyond the own domain."""
    abi = _done(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    attributes = struct.pack("<QQQ", (1 << bits) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _done(_libc.syscall(_LANDLOCK_CREATE, attributes, size, 0))


def landlock_scope() -> str:
    """What Landlock of this kernel covers, in words."""
    abi = _done(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    covers = ["files", *(["tcp"] if abi >= 4 else []), *(["signals"] if abi >= 6 else [])]
    return f"ABI {abi}: {', '.join(covers)}"


_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE3 = 435
# What a Python program needs to compute and to end. Nothing that opens, sends, signals, starts or traces.
_ALLOWED = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "nanosleep": 35, "getpid": 39, "exit": 60, "gettimeofday": 96, "getrusage": 98, "times": 100, "sigaltstack": 131,
        "gettid": 186, "time": 201, "futex": 202, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
        "clock_nanosleep": 230, "exit_group": 231, "getrandom": 318, "rseq": 334,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215,
        "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216,
        "madvise": 233, "nanosleep": 101, "getpid": 172, "exit": 93, "gettimeofday": 169, "getrusage": 165, "times": 153,
        "sigaltstack": 132, "gettid": 178, "futex": 98, "restart_syscall": 128, "clock_gettime": 113, "clock_getres": 114,
        "clock_nanosleep": 115, "exit_group": 94, "getrandom": 278, "rseq": 293,
    },
}  # fmt: skip
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def seccomp_program() -> ctypes.Structure:
    """The filter, ready to be put on: an allow-list; all else fails with EPERM (clone3 with ENOSYS, as libc expects).

    Raises:
        OSError: on a machine the list was not written for.
    """
    if _MACHINE not in _ALLOWED:
        raise OSError(_ENOSYS, f"no system call list for {_MACHINE or sys.platform}")
    code = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[_MACHINE]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    code += _search(sorted(_ALLOWED[_MACHINE].values()))
    text = b"".join(struct.pack("<HBBI", *step) for step in code)
    return _Program(len(code), text)


def _search(allowed: list[int]) -> list[tuple[int, int, int, int]]:
    """Binary search for the call's number: the kernel walks the filter once per number when it is put on."""
    if len(allowed) > 2:
        half = len(allowed) // 2
        low, high = _search(allowed[:half]), _search(allowed[half:])
        return [(_JUMP_AT_LEAST, len(low), 0, allowed[half]), *low, *high]
    tests = [(_JUMP_EQUAL, len(allowed) - i + 2, 0, number) for i, number in enumerate(allowed)]
    tests += [(_JUMP_EQUAL, 1, 0, _CLONE3), (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    return [*tests, (_RETURN, 0, 0, _ALLOW)]


# What a program's process calls between the fork and the program, with everything bound before: each returns < 0 on failure.


def call_landlock(ruleset: int) -> Callable[[], int]:
    """Put the rules on this process and all it starts, for ever."""
    return partial(_libc.syscall, _LANDLOCK_RESTRICT, ruleset, 0)


def call_seccomp(program: ctypes.Structure) -> Callable[[], int]:
    """Put the filter on this process, for ever. Needs `no_new_privileges` before."""
    return partial(_libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def call_limit(which: int, soft: int, hard: int) -> Callable[[], int]:
    """Limit a resource of this process."""
    return partial(_libc.setrlimit, which, (ctypes.c_ulong * 2)(soft, hard))


def call_close(descriptor: int) -> Callable[[], int]:
    """Close a descriptor."""
    return partial(_libc.close, descriptor)


def call_die_with_parent() -> Callable[[], int]:
    """As `die_with_parent`."""
    return partial(_libc.prctl, _PR_SET_PDEATHSIG, 9, 0, 0, 0)
