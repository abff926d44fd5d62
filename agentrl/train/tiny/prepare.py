"""From an environment to a model folder, once: the folder's name is a hash of all that decides its content.

What an environment shows is part of the hash, not its source: any change of its tasks, rules or demonstrations makes another model.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import torch

from agentrl.env import Env
from agentrl.train.cached import cached
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
    if folder.is_dir():
        return folder
    tokenizer = make_tokenizer(texts)
    model = make_model(recipe.shape, tokenizer, seed=seed)
    warm_start(model, batches(demonstrations, tokenizer, size=recipe.warm_start.batch), recipe.warm_start, progress)

    def save(to: Path) -> None:
        model.save_pretrained(to)
        tokenizer.save_pretrained(to)

    return cached(folder, save)


def _digest(texts: list[str], recipe: Recipe, seed: int) -> str:
    content = msgspec.json.encode([texts, recipe, seed, str(torch.__version__)])
    return hashlib.blake2b(content, digest_size=8).hexdigest()
