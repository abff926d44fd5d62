"""A tokenizer and chat template made for one environment, so that a tiny model spends its few parameters on the task.

Text is cut at numbers and operators only. Every piece between two cuts that recurs in the demonstrations is one token, boilerplate such as
`<tool_call>\\n{"name": "calc", "arguments": {"expression": "` included, and so is every number from 0 to 99: an episode is some hundred
tokens long instead of a thousand. Whatever else a model or a tool writes falls back to bytes, so any text has ids and comes back exactly.
"""

import re
from collections import Counter
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = re.compile("|".join(map(re.escape, (PAD, START, END))))

CUT = r"\A(?:system|user|assistant|tool)\n|[0-9]{1,2}|[-+*()=]|(?<!<)/"
"""A role's line is cut off where a message begins, so what an assistant writes is tokenised alone, as it was sampled."""

TEMPLATE = """\
{%- set told = messages[0]['content'] if messages and messages[0]['role'] in ('system', 'developer') else '' -%}
{%- if tools or told -%}
{{- '<|im_start|>system\\n' + told -}}
{%- if tools -%}
{{- '\\n\\n# Tools\\n' if told else '# Tools\\n' -}}
{%- for tool in tools -%}
{%- set spec = tool['function'] if 'function' in tool else tool -%}
{{- '{"name": ' + (spec['name'] | tojson) + ', "description": ' + (spec['description'] | default('') | tojson) -}}
{{- ', "parameters": ' + (spec['parameters'] | default({}) | tojson) + '}\\n' -}}
{%- endfor -%}
{{- 'Call one with <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and message['role'] in ('system', 'developer')) -%}
{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set called = call['function'] if 'function' in call else call -%}
{%- set arguments = called['arguments'] if called['arguments'] is string else called['arguments'] | tojson -%}
{{- '\\n' if message['content'] or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": ' + (called['name'] | tojson) + ', "arguments": ' + arguments + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""


def make_tokenizer(texts: Sequence[str], *, pieces: int = 256, seen: int = 3) -> PreTrainedTokenizerFast:
    """From rendered demonstrations: their `pieces` most frequent whole pieces, of those that occur at least `seen` times."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CUT), behavior="isolated"), byte_level])
    counts = Counter(piece for text in texts for part in _SPECIAL.split(text) if part for piece, _ in cut.pre_tokenize_str(part))
    recurring = sorted((piece for piece, count in counts.items() if count >= seen), key=lambda piece: (-counts[piece], piece))
    numbers = [str(number) for number in range(100)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = dict.fromkeys([PAD, START, END, *alphabet, *numbers, *recurring[:pieces]])
    tokenizer = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (PAD, START, END)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=TEMPLATE, clean_up_tokenization_spaces=False
    )
