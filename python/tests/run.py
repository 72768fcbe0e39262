#!/usr/bin/env python3
"""Runs the package's tests with a given library:

    python/tests/run.py --library libwarpwright.so [--program warpwright] [pytest's options]

Tests that compare with the program need it. Exits with 77 and a reason if PyTorch or pytest is missing.
"""

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SKIPPED = 77  # the exit status that ctest takes for a skipped test

parser = argparse.ArgumentParser()
parser.add_argument("--library", dest="shared_library", required=True)
parser.add_argument("--program")
arguments, rest = parser.parse_known_args()
for name in ("torch", "pytest"):
    if find_spec(name) is None:
        print(f"python: Skipped\nneeds the Python package {name}")
        sys.exit(SKIPPED)

package = Path(__file__).resolve().parents[1]
path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
environment = {**os.environ, "PYTHONPATH": path, "WARPWRIGHT_LIBRARY": str(Path(arguments.shared_library).resolve())}
if arguments.program:
    environment["WARPWRIGHT_PROGRAM"] = str(Path(arguments.program).resolve())
command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(package / "pyproject.toml")]
sys.exit(subprocess.run([*command, str(package / "tests"), *rest], env=environment).returncode)
