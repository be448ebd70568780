"""The frame of the command line: help, settings, messages, exit codes."""

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from golden_pair import PAIR


def test_version(run, monkeypatch):
    """Also without MLX: a report of a broken installation begins with it."""
    line = f"dflash 0.1.0 (mlx {version('mlx')}, mlx-lm {version('mlx-lm')})\n"
    for flag in ("--version", "-V"):
        result = run(flag)
        assert (result.exit_code, result.output) == (0, line)
    monkeypatch.setattr("dflash_mlx.installation.installed", lambda name: None)
    assert run("-V").output == "dflash 0.1.0 (mlx missing, mlx-lm missing)\n"


def test_help_has_no_boxes_and_no_terminal_codes(run):
    for arguments in (["--help"], ["-h"], ["generate", "-h"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: ")
        assert not set(result.stdout) & set("╭│╰\x1b")


BAD = [
    (["generat"], 2, "No such command 'generat'"),
    (["generate", "x", "--bogus"], 2, "No such option: --bogus"),
    (["generate", "x", "y"], 2, "unexpected extra argument"),
    (["generate", "x", "--temp", "-1"], 2, "temperature cannot be -1.0."),
    (["generate", "x", "--draft-bits", "two"], 2, "'two' is not 4, 8 or none."),
    (["generate", "x", "--accept", "some"], 2, "'some' is not one of 'match', 'token', 'block'."),
    (["generate"], 2, "the prompt is empty."),
    (["generate", "  \n"], 2, "the prompt is empty."),
    (["generate", "-f", "no-such-file"], 2, "the file 'no-such-file' cannot be read"),
    (["generate", "-f", "/"], 2, "the folder '/' has more than 20,000 files."),
    (["generate", "x", "--raw", "-s", "be brief"], 2, "cannot be sent with --raw."),
    (
        ["bench", "--lookup", "--modes", "baseline, dflash"],
        2,
        "--lookup has no effect in these modes.",
    ),
    (
        ["generate", "x", "-m", "no-such-model", "--exact", "--kv-bits", "8"],
        2,
        "a quantised KV cache cannot be exact",
    ),
    (["generate", "x", "-m", "no-such-model"], 1, "there is no model or folder 'no-such-model'"),
    (
        ["generate", "x", "-m", "mac:8080/v1"],
        1,
        "'mac:8080/v1' is a server's address, not a model.",
    ),
    (["generate", "x", "-m", "./none", "--no-draft"], 1, "there is no folder './none'."),
    (["generate", "x", "-m", PAIR[3], "-d", PAIR[3]], 1, "not a model that can answer by itself."),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD)
def test_bad_input_gets_one_sentence_and_a_hint(run, arguments, code, message):
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert error.endswith((".", "?"))
    assert hint.startswith("Hint:  ")
    assert len(hint) > len("Hint:  ")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["generate", "x", "--bogus"], " generate --help` lists what can be given"),
        (["generate", "x", "--tmep", "1"], "did you mean --temp?"),
        (["chat", "--no-markdwn"], "did you mean --no-markdown?"),
        (["--versio"], "did you mean --version?"),
        (["--bogus"], " --help` lists what can be given"),
    ],
)
def test_only_near_options_are_suggested(run, arguments, hint):
    result = run(*arguments)
    typed = next(argument for argument in arguments if argument.startswith("--"))
    assert result.exit_code == 2
    error, given = result.stderr.splitlines()
    assert error == f"Error: No such option: {typed}."
    assert given.endswith(hint)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["Why is the sky blue?"], 'Hint:  `dflash chat "PROMPT"` answers a prompt'),
        (["models"], "has the commands list, pull, rm"),
        (["lst"], "has the commands chat, generate, serve"),
    ],
)
def test_what_is_no_command_names_a_way_on(run, arguments, hint):
    result = run(*arguments)
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split(" "))


def number_options(group, *commands):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from number_options(command, *commands, name)
            continue
        for parameter in command.params:
            descriptor = parameter.type_descriptor
            if descriptor.annotation in (int, float) and not descriptor.parameter_info.parser:
                yield [*commands, name], parameter


