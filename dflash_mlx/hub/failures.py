"""Errors of huggingface_hub, the network and the disk as DFlashErrors."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dflash_mlx.errors import DFlashError

from .cache import cached_state, repo_of
from .local import did_you_mean

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RETRY_STATUS = {408, 429, 500, 502, 503, 504}
RESUME_HINT = "run the same command again: it goes on from what is there"


def class_names(error: BaseException) -> set[str]:
    """The class names of an exception and its bases.

    Names, because the module of httpx differs between versions of huggingface_hub.
    """
    return {kind.__name__ for kind in type(error).__mro__}


def http_status(error: BaseException) -> int:
    return getattr(getattr(error, "response", None), "status_code", 0)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: a lost connection, or a slow or overloaded Hub."""
    return "TransportError" in class_names(error) or http_status(error) in RETRY_STATUS


def to_dflash_error(error: Exception, repo: str) -> Exception:
    """The DFlashError for a failed download of `repo`; an unknown exception as it is."""
    names = class_names(error)
    code = http_status(error)
    if "LocalEntryNotFoundError" in names:  # it hides the cause
        cause = error.__cause__
        return to_dflash_error(cause, repo) if isinstance(cause, Exception) else offline_error(repo)
    if "GatedRepoError" in names:
        return DFlashError(
            f"'{repo}' asks for a licence that this machine's Hub account has not accepted.",
            hint=f"accept it on https://huggingface.co/{repo_of(repo)} and run `hf auth login`",
        )
    if names & {"RepositoryNotFoundError", "HFValidationError"}:
        return DFlashError(
            f"there is no model '{repo}' on the Hub, and no folder of that name.",
            hint=did_you_mean(repo) or "check the spelling; a private model needs `hf auth login`",
        )
    if "OfflineModeIsEnabled" in names:
        return offline_error(repo)
    if code == 401:
        return DFlashError(
            "the Hub does not accept this machine's token.", hint="run `hf auth login` again"
        )
    if code == 429:
        return DFlashError(
            "the Hub has had too many requests from this address (429).",
            hint=f"wait some minutes, then {RESUME_HINT}; `hf auth login` raises the limit",
        )
    if code >= 500:
        return DFlashError(
            f"the Hub has failed ({code}).", hint=f"wait a while, then {RESUME_HINT}"
        )
    if code:
        return DFlashError(
            f"the Hub refuses '{repo}' ({code}).", hint=f"look at https://huggingface.co/{repo}"
        )
    if "TransportError" in names:
        return network_error(names, repo)
    if isinstance(error, OSError) and error.errno is not None:
        return disk_error(error, repo)
    if "FileMetadataError" in names:
        return DFlashError(
            "the address of the Hub is answered by something else.",
            hint="check HF_ENDPOINT and the proxy settings",
        )
    return error


def offline_error(repo: str) -> DFlashError:
    state = cached_state(repo)
    if state == "yes":
        return DFlashError(
            f"'{repo}' is on this machine, and offline the Hub is not asked for a newer version.",
            hint="leave out --offline and HF_HUB_OFFLINE",
        )
    if state == "partly":
        return DFlashError(
            f"'{repo}' is downloaded only in part, and offline the rest cannot be fetched.",
            hint=f"run `dflash models pull {repo}` without --offline and HF_HUB_OFFLINE",
        )
    return DFlashError(
        f"'{repo}' is not on this machine, and offline it cannot be downloaded.",
        hint="leave out --offline and HF_HUB_OFFLINE, or give a local folder",
    )


def network_error(names: set[str], repo: str) -> DFlashError:
    if names & {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}:
        part = cached_state(repo) == "partly"
        have = "downloaded only in part" if part else "not on this machine"
        return DFlashError(
            f"'{repo}' is {have} and the Hub cannot be reached.",
            hint=f"check the network, then {RESUME_HINT}" if part else "check the network",
        )
    what = "the Hub does not answer" if "TimeoutException" in names else "the connection was cut"
    return DFlashError(
        f"{what} while '{repo}' is downloaded.", hint=f"check the network and {RESUME_HINT}"
    )


def disk_error(error: OSError, repo: str) -> DFlashError:
    if error.errno in DISK_FULL:
        return DFlashError(
            f"the disk is full while '{repo}' is downloaded.",
            hint=f"free some space (`dflash models rm` deletes a model) and {RESUME_HINT}",
        )
    return DFlashError(
        f"'{repo}' cannot be written to the cache ({error.strerror or error}).",
        hint="check who may write there, or set HF_HOME to another folder",
    )


@contextmanager
def dflash_errors(repo: str) -> Iterator[None]:
    """Convert errors to DFlashErrors, and silence the warnings of huggingface_hub."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:
        converted = to_dflash_error(error, repo)
        if converted is error:
            raise
        raise converted from error
    finally:
        logging.set_verbosity(before)
