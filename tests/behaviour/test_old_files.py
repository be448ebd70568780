"""Files that version a66c4af wrote still load and say the same.

tests/fixtures/a66c4af/README.md tells how each file was made. These tests use the command line and
the public Python names only, so that they hold whatever the modules inside are called.
"""

import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import typer
from typer.testing import CliRunner, Result

import dflash_mlx

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support")]  # for the helpers of the other tests

from golden_pair import GOLDEN  # noqa: E402
from openai_server import openai_server  # noqa: E402
from terminal import Terminal, environment  # noqa: E402

FIXTURES = TESTS / "fixtures" / "a66c4af"
OLD_HOME = "/home/user"
MADE_AT = 1_700_000_000  # the time of change that the weights had, seconds since 1970
THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}"
    "{% else %}{{ '<think>' }}{% endif %}{% endif %}"
)
ANSWERS = json.loads((FIXTURES / "answers.json").read_text("utf-8"))
CHATS = sorted(path.stem for path in (FIXTURES / "data" / "chats").glob("*.json"))
ON_CPU = mx.default_device().type == mx.DeviceType.cpu
KEYS_HOLD = ON_CPU and ANSWERS["cached"]["versions"] == {
    "dflash": version("dflash-chat"),
    "mlx": version("mlx"),
    "mlx_lm": version("mlx-lm"),
}


class OldHome:
    """A home folder with copies of the old files and of the models they were made with."""

    def __init__(self, folder: Path, app: typer.Typer):
        self.folder = folder
        self.app = app
        self.data = folder / ".local" / "share" / "dflash"
        self.cache = folder / ".cache" / "dflash"
        self.config = folder / ".config" / "dflash"
        self.target = folder / "models" / "target"
        self.drafter = folder / "models" / "draft"
        self.thinker = folder / "models" / "thinker"
        shutil.copytree(GOLDEN / "target", self.target)
        shutil.copytree(GOLDEN / "draft", self.drafter)
        shutil.copytree(GOLDEN / "target", self.thinker)
        path = self.thinker / "tokenizer_config.json"
        config = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**config, "chat_template": THINKING}), "utf-8")
        for file in (folder / "models").rglob("*.*"):
            os.utime(file, (MADE_AT, MADE_AT))

    @property
    def pair(self) -> list[str]:
        """The flags that name the random pair."""
        return ["-m", str(self.target), "-d", str(self.drafter)]

    def bring(self, name: str, to: Path) -> None:
        """Copy old files; paths of the old home become those of this one."""
        source = FIXTURES / name
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to)
        for file in [to] if to.is_file() else to.rglob("*"):
            if file.is_file() and file.suffix != ".safetensors":
                text = file.read_text("utf-8")
                file.write_text(text.replace(OLD_HOME, str(self.folder)), "utf-8")

    def bring_chats(self, latest: str = "what-is-7-plus-5") -> None:
        """Copy the saved chats; one of them was saved last."""
        self.bring("data", self.data)
        for number, name in enumerate([*CHATS, latest]):
            os.utime(self.data / "chats" / f"{name}.json", (MADE_AT + number, MADE_AT + number))

    def run(self, *arguments: str | Path, code: int = 0, **more: Any) -> Result:
        """Run a command in this process."""
        found = CliRunner().invoke(self.app, [*map(str, arguments)], **more)
        assert found.exit_code == code, found.output
        return found

    def json(self, *arguments: str | Path, **more: Any) -> Any:
        """Run a command with --json and return the value that it prints."""
        return json.loads(self.run(*arguments, "--json", **more).stdout)


@pytest.fixture
def home(tmp_path: Path, cli_app: typer.Typer) -> OldHome:
    """An empty home folder for old files."""
    return OldHome(tmp_path / "home", cli_app)


def old_chat(name: str) -> Any:
    """A chat as the old program wrote it; turns without calls get their empty list of steps."""
    chat = json.loads((FIXTURES / "data" / "chats" / f"{name}.json").read_text("utf-8"))
    chat["turns"] = [{"steps": [], **turn} for turn in chat["turns"]]
    return chat


def messages_of(chat: Any) -> list[dict[str, Any]]:
    """The messages of a chat without thinking and calls."""
    found = [{"role": "system", "content": chat["system"]}] if chat["system"] else []
    for turn in chat["turns"]:
        found.append({"role": "user", "content": turn["prompt"]})
        found.append({"role": "assistant", "content": turn["answer"]})
    return found


# Chats --------------------------------------------------------------------------------------------


