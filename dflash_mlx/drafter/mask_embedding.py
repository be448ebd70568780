"""A drafter's trained embedding of the mask token: the file `mask_embedding.pt`."""

from pathlib import Path

import mlx.core as mx

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.torch_file import UNREADABLE, read_torch_file

FILE = "mask_embedding.pt"


def read_mask_embedding(folder: Path, mask_token_id: int) -> mx.array | None:
    """The embedding [H], or None without the file. Raises DFlashError for an unknown content."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content = read_torch_file(path)
    except UNREADABLE as error:
        raise DFlashError(
            f"'{path}' cannot be read ({error}).", hint="download the drafter again"
        ) from None
    row, file_token_id = content, mask_token_id
    if isinstance(content, dict):
        row = content.get("embedding", content.get("mask_embedding"))
        file_token_id = content.get("mask_token_id", mask_token_id)
    if not isinstance(row, mx.array):
        raise DFlashError(f"'{path}' holds no embedding.", hint="download the drafter again")
    if file_token_id != mask_token_id:
        raise DFlashError(
            f"'{path}' is for the mask token {file_token_id}, the drafter's is {mask_token_id}.",
            hint="download the drafter again",
        )
    return row.reshape(-1)
