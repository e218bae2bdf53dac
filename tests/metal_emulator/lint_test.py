#!/usr/bin/env python3
"""What is outside of the subset of docs/METAL.md is refused, by translate.py or by the compiler, and what is inside is not.

Usage: lint_test.py CLANG        one line per sentence that was judged wrongly; exit status 1 if there is one.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++14", "-Wall", "-Werror", "-Wvla", "-Wno-unknown-attributes", "-Wno-unused-function", "-Wno-unused-variable",
         "-Wno-unused-const-variable", "-fno-exceptions", "-fno-rtti", f"-I{HERE / 'shim'}", "-fsyntax-only"]
TYPES = ["-DLILY_METAL_TYPES_ONLY", "-target", "x86_64-linux-gnu", "-mavx512fp16", "-fno-lax-vector-conversions"]
HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
TAIL = """
kernel void k(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], constant uint& n [[buffer(2)]],
              uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = x[i];
  %s
}
"""
# At namespace scope, in the body, and what the refusal must name ("" = it must pass).
CASES = [
    ("", "y[i] = 1.0f;", ""),
    ("inline float f(device const float* p, uint i) { return p[i]; }", "y[i] = f(x, i);", ""),
    ("inline float f(threadgroup const float* p, uint i) { return p[i]; }", "y[i] = f(tile, i);", ""),
    ("template <class P> inline float f(P p, uint i) { return p[i]; }", "y[i] = f(tile, i) + f(x, i);", ""),
    ("struct S { uint a; float b[2]; };", "device const S* s = (device const S*)x; y[i] = s[i].b[1];", ""),
    ("constant constexpr uint kN = 4; constant float kT[kN] = {1.0f, 2.0f, 3.0f, 4.0f};", "y[i] = kT[i % kN];", ""),
    ("", "const uint4 w = ((device const uint4*)x)[i]; y[i] = as_type<float>(w.y);", ""),
    ("", "threadgroup float4 wide[64]; wide[i] = float4(1.0f); y[i] = wide[i].x;", ""),
    # Address spaces.
    ("inline float f(device const float* p) { return p[0]; }", "y[i] = f(tile);", "no matching function"),
    ("inline float f(threadgroup const float* p) { return p[0]; }", "y[i] = f(x);", "no matching function"),
    ("inline float f(thread const float* p) { return p[0]; }", "y[i] = f(x);", "no matching function"),
    ("", "thread float* p = tile; y[i] = p[0];", "cannot initialize"),
    ("", "float a[2]; float* p = a; p[0] = 1.0f;", "has no address space"),
    ("inline float f(float& v) { return v; }", "float v = f(v);", "has no address space"),
    ("inline void f(simdgroup_matrix<float, 8, 8>& m) {}", "", "has no address space"),
    ("struct S { uint a; }; inline uint f(const S& s) { return s.a; }", "", "has no address space"),
    ("template <class T> inline void f(T* p) {}", "", "has no address space"),
    ("inline float f(thread float& v) { return v; }", "y[i] = f(y[i]);", "no matching function"),
    ("", "y = nullptr; constant uint* p = &n; device const uint* q = p;", "cannot initialize"),
    ("", "n = 3u;", "const"),
    # What C++ has and Metal does not.
    ("", "double d = 1.0f; y[i] = float(d);", "'double'"),
    ("", "y[i] = 1.5 * x[i];", "write the suffix f"),
    ("", "y[i] = 1e-3 * x[i];", "write the suffix f"),
    ("", "y[i] = std::sqrt(x[i]);", "std"),
    ("", "auto f = [&](float v) { return v; }; y[i] = f(1.0f);", "a lambda"),
    ("", "static float s = 0.0f; y[i] = s;", "static"),
    ("", "goto end; end: y[i] = 1.0f;", "goto"),
    ("", "float* p = new float[2];", "new"),
    ("", "try { y[i] = 1.0f; } catch (...) {}", "try"),
    ("", "asm(\"nop\");", "asm"),
    ("", "y[i] = __builtin_sqrtf(x[i]);", "__builtin_sqrtf"),
    ("", "if constexpr (true) { y[i] = 1.0f; }", "C++17"),
    ("struct S { virtual void f() {} };", "", "virtual"),
    ("inline uint f(uint n) { return n == 0 ? 0u : f(n - 1); }", "y[i] = float(f(i));", "calls itself"),
    ("float global = 1.0f;", "", "not constant"),
    ("constexpr uint kN = 4;", "", "not constant"),
    ("threadgroup float outside[4];", "", "in the body of a kernel"),
    ("inline void f() { threadgroup float inside[4]; }", "", "qualified with an address space|in the body of a kernel"),
    ("", "threadgroup float a[4], b[4];", "alone, without a value"),
    ("#include <cmath>", "", "<cmath>"),
    ("constant double kD [[function_constant(0)]];", "", "expected bool, int, uint or float"),
    ("constant uint kN [[function_constant(0)]];", "float a[kN]; y[i] = a[0];", "variable length array"),
    ("struct S { device float* p [[id(0)]]; };", "", "[[id]]"),
    ("template <class T> kernel void t(device T* p [[buffer(0)]]) {}", "", "a kernel is no template"),
    ("kernel void two(device float* a [[buffer(0)]], device float* b [[buffer(0)]]) {}", "", "twice"),
    ("kernel void bare(device float* a) {}", "", "expected 'TYPE NAME [[attribute]]'"),
    ("kernel void texture(texture2d<float> t [[texture(0)]]) {}", "", "texture"),
    ("", "simdgroup_float8x8 m; y[i] = m.thread_elements()[0];", "thread_elements"),
    ("", "simdgroup_half8x8 m; simdgroup_load(m, x, 8);", "a matrix of the memory's type"),
    ("", "y[i] = quad_sum(x[i]);", "quad_sum"),
    ("", "float4 v = half4(x[i]); y[i] = v.x;", "half4"),
    ("", "y[i] = max(x[i], 0);", "call to 'max' is ambiguous|no matching function|conversion"),
    ("", "bfloat b = x[i]; y[i] = float(b);", "bfloat"),
    ("", "y[i] = float(as_type<half>(i));", "one size"),
    ("", "threadgroup_barrier(mem_flags::mem_texture);", "mem_texture"),
    ("", "y[i] = float2(1.0f, 2.0f, 3.0f).x;", "as many elements"),
]


def judge(clang: str, folder: Path, scope: str, body: str) -> str:
    """What is said against the kernel; nothing if all is well."""
    text, out = folder / "case.metal", folder / "case.cpp"
    text.write_text(HEAD + scope + TAIL % body)
    done = subprocess.run([sys.executable, str(HERE / "translate.py"), "case", str(text), str(out)], capture_output=True, text=True)
    if done.returncode:
        return done.stderr
    for more in ([], TYPES):
        done = subprocess.run([clang, *FLAGS, *more, str(out)], capture_output=True, text=True)
        if done.returncode:
            return done.stderr
    return ""


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for scope, body, expected in CASES:
            said = judge(sys.argv[1], Path(folder), scope, body)
            right = not said if not expected else any(part in said for part in expected.split("|"))
            if not right:
                wrong += 1
                print(f"{scope or body}: expected {expected or 'no complaint'}, found {said.strip() or 'no complaint'}")
    print(f"{len(CASES)} cases, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