def test_wrong_numbers_are_told_in_our_words(run, cli_app):
    """Of every option: what is wrong with the value, and what to give."""
    seen = set()
    for command, parameter in number_options(typer.main.get_command(cli_app)):
        flag = max(parameter.opts, key=len)
        kind = "a whole number" if parameter.type_descriptor.annotation is int else "a number"
        texts = ["x"] if parameter.min is None else ["x", str(parameter.min - 1)]
        for text in texts:
            result = run(*command, f"{flag}={text}")
            error, hint = result.stderr.splitlines()
            assert (result.exit_code, result.stdout) == (2, "")
            assert error == f"Error: {flag} cannot be {text if text != 'x' else repr(text)}."
            assert hint.startswith(f"Hint:  give {kind}")
        seen.add(flag)
    assert {"--seed", "--max-tokens", "--port", "--epochs"} <= seen


def test_unexpected_fault_is_one_line(run, monkeypatch):
    """A traceback is for those who ask for it."""

    def fail(*_args, **_kwargs):
        raise ZeroDivisionError("nobody\nthought of this")

    monkeypatch.setattr("dflash_mlx.pair.open_pair", fail)
    result = run("generate", "x", *PAIR)
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: unexpected ZeroDivisionError: nobody.\n"
        "Hint:  run it again with DFLASH_DEBUG=1 to see where\n"
    )
    shown = run("generate", "x", *PAIR, env={"DFLASH_DEBUG": "1"})
    assert shown.exit_code == 1
    assert "Traceback" in shown.stderr


def test_file_names_cannot_steer_the_terminal(run):
    result = run("generate", "-f", "a\x1b[31mb")
    assert "'a[31mb'" in result.stderr


def test_settings_can_name_the_models_and_switches(run, config, monkeypatch):
    monkeypatch.delenv("DFLASH_MODE")
    config(f'model = "{PAIR[1]}"\nno-draft = true\nmax-tokens = 4\nthink = false\nstop = ["zz"]\n')
    result = run("generate", "--json", "Hello")
    assert result.exit_code == 0, result.output
    assert '"draft": null' in result.stdout


def test_draft_on_the_command_line_beats_no_draft_in_the_file(run, config):
    """And the other way round: what was typed is what is meant."""
    config("no-draft = true\nmax-tokens = 4\n")
    assert f'"draft": "{PAIR[3]}"' in run("generate", "--json", "Hello", *PAIR).stdout
    result = run(
        "generate", "--json", "Hello", *PAIR[:2], "--no-draft", env={"DFLASH_DRAFT": PAIR[3]}
    )
    assert '"draft": null' in result.stdout


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("tmep = 1\n", "has an unknown setting 'tmep'.", "did you mean 'temp'?"),
        ("qqqq = 1\n", "has an unknown setting 'qqqq'.", "settings are named as flags are"),
        ("[generate]\ntemp = 1\n", "unknown setting 'generate'.", "Hint"),
        ("[temp]\nx = 1\n", "the setting 'temp' in", "give it one value"),
        ("temp 0.7\n", "is not valid TOML", "one setting per line"),
        ('temp = "hot"\n', "--temp cannot be 'hot'.", "give a number; the value is in "),
        ("temp = true\n", "the setting 'temp' in", "give it a value, as --temp has one"),
        ("temp = -3\n", "temperature cannot be -3.0.", "it is set by 'temp' in "),
        ('stop = ["a", 2]\n', "cannot be ['a', 2].", "give it a text in quotes"),
    ],
)
def test_bad_settings_file(run, config, text, message, hint):
    config(text)
    result = run("generate", "x", *PAIR)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert hint in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_model_of_the_settings_is_traced(run, config):
    """Guards whoever set it long ago: the message names the model, the hint the file and the key.

    A variable is named too; a flag, which everybody sees, is not.
    """
    config('model = "nope"\n')
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    result = run("generate", "x")
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert "'nope'" in error
    assert hint.endswith(f"it is set by 'model' in {path}")
    result = run("generate", "x", env={"DFLASH_MODEL": "never"})
    assert result.stderr.splitlines()[1].endswith("it is set by DFLASH_MODEL")
    assert "it is set by" not in run("generate", "x", "-m", "nope").stderr