def test_chats_are_listed(home: OldHome) -> None:
    """All of them, with their turns and first prompts."""
    home.bring_chats()
    listed = home.json("chats", "list")
    assert sorted(chat["name"] for chat in listed) == CHATS
    assert listed[0]["name"] == "what-is-7-plus-5"
    for chat in listed:
        old = old_chat(chat["name"])
        assert chat["turns"] == len(old["turns"])
        assert old["turns"][0]["prompt"].startswith(chat["first_prompt"])


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_shown(home: OldHome, name: str) -> None:
    """Each prompt, thought, answer, call and result is there, as data and as Markdown."""
    home.bring_chats()
    shown = home.json("chats", "show", name)
    old = old_chat(name)
    assert shown["turns"] == old["turns"]
    assert shown["system"] == old["system"]
    exported = home.folder / "chat.md"
    home.run("chats", "export", name, exported)
    text = exported.read_text("utf-8")
    for turn in old["turns"]:
        assert turn["prompt"].splitlines()[0] in text
        assert turn["answer"].splitlines()[-1:] == [] or turn["answer"].splitlines()[-1] in text


def test_chats_are_searched(home: OldHome) -> None:
    """A word of an attached file is found."""
    home.bring_chats()
    assert "what-does-notes-md-say" in home.run("chats", "search", "eggs").stdout
    home.run("chats", "search", "nonsuch", code=1)


def test_the_last_chat_goes_on(home: OldHome) -> None:
    """`generate -c` answers with the old turns in mind and adds its turn to them."""
    home.bring_chats()
    home.run("generate", "-c", "What is 4 plus 4?", "--max-tokens", "40")
    turns = home.json("chats", "show", "what-is-7-plus-5")["turns"]
    old = old_chat("what-is-7-plus-5")
    assert turns[:-1] == old["turns"]
    asked = [*messages_of(old), {"role": "user", "content": "What is 4 plus 4?"}]
    expected = dflash_mlx.generate(dflash_mlx.load(), asked, max_tokens=40)
    assert turns[-1]["answer"] == expected.text
    assert turns[-1]["prompt"] == "What is 4 plus 4?"


@pytest.mark.quick_every(2)
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_resumed(home: OldHome, name: str) -> None:
    """Every chat takes one more turn; what was said before stays."""
    home.bring_chats()
    model = ["-m", "bundled"] if name == "weather" else []
    answered = home.run(
        "chat", "--resume", name, *model, "--max-tokens", "24", input="What is 4 plus 4?"
    )
    turns = home.json("chats", "show", name)["turns"]
    assert turns[:-1] == old_chat(name)["turns"]
    assert turns[-1]["prompt"] == "What is 4 plus 4?"
    assert turns[-1]["answer"] == answered.stdout.strip("\n")


def test_a_chat_with_thoughts_keeps_its_pair(home: OldHome) -> None:
    """The models that a chat names answer it again."""
    home.bring_chats()
    home.run("chat", "--resume", "thoughts", "--max-tokens", "4", input="north harbor")
    chat = home.json("chats", "show", "thoughts")
    assert chat["model"] == str(home.thinker)
    assert chat["draft"] == str(home.drafter)
    assert chat["turns"][-1]["thinking"]


def test_a_damaged_chat_is_refused(home: OldHome) -> None:
    """With an error, and the others are still there."""
    home.bring_chats()
    path = home.data / "chats" / "sums.json"
    path.write_text(path.read_text("utf-8")[:-40], "utf-8")
    assert "sums" in home.run("chats", "show", "sums", code=1).stderr
    assert len(home.json("chats", "list")) == len(CHATS)


def test_the_history_of_prompts_is_kept(home: OldHome, tmp_path: Path) -> None:
    """The key Up brings the last prompt of the old program, and new prompts go behind it."""
    home.bring_chats()
    history = home.data / "history"
    old = history.read_text("utf-8")
    assert old.rstrip().endswith("+/exit")
    shown = [line for line in old.splitlines() if line.startswith("+") and line != "+/exit"]
    command = [sys.executable, "-P", "-m", "dflash_mlx.cli", "chat"]
    env = environment(tmp_path, HOME=str(home.folder))
    env = {name: value for name, value in env.items() if not name.startswith("XDG_")}
    terminal = Terminal(command, env)
    try:
        terminal.prompted()
        terminal.send("\x1b[A")
        terminal.prompted("/exit")
        terminal.send("\r")
        terminal.leaves(0)
    finally:
        terminal.close()
    assert history.read_text("utf-8").startswith(old.rstrip("\n"))
    assert "+What is 7 plus 5?" in shown


# Settings -----------------------------------------------------------------------------------------


def test_settings_take_effect(home: OldHome) -> None:
    """The plain values of the config file, and the table of the bundled model."""
    home.bring("config", home.config)
    found = home.json("generate", "What is 7 plus 5?")
    assert found["sampling"]["max_tokens"] == 24
    assert found["sampling"]["stop"] == ["STOP"]
    assert found["speculation"]["block_size"] == 8


