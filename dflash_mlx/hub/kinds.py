"""The published kinds of drafters, for the register; `drafters.load` tells the kind of a folder."""

import re
from typing import Any

from dflash_mlx.errors import DFlashError
from dflash_mlx.files.formats import is_drafter

# By the register's names; of the families that this version knows.
LOADED = {
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "dspark": "DSpark",
    "deepspec-dflash": "DeepSpec DFlash",
    "jetspec": "JetSpec",
    "eagle3": "EAGLE-3",
    "mtp": "MTP head",
    "muse-assistant": "Muse assistant",
    "gemma4-assistant": "Gemma assistant",
}
# By a part of what names them in config.json, see `refused_kind`, and in the register. Without this
# they would be taken for language models without a tokenizer, or for drafters with unknown tensors.
REFUSED = {
    "minimaxdflash2": "MiniMax DFlash 2",
    "laguna": "DFlash of Laguna",
    "peagle": "P-EAGLE",
    "domino": "Domino",
    "longspark": "LongSpark",
    "orthrus": "Orthrus",
    "d3d": "D3D",
    "dflare": "DFlare",
    "xpress": "xPress",
    "treeflash": "TreeFlash",
    "speculatorsmtp": "FastMTP",
    "deepseekv4mtp": "MTP head of DeepSeek-V4",
    "glm4moelitemtp": "MTP head of GLM-4.7-Flash",
    "inklingmtp": "MTP head of Inkling",
}
TARGETS = frozenset({"laguna"})  # names of targets, too: only drafters are refused by them
KINDS = {**LOADED, **REFUSED}
MTP = "mtp"
TOKEN_BY_TOKEN = frozenset({"eagle3"})  # never offered to somebody who has not chosen


def refused_kind(config: dict[str, Any]) -> str:
    """The name of a drafter's kind that is not loaded, from its config.json; empty for others."""
    named = (
        *(config.get("architectures") or ()),
        config.get("model_type", ""),
        f"speculators{config.get('speculators_model_type', '')}",
        *(config.get("auto_map") or {}).values(),
    )
    text = " ".join(re.sub(r"[-_]", "", str(name)).lower() for name in named)
    found = (part for part in REFUSED if part in text)
    return next((REFUSED[p] for p in found if p not in TARGETS or is_drafter(config)), "")


def kind_error(drafter: str, kind: str) -> DFlashError:
    return DFlashError(
        f"the drafter '{drafter}' is of the kind {kind}, which is not supported.",
        hint="`dflash models list --all` shows the drafters that run; or use --draft lookup",
    )
