"""What the program had once: what to do in place of each command, flag, endpoint, page and field.

Whatever does not know a name that a person or a client gave asks here first.
"""

SEVERAL_MACS = (
    "a model larger than one Mac runs on another engine, such as mlx_lm.server under mlx.launch, "
    "and `dflash chat -m http://...` talks to it (`dflash help remote`)"
)
EMBEDDINGS = "run a server for embeddings beside this one"
MODEL_FILES = "`dflash models` on the server's machine downloads and removes models"

GONE = {
    "launch": SEVERAL_MACS,
    "several-macs": SEVERAL_MACS,
    "--hosts": SEVERAL_MACS,
    "--ranks": SEVERAL_MACS,
    "--hostfile": SEVERAL_MACS,
    "--split": SEVERAL_MACS,
    "--first-port": SEVERAL_MACS,
    "--embedding-model": EMBEDDINGS,
    "/v1/embeddings": EMBEDDINGS,
    "/api/embed": EMBEDDINGS,
    "/api/embeddings": EMBEDDINGS,
    "/api/v0": "use OpenAI's API at /v1 in place of LM Studio's own",
    "/api/pull": MODEL_FILES,
    "/api/push": MODEL_FILES,
    "/api/create": MODEL_FILES,
    "/api/copy": MODEL_FILES,
    "/api/delete": MODEL_FILES,
    "/api/blobs": MODEL_FILES,
    "custom_id": 'in place of OpenAI\'s batch format write {"key": "...", "messages": [...]}',
    "--temperature": "use --temp",
    "--forecast": "`dflash help forecast` says how speeds are forecast",
    "--plot": "examples/bench/plots.py in the clone draws what `dflash bench --json` printed",
    "--tree-budget": "here a mode has its budget: --modes ddtree:64",
}


def gone(name: str) -> str:
    """What to do in place of a name that is gone, without a full stop; empty for other names.

    An endpoint also stands for all paths below it.
    """
    for known, hint in GONE.items():
        if name == known or (known.startswith("/") and name.startswith(f"{known}/")):
            return hint
    return ""
