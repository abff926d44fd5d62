from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.train.cached import cached
from agentrl.train.pretrained import pretrained


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert pretrained(str(tmp_path), cache_dir=tmp_path / "cache") == tmp_path.resolve()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        pretrained(str(tmp_path), cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="there is no model folder"):
        pretrained("./no/such/folder", cache_dir=tmp_path)


def test_a_word_that_is_no_model_is_refused_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write tiny, smollm2, a folder, or a name such as"):
        pretrained("not a name", cache_dir=tmp_path)


def test_a_cached_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="No space left on device"):
        cached(tmp_path / "model", fails)
    assert list(tmp_path.iterdir()) == []


def test_of_two_makers_the_first_counts(tmp_path: Path) -> None:
    def late(folder: Path) -> None:
        (folder / "from").write_text("late")
        cached(tmp_path / "model", lambda first: (first / "from").write_text("first") and None)

    assert (cached(tmp_path / "model", late) / "from").read_text() == "first"
