"""What a loaded pair consists of: the target, the drafter, and how text becomes tokens."""

from dataclasses import dataclass, field
from typing import Any, Self

import mlx.core as mx
from mlx import nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .chat.template import DEFAULTS, Template
from .constrained.compiler import Compiler
from .drafters.base import Drafter
from .drafters.ngram import BLOCK, NgramDrafter
from .engine.engine import Engine
from .engine.worker_thread import mlx_thread
from .errors import PromptTooLong
from .hub import resolve
from .models.target import Target
from .options import GenerationOptions, Mode
from .text import whole_text

SAMPLES = 64  # of a long text, to estimate its tokens
SAMPLE_LENGTH = 1024  # characters
SURELY_TOO_LONG = 2  # times the context: the estimate is never that far off


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A loaded target with its tokenizer, and its drafter, if there is one: what sessions use.

    lookup: whether drafts may be copied from earlier text, also without a drafter. engine:
    generates the answers, in the thread that owns MLX.
    """

    target: Target = field(repr=False)
    drafter: Drafter | None = field(repr=False)
    tokenizer: TokenizerWrapper = field(repr=False)
    template: Template = field(repr=False)
    compiler: Compiler = field(repr=False)
    target_name: str
    draft_name: str | None
    lookup: bool = False
    engine: Engine = field(init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        target: Target,
        drafter: Drafter | None,
        tokenizer: TokenizerWrapper,
        target_name: str,
        draft_name: str | None,
        *,
        lookup: bool = False,
    ) -> Self:
        """A pair with the template and the grammar compiler of its tokenizer."""
        return cls(
            target,
            drafter,
            tokenizer,
            template=Template(tokenizer, target.path.name),
            compiler=Compiler(tokenizer, target.vocab_size, target.eos_ids),
            target_name=target_name,
            draft_name=draft_name,
            lookup=lookup,
        )

    @property
    def source(self) -> str | None:
        return None if self.target_name == resolve.BUNDLED else self.target_name

    @property
    def draft_label(self) -> str | None:
        if self.drafter is None or not self.lookup:
            return self.draft_name
        return f"{self.draft_name} + {resolve.LOOKUP}"

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """All drafters: the loaded model, then prompt lookup."""
        drafters = [] if self.drafter is None else [self.drafter]
        return (*drafters, NgramDrafter()) if self.lookup else tuple(drafters)

    @property
    def drafts(self) -> bool:
        return bool(self.drafters)

    @property
    def default_mode(self) -> Mode:
        return "dflash" if self.drafts else "baseline"

    @property
    def block_size(self) -> int:
        """Rows of a block with the anchor's, unless a request sets another number."""
        return BLOCK if self.drafter is None else self.drafter.block_size

    def __post_init__(self) -> None:
        evaluate(self.target.model)
        if self.drafter is not None:
            evaluate(self.drafter.model)
        engine = Engine(self.target, *self.drafters, compiler=self.compiler)
        object.__setattr__(self, "engine", engine)

    def chat_tokens(
        self, messages: list[dict[str, Any]], options: GenerationOptions = DEFAULTS
    ) -> list[int]:
        """A chat and its generation prompt as ids. Raises PromptTooLong as `check_length`."""
        text = self.template.write(messages, options)
        self.check_length(text)
        return self.encode(text)

    def check_length(self, text: str) -> None:
        """Raise PromptTooLong for a text far beyond the context, which would take long to encode.

        Its tokens are estimated from samples all over the text.
        """
        if len(text) <= SAMPLES * SAMPLE_LENGTH:
            return
        starts = [len(text) * number // SAMPLES for number in range(SAMPLES)]
        samples = [text[start : start + SAMPLE_LENGTH] for start in starts]
        sampled = sum(len(self.encode(sample)) for sample in samples)
        tokens = sampled * len(text) // (SAMPLES * SAMPLE_LENGTH)
        if tokens > SURELY_TOO_LONG * self.target.context_length:
            raise PromptTooLong(tokens, self.target.context_length, estimated=True)

    def encode(self, text: str) -> list[int]:
        """The token ids of a template's text, which has its special tokens already."""
        return self.template.encode(whole_text(text))


def evaluate(model: nn.Module) -> None:
    """Evaluate all arrays of a model's modules, also those that are not parameters.

    The thread pauses after each module, so that answers of other pairs go on.
    """
    for module in model.modules():
        mx.eval([value for value in module.values() if isinstance(value, mx.array)])
        mlx_thread().pause()
