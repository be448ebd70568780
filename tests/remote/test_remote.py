"""A server elsewhere as the model of `chat` and `generate`: what is sent, shown, kept and said."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import openai_server
import pytest
import typer
from openai_server import KEY, TIMINGS, Behaviour
from recorded_chat import chat_options, start_dialogue
from serving import Served, serving
from terminal import Terminal, environment
from typer.testing import CliRunner, Result

import dflash_mlx
from dflash_mlx.address import is_address, parse_address
from dflash_mlx.errors import DFlashError, ServerLost, UsageError
from dflash_mlx.options import GenerationOptions, SamplingParams
from dflash_mlx.remote.client import lines_of, stream_events
from dflash_mlx.remote.session import RemoteServer, RemoteSession, block_of, connect

PROMPT = [{"role": "user", "content": "What is 12 plus 7?"}]
SEVEN = "3 + 4 = 7.\n\n3 plus 4 is 7.\n"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(dflash_mlx.load(cache_ram=0), api_key=KEY) as found:
        yield found


@pytest.fixture
def fake() -> Iterator[Behaviour]:
    with openai_server.openai_server() as found:
        yield found


@pytest.fixture
def run(cli_app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))

    def one(*words: str, given: str | None = None) -> Result:
        return CliRunner().invoke(cli_app, [*words], input=given)

    return one


def asked(url: str, key: str | None = None, **options: Any) -> tuple[RemoteSession, list[Any]]:
    session = RemoteSession(connect(parse_address(url), key))
    return session, list(session.stream(PROMPT, **options))


def test_our_own_server_says_what_this_machine_says(served: Served) -> None:
    """Greedy and seeded, with its counts."""
    pair = served.server.first.pair
    for sampling in (SamplingParams(), SamplingParams(temperature=0.9, top_p=0.9, seed=5)):
        local = dflash_mlx.generate(pair, PROMPT, sampling=sampling, max_tokens=60)
        session, blocks = asked(f"{served.url}/v1", KEY, sampling=sampling, max_tokens=60)
        text = "".join(block.text for block in blocks)
        assert (text, blocks[-1].finish_reason) == (local.text, local.finish_reason)
        assert session.stats.generated == local.stats.generated
        assert session.stats.acceptance_length == round(local.stats.acceptance_length, 3)
        assert session.stats.seed == sampling.seed
        assert not session.stats.unknown
    server = connect(parse_address(served.url), KEY)
    assert (server.model, server.kind, server.draft_name) == ("m", "dflash", "bundled")
    assert server.context_length == served.server.first.runner.context
    assert KEY not in repr(server)


def test_generate_and_its_chat_go_on(served: Served, run: Run, tmp_path: Path) -> None:
    """With the key of a file: the answer, the numbers, `-c`; the key is nowhere on disk."""
    (tmp_path / "key").write_text(KEY + "\n")
    key = "--remote-key-file", str(tmp_path / "key")
    url = f"{served.url}/v1"
    found = run("chat", "-m", url, *key, "--log", str(tmp_path / "log"), given="What is 3 plus 4?")
    assert (found.exit_code, found.stdout) == (0, SEVEN), found.output
    transcript = import_module("dflash_mlx.cli.chat.transcript")
    transcript.save("kept", transcript.Chat((transcript.Turn("hi", "Hello!"),), model=f"{url}#m"))
    found = run("generate", "-c", *key, "--stats", "What is 12 plus 7?")
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]
    wanted = dflash_mlx.generate(served.server.first.pair, [*before, *PROMPT]).text
    assert (found.exit_code, found.stdout) == (0, f"{wanted}\n"), found.output
    assert " tok/s · τ " in found.stderr
    assert [turn.answer for turn in transcript.load("kept").turns] == ["Hello!", wanted]
    report = json.loads(run("generate", "-m", url, *key, "--json", "What is 3 plus 4?").stdout)
    assert report["usage"]["generated"] > 5
    assert report["model"] == f"{url}#m"
    kept = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert sum(KEY in text for text in kept) == 1
    assert json.loads((tmp_path / "log").read_text().splitlines()[1])["server"] == "dflash"


def test_the_client_is_loaded_only_for_a_server() -> None:
    """It takes a tenth of a second."""
    program = (
        "import sys; from importlib import import_module\n"
        "for name in ('app', 'chat.command', 'generate', 'running', 'serve'):"
        " import_module(f'dflash_mlx.cli.{name}')\n"
        "sys.exit(any(name in sys.modules for name in ('httpx2', 'dflash_mlx.remote.client')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_mlx_is_loaded(fake: Behaviour, tmp_path: Path) -> None:
    program = (
        "import sys; from importlib import import_module; app = import_module('dflash_mlx.cli.app')"
        f"\ntry: app.app(['generate', '-m', '{fake.url}', 'hi'])\nexcept SystemExit: pass"
        "\nsys.exit(sum(name in sys.modules for name in ('mlx.core', 'mlx_lm', 'transformers')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "You said: hi\n"), done.stderr


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "someone"])
def test_streams_of_other_servers(fake: Behaviour, kind: str) -> None:
    """Thinking under each name, counts as far as they are told, calls in pieces."""
    fake.kind = kind
    session = RemoteSession(connect(parse_address(fake.url)))
    said = [{"role": "user", "content": "think of tea"}]
    blocks = list(session.stream(said))
    assert "".join(block.text for block in blocks) == "You said: think of tea"
    assert "".join(block.thinking for block in blocks) == "\nLet me see."
    stats = session.stats
    assert (stats.prompt_tokens, stats.generated) == (21, 7)
    told = {"vllm": {"drafted", "accepted"}, "llamacpp": set()}
    assert stats.unknown == told.get(kind, {"drafted", "accepted", "cached_tokens"})
    if kind == "llamacpp":
        assert stats.tokens_per_second == TIMINGS["predicted_per_second"]
        assert stats.acceptance_rate == 0.4
    list(session.stream(said, tools=[{"type": "function", "function": {"name": "weather"}}]))
    assert [(c.name, c.arguments) for c in session.calls] == [("weather", '{"city": "Brno"}')]
    fake.fault = "no usage"
    list(session.stream(said, max_tokens=3))
    assert {"generated", "prompt_tokens"} <= session.stats.unknown
    assert session.stats.tokens_per_second == (140 if kind == "llamacpp" else 0)


def test_options_become_fields(fake: Behaviour) -> None:
    """Each server's own names, what is off said to be off; what has no field is refused by name."""
    warm = SamplingParams(temperature=0.5, top_k=9, repetition_penalty=1.2, seed=3)
    asked(fake.url, sampling=warm, think=False, stop=("x",), reasoning_effort="low")
    body = fake.bodies[-1]
    assert (body["top_k"], body["repetition_penalty"], body["seed"]) == (9, 1.2, 3)
    assert (body["min_p"], body["top_p"], body["stop"]) == (0.0, 1.0, ["x"])
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["reasoning_effort"] == "low"
    assert "max_tokens" not in body
    schema = dflash_mlx.Grammar.of_schema({"type": "object"})
    asked(fake.url, grammar=schema)
    assert fake.bodies[-1]["top_k"] == -1
    assert fake.bodies[-1]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    fake.kind = "llamacpp"
    asked(fake.url, sampling=warm, reasoning_effort="low")
    assert fake.bodies[-1]["repeat_penalty"] == 1.2
    assert fake.bodies[-1]["chat_template_kwargs"] == {"reasoning_effort": "low"}
    fake.kind = "someone"
    asked(fake.url, sampling=SamplingParams(presence_penalty=0.5))
    assert "top_k" not in fake.bodies[-1]
    refused: list[tuple[Any, str]] = [
        ({"sampling": warm}, "--top-k"),
        ({"sampling": SamplingParams(repetition_penalty=1.1)}, "--repetition-penalty"),
        ({"think": True}, "--think"),
        ({"grammar": dflash_mlx.Grammar("regex", "a")}, "--grammar"),
    ]
    for wrong, name in refused:
        with pytest.raises(UsageError, match=name):
            asked(fake.url, **wrong)


