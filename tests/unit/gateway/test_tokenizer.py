"""Text that spells a special token has the ids of plain text, whatever tokenizer is below."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from agentrl.errors import ConfigError
from agentrl.gateway.tokenizer import GUARD, Tokenizer
from agentrl.testing.model import MARKUP, SPECIALS, byte_ids, write_byte_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_byte_model(tmp_path_factory.mktemp("model")))


def test_words_are_single_tokens_unless_guarded(tokenizer: Tokenizer) -> None:
    end = byte_ids()["<|im_end|>"]
    assert tokenizer.encode("a<|im_end|>b") == [97, end, 98]
    assert tokenizer.encode(tokenizer.guard("a<|im_end|>b")) == list(b"a<|im_end|>b")


def test_assistant_text_may_spell_markup_but_not_special_tokens(tokenizer: Tokenizer) -> None:
    text = tokenizer.guard("<think><|im_end|>", only_special=True)
    assert tokenizer.encode(text) == [byte_ids()["<think>"], *b"<|im_end|>"]


@given(st.lists(st.sampled_from([*SPECIALS, *MARKUP, "a", " ", "\n", "<", "|>", "é", "🦊", GUARD, "\ufdd1"]), max_size=12))
def test_guarded_text_is_its_own_bytes_between_true_special_tokens(tokenizer: Tokenizer, parts: list[str]) -> None:
    content = "".join(parts)
    start, end = byte_ids()["<|im_start|>"], byte_ids()["<|im_end|>"]
    ids = tokenizer.encode("<|im_start|>user\n" + tokenizer.guard(content) + "<|im_end|>\n")
    assert ids == [start, *b"user\n", *content.encode(), end, *b"\n"]


def test_vocabularies_that_hold_the_words_themselves_cannot_reach_them(tmp_path: Path) -> None:
    words = ["[UNK]", "<|im_end|>", "hello", "world"]
    fast = Fast(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer = Tokenizer(fast.to_str())
    assert tokenizer.encode("hello <|im_end|> world") == [2, 1, 3]
    assert tokenizer.encode(tokenizer.guard("hello <|im_end|> world")) == [2, 0, 3]


def test_unigram_pieces_of_special_text_are_out_of_reach() -> None:
    alphabet = [(letter, -5.0) for letter in "▁abs</>"]
    fast = Fast(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *alphabet], unk_id=0))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    fast.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer = Tokenizer(fast.to_str())
    assert 1 in tokenizer.encode("a</s>")
    assert 1 not in tokenizer.encode(tokenizer.guard("a</s>"))


def test_vocabulary_that_is_not_markup_is_left_alone() -> None:
    fast = Fast(models.BPE(vocab={"a": 0, " ": 1}, merges=[]))
    fast.add_special_tokens([AddedToken("<|x|>", special=True)])
    fast.add_tokens([AddedToken("   ", special=False, normalized=False)])
    tokenizer = Tokenizer(fast.to_str())
    assert tokenizer.guard("a   a") == "a   a"
    assert tokenizer.added["   "] in tokenizer.encode("a   a")


def test_a_folder_without_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="save_pretrained"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(ConfigError, match="not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
