"""Whether the service of `dflash serve --install` is well."""

from pathlib import Path

from ..private_file import others_may_read
from ..service import KEY_FILE, LOG_FILE, address, value_of
from ..service_manager import ServiceProgram, service_manager
from .report import CheckResult, fail, ok, short_path, warn

AGAIN = "`dflash serve --install` installs it again, --uninstall removes it"


def service() -> CheckResult:
    """The installed service: whether it runs, where its files are, and whether its key is safe."""
    manager = service_manager()
    if not manager.file.exists():
        return ok("dflash serve is not installed as one")
    program = manager.program()
    if fault := fault_of(program):
        return fail(f"{short_path(manager.file)} · {fault}", AGAIN)
    key_file = value_of(program.words, KEY_FILE)
    if key_file and others_may_read(Path(key_file)):
        return warn(f"{short_path(key_file)} · others may read the key", f"`chmod 600 {key_file}`")
    log = value_of(program.words, LOG_FILE) or ""
    url = address(value_of(program.words, "--host") or "", value_of(program.words, "--port") or "")
    state = manager.state()
    summary = " · ".join((state.summary, url, short_path(manager.file), f"log {short_path(log)}"))
    return ok(summary) if state.running else warn(summary, f"its log says why; {AGAIN}")


def fault_of(program: ServiceProgram) -> str:
    """Why a service cannot start, in a few words; empty if nothing is missing."""
    python = Path(program.words[0])
    if not python.exists():
        return f"its Python, {short_path(python)}, is not there"
    key_file = value_of(program.words, KEY_FILE)
    if key_file and not Path(key_file).exists():
        return f"its key's file, {short_path(key_file)}, is not there"
    return ""