FAULTS = {
    "500": "has failed (500: because of 500 …)",
    "429": "is too busy for another request",
    "404": "is not an OpenAI-compatible API (404: because of 404 …)",
    "401": "refuses the key (401)",
    "no endpoint": "is not an OpenAI-compatible API",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_server_refuses(
    fake: Behaviour, run: Run, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence and a hint, exit code 1, and never the key."""
    fake.fault = fault
    monkeypatch.setenv("DFLASH_REMOTE_KEY", KEY)
    found = run("generate", "-m", fake.url, "hi")
    assert (found.exit_code, found.stdout) == (1, "")
    error, hint = found.stderr.splitlines()
    assert error.startswith(f"Error: {fake.url} {FAULTS[fault]}")
    assert hint.startswith("Hint:  ")
    assert "7 seconds" in hint or fault != "429"
    assert KEY not in found.output


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("cut", "the connection ended"),
        ("rubbish", "an event of it is no JSON"),
        ("error event", "out of memory"),
    ],
)
def test_a_stream_that_breaks(fake: Behaviour, run: Run, fault: str, why: str) -> None:
    """What came is printed, and stays in the chat; the error says what happened."""
    fake.fault = fault
    found = run("generate", "-m", fake.url, "one two three")
    assert (found.exit_code, found.stdout) == (1, "You said: one\n")
    assert f"broke off ({why})" in found.stderr
    with pytest.raises(ServerLost):
        asked(fake.url)
    talk = dialogue_with(fake)
    with pytest.raises(ServerLost):
        talk.ask("one two three")
    (turn,) = talk.chat.turns
    assert (turn.answer, turn.finish_reason) == ("You said: one", "interrupted")
    fake.fault = ""
    talk.answer_again()
    assert talk.chat.turns[0].answer == "You said: one two three"


def dialogue_with(fake: Behaviour) -> Any:
    model = import_module("dflash_mlx.cli.backend.remote").RemoteBackend
    backend = model(connect(parse_address(fake.url)))
    return start_dialogue(backend, GenerationOptions(mode="auto"), autosaves=False)


def test_tools_are_called(fake: Behaviour) -> None:
    """The same loop as here: the call, its result by its id, the answer."""
    tool_box = import_module("dflash_mlx.cli.chat.tools")
    talk = dialogue_with(fake)

    class Box(tool_box.ToolBox):
        schemas = [{"type": "function", "function": {"name": "weather"}}]  # noqa: RUF012

        def run(self, call: Any) -> Any:
            return replace(call, result="rain", state="done")

    talk.tools = Box(talk.out)
    answer = talk.ask("Brno?")
    assert answer.text == "You said: rain"
    _, said, result = fake.bodies[-1]["messages"]
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Brno"}'}
    assert (result["role"], result["tool_call_id"]) == ("tool", said["tool_calls"][0]["id"])


def test_a_call_is_waited_for(fake: Behaviour) -> None:
    """While its pieces come, and no text, whoever waits is told so."""
    told: list[tuple[int, int]] = []
    tools = [{"type": "function", "function": {"name": "weather"}}]
    session, blocks = asked(fake.url, tools=tools, on_prefill=lambda *given: told.append(given))
    assert [call.arguments for call in session.calls] == ['{"city": "Brno"}']
    assert not any(block.text for block in blocks)
    assert len(told) > 4
    assert {*told} == {(0, 0)}


def piece(index: int | None, call_id: str | None, name: str | None, arguments: Any = "") -> Any:
    place = {} if index is None else {"index": index}
    return {**place, "id": call_id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "x", "a", "{}"), piece(0, "y", "b", '{"c": "é"}')],
        [piece(0, "x", "a", {}), piece(0, "y", "b", {"c": "é"})],
        [piece(None, "x", "a", "{}"), piece(None, "y", "b", '{"c": "é"}')],
        [piece(0, "x", "a", "{"), piece(0, "x", "a", "}"), piece(1, "y", "b", '{"c": "é"}')],
        [piece(0, "x", "a"), piece(1, "y", "b", '{"c":'), piece(0, None, None, "{}"),
         piece(1, None, None, ' "é"}')],
        [piece(0, "x", "a", "{}"), piece(0, "y", "b", '{"c":'), piece(0, "y", "b", ' "é"}')],
        [piece(0, None, "a", "{"), piece(0, None, "a", "}"), piece(1, None, "b", {"c": "é"})],
    ],
)  # fmt: skip
def test_where_calls_begin(pieces: list[Any]) -> None:
    """A name begins one, at an index that is new or with another id than the last one there."""
    session = RemoteSession(RemoteServer(parse_address("http://box"), "m"))
    for one in pieces:
        session._add_calls([one])
    assert [(c.name, c.arguments) for c in session.calls] == [("a", "{}"), ("b", '{"c": "é"}')]
    with pytest.raises(ServerLost, match="no beginning"):
        session._add_calls([piece(7, "z", None, "{}")])


@pytest.mark.parametrize("prompt", ["stall", "silence"])
def test_ctrl_c_cuts_the_connection(fake: Behaviour, prompt: str) -> None:
    """Also while the server says nothing more, or nothing at all yet."""
    talk = dialogue_with(fake)
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    answer = talk.ask(prompt)
    assert answer.finish_reason == "interrupted"
    assert fake.gone.wait(5)


def test_a_connection_that_nobody_waits_for_any_more() -> None:
    """Who leaves while it is made sends nothing, and it is closed at once."""

    def leave() -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as listening:  # never says a word of TLS
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
        body = {"messages": PROMPT, "stream": True}
        with pytest.raises(KeyboardInterrupt):
            next(stream_events(url, KEY, body, leave))
        with listening.accept()[0] as accepted:
            accepted.settimeout(5)
            sent = b"".join(iter(lambda: accepted.recv(4096), b""))
    assert sent
    assert KEY.encode() not in sent


def test_redirects_are_not_followed() -> None:
    """The key stays with the address that was given."""
    with openai_server.openai_server() as other, openai_server.openai_server() as fake:
        fake.moved_to = other.url
        with pytest.raises(DFlashError, match="redirects to http") as caught:
            connect(parse_address(fake.url), KEY)
        assert other.url in caught.value.message
        assert not other.asked


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_no_proxy_is_used(fake: Behaviour, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert connect(parse_address(fake.url)).model == "m"


@pytest.mark.parametrize("key", ["sk-é", "sk-\nb"])
def test_keys_that_cannot_be_sent(fake: Behaviour, key: str) -> None:
    """They are not repeated."""
    with pytest.raises(UsageError, match="no key can have") as caught:
        connect(parse_address(fake.url), key)
    assert "sk-" not in str(caught.value)


def test_lines_end_at_line_breaks_only() -> None:
    """JSON may contain other separators; a character may come in two parts."""
    text = 'data: "a\u2028b\x85é"\r\n\ndata: c'.encode()
    parts = (part for part in (text[:12], text[12:20], text[20:]))
    assert list(lines_of(parts)) == ['data: "a\u2028b\x85é"', "", "data: c", ""]


def test_parts_of_a_delta() -> None:
    """An answer whose content is a list of parts, as some servers stream it."""
    parts = [{"type": "text", "text": "a "}, {"type": "image_url"}, 3, {"text": "b"}]
    assert block_of({"content": parts}).text == "a b"


def test_the_oldest_turns_are_left_out(
    fake: Behaviour, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an estimate, which is said to be one: by characters, or from what the server counted."""
    talk = dialogue_with(fake)
    fake.fault = "no usage"
    talk.ask("a" * 6000)
    talk.ask("b" * 100)  # 4,096 tokens hold all of it
    assert len(fake.bodies[-1]["messages"]) == 3
    talk.ask("c" * 2400)
    assert len(fake.bodies[-1]["messages"]) == 3
    assert talk.chat.left_out == 1
    said = capsys.readouterr().err
    assert "is full, by an estimate (512 of 4,096 tokens stay free for the answer)" in said
    assert "the oldest turn is not sent any more" in said
    talk, fake.fault = dialogue_with(fake), ""
    monkeypatch.setitem(openai_server.USAGE, "prompt_tokens", 3600)
    for word in "hi", "ho":
        talk.ask(word)
    assert (talk.chat.left_out, len(fake.bodies[-1]["messages"])) == (1, 1)
    fake.kind = "someone"  # tells no context length
    talk = dialogue_with(fake)
    for word in "hi", "ho":
        talk.ask(word)
    assert (talk.chat.left_out, len(fake.bodies[-1]["messages"])) == (0, 3)


def test_tokens_are_estimated(fake: Behaviour) -> None:
    """The server's count of a prompt, a share of it, and a token for four characters more."""
    model = dialogue_with(fake).backend
    asked = GenerationOptions()
    said = [{"role": "user", "content": "x" * 367}]  # 400 characters with JSON's marks
    assert model.count(said, asked) == 100
    list(model.stream(said))
    assert model.count(said, asked) == 21
    assert model.count([{"role": "user", "content": "x" * 767}], asked) == 121
    assert model.count([{"role": "user", "content": "x" * 167}], asked) == 10


def test_which_model(fake: Behaviour, run: Run) -> None:
    """The only one, or the one behind #; otherwise their names are told."""
    assert connect(parse_address(fake.url)).target_name == f"{fake.url}#m"
    fake.models = ("a", "org/b")
    assert connect(parse_address(f"{fake.url}#org/b")).model == "org/b"
    fake.models = ("a", "/my models/a b.gguf")
    named = f"{fake.url}#/my models/a b.gguf"
    assert connect(parse_address(named)).target_name == named
    transcript = import_module("dflash_mlx.cli.chat.transcript")
    transcript.save("kept", transcript.Chat((transcript.Turn("hi", "Hello!"),), model=named))
    assert run("generate", "-c", "again").stdout == "You said: again\n"
    assert [turn.prompt for turn in transcript.load("kept").turns] == ["hi", "again"]
    fake.models = ("a", "org/b")
    for wrong, said in (("", "has 2 models"), ("#c", "has no model 'c'")):
        with pytest.raises(UsageError, match=said) as caught:
            connect(parse_address(fake.url + wrong))
        assert "a, org/b" in caught.value.hint
    fake.key = KEY
    for key, said in ((None, "wants a key"), ("sk-other", "refuses the key")):
        with pytest.raises(DFlashError, match=said) as caught:
            connect(parse_address(fake.url), key)
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://box:8080", "http://box:8080/v1"),
        ("HTTPS://box/api/v1/", "https://box/api/v1"),
        ("http://[::1]:8/v1", "http://[::1]:8/v1"),
        ("http://box/v1#/my models/a b.gguf", "http://box/v1"),
        ("http://box /v1#a", None),
        ("http://box/v1#a\x1b[2J", None),
        ("http://box/v1#a\nb", None),
        ("http://u:sk-secret@box/v1", None),
        ("http://box/v1?key=sk-secret", None),
        ("http://box:x/v1", None),
        ("http:///v1", None),
    ],
)
def test_addresses(typed: str, url: str | None) -> None:
    """A secret in one is not repeated, and not taken."""
    assert is_address(typed)
    if url is not None:
        assert parse_address(typed).url == url
        return
    with pytest.raises(UsageError) as caught:
        parse_address(typed)
    assert "secret" not in str(caught.value)


