"""The only place that knows PEFT folders: adapter_config.json, the grammar of keys, safetensors, the model card."""

from lora_evo.peft_format.read import load
from lora_evo.peft_format.write import save

__all__ = ["load", "save"]
