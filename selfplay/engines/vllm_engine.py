"""vLLM in processes of its own beside the learner: all members in one batch, each as an adapter of one base.

vLLM knows adapters by a number and a name. Every version of a member gets new ones and a folder of its own, and the old one
is released, so neither an adapter nor a cached prefix of an old version can answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, get_args

from lora_evo import Adapter
from selfplay.bases import resolve
from selfplay.config import Config
from selfplay.engines.bank import MemberError
from selfplay.engines.base import Completion, Request, Sampling
from selfplay.engines.endings import Endings
from selfplay.engines.prompts import prompt_ids
from selfplay.engines.versions import ServeError, Version, Versions, digest_of
from selfplay.tasks import Style

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of vLLM's environment, unless it is set already: stdout is the command's own, and nothing is sent home."""


class VllmEngine:
    """See `Engine`.

    Args:
        given: base, dtype, rank and the branch `vllm` of a run.
        members: adapters at one time.

    Raises:
        ServeError: if vLLM is not there or cannot start so.
    """

    def __init__(self, given: Config, members: int) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        vllm = _package()
        base, self.sleeps = resolve(given.base), given.device.startswith("cuda")
        settings = settings_of(given, members, _on_cpu())
        self.endings = Endings.read(base)
        self.versions = Versions(given.lora.rank, given.vllm.store)
        self._served: dict[str, Version] = {}
        self._asleep = False
        try:
            self._llm = vllm.LLM(base, **settings)
        except Exception as error:  # of many kinds; what is wrong stands in the log above
            self.versions.close()
            raise ServeError(f"vLLM does not start: {_said(error)}") from None

    @property
    def members(self) -> tuple[str, ...]:
        """Names, in the order they came."""
        return tuple(self._served)

    def prompt(self, text: str, style: Style) -> tuple[int, ...]:
        """See `Engine.prompt`."""
        return prompt_ids(self.endings.tokenizer, text, style)

    def put(self, name: str, adapter: Adapter) -> None:
        """Serve these weights under a member's name from now on; weights that it has already change nothing.

        Raises:
            ServeError: for an adapter that vLLM cannot serve; the member is then as it was.
        """
        digest, old = digest_of(adapter), self._served.get(name)
        if old and old.digest == digest:
            return
        new = self.versions.write(name, adapter, digest)
        try:
            self._llm.llm_engine.add_lora(_lora(new))
        except Exception as error:
            self.versions.release(new)
            raise ServeError(f"vLLM does not take {name}: {_said(error)}") from None
        self._served[name] = new
        if old:
            self._release(old)

    def drop(self, name: str) -> None:
        """Let a member go."""
        self._release(self._version(name))
        del self._served[name]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order.

        Raises:
            MemberError: for an unknown member.
            OSError: if vLLM has died.
        """
        found: dict[int, Completion] = {}
        for part in apart(requests):
            found.update(zip(part, self._written([requests[i] for i in part], sampling), strict=True))
        return [found[i] for i in range(len(requests))]

    def _written(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        from vllm import SamplingParams
        from vllm.v1.engine.exceptions import EngineDeadError

        wanted = [None if r.member is None else _lora(self._version(r.member)) for r in requests]
        same: dict[str, Any] = {
            "temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "stop": list(sampling.stop), "logprobs": 0,
            "stop_token_ids": sorted(self.endings.ends),
        }  # fmt: skip
        params = [SamplingParams(seed=r.seed, **same) for r in requests]
        prompts = [{"prompt_token_ids": list(r.prompt)} for r in requests]
        try:
            found = self._llm.generate(prompts, params, lora_request=wanted, use_tqdm=False)
        except EngineDeadError as error:
            raise ConnectionAbortedError(f"vLLM has died ({_said(error)})") from None
        for one, lora in zip(found, wanted, strict=True):
            answered = one.lora_request.lora_int_id if one.lora_request else None
            assert answered == (lora.lora_int_id if lora else None), f"{answered} has answered for {lora}"
        return [completion(self.endings, sampling, *_parts(one.outputs[0])) for one in found]

    def wake(self) -> None:
        """Take the memory of the GPU that `sleep` gave back."""
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def sleep(self) -> None:
        """Give the GPU's memory to the learner: weights go to the host, keys and values are thrown away."""
        if self.sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """End vLLM's processes and remove what was served."""
        self._llm.llm_engine.engine_core.shutdown()
        self.versions.close()

    def _version(self, name: str) -> Version:
        if name not in self._served:
            raise MemberError(f"no member {name}; there are {', '.join(self._served) or 'none'}")
        return self._served[name]

    def _release(self, version: Version) -> None:
        self._llm.llm_engine.remove_lora(version.number)
        self.versions.release(version)


