#!/usr/bin/env python3
"""The rules of the house, checked over the source tree: who may include whom, sizes, and what libraries may not do.

Usage: check.py ROOT        exit status 1 and one line per fault.
"""
import re
import sys
from pathlib import Path

HEADER_LINES, SOURCE_LINES, KERNEL_LINES, FUNCTION_LINES, PARAMETERS = 300, 600, 900, 80, 6
# Folder of src/ -> layer of cmake/layers.cmake.
FOLDERS = {
    "base": "base", "model": "model", "sampling": "sampling", "weights": "weights", "text": "text",
    "backend": "backend", "reference": "reference", "backends/cpu": "cpu", "backends/host": "host", "backends/cuda": "cuda",
    "backends/metal": "metal", "backends/absent": "absent", "backends": "registry", "engine": "engine",
    "server": "server",
}
# The page at / is made of nodes: nothing in it may turn text into HTML or code.
PAGE_FORBIDDEN = r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|eval\(|new Function)"
FORBIDDEN = {
    r"\b(std::)?(getenv|secure_getenv|setenv)\s*\(": "environment variables are read in apps/ only",
    r"\bstd::(cout|cerr|clog)\b|(?<![\w:])f?printf\s*\(|\bfmt::print\s*\(|(?<![\w])std(out|err)\b":
        "libraries write to no stream: return an Error or log",
    r"(?<![\w.>])(std::)?(exit|_exit|quick_exit|abort|terminate)\s*\(": "libraries do not end the process",
}


def arrows(root: Path) -> dict[str, set[str]]:
    table = {}
    for name, targets in re.findall(r'set\(LILY_ARROWS_(\w+) ?([^)]*)\)', (root / "cmake/layers.cmake").read_text()):
        table[name] = set(targets.replace('"', "").split())
    return table


def layer_of(path: str) -> str | None:
    """The layer of a path relative to src/, by its longest known folder."""
    folder = path.rpartition("/")[0]
    while folder:
        if folder in FOLDERS:
            return FOLDERS[folder]
        folder = folder.rpartition("/")[0]
    return None


def strip(text: str) -> str:
    """The text with comments and string contents blanked, line by line the same."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''

    def blank(match: re.Match) -> str:
        found = match.group(0)
        if found.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", found)
        return '"' + re.sub(r"[^\n]", " ", found[1:-1]) + '"'

    return re.sub(pattern, blank, text, flags=re.S)


def functions(code: str):
    """Yields (line, signature, length) of every function body that starts with ') ... {' outside of expressions."""
    for match in re.finditer(r"\)\s*(?:const|noexcept|override|final|mutable|->\s*[\w:<>,&\s*]+?|\s)*\{", code):
        depth, end = 1, match.end()
        while end < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        paren, start = 0, match.start()
        while start >= 0:
            paren += {")": 1, "(": -1}.get(code[start], 0)
            if paren == 0:
                break
            start -= 1
        before = code[:start].rstrip()
        name = re.search(r"([\w~:]+|\])$", before)
        if not name or name.group(1) in {"if", "for", "while", "switch", "catch", "constexpr", "noexcept", "requires"}:
            continue
        yield code.count("\n", 0, start) + 1, name.group(1), code[start + 1:match.start()], code.count(
            "\n", match.start(), end) + 1


def count_parameters(text: str) -> int:
    depth, count = 0, 1 if text.strip() not in ("", "void") else 0
    for character in text:
        depth += {"(": 1, "<": 1, "{": 1, "[": 1, ")": -1, ">": -1, "}": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            count += 1
    return count


def check_file(root: Path, path: Path, table: dict[str, set[str]]) -> list[str]:
    faults = []
    relative = path.relative_to(root).as_posix()
    text = path.read_text()
    code = strip(text)
    lines = text.count("\n")
    kernel = "/isa/" in relative or path.suffix in {".cu", ".metal"}
    budget = KERNEL_LINES if kernel else HEADER_LINES if path.suffix == ".h" else SOURCE_LINES
    if lines > budget:
        faults.append(f"{relative}: {lines} lines, budget {budget}")
    # The parameters of a Metal kernel are what is bound to it.
    bound = set(re.findall(r"\bkernel\s+void\s+(\w+)", code)) if path.suffix == ".metal" else set()
    for line, name, parameters, length in functions(code):
        if length > FUNCTION_LINES:
            faults.append(f"{relative}:{line}: {name} has {length} lines, budget {FUNCTION_LINES}")
        if name != "]" and name not in bound and count_parameters(parameters) > PARAMETERS:
            faults.append(f"{relative}:{line}: {name} has {count_parameters(parameters)} parameters, budget {PARAMETERS}")
    if relative.startswith("src/"):
        faults += check_library(relative, code, text, table)
    return faults


def check_library(relative: str, code: str, text: str, table: dict[str, set[str]]) -> list[str]:
    faults = []
    layer = layer_of(relative.removeprefix("src/"))
    if layer is None or layer not in table:
        return [f"{relative}: belongs to no layer of cmake/layers.cmake"]
    for number, line in enumerate(text.splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not include:
            continue
        target = layer_of(include.group(1))
        if target is None:
            faults.append(f'{relative}:{number}: include "{include.group(1)}" by its path from src/')
        elif target != layer and target not in table[layer]:
            faults.append(f"{relative}:{number}: {layer} may not include {target} ({include.group(1)})")
    for pattern, reason in FORBIDDEN.items():
        for match in re.finditer(pattern, code):
            faults.append(f"{relative}:{code.count(chr(10), 0, match.start()) + 1}: {match.group(0).strip()}: {reason}")
    return faults


def check_page(root: Path, path: Path) -> list[str]:
    relative = path.relative_to(root).as_posix()
    text = path.read_text()
    faults = [f"{relative}:{text.count(chr(10), 0, found.start()) + 1}: {found.group(0)}: the page builds nodes, not HTML"
              for found in re.finditer(PAGE_FORBIDDEN, text)]
    if (lines := text.count("\n")) > SOURCE_LINES:
        faults.append(f"{relative}: {lines} lines, budget {SOURCE_LINES}")
    return faults


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    table = arrows(root)
    files = [path for folder in ("src", "apps") for path in sorted((root / folder).rglob("*"))
             if path.suffix in {".h", ".cpp", ".cu", ".metal", ".mm"}]
    page = sorted((root / "src/server/page").iterdir())
    faults = [fault for path in files for fault in check_file(root, path, table)]
    faults += [fault for path in page for fault in check_page(root, path)]
    print("\n".join(faults) if faults else f"{len(files) + len(page)} files keep the rules")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
