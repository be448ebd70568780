"""Chat templates with the switches and marks of the published families', and tokenizers for them.

They are short: what the families share (system prompts, dates, forms of tool calls) is left out.
"""

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny import byte_tokenizer

from dflash_mlx.chat.template import Template

HISTORY = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}<|stop|>{% endfor %}"
)
# A template leaves the switches that it does not know alone.
PLAIN = HISTORY + "{% if add_generation_prompt %}[a]{% endif %}"
# Qwen3: thinking is shut by an empty part, and otherwise left to the model.
QWEN = (
    HISTORY
    + "{% if add_generation_prompt %}[a]\n{% if enable_thinking is defined and enable_thinking is "
    "false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# GLM 5: opened or shut by the opening.
GLM = (
    HISTORY
    + "{% if add_generation_prompt %}[a]{{ '</think>' if enable_thinking is defined and not "
    "enable_thinking else '<think>' }}{% endif %}"
)
# Kimi K2.5, DeepSeek V3.1: the same under another name.
KIMI = GLM.replace("enable_thinking", "thinking")
# MiniMax M2: always.
MINIMAX = HISTORY + "{% if add_generation_prompt %}[a]<think>\n{% endif %}"
# Gemma 4: asked for at the top, shut by the opening.
GEMMA = (
    "{% if enable_thinking is defined and enable_thinking %}[system]<|think|><turn|>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<turn|>{% endfor %}"
    "{% if add_generation_prompt %}[model]\n{% if not enable_thinking | default(false) %}"
    "<|channel>thought\n<channel|>{% endif %}{% endif %}"
)
TOOLS = (
    "{% if tools %}<|start|>developer<|message|>"
    "{% for t in tools %}{{ t.function | tojson }}{% endfor %}<|end|>{% endif %}"
)
# gpt-oss: an effort, channels; past thinking is left out, except before the result of a call.
GPT_OSS = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort }}<|end|>"
    + TOOLS
    + "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if '<|channel|>' in (m.content or '') %}{{ raise_exception('tags in the content') }}"
    "{% endif %}{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant to=functions.{{ call.name }}"
    "<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Muse: recipients, and an effort under another name that is checked.
MUSE = (
    "{% set strength = reasoning_strength | default('high') %}"
    "{% if strength not in ['low', 'medium', 'high', 'xhigh'] %}"
    "{{ raise_exception('no such strength') }}{% endif %}"
    "<|start|>system<|message|>Reasoning strength: {{ strength }}.<|eot|>"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{{ ' to=user' if m.role == 'assistant' else '' }}<|message|>{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Both switches, and a system message that must come first.
BOTH = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
    "{{ reasoning_effort | default('') }}" + GLM
)
HARMONY_MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>")
MUSE_MARKS = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|channel|>", "<|end|>")
THINK_MARKS = ("<think>", "</think>")
GEMMA_MARKS = ("<|channel>", "<channel|>", "<|think|>", "<turn|>")
# Template and marks of each family.
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama": (PLAIN, ()),
    "qwen": (QWEN, THINK_MARKS),
    "glm": (GLM, THINK_MARKS),
    "kimi": (KIMI, THINK_MARKS),
    "minimax": (MINIMAX, THINK_MARKS),
    "gemma": (GEMMA, GEMMA_MARKS),
    "gpt_oss": (GPT_OSS, HARMONY_MARKS),
    "muse": (MUSE, MUSE_MARKS),
    "both": (BOTH, THINK_MARKS),
}
VOCAB = 272


def tokenizer_of(family: str) -> TokenizerWrapper:
    """A tokenizer of one byte a token with a family's marks and template; <|stop|> ends answers."""
    template, marks = FAMILIES[family]
    return byte_tokenizer("<|stop|>", marks, template)


def template_of(family: str) -> Template:
    """A family's template."""
    return Template(tokenizer_of(family), family)