def test_one_stop_string_needs_no_list(run, config):
    """`stop = "19"` said that it must be an iterable."""
    whole = run("generate", "--raw", "winter f!", *PAIR, "--max-tokens", "9").stdout
    config(f'stop = "{whole[3:5]}"\n')
    cut = run("generate", "--raw", "winter f!", *PAIR, "--max-tokens", "9")
    assert cut.exit_code == 0, cut.output
    assert cut.stdout.removesuffix("\n") == whole[: whole.index(whole[3:5])]


def test_bad_variable_is_named(run, monkeypatch):
    monkeypatch.setenv("DFLASH_TEMP", "hot")
    result = run("generate", "x", *PAIR)
    assert result.exit_code == 2
    assert result.stderr.endswith("Hint:  give a number; the value is that of DFLASH_TEMP\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DFLASH_TEMPP", "`unset DFLASH_TEMPP`: did you mean DFLASH_TEMP?"),
        ("DFLASH_KERNEL", "`unset DFLASH_KERNEL`: did you mean DFLASH_KERNELS?"),
        ("DFLASH_QQQQ", "`unset DFLASH_QQQQ`: nothing reads it"),
    ],
)
def test_unknown_variable_is_an_error(run, name, hint):
    """As an unknown key of the config file is: a typo must not go unnoticed."""
    result = run("models", "list", env={name: "1"})
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: the environment variable '{name}' is not known.\nHint:  {hint}\n"
    )


def test_every_variable_that_is_read_is_known(cli_app):
    """Those of the package, of the tests, of the Makefile and of CI."""
    environment = import_module("dflash_mlx.cli.environment")
    root = Path(__file__).parents[2]
    found = set()
    for folder in ("dflash_mlx", "cli"):
        for file in (root / folder).rglob("*.py"):
            found |= set(re.findall(r'"(DFLASH_[A-Z_]*[A-Z])"', file.read_text()))
    for file in (root / "tests").rglob("*.py"):
        found |= set(re.findall(r'environ(?:\.get\(|\[)"(DFLASH_[A-Z_]+)"', file.read_text()))
    scripts = [root / "Makefile", *(root / ".ci").iterdir(), *(root / ".github").rglob("*.yml")]
    for file in scripts:
        found |= set(re.findall(r"\bDFLASH_[A-Z_]+", file.read_text()))
    assert {"DFLASH_KERNELS", "DFLASH_TEST_DEVICE", "DFLASH_NEED_EMULATOR"} <= found
    assert found <= environment.known_variables(typer.main.get_command(cli_app))


def test_settings_file_that_is_not_text(run, config):
    config("")
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "dflash" / "config.toml"
    path.write_bytes(b"\xff\xfe")
    result = run("generate", "x", *PAIR)
    assert result.exit_code == 1
    assert "cannot be read (not UTF-8 text)." in result.stderr


def test_offline_is_set_before_the_hub_is_imported(tmp_path):
    """huggingface_hub reads the variable once, when it is imported."""
    program = "from importlib import import_module; import_module('dflash_mlx.cli.app').main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *"generate x -m none/such --no-draft --offline".split()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "is not on this machine" in done.stderr
    assert "Traceback" not in done.stderr


def test_symbols_have_stand_ins(monkeypatch):
    """The text that reaches a terminal without UTF-8 is ASCII."""
    output = import_module("dflash_mlx.cli.terminal.output")
    out = output.Output(plain=True)
    assert out.ascii_fallback("9 tokens · τ 4.00 · 1.2× –") == "9 tokens | tau 4.00 | 1.2x -"
    assert output.strip_control("a\x1b[2Jb\r\x07\x9bc\td\n") == "a[2Jbc\td\n"
