"""Whether a base can be played on: it loads, it can be adapted, it samples, it learns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from selfplay.bases import resolve, style_of


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        parameters: of the base; `adapted` of one member of rank 8 on all linear layers.
        layers: linear layers that are adapted.
        head_size: of attention; vLLM serves 32 (on CPUs), 64, 80, 96, 112, 128 and more.
        positions: longest sequence; None if the base names none.
        style: of prompts, unless a run says otherwise.
        sample: what the base writes to a teacher's prompt.
        learned: whether one update moved every adapted layer.
    """

    base: str
    folder: str
    architecture: str
    parameters: int
    adapted: int
    layers: int
    head_size: int | None
    positions: int | None
    style: str
    sample: str
    learned: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def check(base: str) -> Checked:
    """Load a base, write with it, and let one member learn once.

    Raises:
        LoraEvoError: for a base that cannot be had or adapted.
    """
    from selfplay.engines import Request, Sampling
    from selfplay.engines.torch_engine import TorchEngine
    from selfplay.learner import Learner, LearnRules, Sample
    from selfplay.tasks import get

    engine = TorchEngine(base, slots=1)
    engine.fresh("m", 0)
    style = style_of(base, engine.has_chat)
    prompt = engine.prompt(get("deduction").proposal_prompt(style, []), style)
    stop = ("\n\n",) if style == "compact" else ()
    written = engine.generate([Request("m", prompt, seed) for seed in range(2)], Sampling(1.0, 64, stop))
    samples = [Sample("m", prompt, c.tokens, c.logprobs, 1.0 - 2 * i) for i, c in enumerate(written)]
    Learner(engine, LearnRules(mask_truncated=False)).update(samples)
    row = engine.bank.weights[0]
    config = engine.model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    return Checked(
        base=base,
        folder=resolve(base),
        architecture=(engine.model.config.architectures or [type(engine.model).__name__])[0],
        parameters=sum(p.numel() for p in engine.model.parameters()),
        adapted=row.numel(),
        layers=len(engine.bank.places),
        head_size=getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else None),
        positions=getattr(config, "max_position_embeddings", None),
        style=style,
        sample=written[0].text,
        learned=all(bool(torch.any(place.B(row) != 0)) for place in engine.bank.places.values()),
    )
