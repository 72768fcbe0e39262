#!/usr/bin/env python3
"""Tests tools/plot.py with the output of a built warpwright. Skipped (77) without matplotlib.

    tests/plot_test.py WARPWRIGHT
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools/plot.py"
WARPWRIGHT = None


def run_tool(*words, stdin=""):
    return subprocess.run([sys.executable, TOOL, *map(str, words)], input=stdin, capture_output=True, text=True, check=False)


def report(*words):
    command = [WARPWRIGHT, "roofline", "--gpu", "h200", *map(str, words), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Plots(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "plot.svg"

    def text_of(self, done):
        """The text in the figure."""
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.out.read_text()

    def refused(self, done, *words):
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse(self.out.exists())

    def write_run(self, name, steps, **more):
        (self.folder / name).mkdir()
        lines = [json.dumps({"step": step, "loss": 10 / step, "lr": 1e-3, "norm": 1.0, "tokens_per_second": 5e4, **more})
                 for step in range(1, steps + 1)]
        (self.folder / name / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
        return self.folder / name

    def test_runs_stand_on_one_page(self):
        runs = [self.write_run("one", 100), self.write_run("two", 7, val_loss=3.0)]
        text = self.text_of(run_tool("run", *runs, "--out", self.out))
        for word in (str(runs[0]), str(runs[1]), "training loss", "validation loss", "learning rate", "gradient norm", "tokens/s"):
            self.assertIn(word, text)

    def test_the_same_figure_is_the_same_file(self):
        run = self.write_run("run", 5)
        first = self.text_of(run_tool("run", run, "--out", self.out))
        self.assertEqual(self.text_of(run_tool("run", run, "--out", self.out)), first)

    def test_bad_runs_are_named_in_a_line(self):
        self.refused(run_tool("run", self.folder / "nowhere", "--out", self.out), "nowhere")
        for content, word in (("", "no steps"), ("{}\n", "line 1"), ("[1]\n", "line 1"), ('{"step": 1}\n{"st', "line 2")):
            path = self.folder / "metrics.jsonl"
            path.write_text(content)
            self.refused(run_tool("run", path, "--out", self.out), "metrics.jsonl", word)
        self.refused(run_tool("run", self.write_run("run", 3), "--out", self.folder / "no/where.svg"), "where.svg")
        self.refused(run_tool("run", self.folder / "run", "--out", self.folder / "plot.txt"), "plot.txt")

    def test_a_roofline_has_roofs_and_what_was_measured(self):
        row = {"op": "norm.forward", "variant": "cuda.x", "problem": "N=65536 C=768 bf16", "dtype": "bf16", "median_seconds": 1e-4,
               "flops": 4e8, "bytes": 2e8}
        record = self.folder / "bench.json"
        record.write_text(json.dumps({"rows": [row]}))
        text = self.text_of(run_tool("roofline", "--out", self.out, stdin=report("--measured", record)))
        for word in ("H200: roofline, bf16", "device memory", "shared memory", "bf16 tensor cores", "norm.forward"):
            self.assertIn(word, text)

    def test_a_product_has_its_predictions(self):
        path = self.folder / "report.json"
        path.write_text(report("--m", 65536, "--n", 3072, "--k", 768))
        text = self.text_of(run_tool("roofline", path, "--out", self.out))
        for word in ("forward of 65536 × 3072 × 768", "stream_k, by the model"):
            self.assertIn(word, text)

    def test_a_map_has_rows_and_columns(self):
        text = self.text_of(run_tool("map", "--out", self.out, stdin=report("--op", "dw", "--k", 65536, "--map")))
        for word in ("the fastest schedule, bf16, depth 65536", "50,304", "stream_k"):
            self.assertIn(word, text)

    def test_a_timeline_has_groups_and_their_overlap(self):
        groups = [[{"products": 0, "epilogue": 100, "end": 110}], [{"products": 102, "epilogue": 200, "end": 210}]]
        timeline = {"product": "forward 128x192x64", "clocks_per_second": 2e9, "overlap": 0.4, "groups": groups}
        text = self.text_of(run_tool("timeline", "--out", self.out, stdin=json.dumps(timeline)))
        for word in ("forward 128x192x64: 40 % of the epilogues", "group 0", "group 1", "products", "epilogue", "0.1 µs"):
            self.assertIn(word, text)

    def test_the_figures_of_the_docs(self):
        done = run_tool("figures", "--warpwright", WARPWRIGHT, "--out", self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name, word in (("loss-curve", "difference from PyTorch"), ("speed-h200", "PyTorch = 100 %"), ("training-step", "saved for the backward"),
                           ("muon", "AdamW"), ("schedules-h200-3072", "stream_k"), ("schedules-h200-dw-65536", "stream_k"), ("roofline-h200-step", "adamw")):
            self.assertIn(word, (self.folder / f"{name}.svg").read_text())
            self.assertTrue((TOOL.parent.parent / f"docs/figures/{name}.svg").is_file())
        self.assertNotIn("muon", (self.folder / "roofline-h200-step.svg").read_text())

    def test_bad_reports_are_named_in_a_line(self):
        self.refused(run_tool("roofline", "--out", self.out, stdin="no JSON"), "-: ")
        self.refused(run_tool("roofline", "--out", self.out, stdin="{}"), "is not a report")
        self.refused(run_tool("map", "--out", self.out, stdin=report()), "--map")
        for content in ("{}", "[]", '{"groups": [[]], "clocks_per_second": 1, "overlap": 0}', '{"groups": [[{"products": 1}]]}'):
            self.refused(run_tool("timeline", "--out", self.out, stdin=content), "is not a timeline")


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("plot: Skipped\nneeds matplotlib")
        sys.exit(77)
    WARPWRIGHT = sys.argv.pop()
    unittest.main()
