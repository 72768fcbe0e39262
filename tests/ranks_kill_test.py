#!/usr/bin/env python3
"""Kills ranks of a training at random moments, resumes with other numbers of ranks and other --shard, and compares the end.

    ranks_kill_test.py WARPWRIGHT [--kills N]

Each time the other ranks must end within 30 s, with at most one line of the program. The weights, the optimizer and the
losses at the end must be those of a run that nobody disturbed.
"""

import argparse
import array
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

STEPS = 60
MOST_SECONDS = 30
RANKS = [1, 2, 3, 4, 6]
SHARDS = ["none", "optimizer", "gradients", "parameters"]


def write_shard(path, tokens):
    """llm.c's format: 256 words of header, then ids of 16 bits."""
    header = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    path.write_bytes(header + array.array("H", tokens).tobytes())


def training(program, data, out, more):
    words = [program, "train", "--data", data, "--out", out, "--resume"]
    words += "--vocab 64 --layers 2 --heads 2 --channels 64 --context 16 --batch 2 --total-batch 384 --threads 1".split()
    return [str(word) for word in [*words, "--steps", STEPS, "--checkpoint-every", 3, *more]]


def on_ranks(ranks, words):
    return ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks), *words] if ranks > 1 else words


def ranks_of(launcher):
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children]


def wait_for_a_writer(process, run):
    """Returns while a checkpoint is being written, or after a while."""
    end = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < end and not any((run / "checkpoints").glob("*.partial-*")):
        pass
    time.sleep(random.uniform(0, 0.004))


def kill_one(process, ranks, run):
    """Kills a rank after a random time, often while a checkpoint is written; true if the run had not ended before."""
    time.sleep(random.uniform(0.05, 2.5))
    if random.random() < 0.5:
        wait_for_a_writer(process, run)
    if process.poll() is not None:
        return False
    victims = ranks_of(process.pid) if ranks > 1 else [process.pid]
    if not victims:
        return False
    os.kill(random.choice(victims), signal.SIGKILL)
    return True


def end_of(process):
    try:
        _, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        sys.exit(f"the other ranks were still there after {MOST_SECONDS} s")
    own = [line for line in err.decode().splitlines() if line.startswith("warpwright: rank ")]
    if len(own) > 1:
        sys.exit("more than one rank reported the end:\n" + "\n".join(own))
    return process.returncode, err.decode()


def tensors_in(checkpoint, content):
    """The bytes of the tensors in the parts of all ranks, each with its rows in order."""
    rows = {}
    for path in checkpoint.glob(f"{content}*.safetensors"):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                tensor_name, _, place = name.partition("[")
                first = int(place.partition(":")[0] or 0)
                rows.setdefault(tensor_name, {})[first] = data[8 + size + begin:8 + size + end]
    return {name: b"".join(parts[first] for first in sorted(parts)) for name, parts in rows.items()}


def result_of(run):
    losses = [(row["step"], row["loss"], row["norm"]) for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    checkpoint = run / f"checkpoints/step_{STEPS:08}"
    return losses, (run / "model/model.safetensors").read_bytes(), tensors_in(checkpoint, "model"), tensors_in(checkpoint, "optimizer")


def disturbed(program, data, run, kills):
    """Runs to the end, with up to `kills` kills on the way. Returns how many there were."""
    done = 0
    while True:
        ranks, shard = random.choice(RANKS), random.choice(SHARDS)
        process = subprocess.Popen(on_ranks(ranks, training(program, data, run, ["--shard", shard])), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, start_new_session=True)
        killed = done < kills and kill_one(process, ranks, run)
        code, err = end_of(process)
        if not killed and code == 0 and (run / "model").exists():
            return done
        if killed:
            done += 1
            if code == 0 and not (run / "model").exists():
                sys.exit(f"{ranks} ranks: exit code 0 although a rank was killed\n{err}")
        else:
            sys.exit(f"{ranks} ranks, --shard {shard}: exit code {code}, and no model\n{err}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warpwright", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=4)
    args = parser.parse_args()
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun")
        sys.exit(77)
    seed = time.time_ns()
    random.seed(seed)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "data").mkdir()
        write_shard(root / "data/tokens_train_000001.bin", [i * i % 61 for i in range(9000)])
        program = args.warpwright.resolve()
        subprocess.run(training(program, root / "data", root / "whole", []), check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        wanted = result_of(root / "whole")
        kills = runs = 0
        while kills < args.kills:
            run = root / f"run_{runs}"
            kills += disturbed(program, root / "data", run, args.kills - kills)
            if result_of(run) != wanted:
                sys.exit(f"run {runs} ended with other weights, optimizer or losses")
            runs += 1
            print(f"{kills} kills, {runs} runs with the same bits", flush=True)


if __name__ == "__main__":
    main()
