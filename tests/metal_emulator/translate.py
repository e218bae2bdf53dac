#!/usr/bin/env python3
"""Makes a C++ file of a joined .metal file, for the emulator; refuses what is outside of the subset of docs/METAL.md.

Usage: translate.py NAME IN.metal OUT.cpp       exit status 1 and one line per fault.

The text stays as it is, line by line, but for three things: includes of the standard library go, a threadgroup variable
becomes a reference to memory of the emulator, a function constant loses its qualifier. Behind it come a caller and a
description of each kernel.
"""
import re
import sys
from pathlib import Path

INCLUDES = {"<metal_stdlib>", "<metal_simdgroup_matrix>", "<metal_atomic>"}
CONSTANT_TYPES = {"bool": "b", "int": "i", "int32_t": "i", "uint": "u", "uint32_t": "u", "float": "f"}
TRIPLES = {
    "thread_position_in_grid": "{c.group.x * c.threads.x + c.thread_in_group.x, c.group.y * c.threads.y + "
                               "c.thread_in_group.y, c.group.z * c.threads.z + c.thread_in_group.z}",
    "threadgroup_position_in_grid": "c.group",
    "thread_position_in_threadgroup": "c.thread_in_group",
    "threads_per_threadgroup": "c.threads",
    "threadgroups_per_grid": "c.groups",
    "threads_per_grid": "{c.groups.x * c.threads.x, c.groups.y * c.threads.y, c.groups.z * c.threads.z}",
}
SCALARS = {
    "thread_index_in_threadgroup": "c.index",
    "thread_index_in_simdgroup": "c.index % 32u",
    "simdgroup_index_in_threadgroup": "c.index / 32u",
    "simdgroups_per_threadgroup": "c.threads.x * c.threads.y * c.threads.z / 32u",
    "threads_per_simdgroup": "32u",
}
ATTRIBUTES = {"buffer", "threadgroup", "function_constant", "max_total_threads_per_threadgroup", "unroll", *TRIPLES, *SCALARS}
FORBIDDEN = {
    r"\b(goto|new|delete|throw|try|catch|virtual|typeid|dynamic_cast|thread_local|asm|double|wchar_t|alignas|volatile|"
    r"co_await|co_return|co_yield|concept|requires|long\s+double|mutable|friend|__\w*builtin\w*|__attribute__)\b":
        "not in the language",
    r"\bstd\s*::": "the standard library of the host",
    r"(?<![\w\])])\[[&=\w,\s]*\]\s*(?:\([^()]*\)\s*(?:mutable\s*)?(?:->[^{;]*)?)?\{": "a lambda",
    r"\bstatic\b(?!_)": "a static variable or function",
    r"\bif\s+constexpr\b|\bauto\s*&?\s*\[": "C++17",
    r"\b(?:lily_|__LILY|LILY_HERE|LILY_QUIET)\w*": "a name of the emulator",
    r"\bthread_elements\b": "where elements of a matrix lie in threads is not specified",
    r"\b(?:texture\w*|sampler|array_ref|visible_function_table|imageblock\w*|ray_data|os_log)\b": "outside of the subset",
    r"\bquad_\w+|\bsimd_ballot\b|\bsimd_vote\b|\bsimd_is_first\b|\bsimd_shuffle_rotate\w*|\bsimd_shuffle_and_fill\w*":
        "outside of the subset",
    r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+\.?(?=[eE]))(?:[eE][+-]?\d+)?(?![\w.])": "a number that is a double in C++: write the suffix f",
    r"(?<![\w.])(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?(?:h|bf)\b": "a suffix outside of the subset",
}
SPACES = r"device|constant|threadgroup|thread"


def strip(text: str) -> str:
    """The text with comments and contents of strings blanked, at the same places."""
    def blank(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match.group(0))

    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def without_host(text: str) -> str:
    """The text with what is between #ifndef __METAL_VERSION__ and its #else or #endif blanked: only the host has it."""
    out, levels = [], []
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(\w+)\s*(\w*)", line)
        word = directive.group(1) if directive else ""
        if word in ("if", "ifdef", "ifndef"):
            levels.append({"ifndef": False, "ifdef": True}.get(word) if directive.group(2) == "__METAL_VERSION__" else None)
        elif word in ("else", "elif") and levels and levels[-1] is not None:
            levels[-1] = not levels[-1]
        elif word == "endif" and levels:
            levels.pop()
        elif False in levels:
            line = " " * len(line)
        out.append(line)
    return "\n".join(out)


