"""Chat templates in the structure of known families, written for these tests, and a small tokenizer for each."""

# ruff: noqa: E501 (a newline within a template would be written)

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from agentrl.tokens.vocabulary import Vocabulary

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT = ["Which fruit is blue? A plum. I look. Say yes. user assistant system model tool 2 < 3, so both are."]

SMOLLM = """{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
You help.<|im_end|>
{% endif %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

QWEN25 = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You help.{% endif %}

Tools:
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% else %}<|im_start|>system
You help.<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{{- '\\n' + m.content if m.content }}
{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}
{%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

GEMMA3 = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set turns = messages[1:] %}
{%- else %}{% set first = '' %}{% set turns = messages %}{% endif %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user, assistant') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (first if loop.first else '') + m.content | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- set head = '<|start_header_id|>' %}{% set tail = '<|end_header_id|>\\n\\n' %}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{{- head + 'system' + tail + 'Today Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot_id|>' }}
{%- for m in messages %}{% if not (loop.first and m.role == 'system') %}
{%- if m.tool_calls %}{{ head + 'assistant' + tail + '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' + (m.tool_calls[0].function.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}{{ head + ('ipython' if m.role == 'tool' else m.role) + tail + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endif %}{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ head + 'assistant' + tail }}{% endif %}"""

THINKING = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>tool
{{ m.content }}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.index0 > ns.last %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Thoughts stand only behind the last question."""

NUMBERED = SMOLLM.replace("You help.", "This is a talk of {{ messages | length }} messages.")
UNENDED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
UNOPENED = SMOLLM[: SMOLLM.index("{% if add_generation_prompt")]
NUMBERED_TURNS = SMOLLM.replace("<|im_start|>{{ m.role }}", "<|im_start|>{{ m.role }}{{ ' of the last' if loop.last }}")


ALTERNATING = """{%- if tools %}{% set first = (tools | tojson) + '\\n\\n' %}{% else %}{% set first = '' %}{% endif %}
{%- set ns = namespace(user=true) %}
{%- for m in messages %}
{%- if m.role == 'tool' and loop.previtem is defined and loop.previtem.role == 'tool' %}{{- '\\n<tool_response>' + m.content + '</tool_response>' }}
{%- else %}
{%- if (m.role in ('user', 'tool')) != ns.user %}{{ raise_exception('Roles must alternate user, assistant') }}{% endif %}
{%- set ns.user = not ns.user %}
{{- '<|im_start|>' + ('model' if m.role == 'assistant' else 'user') + '\\n' + (first if loop.first else '') }}
{{- '<tool_response>' + m.content + '</tool_response>' if m.role == 'tool' else m.content }}
{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{%- if loop.last or m.role != 'tool' or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>model
{% endif %}"""
"""Results stand in a turn of the user's, behind which no other may stand."""

FORGETFUL = QWEN25.replace(
    "{%- for m in messages %}\n{%- if m.role == 'user'",
    "{%- set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}\n{%- for m in messages[ns.last:] %}\n{%- if m.role == 'user'",
)
"""What stands before the last question is left out."""


@functools.cache
def small_tokenizer(controls, bos=None):
    """Pieces of bytes with some merges; with ``bos``, a post-processor that puts it before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(control, special=True, normalized=False) for control in controls])
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def small_vocabulary(template, controls=(*CHATML, "<tool_call>", "</tool_call>"), bos=None, eos="<|im_end|>"):
    """A vocabulary with that template."""
    config = {"chat_template": template, "eos_token": eos} | ({"bos_token": bos} if bos else {})
    return Vocabulary(small_tokenizer(tuple(controls), bos), config)


def gemma3():
    return small_vocabulary(GEMMA3, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), bos="<bos>", eos="<eos>")


def llama3():
    controls = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
    return small_vocabulary(LLAMA3, controls, bos="<|begin_of_text|>", eos="<|eot_id|>")