def says_hello(listening: socket.socket) -> None:
    with listening.accept()[0] as accepted:
        accepted.sendall(b"220 hello\r\n\r\n")
        accepted.recv(4096)


def test_machines_that_are_not_there(fake: Behaviour, tmp_path: Path) -> None:
    """Nobody listens, no TLS there, an unknown certificate: each is said."""
    closed = openai_server.openai_server()
    with closed as gone:
        pass
    with pytest.raises(DFlashError, match=r"cannot be reached \(Connection refused\)"):
        connect(parse_address(gone.url))
    with pytest.raises(DFlashError, match="is not known"):
        connect(parse_address("http://no-such-machine.invalid"))
    with socket.create_server(("127.0.0.1", 0)) as printer:
        threading.Thread(target=says_hello, args=(printer,), daemon=True).start()
        with pytest.raises(DFlashError, match="does not speak HTTP"):
            connect(parse_address(f"http://127.0.0.1:{printer.getsockname()[1]}"))
    with pytest.raises(DFlashError, match="does not speak TLS"):
        connect(parse_address(fake.url.replace("http:", "https:")))
    fault = import_module("dflash_mlx.remote.client").connection_fault
    assert "not trusted" in fault(ssl.SSLCertVerificationError("x"), "u").message
    fake.fault = "hang up"
    with pytest.raises(DFlashError, match="closed the connection without an answer") as caught:
        asked(fake.url)
    assert "ask again" in caught.value.hint


