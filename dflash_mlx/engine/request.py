"""One answer that the engine is asked for."""

from dataclasses import dataclass, fields
from typing import Any

from dflash_mlx.errors import UsageError
from dflash_mlx.options import GenerationOptions


@dataclass(frozen=True, slots=True)
class Request(GenerationOptions):
    """The options of one answer, and what it goes on from.

    prompt: token ids, at least one. stop_ids: tokens that end the answer, the target's own; the
    texts in `stop` are for whoever reads the text (`Session`), the engine knows tokens only.
    opening: the tokens that the answer goes on from, behind the messages, by which it is known
    whether it is thinking; None is all of `prompt`.
    """

    prompt: tuple[int, ...]
    stop_ids: frozenset[int] = frozenset()
    opening: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        if not self.prompt:
            raise UsageError("the prompt is empty.", hint="say something")
        GenerationOptions.__post_init__(self)
        if self.mode != "ddtree" and (self.tree_budget is not None or self.chain_seed):
            name = "chain_seed" if self.tree_budget is None else "tree_budget"
            raise UsageError(
                f"{name} says nothing to the mode {self.mode}.", hint="use the mode ddtree"
            )
        if self.mode == "ddtree" and self.accept != "match":
            raise UsageError(
                f"the acceptance rule '{self.accept}' judges chains, not trees.",
                hint="leave it at match, or use the mode dflash",
            )

    @staticmethod
    def of(options: GenerationOptions, prompt: tuple[int, ...], **more: Any) -> "Request":
        """A request with these options; `more` are the other fields."""
        values = {one.name: getattr(options, one.name) for one in fields(GenerationOptions)}
        return Request(prompt=prompt, **values, **more)

    @property
    def going_on_from(self) -> tuple[int, ...]:
        """The tokens behind the messages, by which it is known whether the answer is thinking."""
        return self.prompt if self.opening is None else self.opening
