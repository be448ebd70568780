"""Install a release in clean environments, try it there, and print the tables of the guide.

    make release
    .venv/bin/python examples/measure/installs.py dist/*.whl [PYTHON ...]
    .venv/bin/python examples/measure/installs.py dist/*.whl --resolve 3.13 3.14

Each interpreter (without any: those that uv finds, 3.11 and newer) gets the wheel by `uv tool`,
`pipx` and `pip`, each in a new folder that is also HOME and the working directory. There the
program answers a prompt, opens a chat in a pseudo-terminal, and `doctor` looks at it. Packages come
from the caches of uv and pip, except the first time. `--resolve` installs nothing: it finds the
wheels that other Pythons and systems would get.
"""

import argparse
import json
import os
import pty
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = str(ROOT / ".venv-uv/bin/uv")
OLDEST = (3, 11)
METHODS = ("uv tool", "pipx", "pip")
PROMPT = "What is 25 plus 17?"
CURSOR = b"\x1b[6n"  # prompt_toolkit's query for the position of the cursor, and a reply
MAN_PAGE = "share/man/man1/dflash.1"
# uv's names of platforms; the oldest macOS that MLX has wheels for, and the Linux that they need.
PLATFORMS = {
    "macOS 14, arm64": "aarch64-apple-darwin",
    "Linux, x86-64, glibc 2.35": "x86_64-manylinux_2_35",
    "Linux, arm64, glibc 2.35": "aarch64-manylinux_2_35",
}
KEPT = (
    "LANG",
    "UV_",
    "PIP_",
    "SSL_",
    "http",
    "HTTP",
    "no_proxy",
    "NO_PROXY",
)  # how to reach an index


def interpreters() -> list[str]:
    """The CPythons that uv finds, one for each minor version."""
    command = [UV, "python", "list", "--only-installed", "--output-format", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found: dict[tuple[int, int], str] = {}
    for each in json.loads(done.stdout):
        parts = each["version_parts"]
        version = (parts["major"], parts["minor"])
        if version >= OLDEST and each["implementation"] == "cpython" and not each["symlink"]:
            found.setdefault(version, each["path"])
    return [found[version] for version in sorted(found)]


def clean_environment(home: Path) -> dict[str, str]:
    """The variables of a user who has nothing yet; the caches of uv and pip stay."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    for name, command in (
        ("UV_CACHE_DIR", [UV, "cache", "dir"]),
        ("PIP_CACHE_DIR", [str(ROOT / ".venv-uv/bin/python"), "-m", "pip", "cache", "dir"]),
    ):
        kept[name] = subprocess.check_output(command, text=True).strip()
    path = f"{home}/.local/bin:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "HOME": str(home), "PATH": path, "UV_PYTHON_DOWNLOADS": "never"}


def install_commands(method: str, python: str, wheel: Path, home: Path) -> list[list[str]]:
    """What a user types, one command after another."""
    if method == "uv tool":
        return [[UV, "tool", "install", "--quiet", "--python", python, str(wheel)]]
    if method == "pipx":
        pipx = [UV, "tool", "run", "--quiet", "pipx"]
        return [[*pipx, "install", "--quiet", "--python", python, str(wheel)]]
    environment = str(home / "environment")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    return [[python, "-m", "venv", environment], [f"{environment}/bin/python", *install]]


def megabytes(folder: Path) -> float:
    """The disk that a folder takes, in MB; a file with several names counts once."""
    blocks = {}
    for file in folder.rglob("*"):
        status = file.lstat()
        blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values()) / 1e6


def chat_seconds(program: str, environment: Mapping[str, str]) -> float:
    """Seconds from the start of `dflash chat --demo` to its prompt; then presses Ctrl-D.

    Raises CalledProcessError if the chat ends with another exit code than 0.
    """
    command = [program, "chat", "--demo", "--no-history"]
    began = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(command[0], command, {**environment, "TERM": "xterm-256color"})
    seen = b""
    while "›".encode() not in seen:
        seen += os.read(terminal, 65536)
        if CURSOR in seen:
            os.write(terminal, b"\x1b[1;1R")
            seen = seen.replace(CURSOR, b"")
    seconds = time.perf_counter() - began
    os.write(terminal, b"\x04")
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # Linux raises this when the other end was closed
        pass
    _, status = os.waitpid(child, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return seconds


def tried(method: str, python: str, wheel: Path) -> tuple[str, ...]:
    """A row of the table: one installation, its cost, and what the program did."""
    with tempfile.TemporaryDirectory(prefix="dflash-install-") as folder:
        home = Path(folder)
        environment = clean_environment(home)

        def run(command: Sequence[str]) -> str:
            done = subprocess.run(
                command, env=environment, cwd=home, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
            return done.stdout.strip()

        version = run([python, "-c", "import platform; print(platform.python_version())"])
        began = time.perf_counter()
        for command in install_commands(method, python, wheel, home):
            run(command)
        seconds = time.perf_counter() - began
        size = megabytes(home)
        bin = home / ("environment/bin" if method == "pip" else ".local/bin")
        program = str(bin / "dflash")
        began = time.perf_counter()
        answer = run([program, "generate", PROMPT]).splitlines()[-1]
        first = time.perf_counter() - began
        os.chdir(home)
        chat = chat_seconds(program, environment)
        os.chdir(ROOT)
        run([program, "doctor"])
        pages = (home / ".local" / MAN_PAGE, home / "environment" / MAN_PAGE)
        man = "yes" if any(page.exists() for page in pages) else "no"
        print(f"{version} {method}: {run([program, '--version'])}", flush=True)
    cells = (version, method, f"{seconds:.0f}", f"{size:.0f}", answer, f"{first:.1f}")
    return (*cells, f"{chat:.1f}", man)


def resolved(python: str, platform: str, wheel: Path) -> str:
    """How many packages an installation would take, with MLX's version; or why it cannot be."""
    command = [UV, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    command += ["--only-binary", ":all:", "--python-version", python, "--python-platform", platform]
    done = subprocess.run(
        command,
        input=f"dflash-chat @ {wheel.as_uri()}\n",
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return " ".join(done.stderr.split())
    packages = done.stdout.splitlines()
    main = [line for line in packages if line.startswith(("mlx==", "mlx-lm==", "numpy=="))]
    return f"{len(packages)} packages: {', '.join(main)}"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("wheel", type=Path)
    options.add_argument("python", nargs="*", help="interpreters; default: those that uv finds")
    options.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    options.add_argument("--resolve", nargs="+", metavar="VERSION", default=[])
    given = options.parse_args()
    wheel = given.wheel.resolve()
    if given.resolve:
        head = ("Python", "system", "wheels")
        rows: Iterator[Sequence[str]] = (
            (python, name, resolved(python, platform, wheel))
            for python in given.resolve
            for name, platform in PLATFORMS.items()
        )
    else:
        head = (
            "Python",
            "method",
            "seconds",
            "MB",
            "first answer",
            "after s",
            "chat after s",
            "man",
        )
        rows = (
            tried(method, python, wheel)
            for python in given.python or interpreters()
            for method in given.methods
        )
    for line in table(head, rows):
        print(line, flush=True)


if __name__ == "__main__":
    main()
