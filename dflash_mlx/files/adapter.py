"""The folder of an adapter, as `mlx_lm.lora` writes it: LoRA, DoRA, or weights that it trained."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dflash_mlx.errors import DFlashError

from .checkpoint import ADAPTER_CONFIG, adapter_base, is_peft, json_object, tensor_headers

WEIGHTS = "adapters.safetensors"
HINT = "give the folder that mlx_lm.lora wrote"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter on disk.

    base: the model that it was trained for, by its config; empty if it does not say. digest: of the
    whole files.
    """

    path: Path
    base: str
    digest: str

    @classmethod
    def read(cls, name: str | Path) -> Self:
        """Raises DFlashError for a missing or damaged file, and for an adapter of PEFT."""
        path = Path(name).expanduser()
        if not path.is_dir():
            raise DFlashError(f"there is no adapter folder '{name}'.", hint=HINT)
        try:
            config = json_object(path / ADAPTER_CONFIG)
        except FileNotFoundError:
            raise DFlashError(f"there is no {ADAPTER_CONFIG} in '{name}'.", hint=HINT) from None
        if is_peft(config):
            raise DFlashError(
                f"'{name}' is a PEFT adapter, which mlx-lm does not read.",
                hint="mlx-lm reads adapters made by mlx_lm.lora",
            )
        needed = {"num_layers": int, "lora_parameters": dict}
        for key, kind in needed.items() if config.get("fine_tune_type") != "full" else ():
            if not isinstance(config.get(key), kind):
                raise DFlashError(f"the {ADAPTER_CONFIG} in '{name}' has no '{key}'.", hint=HINT)
        weights = path / WEIGHTS
        if not weights.is_file():
            raise DFlashError(f"there is no {WEIGHTS} in '{name}'.", hint=HINT)
        tensor_headers(weights)
        digest = hashlib.sha256()
        for file in (path / ADAPTER_CONFIG, weights):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return cls(path, adapter_base(config), digest.hexdigest())

    def misfit(self, model: str, error: Exception) -> DFlashError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[:2][-1] if lines else type(error).__name__  # the first tensor that is wrong
        return DFlashError(
            f"the adapter in '{self.path}' does not fit the model '{model}' ({reason:.200}).",
            hint=f"it was made for {self.base}" if self.base else "it was made for another model",
        )
