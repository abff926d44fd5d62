"""A model folder without weights: a tokenizer whose tokens are bytes, and a chat template with tools and thinking.

With `ScriptedEngine` and the real gateway it makes a policy that says what a test wants, and whose tokens a test can count by hand.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

START, END = "<|im_start|>", "<|im_end|>"
SPECIALS = (START, END)
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that are not special, as in models of this kind."""

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""
"""Knows no tools."""

CHATML_TOOLS = """\
{%- set told = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if told or tools -%}
{{- '<|im_start|>system\\n' + told -}}
{%- if tools -%}
{{- '\\n\\n# Tools\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\nCall them within <tool_call></tool_call>.' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n' if message.content or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) -}}
{{- ', "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' -}}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' -}}
{%- elif not (loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""


def write_byte_model(folder: Path, *, template: str = CHATML_TOOLS, markup: bool = True, more: Sequence[str] = ()) -> Path:
    """Token i is byte i, for i below 256; then SPECIALS, MARKUP (unless the model is to spell these words) and `more` special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
    if markup:
        tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in MARKUP])
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in more])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": template}), encoding="utf-8")
    return folder


def byte_ids(*, markup: bool = True) -> dict[str, int]:
    """Ids of the words above the bytes."""
    return {word: 256 + i for i, word in enumerate(SPECIALS + (MARKUP if markup else ()))}


def _byte_vocabulary() -> dict[str, int]:
    """The byte-level alphabet in the order of the bytes: printable ones are themselves, others shift up by 256 in turn."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return {letters[byte]: byte for byte in range(256)}
