# ruff: noqa: E501, N817
"""Programs nobody should have to run, with the verdict each must get: name -> (program, statuses, value when ok).

ESCAPE is how a program gets past the courtesy checks to any module that is loaded, as a real one would.
"""

from __future__ import annotations

from typing import Any

from selfplay.referee import Status as S

BARE = """
def modules():
    for kind in ().__class__.__base__.__subclasses__():
        if kind.__name__ == "_wrap_close":
            return kind.__init__.__globals__["sys"].modules
def mod(name):
    return modules()[name]
def forge(*records):
    frame = mod("sys")._getframe()
    while "shared" not in frame.f_locals: frame = frame.f_back
    pack, header, shared = frame.f_locals["record"].pack, frame.f_locals["header"], frame.f_locals["shared"]
    body = b"".join(pack(kind, len(text)) + text for kind, text in records)
    shared[: 8 + len(body)] = header.pack(len(body), 0x0E0F1CE5) + body
"""
ESCAPE = BARE + "# the word import brings a program to a worker that has more modules loaded\n"
LOADED = ("signal", "socket", "random", "threading", "subprocess", "atexit")
"""Modules the tests allow beside the usual, so that there is more to attack with."""
VICTIM = "/tmp/lora-evo-hostile-victim"
DROPPED = "/tmp/lora-evo-hostile-dropped"

