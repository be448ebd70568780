"""Every field of the known APIs is supported, rejected or ignored, and none is silent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic.types.beta.message_create_params as anthropic_beta
import httpx
import ollama._types as ollama_types
import openai.types.chat.completion_create_params as openai_chat
import openai.types.completion_create_params as openai_completions
import openai.types.responses.response_create_params as openai_responses
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from serving import Served

from dflash_mlx.serve.anthropic_messages import MessagesBody
from dflash_mlx.serve.app import FIELDS
from dflash_mlx.serve.fields import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NO_EFFECT,
    OLLAMA,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    FieldRegister,
)
from dflash_mlx.serve.ollama_chat import GenerateBody, ModelOptions, OllamaChatBody
from dflash_mlx.serve.openai_chat import ChatBody
from dflash_mlx.serve.openai_completions import CompletionBody
from dflash_mlx.serve.openai_responses import ResponsesBody
from dflash_mlx.serve.protocol import Problem

PAGE = Path(__file__).parents[2] / "examples/guide/serve_fields.md"
BODIES = {
    CHAT: ChatBody,
    COMPLETIONS: CompletionBody,
    RESPONSES: ResponsesBody,
    MESSAGES: MessagesBody,
    OLLAMA_CHAT: OllamaChatBody,
    OLLAMA_GENERATE: GenerateBody,
}
USER = {"role": "user", "content": "What is 12 plus 7?"}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 1},
    COMPLETIONS: {"prompt": "The sky is", "max_tokens": 1},
    RESPONSES: {"input": "What is 12 plus 7?", "max_output_tokens": 1},
    MESSAGES: {"messages": [USER], "max_tokens": 1},
    OLLAMA_CHAT: {"messages": [USER], "num_predict": 1, "stream": False},
    OLLAMA_GENERATE: {"prompt": "The sky is", "num_predict": 1, "stream": False},
}
# The fields of vLLM's requests (vllm/entrypoints, September 2026) that the packages of OpenAI and
# Anthropic do not have.
VLLM_SAMPLING = """
    use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words structured_outputs priority request_id session_id
    return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets
    return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs
    repetition_detection thinking_token_budget stream_interval add_special_tokens
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
    guided_whitespace_pattern response_format
"""
VLLM: dict[str, str] = {
    CHAT: VLLM_SAMPLING
    + """ include_reasoning echo add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text""",
    COMPLETIONS: VLLM_SAMPLING + " prompt_embeds",
    RESPONSES: """ logit_bias top_k skip_special_tokens include_stop_str_in_output request_id
    mm_processor_kwargs priority cache_salt enable_response_messages previous_input_messages
    previous_response structured_outputs repetition_penalty seed stop ignore_eos vllm_xargs""",
    MESSAGES: " kv_transfer_params chat_template_kwargs",
}
STATUSES = ("supported", "rejected", "ignored")
# The fields of Ollama's requests (api/types.go, August 2026, and earlier ones that clients still
# send) that its package for Python does not have.
OLLAMA_MORE = """
    truncate shift _debug_render_only min_p draft_num_predict num_gqa rope_frequency_base
    rope_frequency_scale
"""


# Fields of these APIs that do not change the text of an answer, and are ignored
HARMLESS = """
    access_programs add_generation_prompt background_options betas billing_policy cache_control
    continue_final_message diagnostics draft_num_predict ec_transfer_params embedding_only
    f16_kv fallback_credit_token fallbacks guided_decoding_backend include include_reasoning
    inference_geo kv_transfer_params logits_all low_vram main_gpu max_tool_calls media_io_kwargs
    mirostat_eta mirostat_tau mm_processor_kwargs moderation num_batch num_gpu num_gqa num_keep
    num_thread numa prediction priority prompt_cache_key prompt_cache_options
    prompt_cache_retention request_id return_mm_kwargs return_token_offsets
    routed_experts_prompt_start safety_identifier service_tier session_id shift
    spaces_between_special_tokens speed store stream_interval truncate truncation
    truncation_side use_mlock use_mmap user user_profile_id vocab_only workspace_id