def test_presets_take_effect(home: OldHome) -> None:
    """Sampling options, a system prompt, and a mode."""
    home.bring("config", home.config)
    plain = home.json("generate", "What is 7 plus 5?")
    review = home.json("generate", "-p", "review", "What is 7 plus 5?")
    assert review["sampling"]["temperature"] == 0.3
    assert review["sampling"]["max_tokens"] == 12
    assert review["seed"] == 5
    assert review["usage"]["prompt"] > plain["usage"]["prompt"]
    tree = home.json("generate", "-p", "tree", "What is 7 plus 5?")
    assert (tree["mode"], tree["speculation"]["tree_budget"]) == ("ddtree", 16)
    assert tree["tokens"] == plain["tokens"]


def test_settings_of_a_folder_take_effect(home: OldHome) -> None:
    """A table of [models] that is named by a path."""
    home.bring("config", home.config)
    assert home.json("generate", *home.pair, "engine winter.")["sampling"]["max_tokens"] == 4


def test_damaged_settings_are_refused(home: OldHome) -> None:
    """Before anything is answered."""
    home.bring("config", home.config)
    path = home.config / "config.toml"
    path.write_text(path.read_text("utf-8") + "[broken\n", "utf-8")
    assert "config.toml" in home.run("generate", "Hello", code=1).stderr


