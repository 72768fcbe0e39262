#!/usr/bin/env python3
"""Runs Apex's own unit tests of its normalization modules on this package: python/tests/run_apex.py APEX [pytest's options]

APEX is a checkout of https://github.com/NVIDIA/apex. One import in its test file is replaced. Without a GPU the device is
replaced as well. The tests then compare this package's results in the tested dtype with its own in fp32 and with PyTorch's
LayerNorm, and torch.compile with eager mode.

Needs torch, pytest and expecttest, onnxscript for the two tests of export, and the package: installed, or in PYTHONPATH
with WARPWRIGHT_LIBRARY.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

TEST = "tests/L0/run_fused_layer_norm/test_fused_layer_norm.py"


def for_cpu(text):
    for old, new in (
        ('device="cuda"', 'device="cpu"'),
        (".cuda()", ""),
        ("torch.cuda.manual_seed(42)", "None"),  # does not seed the CPU
        ('autocast("cuda"', 'autocast("cpu"'),
        ('only_for=("cuda",)', 'only_for=("cpu",)'),
        (" if torch.cuda.is_bf16_supported() else (torch.half,)", ""),
        ("        self.assertTrue(out_cuda_.is_cuda)\n", ""),
    ):
        if old not in text:
            raise SystemExit(f"{TEST} has changed: it no longer contains {old}")
        text = text.replace(old, new)
    return text


def main():
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / TEST).is_file():
        raise SystemExit(__doc__)
    text = (Path(sys.argv[1]) / TEST).read_text()
    text, exchanged = re.subn(r"^from apex\.normalization import", "from warpwright.normalization import", text, flags=re.M)
    if exchanged == 0:
        raise SystemExit(f"{TEST} has changed: it does not import apex.normalization")
    if not torch.cuda.is_available():
        text = for_cpu(text)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "test_apex.py"
        copy.write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no", str(copy)]
        raise SystemExit(subprocess.run([*command, *sys.argv[2:]]).returncode)


if __name__ == "__main__":
    main()
