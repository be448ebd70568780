"""Why the Hub or the disk refused, as one sentence and one hint.

Knows the Hub client's exceptions, and from the cache only whether a part is there already.
"""

import errno

from dflash_mlx.errors import DFlashError

from .cache import cached_state

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RETRY = {408, 429, 500, 502, 503, 504}
AGAIN = "run the same command again: it goes on from what is there"


def kinds(error: BaseException) -> set[str]:
    """The names of an error's classes; httpx has another module name in each Hub client."""
    return {kind.__name__ for kind in type(error).__mro__}


def status(error: BaseException) -> int:
    """The HTTP status that an error stands for; 0 when it stands for none."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def passes(error: BaseException) -> bool:
    """Whether asking again may help: a cut connection, a slow or an overloaded Hub."""
    return "TransportError" in kinds(error) or status(error) in RETRY


def explain(error: Exception, repo: str) -> Exception:
    """The fault to show to the user; an error that is nobody's but ours comes back as it is."""
    names, code = kinds(error), status(error)
    if "LocalEntryNotFoundError" in names:  # the Hub's client hides why it did not get a file
        cause = error.__cause__
        return explain(cause, repo) if isinstance(cause, Exception) else offline(repo)
    if "GatedRepoError" in names:
        return DFlashError(
            f"'{repo}' asks for a licence that this machine's Hub account has not accepted.",
            hint=f"accept it on https://huggingface.co/{repo} and run `hf auth login`",
        )
    if names & {"RepositoryNotFoundError", "HFValidationError"}:
        return DFlashError(
            f"there is no model '{repo}' on the Hub, and no folder of that name.",
            hint="check the spelling; a private model needs `hf auth login`",
        )
    if "OfflineModeIsEnabled" in names:
        return offline(repo)
    if code == 401:
        return DFlashError(
            "the Hub does not accept this machine's token.", hint="run `hf auth login` again"
        )
    if code == 429:
        return DFlashError(
            "the Hub has had too many requests from this address (429).",
            hint=f"wait some minutes, then {AGAIN}; `hf auth login` raises the limit",
        )
    if code >= 500:
        return DFlashError(f"the Hub is out of order ({code}).", hint=f"wait a while, then {AGAIN}")
    if code:
        return DFlashError(
            f"the Hub refuses '{repo}' ({code}).", hint=f"look at https://huggingface.co/{repo}"
        )
    if "TransportError" in names:
        return network(names, repo)
    if isinstance(error, OSError) and error.errno is not None:
        return disk(error, repo)
    if "FileMetadataError" in names:
        return DFlashError(
            "what answers is not the Hub.", hint="check HF_ENDPOINT and the proxy settings"
        )
    return error


def offline(repo: str) -> DFlashError:
    """The Hub may not be asked, and the model is not whole."""
    state = cached_state(repo)
    if state == "yes":
        return DFlashError(
            f"'{repo}' is on this machine, and the Hub may not be asked for a newer version.",
            hint="leave out --offline and HF_HUB_OFFLINE",
        )
    if state == "partly":
        return DFlashError(
            f"'{repo}' is downloaded only in part, and the Hub may not be asked for the rest.",
            hint=f"run `dflash models pull {repo}` without --offline and HF_HUB_OFFLINE",
        )
    return DFlashError(
        f"'{repo}' is not on this machine and the Hub may not be asked.",
        hint="leave out --offline and HF_HUB_OFFLINE, or give a local folder",
    )


def network(names: set[str], repo: str) -> DFlashError:
    """The Hub was not reached, or not to the end."""
    if names & {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}:
        part = cached_state(repo) == "partly"
        have = "downloaded only in part" if part else "not on this machine"
        return DFlashError(
            f"'{repo}' is {have} and the Hub cannot be reached.",
            hint=f"check the network, then {AGAIN}" if part else "check the network",
        )
    what = "the Hub does not answer" if "TimeoutException" in names else "the connection was cut"
    return DFlashError(
        f"{what} while '{repo}' is downloaded.", hint=f"check the network and {AGAIN}"
    )


def disk(error: OSError, repo: str) -> DFlashError:
    """The cache could not be written."""
    if error.errno in FULL:
        return DFlashError(
            f"the disk is full while '{repo}' is downloaded.",
            hint=f"free some space (`dflash models rm` deletes a model) and {AGAIN}",
        )
    return DFlashError(
        f"'{repo}' cannot be written to the cache ({error.strerror or error}).",
        hint="check who may write there, or set HF_HOME to another folder",
    )