def closing(code: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`."""
    pairs = {"(": ")", "{": "}", "[": "]", "<": ">"}
    opening, close, depth = code[start], pairs[code[start]], 0
    for at in range(start, len(code)):
        depth += (code[at] == opening) - (code[at] == close)
        if depth == 0:
            return at + 1
    return len(code)


def split_commas(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return parts + [current] if current.strip() else parts


class Source:
    def __init__(self, name: str, text: str):
        self.name, self.whole, self.text, self.faults = name, text, without_host(text), []
        self.code = strip(self.text)
        self.lines = self.places()

    def places(self) -> list[str]:
        """For each line of the text, FILE:LINE by the #line directives."""
        file, number, places = self.name + ".metal", 1, []
        for line in self.text.split("\n"):
            directive = re.match(r'#line (\d+) "([^"]*)"', line)
            if directive:
                file, number = directive.group(2), int(directive.group(1)) - 1
            places.append(f"{file}:{number}")
            number += 1
        return places

    def fault(self, at: int, what: str) -> None:
        self.faults.append(f"{self.lines[self.code.count(chr(10), 0, at)]}: {what}")

    def line_of(self, at: int) -> int:
        return int(self.lines[self.code.count("\n", 0, at)].rpartition(":")[2])


def check_words(source: Source) -> None:
    code = re.sub(r"\[\[.*?\]\]", lambda found: " " * len(found.group(0)), source.code)
    for pattern, reason in FORBIDDEN.items():
        for match in re.finditer(pattern, code):
            source.fault(match.start(), f"'{match.group(0).strip()}': {reason}")
    for match in re.finditer(r"^[ \t]*#[ \t]*(\w+)[ \t]*([^\n]*)", source.text, flags=re.M):
        if match.group(1) == "include" and match.group(2).strip() not in INCLUDES:
            source.fault(match.start(), f"#include {match.group(2).strip()}: only {', '.join(sorted(INCLUDES))}")
        if match.group(1) not in {"include", "if", "ifdef", "ifndef", "else", "elif", "endif", "define", "undef", "line", "pragma"}:
            source.fault(match.start(), f"#{match.group(1)}: outside of the subset")
    for match in re.finditer(r"\[\[\s*(\w+)", source.code):
        if match.group(1) not in ATTRIBUTES:
            source.fault(match.start(), f"[[{match.group(1)}]]: outside of the subset")


def depth_zero(code: str) -> list[tuple[int, str]]:
    """The statements and heads at namespace scope, with their places."""
    found, start, at = [], 0, 0
    while at < len(code):
        if code[at] == "{":
            found.append((start, code[start:at]))
            at = start = closing(code, at)
            continue
        if code[at] == ";":
            found.append((start, code[start:at]))
            start = at + 1
        at += 1
    return found


def check_scope(source: Source) -> None:
    """Variables at namespace scope are constant; function names are not called by themselves."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: re.sub(r"[^\n]", " ", found.group(0)), source.code, flags=re.M)
    spaces = ["constant"] + re.findall(r"^#\s*define\s+(\w+)\s+constant\b", source.code, flags=re.M)
    for start, head in depth_zero(code):
        words = head.strip()
        if not words or re.match(r"(using|typedef|template|struct|enum|static_assert|namespace)\b", words):
            continue
        before = words.split("=")[0]
        if "(" not in re.sub(r"\[\[.*?\]\]|\[[^\]]*\]", "", before) and not re.search(rf"\b({'|'.join(spaces)})\b", before):
            source.fault(start + len(head) - len(head.lstrip()), f"'{' '.join(before.split())}': a variable at namespace scope that is not constant")
    for match in re.finditer(r"\b(\w+)\s*\(", code):
        body = code.find("{", closing(code, match.end() - 1))
        between = code[closing(code, match.end() - 1):body] if body >= 0 else ";"
        before = code[:match.start()].rstrip()
        if between.strip() in ("", "const") and before and re.search(r"[\w>&*]$", before) and not re.search(
                r"\b(return|else|kernel\s*\[\[.*)$", before):
            if match.group(1) in {"if", "for", "while", "switch"}:
                continue
            if re.search(rf"(?<![\w.:]){match.group(1)}\s*(<[^;{{}}()]*>)?\s*\(", code[body:closing(code, body)]):
                source.fault(match.start(), f"{match.group(1)} calls itself")


def check_pointers(source: Source) -> None:
    """Every pointer and reference says what it points into."""
    declared = re.findall(r"\b(?:struct|class|typename|using)\s+(\w+)", source.code) + re.findall(r"\btypedef\b[^;]*?(\w+)\s*;", source.code)
    builtin = "bool half float bfloat u?char u?short u?int u?long size_t u?int(?:8|16|32|64)_t atomic_\\w+ simdgroup_\\w+".split()
    builtin += ["(?:half|float|bfloat|u?char|u?short|u?int|u?long)[234]"]
    pattern = (rf"((?:\b(?:{SPACES}|const)\s+)*)(?<![\w.])(?:{'|'.join(builtin + declared)})(?:\s*<[^<>;(){{}}]*>)?"
               rf"(?:\s+const)?\s*([*&])(?![&=])")
    for match in re.finditer(pattern, source.code):
        if not re.search(rf"\b({SPACES})\b", match.group(1)):
            source.fault(match.start(), f"'{' '.join(match.group(0).split())}': has no address space")


def parameter_of(source: Source, at: int, text: str) -> dict | None:
    attribute = re.search(r"\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\))?\s*\]\]", text)
    declaration = re.match(r"\s*(.*?)\s*([*&]?)\s*(\w+)\s*(?:\[\[.*)?$", text, flags=re.S)
    if not attribute or not declaration:
        source.fault(at, f"parameter '{' '.join(text.split())}': expected 'TYPE NAME [[attribute]]'")
        return None
    return {"type": " ".join(declaration.group(1).split()), "mark": declaration.group(2), "name": declaration.group(3),
            "attribute": attribute.group(1), "index": attribute.group(2)}


def describe(source: Source, at: int, kernel: str, parameter: dict) -> tuple[str, str | None]:
    """The argument of the call, and the entry of the table of parameters."""
    kind, mark, index = parameter["attribute"], parameter["mark"], parameter["index"]
    if kind in TRIPLES:
        return f"lily_metal::position<{parameter['type']}>(lily_metal::Triple{expression(TRIPLES[kind])})", None
    if kind in SCALARS:
        return f"static_cast<{parameter['type']}>({SCALARS[kind]})", None
    words = parameter["type"].split()
    space = words[0]
    element = " ".join(word for word in words[1:] if word != "const")
    const = "const" in words or space == "constant"
    wrong = (kind == "buffer" and (space not in ("device", "constant") or mark not in ("*", "&"))) or (
        kind == "threadgroup" and (space != "threadgroup" or mark != "*")) or kind not in ("buffer", "threadgroup")
    if wrong or index is None or not index.isdigit() or int(index) > 30:
        source.fault(at, f"kernel {kernel}, parameter {parameter['name']}: expected 'device T*', 'constant T&' or 'constant T*' "
                         f"with [[buffer(0..30)]], 'threadgroup T*' with [[threadgroup(n)]], or a position")
        return "", None
    memory = "locals" if kind == "threadgroup" else "buffers"
    constness = "const " if const else ""
    argument = f"static_cast<{constness}{element}*>(c.{memory}[{index}])"
    entry = (f'{{"{parameter["name"]}", lily_metal::Space::in_{space}, {index}, sizeof({element}), '
             f'{"false" if const else "true"}, {"true" if mark == "&" else "false"}}}')
    return ("*" if mark == "&" else "") + argument, entry


def expression(text: str) -> str:
    return text if text.startswith("{") else "{" + ", ".join(f"{text}.{axis}" for axis in "xyz") + "}"


def kernels_of(source: Source) -> tuple[list[dict], list[tuple[int, int]]]:
    kernels, bodies = [], []
    for match in re.finditer(r"((?:\[\[[^\]]*\]\]\s*)?)\bkernel\s+void\s+(\w+)\s*\(", source.code):
        end = closing(source.code, match.end() - 1)
        body = source.code.find("{", end)
        if source.code[end:body].strip():
            source.fault(match.start(), f"kernel {match.group(2)}: expected its body after the parameters")
            continue
        if re.search(r">\s*$", source.code[:match.start()]):
            source.fault(match.start(), f"kernel {match.group(2)}: a kernel is no template")
        bodies.append((body, closing(source.code, body)))
        threads = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\w+)", match.group(1))
        kernel = {"name": match.group(2), "threads": threads.group(1) if threads else "1024", "arguments": [], "entries": [],
                  "seen": {}}
        for text in split_commas(source.code[match.end():end - 1]):
            parameter = parameter_of(source, match.start(), text)
            if parameter:
                argument, entry = describe(source, match.start(), kernel["name"], parameter)
                kernel["arguments"].append(argument)
                kernel["entries"] += [entry] if entry else []
                place = (parameter["attribute"], parameter["index"])
                if parameter["index"] and place in kernel["seen"]:
                    source.fault(match.start(), f"kernel {kernel['name']}: [[{place[0]}({place[1]})]] twice")
                kernel["seen"][place] = True
        kernels.append(kernel)
    for match in re.finditer(r"\bkernel\b", source.code):
        if not re.match(r"kernel\s+void\s+\w+\s*\(", source.code[match.start():]):
            source.fault(match.start(), "expected 'kernel void NAME(...)', attributes before it")
    return kernels, bodies


def rewrite(source: Source, bodies: list[tuple[int, int]]) -> tuple[str, list[tuple[str, str, str]]]:
    """The text for the compiler, and the function constants."""
    edits, constants = [], []
    for match in re.finditer(r"^[ \t]*#[ \t]*include[^\n]*", source.text, flags=re.M):
        edits.append((match.start(), match.end(), ""))
    for match in re.finditer(r"\[\[\s*threadgroup\s*\([^)]*\)\s*\]\]", source.code):
        edits.append((match.start(), match.end(), ""))  # the word is a macro
    shared = r"\bthreadgroup\s+([A-Za-z_][\w:]*(?:\s*<[^;<>]*>)?)\s+(\w+)\s*((?:\[[^\]\[]+\]\s*)*)([;=,])"
    for match in re.finditer(shared, source.code):
        inside = any(start < match.start() < end for start, end in bodies)
        if not inside:
            if "(" not in source.code[source.code.rfind("\n", 0, match.start()):match.start()] and match.group(4) == ";":
                source.fault(match.start(), f"'{match.group(2)}': threadgroup variables are declared in the body of a kernel")
            continue
        if match.group(4) != ";":
            source.fault(match.start(), f"'{match.group(2)}': expected 'threadgroup TYPE NAME[N];' alone, without a value")
            continue
        kind, name, dimensions = match.group(1), match.group(2), " ".join(match.group(3).split())
        whole = f"{kind}{dimensions}"
        edits.append((match.start(), match.end(),
                      f"threadgroup lily_metal::Itself<{kind}>::type (&{name}){dimensions} = lily_metal::shared<{whole}>(\"{name}\", {source.line_of(match.start())});"))
    for match in re.finditer(r"\bconstant\s+(\w+)\s+(\w+)\s*(\[\[\s*function_constant\s*\(\s*(\w+)\s*\)\s*\]\])\s*;", source.code):
        if match.group(1) not in CONSTANT_TYPES:
            source.fault(match.start(), f"function constant {match.group(2)}: expected bool, int, uint or float")
            continue
        edits.append((match.start(), match.end(), f"static {match.group(1)} {match.group(2)};"))
        constants.append((match.group(2), match.group(4), CONSTANT_TYPES[match.group(1)]))
    for match in re.finditer(r"\bfunction_constant\b", source.code):
        if not any(start < match.start() < end for start, end, _ in edits):
            source.fault(match.start(), "expected 'constant TYPE NAME [[function_constant(n)]];'")
    text = source.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + "\n" * text.count("\n", start, end) + text[end:]
    return text, constants


def uses_of(source: Source, kernels: list[dict], constants: list[tuple[str, str, str]]) -> dict[str, int]:
    """For each kernel a bit of each function constant that it, or a function it may call, names."""
    named: dict[str, set[str]] = {}
    for start, head in depth_zero(source.code):
        match = re.search(r"(\w+)\s*\(", re.sub(r"\[\[.*?\]\]", "", head))
        body = start + len(head)
        if source.code[body:body + 1] == "{" and (match or "struct" in head):
            name = match.group(1) if match else head.split()[-1]
            named.setdefault(name, set()).update(re.findall(r"\w+", source.code[body:closing(source.code, body)]))
        elif "constant" in head and "=" in head:  # a constant made of others
            before, _, value = head.partition("=")
            named.setdefault(before.split()[-1], set()).update(re.findall(r"\w+", value))
    bits = {}
    for kernel in kernels:
        seen, todo = set(), [kernel["name"]]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += named.get(name, ())
        bits[kernel["name"]] = sum(1 << i for i, (name, _, _) in enumerate(constants) if name in seen)
    return bits


def fnv(data: bytes) -> int:
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def table(kind: str, name: str, entries: list[str]) -> str:
    return f"const lily_metal::{kind} {name}[] = {{{', '.join(entries)}}};\n" if entries else ""


def write(source: Source, text: str, kernels: list[dict], constants: list[tuple[str, str, str]]) -> str:
    space = f"lily_kernels_{source.name}"
    out = f"""// Made by translate.py from {source.name}.metal. Do not edit.
#include "metal_stdlib.h"
#ifdef LILY_METAL_CHECKED
asm("memcpy = lily_metal_memcpy\\nmemset = lily_metal_memset\\nmemmove = lily_metal_memmove");
#endif
#ifdef LILY_METAL_CHECKED
#define LILY_MODULE lily_module_{source.name}_checked
#else
#define LILY_MODULE lily_module_{source.name}_fast
#endif
namespace {{
namespace {space} {{
using namespace metal;
#line 1 "{source.name}.metal"
{text}
"""
    out += "#ifndef LILY_METAL_TYPES_ONLY\n"
    rows = []
    uses = uses_of(source, kernels, constants)
    for kernel in kernels:
        name = kernel["name"]
        out += f"LILY_QUIET void lily_call_{name}(const lily_metal::Call& c) {{ (void)c; {name}({', '.join(kernel['arguments'])}); }}\n"
        out += table("Parameter", f"lily_parameters_{name}", kernel["entries"])
        rows.append(f'{{"{name}", lily_call_{name}, {f"lily_parameters_{name}" if kernel["entries"] else "nullptr"}, '
                    f'{len(kernel["entries"])}, {kernel["threads"]}, {uses[name]}u}}')
    out += table("Kernel", "lily_table", rows)
    out += table("Constant", "lily_constants", [f"{{\"{name}\", {index}, '{kind}', &{name}}}" for name, index, kind in constants])
    out += "#endif\n}\n}\n#ifndef LILY_METAL_TYPES_ONLY\n"
    out += f"""extern const lily_metal::Module LILY_MODULE;
#ifdef LILY_METAL_CHECKED
constexpr bool lily_checked = true;
#else
constexpr bool lily_checked = false;
#endif
const lily_metal::Module LILY_MODULE = {{"{source.name}", {fnv(source.whole.encode())}u, lily_checked,
  {f"{space}::lily_table" if kernels else "nullptr"}, {len(kernels)}, {f"{space}::lily_constants" if constants else "nullptr"}, {len(constants)}}};
#endif
"""
    return out


def main() -> int:
    name, path, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    source = Source(name, path.read_text())
    check_words(source)
    check_scope(source)
    check_pointers(source)
    kernels, bodies = kernels_of(source)
    text, constants = rewrite(source, bodies)
    if not kernels:
        source.faults.append(f"{name}.metal: no kernel")
    if source.faults:
        print("\n".join(source.faults), file=sys.stderr)
        return 1
    out.write_text(write(source, text, kernels, constants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
