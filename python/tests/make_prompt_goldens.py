#!/usr/bin/env python3
"""Writes prompt_goldens.json: the vectors that sentence-transformers computes with prompts, for a small model of the repository.

usage: make_prompt_goldens.py   (needs sentence-transformers)
"""

import json
import tempfile
from pathlib import Path

from prompt_model import CALLS, TEXTS, make_folder

HERE = Path(__file__).resolve().parent


def main():
    import sentence_transformers

    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        model = sentence_transformers.SentenceTransformer(folder, device="cpu")
        vectors = [[[round(float(x), 6) for x in v] for v in model.encode(TEXTS, **call)] for call in CALLS]
        refused = ""
        try:
            model.encode(TEXTS, prompt_name="quarry")
        except ValueError as error:
            refused = str(error)
    made_by = {"sentence_transformers": sentence_transformers.__version__}
    golden = {"made_by": made_by, "refused": refused, "vectors": vectors}
    (HERE / "prompt_goldens.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
