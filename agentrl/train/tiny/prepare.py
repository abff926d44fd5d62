"""From an environment to a model folder, once: the folder's name is a hash of all that decides its content.

What an environment shows is part of the hash, not its source: any change of its tasks, rules or demonstrations makes another model.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import torch

from agentrl.env import Env
from agentrl.errors import ConfigError, boundary
from agentrl.train.tiny.demonstrations import Demonstrations, batches
from agentrl.train.tiny.model import make_model
from agentrl.train.tiny.recipe import Recipe
from agentrl.train.tiny.tokenizer import make_tokenizer
from agentrl.train.tiny.warmstart import Progress, warm_start


def prepare_tiny(
    env: Env,
    *,
    seed: int,
    cache_dir: Path,
    progress: Callable[[Progress], None] = lambda _: None,
    recipe: Recipe | None = None,
) -> Path:
    """A Hugging Face folder of a warm-started model. Raises ConfigError if the environment has no demonstrations."""
    recipe = recipe or Recipe()
    demonstrations = Demonstrations(env, tasks=recipe.tasks, rng=Random(seed))
    plain = make_tokenizer([])
    texts = [demonstrations.text(plain) for _ in range(recipe.samples)]
    folder = cache_dir / f"tiny-{env.name}-{_digest(texts, recipe, seed)}"
    if folder.exists():
        return folder
    tokenizer = make_tokenizer(texts)
    model = make_model(recipe.shape, tokenizer, seed=seed)
    warm_start(model, batches(demonstrations, tokenizer, size=recipe.warm_start.batch), recipe.warm_start, progress)
    with boundary(ConfigError, f"write the tiny model to {cache_dir} (is there room, and may it be written?)"):
        cache_dir.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache_dir))
        try:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            _publish(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _publish(partial: Path, folder: Path) -> None:
    """Whole or not at all; another process may have been first, with an equal folder."""
    try:
        os.rename(partial, folder)
    except OSError:
        if not folder.exists():
            raise


def _digest(texts: list[str], recipe: Recipe, seed: int) -> str:
    content = msgspec.json.encode([texts, recipe, seed, str(torch.__version__)])
    return hashlib.blake2b(content, digest_size=8).hexdigest()
