"""Servers of vLLM, here or on other machines, by the OpenAI protocol: token ids in, token ids and log-probabilities out.

Each server answers as many requests at once as it is asked; one that fails is taken out, and the others answer what it had.
"""

from __future__ import annotations

import errno
import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as Call

from selfplay.config import Config
from selfplay.engines.base import Completion, Request, Sampling
from selfplay.engines.versioned import VersionedEngine
from selfplay.engines.versions import ServeError, Version

AT_ONCE = 64
"""Requests under way at one server at one time."""

PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Said in every request: a server takes what is left out from the model's generation_config.json."""


class _DownError(Exception):
    """A server does not answer."""


class ServedEngine(VersionedEngine):
    """See `Engine`; whichever server is free answers.

    Args:
        given: base, rank, and `vllm.servers`, `vllm.store` and `vllm.timeout` of a run.

    Raises:
        ServeError: for a server that is not there, or was not started for this.
    """

    def __init__(self, given: Config, say: Callable[[str], None]) -> None:
        self.servers = [url.rstrip("/").removesuffix("/v1") for url in given.vllm.servers]
        self.timeout, self.say = given.vllm.timeout, say
        self._open = build_opener(ProxyHandler({})).open
        longest = given.sampling.prompt_tokens + max(given.sampling.proposal_tokens, given.sampling.answer_tokens)
        self._base = {url: self._checked(url, longest) for url in self.servers}
        super().__init__(given)

    def _written(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        names = [None if r.member is None else self.version(r.member).name for r in requests]
        found: dict[int, Completion] = {}
        todo = deque(range(len(requests)))

        def work(url: str) -> None:
            while url in self.servers:
                try:
                    i = todo.popleft()
                except IndexError:
                    return
                try:
                    found[i] = self._completed(url, names[i], requests[i], sampling)
                except _DownError as reason:
                    todo.append(i)
                    self._out(url, reason)

        while len(found) < len(requests):
            self._check_left()
            hands = [url for url in self.servers for _ in range(min(AT_ONCE, len(todo)))]
            with ThreadPoolExecutor(len(hands)) as pool:
                for one in [pool.submit(work, url) for url in hands]:
                    one.result()
        return [found[i] for i in range(len(requests))]

    def wake(self) -> None:
        """Nothing to do: servers have their own memory."""

    def sleep(self) -> None:
        """Nothing to do: servers have their own memory."""

    def close(self) -> None:
        """Take back what the servers have of ours."""
        for version in self.served.values():
            self._forget(version)
        self.versions.close()

    def _take(self, version: Version) -> None:
        self._tell("load_lora_adapter", {"lora_name": version.name, "lora_path": str(version.folder)})

    def _forget(self, version: Version) -> None:
        self._tell("unload_lora_adapter", {"lora_name": version.name}, strict=False)

    def _tell(self, what: str, body: dict[str, Any], strict: bool = True) -> None:
        """Say something to every server; what one refuses is an error only if `strict`."""
        for url in list(self.servers):
            try:
                self._call(url, what, body)
            except _DownError as reason:
                self._out(url, reason)
            except ServeError:
                if strict:
                    raise
        if strict:
            self._check_left()

    def _completed(self, url: str, name: str | None, request: Request, sampling: Sampling) -> Completion:
        model = name or self._base[url]
        body = {
            "model": model, "prompt": list(request.prompt), "seed": request.seed, "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature, "stop": list(sampling.stop), "stop_token_ids": sorted(self.endings.ends),
            "logprobs": 0, "return_token_ids": True, **PLAIN,
        }  # fmt: skip
        answer = self._call(url, "completions", body)
        (choice,) = answer["choices"]
        if answer["model"] != model or choice["prompt_token_ids"] != body["prompt"]:
            raise ConnectionAbortedError(f"{url} has answered as {answer['model']}, not as {model}, or to another prompt")
        logprobs = tuple(choice["logprobs"]["token_logprobs"])
        if choice["finish_reason"] not in ("stop", "length"):
            raise _DownError(f"it has given a completion up: {choice['finish_reason']}")
        return self.completion(sampling, tuple(choice["token_ids"]), logprobs, choice["finish_reason"])

    def _checked(self, url: str, longest: int) -> str:
        """The name of a server's base, once it is known to do what is needed."""
        try:
            (model, *_) = self._call(url, "models")["data"]
            if model["max_model_len"] < longest:
                raise ServeError(
                    f"{url} takes {model['max_model_len']} tokens, sampling needs {longest}: start it with --max-model-len"
                )
            _check_logprobs(url, self._call(url, "completions", _PROBE | {"model": model["id"]}))
            self._check_loading(url)
        except _DownError as reason:
            raise ServeError(f"vllm.servers: {url} does not answer ({reason})") from None
        return str(model["id"])

    def _check_loading(self, url: str) -> None:
        try:
            self._call(url, "unload_lora_adapter", {"lora_name": "none-of-that-name"})
        except ServeError as error:
            if "none-of-that-name" not in str(error):
                raise ServeError(
                    f"{url} loads no adapters: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                ) from None

    def _call(self, url: str, what: str, body: dict[str, Any] | None = None) -> Any:
        """What a server answers.

        Raises:
            ServeError: if it refuses.
            _DownError: if it fails.
        """
        data = None if body is None else json.dumps(body).encode()
        call = Call(f"{url}/v1/{what}", data, {"Content-Type": "application/json"})
        try:
            with self._open(call, timeout=self.timeout) as answer:
                said = answer.read()
        except HTTPError as error:
            reason = f"{error.code} {_reason(error)}"
            broken = error.code >= 500 and not (what == "load_lora_adapter" and self._healthy(url))
            if broken or (error.code == 404 and self._started_anew(what, body)):
                raise _DownError(reason) from None
            raise ServeError(f"{url}: {reason}") from None
        except (OSError, HTTPException) as error:
            raise _DownError(str(getattr(error, "reason", error)) or type(error).__name__) from None
        return json.loads(said) if said[:1] == b"{" else said.decode()

    def _healthy(self, url: str) -> bool:
        try:
            with self._open(f"{url}/health", timeout=self.timeout):
                return True
        except (OSError, HTTPException):
            return False

    def _started_anew(self, what: str, body: dict[str, Any] | None) -> bool:
        """Whether it is a member that the server does not know: every one was given to it before anything was asked."""
        return what == "completions" and body is not None and body["model"] in {v.name for v in self.served.values()}

    def _out(self, url: str, reason: Exception) -> None:
        if url in self.servers:
            self.servers.remove(url)
            self.say(f"{url} is taken out: {reason}; {len(self.servers)} left")
            self._last = f"{url}: {reason}"

    def _check_left(self) -> None:
        if not self.servers:
            raise OSError(errno.ECONNREFUSED, f"no server is left; the last was taken out for: {self._last}", "vllm.servers")


_PROBE = {"prompt": [0], "max_tokens": 1, "temperature": 1.0, "allowed_token_ids": [0], "logprobs": 0, **PLAIN}


def _check_logprobs(url: str, answer: Any) -> None:
    """With one token allowed, its log-probability is 0 if it is that of what was drawn from."""
    (logprob,) = answer["choices"][0]["logprobs"]["token_logprobs"]
    if abs(logprob) > 1e-3:
        raise ServeError(f"{url} gives raw log-probabilities: start it with --logprobs-mode processed_logprobs")


def _reason(error: HTTPError) -> str:
    """What an error's body says."""
    said = error.read().decode(errors="replace")
    try:
        return str(json.loads(said)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(said.split())[:300] or str(error.reason)
