"""Makes the goldens of tests/rope_golden_test.cpp with transformers' own functions for rotary position embeddings.

    python3 tests/goldens/make_rope_goldens.py     (torch 2.15.0, transformers 5.24.0)

The functions name torch.float and torch.float32; here they compute in float64. The goldens store, for each description,
the frequencies, the attention factor and rows of the tables; and a small tensor, rotated as in Llama (half) and as in
GPT-J (interleaved), of which only the first elements of a head are rotary. All tables are rounded to float32.
"""

import json
import pathlib

import torch
from transformers import LlamaConfig, modeling_rope_utils
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

HERE = pathlib.Path(__file__).parent
POSITIONS = [1, 100, 4095, 20000]
LLAMA3 = dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096)
DESCRIPTIONS = {
    "none": (32, dict(rope_type="default", rope_theta=10000.0)),
    "odd pairs": (18, dict(rope_type="default", rope_theta=1000000.0)),
    "linear": (32, dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
    "Llama-3.1": (128, dict(LLAMA3, rope_theta=500000.0, factor=8.0)),
    "Llama-3.2": (64, dict(LLAMA3, rope_theta=500000.0, factor=32.0)),
    "yarn": (32, dict(YARN, rope_theta=10000.0)),
    "yarn, other betas": (64, dict(YARN, rope_theta=1000000.0, beta_fast=20.0, beta_slow=2.0)),
    "yarn, not truncated": (64, dict(YARN, rope_theta=150000.0, truncate=False, factor=32.0)),
    "yarn, attention factor": (32, dict(YARN, rope_theta=10000.0, attention_factor=1.25)),
    "yarn, mscale": (64, dict(YARN, rope_theta=10000.0, factor=40.0, mscale=1.0, mscale_all_dim=0.707)),
    "yarn, few positions": (16, dict(YARN, rope_theta=10000.0, original_max_position_embeddings=6)),
}


class InFloat64:
    """torch, except that its 32-bit type is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def frequencies(R, parameters):
    config = LlamaConfig(hidden_size=R, num_attention_heads=1, num_key_value_heads=1, head_dim=R,
                         max_position_embeddings=131072, rope_parameters=dict(parameters))
    if parameters["rope_type"] == "default":
        return modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return modeling_rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))


def tables(theta, factor, positions):
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * theta
    return [(f(angles) * factor).float() for f in (torch.cos, torch.sin)]


def describe(R, parameters):
    theta, factor = frequencies(R, parameters)
    assert theta.dtype == torch.float64
    cos, sin = tables(theta, factor, POSITIONS)
    return dict(R=R, parameters=parameters, frequencies=theta.tolist(), attention_factor=factor, positions=POSITIONS,
                cos=cos.tolist(), sin=sin.tolist())


def rotate(N=5, NH=3, HS=26, R=20, P=7):
    """x is in eighths that every dtype holds exactly."""
    x = ((torch.arange(N * NH * HS) * 37 % 255 - 127).double() / 8).view(N, NH, HS)
    positions = [3, 0, 6, 6, 1]
    theta, factor = frequencies(R, DESCRIPTIONS["none"][1])
    cos, sin = tables(theta, factor, range(P))
    c, s = cos[positions].double(), sin[positions].double()
    turned, rest = x[..., :R], x[..., R:]
    half, _ = modeling_llama.apply_rotary_pos_emb(turned, turned, torch.cat((c, c), -1), torch.cat((s, s), -1))
    interleaved = modeling_gptj.apply_rotary_pos_emb(turned[None], s[None], c[None])[0]
    result = dict(shape=[N, NH, HS], positions=positions, x=x.flatten().tolist(), cos=cos.tolist(), sin=sin.tolist())
    for name, out in (("half", half), ("interleaved", interleaved)):
        result[name] = torch.cat((out, rest), -1).flatten().tolist()
    return result


def main():
    modeling_llama.torch = modeling_rope_utils.torch = InFloat64()
    goldens = dict(descriptions={name: describe(*d) for name, d in DESCRIPTIONS.items()}, rotated=rotate())
    (HERE / "rope.json").write_text(json.dumps(goldens, indent=0) + "\n")


if __name__ == "__main__":
    main()
