"""Presets and the defaults of models: who wins, what is refused, what changes in a chat."""

from importlib import import_module
from pathlib import Path

import pytest
import tiny
import typer
from golden_pair import PAIR
from recorded_chat import recorded_chat

from dflash_mlx.hub import registry
from dflash_mlx.options import GenerationOptions

commands = import_module("dflash_mlx.cli.chat.commands")
dialogue = import_module("dflash_mlx.cli.chat.dialogue")
option_tables = import_module("dflash_mlx.cli.presets")
settings = import_module("dflash_mlx.cli.chat.settings")

TARGET = PAIR[1]
RAW = ["--raw", "winter f!", "--no-stats"]


def test_the_order_of_precedence(run, config, monkeypatch):
    """A flag before the preset, the preset before a variable, that before the model's defaults,
    and those before the rest of the file.
    """

    def tokens(*flags):
        result = run("generate", *RAW, *PAIR, *flags)
        assert result.exit_code == 0, result.output
        return len(result.stdout.removesuffix("\n"))

    rest = "max-tokens = 9\n"
    table = f"[models.'{TARGET.upper()}']\nmax-tokens = 8\nsystem = 'not with --raw'\n"
    config(rest)
    assert tokens() == 9
    config(f"{rest}{table}[preset.few]\nmax-tokens = 4\n")
    assert tokens() == 8
    monkeypatch.setenv("DFLASH_MAX_TOKENS", "7")
    assert tokens() == 7
    assert tokens("-p", "few") == 4
    assert tokens("--preset", "few", "--max-tokens", "5") == 5
    result = run("chat", *PAIR, "-p", "few", "winter f!")
    assert len(result.stdout.removesuffix("\n")) <= 4
    assert result.exit_code == 0, result.output


def test_a_preset_names_model_and_mode(run, config, monkeypatch):
    config(
        f"draft = '{PAIR[3]}'\n[preset.wide]\nmodel = '{TARGET}'\nmode = 'ddtree'\n"
        "tree-budget = 9\nmax-tokens = 6\ntemp = 0.5\nseed = 3\n[preset.plain]\nmode = 'baseline'\n"
        f"[preset.odd]\ntree-budget = 9\nmodel = '{TARGET}'\n"
    )
    monkeypatch.setenv("DFLASH_MODEL", "nope")
    asked = import_module("json").loads
    found = asked(run("generate", "--json", *RAW[:2], "-p", "wide").stdout)
    assert (found["mode"], found["speculation"]["tree_budget"]) == ("ddtree", 9)
    assert (found["sampling"]["temperature"], found["seed"]) == (0.5, 3)
    found = asked(run("generate", "--json", *RAW[:2], "-p", "wide", "--mode", "dflash").stdout)
    assert found["mode"] == "dflash"
    assert '"baseline"' in run("generate", "--json", *RAW, *PAIR[:2], "-p", "plain").stdout
    result = run("generate", *RAW, "-p", "odd")
    assert result.exit_code == 2
    assert "--tree-budget has no effect in the mode dflash" in result.stderr


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[preset.view]\n", "there is no preset 'review' in ", "did you mean 'view'?"),
        ("", "there is no preset 'review' in ", "[preset.review]"),
        ("[preset.review]\ntmep = 1\n", "'review' in ", "did you mean 'temp'?"),
        ("[preset.review]\ntop_p = 1\n", "there is no key 'top_p'.", "did you mean 'top-p'?"),
        ("[preset.review]\nexact = true\n", "there is no key 'exact'.", "keys: model, "),
        ("[preset.review]\ntemp = -1\n", "'temp' cannot be -1.", "0 to 100"),
        ("[preset.review]\nmode = 'tree'\n", "'mode' cannot be tree.", "'tree' is not one of"),
        ("[preset.review]\ntop-k = 1.5\n", "'top-k' cannot be 1.5.", "give a whole number"),
        ("[preset.review]\ntemp = [1]\n", "'temp' cannot be ", "give it one value"),
        ("preset = 'review'\n", "'preset' in ", '[preset."NAME"]'),
        ("[preset]\nreview = 3\n", "the preset 'review' in ", "key"),
        (
            "[models.bundled]\nmodel = 'x'\n[preset.review]\n",
            "the defaults of 'bundled'",
            "'mode'?",
        ),
        ("[model.'a/b']\ntemp = 1\n", "'model' in ", '[models."ID"]'),
    ],
)
def test_a_wrong_table(run, config, monkeypatch, text, message, hint):
    """One sentence that names the table and the key, and a hint, before any model is loaded."""
    config(text)
    monkeypatch.setattr("dflash_mlx.cli.backend.open.load_pair", lambda *args: 1 / 0)
    result = run("chat", "-p", "review", "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    error, advice = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert hint in advice
    assert "config.toml" in result.stderr


def test_a_wrong_model_of_a_preset_is_traced(run, config):
    """The hint says which preset named it."""
    config("[preset.review]\nmodel = 'no-such'\n")
    result = run("generate", "x", "-p", "review")
    assert "there is no model or folder 'no-such'" in result.stderr
    assert "it is set by 'model' of the preset 'review' in " in result.stderr


def test_a_system_prompt_of_a_preset_is_sent(run, config, monkeypatch):
    """From either table; a flag stands before it."""
    sent = []
    module = import_module("dflash_mlx.cli.generate")
    ask = module.answer_prompt

    def answer(session, request, *args, **kwargs):
        sent.append(request[0])
        return ask(session, request, *args, **kwargs)

    monkeypatch.setattr(module, "answer_prompt", answer)
    config(f"[preset.p]\nsystem = 'P'\n[models.'{TARGET}']\nsystem = 'M'\nmax-tokens = 2\n")
    for flags, text in (([], "M"), (["-p", "p"], "P"), (["-p", "p", "-s", "F"], "F")):
        result = run("generate", "hi", *PAIR, *flags)
        assert result.exit_code == 0, result.output
        assert sent.pop() == {"role": "system", "content": text}


def test_doctor_checks_every_table(cli_app, config):
    """A table that nobody has used yet, too."""
    environment = import_module("dflash_mlx.cli.doctor.checks")
    config("[preset.a]\ntemp = 0.5\n[models.'a/b']\ntmep = 1\n")
    root = typer.main.get_command(cli_app)
    with pytest.raises(import_module("dflash_mlx.errors").DFlashError) as caught:
        environment.config(typer.Context(root))
    assert "the defaults of 'a/b'" in caught.value.message


def test_the_example_of_the_guide(cli_app, config):
    """Its tables are valid, and its model is known."""
    page = Path(__file__).parents[2] / "examples/guide/presets.md"
    config(page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0])
    command = typer.main.get_command(cli_app).commands["chat"]  # type: ignore[attr-defined]
    tables = option_tables.OptionTables(typer.Context(command))
    tables.check()
    assert registry.find_target(tables.preset("small")["model"], lambda repo: "no")


