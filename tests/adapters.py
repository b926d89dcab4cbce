"""Small adapters for the tests: plain factors, adapters in memory, folders written by hand, folders written by PEFT."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lora_evo.adapter import Adapter, LoraFactors
from lora_evo.peft_format.config import DEFAULTS

PREFIX = "base_model.model."
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
ATTN = ["q_proj", "k_proj", "v_proj", "o_proj"]
IDS = torch.tensor([[1, 5, 60, 7, 33, 2, 5, 63]])


# ---------------------------------------------------------------- factors and adapters in memory


def random_factors(
    seed: int,
    out: int = 10,
    width: int = 8,
    r: int = 3,
    *,
    scale: float = 1.0,
    blocks: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> LoraFactors:
    rng = np.random.default_rng([seed, out, width, r])
    A, B = rng.standard_normal((*blocks, r, width)), rng.standard_normal((*blocks, out, r))
    return LoraFactors(torch.tensor(A).to(dtype), torch.tensor(B).to(dtype), scale)


def dense(f: LoraFactors) -> np.ndarray:
    """scale * B @ A in float64."""
    return f.scale * (f.B.double().numpy() @ f.A.double().numpy())


def regauged(f: LoraFactors, G: np.ndarray) -> LoraFactors:
    """The same delta with other factors: (B G, G^-1 A)."""
    B = torch.tensor(f.B.double().numpy() @ G).to(f.B.dtype)
    A = torch.tensor(np.linalg.solve(G, f.A.double().numpy())).to(f.A.dtype)
    return LoraFactors(A, B, f.scale)


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| over the larger of the two norms."""
    size = max(np.linalg.norm(a), np.linalg.norm(b))
    return float(np.linalg.norm(a - b) / size) if size > 0 else 0.0


def best(matrix: np.ndarray, rank: int) -> np.ndarray:
    """The dense truncated SVD, block by block."""
    U, s, V = np.linalg.svd(matrix, full_matrices=False)
    return (U[..., :rank] * s[..., None, :rank]) @ V[..., :rank, :]


def layered(layers: int = 2, modules: tuple[str, ...] = ("self_attn.q_proj", "mlp.up_proj")) -> list[str]:
    return [f"model.layers.{i}.{m}" for i in range(layers) for m in modules]


def memory_adapter(
    seed: int,
    names: list[str] | None = None,
    *,
    r: int = 3,
    alpha: float = 6,
    name: str = "parent",
    extras: Mapping = {},
    **config: Any,
) -> Adapter:
    """An adapter without a file: 10 x 8 modules of rank r."""
    modules = {n: random_factors(seed * 1000 + i, r=r, scale=alpha / r) for i, n in enumerate(names or layered())}
    targets = sorted({n.rsplit(".", 1)[-1] for n in modules})
    settings = {**DEFAULTS, "r": r, "lora_alpha": alpha, "target_modules": targets, **config}
    return Adapter(modules, settings, extras=dict(extras), name=name)


def same_factors(a: LoraFactors, b: LoraFactors) -> bool:
    """Bit for bit, as they would be stored."""
    return (a.A.dtype, a.B.dtype) == (b.A.dtype, b.B.dtype) and same_bits(a.A, b.A) and same_bits(a.B, b.B) and a.scale == b.scale


def same_bits(a: Tensor, b: Tensor) -> bool:
    def raw(t: Tensor) -> bytes:
        return t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()

    return a.shape == b.shape and a.dtype == b.dtype and raw(a) == raw(b)


# ---------------------------------------------------------------- folders by hand


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, metadata: dict | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    whole = {k: t.clone().contiguous() for k, t in tensors.items()}
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"} if metadata is None else metadata)
    if config is not None:
        (folder / CONFIG).write_text(json.dumps(config))
    return folder


