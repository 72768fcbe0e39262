"""Writes the tables of src/text that scripts make."""

import pathlib
import sys


def write(name, source, lines):
    """Writes src/text/NAME: where it comes from ("Unicode 16.0. Sorted."), then the lines as they are."""
    text = f"// Made by tools/{pathlib.Path(sys.argv[0]).name} from {source}\n"
    text += "// clang-format off\n" + "\n".join(lines) + "\n// clang-format on\n"
    path = pathlib.Path(__file__).resolve().parent.parent / name
    path.write_text(text, encoding="ascii")
    print(f"{path}: {len(lines)} lines")
