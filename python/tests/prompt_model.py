"""A sentence model with prompts and a vocabulary, and the calls of encode() whose vectors prompt_goldens.json holds."""

import json
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "src" / "model" / "testdata" / "bert"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 53))]
TEXTS = ["w5 w6 w7", "", "w9 " * 12, "w10"]
CALLS = [
    {},  # the default prompt
    {"prompt": ""},
    {"prompt": "w20 w21 "},
    {"prompt_name": "passage"},
    {"prompt_name": "empty"},
    {"prompt": "w22 ", "prompt_name": "passage"},
    {"prompt_name": "passage", "batch_size": 1},
]


def make_folder(folder):
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((MODELS / "bert" / name).read_bytes())
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {
        "prompts": {"query": "w30 w31 ", "passage": "w40 ", "empty": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "cosine",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