@pytest.fixture
def loaded():
    return []


@pytest.fixture
def state(cli_app, loaded, monkeypatch):
    """A chat where every model is the golden pair."""
    pair = tiny.golden_pair("qwen3_full")
    actions = import_module("dflash_mlx.cli.chat.actions")

    def load(model_options, *rest):
        loaded.append(model_options.model)
        return pair

    monkeypatch.setattr(actions, "fetch_pair", lambda model_options, *rest: model_options)
    monkeypatch.setattr(actions, "load_downloaded", load)
    return recorded_chat(cli_app, pair)


@pytest.fixture
def use(state):
    return state.enter


def test_a_preset_in_a_chat(state, use, loaded, config):
    """It lists, completes, applies only what it says, and loads a model only where it names one."""
    assert "no presets" in use("/preset")
    config(
        "[preset.review]\nsystem = 'Be terse.'\ntemp = 0.3\nstop = ['x']\nthink = false\n"
        "[preset.other]\nmodel = 'B'\nmode = 'baseline'\n[preset.bad]\ntemp = -1\n"
        "[preset.long]\nblock-size = 99\ntemp = 1\n"
    )
    listed = use("/preset")
    assert "review  system Be terse. · temp 0.3" in listed
    assert "other   model B · mode baseline" in listed
    assert ("review", "") in commands.complete(state, "/preset ")
    use("/set top-k 5")
    assert use("/preset review") == "  preset review: system, temp, stop, think"
    now = state.dialogue.settings
    assert (now.sampling.temperature, now.sampling.top_k) == (0.3, 5)
    assert (now.stop, state.dialogue.chat.system) == (("x",), "Be terse.")
    assert loaded == []
    told = use("/preset other")
    assert "the preset 'other' is of another model: B is loaded" in told
    assert loaded == ["B"]
    assert not state.dialogue.info.drafting
    assert state.dialogue.settings.sampling.temperature == 0.3
    for name, part in (("bad", "'temp' cannot be -1"), ("revue", "there is no preset 'revue'")):
        with pytest.raises(import_module("dflash_mlx.errors").DFlashError) as caught:
            use(f"/preset {name}")
        assert part in caught.value.message
    with pytest.raises(import_module("dflash_mlx.errors").UsageError):
        use("/preset long")
    assert state.dialogue.settings.sampling.temperature == 0.3


def test_thinking_of_a_preset_goes_before_the_present_one():
    """The two settings contradict each other only where one table says both."""
    chat, with_values = GenerationOptions, settings.chat_values
    assert with_values(chat(reasoning_effort="low"), {"think": False}).reasoning_effort is None
    assert with_values(chat(think=False), {"reasoning_effort": "low"}).think is True
    assert with_values(chat(stop=("x",)), {"temperature": 1.0}).stop == ("x",)


def test_adapters_stay_with_their_model(state, use, config):
    """Each model has the one of its own table, whatever the last one was loaded with."""
    config("[models.B]\nadapter = 'for-b'\n")
    seen = []
    for name in ("B", "C", "B"):
        use(f"/model {name}")
        seen.append(state.options.model.adapter)
    assert seen == [Path("for-b"), None, Path("for-b")]


def test_defaults_follow_the_model(state, use, config):
    """Another model brings its own and takes the last one's away; what was set stays."""
    config("[models.B]\ntemp = 0.6\ntop-p = 0.9\nsystem = 'You are B.'\n[models.C]\ntop-p = 0.8\n")

    def now():
        sampling = state.dialogue.settings.sampling
        return sampling.temperature, sampling.top_p, state.dialogue.chat.system

    use("/model B")
    assert now() == (0.6, 0.9, "You are B.")
    use("/model C")
    assert now() == (0.0, 0.8, None)
    use("/model B")
    use("/temp 0.1")
    use("/model C")
    assert now() == (0.1, 0.8, None)
    config("[preset.p]\ntop-p = 0.8\n[models.C]\ntop-p = 0.8\n[models.B]\ntop-p = 0.9\n")
    use("/preset p")
    use("/model B")
    assert now() == (0.1, 0.8, None)
