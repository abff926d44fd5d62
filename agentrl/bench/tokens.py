"""A model folder without weights for loads that are counted in tokens: the byte-level BPE of a text."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl.testing.model import CHATML_TOOLS, END, START


def write_model(folder: Path, text: Iterable[str]) -> None:
    """Some thousand tokens, trained on the load's own text, so that there are about four characters to a token."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, special_tokens=[], show_progress=False, max_token_length=5)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (START, END)])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in ("<tool_call>", "</tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": CHATML_TOOLS}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