@pytest.mark.parametrize("kept", [True, False])
def test_a_tool_that_was_allowed_always(
    home: OldHome, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """It runs without a question; without the old file of permissions it is refused."""
    home.bring("config", home.config)
    home.bring("data", home.data)
    if not kept:
        (home.data / "allowed_tools.json").unlink()
    shutil.copy(TESTS / "support" / "mcp_server.py", home.folder)
    monkeypatch.chdir(home.folder)
    with openai_server() as server:
        found = home.run("chat", "-m", server.url, input="Is it dry in Brno?")
    assert ("Brno 23:00 rain" in found.stdout) == kept


# Caches -------------------------------------------------------------------------------------------


def test_the_prefix_cache_is_listed(home: OldHome) -> None:
    """With the sizes that it had."""
    home.bring("cache", home.cache)
    (found,) = home.json("cache", "list")
    (old,) = ANSWERS["cache list"]
    assert {key: found[key] for key in ("tokens", "bytes")} == {
        key: old[key] for key in ("tokens", "bytes")
    }
    assert found["id"] == old["id"]
    home.run("cache", "rm", "--all", "--yes")
    assert home.json("cache", "list") == []


@pytest.mark.skipif(not KEYS_HOLD, reason="entries belong to one device and to these versions")
def test_the_prefix_cache_is_used(home: OldHome) -> None:
    """The prompt is found on disk, and the answer is the one without a cache."""
    home.bring("cache", home.cache)
    asked = ["generate", *home.pair, "--max-tokens", "8", "engine winter."]
    found = home.json(*asked, "--cache-disk", "50MB")
    fresh = home.json(*asked, "--cache-ram", "0")
    assert found["usage"]["cached"] == ANSWERS["cached"]["usage"]["cached"]
    assert fresh["usage"]["cached"] == 0
    assert found["tokens"] == fresh["tokens"] == ANSWERS["cached"]["tokens"]


def test_a_damaged_prefix_cache_does_no_harm(home: OldHome) -> None:
    """The answer is the same, and nothing damaged is used."""
    home.bring("cache", home.cache)
    for path in home.cache.rglob("*.rows.safetensors"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    asked = ["generate", *home.pair, "--max-tokens", "8", "engine winter."]
    found = home.json(*asked, "--cache-disk", "50MB")
    assert found["usage"]["cached"] == 0
    assert found["tokens"] == ANSWERS["cached"]["tokens"]


@pytest.mark.parametrize("damaged", [False, True])
def test_costs_do_no_harm(home: OldHome, monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    """They belong to one machine: elsewhere they stay in the file, beside new ones."""
    home.bring("cache", home.cache)
    path = home.cache / "costs.json"
    old = json.loads(path.read_text("utf-8"))
    if damaged:
        path.write_text(path.read_text("utf-8")[:-30], "utf-8")
    monkeypatch.setenv("DFLASH_MODE", "auto")
    asked = ["generate", "What is 7 plus 5?", "--max-tokens", "40"]
    assert "12" in home.json(*asked)["text"]
    try:
        kept = json.loads(path.read_text("utf-8"))
    except ValueError:
        assert damaged  # the machine was too busy to measure; the file waits for the next time
        return
    if not damaged and kept["format"] == old["format"]:
        assert old["costs"].items() <= kept["costs"].items()


# Results ------------------------------------------------------------------------------------------


BENCH = "bench -n 1 --max-tokens 8 --repeats 1 --modes dflash:8,baseline --temps 0 --json --out"


def test_a_benchmark_goes_on(home: OldHome) -> None:
    """Its results are used again, where they are of this machine, this pair and this question."""
    fresh = home.folder / "fresh.jsonl"
    home.run(*BENCH.split(), fresh)
    here, answer, *_ = map(json.loads, fresh.read_text("utf-8").splitlines())
    path = home.folder / "bench.jsonl"
    head, *answers = map(json.loads, (FIXTURES / "bench.jsonl").read_text("utf-8").splitlines())
    head |= {key: here[key] for key in ("machine", "versions", "pair")}
    answers = [{**line, "digest": answer["digest"]} for line in answers]
    old = "".join(f"{json.dumps(line)}\n" for line in (head, *answers))
    path.write_text(old, "utf-8")
    report = json.loads(home.run(*BENCH.split(), path).stdout)
    assert path.read_text("utf-8") == old
    before = json.loads((FIXTURES / "bench.json").read_text("utf-8"))
    assert report["complete"]
    assert report["rows"] == before["rows"]


def test_a_benchmark_of_another_machine_is_refused(home: OldHome) -> None:
    """With an error that names the file, which stays as it is."""
    path = home.folder / "bench.jsonl"
    home.bring("bench.jsonl", path)
    old = path.read_bytes()
    assert str(path) in home.run(*BENCH.split(), path, code=1).stderr
    assert path.read_bytes() == old


@pytest.mark.parametrize("name", ["run.log", "chat.log"])
def test_a_log_is_added_to(home: OldHome, name: str) -> None:
    """New lines have the types and all keys of the old ones, which stay."""
    path = home.folder / name
    home.bring(name, path)
    old = path.read_text("utf-8")
    home.run("generate", "What is 7 plus 5?", "--max-tokens", "40", "--log", path, "--log-text")
    text = path.read_text("utf-8")
    assert text.startswith(old)
    before = {line["type"]: line for line in map(json.loads, old.splitlines())}
    after = {line["type"]: line for line in map(json.loads, text[len(old) :].splitlines())}
    assert after.keys() == before.keys() == {"start", "pair", "answer", "end"}
    for kind, line in before.items():
        assert after[kind].keys() >= line.keys()


# Drafters -----------------------------------------------------------------------------------------


def test_a_trained_drafter_answers(home: OldHome) -> None:
    """It loads, answers as plain decoding does, and drafts what it drafted."""
    pair = dflash_mlx.load(home.target, FIXTURES / "trained")
    drafted = dflash_mlx.generate(pair, "engine winter.", max_tokens=24)
    plain = dflash_mlx.generate(pair, "engine winter.", max_tokens=24, mode="baseline")
    old = ANSWERS["trained"]
    assert drafted.tokens == plain.tokens == old["tokens"]
    assert drafted.text == old["text"]
    if ON_CPU:
        assert drafted.stats.drafted == old["speculation"]["drafted"]
        assert drafted.stats.accepted == old["speculation"]["accepted"]


def test_training_goes_on(home: OldHome) -> None:
    """A run that was cut off after step 2 of 4 ends with the drafter of the whole run."""
    folder = home.folder / "stopped"
    home.bring("stopped", folder)
    home.bring("prompts.jsonl", home.folder / "prompts.jsonl")
    home.run("train", "--resume", "--out", folder)
    whole = FIXTURES / "trained"
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    old = [json.loads(line) for line in (whole / "log.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [line["step"] for line in old] == [1, 2, 3, 4, 4]
    losses = [line.get("loss", 0.0) for line in lines]
    assert losses == pytest.approx([line.get("loss", 0.0) for line in old], rel=1e-3)
    made: Any = mx.load(str(folder / "model.safetensors"))
    expected: Any = mx.load(str(whole / "model.safetensors"))
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        assert mx.allclose(made[name], value, rtol=0.02, atol=1e-3), name
    assert json.loads((folder / "config.json").read_text("utf-8")) == json.loads(
        (whole / "config.json").read_text("utf-8")
    )


def test_a_damaged_checkpoint_is_noticed(home: OldHome) -> None:
    """No drafter is made of it."""
    folder = home.folder / "stopped"
    home.bring("stopped", folder)
    home.bring("prompts.jsonl", home.folder / "prompts.jsonl")
    (path,) = folder.rglob("state.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    found = CliRunner().invoke(home.app, ["train", "--resume", "--out", str(folder)])
    assert found.exit_code != 0
    assert not (folder / "model.safetensors").exists()
