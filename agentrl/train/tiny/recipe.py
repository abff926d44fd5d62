"""What makes a tiny model, besides the environment: its shape and its warm start. Part of the key that prepared models are cached under."""

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """Llama's, at a size where one core decodes tens of thousands of tokens a second."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 192
    context: int = 512


class WarmStart(msgspec.Struct, frozen=True):
    """Supervised learning on demonstrations. At this size the number of updates is the bottleneck, so batches are small."""

    steps: int = 1300
    batch: int = 16
    """Demonstrations per update; each is seen once."""
    matrix_lr: float = 0.015
    """Muon's, for matrices between the embedding and the head."""
    lr: float = 1e-2
    """AdamW's, for the rest."""
    warmup_steps: int = 20
    listening: float = 0.3
    """Weight of tokens that the assistant reads, against 1 for those it writes: predicting what a tool says teaches what tools do."""


class Recipe(msgspec.Struct, frozen=True):
    """Everything that decides a tiny model, given an environment and a seed."""

    shape: Shape = Shape()
    warm_start: WarmStart = WarmStart()
    samples: int = 512
    """Demonstrations that the tokenizer is made from."""
    tasks: int = 4096
    """First tasks of the train split that demonstrations are drawn from."""
