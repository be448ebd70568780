"""The model that a first start downloads while the chat goes on: how it fails, arrives and ends."""

from dflash_mlx.errors import DFlashError

from ..options import BUNDLED
from .actions import change_model
from .state import ChatState


def download_status(state: ChatState) -> str:
    """One line on the download, for the prompt; empty without one."""
    return "" if state.download is None else state.download.status()


def report_failure(state: ChatState) -> None:
    """Print the error of a download that has failed, once."""
    if state.download is None:
        return
    error = state.download.state.error
    if error is not None:
        state.download = None
        state.out.error(error.message, error.hint)


def use_arrived(state: ChatState) -> None:
    """Answer with the model that has arrived, unless the chat uses another one than the bundled."""
    download = state.download
    if download is None or not download.state.complete:
        return
    state.download = None
    if state.dialogue.backend.target_name != BUNDLED:
        state.print_line(f"  {download.target} is here: /model {download.target} uses it", "dim")
        return
    try:
        change_model(state, download.target)
    except DFlashError as error:
        state.out.error(error.message, error.hint)


def show_unfinished_download(state: ChatState) -> None:
    """Print the command that goes on with a download that ends with the chat."""
    download = state.download
    if download is not None and not download.state.ended:
        share = download.state.share
        state.out.note(f"{share} downloaded: dflash models pull {download.target}", wraps=False)
