#!/usr/bin/env python3
"""Compares `warpwright embed` with transformers on all-MiniLM-L6-v2 and 1,000 texts in several languages.

    python3 src/model/tools/compare_minilm.py --warpwright build/release/warpwright [--model FOLDER] [--device cuda]
        [--texts 1000] [--golden FILE]

FOLDER is what scripts/fetch-minilm made (or $WARPWRIGHT_MINILM). Texts of 1 to over 512 tokens are made of sentences in
twelve languages, some cut in the middle of a word. The reference is transformers in fp64. fp32 must be within 1e-5
(‖a − b‖/‖b‖ over all vectors), bf16 and fp16 within twice PyTorch's own error in that dtype; with --batch-invariant
the bits must not depend on the order of the texts. Needs torch and transformers; exits with 77 where something is missing.
With --golden (src/infer/testdata/minilm.safetensors) it writes what encode_test compares with, 17 texts and their vectors, and runs no program of ours.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

SENTENCES = """The quick brown fox jumps over the lazy dog, and nobody had asked it to.
Ein Satz, der länger ist als nötig, wird in der Regel nicht besser, sondern nur länger.
Les chaussettes de l'archiduchesse sont-elles sèches, archi-sèches ?
El zorro marrón salta sobre el perro perezoso mientras llueve a cántaros.
В чащах юга жил бы цитрус? Да, но фальшивый экземпляр!
いろはにほへと ちりぬるを、色は匂へど散りぬるを。
天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。
다람쥐 헌 쳇바퀴에 타고파, 그러나 비가 온다.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر.
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश हुआ।
Příliš žluťoučký kůň úpěl ďábelské ódy nad řekou.
Tôi có thể ăn thủy tinh mà không hại gì cả 😀 #100% naïve café.""".splitlines()


def make_texts(count):
    generator = random.Random(3)
    texts = []
    while len(texts) < count:
        words = int(min(40, max(1, generator.lognormvariate(0.5, 1.2))))
        text = " ".join(generator.choice(SENTENCES) for _ in range(words))
        texts.append(text[: generator.randrange(1, len(text) + 1)].strip() or "a")
    return texts


def ours(args, texts, dtype, *flags):
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        command = [args.warpwright, "embed", "--model", args.model, "--input", folder / "texts.txt"]
        command += ["--out", folder / "vectors.npy", "--dtype", dtype, "--device", args.device, *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return numpy.load(folder / "vectors.npy")


def theirs(args, texts, dtype):
    import numpy
    import torch
    from transformers import AutoModel, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModel.from_pretrained(args.model, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    vectors = numpy.zeros((len(texts), model.config.hidden_size))
    limit = args.max_length
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.inference_mode():
        for first in range(0, len(order), 16):
            part = order[first:first + 16]
            batch = tokenizer([texts[i] for i in part], padding=True, truncation=True, max_length=limit, return_tensors="pt")
            hidden = model(**batch).last_hidden_state.double()
            mask = batch["attention_mask"].unsqueeze(-1).double()
            mean = (hidden * mask).sum(1) / mask.sum(1)
            vectors[part] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


def write_golden(args, path):
    """Texts of all lengths, one a line, their vectors, and PyTorch's own error in 16 bits."""
    import numpy
    from safetensors.numpy import save_file
    texts = sorted(make_texts(1000), key=len)[31::64] + [" ".join(SENTENCES)]
    wanted = theirs(args, texts, "float64")
    norm = numpy.linalg.norm
    errors = {name: norm(theirs(args, texts, name) - wanted) / norm(wanted) for name in ("bfloat16", "float16")}
    lines = "\n".join(texts) + "\n"
    save_file({"vectors": wanted.astype("float32"), "texts": numpy.frombuffer(lines.encode(), dtype="uint8")}, path,
              metadata={name: f"{error:.3e}" for name, error in errors.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=os.path.abspath, help="the program")
    parser.add_argument("--model", default=os.environ.get("WARPWRIGHT_MINILM"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--golden", help="write this file of texts and vectors, and compare nothing")
    args = parser.parse_args()
    if not args.warpwright and not args.golden:
        parser.error("--warpwright is missing")
    if not args.model:
        print("not compared: set WARPWRIGHT_MINILM to all-MiniLM-L6-v2's folder (scripts/fetch-minilm)")
        sys.exit(77)
    try:
        import numpy
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"not compared: {error}")
        sys.exit(77)

    if args.golden:
        return write_golden(args, args.golden)
    texts = make_texts(args.texts)
    wanted = theirs(args, texts, "float64")
    norm = numpy.linalg.norm
    error = lambda vectors: norm(vectors - wanted) / norm(wanted)
    limit = ["--max-length", str(args.max_length)]
    failed = False
    for dtype, name in {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.items():
        if dtype == "fp16" and args.device == "cpu":
            continue
        peer = error(theirs(args, texts, name))
        mine = ours(args, texts, dtype, *limit).astype("float64")
        bound = 1e-5 if dtype == "fp32" else 2 * peer
        worst = (norm(mine - wanted, axis=1) / norm(wanted, axis=1)).max()
        good = bool(numpy.isfinite(mine).all()) and error(mine) <= bound
        failed |= not good
        print(f"{dtype}: {error(mine):.2e}, worst text {worst:.2e}; PyTorch {peer:.2e}; {'good' if good else 'TOO FAR'}")
    mixed = list(range(len(texts)))
    random.Random(4).shuffle(mixed)
    straight = ours(args, texts, "fp32", "--batch-invariant", *limit)
    shuffled = ours(args, [texts[i] for i in mixed], "fp32", "--batch-invariant", "--batch-tokens", "2048", *limit)
    same = bool((straight[mixed].view("uint32") == shuffled.view("uint32")).all())
    print(f"batch-invariant: {'the same bits in any order' if same else 'DIFFERENT BITS'}")
    sys.exit(failed or not same)


main()
