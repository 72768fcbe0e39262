#!/usr/bin/env python3
"""Measures how much an encoder's vectors change in a smaller dtype, on real sentences.

    python3 bench/peers/encoder_quality.py --warpwright build/release/warpwright --model FOLDER --pairs PAIRS
        [--sentences FILE] [--dtypes bf16,int8] [--peers] [--calibrate PAIRS] [--threads 2] [--json]

PAIRS is a TSV or CSV without a header: two sentences and a score, or the score first. STS-B's test set is one:
stsb-en-test.csv of github.com/PhilipMay/stsb-multi-mt. FILE has a sentence per line; default: the sentences of the pairs.

A row has the cosine between the vector in a dtype and ours in fp32: the least of all sentences, the 1st percentile and the
mean. Then comes Spearman's correlation between the pairs' scores and the cosines of their vectors. --peers adds the int8 of
ONNX Runtime and of OpenVINO, quantized as in encoder.py, 8 sentences a batch. ONNX Runtime's fp32 shows that both programs
read the sentences alike. OpenVINO calibrates on random ids as in encoder.py, or on 300 sentences of --calibrate. Needs
numpy and scipy. --peers needs what encoder.py --int8 needs.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import tempfile
import warnings

import encoder
import numpy
import scipy.stats


def read_pairs(path):
    """[(score, sentence, sentence)]"""
    tabs = path.endswith(".tsv")
    style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    pairs = []
    with open(path, newline="", encoding="utf-8") as file:
        for first, second, third in csv.reader(file, **style):
            try:
                pairs.append((float(first), second, third))
            except ValueError:
                pairs.append((float(third), first, second))
    return pairs


def one_line(sentence):
    return " ".join(sentence.split())


def sentences_of(pairs):
    """Every sentence once."""
    return list(dict.fromkeys(one_line(sentence) for _, *both in pairs for sentence in both))


def our_vectors(args, dtype, sentences):
    with tempfile.TemporaryDirectory() as folder:
        texts, out = pathlib.Path(folder) / "texts.txt", os.path.join(folder, "vectors.npy")
        texts.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        command = [args.warpwright, "embed", "--model", args.model, "--dtype", dtype, "--input", str(texts), "--out", out]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return numpy.load(out)


def in_batches(embed, texts):
    """The vectors of texts of ids, in their order. embed takes the ids and the mask of a batch."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    batches = encoder.padded([texts[index] for index in order], 8, numpy)
    vectors = numpy.concatenate([numpy.array(embed(ids, mask)) for ids, mask in batches])
    return vectors[numpy.argsort(order)]


def peer_vectors(args, sentences):
    """{name: vectors}"""
    from transformers import AutoTokenizer
    folder = pathlib.Path(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    limits = folder / "sentence_bert_config.json"
    limit = json.loads(limits.read_text())["max_seq_length"] if limits.exists() else tokenizer.model_max_length

    def ids_of(lines):
        return tokenizer(lines, truncation=True, max_length=limit, padding=False)["input_ids"]

    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    calibration = encoder.make_texts(300, vocab, seed=2)
    if args.calibrate:
        known = sentences_of(read_pairs(args.calibrate))
        calibration = ids_of(known[::max(1, len(known) // 300)][:300])  # of all topics, which files keep together
    texts, vectors = ids_of(sentences), {}
    with tempfile.TemporaryDirectory() as models:
        path, quantized = os.path.join(models, "model.onnx"), os.path.join(models, "int8.onnx")
        encoder.export(args, path)
        encoder.quantize_onnx(args, path, quantized)
        for dtype, file in (("fp32", path), ("int8", quantized)):
            session = encoder.OnnxRuntime(args, [], 8, file).session
            vectors[f"ONNX Runtime {dtype}"] = in_batches(
                lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0], texts)
        compiled = encoder.compile_openvino(args, encoder.quantize_openvino(path, calibration), 1)
        vectors["OpenVINO int8"] = in_batches(lambda ids, mask: compiled({"ids": ids, "mask": mask})[0], texts)
    return vectors


def cosines(a, b):
    return (a * b).sum(1) / (numpy.linalg.norm(a, axis=1) * numpy.linalg.norm(b, axis=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", required=True, type=os.path.abspath, help="the program")
    parser.add_argument("--model", required=True, help="a BERT's folder")
    parser.add_argument("--pairs", required=True, help="pairs of sentences with scores")
    parser.add_argument("--sentences", help="sentences for the cosines to fp32")
    parser.add_argument("--dtypes", default="bf16,int8", help="ours, compared with fp32")
    parser.add_argument("--peers", action="store_true", help="also ONNX Runtime's and OpenVINO's int8")
    parser.add_argument("--calibrate", help="pairs whose sentences calibrate OpenVINO; default: random ids")
    parser.add_argument("--onnx-weights", choices=("int8", "uint8"), default="int8", help="ONNX Runtime's weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="the peers' threads")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")

    pairs = read_pairs(args.pairs)
    judged = sentences_of(pairs)
    if args.sentences:
        lines = map(one_line, pathlib.Path(args.sentences).read_text(encoding="utf-8").splitlines())
        judged = [line for line in dict.fromkeys(lines) if line]
    sentences = list(dict.fromkeys(judged + sentences_of(pairs)))
    place = {sentence: index for index, sentence in enumerate(sentences)}
    lefts, rights = ([place[one_line(pair[side])] for pair in pairs] for side in (1, 2))
    scores = [pair[0] for pair in pairs]

    dtypes = list(dict.fromkeys(["fp32", *args.dtypes.split(",")]))
    vectors = {f"warpwright {dtype}": our_vectors(args, dtype, sentences) for dtype in dtypes}
    if args.peers:
        vectors |= peer_vectors(args, sentences)
    vectors = {name: matrix.astype(numpy.float64) for name, matrix in vectors.items()}
    exact, rows = vectors["warpwright fp32"], {}
    for name, matrix in vectors.items():
        close = cosines(matrix, exact)[:len(judged)]
        spearman = scipy.stats.spearmanr(scores, cosines(matrix[lefts], matrix[rights])).statistic
        rows[name] = {"least": close.min(), "percentile_1": numpy.percentile(close, 1), "mean": close.mean(),
                      "spearman": spearman}

    if args.json:
        print(json.dumps({"model": args.model, "sentences": len(judged), "pairs": len(pairs), "rows": rows}, indent=2))
        return
    print(f"cosine to fp32 of {len(judged)} sentences; Spearman's correlation of {len(pairs)} pairs")
    print(f"{'program':<20}{'least':>10}{'1 %':>10}{'mean':>10}{'Spearman':>10}{'change':>10}")
    for name, row in rows.items():
        change = row["spearman"] - rows["warpwright fp32"]["spearman"]
        print(f"{name:<20}{row['least']:>10.5f}{row['percentile_1']:>10.5f}{row['mean']:>10.5f}{row['spearman']:>10.5f}"
              f"{change:>+10.5f}")


if __name__ == "__main__":
    main()
