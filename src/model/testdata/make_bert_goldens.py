#!/usr/bin/env python3
"""Writes tiny random encoders of odd sizes in Hugging Face's form, and what transformers computes from them.

    python3 make_bert_goldens.py [FOLDER]

Each folder holds config.json, model.safetensors (and sentence-transformers' files) and golden.safetensors: packed token
ids, token types and cu_seqlens, and, computed in fp64, the last hidden states, the logits of a classification head or
the vectors after the pooling; and how far the hidden states are off (‖a − b‖/‖b‖) where PyTorch computes in bf16. Needs
torch, transformers and safetensors.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertForSequenceClassification, BertModel, RobertaConfig,
                          RobertaForSequenceClassification)

LENGTHS = [5, 1, 17, 33, 2]


def randomize(model):
    """Weights that make every part count: the usual initialization leaves attention uniform and biases 0."""
    generator = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "LayerNorm.weight" in name:
            p.data = 1 + 0.2 * noise
        elif p.dim() == 1:
            p.data = 0.2 * noise
        else:
            p.data = noise * (1.0 if "embeddings" in name else 1.5 / p.shape[1] ** 0.5)
    return model.eval()


def sequences(config, generator):
    for length in LENGTHS:
        yield (torch.randint(config.vocab_size, (1, length), generator=generator),
               torch.randint(config.type_vocab_size, (1, length), generator=generator))


def write(folder, model, encoder, heads):
    """heads: from the last hidden states and logits of one sequence to what is kept of it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    generator = torch.Generator().manual_seed(11)
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "generation_config.json").unlink(missing_ok=True)
    golden = {"tokens": [], "types": [], "hidden": []}
    model.double()
    with torch.no_grad():
        for ids, types in sequences(config, generator):
            hidden = encoder(input_ids=ids, token_type_ids=types).last_hidden_state[0]
            golden["tokens"].append(ids[0].int())
            golden["types"].append(types[0].int())
            golden["hidden"].append(hidden.float())
            for name, value in heads(ids, types, hidden).items():
                golden.setdefault(name, []).append(value.reshape(1, -1).float())
    golden = {name: torch.cat(parts).contiguous() for name, parts in golden.items()}
    model.bfloat16()
    generator.manual_seed(11)
    with torch.no_grad():
        rounded = torch.cat([encoder(input_ids=ids, token_type_ids=types).last_hidden_state[0]
                             for ids, types in sequences(config, generator)]).double()
    golden["bf16_error"] = ((rounded - golden["hidden"]).norm() / golden["hidden"].norm()).float().reshape(1)
    golden["cu_seqlens"] = torch.tensor([0] + LENGTHS).cumsum(0).int()
    save_file(golden, folder / "golden.safetensors")


def classification(model):
    return lambda ids, types, hidden: {"logits": model(input_ids=ids, token_type_ids=types).logits}


def sentence_model(folder):
    """max pooling, a dense layer and normalization; the encoder's tensors have a prefix."""
    config = BertConfig(hidden_size=18, num_attention_heads=2, num_hidden_layers=1, intermediate_size=31, vocab_size=41,
                        max_position_embeddings=40, hidden_act="relu", layer_norm_eps=1e-5)
    model = randomize(BertModel(config, add_pooling_layer=False))
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(13, 18, generator=generator), torch.randn(13, generator=generator)

    def vector(ids, types, hidden):
        dense = torch.tanh(hidden.max(0).values @ weight.double().T + bias.double())
        return {"vectors": dense / dense.norm()}

    write(folder, model, model, vector)
    tensors = load_file(folder / "model.safetensors")
    save_file({"0.auto_model." + name: t for name, t in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    for name, content in {
            "modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                             for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"),
                                                               ("2_Dense", "Dense"), ("3_Normalize", "Normalize")])],
            "sentence_bert_config.json": {"max_seq_length": 35, "do_lower_case": False},
            "1_Pooling/config.json": {"word_embedding_dimension": 18, "pooling_mode_cls_token": False,
                                      "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True},
            "2_Dense/config.json": {"in_features": 18, "out_features": 13, "bias": True,
                                    "activation_function": "torch.nn.modules.activation.Tanh"}}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "bert"
    bert = BertConfig(hidden_size=20, num_attention_heads=4, num_hidden_layers=2, intermediate_size=27, vocab_size=53,
                      max_position_embeddings=37, type_vocab_size=3, num_labels=3, layer_norm_eps=1e-12)
    model = randomize(BertForSequenceClassification(bert))
    write(root / "bert", model, model.bert, classification(model))
    roberta = RobertaConfig(hidden_size=34, num_attention_heads=2, num_hidden_layers=2, intermediate_size=21,
                            vocab_size=47, max_position_embeddings=36, type_vocab_size=1, num_labels=1,
                            hidden_act="gelu_new", layer_norm_eps=1e-5, pad_token_id=1)
    model = randomize(RobertaForSequenceClassification(roberta))
    write(root / "roberta", model, model.roberta, classification(model))
    sentence_model(root / "sentence")


main()
