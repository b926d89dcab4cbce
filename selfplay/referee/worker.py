"""The referee's end of one worker process: start, talk, end. Nothing here waits for a program."""

from __future__ import annotations

import marshal
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from selfplay.referee.answers import frame
from selfplay.referee.inside import wire
from selfplay.referee.limits import Settings

START_SECONDS = 30.0
_CHUNK = 1 << 16
_PACKAGE = Path(__file__).resolve().parents[1]
# The packages are entered by hand, so that the worker runs nothing of them but what is inside.
_BOOT = """
import sys
package, descriptor = sys.argv[1:]
for name, path in (("selfplay", package), ("selfplay.referee", package + "/referee")):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from selfplay.referee.inside.zygote import main
main(int(descriptor))
"""


class RefereeError(RuntimeError):
    """The referee cannot be started or kept alive on this machine; the message says why."""


class Worker:
    """A keeper and a zygote, reached over one socket. Start it, wait for `hello`, then send jobs and feed it what arrives.

    Attributes:
        equipped: whether the modules a program may import are loaded; a bare worker forks in half the time.
        layers: what the worker said of each layer, from `hello`.
        served: answers received so far.
    """

    def __init__(self, settings: Settings, hash_seed: int, equipped: bool = True) -> None:
        self.hash_seed = hash_seed
        self.equipped = equipped
        self.layers: dict[str, str] = {}
        self.landlock = ""
        self.served = 0
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.line, theirs = socket.socketpair()
        try:
            self.process = _start(theirs.fileno(), hash_seed)
        except OSError as error:
            self.line.close()
            raise RefereeError(f"no worker could be started: {error.strerror}") from error
        finally:
            theirs.close()
        self.line.setblocking(False)
        value = settings.limits.value
        first = {
            "imports": list(settings.imports),
            "equipped": equipped,
            "without": sorted(settings.without),
            "limits": asdict(settings.limits),
            "value_limits": (value.nodes, value.text, value.int_bits, value.depth),
        }
        self._outgoing += frame(marshal.dumps(first))

    def fileno(self) -> int:
        """For select."""
        return self.line.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._outgoing)

    def send(self, body: bytes) -> None:
        """Queue a message and write what goes."""
        self._outgoing += frame(body)
        self.flush()

    def flush(self) -> None:
        """Write what goes without waiting.

        Raises:
            EOFError: if the worker is gone.
        """
        try:
            while self._outgoing:
                del self._outgoing[: self.line.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            raise EOFError from None

    def arrived(self) -> list[bytes]:
        """The whole messages that have come in, without waiting.

        Raises:
            EOFError: if the worker is gone .
        """
        try:
            while part := self.line.recv(_CHUNK):
                self._incoming += part
                if len(part) < _CHUNK:
                    break
            else:
                raise EOFError
        except BlockingIOError:
            pass
        except OSError:
            raise EOFError from None
        messages = []
        while (body := self._next()) is not None:
            messages.append(body)
        return messages

    def _next(self) -> bytes | None:
        head = wire.LENGTH.size
        if len(self._incoming) < head:
            return None
        size = head + wire.LENGTH.unpack_from(self._incoming)[0]
        if len(self._incoming) < size:
            return None
        body = bytes(self._incoming[head:size])
        del self._incoming[:size]
        return body

    def hello(self, seconds: float = START_SECONDS) -> None:
        """Wait until the worker serves.

        Raises:
            RefereeError: if it does not in time.
        """
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self.flush()
                writing = [self.line] if self._outgoing else []
                if self.line in select.select([self.line], writing, [], left)[0] and (messages := self.arrived()):
                    self.layers, self.landlock = marshal.loads(messages[0])  # said before any program ran
                    return
        except (EOFError, ValueError):
            pass
        self.kill()
        raise RefereeError(f"a worker did not start (exit state {self.process.returncode}); interpreter: {sys.executable}")

    def kill(self) -> None:
        """End the keeper, the zygote and everything below them, and reap."""
        self.line.close()
        self.process.kill()
        self.process.wait()


def _start(descriptor: int, hash_seed: int) -> subprocess.Popen[bytes]:
    flags = ["-s", "-S", "-P", "-B"]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _BOOT, str(_PACKAGE), str(descriptor)],
        env={"PYTHONHASHSEED": str(hash_seed)},
        cwd="/",
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("LORA_EVO_REFEREE_DEBUG") else subprocess.DEVNULL,
        start_new_session=True,
    )
