#!/usr/bin/env python3
"""A file of kernels in CUDA C++ as C++ for the emulated grid: shared memory and launches in angle brackets.

Usage: translate.py FROM TO
"""
import re
import sys

text = open(sys.argv[1]).read()
text = text.replace("extern __shared__ __align__(128) uint8_t shared[];", "uint8_t* const shared = dynamic_shared();")
text = re.sub(r"__shared__ (\w+) (\w+)((?:\[\w+\])+);", r"auto& \2 = emulator::static_shared<\1\3>(__LINE__);", text)
text = re.sub(r"__shared__ (\w+) (\w+);", r"auto& \2 = emulator::static_shared<\1>(__LINE__);", text)
text = re.sub(r"(\w+)<<<([^,]+), ([^,]+), 0, queue>>>\((.*?)\);",
              r"emulator::Grid({.blocks = \2, .threads = \3, .shared_bytes = 0}).run([&] { \1(\4); });", text, flags=re.S)
left = re.search(r"__shared__|<<<", text)
if left:
    sys.exit(f"{sys.argv[1]}: cannot translate: {text[left.start():left.start() + 80]}")
open(sys.argv[2], "w").write(f'#line 1 "{sys.argv[1]}"\n' + text)