def hand_tensors(
    seed: int = 0, r: int = 4, dtype: torch.dtype = torch.float32, modules: tuple[str, ...] = ("q_proj", "v_proj"), layers: int = 2
) -> dict[str, Tensor]:
    """The tensors of a LoRA on attention projections of width 32 (v_proj: 16 rows)."""
    gen = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for module in modules:
            stem = f"{PREFIX}model.layers.{layer}.self_attn.{module}.lora_"
            out = 16 if module in ("k_proj", "v_proj") else 32
            tensors[f"{stem}A.weight"] = (0.2 * torch.randn(r, 32, generator=gen)).to(dtype)
            tensors[f"{stem}B.weight"] = (0.2 * torch.randn(out, r, generator=gen)).to(dtype)
    return tensors


def hand_config(r: int = 4, alpha: float = 8, **more: Any) -> dict[str, Any]:
    """A short configuration, as old or foreign tools write it."""
    short = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny/llama"}
    return {**short, "r": r, "lora_alpha": alpha, "target_modules": ["q_proj", "v_proj"], **more}


def hand_folder(
    folder: Path, seed: int = 0, *, r: int = 4, alpha: float = 8, dtype: torch.dtype = torch.float32, **more: Any
) -> Path:
    return write_folder(folder, hand_tensors(seed, r, dtype), hand_config(r, alpha, **more))


def rewritten(
    source: Path,
    folder: Path,
    *,
    key: Callable[[str], str] = lambda k: k,
    tensor: Callable[[str, Tensor], Tensor | None] = lambda k, t: t,
    metadata: dict | None = None,
    drop: tuple[str, ...] = (),
    **config: Any,
) -> Path:
    """A folder like another one, with other keys, tensors, or fields."""
    changed = {key(k): tensor(k, t) for k, t in load_file(source / WEIGHTS).items()}
    raw = {k: v for k, v in json.loads((source / CONFIG).read_text()).items() if k not in drop}
    return write_folder(folder, {k: t for k, t in changed.items() if t is not None}, {**raw, **config}, metadata)


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


# ---------------------------------------------------------------- bases for PEFT


class Convs(nn.Module):
    """One convolution of each kind; grouped ones see their own input."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(4, 6, 3)
        self.plane = nn.Conv2d(4, 6, 3, padding=1)
        self.point = nn.Conv2d(4, 6, 1)
        self.grouped = nn.Conv2d(8, 12, 3, groups=4)
        self.box = nn.Conv3d(4, 6, (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = x.repeat(1, 2, 1, 1)
        parts = [self.line(x[..., 0]), self.plane(x), self.point(x), self.grouped(y), self.box(x[:, :, None])]
        return torch.cat([p.reshape(len(x), -1) for p in parts], 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, x, x, need_weights=False)[0]


class Normed(nn.Module):
    """A head with buffers, one of them of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def _sizes(**more: Any) -> dict[str, Any]:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 32, **heads, **more}


def _build(name: str) -> nn.Module:
    import transformers as tf

    kinds: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_sizes())),
        "llama_tied": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_sizes(), tie_word_embeddings=True)),
        "llama_bias": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_sizes(), attention_bias=True)),
        "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**_sizes())),
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32)),
        "mixtral": lambda: tf.MixtralForCausalLM(
            tf.MixtralConfig(**_sizes(), num_local_experts=3, num_experts_per_tok=2, experts_implementation="eager")
        ),
        "qwen3moe": lambda: tf.Qwen3MoeForCausalLM(
            tf.Qwen3MoeConfig(
                **_sizes(moe_intermediate_size=20, head_dim=8), num_experts=3, num_experts_per_tok=2, experts_implementation="eager"
            )
        ),
        "seqcls": lambda: tf.LlamaForSequenceClassification(tf.LlamaConfig(**_sizes(), num_labels=3, pad_token_id=0)),
        "convs": Convs,
        "mha": Attention,
        "normed": Normed,
    }
    return kinds[name]()