"""


def names_of(*classes: Any) -> set[str]:
    return {name for one in classes for name in one.__annotations__}


CLIENTS: dict[str, set[str]] = {
    CHAT: names_of(openai_chat.CompletionCreateParamsStreaming),
    COMPLETIONS: names_of(openai_completions.CompletionCreateParamsStreaming),
    RESPONSES: names_of(openai_responses.ResponseCreateParamsStreaming),
    MESSAGES: names_of(
        message_create_params.MessageCreateParamsStreaming,
        anthropic_beta.MessageCreateParamsStreaming,
        message_count_tokens_params.MessageCountTokensParams,
    ),
    OLLAMA_CHAT: set(ollama_types.ChatRequest.model_fields),
    OLLAMA_GENERATE: set(ollama_types.GenerateRequest.model_fields),
}
for path in OLLAMA:
    CLIENTS[path] |= set(ollama_types.Options.model_fields)
    VLLM[path] = OLLAMA_MORE


def post(served: Served, path: str, **more: Any) -> httpx.Response:
    return httpx.post(served.url + path, json={**LEAST[path], **more}, timeout=60)


def names_in(register: FieldRegister) -> set[str]:
    declared = {name for body in register.bodies.values() for name in body.model_fields}
    return declared | {name for _, name in register._others}


def missing(register: FieldRegister, path: str) -> set[str]:
    """The fields that an API has, and neither the register nor `HARMLESS` does."""
    return (CLIENTS[path] | set(VLLM[path].split())) - names_in(register) - set(HARMLESS.split())


@pytest.mark.parametrize("path", BODIES)
def test_each_field_of_a_known_api_is_declared(path: str) -> None:
    assert len(CLIENTS[path]) > 15
    assert missing(FIELDS, path) == set()


def rows() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each known field by name: its status in each API, and why it is not supported.

    A dash for a field of an object that the API does not have.
    """
    for name in sorted(names_in(FIELDS)):
        statuses: list[str] = []
        reasons: dict[str, None] = {}
        for api, body in BODIES.items():
            found = FIELDS.find(api, name)
            outer, _, inner = name.partition(".")
            statuses.append("–" if inner and outer not in body.model_fields else found.status)
            if statuses[-1] in ("rejected", "ignored"):
                reasons[found.why] = None
        yield name, tuple(statuses), "; ".join(reasons)


def table() -> str:
    lines = [f"| field | {' | '.join(BODIES)} | why not |", "|---" * (len(BODIES) + 2) + "|"]
    for name, statuses, why in rows():
        lines.append(f"| `{name}` | {' | '.join(statuses)} | {why} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_the_guide() -> None:
    """If this fails, write `table()` to the end of the page."""
    assert PAGE.read_text(encoding="utf-8").endswith("\n\n" + table())


def body_with(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("path", BODIES)
def test_rejected_fields_are_named(served: Served, path: str) -> None:
    """Each is sent with a value that would change the answer, and with its neutral values."""
    number = list(BODIES).index(path)
    count = 0
    for name, statuses, _ in rows():
        if statuses[number] != "rejected" or "." in name:
            continue
        reply = post(served, path, **body_with(name, "x"))
        assert reply.status_code == 400, name
        assert f"{name} is not supported" in reply.text
        assert path in (MESSAGES, *OLLAMA) or reply.json()["error"]["param"] == name
        count += 1
    assert count > 50
    assert served.busy == 0


@pytest.mark.parametrize("path", BODIES)
def test_neutral_values_pass(served: Served, path: str) -> None:
    """Many programs send all they know, with the values that switch it off."""
    off = {
        "mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "dry_multiplier": 0.0,
        "length_penalty": 1, "repeat_last_n": 20, "skip_special_tokens": True, "audio": None,
        "best_of": 1, "n": 1, "functions": [],
    }  # fmt: skip
    reply = post(served, path, **off)
    assert reply.status_code == 200, reply.text
    assert told(reply) == [f"mirostat_tau ({NO_EFFECT})"]


def told(reply: httpx.Response) -> list[str]:
    return reply.json()["dflash"]["ignored"]


@pytest.mark.parametrize("path", BODIES)
def test_ignored_fields_are_listed(served: Served, path: str) -> None:
    number = list(BODIES).index(path)
    names = [name for name, status, _ in rows() if status[number] == "ignored"]
    top = [name for name in (*names, *HARMLESS.split()) if "." not in name]
    reply = post(served, path, **dict.fromkeys(top, "x"))
    assert reply.status_code == 200, reply.text
    assert {line.partition(" (")[0] for line in told(reply)} == set(top)
    assert len(top) > 30


@pytest.mark.parametrize("stream", [False, True])
def test_an_ignored_field_is_listed_and_logged_once(served: Served, stream: bool) -> None:
    name = f"top_pp_{stream}"
    before = len(served.lines)
    for _ in range(2):
        reply = post(served, CHAT, stream=stream, **{name: 0, "another\n": None})
        assert reply.status_code == 200
        assert f"{name} ({NO_EFFECT})" in reply.text
    notes = [json.loads(line) for line in served.lines[before:] if "ignored_field" in line]
    assert [note["ignored_field"] for note in notes] == [name]


def test_too_many_fields_without_an_effect() -> None:
    body = ChatBody.model_validate({**LEAST[CHAT], **{f"x{n}": 1 for n in range(300)}})
    with pytest.raises(Problem, match="more than 200 fields"):
        FIELDS.check(CHAT, body)


# Path, fields inside the objects of a body, and what is said of them.
OBJECTS: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 9}},
     [f"thinking.budget_tokens ({NO_EFFECT})"]),
    (RESPONSES, {"text": {"verbosity": "low"}},
     ["text.verbosity (the model has no such switch)"]),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False, "style": "x"}},
     []),
    (CHAT, {"stream_options": {"include_usage": True, "include_obfuscation": True}},
     [f"stream_options.include_obfuscation ({NO_EFFECT})"]),
    (CHAT, {"tools": [{"type": "function", "function": {"name": n, "strict": True}}
                      for n in ("f", "g")]},
     [f"tools.function.strict ({NO_EFFECT})"]),
    (MESSAGES, {"output_config": {"effort": "low", "speed": 3}},
     [f"output_config.speed ({NO_EFFECT})"]),
)  # fmt: skip


