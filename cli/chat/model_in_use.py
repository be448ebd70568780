"""What answers in a chat now, and how: a pair that may be exchanged, or one model of a server.

Knows no turns.
"""

from typing import TYPE_CHECKING, Any, cast

from ..chat_settings import ChatSettings
from ..modes import describe_drafting
from .hints import Hints
from .local_model import LocalModel
from .model import ChatModel
from .remote_model import RemoteModel
from .totals import Totals

if TYPE_CHECKING:
    from dflash_mlx import Pair, Session
    from dflash_mlx.remote.session import RemoteSession, Server
    from dflash_mlx.request import Mode


class ModelInUse:
    """A model with the settings of its next answer, the sums over its answers, and hints."""

    def __init__(self, pair: "Pair | RemoteModel", settings: ChatSettings):
        self.settings, self.totals, self.hints = settings, Totals(), Hints()
        self.model: ChatModel
        if isinstance(pair, RemoteModel):
            self.model = pair
        else:
            self.set_pair(pair)

    @property
    def local(self) -> LocalModel:
        """The model; UsageError where it is a server's."""
        self.check_local("this")
        return cast(LocalModel, self.model)

    def check_local(self, what: str) -> None:
        """UsageError for what cannot be done where a server answers."""
        if isinstance(self.model, RemoteModel):
            raise self.model.source.not_here(what)

    @property
    def pair(self) -> "Pair":
        """The pair; UsageError where a server answers."""
        return self.local.source

    @property
    def session(self) -> "Session | RemoteSession":
        """What answers."""
        return self.model.session

    @property
    def server(self) -> "Server | None":
        """The server that answers; None where the model is on this machine."""
        return self.model.source if isinstance(self.model, RemoteModel) else None

    @property
    def drafting(self) -> bool:
        """Whether answers are drafted here."""
        return isinstance(self.model, LocalModel) and self.model.drafting

    def set_pair(self, pair: "Pair", *, drafting: bool = True) -> None:
        """Answer with this pair from now on; without `drafting`, by plain decoding."""
        drafting = drafting and pair.drafts
        previous = getattr(self, "model", None)
        if isinstance(previous, LocalModel) and previous.source is pair:
            previous.drafting = drafting
            self.use_mode()
        else:
            mode = self.settings.mode if drafting else "baseline"
            self.model = LocalModel(pair, mode, drafting=drafting)
        self.totals, self.hints = Totals(), Hints()

    def use_mode(self) -> None:
        """Let the next answer have the mode of the settings."""
        if isinstance(self.model, LocalModel):
            self.model.session.mode = self.mode

    def release_pair(self) -> None:
        """Free the pair and its caches; `set_pair` must follow."""
        import mlx.core as mx

        del self.model
        mx.clear_cache()

    @property
    def mode(self) -> "Mode":
        """The decoding mode of the next answer."""
        return self.settings.mode if self.drafting else "baseline"

    @property
    def drafting_summary(self) -> str:
        """Block size and mode in a few words; empty without drafting."""
        if not self.drafting:
            return ""
        return describe_drafting(
            self.pair, self.mode, self.settings.block_size, self.settings.tree_budget
        )

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and answer can have together; 0 where nobody knows."""
        return self.model.context_length

    def options(self) -> dict[str, Any]:
        """The arguments of `Session.stream` besides the prompt."""
        return self.model.options(self.settings)