@cache
def _pristine(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = _build(name)
        for p in model.parameters():
            if p.ndim == 1:
                p.data += 0.1 * torch.randn_like(p)
    if hasattr(model, "config"):
        model.config._name_or_path = model.name_or_path = f"tiny/{name}"
    return model.eval()


def base_model(name: str) -> nn.Module:
    """A fresh copy of a tiny random model, the same weights each time."""
    return copy.deepcopy(_pristine(name))


@torch.no_grad()
def outputs(model: nn.Module, name: str) -> Tensor:
    """What a model says, in float64."""
    model = model.double().eval()
    if name == "convs":
        return model(torch.linspace(-1, 1, 2 * 4 * 25).sin().reshape(2, 4, 5, 5).double())
    if name == "mha":
        return model(torch.linspace(-3, 3, 2 * 5 * 16).sin().reshape(2, 5, 16).double())
    if name == "normed":
        return model(torch.linspace(-3, 3, 5 * 8).sin().reshape(5, 8).double())
    return model(input_ids=IDS).logits


# ---------------------------------------------------------------- PEFT's own folders

# name -> base, LoraConfig's arguments, save_pretrained's arguments
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("llama", {"r": 6, "lora_alpha": 12, "target_modules": ATTN}, {}),
    "small": ("llama", {"r": 3, "lora_alpha": 24, "target_modules": ATTN}, {}),
    "rslora": ("llama", {"r": 6, "lora_alpha": 12, "use_rslora": True, "target_modules": ATTN}, {}),
    "alpha_float": ("llama", {"r": 6, "lora_alpha": 7.3, "target_modules": ATTN}, {}),
    "rank_one": ("llama", {"r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}, {}),
    "rank_above_width": ("llama", {"r": 40, "lora_alpha": 40, "target_modules": ["q_proj", "k_proj"]}, {}),
    "patterns": (
        "llama",
        {
            "r": 6,
            "lora_alpha": 12,
            "target_modules": ATTN,
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, r".*\.1\..*\.v_proj": 9},
            "alpha_pattern": {"q_proj": 5, r".*\.1\..*\.v_proj": 40},
        },
        {},
    ),
    "patterns_rslora": (
        "llama",
        {"r": 6, "lora_alpha": 12, "use_rslora": True, "target_modules": ATTN, "rank_pattern": {"k_proj": 2}},
        {},
    ),
    "all_override": ("llama", {"r": 64, "lora_alpha": 64, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 2}}, {}),
    "all_linear": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}, {}),
    "regex": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": r".*layers\.0\..*(q_proj|down_proj)"}, {}),
    "default_targets": ("llama", {"r": 3, "lora_alpha": 6}, {}),
    "one_layer": ("llama", {"r": 3, "target_modules": ATTN, "layers_to_transform": [1], "layers_pattern": "layers"}, {}),
    "excluded": ("llama", {"r": 3, "target_modules": ATTN, "exclude_modules": r".*layers\.1\..*"}, {}),
    "mlp": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["gate_proj", "up_proj", "down_proj"]}, {}),
    "replicated": ("llama", {"r": 3, "target_modules": ["q_proj"], "layer_replication": [[0, 2], [0, 2]]}, {}),
    "lm_head": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "lm_head"]}, {}),
    "embedding": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "embed_tokens"]}, {}),
    "embedding_bare": ("llama", {"r": 3, "target_modules": ["q_proj", "embed_tokens"]}, {"save_embedding_layers": False}),
    "embedding_tied": ("llama_tied", {"r": 3, "target_modules": ["q_proj", "embed_tokens"]}, {}),
    "tied_pair": (
        "llama_tied",
        {"r": 3, "target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
        {"save_embedding_layers": False},
    ),
    "saved_head": ("llama", {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}, {}),
    "saved_norm": ("llama", {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]}, {}),
    "saved_tied": (
        "llama_tied",
        {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {},
    ),
    "tokens": ("llama", {"r": 3, "target_modules": ["q_proj"], "trainable_token_indices": [1, 5, 60]}, {}),
    "tokens_tied": ("llama_tied", {"r": 3, "target_modules": ["q_proj"], "trainable_token_indices": [1, 5, 60]}, {}),
    "bias_all": ("qwen2", {"r": 3, "bias": "all", "target_modules": ["q_proj", "v_proj"]}, {}),
    "bias_lora_only": ("qwen2", {"r": 3, "bias": "lora_only", "target_modules": ["q_proj"]}, {}),
    "lora_bias": ("llama_bias", {"r": 3, "lora_alpha": 6, "lora_bias": True, "target_modules": ["q_proj", "v_proj"]}, {}),
    "seqcls": ("seqcls", {"r": 3, "task_type": "SEQ_CLS", "target_modules": ["q_proj"]}, {}),
    "gpt2": ("gpt2", {"r": 3, "lora_alpha": 6, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj"]}, {}),
    "convs": ("convs", {"r": 8, "lora_alpha": 6, "target_modules": ["line", "plane", "point", "grouped", "box"]}, {}),
    "mha": ("mha", {"r": 3, "lora_alpha": 6, "target_modules": ["attn"]}, {}),
    "mixtral": (
        "mixtral",
        {"r": 2, "target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        {},
    ),
    "qwen3moe": (
        "qwen3moe",
        {"r": 2, "target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        {},
    ),
    "down_only": ("mixtral", {"r": 2, "target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}, {}),
    "router": ("qwen3moe", {"r": 2, "target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}, {}),
    "bdlora": ("llama", {"r": 6, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj"]}, {}),
    "dora": ("llama", {"r": 6, "lora_alpha": 12, "use_dora": True, "target_modules": ATTN}, {}),
    "fresh": ("llama", {"r": 6, "lora_alpha": 12, "target_modules": ATTN}, {}),
    "pissa": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], "init_lora_weights": "pissa"}, {}),
    "olora": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], "init_lora_weights": "olora"}, {}),
    "kasa": ("llama", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj"]}, {}),
    "normed": ("normed", {"r": 3, "target_modules": ["body"], "modules_to_save": ["head"]}, {}),
}

UNTRAINED = {"fresh"}


def write_peft(folder: Path, name: str, seed: int, **changes: Any) -> Path:
    """Let PEFT write a variant, with random values for everything that it would train."""
    import peft

    base, arguments, how = VARIANTS[name]
    arguments = {**arguments, **changes}
    if name == "bdlora":
        from peft.tuners.lora.config import BdLoraConfig

        arguments["use_bdlora"] = BdLoraConfig(target_modules_bd_a=["o_proj"], target_modules_bd_b=["q_proj"], nblocks=2)
    if name == "kasa":
        from peft.tuners.lora.config import KasaConfig

        arguments["kasa_config"] = KasaConfig()
    if base not in ("convs", "mha", "normed"):
        arguments.setdefault("task_type", "CAUSAL_LM")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = peft.get_peft_model(base_model(base), peft.LoraConfig(**arguments))
        if name not in UNTRAINED:
            with torch.no_grad():
                for key, p in sorted(model.named_parameters(), key=lambda item: item[0]):
                    if p.requires_grad:
                        p.add_(torch.randn_like(p) * (0.15 if "lora_" in key else 0.05))
        model.save_pretrained(str(folder), **how)
    return folder


def load_peft(folder: Path, base: str) -> nn.Module:
    """PEFT's reading of a folder. Any key that finds no place, or place without a key, is an error."""
    import peft

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base_model(base), str(folder))
    bad = [str(w.message) for w in caught if "adapter keys" in str(w.message)]
    assert not bad, bad
    return model.eval()


def peft_outputs(folder: Path, base: str) -> Tensor:
    return outputs(load_peft(folder, base), base)


@cache
def original_outputs(folder: Path, base: str) -> Tensor:
    """The same for a folder that no test changes."""
    return peft_outputs(folder, base)


# ---------------------------------------------------------------- our reading of a folder, put into the base by hand


@torch.no_grad()
def base_with(adapter: Adapter, base: str) -> nn.Module:
    """The base with an adapter's deltas and values written into its weights."""
    model = base_model(base).double()
    if "lm_head" in dict(model.named_modules()) and hasattr(model.lm_head, "weight"):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    if adapter.config.get("layer_replication"):
        layers = [copy.deepcopy(model.model.layers[i]) for a, b in adapter.config["layer_replication"] for i in range(a, b)]
        for i, layer in enumerate(layers):
            layer.self_attn.layer_idx = i
        model.model.layers = nn.ModuleList(layers)
        model.config.num_hidden_layers = len(layers)
        model.config.layer_types = None
    for key, extra in adapter.extras.items():
        if extra.kind in ("full_weight", "bias"):
            path = key.removeprefix(PREFIX).replace(".base_layer", "")
            owner, _, leaf = path.rpartition(".")
            getattr(model.get_submodule(owner), leaf).data = extra.tensor.clone()
        if extra.kind == "token_rows":
            rows = adapter.config["trainable_token_indices"]
            for embedding in [model.get_submodule(extra.module)] + ([model.lm_head] if model.config.tie_word_embeddings else []):
                embedding.weight[rows] = extra.tensor.double()
    for name, factors in adapter.modules.items():
        _write(model, name, torch.tensor(dense(factors)), adapter)
        if name in adapter.ties.values():
            model.lm_head.weight += torch.tensor(dense(factors)).T
    return model


def _write(model: nn.Module, name: str, delta: Tensor, adapter: Adapter) -> None:
    layout = adapter.layout(name)
    module = model.get_submodule(name.replace(".base_layer", ""))
    extras = {e.kind: e.tensor.double() for e in adapter.extras.values() if e.module == name}
    if layout.kind == "experts":
        (weight,) = [p for p in module.parameters() if p.shape in (delta.shape, delta.mT.shape)]
        weight += delta if weight.shape == delta.shape else delta.mT
        return
    if isinstance(module, nn.MultiheadAttention):
        module.in_proj_weight += delta
        return
    if layout.kind == "blocks_out" and layout.kernel:
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner).add_module(leaf, _ungrouped(module, delta))
        return
    if layout.kind == "blocks_out":
        delta = delta.reshape(-1, delta.shape[-1])
    elif layout.kind == "blocks_in":
        delta = torch.cat(list(delta), -1)
    elif layout.kind == "embedding" or type(module).__name__ == "Conv1D":
        delta = delta.T
    if name.endswith(".base_layer.out_proj"):
        delta = out_proj_merges() * delta
    module.weight += delta.reshape(module.weight.shape)
    if "magnitude" in extras:
        module.weight *= (extras["magnitude"] / module.weight.norm(dim=1))[:, None]
    if "lora_bias" in extras:
        module.bias += adapter.modules[name].scale * extras["lora_bias"]


def _ungrouped(conv: nn.Conv2d, delta: Tensor) -> nn.Conv2d:
    """A grouped convolution plus a delta that sees all channels, as one without groups."""
    out = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size).double()
    out.bias.data.copy_(conv.bias)
    out.weight.data.copy_(delta.reshape(out.weight.shape))
    rows, columns = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    for g in range(conv.groups):
        block = slice(g * rows, (g + 1) * rows)
        out.weight.data[block, g * columns : (g + 1) * columns] += conv.weight[block]
    return out


@cache
def out_proj_merges() -> int:
    """How often PEFT adds the delta of an attention's output projection: some versions do it twice."""
    import peft

    model = peft.get_peft_model(Attention(), peft.LoraConfig(r=1, lora_alpha=1, target_modules=["attn"], init_lora_weights=False))
    before = model.base_model.model.attn.out_proj.weight.detach().clone()
    delta = model.base_model.model.attn.base_layer.out_proj.get_delta_weight("default").detach()
    after = model.merge_and_unload().attn.out_proj.weight.detach()
    return round(float((after - before).norm() / delta.norm()))


def rank_needed(a: Adapter, b: Adapter) -> int:
    """A rank at which any sum of two adapters is exact."""

    def most(x: Adapter) -> int:
        return max(x.layout(n).config_rank(f.rank) for n, f in x.modules.items())

    shared = math.lcm(*(x.layout(n).config_rank(1) for x in (a, b) for n in x.modules))
    return -(-(most(a) + most(b)) // shared) * shared
