#!/usr/bin/env python3
"""Counts the files and lines that make a variant.

A kernel is one WARPWRIGHT_KERNEL object for one direction of an operation (the object's argument type). An .inl makes an
object for each instruction set that CMake compiles it for. For every object of src/ the test requires
 - one file that defines it, in a folder that CMake searches;
 - one line of one variants.cpp that lists its name for its direction;
 - no other string literal of src/ and no CMake file that has its name, and no CMake file that has its file's name. Tests and
   benches may name it, and so may the places in NAMED_ELSEWHERE and BUILT_BY_NAME, for the reasons given there.
Names that the code puts together from parts are not found, and comments are not read.

    tests/variants_test.py
"""
import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INL_ISAS = ["avx2", "avx512"]  # CMake compiles an .inl for each of these
NAMED_ELSEWHERE = {  # a file, the names in it that are neither its kernel's nor in its lists, and the reason
    "src/cli/program.cpp": (["cpu.avx2"], "--help has an example of WARPWRIGHT_FORCE"),
    "src/ops/testing/check.cpp": (["cpu.avx2", "cpu.avx_vnni", "cpu.avx512", "cpu.avx512_bf16", "cpu.avx512_vnni", "cpu.amx_bf16",
                                   "cpu.amx_int8"], "what the device of a test lacks"),
    "src/ops/matmul/packed.cpp": (["cpu.avx2", "cpu.avx512", "cpu.avx512_bf16", "cpu.amx_bf16"], "kernels with a layout for weights"),
    "src/ops/variants.hpp": (["cpu.onednn"], "left out of a build without oneDNN"),
    "src/ops/matmul/variants.cpp": (["cuda.persistent", "cuda.stream_k", "cuda.block"],
                                    "kCountRows: their forward reads the number of rows on the device"),
    "src/ops/matmul/cuda/plain_passes.hpp": (["cuda.plain"], "a product's bias, GELU and residual by other operations' kernels"),
    "src/ops/matmul/cuda/ladder/library.cpp": (["cuda.cublaslt", "cuda.cublaslt_unfused", "cuda.ladder_coshf"],
                                               "a product by the library, then llm.c's own kernels"),
    "src/ops/matmul/measured.cpp": (["cuda.cublaslt"], "reads and writes the library's configurations in a measured table"),
    "src/ops/attention/cuda/ladder/batched.cpp": (["cuda.staged"], "an error's remedy"),
    "src/ops/norm/cuda/forward_kernel.cuh": (["cuda.warp_row", "cuda.block_row"], "launches both kernels: labels for errors"),
    "src/ops/norm/cuda/backward_kernel.cuh": (["cuda.warp_row", "cuda.block_row", "cuda.cluster_row"],
                                              "launches the three kernels: labels for errors"),
}
BUILT_BY_NAME = {"onednn.cpp"}  # built only with oneDNN


def code_of(path):
    """A source without its comments; a CMake file as it is."""
    text = path.read_text()
    if path.suffix in {".txt", ".cmake"}:
        return text
    return re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or " ", text, flags=re.S)


SOURCES = {path.relative_to(ROOT).as_posix(): code_of(path) for path in sorted((ROOT / "src").rglob("*"))
           if path.suffix in {".cpp", ".hpp", ".cu", ".cuh", ".inl", ".inc"} and not path.stem.endswith(("_test", "_bench"))}
CMAKE = {path.relative_to(ROOT).as_posix(): code_of(path)
         for path in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), *(ROOT / "src").rglob("CMakeLists.txt")]}
SEARCHED = re.compile(r"src/ops/\w+/(\w+\.cpp|cpu/\w+\.(inl|\w+\.cpp)|cuda/(ladder/)?\w+\.(cu|cpp))")


def objects():
    """{(arguments, name): files that define it}, and the number of WARPWRIGHT_KERNEL that were read."""
    found, read = collections.defaultdict(list), 0
    for path, text in SOURCES.items():
        for arguments, kind, ending, name in re.findall(
                r'WARPWRIGHT_KERNEL\((\w+),\s*(?:(kCpu)(?:\s*\+\s*"(\w+)")?|"([^"]+)"_kernel)\)', text):
            read += 1
            isas = INL_ISAS if path.endswith(".inl") else [path.split(".")[-2]]
            for key in [f"cpu.{isa}{ending}" for isa in isas] if kind else [name]:
                found[arguments, key].append(path)
    return found, read


def lists():
    """{(arguments, name): [variants.cpp:line of each mention in the list of this direction]}"""
    found = collections.defaultdict(list)
    for path, text in SOURCES.items():
        if not path.endswith("/variants.cpp"):
            continue
        for arguments, constant in re.findall(r"operation<(\w+), (k\w+)>", text):
            for body in re.finditer(rf"string_view {constant}\[\] = \{{(.*?)\}};", text, re.S):
                for name in re.finditer(r'"([^"]+)"', body[1]):
                    line = text.count("\n", 0, body.start(1) + name.start()) + 1
                    found[arguments, name[1]].append(f"{path}:{line}")
    return found


class Variants(unittest.TestCase):
    def test_every_object_is_read(self):
        written = sum(text.count("WARPWRIGHT_KERNEL(") for text in SOURCES.values()) - 1  # kernel.hpp defines the macro
        self.assertEqual(objects()[1], written, "a WARPWRIGHT_KERNEL is written in a form that this test does not read")
        self.assertGreater(written, 100)

    def test_one_file_defines_it(self):
        for (arguments, name), files in objects()[0].items():
            self.assertEqual(len(files), 1, f"{arguments} {name} is defined in {files}")
            # oneDNN's folder is not searched, because it is built only if oneDNN is there.
            if pathlib.Path(files[0]).name not in BUILT_BY_NAME:
                self.assertRegex(files[0], SEARCHED, f"CMake does not build {arguments} {name}")

    def test_one_line_lists_it(self):
        listed, made = lists(), objects()[0]
        for (arguments, name), files in made.items():
            lines = listed.get((arguments, name), [])
            self.assertEqual(len(lines), 1, f"{arguments} {name} of {files[0]} is listed at {lines}")
        for (arguments, name), lines in listed.items():
            self.assertIn((arguments, name), made, f"no file defines {arguments} {name}, which is listed at {lines}")

    def test_nothing_else_names_it(self):
        made, listed = objects()[0], lists()
        names = {name for _, name in made} - {"reference"}
        allowed = collections.Counter()  # mentions in a list
        own = {(path, name) for (_, name), files in made.items() for path in files}
        for (_, name), lines in listed.items():
            allowed.update((line.split(":")[0], name) for line in lines)
        elsewhere = collections.defaultdict(list)
        for path, text in {**SOURCES, **CMAKE}.items():
            mentions = collections.Counter(name for literal in re.findall(r'"((?:\\.|[^"\\\n])*)"', text)
                                           for name in re.findall(r"(?<![\w.])(?:cpu|cuda)\.\w+", literal) if name in names)
            for name, count in mentions.items():
                if (path, name) not in own and count > allowed[path, name]:
                    elsewhere[path].append(name)
        self.maxDiff = None
        self.assertEqual({path: sorted(found) for path, found in elsewhere.items()},
                         {path: sorted(found) for path, (found, _) in NAMED_ELSEWHERE.items()})

    def test_cmake_finds_its_file(self):
        files = {pathlib.Path(path).name for paths in objects()[0].values() for path in paths} - {"reference.cpp"}
        for path, text in CMAKE.items():
            named = {name for name in files if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)}
            self.assertLessEqual(named, BUILT_BY_NAME, f"{path} names a kernel's file")


if __name__ == "__main__":
    unittest.main()