def test_the_port_of_an_address_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 address keeps its last part."""
    tried = list[tuple[str, int]]()

    async def nobody(*, remote_host: str, remote_port: int, **_: Any) -> None:
        tried.append((remote_host, remote_port))
        raise OSError from ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(anyio, "connect_tcp", nobody)
    for url in ("http://[::1]/v1", "https://[fe80::2]/v1", "http://[::1]:8/v1", "http://box"):
        with pytest.raises(DFlashError, match=r"cannot be reached \(Connection refused\)"):
            connect(parse_address(url))
    assert tried == [("::1", 80), ("fe80::2", 443), ("::1", 8), ("box", 80)]


LOCAL_FLAGS = (
    ["--mode", "ddtree"], ["--no-draft"], ["--exact"], ["--raw"], ["--compare"], ["--adapter", "x"]
)  # fmt: skip


def test_flags_of_a_model_here_are_refused(
    fake: Behaviour, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their names, variables are left out; and commands that need one, or take no server."""
    for flags in LOCAL_FLAGS:
        found = run("generate", "-m", fake.url, *flags, "hi")
        assert (found.exit_code, found.stdout) == (2, "")
        assert f"{flags[0]} needs a model on this machine" in found.stderr
    with monkeypatch.context() as variables:
        for name, value in (("RAW", "1"), ("COMPARE", "1"), ("GRAMMAR", "no-file")):
            variables.setenv(f"DFLASH_{name}", value)
        found = run("generate", "-m", fake.url, "hi")
    assert (found.exit_code, "You said: hi" in found.stdout) == (0, True), found.output
    found = run("bench", "-m", fake.url)
    assert "is a server's address" in found.stderr
    state = import_module("dflash_mlx.cli.chat.state").ChatState
    dispatch = import_module("dflash_mlx.cli.chat.commands").dispatch
    talk = dialogue_with(fake)
    here = state(talk, talk.out, chat_options())
    for command, said in (
        ("/compare", "/compare needs a model on this machine"),
        ("/draft off", "/draft needs a model on this machine"),
        ("/model qwen3:4b", "this chat stays with m"),
        ("/set mode ddtree", "mode cannot be sent to a server"),
        ("/set block 4", "block cannot be sent to a server"),
    ):
        with pytest.raises(UsageError, match=said):
            dispatch(here, command)


