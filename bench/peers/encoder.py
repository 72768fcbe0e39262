#!/usr/bin/env python3
"""Times an encoder's embeddings on the CPU next to PyTorch, ONNX Runtime and OpenVINO, in one run.

    python3 bench/peers/encoder.py --warpwright build/release/warpwright --model FOLDER [--texts 500] [--threads 2]
        [--rounds 3] [--int8] [--run-with "chrt -f 50"] [--json]

FOLDER is all-MiniLM-L6-v2 or another BERT in Hugging Face's format. Texts are random ids of mixed length: log-normal with a
median of 50 tokens, limited to 3 … 512. Every program sorts them by length. The rivals then pad batches of several sizes.
Each size has its own row, and the rivals' best row counts. ONNX Runtime runs PyTorch's export in fp32 with all
optimizations: TorchScript's export, because it fuses that one's attention, but not dynamo's. PyTorch runs in fp32 and bf16,
and with --compile also compiled with dynamic shapes. All end in mean pooling and normalization. The programs take turns,
round by round. A figure is the fastest round's, which other programs on the machine disturb least. Needs torch,
transformers, onnxruntime and onnx.

--int8 adds ours in int8 and these rows:

- ONNX Runtime int8: the graph that onnxruntime.transformers.optimizer fuses, then quantize_dynamic with a scale per column.
  Activations are quantized while it runs. --onnx-weights uint8 makes the weights unsigned.
- OpenVINO int8: NNCF's post-training quantization for transformers (it includes SmoothQuant), calibrated on 300 other texts of
  the same lengths.
- OpenVINO in fp32 or bf16: the precision that it picks by itself on this machine. The row has its name.

OpenVINO runs one batch at a time on all threads, and also as many batches at once as there are threads. It has a row for
single texts, too, which need no padding. Needs openvino and nncf.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

BATCHES, COMPILED_BATCHES, INT8_BATCHES = (2, 4, 8, 16, 32), (4, 8), (1, 2, 4, 8, 16)


def make_texts(count, vocab, seed=1):
    generator = random.Random(seed)
    lengths = [min(512, max(3, int(generator.lognormvariate(3.9, 0.9)))) for _ in range(count)]
    lengths.sort(reverse=True)
    return [[generator.randrange(1, vocab) for _ in range(length)] for length in lengths]


class Ours:
    def __init__(self, args, lengths, dtype):
        self.args, self.lengths, self.dtype = args, lengths, dtype

    def run(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(map(str, self.lengths)))
            file.flush()
            command = self.args.run_with.split() + [self.args.warpwright, "bench", "encoder", "--model", self.args.model]
            command += ["--lengths", "@" + file.name, "--batch-tokens", str(self.args.batch_tokens), "--rounds", "1"]
            command += ["--dtype", self.dtype, "--threads", str(self.args.threads), "--json"]
            result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        assert result["wasted_tokens"] == 0
        return result["ms_min"] / 1e3


def padded(texts, size, numpy):
    for first in range(0, len(texts), size):
        batch = texts[first:first + size]
        ids = numpy.zeros((len(batch), len(batch[0])), numpy.int64)
        mask = numpy.zeros_like(ids)
        for row, text in enumerate(batch):
            ids[row, :len(text)], mask[row, :len(text)] = text, 1
        yield ids, mask


def embedder(torch, model):
    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            hidden = self.model(input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids)).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)

    return Embedder().eval()


class Torch:
    def __init__(self, args, texts, size, dtype, compiled=False):
        import numpy
        import torch
        from transformers import AutoModel
        torch.set_num_threads(args.threads)
        model = AutoModel.from_pretrained(args.model, attn_implementation="sdpa", dtype=getattr(torch, dtype))
        self.torch, self.embed = torch, embedder(torch, model)
        if compiled:
            self.embed = torch.compile(self.embed, dynamic=True)
        self.batches = [tuple(map(torch.from_numpy, pair)) for pair in padded(texts, size, numpy)]
        self.run()

    def run(self):
        start = time.perf_counter()
        with self.torch.inference_mode():
            for ids, mask in self.batches:
                self.embed(ids, mask)
        return time.perf_counter() - start


def export(args, path):
    import torch
    from transformers import AutoModel
    model = AutoModel.from_pretrained(args.model, attn_implementation="eager", dtype=torch.float32)
    ids = torch.ones(2, 8, dtype=torch.long)
    sizes = {0: "batch", 1: "tokens"}
    torch.onnx.export(embedder(torch, model), (ids, ids), path, input_names=["ids", "mask"],
                      dynamic_axes={"ids": sizes, "mask": sizes}, opset_version=17, dynamo=False)


class OnnxRuntime:
    def __init__(self, args, texts, size, path):
        import numpy
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.batches = list(padded(texts, size, numpy))
        self.run()

    def run(self):
        start = time.perf_counter()
        for ids, mask in self.batches:
            self.session.run(None, {"ids": ids, "mask": mask})
        return time.perf_counter() - start


def quantize_onnx(args, path, quantized):
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
    fused = optimizer.optimize_model(path, "bert", config["num_attention_heads"], config["hidden_size"])
    weights = QuantType.QInt8 if args.onnx_weights == "int8" else QuantType.QUInt8
    quantize_dynamic(fused.model, quantized, per_channel=True, weight_type=weights,
                     extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


def quantize_openvino(path, texts):
    import numpy
    import nncf
    import openvino
    nncf.set_log_level("ERROR")
    inputs = [{"ids": ids, "mask": mask} for ids, mask in padded(texts, 1, numpy)]
    with contextlib.redirect_stdout(sys.stderr):  # of the progress bars
        return nncf.quantize(openvino.Core().read_model(path), nncf.Dataset(inputs), subset_size=len(inputs),
                             model_type=nncf.ModelType.TRANSFORMER)


def compile_openvino(args, model, streams):
    import openvino
    hint = "THROUGHPUT" if streams > 1 else "LATENCY"
    settings = {"PERFORMANCE_HINT": hint, "NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": args.threads}
    return openvino.Core().compile_model(model, "CPU", settings)


class OpenVino:
    def __init__(self, compiled, texts, size, streams):
        import numpy
        import openvino
        self.queue = openvino.AsyncInferQueue(compiled, streams)
        self.batches = [{"ids": ids, "mask": mask} for ids, mask in padded(texts, size, numpy)]
        for _ in range(1 + streams):  # each stream prepares for each shape
            self.run()

    def run(self):
        start = time.perf_counter()
        for batch in self.batches:
            self.queue.start_async(batch)
        self.queue.wait_all()
        return time.perf_counter() - start


def openvino_programs(args, texts, path, calibration):
    import openvino
    models = {"": openvino.Core().read_model(path), "int8": quantize_openvino(path, calibration)}
    programs = {}
    for dtype, model in models.items():
        for streams in sorted({1, args.threads}):
            compiled = compile_openvino(args, model, streams)
            picked = compiled.get_property("INFERENCE_PRECISION_HINT").to_string().replace("f32", "fp32")
            for size in INT8_BATCHES:
                at_once = f", {streams} at once" if streams > 1 else ""
                programs[f"OpenVINO {dtype or picked}, {size} a batch{at_once}"] = OpenVino(compiled, texts, size, streams)
    return programs


def over_best_rival(rows, dtype):
    rivals = {name: row["tokens_per_second"] for name, row in rows.items() if not name.startswith("warpwright")}
    best = max(speed for name, speed in rivals.items() if dtype == "int8" or " int8" not in name)
    return rows[f"warpwright {dtype}"]["tokens_per_second"] / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--model", required=True, help="a BERT's folder")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of our batches")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run-with", default="", help="a command that starts our program")
    parser.add_argument("--compile", action="store_true", help="also time PyTorch compiled")
    parser.add_argument("--int8", action="store_true", help="also time int8, and OpenVINO")
    parser.add_argument("--onnx-weights", choices=("int8", "uint8"), default="int8", help="ONNX Runtime's weights with --int8")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")

    vocab = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
    texts = make_texts(args.texts, vocab)
    lengths = [len(text) for text in texts]
    dtypes = ("fp32", "bf16", "int8") if args.int8 else ("fp32", "bf16")
    programs = {f"warpwright {dtype}": Ours(args, lengths, dtype) for dtype in dtypes}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        export(args, path)
        for size in BATCHES:
            programs[f"ONNX Runtime fp32, {size} a batch"] = OnnxRuntime(args, texts, size, path)
        if args.int8:
            quantized = os.path.join(folder, "int8.onnx")
            quantize_onnx(args, path, quantized)
            for size in INT8_BATCHES:
                programs[f"ONNX Runtime int8, {size} a batch"] = OnnxRuntime(args, texts, size, quantized)
            programs |= openvino_programs(args, texts, path, make_texts(300, vocab, seed=2))
        for compiled in (False, True) if args.compile else (False,):
            for size in COMPILED_BATCHES if compiled else BATCHES:
                for name, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
                    how = " compiled" if compiled else ""
                    programs[f"PyTorch {name}{how}, {size} a batch"] = Torch(args, texts, size, dtype, compiled)
        seconds = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, program in programs.items():
                seconds[name].append(program.run())

    rows = {name: {"tokens_per_second": sum(lengths) / min(times), "median": sum(lengths) / statistics.median(times)}
            for name, times in seconds.items()}
    over = {dtype: over_best_rival(rows, dtype) for dtype in dtypes if dtype != "bf16"}
    if args.json:
        print(json.dumps({"model": args.model, "texts": len(texts), "tokens": sum(lengths), "threads": args.threads,
                          "rows": rows, **{f"{dtype}_over_best_rival": ratio for dtype, ratio in over.items()}}, indent=2))
        return
    print(f"{len(texts)} texts of {sum(lengths)} tokens, {args.threads} threads")
    print(f"{'program':<36}{'tokens/s':>10}{'median':>10}")
    for name, row in rows.items():
        print(f"{name:<36}{row['tokens_per_second']:>10.0f}{row['median']:>10.0f}")
    for dtype, ratio in over.items():
        of = "the others in int8, bf16 and fp32" if dtype == "int8" else "the others in bf16 and fp32"
        print(f"warpwright {dtype} is {ratio:.2f} times as fast as the best of {of}")


if __name__ == "__main__":
    main()
