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
# Templates that refuse some roles and orders.
STRICT = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}"
    "{% endif %}"
)
ONLY = (
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('only user and assistant') }}"
    "{% endif %}"
)
MISTRAL_1 = (
    "<s>{% for m in messages %}"
    + STRICT
    + ONLY
    + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}<|stop|> "
    "{% endif %}{% endfor %}"
)
# 7B v0.3 and Nemo: the system prompt in front of the last question, tools, ids of nine characters.
MISTRAL_3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}"
    "{% endif %}"
    "{% set turns = namespace(n=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (turns.n % 2 == 0) %}{{ raise_exception('must alternate') }}"
    "{% endif %}{% set turns.n = turns.n + 1 %}{% endif %}{% endfor %}"
    "<s>{% for m in rest %}{% if m.role == 'user' %}{% if loop.last and tools %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ system if loop.last else '' }}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] {% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids with length 9') }}{% endif %}"
    "{{ call.function.name }}:{{ call.id }}{% endfor %}<|stop|>"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids with length 9') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.content }}:{{ m.tool_call_id }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|stop|>"
    "{% else %}{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
)
# Mistral Small, Devstral: one system message, first.
MISTRAL_SMALL = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "<s>[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]"
    "{% else %}{% set rest = messages %}<s>{% endif %}{% for m in rest %}"
    + STRICT
    + ONLY
    + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}<|stop|>"
    "{% endif %}{% endfor %}"
)
GEMMA_TURNS = (
    "{% for m in rest %}"
    + STRICT
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_2 = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% set rest = messages %}{% set first = '' %}<bos>" + GEMMA_TURNS
)
# Gemma 3 puts the system prompt in front of the first question itself.
GEMMA_3 = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}"
    "{% endif %}<bos>" + GEMMA_TURNS
)
# Phi 3 and 4: another special token at the end of a chat without a generation prompt.
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|stop|>{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% set first = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    + STRICT
    + "{% if m.role == 'user' %}<s>[INST] {{ first if loop.first else '' }}{{ m.content }} [/INST]"
    "{% else %} {{ m.content }} <|stop|>{% endif %}{% endfor %}"
)
GRANITE = (
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|stop|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
OLMO_2 = (
    "<bos>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ '<|stop|>' if m.role == 'assistant' else '' }}"
    "{{ '' if loop.last and m.role == 'assistant' else '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# SmolLM3, Qwen 2.5.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
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
MISTRAL_MARKS = ("<s>", "[INST]", "[/INST]", "[TOOL_CALLS]")
TURN_MARKS = ("<bos>", "<start_of_turn>", "<end_of_turn>")
ROLE_MARKS = ("<|user|>", "<|assistant|>", "<|end|>")
CHATML_MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
FAMILIES |= {
    "mistral_1": (MISTRAL_1, MISTRAL_MARKS),
    "mistral_3": (MISTRAL_3, MISTRAL_MARKS),
    "mistral_small": (MISTRAL_SMALL, MISTRAL_MARKS),
    "gemma_2": (GEMMA_2, TURN_MARKS),
    "gemma_3": (GEMMA_3, TURN_MARKS),
    "phi": (PHI, ROLE_MARKS),
    "llama_2": (LLAMA_2, MISTRAL_MARKS),
    "granite": (GRANITE, ("<|start_of_role|>", "<|end_of_role|>")),
    "olmo_2": (OLMO_2, ("<bos>",)),
    "smollm3": (CHATML, CHATML_MARKS),
}
VOCAB = 272


def tokenizer_of(family: str) -> TokenizerWrapper:
    template, marks = FAMILIES[family]
    return byte_tokenizer("<|stop|>", marks, template)


def template_of(family: str) -> Template:
    return Template(tokenizer_of(family), family)
