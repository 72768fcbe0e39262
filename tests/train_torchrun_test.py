#!/usr/bin/env python3
"""Tests after which exit codes of a rank tools/train_torchrun starts the ranks again, with programs in the place of torchrun
and warpwright: as torchrun does, the first starts two ranks again after every code but 0.

usage: train_torchrun_test.py
"""

import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "tools" / "train_torchrun"

TORCHRUN = """
while [ "$1" != --no-python ]; do shift; done
shift
for start in 1 2 3 4; do
  failed=0
  for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank "$@" || failed=1; done
  [ $failed = 0 ] && exit 0
done
exit 1
"""
# Each rank takes the next of its codes, and the last one again.
WARPWRIGHT = """
echo "$@" >>"$TOLD/$RANK"
start=$(wc -l <"$TOLD/$RANK")
set -- $CODES
[ "$start" -lt $# ] && shift $((start - 1)) || shift $(($# - 1))
exit "$1"
"""


class TrainTorchrun(unittest.TestCase):
    def run_with(self, codes):
        """The exit code of the script, and how often each rank was started."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"torchrun": TORCHRUN, "warpwright": WARPWRIGHT}.items():
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\n{text}")
                program.chmod(0o755)
            environment = os.environ | {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "CUDA_VISIBLE_DEVICES": "0,1",
                "TMPDIR": folder,
                "TOLD": folder,
                "CODES": codes,
            }
            code = subprocess.run([SCRIPT, "--", "--out", "a run"], env=environment).returncode
            self.assertEqual(list(Path(folder).glob("tmp.*")), [])
            starts = {len((Path(folder) / rank).read_text().splitlines()) for rank in "01"}
            self.assertEqual((Path(folder) / "0").read_text().splitlines()[0], "train --device cuda --resume --out a run")
            return code, starts

    def test_what_a_new_start_mends(self):
        for code in (75, 137, 138, 143):
            self.assertEqual(self.run_with(f"{code} {code} 0"), (0, {3}), code)

    def test_what_it_does_not_mend(self):
        for code in (0, 1, 2, 130, 134, 139, 255):
            self.assertEqual(self.run_with(f"{code}"), (code, {1}), code)

    def test_an_error_after_a_new_start(self):
        self.assertEqual(self.run_with("75 2"), (2, {2}))

    def test_a_signal_reaches_torchrun(self):
        with tempfile.TemporaryDirectory() as folder:
            program, ready = Path(folder) / "torchrun", Path(folder) / "ready"
            program.write_text(f"#!/bin/sh\ntrap 'exit 7' TERM\ntouch {ready}\nwhile :; do sleep 0.1; done\n")
            program.chmod(0o755)
            environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"}
            script = subprocess.Popen([SCRIPT, "--"], env=environment)
            while not ready.exists() and script.poll() is None:
                time.sleep(0.05)
            script.terminate()
            self.assertEqual(script.wait(timeout=30), 7)

    def test_it_ends_at_last(self):
        self.assertEqual(self.run_with("75"), (1, {4}))


if __name__ == "__main__":
    unittest.main()
