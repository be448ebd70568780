"""The kinds of drafters that are published, by the register's names for them."""

KINDS = {
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "dspark": "DSpark",
    "deepspec-dflash": "DeepSpec DFlash",
    "jetspec": "JetSpec",
    "eagle3": "EAGLE-3",
    "mtp": "MTP head",
    "muse-assistant": "Muse assistant",
    "gemma4-assistant": "Gemma assistant",
    "minimax-dflash2": "MiniMax DFlash 2",
    "p-eagle": "P-EAGLE",
    "domino": "Domino",
    "longspark": "LongSpark",
    "orthrus": "Orthrus",
    "d3d": "D3D",
}
# Those that this version loads, of the families that it knows.
LOADED = frozenset(
    {
        "dflash",
        "dflash2",
        "dspark",
        "deepspec-dflash",
        "jetspec",
        "eagle3",
        "mtp",
        "muse-assistant",
        "gemma4-assistant",
    }
)
MTP = "mtp"
TOKEN_BY_TOKEN = frozenset({"eagle3"})  # never offered to somebody who has not chosen
