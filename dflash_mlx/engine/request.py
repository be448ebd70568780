"""A request for one answer."""

from dataclasses import dataclass, fields
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import AcceptanceRule, GenerationOptions


@dataclass(frozen=True, slots=True)
class Request(GenerationOptions):
    """The options of one answer, and its prompt as tokens.

    prompt: token ids, at least one. stop_ids: tokens that end the answer. (`Session` handles the
    texts in `stop`.) bad_word_ids: each way to write one of `bad_words`. kept_ids: tokens that XTC
    never leaves out. generation_prompt: the end of `prompt` that the chat template adds after the
    messages; None for a prompt without messages.
    """

    prompt: tuple[int, ...]
    stop_ids: frozenset[int] = frozenset()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    kept_ids: tuple[int, ...] = ()
    generation_prompt: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("the prompt is empty.", hint="say something")
        GenerationOptions.__post_init__(self)
        if self.mode != "ddtree" and (self.tree_budget is not None or self.chain_seed):
            name = "chain_seed" if self.tree_budget is None else "tree_budget"
            raise UsageError(
                f"{name} has no effect in the mode {self.mode}.", hint="use the mode ddtree"
            )
        if self.mode == "ddtree" and self.draws_drafts:
            raise UsageError(
                f"the acceptance rule '{self.accept}' judges chains, not trees.",
                hint="leave it at match, or use the mode dflash",
            )
        if self.sampling.excludes_top and self.draws_drafts and not self.sampling.greedy:
            raise UsageError(
                f"the acceptance rule '{self.accept}' needs distributions, and XTC has none.",
                hint="leave accept at match, or xtc_probability at 0",
            )

    def check_vocabulary(self, size: int) -> None:
        """Raise UsageError for a token that a target with `size` tokens does not have."""
        for what, tokens in (
            ("a prompt token", self.prompt),
            ("a token of logit_bias", [token for token, _ in self.sampling.logit_bias]),
            ("a token of stop_token_ids", self.stop_token_ids),
            ("a token of allowed_token_ids", self.allowed_token_ids),
        ):
            if min(tokens, default=0) < 0 or max(tokens, default=0) >= size:
                raise UsageError(
                    f"{what} is outside the vocabulary of {size}.",
                    hint="use ids of this target's tokenizer",
                )

    @staticmethod
    def of(options: GenerationOptions, prompt: tuple[int, ...], **more: Any) -> "Request":
        values = {field.name: getattr(options, field.name) for field in fields(GenerationOptions)}
        return Request(prompt=prompt, **values, **more)

    def rule_with(self, own: AcceptanceRule) -> AcceptanceRule:
        if self.accept is not None:
            return self.accept
        needs_match = self.sampling.seed is not None or self.sampling.excludes_top
        return "match" if needs_match or self.mode == "ddtree" else own

    @property
    def reasoning_prefix(self) -> tuple[int, ...]:
        """The tokens that show whether the answer starts inside its reasoning."""
        return self.prompt if self.generation_prompt is None else self.generation_prompt
