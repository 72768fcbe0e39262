#!/usr/bin/env python3
"""Counts the places that name a variant: its kernel's object in one file and its name in one line of variants.cpp. The
operation's other sources, CMake's files and the registry must not name it.

    tests/variants_test.py
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = ROOT / "src/ops"
INL_ISAS = ["avx2", "avx512"]  # CMake compiles an .inl for each of these


def lists_of(path):
    """{arguments: names} of a variants.cpp."""
    text = path.read_text()
    names = {name: re.findall(r'"([^"]+)"', body)
             for name, body in re.findall(r"constexpr std::string_view (k\w+)\[\] = \{(.*?)\};", text, re.S)}
    return {arguments: names[name] for arguments, name in re.findall(r"operation<(\w+), (k\w+)>", text)}


def objects_of(folder):
    """{(arguments, name): files} of the kernels' objects. An .inl makes one object for each instruction set."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in {".cpp", ".cu", ".inl"}:
            continue
        text = path.read_text()
        for arguments, name in re.findall(r'WARPWRIGHT_KERNEL\((\w+),\s*"([^"]+)"_kernel\)', text):
            found.setdefault((arguments, name), []).append(path)
        for arguments, ending in re.findall(r'WARPWRIGHT_KERNEL\((\w+),\s*kCpu(?: \+ "([^"]+)")?\)', text):
            isas = INL_ISAS if path.suffix == ".inl" else [path.suffixes[-2][1:]]
            for isa in isas:
                found.setdefault((arguments, f"cpu.{isa}{ending}"), []).append(path)
    return found


class Variants(unittest.TestCase):
    def test_one_file_and_one_line(self):
        counted = 0
        for variants in sorted(OPS.glob("*/variants.cpp")):
            objects = objects_of(variants.parent)
            for arguments, names in lists_of(variants).items():
                self.assertEqual(len(names), len(set(names)), f"{variants}: a name appears twice")
                for name in names:
                    files = objects.get((arguments, name), [])
                    self.assertEqual(len(files), 1, f"{variants.parent.name}: {arguments} {name} is in {[str(f) for f in files]}")
                    counted += 1
        self.assertGreater(counted, 100)

    def test_no_kernel_is_left_out(self):
        for variants in OPS.glob("*/variants.cpp"):
            listed, made = lists_of(variants), {}
            for (arguments, name), (path, *_) in objects_of(variants.parent).items():
                made.setdefault((arguments, path), []).append(name)
            for (arguments, path), names in made.items():
                self.assertTrue(set(names) & set(listed[arguments]), f"{path} makes {names}, which are in no list")

    def test_nothing_else_knows_their_names(self):
        names = {name for variants in OPS.glob("*/variants.cpp") for names in lists_of(variants).values() for name in names}
        names -= {"reference"}
        shared = [ROOT / "CMakeLists.txt", OPS / "CMakeLists.txt", OPS / "registry.cpp", OPS / "op.cpp", *(ROOT / "cmake").glob("*")]
        for path in shared:
            quoted = set(re.findall(r'"((?:cpu|cuda)\.\w+)"', path.read_text()))
            self.assertFalse(quoted & names, f"{path} names a variant")


if __name__ == "__main__":
    unittest.main()
