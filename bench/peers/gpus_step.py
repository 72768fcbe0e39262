#!/usr/bin/env python3
"""Times a training step of a GPT-2 over several GPUs of one machine next to PyTorch and, with --llmc, llm.c, in one run.

    python3 bench/peers/gpus_step.py --warpwright build/release/warpwright --data DATA [--model gpt2:124M] [--batch 64]
        [--seq 1024] [--gpus 2] [--shard optimizer] [--reduce tree] [--torch ddp] [--llmc PATH/train_gpt2cu] [--rounds 2]
        [--steps 15] [--json]

In each round the programs take turns. A program first runs on every GPU by itself, on all of them at the same time, and then
over all GPUs, with --batch sequences for each GPU. The share is the median step of the slowest GPU alone, divided by the
median step over all GPUs. --no-alone leaves the first part out, for models that one GPU cannot hold.

A step is forward, backward, clipping by the global norm and AdamW, in bf16. PyTorch is the GPT-2 of gpu_step.py under
DistributedDataParallel (ddp), or under fully_shard with bf16 parameters and fp32 reductions (fsdp2). --recompute block
recomputes each block in the backward, in warpwright and in PyTorch. DATA is a folder of `warpwright data` with GPT-2's
tokens. llm.c must be built with NCCL and MPI.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import gpu_step

SIZES = dict(gpu_step.SIZES, **{"gpt2:13B": (40, 40, 5120)})  # a shape of GPT-3's, which warpwright takes as free sizes
WARM_UP = 8  # the first steps of a run, which do not count


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(command, log, **environment):
    """Starts a process in a group of its own, so that all of its children can be ended."""
    return subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                            env=dict(os.environ, **{key: str(value) for key, value in environment.items()}))


def end(processes):
    """Kills the processes and the ranks they have started, which are in groups of their own and would go on for a while."""
    for process in processes:
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        for group in (process.pid, *map(int, children)):
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()


class Ours:
    name = "warpwright"

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        layers, heads, channels = SIZES[args.model]
        size = ["--model", args.model] if args.model in gpu_step.SIZES else [
            "--layers", layers, "--heads", heads, "--channels", channels, "--context", gpu_step.CONTEXT]
        self.command = [args.warpwright, "train", "--data", args.data, *size, "--dtype", "bf16", "--batch", args.batch,
                        "--seq", args.seq, "--recompute", args.recompute, "--steps", 100000, "--checkpoint-minutes", 0]

    def run(self, jobs):
        """jobs: (more options, environment) of runs at the same time. Returns the steps' milliseconds of each."""
        log = open(self.folder / "warpwright.log", "w+")
        runs, processes = [], []
        for number, (options, environment) in enumerate(jobs):
            runs.append(self.folder / f"run{time.time_ns()}_{number}")
            processes.append(start([*self.command, *options, "--out", runs[-1]], log, **environment))
        def steps(run):
            path = run / "metrics.jsonl"
            return [json.loads(line)["ms"] for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
        late = time.time() + self.args.seconds
        while min(len(steps(run)) for run in runs) < WARM_UP + self.args.steps and time.time() < late:
            if any(process.poll() is not None for process in processes):
                break
            time.sleep(0.05)
        end(processes)
        found = [steps(run)[WARM_UP:] for run in runs]
        if not all(found):
            log.seek(0)
            sys.exit(f"warpwright gave no times:\n{log.read()[-800:]}")
        return found

    def alone(self):
        tokens = self.args.batch * self.args.seq
        return self.run([(["--device", "cuda", "--total-batch", tokens], {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in range(self.args.gpus)])

    def together(self):
        tokens = self.args.gpus * self.args.batch * self.args.seq
        return self.run([(["--gpus", self.args.gpus, "--shard", self.args.shard, "--reduce", self.args.reduce,
                           "--total-batch", tokens], {})])


class Torch:
    name = "PyTorch"

    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def run(self, ranks):
        """ranks: the environments of processes at the same time."""
        processes, logs = [], []
        for environment in ranks:
            logs.append(open(self.folder / f"torch{len(logs)}.log", "w+"))
            processes.append(start([sys.executable, __file__, *sys.argv[1:], "--worker"], logs[-1], **environment))
        late = time.time() + self.args.seconds
        while any(process.poll() is None for process in processes) and time.time() < late:
            time.sleep(0.05)
        end(processes)
        found = []
        for log in logs:
            log.seek(0)
            text = log.read()
            times = re.search(r"^\[[\d., ]+\]$", text, re.M)
            if not times:
                print(f"PyTorch gave no times: {text[-800:]}", file=sys.stderr)
                return []
            found.append(json.loads(times[0]))
        return found

    def alone(self):
        return self.run([{"CUDA_VISIBLE_DEVICES": gpu, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1",
                          "MASTER_PORT": free_port()} for gpu in range(self.args.gpus)])

    def together(self):
        port = free_port()
        return self.run([{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.args.gpus, "MASTER_ADDR": "127.0.0.1",
                          "MASTER_PORT": port} for rank in range(self.args.gpus)])


def worker(args):
    """One rank of PyTorch. Prints the milliseconds of its steps."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.manual_seed(1)
    divided = args.torch == "fsdp2"

    def recomputed(block):
        forward = block.forward
        block.forward = lambda x: checkpoint(forward, x, use_reentrant=False)

    class Distributed(gpu_step.Torch):
        def __init__(self):
            self.torch, self.args = torch, args
            with torch.device("meta" if divided else "cuda"):
                self.model = gpu_step.build_torch_model(*SIZES[args.model])
            if args.recompute == "block":
                for block in self.model.blocks:
                    recomputed(block)
            self.compiled = self.divide() if divided else self.copy()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
            self.ids = torch.randint(0, gpu_step.V, (args.batch, args.seq), device="cuda")
            for _ in range(3):
                self.step()

        def copy(self):
            several = dist.get_world_size() > 1
            if len(self.model.blocks) <= 12:
                whole = DistributedDataParallel(self.model, gradient_as_bucket_view=True) if several else self.model
                return torch.compile(whole)
            gpu_step.Torch.compile(self)
            return DistributedDataParallel(self.model, gradient_as_bucket_view=True) if several else self.model

        def divide(self):
            gpu_step.Torch.compile(self)
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for block in self.model.blocks:
                fully_shard(block, mp_policy=policy)
            fully_shard(self.model, mp_policy=policy)
            self.model.to_empty(device="cuda")
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.zero_()
            return self.model

    times = Distributed().run(args.steps)
    if dist.get_rank() == 0:
        print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    print(json.dumps(times), flush=True)
    dist.destroy_process_group()


class Llmc:
    name = "llm.c"

    def __init__(self, args, folder):
        self.args = args
        self.tokens = gpu_step.write_llmc_tokens(folder, (args.steps + 4) * args.gpus * args.batch * args.seq + 1)

    def command(self, ranks):
        a = self.args
        return [a.llmc, "-i", self.tokens[0], "-j", self.tokens[1], "-e", f"d{SIZES[a.model][0]}", "-b", a.batch, "-t", a.seq,
                "-d", ranks * a.batch * a.seq, "-x", a.steps + 3, "-v", 1000000, "-m", 1, "-s", 0, "-h", 0, "-r", 0, "-ge", 2,
                "-z", 1 if ranks > 1 else 0]

    def times(self, processes):
        found = []
        for process in processes:
            text = process.communicate(timeout=self.args.seconds)[0].decode(errors="replace")
            times = [float(match[1]) for match in re.finditer(r"\|\s+([\d.]+) ms", text)][3:]
            if not times:
                print(f"llm.c gave no times: {text[-400:]}", file=sys.stderr)
                return []
            found.append(times)
        return found

    def alone(self):
        return self.times([start(self.command(1), subprocess.PIPE, CUDA_VISIBLE_DEVICES=gpu) for gpu in range(self.args.gpus)])

    def together(self):
        ranks = self.args.gpus
        return self.times([start(["mpirun", "--allow-run-as-root", "-np", ranks, *self.command(ranks)], subprocess.PIPE)])


def summary(rounds):
    """rounds: of each, the steps of each process. The slowest process counts."""
    slowest = [max(statistics.median(steps) for steps in processes) for processes in rounds]
    return {"ms_median": statistics.median(slowest), "ms_of_rounds": [min(slowest), max(slowest)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--data", required=True, type=os.path.abspath, help="a folder of `warpwright data`")
    parser.add_argument("--model", default="gpt2:124M", choices=SIZES)
    parser.add_argument("--batch", type=int, default=64, help="sequences for each GPU")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--shard", default="optimizer", help="of warpwright train")
    parser.add_argument("--reduce", default="tree", choices=("tree", "ring"), help="of warpwright train")
    parser.add_argument("--recompute", default="none", choices=("none", "block"))
    parser.add_argument("--torch", default="ddp", choices=("ddp", "fsdp2", "none"))
    parser.add_argument("--llmc", type=os.path.abspath, metavar="PATH", help="llm.c's train_gpt2cu")
    parser.add_argument("--no-alone", action="store_true", help="run over all GPUs only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15, help="steps of each program in a round")
    parser.add_argument("--seconds", type=float, default=300, help="longest time of one run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dtype = "bf16"
    if args.worker:
        return worker(args)

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        programs = [Ours(args, folder)] + [Torch(args, folder)] * (args.torch != "none")
        programs += [Llmc(args, folder)] if args.llmc else []
        rounds = {program.name: {"alone": [], "together": []} for program in programs}
        for _ in range(args.rounds):
            for program in programs:
                for way in ("alone",) * (not args.no_alone) + ("together",):
                    if times := getattr(program, way)():
                        rounds[program.name][way].append(times)
    result = {"model": args.model, "batch": args.batch, "seq": args.seq, "gpus": args.gpus, "shard": args.shard,
              "reduce": args.reduce, "recompute": args.recompute, "torch": args.torch, "programs": {}}
    for name, ways in rounds.items():
        row = result["programs"][name] = {way: summary(found) for way, found in ways.items() if found}
        if "together" in row:
            row["tokens_per_second"] = args.gpus * args.batch * args.seq / row["together"]["ms_median"] * 1e3
        if len(row) == 3:
            row["share"] = row["alone"]["ms_median"] / row["together"]["ms_median"]
    if args.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{args.model} bf16, {args.gpus} GPUs, B={args.batch} for each, T={args.seq}, --shard {args.shard}, --reduce {args.reduce}, --recompute {args.recompute}, PyTorch {args.torch}")
    for name, row in result["programs"].items():
        cells = [f"{way} {row[way]['ms_median']:.2f} ms ({row[way]['ms_of_rounds'][0]:.2f} to {row[way]['ms_of_rounds'][1]:.2f})"
                 for way in ("alone", "together") if way in row]
        print(f"{name:<12}{', '.join(cells)}, {row.get('tokens_per_second', 0):.0f} tokens/s"
              + (f", share {row['share']:.4f}" if "share" in row else ""))


if __name__ == "__main__":
    main()