PLAIN: dict[str, tuple[str, set[S], Any]] = {
    "endless loop": ("def f():\n while True: pass", {S.TIMEOUT}, None),
    "loop that swallows everything": ("def f():\n while 1:\n  try:\n   while 1: pass\n  except BaseException: pass", {S.TIMEOUT}, None),
    "endless loop at import": ("while True: pass\ndef f(): pass", {S.TIMEOUT}, None),
    "huge power": ("def f():\n return 10**10**10 % 7", {S.TIMEOUT, S.OUT_OF_MEMORY}, None),
    "huge constant": ("x = 1\ndef f():\n return (2**63)**(2**30) > 1", {S.TIMEOUT, S.OUT_OF_MEMORY}, None),
    "long C loop": ("def f():\n return sum(range(10**12))", {S.TIMEOUT}, None),
    "bad regular expression": ("import re\ndef f():\n return bool(re.match('(a+)+$', 'a' * 40 + 'b'))", {S.TIMEOUT}, None),
    "huge sort": ("def f():\n return len(sorted([str(i) for i in range(10**9)]))", {S.TIMEOUT, S.OUT_OF_MEMORY}, None),
    "memory bomb": ("def f():\n x = []\n while 1: x.append('a' * 1000000 + str(len(x)))", {S.OUT_OF_MEMORY}, None),
    "one huge block": ("def f():\n return len(bytearray(8 << 30))", {S.OUT_OF_MEMORY}, None),
    "endless list": ("def f():\n return list(iter(int, 1))", {S.OUT_OF_MEMORY, S.TIMEOUT}, None),
    "deep recursion": ("def f(n=0):\n return f(n + 1)", {S.RAISED}, None),
    "recursion that swallows": ("def f():\n try: return f()\n except RecursionError: return f()", {S.TIMEOUT, S.RAISED}, None),
    "system exit": ("def f():\n raise SystemExit(0)", {S.RAISED}, None),
    "keyboard interrupt": ("def f():\n raise KeyboardInterrupt", {S.RAISED}, None),
    "plain Exception": ("def f():\n raise Exception('x')", {S.RAISED}, None),
    "StopIteration": ("def f():\n raise StopIteration", {S.RAISED}, None),
    "exception with a loop for a text": ("class E(Exception):\n def __str__(s):\n  while 1: pass\n __repr__ = __str__\ndef f():\n raise E", {S.RAISED}, None),
    "exception with a loop for a name": (
        "class M(type):\n @property\n def __name__(c):\n  while 1: pass\nclass E(Exception, metaclass=M): pass\ndef f():\n raise E",
        {S.RAISED},
        None,
    ),
    "gigabytes on stdout": ("def f():\n for i in range(200): print('a' * 1000000)\n return 1", {S.OK}, 1),
    "reads stdin": ("def f():\n return input()", {S.RAISED}, None),
    "50 MB string": ("def f():\n return 'a' * 50_000_000", {S.TOO_LARGE}, None),
    "million parts": ("def f():\n return list(range(1000000))", {S.TOO_LARGE}, None),
    "doubling references": ("def f():\n x = [1]\n for i in range(60): x = [x, x]\n return x", {S.TOO_LARGE}, None),
    "cycle": ("def f():\n x = []\n x.append(x)\n return x", {S.TOO_LARGE}, None),
    "deep list": ("def f():\n x = []\n for i in range(500): x = [x]\n return x", {S.TOO_LARGE}, None),
    "huge integer": ("def f():\n return 1 << 100000", {S.TOO_LARGE}, None),
    "escapes that grow": ("def f():\n return '\\U0001F600' * 190000", {S.TOO_LARGE}, None),
    "equal to everything": ("class A:\n def __eq__(s, o): return True\n __hash__ = None\ndef f():\n return A()", {S.NOT_A_VALUE}, None),
    "equal to everything, inside": ("class A:\n def __eq__(s, o): return True\ndef f():\n return [1, (A(),)]", {S.NOT_A_VALUE}, None),
    "int that lies": ("class I(int):\n def __eq__(s, o): return True\n __hash__ = int.__hash__\ndef f():\n return I(3)", {S.NOT_A_VALUE}, None),
    "str with a repr": ("class T(str):\n def __repr__(s): return '42'\ndef f():\n return T('x')", {S.NOT_A_VALUE}, None),
    "instance that claims to be int": ("class A:\n __class__ = int\ndef f():\n return A()", {S.NOT_A_VALUE}, None),
    "generator": ("def f():\n return (x for x in [1])", {S.NOT_A_VALUE}, None),
    "entry is a generator": ("def f():\n yield 1", {S.NOT_A_VALUE}, None),
    "function": ("def f():\n return f", {S.NOT_A_VALUE}, None),
    "named tuple": ("from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f():\n return P(1, 2)", {S.NOT_A_VALUE}, None),
    "bytearray": ("def f():\n return bytearray(b'x')", {S.NOT_A_VALUE}, None),
    "nan": ("def f():\n return [float('nan')]", {S.OK}, [float("nan")]),
    "finalizer that loops": ("class A:\n def __del__(s):\n  while 1: pass\ndef f():\n g.append(A())\n return 1\ng = []", {S.OK}, 1),
    "finalizer that loops at once": ("class A:\n def __del__(s):\n  while 1: pass\ndef f():\n A()\n return 1", {S.TIMEOUT}, None),
    "finalizer that raises": ("class A:\n def __del__(s): raise SystemExit\ndef f():\n A()\n return 1", {S.OK}, 1),
    "forbidden import": ("import os\ndef f():\n return 1", {S.FORBIDDEN_IMPORT}, None),
    "forbidden import, dotted": ("import os.path\ndef f():\n return 1", {S.FORBIDDEN_IMPORT}, None),
    "forbidden import, from": ("from os import path\ndef f():\n return 1", {S.FORBIDDEN_IMPORT}, None),
    "forbidden import, in a branch": ("def f():\n if 0:\n  import ctypes\n return 1", {S.FORBIDDEN_IMPORT}, None),
    "forbidden import, by call": ("def f():\n return __import__('sqlite3')", {S.FORBIDDEN_IMPORT}, None),
    "forbidden import, in exec": ("def f():\n exec('import sqlite3')", {S.FORBIDDEN_IMPORT}, None),
    "relative import": ("from . import x\ndef f():\n return 1", {S.FORBIDDEN_IMPORT}, None),
    "open a file": ("def f():\n return open('/etc/passwd').read()", {S.RAISED}, None),
    "does not compile": ("def f(:", {S.SYNTAX_ERROR}, None),
    "null bytes": ("def f(): return 1\0", {S.SYNTAX_ERROR}, None),
    "lone surrogate": ("def f(): return '\ud800'", {S.SYNTAX_ERROR}, None),
    "deep parentheses": ("x = " + "(" * 5000 + ")" * 5000 + "\ndef f(): return 1", {S.SYNTAX_ERROR}, None),
    "deep signs": ("x = " + "-" * 40000 + "1\ndef f(): return 1", {S.SYNTAX_ERROR, S.CRASHED}, None),
    "huge text": ("#" * 100000 + "\ndef f(): return 1", {S.TOO_LARGE}, None),
    "no function": ("def g(): return 1", {S.NO_ENTRY_FUNCTION}, None),
    "entry is an object": ("class A:\n def __call__(s): return 1\nf = A()", {S.NO_ENTRY_FUNCTION}, None),
    "wrong arguments": ("def f(a, b): return 1", {S.RAISED}, None),
}  # fmt: skip

