"""The fields of request bodies: which are supported, rejected, or ignored.

A body's class declares the fields that are supported. `OTHERS` declares the other fields of the
APIs of OpenAI, Anthropic, Ollama, vLLM, llama-server and mlx-lm, by name. Both the check of a body
and the table of the guide come from these two declarations.

A rejected field would change the answer: it is refused unless its value has no effect. An ignored
field does not change the text; the answer lists it. A field that is supported by another API of
this server is rejected. A field that is nowhere is unknown: it is ignored, and logged once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .body import Fields
from .protocol import ANTHROPIC, Problem

Status = Literal["supported", "rejected", "ignored"]
FALSY = (False, 0, "", [], {})
UNKNOWN = "no API has this field"
MAX_IGNORED = 200


@dataclass(frozen=True, slots=True)
class OtherField:
    """A field that is not supported.

    name: with the names of the objects around it, as in "thinking.budget_tokens"; "*" as its last
    part means all others. why: the end of a sentence. neutral: the values that have no effect; None
    always is one. apis: the paths whose bodies this is about; empty for all whose class does not
    declare the field.
    """

    name: str
    status: Status
    why: str
    neutral: tuple[Any, ...] = FALSY
    apis: tuple[str, ...] = ()

    def sets(self, value: Any) -> bool:
        """Whether a value has an effect."""
        return value is not None and not any(
            value == one and isinstance(value, bool) == isinstance(one, bool)
            for one in self.neutral
        )


def rejected(
    names: str, why: str, *apis: str, neutral: tuple[Any, ...] = FALSY
) -> list[OtherField]:
    """Fields that are refused, unless their value is neutral."""
    return [OtherField(name, "rejected", why, neutral, apis) for name in names.split()]


def ignored(names: str, why: str, *apis: str, neutral: tuple[Any, ...] = FALSY) -> list[OtherField]:
    """Fields that are listed in the answer, unless their value is neutral."""
    return [OtherField(name, "ignored", why, neutral, apis) for name in names.split()]


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = ANTHROPIC
OLLAMA_CHAT = "/api/chat"
OLLAMA_GENERATE = "/api/generate"
OLLAMA = (OLLAMA_CHAT, OLLAMA_GENERATE)

NO_STORE = "nothing is kept here"
NO_OTHER_SERVER = "this server is the only one"
NO_SAMPLER = "this way to sample cannot be had"
OFF = "it has no effect without {}"
TEXT_OUT = "answers are text"
TEXT_ONLY = "this server reads text only"
CONVERSATION = "nothing is kept here: send the whole conversation as input"
CACHED = "prefixes are cached by themselves"
NOT_SENT = "the answer does not contain it"
FIRST_COME = "requests are served in the order in which they come"
LAST_20 = "penalties look at the last 20 tokens"
OWN_MEMORY = "the server shares out memory and threads by itself"
REFUSED_LONG = "a prompt that is too long is refused"
LAST_MESSAGE = "an answer goes on from a last message of the assistant's, and only then"
CHAT_HAS = f"{CHAT} has it"
FORCED_ONLY = "calls follow their schema where tool_choice forces them"

OTHERS = (
    # Ways to sample, of llama-server, Ollama, text-generation-webui and vLLM
    *rejected("typical_p typical tfs_z", NO_SAMPLER, neutral=(1,)),
    *rejected("mirostat mirostat_mode dry_multiplier top_a dynatemp_range", NO_SAMPLER),
    *rejected("smoothing_factor epsilon_cutoff eta_cutoff penalty_alpha", NO_SAMPLER),
    *rejected("top_n_sigma adaptive_target", NO_SAMPLER, neutral=(0, -1)),
    *ignored("mirostat_tau mirostat_eta", OFF.format("mirostat"), neutral=()),
    *ignored(
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
        OFF.format("dry_multiplier"),
        neutral=(),
    ),
    *ignored("dynatemp_exponent", OFF.format("dynatemp_range"), neutral=()),
    *ignored("adaptive_decay", OFF.format("adaptive_target"), neutral=()),
    *ignored("smoothing_curve", OFF.format("smoothing_factor"), neutral=()),
    *rejected("guidance_scale", NO_SAMPLER, neutral=(1,)),
    *rejected("negative_prompt use_beam_search watermarking min_keep", NO_SAMPLER),
    *rejected("samplers sampler_order logits_processors logit_processors", NO_SAMPLER),
    *rejected("length_penalty", "there is no beam search", neutral=(1,)),
    *ignored("early_stopping", OFF.format("use_beam_search")),
    *rejected(
        "repeat_last_n repetition_context_size presence_context_size frequency_context_size",
        LAST_20,
        neutral=(20,),
    ),
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
    *rejected(
        "max_tokens max_completion_tokens max_output_tokens", "use num_predict", *OLLAMA, neutral=()
    ),
    *rejected("max_tokens max_completion_tokens", "use max_output_tokens", RESPONSES, neutral=()),
    *rejected("max_completion_tokens max_output_tokens", "use max_tokens", MESSAGES, neutral=()),
    *rejected("thinking_token_budget", "thinking cannot be cut", neutral=(-1,)),
    *rejected("reasoning_budget thinking_budget_tokens", "thinking cannot be cut", neutral=(-1,)),
    # The form of the answer
    *rejected("format output_format", "use response_format", CHAT, COMPLETIONS, RESPONSES),
    *rejected("format output_format response_format", "use output_config.format", MESSAGES),
    *rejected("response_format verbosity", "use text", RESPONSES),
    *rejected("output_format response_format", "use format", *OLLAMA),
    *rejected("regex ebnf", "use structured_outputs"),
    *rejected("guided_whitespace_pattern", "white space of JSON is one blank or an indentation"),
    *rejected(
        "structured_outputs.whitespace_pattern structured_outputs.disable_any_whitespace",
        "white space of JSON is one blank or an indentation",
    ),
    *rejected("structured_outputs.structural_tag structural_tag", "use tools"),
    *rejected(
        "structured_outputs.disable_additional_properties",
        "write additionalProperties into the schema",
    ),
    *ignored(
        "guided_decoding_backend structured_outputs.backend structured_outputs.disable_fallback",
        "llguidance is the only one",
    ),
    *rejected("grammar_lazy grammar_triggers preserved_tokens", "a grammar holds from the start"),
    *rejected("include_stop_str_in_output no_stop_trim", "stop texts are not part of the answer"),
    *rejected("skip_special_tokens", "special tokens are not shown", neutral=(True,)),
    *ignored(
        "spaces_between_special_tokens", OFF.format("special tokens in the text"), neutral=(True,)
    ),
    *ignored("text.verbosity verbosity", "the model has no such switch"),
    *rejected("audio", TEXT_OUT),
    *rejected(
        "modalities", TEXT_OUT, COMPLETIONS, RESPONSES, MESSAGES, *OLLAMA, neutral=(["text"],)
    ),
    *rejected("width height steps", TEXT_OUT),
    *rejected("parallel_tool_calls", CHAT_HAS, *OLLAMA, neutral=(True,)),
    *rejected("tool_choice", CHAT_HAS, *OLLAMA, neutral=("auto",)),
    *ignored("parallel_tool_calls", "there are no tools", COMPLETIONS),
    *rejected(
        "parallel_tool_calls",
        "use tool_choice.disable_parallel_tool_use",
        MESSAGES,
        neutral=(True,),
    ),
    *rejected("tool_choice", "there are no tools", COMPLETIONS, neutral=("none", "auto")),
    *rejected("functions", "use tools"),
    *rejected("function_call", "use tool_choice"),
    *rejected("web_search_options", "nothing is searched here"),
    *rejected("parse_tool_calls", "calls are always read", neutral=(True,)),
    *ignored("tools.function.strict", FORCED_ONLY),
    *ignored("reasoning_format separate_reasoning stream_reasoning", "thinking is always apart"),
    *ignored("include_reasoning reasoning_split", "thinking is always sent apart", neutral=(True,)),
    *rejected("reasoning", "use reasoning_effort", CHAT),
    *rejected("think", "use reasoning_effort, or the API's own switch for thinking"),
    *rejected("reasoning_effort reasoning", "use think", *OLLAMA),
    *ignored("reasoning.context reasoning.mode", "all of the input is read", RESPONSES),
    *ignored("thinking.budget_tokens", "thinking cannot be cut", MESSAGES),
    OtherField("chat_template_kwargs.*", "supported", ""),  # as far as the template reads them
    # The prompt
    *rejected("echo", "the prompt is not sent back"),
    *rejected("suffix", "text is only added at the end"),
    *rejected("system", "use a message with the role system", CHAT, RESPONSES, OLLAMA_CHAT),
    *rejected("context", f"nothing is kept here: send the whole conversation to {OLLAMA_CHAT}"),
    *ignored("continue_final_message add_generation_prompt", LAST_MESSAGE, neutral=()),
    *rejected("add_special_tokens", "the chat template writes them", CHAT),
    *rejected("add_special_tokens", "the tokenizer adds them", COMPLETIONS, neutral=(True,)),
    *rejected("documents chat_template role_mapping", "the model's own template is used"),
    *rejected("template", "the model's own template is used"),
    *rejected("prompt_embeds multimodal_data", TEXT_ONLY),
    *rejected("image images files input_audio", TEXT_ONLY),
    *ignored("mm_processor_kwargs media_io_kwargs", TEXT_ONLY),
    *rejected("truncate_prompt_tokens", REFUSED_LONG, neutral=()),
    *ignored("truncation_side", OFF.format("truncate_prompt_tokens")),
    *ignored("truncation", REFUSED_LONG, neutral=("disabled",)),
    *rejected("n_keep", REFUSED_LONG),
    *ignored("n_discard truncate shift", REFUSED_LONG),
    *ignored("num_keep", REFUSED_LONG, neutral=()),
    *rejected("num_ctx", "use the server's --context"),
    *rejected("lora adapters adapter", "the server's own model answers"),
    *ignored("draft_model", "the server's own drafter drafts", neutral=("default_model",)),
    *ignored(
        "num_draft_tokens draft_num_predict speculative", "the policy chooses how much is drafted"
    ),
    *ignored("num_gpu num_thread num_batch main_gpu numa", OWN_MEMORY, neutral=()),
    *ignored("low_vram f16_kv use_mmap use_mlock", OWN_MEMORY, neutral=()),
    *ignored("logits_all vocab_only embedding_only num_gqa", OWN_MEMORY),
    *rejected("rope_frequency_base rope_frequency_scale", "the model's own positions are used"),
    # What the answer says beside its text
    *rejected("prompt_logprobs logprob_token_ids n_probs", "use logprobs", neutral=()),
    *rejected("post_sampling_probs", "log-probabilities are the target's own"),
    *rejected("return_tokens_as_token_ids return_token_ids return_tokens", NOT_SENT),
    *rejected("return_prompt_text enable_response_messages _debug_render_only", NOT_SENT),
    *ignored("return_token_offsets routed_experts_prompt_start", NOT_SENT),
    *ignored("return_mm_kwargs timings_per_token response_fields verbose usage", NOT_SENT),
    *ignored("include", NOT_SENT, RESPONSES),
    *ignored("stream_interval", "a pass is sent as soon as it ends"),
    *ignored("stream_options", "usage is always sent", RESPONSES, MESSAGES, *OLLAMA),
    *ignored("stream_options.*", "every event is sent as it is"),
    # What is kept, and who asks
    *rejected("previous_response_id conversation previous_response", CONVERSATION),
    *rejected("previous_input_messages", CONVERSATION),
    *rejected("prompt", "no prompts are kept here", RESPONSES, CHAT, MESSAGES),
    *rejected("background", "an answer is found while its client waits"),
    *ignored("background_options", OFF.format("background")),
    *ignored("max_tool_calls", "the client runs the tools"),
    *rejected("container", "nothing is run here"),
    *rejected("mcp_servers", "this server calls no other"),
    *rejected("context_management", "no context is edited", RESPONSES, CHAT),
    *rejected("compaction thread", NO_STORE),
    *ignored("store", NO_STORE),
    *ignored("metadata", NO_STORE, CHAT, COMPLETIONS, MESSAGES, *OLLAMA),
    *ignored("user safety_identifier user_profile_id workspace_id", NO_STORE),
    *ignored("request_id session_id client_metadata diagnostics", NO_STORE),
    *ignored("prompt_cache_key prompt_cache_options prompt_cache_retention", CACHED),
    *ignored("cache_control cache_prompt id_slot n_cache_reuse", CACHED),
    *rejected("cache_salt", "all requests share the prefix cache"),
    *ignored("service_tier", NO_OTHER_SERVER, neutral=("auto", "default", "standard_only")),
    *ignored("inference_geo speed fallbacks fallback_credit_token", NO_OTHER_SERVER),
    *ignored("access_programs billing_policy moderation betas", NO_OTHER_SERVER),
    *ignored("kv_transfer_params ec_transfer_params", NO_OTHER_SERVER),
    *ignored("provider route transforms models", NO_OTHER_SERVER),
    *ignored("priority", FIRST_COME),
    *ignored("prediction", "drafts come from the server's drafter"),
    *ignored("keep_alive", "the server's --keep-alive holds"),
    *rejected("vllm_xargs custom_params", "there are no extensions"),
    *rejected("extra_body options", "write its fields into the body itself"),
    OtherField("options", "supported", "", apis=OLLAMA),  # their bodies merge it
    *ignored(
        "tools.cache_control tools.strict tools.defer_loading tools.allowed_callers "
        "tools.input_examples tools.eager_input_streaming",
        "the chat template does not write it",
        MESSAGES,
    ),
)


def shown_name(name: str) -> str:
    return "".join(c if c.isprintable() else " " for c in name[:100])


@dataclass(frozen=True, slots=True)
class FieldCheck:
    """The fields of one body that have no effect, as "name (why)", and the unknown ones."""

    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class FieldRegister:
    """All fields of the APIs of a server.

    bodies: the class of each API's body, by the API's path. others: the fields that are not
    supported.
    """

    def __init__(self, bodies: Mapping[str, type[Fields]], others: tuple[OtherField, ...] = OTHERS):
        self._bodies = dict(bodies)
        self._others: dict[tuple[str, str], OtherField] = {}
        for other in others:
            open_to = [api for api in bodies if other.name not in bodies[api].model_fields]
            for api in other.apis or open_to:
                self._others[api, other.name] = other
        self._names = {name for _, name in self._others}

    def check(self, api: str, body: Fields) -> FieldCheck:
        """Raises Problem 400 for the first field that is set and would change the answer.

        So it does for more than MAX_IGNORED fields without an effect.
        """
        listed: dict[str, None] = {}
        unknown: dict[str, None] = {}
        for name, value, declared in given_fields(body):
            status, other = self._find(api, name, declared=declared)
            if status == "supported" or not other.sets(value):
                continue
            if status == "rejected":
                raise Problem(400, f"{name} is not supported: {other.why}.", param=name)
            shown = shown_name(name)
            listed[f"{shown} ({other.why})"] = None
            if other.why == UNKNOWN:
                unknown[shown] = None
            if len(listed) > MAX_IGNORED:
                raise Problem(400, f"more than {MAX_IGNORED} fields of the body have no effect.")
        return FieldCheck(tuple(listed), tuple(unknown))

    def rows(self) -> Iterator[tuple[str, tuple[Status | None, ...], str]]:
        """Each known field by name: its status in each API, and why it is not supported.

        None for a field of an object that the API does not have.
        """
        declared = {name for body in self._bodies.values() for name in body.model_fields}
        for name in sorted(self._names | declared):
            statuses: list[Status | None] = []
            reasons: dict[str, None] = {}
            for api, body in self._bodies.items():
                status, other = self._find(api, name)
                outer, _, inner = name.partition(".")
                statuses.append(None if inner and outer not in body.model_fields else status)
                if statuses[-1] in ("rejected", "ignored"):
                    reasons[other.why] = None
            yield name, tuple(statuses), "; ".join(reasons)

    def table(self) -> str:
        lines = [f"| field | {' | '.join(self._bodies)} | why not |"]
        lines.append("|---" * (len(self._bodies) + 2) + "|")
        for name, statuses, why in self.rows():
            shown = " | ".join(status or "–" for status in statuses)
            lines.append(f"| `{name}` | {shown} | {why} |")
        return "\n".join(lines) + "\n"

    def _find(self, api: str, name: str, *, declared: bool = False) -> tuple[Status, OtherField]:
        """A field's status in an API, and its entry. `declared`: by the class of its object."""
        other = self._others.get((api, name))
        outer, _, _ = name.rpartition(".")
        if other is None and (declared or name in self._bodies[api].model_fields):
            return "supported", OtherField(name, "supported", "")
        other = other or self._others.get((api, f"{outer}.*"))
        if other is not None:
            return other.status, other
        having = [path for path, body in self._bodies.items() if name in body.model_fields]
        if having:
            return "rejected", OtherField(name, "rejected", f"{having[0]} has it")
        if name in self._names:
            return "ignored", OtherField(name, "ignored", "this API has no such field")
        return "ignored", OtherField(name, "ignored", UNKNOWN, neutral=())


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