@pytest.mark.slow
def test_a_chat_in_a_terminal(fake: Behaviour, tmp_path: Path) -> None:
    """Header, answer, numbers, /retry, /stats, a broken answer; and --resume finds the server."""
    fake.pause = 0.05
    start = [sys.executable, "-P", "-m", "dflash_mlx", "chat"]
    chat = Terminal([*start, "-m", fake.url], environment(tmp_path), 80, 24)
    try:
        chat.wait_for(r"m · vLLM at http://127")
        chat.prompted()
        chat.send("think of tea\r")
        chat.wait_for(r"∴ thought for [\d.]+ s \(/think show\)")
        chat.wait_for(r"You said: think of tea")
        chat.wait_for(r"7 tokens · [\d.]+ tok/s · [\d.]+ s · prompt 17 new \+ 4 cached")
        chat.prompted()
        chat.send("/stats\r")
        chat.wait_for(r"drafts unknown")
        chat.prompted()
        fake.fault = "cut"
        chat.send("/retry\r")
        chat.wait_for(r"broke off \(the connection")
        chat.prompted()
        chat.send("\x04")
        chat.leaves(0)
    finally:
        chat.close()
    saved = json.loads(next((tmp_path / "data/dflash/chats").glob("*.json")).read_text())
    assert saved["model"] == f"{fake.url}#m"
    assert saved["turns"][0]["answer"] == "You said: think"
