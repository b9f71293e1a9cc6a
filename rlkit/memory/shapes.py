"""The shapes of models: those that ship with rlkit, and any config.json.

A plan needs a model's shape and none of its weights, so it works offline and for models that no
machine at hand could load.
"""

import json
from pathlib import Path
from typing import Any

from rlkit.config import unknown
from rlkit.paths import data_path

SHIPPED = {
    "SmolLM2-135M": "HuggingFaceTB/SmolLM2-135M",
    "SmolLM2-360M": "HuggingFaceTB/SmolLM2-360M",
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "Qwen3-1.7B": "Qwen/Qwen3-1.7B",
    "Qwen3-4B": "Qwen/Qwen3-4B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen2.5-0.5B": "Qwen/Qwen2.5-0.5B",
    "Llama-3.2-1B": "meta-llama/Llama-3.2-1B",
    "Pythia-1B": "EleutherAI/pythia-1b",
    "Pythia-2.8B": "EleutherAI/pythia-2.8b",
    "Pythia-6.9B": "EleutherAI/pythia-6.9b",
    "Gemma-3-1B": "google/gemma-3-1b-pt",
}
"""Name of a shape under data/models -> the hub id whose config it is."""

TUNED = ("-base", "-instruct", "-it", "-pt", "-chat", "-deduped")
"""Endings of hub ids whose models have the shape of the one without."""

NEEDED = (
    ("model_type",),
    ("vocab_size",),
    ("hidden_size", "n_embd", "d_model"),
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("num_attention_heads", "n_head", "num_heads"),
)
"""Fields without which a config would be filled up with another model's numbers."""


def shape_of(model: Any) -> tuple[str, dict[str, Any]]:
    """(name, config) of a shipped name, a built-in model, a folder, a hub id or a model object.

    Raises ValueError for an unknown name, with those that are known, and for a config without the
    fields that make a shape.
    """
    config = getattr(model, "config", model)
    if hasattr(config, "to_dict"):
        return checked(type(model).__name__, config.to_dict())
    from rlkit.policy import BUILT_IN

    name = str(model)
    if shipped := shipped_name(name):
        return checked(shipped, read(data_path("models", shipped, "config.json")))
    if name in BUILT_IN:
        return checked(name, read(data_path(*BUILT_IN[name], "config.json")))
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return checked(name, read(folder / "config.json"))
    if folder.is_file():
        return checked(name, read(folder))
    return checked(name, from_hub(name, [*SHIPPED, *BUILT_IN]))


def shipped_name(name: str) -> str | None:
    """The shipped shape that a name or a hub id means; None: none."""
    short = name.rpartition("/")[2].lower()
    for ending in TUNED:
        short = short.removesuffix(ending)
    known = {shape.lower(): shape for shape in SHIPPED}
    owner = name.rpartition("/")[0].lower()
    found = known.get(short)
    if found and owner and owner != SHIPPED[found].partition("/")[0].lower():
        return None  # somebody else's model of the same name
    return found


def read(path: Path) -> dict[str, Any]:
    """A config.json. Raises ValueError for what is not one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"model: {path} is no readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"model: {path} holds no JSON object")
    return config


def from_hub(name: str, known: list[str]) -> dict[str, Any]:
    """The config of a hub id, from the cache or the net.

    Raises ValueError where there is none, with what is known.
    """
    parts = name.split("/")
    if len(parts) != 2 or parts[0] in ("", ".", "..", "~"):
        sentence = unknown("model", name, known)
        raise ValueError(f"{sentence}; or give a folder with a config.json, or a hub id")
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False).to_dict()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model={name!r}: the Hugging Face hub did not give its config; these need no net: "
            f"{', '.join(known)}"
        ) from error


def checked(name: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same, if the config says how large the model is."""
    text = config.get("text_config") or config
    missing = [names[0] for names in NEEDED if not any(text.get(n) is not None for n in names)]
    if missing:
        raise ValueError(f"model={name!r}: its config lacks {', '.join(missing)}")
    return name, config