ESCAPED: dict[str, tuple[str, set[S], Any]] = {
    "exit": ("def f():\n mod('os')._exit(0)", {S.EXITED}, None),
    "exit, claiming that the referee failed": ("def f():\n mod('os')._exit(78)", {S.EXITED}, None),
    "exit, claiming a full page": ("def f():\n mod('os')._exit(77)", {S.EXITED}, None),
    "fork bomb": ("def f():\n while 1: mod('os').fork()", {S.RAISED}, None),
    "fork bomb that tries on": (
        "def f():\n while 1:\n  try: mod('os').fork()\n  except OSError: pass", {S.TIMEOUT}, None),
    "daemon": (
        "def f():\n os = mod('os')\n if os.fork() == 0:\n  os.setsid()\n  while 1: pass\n return 1", {S.RAISED}, None),
    "thread": ("def f():\n return mod('_thread').start_new_thread(f, ())", {S.RAISED}, None),
    "reads a file": ("def f():\n os = mod('os')\n return os.read(os.open('/etc/passwd', 0), 9)", {S.RAISED}, None),
    "lists a folder": ("def f():\n return mod('os').listdir('/root')", {S.RAISED}, None),
    "environment": (
        "def f():\n return sorted(set(mod('os').environ) - {'LC_CTYPE'})", {S.OK}, ["PYTHONHASHSEED"]),
    "environment of the parent": (
        "def f():\n return open('/proc/%d/environ' % mod('os').getppid()).read()", {S.RAISED}, None),
    "writes a file": (f"def f():\n open({DROPPED!r}, 'w').write('x')\n return 1", {S.RAISED}, None),
    "writes here": ("def f():\n open('x', 'w').write('x')\n return 1", {S.RAISED}, None),
    "removes a file": (f"def f():\n mod('os').unlink({VICTIM!r})\n return 1", {S.RAISED}, None),
    "kills the worker": ("def f():\n mod('os').kill(mod('os').getppid(), 9)\n return 1", {S.RAISED}, None),
    "stops the worker": ("def f():\n mod('os').kill(mod('os').getppid(), 19)\n return 1", {S.RAISED}, None),
    "kills everybody": ("def f():\n mod('os').kill(-1, 9)\n return 1", {S.RAISED}, None),
    "kills its group": ("def f():\n mod('os').killpg(0, 9)\n return 1", {S.RAISED}, None),
    "kills itself": ("def f():\n mod('os').kill(mod('os').getpid(), 9)\n return 1", {S.RAISED}, None),
    "traces the worker": (
        "def f():\n c = mod('ctypes').CDLL(None, use_errno=True)\n"
        " return c.ptrace(16, mod('os').getppid(), 0, 0)", {S.OK}, -1),
    "raises its limits": (
        "def f():\n r = mod('resource')\n r.setrlimit(r.RLIMIT_CPU, (100, 100))", {S.RAISED}, None),
    "ignores every signal and loops": (
        "def f():\n s = mod('signal')\n for i in range(1, 32):\n  try: s.signal(i, s.SIG_IGN)\n"
        "  except Exception: pass\n while 1: pass", {S.TIMEOUT}, None),
    "tcp": ("def f():\n mod('socket').create_connection(('127.0.0.1', 80))", {S.RAISED}, None),
    "udp": ("def f():\n s = mod('socket')\n s.socket(2, 2).sendto(b'x', ('127.0.0.1', 53))", {S.RAISED}, None),
    "socket pair": ("def f():\n mod('socket').socketpair()", {S.RAISED}, None),
    "shell": ("def f():\n return mod('os').system('true') == 0", {S.OK}, False),
    "exec": ("def f():\n mod('os').execv('/bin/true', ['true'])", {S.RAISED}, None),
    "recursion without a limit": (
        "def f():\n mod('sys').setrecursionlimit(10**9)\n class A:\n  def __getattr__(s, n): return getattr(s, n)\n"
        " return A().x", {S.CRASHED, S.TIMEOUT, S.OUT_OF_MEMORY, S.RAISED}, None),
    "reads address zero": ("def f():\n return mod('ctypes').string_at(0)", {S.CRASHED}, None),
    "import hook": (
        "class H:\n def find_spec(s, name, path=None, target=None): raise SystemExit\n"
        "def f():\n mod('sys').meta_path.insert(0, H())\n return 1", {S.OK}, 1),
    "patched builtins": (
        "def f():\n b = mod('builtins')\n for n in ('len', 'type', 'sorted', 'isinstance'): setattr(b, n, None)\n return 1",
        {S.OK, S.RAISED, S.EXITED}, None),
    "patched json and math": (
        "def f():\n mod('json').dumps = None\n mod('json').loads = None\n mod('math').sqrt = lambda x: 42\n return 1",
        {S.OK, S.RAISED}, None),
    "exit handler": ("def f():\n mod('atexit').register(f)\n return 1", {S.RAISED, S.OK}, None),
    "messages on every descriptor": (
        "def f():\n os = mod('os')\n for n in range(256):\n  try: os.write(n, b'\\x00\\x01\\x00\\x00\\x009' * 9)\n"
        "  except OSError: pass\n return 7", {S.OK}, 7),
    "closes every descriptor": ("def f():\n mod('os').closerange(0, 256)\n return 7", {S.OK}, 7),
    "garbage on the page": (
        "def f():\n r = mod('selfplay.referee.inside.runner')\n fr = mod('sys')._getframe()\n"
        " while fr and 'shared' not in fr.f_locals: fr = fr.f_back\n"
        " p = fr.f_locals['shared']\n p[:] = b'\\xff' * len(p)\n mod('os')._exit(0)", {S.TAMPERED}, None),
    "one record too many on the page, and on": ("def f():\n forge((0, b'1'), (0, b'2'))\n return 2", {S.OK}, 2),
    "one record too many on the page": ("def f():\n forge((0, b'1'), (0, b'2'))\n mod('os')._exit(0)", {S.TAMPERED}, None),
    "no value on the page": ("def f():\n forge((0, b'{\"x\": [1]}'))\n mod('os')._exit(0)", {S.TAMPERED}, None),
    "deep json on the page": (
        "def f():\n forge((0, b'[' * 100000 + b']' * 100000))\n mod('os')._exit(0)", {S.TAMPERED}, None),
    "unknown kind on the page": ("def f():\n forge((99, b''))\n mod('os')._exit(0)", {S.TAMPERED}, None),
    "looks for other tasks in the worker": (
        "def f():\n fr = mod('sys')._getframe()\n found = set()\n while fr:\n"
        "  found |= {k for k in fr.f_locals if k in ('gold', 'expected', 'outputs', 'solution')}\n  fr = fr.f_back\n"
        " return found", {S.OK}, set()),
    "new namespaces": (
        "def f():\n c = mod('ctypes').CDLL(None, use_errno=True)\n return c.unshare(0x10000000)", {S.OK}, -1),
    "maps more than it may": ("def f():\n return len(mod('mmap').mmap(-1, 4 << 30))", {S.RAISED, S.OUT_OF_MEMORY}, None),
}  # fmt: skip

