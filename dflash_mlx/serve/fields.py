"""The fields of request bodies that are not supported: which are refused, which are ignored.

A body's class declares the fields that are supported. `OTHERS` declares those that would change the
answer, by name: they are refused unless their value has no effect. All other fields are ignored:
the answer lists them. A field that only another API of this server supports is refused, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .body import Fields
from .protocol import ANTHROPIC, Problem

Status = Literal["supported", "rejected", "ignored"]
FALSY = (False, 0, "", [], {})
NO_EFFECT = "it has no effect here"
MAX_IGNORED = 200


@dataclass(frozen=True, slots=True)
class OtherField:
    """A field of which there is more to say than that it has no effect.

    name: with the names of the objects around it, as in "text.verbosity"; "*" as its last part
    means all others. why: the end of a sentence. neutral: the values that have no effect; None
    always is one. apis: the paths whose bodies this is about; empty for all whose class does not
    declare the field.
    """

    name: str
    status: Status
    why: str = ""
    neutral: tuple[Any, ...] = FALSY
    apis: tuple[str, ...] = ()

    def sets(self, value: Any) -> bool:
        return value is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool)
            for one in self.neutral
        )


def rejected(
    names: str, why: str, *apis: str, neutral: tuple[Any, ...] = FALSY
) -> list[OtherField]:
    return [OtherField(name, "rejected", why, neutral, apis) for name in names.split()]


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = ANTHROPIC
OLLAMA_CHAT = "/api/chat"
OLLAMA_GENERATE = "/api/generate"
OLLAMA = (OLLAMA_CHAT, OLLAMA_GENERATE)
ALL_BUT_CHAT = (COMPLETIONS, RESPONSES, MESSAGES, *OLLAMA)

NO_STORE = "nothing is kept here"
NO_SAMPLER = "this server has no such sampler"
TEXT_OUT = "answers are text"
TEXT_ONLY = "this server reads text only"
CONVERSATION = "nothing is kept here: send the whole conversation as input"
NOT_SENT = "the answer does not contain it"
LAST_20 = "penalties look at the last 20 tokens"
REFUSED_LONG = "a prompt that is too long is refused"
CHAT_HAS = f"{CHAT} has it"
NO_PARALLEL = "use tool_choice.disable_parallel_tool_use"
UNCUT = "thinking cannot be cut"
JSON_SPACE = "white space of JSON is one blank or an indentation"

OTHERS = (
    # Ways to sample, of llama-server, Ollama, text-generation-webui and vLLM
    *rejected("typical_p typical tfs_z guidance_scale", NO_SAMPLER, neutral=(1,)),
    *rejected("mirostat mirostat_mode dry_multiplier top_a dynatemp_range", NO_SAMPLER),
    *rejected("smoothing_factor epsilon_cutoff eta_cutoff penalty_alpha", NO_SAMPLER),
    *rejected("top_n_sigma adaptive_target", NO_SAMPLER, neutral=(0, -1)),
    *rejected("negative_prompt use_beam_search watermarking min_keep", NO_SAMPLER),
    *rejected("samplers sampler_order logits_processors logit_processors", NO_SAMPLER),
    *rejected("length_penalty", "there is no beam search", neutral=(1,)),
    *rejected("repeat_last_n repetition_context_size", LAST_20, neutral=(20,)),
    *rejected("presence_context_size frequency_context_size", LAST_20, neutral=(20,)),
    *rejected("penalize_nl", LAST_20),
    *rejected("penalize_newline", LAST_20, neutral=(True,)),
    *rejected("stop", "use stop_sequences", MESSAGES),
    *rejected("stop_sequences", "use stop", CHAT, COMPLETIONS, RESPONSES, *OLLAMA),
    *rejected("n best_of", f"{CHAT} has n", MESSAGES, RESPONSES, *OLLAMA, neutral=(1,)),
    *rejected("best_of", "all answers are sent", CHAT, neutral=(1,)),
    *rejected("min_length min_new_tokens", "use min_tokens"),
    *rejected("repetition_detection t_max_predict_ms", "an answer ends by its tokens alone"),
    *rejected("n_predict num_predict max_new_tokens max_length", "use max_tokens"),
    *rejected("n_predict max_new_tokens max_length", "use num_predict", *OLLAMA),
    *rejected("max_tokens max_completion_tokens", "use num_predict", *OLLAMA, neutral=()),
    *rejected("max_output_tokens", "use num_predict", *OLLAMA, neutral=()),
    *rejected("max_tokens max_completion_tokens", "use max_output_tokens", RESPONSES, neutral=()),
    *rejected("max_completion_tokens max_output_tokens", "use max_tokens", MESSAGES, neutral=()),
    *rejected("thinking_token_budget thinking_budget_tokens", UNCUT, neutral=(-1,)),
    *rejected("reasoning_budget", UNCUT, neutral=(-1,)),
    # The form of the answer
    *rejected("format output_format", "use response_format", CHAT, COMPLETIONS, RESPONSES),
    *rejected("format output_format response_format", "use output_config.format", MESSAGES),
    *rejected("response_format", "use text", RESPONSES),
    *rejected("output_format response_format", "use format", *OLLAMA),
    *rejected("regex ebnf", "use structured_outputs"),
    *rejected("guided_whitespace_pattern", JSON_SPACE),
    *rejected("structured_outputs.whitespace_pattern", JSON_SPACE),
    *rejected("structured_outputs.disable_any_whitespace", JSON_SPACE),
    *rejected("structured_outputs.structural_tag structural_tag", "use tools"),
    *rejected("structured_outputs.disable_additional_properties", "write them into the schema"),
    *rejected("grammar_lazy grammar_triggers preserved_tokens", "a grammar holds from the start"),
    *rejected("include_stop_str_in_output no_stop_trim", "stop texts are not part of the answer"),
    *rejected("skip_special_tokens", "special tokens are not shown", neutral=(True,)),
    OtherField("text.verbosity", "ignored", "the model has no such switch"),
    OtherField("verbosity", "ignored", "the model has no such switch"),
    *rejected("audio", TEXT_OUT),
    *rejected("modalities", TEXT_OUT, *ALL_BUT_CHAT, neutral=(["text"],)),
    *rejected("width height steps", TEXT_OUT),
    *rejected("parallel_tool_calls", CHAT_HAS, *OLLAMA, neutral=(True,)),
    *rejected("tool_choice", CHAT_HAS, *OLLAMA, neutral=("auto",)),
    OtherField("parallel_tool_calls", "ignored", "there are no tools", apis=(COMPLETIONS,)),
    *rejected("parallel_tool_calls", NO_PARALLEL, MESSAGES, neutral=(True,)),
    *rejected("tool_choice", "there are no tools", COMPLETIONS, neutral=("none", "auto")),
    *rejected("functions", "use tools"),
    *rejected("function_call", "use tool_choice"),
    *rejected("web_search_options", "nothing is searched here"),
    *rejected("parse_tool_calls", "calls are always read", neutral=(True,)),
    *rejected("reasoning", "use reasoning_effort", CHAT),
    *rejected("think", "use reasoning_effort, or the API's own switch for thinking"),
    *rejected("reasoning_effort reasoning", "use think", *OLLAMA),
    OtherField("chat_template_kwargs.*", "supported"),  # as far as the template reads them
    # The prompt
    *rejected("echo", "the prompt is not sent back"),
    *rejected("suffix", "text is only added at the end"),
    *rejected("system", "use a message with the role system", CHAT, RESPONSES, OLLAMA_CHAT),
    *rejected("context", f"nothing is kept here: send the whole conversation to {OLLAMA_CHAT}"),
    *rejected("add_special_tokens", "the chat template writes them", CHAT),
    *rejected("add_special_tokens", "the tokenizer adds them", COMPLETIONS, neutral=(True,)),
    *rejected("documents chat_template role_mapping template", "the model's own template is used"),
    *rejected("prompt_embeds multimodal_data image images files input_audio", TEXT_ONLY),
    *rejected("truncate_prompt_tokens", REFUSED_LONG, neutral=()),
    *rejected("n_keep", REFUSED_LONG),
    *rejected("num_ctx", "use the server's --context"),
    *rejected("lora adapters adapter", "the server's own model answers"),
    *rejected("rope_frequency_base rope_frequency_scale", "the model's own positions are used"),
    # What the answer says beside its text
    *rejected("prompt_logprobs logprob_token_ids n_probs", "use logprobs", neutral=()),
    *rejected("post_sampling_probs", "log-probabilities are the target's own"),
    *rejected("return_tokens_as_token_ids return_token_ids return_tokens", NOT_SENT),
    *rejected("return_prompt_text enable_response_messages _debug_render_only", NOT_SENT),
    OtherField("stream_options", "ignored", "usage is always sent"),
    # What is kept, and who asks
    *rejected("previous_response_id conversation", CONVERSATION),
    *rejected("previous_response previous_input_messages", CONVERSATION),
    *rejected("prompt", "no prompts are kept here", RESPONSES, CHAT, MESSAGES),
    *rejected("background", "an answer is found while its client waits"),
    *rejected("container", "nothing is run here"),
    *rejected("mcp_servers", "this server calls no other"),
    *rejected("context_management", "no context is edited", RESPONSES, CHAT),
    *rejected("compaction thread", NO_STORE),
    OtherField("metadata", "ignored", NO_STORE),
    *rejected("cache_salt", "all requests share the prefix cache"),
    OtherField("keep_alive", "ignored", "the server's --keep-alive holds"),
    *rejected("vllm_xargs custom_params", "there are no extensions"),
    *rejected("extra_body options", "write its fields into the body itself"),
    OtherField("options", "supported", apis=OLLAMA),  # their bodies merge it
)


def shown_name(name: str) -> str:
    return "".join(c if c.isprintable() else " " for c in name[:100])


class FieldRegister:
    """All fields of the APIs of a server. bodies: the class of each API's body, by its path."""

    def __init__(self, bodies: Mapping[str, type[Fields]]):
        self.bodies = dict(bodies)
        self._others: dict[tuple[str, str], OtherField] = {}
        for other in OTHERS:
            open_to = [api for api in bodies if other.name not in bodies[api].model_fields]
            for api in other.apis or open_to:
                self._others[api, other.name] = other

    def check(self, api: str, body: Fields) -> dict[str, str]:
        """The fields of a body that have no effect, and why.

        Raises Problem 400 for the first field that is set and would change the answer, and for more
        than MAX_IGNORED fields without an effect.
        """
        listed: dict[str, str] = {}
        for name, value, declared in given_fields(body):
            field = self.find(api, name, declared=declared)
            if field.status == "supported" or not field.sets(value):
                continue
            if field.status == "rejected":
                raise Problem(400, f"{name} is not supported: {field.why}.", param=name)
            listed[shown_name(name)] = field.why
            if len(listed) > MAX_IGNORED:
                raise Problem(400, f"more than {MAX_IGNORED} fields of the body have no effect.")
        return listed

    def find(self, api: str, name: str, *, declared: bool = False) -> OtherField:
        """What holds for a field in an API. `declared`: by the class of its object."""
        other = self._others.get((api, name))
        outer, _, _ = name.rpartition(".")
        if other is None and (declared or name in self.bodies[api].model_fields):
            return OtherField(name, "supported")
        if other := other or self._others.get((api, f"{outer}.*")):
            return other
        having = [path for path, body in self.bodies.items() if name in body.model_fields]
        if having:
            return OtherField(name, "rejected", f"{having[0]} has it")
        return OtherField(name, "ignored", NO_EFFECT, neutral=())


def given_fields(body: Fields, before: str = "") -> Iterator[tuple[str, Any, bool]]:
    """The fields of a body and of the objects in it: name, value, whether its class declares it."""
    for name, value in (body.model_extra or {}).items():
        yield before + name, value, False
    for name in type(body).model_fields:
        if name not in body.model_fields_set:
            continue
        value = getattr(body, name)
        yield before + name, value, True
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Fields):
                yield from given_fields(inner, f"{before}{name}.")
