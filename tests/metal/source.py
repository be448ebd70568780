"""From the Metal text of one kernel to a C++ translation unit for the shim.

Only what plain C++ cannot express is rewritten: variables in threadgroup memory, and the line
that instantiates the kernel, which becomes an entry the runner can call. Line numbers are kept.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from .trace import Launch

TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/|\#(?:[^\n\\]|\\.)*)"
    r'|(?P<text>"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')'
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<mark>::|->|.)",
    re.DOTALL,
)
INSTANCE = re.compile(
    r"\ntemplate \[\[host_name\(.*?\)\]\] \[\[kernel\]\] decltype\((?P<name>.*?)\) .*"
)
PARAMETER = re.compile(r"^(?P<type>.*?)\s*(?P<name>\w+) \[\[(?P<role>.*)\]\]$")
DERIVED = {
    "thread_execution_width": "EMU_LANES",
    "threads_per_simdgroup": "EMU_LANES",
    "thread_index_in_quadgroup": "t->thread_index_in_threadgroup % 4",
    "quadgroup_index_in_threadgroup": "t->thread_index_in_threadgroup / 4",
}
IDS = (
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
)


class Refused(Exception):
    """The kernel uses something that is not emulated."""


@dataclass(frozen=True)
class Buffer:
    """One buffer argument: `role` is input, shape, strides, ndim or output."""

    name: str
    role: str
    of: int  # which input or output


@dataclass(frozen=True)
class Unit:
    """A C++ translation unit and the buffers its entry takes, in order."""

    text: str
    buffers: tuple[Buffer, ...]


class Token(NamedTuple):
    """One word of the source; comments and white space are of kind `space`."""

    kind: str  # space, text, number, word, mark
    text: str
    at: int


def signature(launch: Launch) -> tuple[int, list[str]]:
    """Where the line with the kernel's name starts, and the parameters MLX wrote for it."""
    start = f"[[kernel]] void {launch.name}("
    at = launch.source.index(start)
    end = launch.source.index(") {\n", at)
    return at, [p.strip() for p in launch.source[at + len(start) : end].split(",\n")]


def translate(launch: Launch) -> Unit:
    """The C++ of one kernel. Raises Refused."""
    at, parameters = signature(launch)
    text, called = launch.source, launch.name
    if instance := INSTANCE.search(text):
        called = instance["name"]
        text = text[: instance.start()] + "\n"
    buffers: list[Buffer] = []
    arguments: list[str] = []
    for parameter in parameters:
        match = PARAMETER.match(parameter)
        assert match, f"MLX wrote a parameter that is not understood: {parameter}"
        kind, name = match["type"], match["name"]
        if not match["role"].startswith("buffer("):
            arguments.append(_attribute(kind, name))
            continue
        place = f"b[{len(buffers)}]"
        if kind.endswith("&"):
            arguments.append(f"*({kind[:-1]}*){place}")
        else:
            arguments.append(f"({kind}){place}")
        buffers.append(_buffer(kind, name, buffers))
    entry = (
        '\nextern "C" void emu_entry(char *const *b, const emu_ids *t) {\n'
        f"  {called}({', '.join(arguments)});\n}}\n"
    )
    head = '#include "mlx/backend/metal/kernels/utils.h"\n#line 1 "kernel.metal"\n'
    return Unit(head + threadgroup_variables(text, at) + entry, tuple(buffers))


def tokens(text: str) -> list[Token]:
    return [Token(str(m.lastgroup), m.group(), m.start()) for m in TOKEN.finditer(text)]


def _attribute(kind: str, name: str) -> str:
    if name in DERIVED:
        return DERIVED[name]
    if name not in IDS:
        raise Refused(f"the attribute {name} is not emulated")
    if kind == "uint3":
        return f"uint3(t->{name}[0], t->{name}[1], t->{name}[2])"
    return f"t->{name}"


def _buffer(kind: str, name: str, before: list[Buffer]) -> Buffer:
    inputs = [b for b in before if b.role == "input"]
    if not kind.startswith("const"):
        return Buffer(name, "output", sum(b.role == "output" for b in before))
    for role in ("shape", "strides", "ndim"):
        if inputs and name == f"{inputs[-1].name}_{role}" and "constant int" in kind:
            return Buffer(name, role, inputs[-1].of)
    return Buffer(name, "input", len(inputs))


def threadgroup_variables(text: str, kernel_at: int) -> str:
    """The text where `threadgroup float a[64];` becomes a reference to the runner's allocation."""
    all_tokens = tokens(text)
    out: list[str] = []
    last, depth, parens, number, i = ";", 0, 0, 0, 0
    while i < len(all_tokens):
        token = all_tokens[i]
        if token.kind == "space":
            if re.match(r"#.*\bthreadgroup\b", token.text, re.DOTALL):
                raise Refused("threadgroup memory in a macro")
            out.append(token.text)
            i += 1
            continue
        if token.text == "threadgroup" and parens == 0 and not _of_a_method(all_tokens, i, last):
            stop = next(k for k in range(i, len(all_tokens)) if all_tokens[k].text in ";{")
            statement = all_tokens[i + 1 : stop]
            if (new := _declaration(statement, number)) is not None:
                if token.at < kernel_at:
                    raise Refused("a threadgroup variable outside a kernel")
                if depth == 0 or last not in ";{}":
                    raise Refused("threadgroup memory in a declaration that is not understood")
                out.append(new + "\n" * "".join(t.text for t in statement).count("\n"))
                number += 16
                i, last = stop + 1, ";"
                continue
        if token.kind == "mark":
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            parens += {"(": 1, ")": -1}.get(token.text, 0)
        last = token.text
        out.append(token.text)
        i += 1
    return "".join(out)


def _of_a_method(all_tokens: list[Token], i: int, last: str) -> bool:
    """`float get() const threadgroup { ... }`: the space of the object, not of a variable."""
    after = next((t.text for t in all_tokens[i + 1 :] if t.kind != "space"), "")
    return last in (")", "const") and after in ("{", ":", "const", ";")


def _declaration(statement: list[Token], number: int) -> str | None:
    """References for the variables a statement declares in threadgroup memory; None if none."""
    words = [t.text for t in statement if t.kind != "space"]
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += {"<": 1, ">": -1, "[": 1, "]": -1, "(": 1, ")": -1}.get(word, 0)
        if word == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    first = parts[0]
    name_at = first.index("[") - 1 if "[" in first else len(first) - 1
    if "*" in first[:name_at] or "&" in first[:name_at] or "=" in first:
        if "=" in first and not {"*", "&"} & set(first[: first.index("=")]):
            raise Refused("a threadgroup variable with an initial value")
        return None
    out = f"typedef {' '.join(first[:name_at])} emu_t{number};"
    for k, part in enumerate([first[name_at:], *parts[1:]]):
        name, size = part[0], " ".join(part[1:])
        own = f"emu_s{number + k}"
        out += f" typedef emu_t{number} {own} {size};"
        out += f' auto &{name} = emu_slot<{own}>({number + k}, "{name}");'
    return out
