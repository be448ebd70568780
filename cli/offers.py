"""What `dflash serve` offers without --model: the models on this machine, and how to load each."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_mlx.errors import DFlashError
from dflash_mlx.options import GenerationOptions

from .backend.local import LocalBackend
from .loading import load_pair, pair_at_hand
from .options import BUNDLED, Options
from .resolve import fit, resolve
from .terminal.output import Output

if TYPE_CHECKING:
    from dflash_mlx import Pair
    from dflash_mlx.serve.models import Offer

SCAN_SECONDS = 5.0  # a list of the models is as old as this at most


class Offers:
    """The models that can be served: calling it lists them.

    options: those of all models; the config file may have others for one of them. folders:
    more folders of models. allow_pull: known pairs are offered that are not downloaded.
    """

    def __init__(self, options: Options, folders: Sequence[Path], out: Output, *, allow_pull: bool):
        self._options = options
        self._folders = folders
        self._out = out
        self._allow_pull = allow_pull
        self._listed: list[Offer] = []
        self._listed_at = float("-inf")

    def __call__(self) -> "list[Offer]":
        if time.monotonic() - self._listed_at > SCAN_SECONDS:
            self._listed = self._scan()
            self._listed_at = time.monotonic()
        return self._listed

    def _scan(self) -> "list[Offer]":
        from dflash_mlx.hub.local import local_models
        from dflash_mlx.hub.resolve import bundled

        offers = [self._offer(BUNDLED, None, bundled("target"))]
        for model in local_models(self._folders):
            if model.lacks:
                continue
            try:
                offers.append(self._offer(model.name, model.source, model.folder))
            except DFlashError as error:
                self._out.warn(f"{model.name} is not offered: {error.message.rstrip('.')}")
        return offers + (self._not_downloaded() if self._allow_pull else [])

    def _offer(self, name: str, source: str | None, folder: Path) -> "Offer":
        from dflash_mlx.files.checkpoint import context_length
        from dflash_mlx.serve.models import Offer

        pair = pair_at_hand(source, self._options.model, self._out)
        context = context_length(pair.target.text_config)
        load = partial(self._load, source, pair.draft_name)
        return Offer(name, pair.memory.total, load, context, pair.draft_name, folder=folder)

    def _not_downloaded(self) -> "list[Offer]":
        """The known pairs that are not downloaded, and that fit this machine."""
        from dflash_mlx.hub.cache import cached_state
        from dflash_mlx.hub.registry import best_known
        from dflash_mlx.hub.resolve import LOOKUP
        from dflash_mlx.models.memory import memory_fit, working_set
        from dflash_mlx.serve.models import Offer

        offers = []
        for entry in best_known():
            needed = entry.memory_bytes
            if needed is None or memory_fit(needed, working_set()) == "refuse":
                continue
            if entry.lacks or cached_state(entry.target) == "yes":
                continue
            draft = entry.draft or LOOKUP
            load = partial(self._load, entry.target, draft)
            offers.append(Offer(entry.target, needed, load, None, draft, downloaded=False))
        return offers

    def _load(self, source: str | None, draft: str | None) -> "tuple[Pair, GenerationOptions]":
        """Load a pair; it and the defaults of requests for it. Raises DFlashError."""
        given = draft if source is not None else None  # the bundled pair has its own
        asked = self._options.changed(model=source, draft=given, no_draft=draft is None)
        options = resolve(asked, self._out)
        pair, _ = load_pair(options.model, self._out, options.cache)
        info = LocalBackend(pair).info
        options = fit(options, info, self._out, recommended=True)
        self._out.warn(*info.warnings)
        return pair, options.generation
