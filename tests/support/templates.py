"""Chat templates with the switches and tags of published model families, and their tokenizers.

They are short: system prompts, dates and tool-call formats are left out.
"""

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny import byte_tokenizer

from dflash_mlx.chat.template import Template

HISTORY = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}<|stop|>{% endfor %}"
)
# A template ignores variables that it does not know.
PLAIN = HISTORY + "{% if add_generation_prompt %}[a]{% endif %}"
# Qwen3: empty tags turn thinking off; otherwise the model decides.
QWEN = (
    HISTORY
    + "{% if add_generation_prompt %}[a]\n{% if enable_thinking is defined and enable_thinking is "
    "false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# GLM 5: the generation prompt opens or closes thinking.
GLM = (
    HISTORY
    + "{% if add_generation_prompt %}[a]{{ '</think>' if enable_thinking is defined and not "
    "enable_thinking else '<think>' }}{% endif %}"
)
# Kimi K2.5, DeepSeek V3.1: the same with another variable.
KIMI = GLM.replace("enable_thinking", "thinking")
# MiniMax M2: always thinks.
MINIMAX = HISTORY + "{% if add_generation_prompt %}[a]<think>\n{% endif %}"
# Gemma 4: the system turn asks for thinking, the generation prompt can close it.
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
# gpt-oss: an effort and channels; keeps past thinking only before the result of a call.
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
# Muse: recipients, and an effort variable that the template checks.
MUSE = (
    "{% set strength = reasoning_strength | default('high') %}"
    "{% if strength not in ['low', 'medium', 'high', 'xhigh'] %}"
    "{{ raise_exception('no such strength') }}{% endif %}"
    "<|start|>system<|message|>Reasoning strength: {{ strength }}.<|eot|>"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{{ ' to=user' if m.role == 'assistant' else '' }}<|message|>{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Both switches; a system message must come first.
BOTH = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
    "{{ reasoning_effort | default('') }}" + GLM
)
HARMONY_MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>")
MUSE_MARKS = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|channel|>", "<|end|>")
THINK_MARKS = ("<think>", "</think>")
GEMMA_MARKS = ("<|channel>", "<channel|>", "<|think|>", "<turn|>")
# Template and tags of each family.
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
    template, marks = FAMILIES[family]
    return byte_tokenizer("<|stop|>", marks, template)


def template_of(family: str) -> Template:
    return Template(tokenizer_of(family), family)
