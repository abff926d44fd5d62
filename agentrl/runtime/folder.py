"""The run folder: where each thing of a run lies. Its layout is public (docs/run-folder.md) and nothing else names its files.

runs/NAME/
  config.toml      the resolved configuration; `agentrl train --config` takes it
  tokenizer.json   of the model, to show tokens as text
  metrics.jsonl    one JSON object a line: steps, evaluations, updates
  ledger.sqlite    the journal: what became of every episode
  journal/         turns as the gateway made them (kept for episodes that are not sealed yet)
  episodes/        sealed episodes, one blob each
  checkpoints/     step-000040/ in Hugging Face format, plus the trainer's state
  logs/            one file a process
  reward.png       held-out reward over steps, with the control
"""

from pathlib import Path

from agentrl.config import did_you_mean
from agentrl.errors import ConfigError, boundary

RUNS = Path("runs")
CACHE = Path.home() / ".cache" / "agentrl"
"""Models made or converted here, for all runs."""


class RunFolder:
    """Paths of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.toml"
        self.tokenizer = root / "tokenizer.json"
        self.metrics = root / "metrics.jsonl"
        self.ledger = root / "ledger.sqlite"
        self.journal = root / "journal"
        self.episodes = root / "episodes"
        self.checkpoints = root / "checkpoints"
        self.logs = root / "logs"
        self.plot = root / "reward.png"

    @property
    def name(self) -> str:
        return self.root.name

    @classmethod
    def create(cls, name: str, *, runs: Path = RUNS) -> "RunFolder":
        """A new folder. Raises ConfigError if the name is taken or is not one folder's name."""
        if not name or name in {".", ".."} or "/" in name or "\\" in name:
            raise ConfigError(f"--name {name!r} must be a plain folder name; the run goes to {runs}/NAME")
        folder = cls(runs / name)
        if folder.config.exists():
            raise ConfigError(f"{folder.root} holds a run already: go on with `agentrl train --resume {name}`, or choose another --name")
        with boundary(ConfigError, f"cannot make the run folder {folder.root}"):
            for path in (folder.journal, folder.episodes, folder.checkpoints, folder.logs):
                path.mkdir(parents=True, exist_ok=True)
        return folder

    def configure(self, toml: str) -> None:
        """Write the configuration, whole or not at all: with it, the folder is a run. Raises ConfigError."""
        draft = self.config.with_suffix(".part")
        with boundary(ConfigError, f"cannot write {self.config}"):
            draft.write_text(toml, encoding="utf-8")
            draft.replace(self.config)

    @classmethod
    def open(cls, name: str, *, runs: Path = RUNS) -> "RunFolder":
        """An existing run, by name or path. Raises ConfigError with the nearest name."""
        for root in (Path(name), runs / name):
            if (root / "config.toml").is_file():
                return cls(root)
        known = [path.parent.name for path in runs.glob("*/config.toml")]
        raise ConfigError(f"there is no run {name!r} in {runs}/.{did_you_mean(name, known)}")
