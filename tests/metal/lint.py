"""What Apple's compiler refuses and g++ does not: a strong hint, not a proof.

Two passes over the text MLX would give to Apple's compiler: rules on its words, and, where clang
is installed, types and address spaces by clang's C++ for OpenCL, whose address spaces, half and
lack of double are Metal's.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from .build import CACHE, HERE, MLX, cached_text
from .source import INSTANCE, Refused, Token, signature, threadgroup_variables, tokens
from .trace import Launch

SPACES = {"device", "threadgroup", "constant", "thread", "threadgroup_imageblock"}
SCALARS = set(
    "bool char uchar short ushort int uint long ulong half float bfloat int8_t uint8_t int16_t"
    " uint16_t int32_t uint32_t int64_t uint64_t size_t ptrdiff_t bfloat16_t float16_t void".split()
)
VECTORS = {f"{t}{n}" for t in SCALARS for n in "234" if not t.endswith("_t")}
TYPES = SCALARS | VECTORS | {f"packed_{v}" for v in VECTORS} | {"vec", "simdgroup_matrix", "atomic"}
REFUSED = {
    "double": "Metal has no double",
    "goto": "Metal has no goto",
    "new": "Metal has no new",
    "delete": "Metal has no delete",
    "throw": "Metal has no exceptions",
    "try": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "virtual": "Metal has no virtual functions",
    "dynamic_cast": "Metal has no dynamic_cast",
    "typeid": "Metal has no typeid",
    "thread_local": "Metal has no thread_local",
    "asm": "Metal has no inline assembly",
    "printf": "Metal has no printf",
    "std": "Metal has no std::, its namespace is metal::",
    "wchar_t": "Metal has no wchar_t",
}
CLANG = (
    "-cc1 -triple spir64 -x clcpp -cl-std=clc++2021 -fsyntax-only -nostdsysteminc -w"
    " -ferror-limit 0 -cl-single-precision-constant -Wno-reserved-user-defined-literal -DEMU_LINT"
).split()
# Words of Metal that g++ takes as names.
KEYWORDS = SPACES | set(
    "kernel vertex fragment half bfloat uint uchar ushort ulong sampler texture2d visible".split()
)


def lint(launch: Launch) -> list[str]:
    return [*words(launch), *types(launch)]


def words(launch: Launch) -> list[str]:
    text = launch.source
    all_tokens = tokens(text)
    start, _ = signature(launch)
    found = [f"{_line(text, at)}: {what}" for at, what in _rules(all_tokens, start)]
    for token in all_tokens:
        if token.kind == "space" and token.at < start < token.at + len(token.text):
            found.append(
                f"{_line(text, start)}: the header ends in a // comment without a newline,"
                " which swallows the line MLX writes after it"
            )
    return found


def types(launch: Launch) -> list[str]:
    """Clang's errors on types and address spaces; none where clang is not installed."""
    if not (clang := find_clang()):
        return []
    text = INSTANCE.sub(r"\ntemplate decltype(\g<name>) \g<name>;", launch.source)
    try:
        text = threadgroup_variables(text.replace("[[kernel]] ", ""), 0)
    except Refused as refused:
        return [f"0: {refused}"]
    unit = f'#include "mlx/backend/metal/kernels/utils.h"\n#line 1 "kernel.metal"\n{text}'
    report = cached_text("lint", " ".join([clang, *CLANG, unit]), lambda: _clang(clang, unit))
    errors = [line for line in report.splitlines() if "error:" in line and not _only_spaces(line)]
    found = [m for line in errors if (m := re.match(r"kernel\.metal:(\d+):\d+: error: (.*)", line))]
    return [f"{m[1]}: {m[2]}" for m in found] or ["0: " + line for line in errors[:1]]


@cache
def find_clang() -> str | None:
    names = ["clang", *(f"clang-{n}" for n in range(22, 13, -1))]
    return next((found for name in names if (found := shutil.which(name))), None)


def _clang(clang: str, unit: str) -> str:
    CACHE.mkdir(parents=True, exist_ok=True)
    include = ["-I", str(HERE / "shim"), "-I", str(MLX), "-"]
    done = subprocess.run([clang, *CLANG, *include], input=unit, capture_output=True, text=True)
    return done.stderr