@pytest.mark.parametrize(("path", "more", "ignored"), OBJECTS)
def test_fields_inside_objects(path: str, more: dict[str, Any], ignored: list[str]) -> None:
    body = BODIES[path].model_validate({**LEAST[path], **more})
    found = FIELDS.check(path, body)
    assert [f"{name} ({why})" for name, why in found.items()] == ignored


SUPPORTED: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "logit_bias": {"5": 1},
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "stop": ["x"],
    "stream": False, "n": 1, "logprobs": True, "top_logprobs": 1, "return_progress": True,
    "return_passes": True,
    "max_completion_tokens": 1, "tools": [], "tool_choice": "none", "parallel_tool_calls": True,
    "response_format": {"type": "text"}, "reasoning_effort": "low", "modalities": ["text"],
    "chat_template_kwargs": {"enable_thinking": False}, "stream_options": {"include_usage": True},
    "best_of": 1, "instructions": "Be brief.", "reasoning": {"effort": "low"}, "metadata": {"a": 1},
    "text": {"format": {"type": "text"}}, "system": "Be brief.", "stop_sequences": ["x"],
    "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}, "model": "m",
    "context_management": {"edits": []}, "repeat_penalty": 1.1, "xtc_probability": 0.5,
    "xtc_threshold": 0.2, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [7],
    "allowed_token_ids": list(range(90)), "bad_words": ["blue"], "num_ctx": 500,
    "repeat_last_n": 20, "format": "", "think": False, "keep_alive": None, "raw": False,
    "options": {},
}  # fmt: skip
FORMS: dict[str, Any] = {
    "structured_outputs": {"choice": ["a", "b"]}, "guided_json": {"type": "integer"},
    "guided_regex": "[0-9]{2}", "guided_choice": ["a", "b"], "guided_grammar": 'root ::= "a"',
    "json_schema": '{"type": "integer"}', "grammar": 'start: "a"',
}  # fmt: skip
OF_ONE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"logprobs": 1},
    MESSAGES: {"tool_choice": {"type": "auto"}},
}


@pytest.mark.parametrize("path", OLLAMA)
def test_each_option_is_read_inside_options(served: Served, path: str) -> None:
    """Where Ollama's clients put it: supported, rejected and ignored ones alike."""
    names = set(ModelOptions.model_fields) - set(FORMS)
    names |= set(ollama_types.Options.model_fields) | set(OLLAMA_MORE.split())
    names -= {"truncate", "shift", "_debug_render_only"}
    least = {name: value for name, value in LEAST[path].items() if name != "num_predict"}
    by_status: dict[str, set[str]] = {status: set() for status in STATUSES}
    for name in names:
        by_status[FIELDS.find(path, name).status].add(name)
    assert all(len(found) > 5 for found in by_status.values())
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(**options: Any) -> httpx.Response:
            return client.post(path, json={**least, "options": options})

        for name in by_status["rejected"]:
            reply = ask(**{name: "x"})
            assert reply.status_code == 400
            assert f"{name} is not supported" in reply.text
        reply = ask(**{name: SUPPORTED.get(name, 1) for name in by_status["supported"]})
        assert reply.status_code == 200, reply.text
        assert told(reply) == []
        reply = ask(num_predict=1, **dict.fromkeys(by_status["ignored"], "x"))
        assert {line.partition(" (")[0] for line in told(reply)} == by_status["ignored"]


@pytest.mark.parametrize("path", BODIES)
def test_supported_fields_pass(served: Served, path: str) -> None:
    """All in one request, but for the forms of an answer, which contradict each other."""
    number = list(BODIES).index(path)
    names = {name for name, status, _ in rows() if status[number] == "supported"}
    names = {name for name in names if not name.endswith("*")}
    values = {**SUPPORTED, **OF_ONE.get(path, {}), **LEAST[path]}
    assert names - set(values) == set(FORMS)
    bodies = [{name: values[name] for name in names - set(FORMS)}]
    bodies += [{name: form} for name, form in FORMS.items()]
    for body in bodies:
        reply = post(served, path, **body)
        assert reply.status_code == 200, reply.text
        assert told(reply) == []