def apart(requests: Sequence[Request]) -> list[list[int]]:
    """Places of the requests to the base, and of those to members.

    vLLM's LoRA layers for CPUs (0.32) mark a row without an adapter by -1 and read the last adapter for it, unless no row has one.
    """
    base = [i for i, r in enumerate(requests) if r.member is None]
    members = [i for i, r in enumerate(requests) if r.member is not None]
    return [part for part in (base, members) if part]


def settings_of(given: Config, members: int, on_cpu: bool) -> dict[str, Any]:
    """What `vllm.LLM` is told.

    Raises:
        ServeError: for a rank or a number of adapters that it cannot serve.
    """
    chosen, sampling = given.vllm, given.sampling
    slots = chosen.max_loras or members
    settings: dict[str, Any] = {
        "dtype": given.dtype, "seed": 0, "max_num_seqs": given.sequences, "tensor_parallel_size": chosen.tensor_parallel,
        "max_model_len": sampling.prompt_tokens + max(sampling.proposal_tokens, sampling.answer_tokens),
        "enable_prefix_caching": True, "logprobs_mode": "processed_logprobs", "disable_log_stats": True, "use_tqdm_on_load": False,
        "enable_lora": True, "max_loras": slots, "max_cpu_loras": max(members + 1, slots),
        "max_lora_rank": lora_rank(given.lora.rank),
        "gpu_memory_utilization": chosen.gpu_memory, "enforce_eager": chosen.enforce_eager or on_cpu,
    }  # fmt: skip
    if chosen.cache_gb or on_cpu:
        settings["kv_cache_memory_bytes"] = int((chosen.cache_gb or 1) * 2**30)
    if given.device.startswith("cuda"):
        settings["enable_sleep_mode"] = True
    return settings


def lora_rank(rank: int) -> int:
    """The rank that vLLM is started for: the smallest it knows that is not below.

    Raises:
        ServeError: if there is none.
    """
    from vllm.config.lora import MaxLoRARanks

    known = sorted(get_args(MaxLoRARanks))
    if rank > known[-1]:
        raise ServeError(f"lora.rank is {rank}; vLLM serves ranks up to {known[-1]}")
    return next(allowed for allowed in known if allowed >= rank)


def completion(
    endings: Endings, sampling: Sampling, tokens: tuple[int, ...], logprobs: tuple[float, ...], finish: str | None
) -> Completion:
    """What vLLM wrote, in the form of every engine."""
    if finish not in ("stop", "length"):
        raise ConnectionAbortedError(f"vLLM has given a completion up ({finish})")
    text = endings.cut(tokens, sampling.stop) if finish == "stop" else endings.text(tokens)
    return Completion(tokens, logprobs, text, "stop" if finish == "stop" else "length")


def _parts(written: Any) -> tuple[tuple[int, ...], tuple[float, ...], str | None]:
    tokens = tuple(written.token_ids)
    return tokens, tuple(of[token].logprob for token, of in zip(tokens, written.logprobs, strict=True)), written.finish_reason


def _lora(version: Version) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(version.name, version.number, str(version.folder))


def _package() -> Any:
    try:
        import vllm
    except ImportError as error:
        raise ServeError(f"engine is vllm, which cannot be imported ({_said(error)}): pip install 'lora-evo[vllm]'") from None
    return vllm


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