UNSTEADY: dict[str, str] = {
    "hash order": "def f():\n return list({'a', 'b', 'c', 'd', 'e', 'g', 'h', 'i'})",
    "hash": "def f():\n return hash('a')",
    "id": "def f():\n return id(f)",
    "default repr": "def f():\n return repr(object())",
    "time": ESCAPE + "def f():\n return mod('time').time()",
    "random": ESCAPE + "def f():\n return mod('random').random()",
    "counter": "n = [0]\ndef f():\n n[0] += 1\n return n[0]",
    "mutable default": "def f(a=[]):\n a.append(1)\n return a",
    "raises the second time": "n = []\ndef f():\n if n: raise ValueError\n n.append(1)\n return 1",
    "raises under one hash": "def f():\n if list({'a', 'b', 'c', 'd', 'e', 'g'})[0] == ORDER: raise ValueError\n return 1",
    "process id": ESCAPE + "def f():\n return mod('os').urandom(4)",
}
STEADY: dict[str, tuple[str, Any]] = {
    "set": ("def f():\n return {'a', 'b', 'c', 'd', 'e'}", set("abcde")),
    "dict filled from a set": ("def f():\n return {k: 1 for k in {'a', 'b', 'c', 'd'}}", dict.fromkeys("abcd", 1)),
    "frozensets in a set": ("def f():\n return {frozenset({'x', 'y'}), frozenset()}", {frozenset("xy"), frozenset()}),
    "nan": ("def f():\n return float('inf') - float('inf')", float("nan")),
}