def _only_spaces(line: str) -> bool:
    """`ok ? p[i] : bfloat(0)`: our bfloat and vectors are classes to clang, and there such a pair
    has to agree in its address space. Metal's own are not, and need not."""
    pair = re.search(r"incompatible operand types \((.*) and (.*)\)", line)
    if not pair:
        return False
    left, right = (re.findall(r"'(.*?)'", side)[-1] for side in pair.groups())
    qualifiers = r"\b(const|__\w+)\b"
    return re.sub(qualifiers, "", left).split() == re.sub(qualifiers, "", right).split()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _rules(all_tokens: list[Token], kernel_at: int) -> Iterator[tuple[int, str]]:
    code = [t for t in all_tokens if t.kind != "space"]
    known = TYPES | _own_types(code)
    for i, token in enumerate(code):
        before = code[i - 1].text if i else ""
        after = code[i + 1].text if i + 1 < len(code) else ""
        removed = token.text == "delete" and before == "="
        if token.text in REFUSED and before not in (".", "->") and not removed:
            yield token.at, REFUSED[token.text]
        if token.kind == "word" and token.text in known:
            yield from _pointer(code, i)
        named = before in known and after in ("=", ";", ",", ")", "[")
        if token.text in KEYWORDS and named:
            yield token.at, f"{token.text} is a word of Metal and cannot be a name"
        if token.text == "[" and before in ("(", "=", ",", "return") and after in ("&", "=", "]"):
            yield token.at, "Metal has no lambda expressions"
    yield from _program_scope(code)


def _program_scope(code: list[Token]) -> Iterator[tuple[int, str]]:
    """Variables outside functions, and static ones, live in constant memory."""
    i, start = 0, 0
    while i < len(code):
        text = code[i].text
        if text == "{" and _definition(code, i) is not None:
            i = _closing(code, i)
            start = i + 1
        elif text in (";", "{", "}"):
            words = [t.text for t in code[start:i]]
            head = words[: words.index("=")] if "=" in words else words
            data = {"constexpr", "static"} & set(head) or (text != "}" and "=" in words)
            other = {"using", "typedef", "template", "enum", "constant", "operator", "("}
            if data and not other & set(head):
                yield code[start].at, "a variable outside functions is not in constant memory"
            start = i + 1
        i += 1


def _own_types(code: list[Token]) -> set[str]:
    out = set()
    for left, right in pairwise(code):
        if left.text in ("struct", "class", "typename", "using", "enum") and right.kind == "word":
            out.add(right.text)
    return out - {"namespace"}


def _pointer(code: list[Token], i: int) -> Iterator[tuple[int, str]]:
    """A pointer or reference type needs an address space before its type or after it."""
    end = i + 1
    if end < len(code) and code[end].text == "<":
        depth = 0
        while end < len(code):
            depth += {"<": 1, ">": -1}.get(code[end].text, 0)
            end += 1
            if depth == 0:
                break
    while end < len(code) and code[end].text in ("const", "volatile"):
        end += 1
    if end >= len(code) or code[end].text not in ("*", "&"):
        return
    start = i - 1
    while start >= 0 and code[start].text in ("const", "volatile", "metal", "::", "typename"):
        start -= 1
    before = code[start].text if start >= 0 else ""
    if before in SPACES or before in (".", "->", "decltype", "enum", "struct", "class", "operator"):
        return
    after = code[end + 1] if end + 1 < len(code) else None
    if after and (after.kind == "word" or after.text in (")", ">", ",", "*", "&")):
        what = "pointer" if code[end].text == "*" else "reference"
        yield code[i].at, f"a {what} to {code[i].text} without an address space"


def _definition(code: list[Token], brace: int) -> int | None:
    """Where the name of the function stands whose body opens here; None if it is something else."""
    k = brace - 1
    while k > 0 and code[k].text in ("const", "thread", "device", "constant", "threadgroup"):
        k -= 1
    if k <= 0 or code[k].text != ")":
        return None
    depth = 0
    while k >= 0:
        depth += {")": 1, "(": -1}.get(code[k].text, 0)
        k -= 1
        if depth == 0:
            break
    ok = k >= 1 and code[k].kind == "word" and code[k].text not in ("if", "for", "while", "switch")
    return k if ok and code[k - 1].text not in (".", "->") else None


def _closing(code: list[Token], brace: int) -> int:
    depth = 0
    for k in range(brace, len(code)):
        depth += {"{": 1, "}": -1}.get(code[k].text, 0)
        if depth == 0:
            return k
    return len(code) - 1
