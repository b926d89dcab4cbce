"""vLLM in processes of its own beside the learner: all members in one batch, each as an adapter of one base.

vLLM knows adapters by a number and a name. Every version of a member gets new ones and a folder of its own, and the old one
is released, so neither an adapter nor a cached prefix of an old version can answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from selfplay.bases import resolve
from selfplay.config import Config
from selfplay.engines.base import Completion, Request, Sampling
from selfplay.engines.versioned import VersionedEngine
from selfplay.engines.versions import ServeError, Version

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of vLLM's environment, unless it is set already: stdout is the command's own, and nothing is sent home."""


class VllmEngine(VersionedEngine):
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
        from selfplay.engines.orphans import descendants, mourner

        before = descendants()
        settings, self.sleeps = settings_of(given, members, _on_cpu()), given.device.startswith("cuda")
        super().__init__(given)
        self._asleep = False
        try:
            self._llm = vllm.LLM(resolve(given.base), **settings)
        except Exception as error:  # of many kinds; what is wrong stands in the log above
            self.versions.close()
            raise ServeError(f"vLLM does not start: {_said(error)}") from None
        self._mourner = mourner(descendants() - before)  # vLLM's processes outlive a parent that is killed

    def wake(self) -> None:
        """Take the memory of the GPU that `sleep` gave back."""
        if self._asleep:
            with _alive():
                self._llm.wake_up()
            self._asleep = False

    def sleep(self) -> None:
        """Give the GPU's memory to the learner: weights go to the host, keys and values are thrown away."""
        if self.sleeps and not self._asleep:
            with _alive():
                self._llm.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """End vLLM's processes and remove what was served."""
        self._llm.llm_engine.engine_core.shutdown()
        self._mourner.kill()
        self._mourner.wait()
        self.versions.close()

    def _take(self, version: Version) -> None:
        with _alive():
            try:
                self._llm.llm_engine.add_lora(_lora(version))
            except _dead():
                raise
            except Exception as error:  # whatever its loader raises
                raise ServeError(f"vLLM does not take {version.name}: {_said(error)}") from None

    def _forget(self, version: Version) -> None:
        with _alive():
            self._llm.llm_engine.remove_lora(version.number)

    def _written(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        from vllm import SamplingParams

        wanted = [None if r.member is None else _lora(self.version(r.member)) for r in requests]
        same: dict[str, Any] = {
            "temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "stop": list(sampling.stop), "logprobs": 0,
            "stop_token_ids": sorted(self.endings.ends),
        }  # fmt: skip
        params = [SamplingParams(seed=r.seed, **same) for r in requests]
        prompts = [{"prompt_token_ids": list(r.prompt)} for r in requests]
        with _alive():
            found = self._llm.generate(prompts, params, lora_request=wanted, use_tqdm=False)
        for one, lora in zip(found, wanted, strict=True):
            if one.lora_request != lora:
                raise ConnectionAbortedError(f"vLLM has answered as {one.lora_request}, not as {lora}")
        return [self._completion(one.outputs[0], sampling) for one in found]

    def _completion(self, written: Any, sampling: Sampling) -> Completion:
        if written.finish_reason not in ("stop", "length"):
            raise ConnectionAbortedError(f"vLLM has given a completion up ({written.finish_reason})")
        tokens = tuple(written.token_ids)
        logprobs = tuple(of[token].logprob for token, of in zip(tokens, written.logprobs, strict=True))
        return self.completion(sampling, tokens, logprobs, written.finish_reason)


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
    if on_cpu:  # vLLM 0.32 dies there of a prompt with a seed that is read in two parts
        settings["enable_chunked_prefill"] = False
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


def _lora(version: Version) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(version.name, version.number, str(version.folder))


def _dead() -> type[Exception]:
    from vllm.v1.engine.exceptions import EngineDeadError

    found: type[Exception] = EngineDeadError
    return found


@contextmanager
def _alive() -> Iterator[None]:
    """The death of vLLM's processes is a failure of this machine, not of what was asked."""
    try:
        yield
    except _dead() as error:
        raise ConnectionAbortedError(f"vLLM has died ({_said(error)})") from None


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
