"""An answer whose content is a list of parts, as some servers stream it."""

from dflash_mlx.remote.session import block_of


def test_parts_of_a_delta() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "image_url"}, 3, {"text": "b"}]
    assert block_of({"content": parts}).text == "a b"
