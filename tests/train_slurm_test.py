#!/usr/bin/env python3
"""Tests which exit codes of a run make tools/train_slurm start the job again, with srun and scontrol that only tell.

usage: train_slurm_test.py
"""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "tools" / "train_slurm"


class TrainSlurm(unittest.TestCase):
    def restarts(self, code, restarts_before=0):
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "told"
            for name, line in {"srun": f"exit {code}", "scontrol": f'echo "$@" >{told}'}.items():
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\n{line}\n")
                program.chmod(0o755)
            environment = os.environ | {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": str(restarts_before),
            }
            self.assertEqual(subprocess.run([SCRIPT], env=environment).returncode, code)
            if told.exists():
                self.assertEqual(told.read_text(), "requeue 7\n")
            return told.exists()

    def test_what_a_new_start_mends(self):
        for code in (75, 137, 138, 143):
            self.assertTrue(self.restarts(code), code)

    def test_what_it_does_not_mend(self):
        for code in (0, 1, 2, 130, 134, 139, 255):
            self.assertFalse(self.restarts(code), code)

    def test_it_ends_at_last(self):
        self.assertTrue(self.restarts(75, 19))
        self.assertFalse(self.restarts(75, 20))


if __name__ == "__main__":
    unittest.main()
