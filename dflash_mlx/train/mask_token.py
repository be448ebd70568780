"""Choice of the mask token: a row of the target's embedding that never occurs in text.

The mask token fills positions 1 to B-1 of a block (DFlash paper, section 3.2). The vocabulary and
the embedding are not changed.
"""

import re
from collections.abc import Iterable

from dflash_mlx.errors import DFlashError
from dflash_mlx.target.target import Target

RESERVED = re.compile(r"reserved|unused|extra_id|placeholder|audio|vision", re.IGNORECASE)
MEANINGFUL = re.compile(
    r"think|im_start|im_end|tool|eot|eom|header|begin|end_?of|turn|unk|pad|^</?s>$|bos|eos|sep",
    re.IGNORECASE,
)
# What a tokenizer may use a token for; each is some token's id, or none's.
ROLES = ("unk", "bos", "eos", "pad", "sep", "cls")


def choose_mask_token(target: Target, used: Iterable[int], wanted: int | None = None) -> int:
    """The id of the mask token: `wanted` if given, else an unused token.

    used: ids that occur in the data. The order of choice is: tokens named "mask", reserved tokens,
    embedding rows without a token, other added tokens; never one that the data or the chat template
    use, that ends answers, or that the tokenizer needs, as for unknown text. Raises DFlashError if
    there is none, or if `wanted` is in use.
    """
    tokenizer = target.tokenizer
    roles = (getattr(tokenizer, f"{role}_token_id", None) for role in ROLES)
    taken = set(used) | set(target.eos_ids) | {token for token in roles if token is not None}
    if wanted is not None:
        if not 0 <= wanted < target.vocab_size or wanted in taken:
            raise DFlashError(
                f"{wanted} is not a free token of this target.",
                hint="leave --mask-token out to have one chosen",
            )
        return wanted
    template = str(tokenizer.chat_template or "")
    names = {token: added.content for token, added in tokenizer.added_tokens_decoder.items()}
    taken |= {token for token, name in names.items() if name in template}
    named = [t for t, name in names.items() if "mask" in name.lower()]
    plain = [t for t, name in names.items() if not MEANINGFUL.search(name)]
    reserved = [t for t in plain if RESERVED.search(names[t])]
    rowless = range(len(tokenizer), target.vocab_size)
    for group in (named, reserved, rowless, plain):
        free = [token for token in group if token not in taken and token < target.vocab_size]
        if free:
            return free[0]
    raise DFlashError(
        "the target's vocabulary has no token that never stands in text.",
        hint="name one that your texts do not use with --mask-token",
    )
