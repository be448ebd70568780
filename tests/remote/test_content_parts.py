"""An answer whose content is a list of parts, as some servers stream it."""

from dflash_mlx.address import parse_address
from dflash_mlx.remote.session import RemoteServer, RemoteSession


def test_parts_of_a_delta() -> None:
    session = RemoteSession(RemoteServer(parse_address("http://localhost:1/v1"), "m"))
    parts = [{"type": "text", "text": "a "}, {"type": "image_url"}, 3, {"text": "b"}]
    assert session._block({"content": parts}).text == "a b"
