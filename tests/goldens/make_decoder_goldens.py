"""Makes goldens of small decoders with Hugging Face's Llama, Mistral, Qwen2, Qwen3 and GPT-NeoX models.

    python3 tests/goldens/make_decoder_goldens.py [NAME...]   (torch 2.15.0, transformers 5.24.0, safetensors 0.8.0, numpy 2.4.6)

Each folder decoders/NAME has config.json as transformers writes it, golden.json and golden.safetensors. They store what
make_goldens.py stores for GPT-2. A parameter has its name in the checkpoint. Its Philox stream is its index in
"parameters" of golden.json.

Both sides draw weights and tokens as for GPT-2, except that the weights (not the biases) of the projections in layers
are in [-1/2, 1/2), not in [-1/8, 1/8): "projection_scale" and "scale" of golden.json. With 1/8 attention is almost
uniform, and a tied model repeats one token.

"muon" of a dtype has the losses of ten steps in which Muon updates the projections, each of q, k and v by itself.

"greedy" has the tokens that continue the first 8 of the first sequence, computed in float64 with the weights of "fp32".
"closest" is the smallest difference between the two highest logits of a step.

Two details decide what the errors mean:
- transformers computes norms, softmax and rotary embeddings in float32 even if the model is in float64. Here a pass in
  float64 computes them in float64, too (InFloat64).
- model.to(bfloat16) rounds the rotary frequencies, which from_pretrained keeps in float32. They are put back, so that
  PyTorch's error in bfloat16 does not include this rounding.
"""

import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
import transformers
from make_goldens import BETAS, CLIP, EPS, LR, STEPS, WEIGHT_DECAY, batch, forward, philox, relative
from make_rope_goldens import InFloat64
from safetensors.numpy import save_file
from transformers import (GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          modeling_rope_utils)
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

HERE = pathlib.Path(__file__).parent / "decoders"
MODULES = (modeling_gpt_neox, modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3,
           modeling_rope_utils)
B, PROMPT, GREEDY = 2, 8, 200
MUON_MOMENTUM = 0.95
SCALE, PROJECTION_SCALE = 2.0**-3, 2.0**-1
COMMON = dict(num_hidden_layers=2, max_position_embeddings=256, attention_dropout=0.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
MODELS = {
    "llama": dict(T=32, model=LlamaForCausalLM, config=LlamaConfig(
        **COMMON, hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=8, intermediate_size=43,
        vocab_size=101, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "llama3": dict(T=37, model=LlamaForCausalLM, config=LlamaConfig(
        **COMMON, hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=24, intermediate_size=44,
        vocab_size=103, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=LLAMA3, attention_bias=True,
        mlp_bias=True)),
    "mistral": dict(T=29, model=MistralForCausalLM, config=MistralConfig(
        **COMMON, hidden_size=36, num_attention_heads=6, num_key_value_heads=2, head_dim=6, intermediate_size=47,
        vocab_size=97, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=None,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "qwen2": dict(T=33, model=Qwen2ForCausalLM, config=Qwen2Config(
        **COMMON, hidden_size=28, num_attention_heads=7, num_key_value_heads=1, intermediate_size=47, vocab_size=139,
        tie_word_embeddings=True, rms_norm_eps=1e-6, use_sliding_window=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3": dict(T=35, model=Qwen3ForCausalLM, config=Qwen3Config(
        **COMMON, hidden_size=30, num_attention_heads=6, num_key_value_heads=3, head_dim=14, intermediate_size=41,
        vocab_size=113, tie_word_embeddings=True, rms_norm_eps=1e-6, use_sliding_window=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "mistral_window": dict(T=39, model=MistralForCausalLM, config=MistralConfig(
        **COMMON, hidden_size=30, num_attention_heads=6, num_key_value_heads=3, head_dim=6, intermediate_size=37,
        vocab_size=79, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=7,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "qwen3_windows": dict(T=41, model=Qwen3ForCausalLM, config=Qwen3Config(
        **COMMON | dict(num_hidden_layers=3), hidden_size=22, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
        intermediate_size=29, vocab_size=73, tie_word_embeddings=False, rms_norm_eps=1e-6, use_sliding_window=True,
        sliding_window=11, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "gpt_neox": dict(T=31, model=GPTNeoXForCausalLM, config=GPTNeoXConfig(
        **COMMON, hidden_size=36, num_attention_heads=3, intermediate_size=52, vocab_size=89, tie_word_embeddings=False,
        use_parallel_residual=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                         partial_rotary_factor=1 / 3))),
    "gpt_neox_serial": dict(T=26, model=GPTNeoXForCausalLM, config=GPTNeoXConfig(
        **COMMON, hidden_size=32, num_attention_heads=4, intermediate_size=44, vocab_size=83, tie_word_embeddings=True,
        use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new",
        rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0, partial_rotary_factor=1.0))),
}


@contextlib.contextmanager
def computing_in(dtype):
    """In float64, lets the modules that name torch.float32 compute in float64, too."""
    with contextlib.ExitStack() as stack:
        if dtype == torch.float64:
            for module in MODULES:
                stack.enter_context(mock.patch.object(module, "torch", InFloat64()))
        yield


def both(*names):
    return [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]


def parameter_names(model):
    """In the order of the streams. The model has some biases and maybe a head of its own."""
    if model.config.model_type == "gpt_neox":
        prefix, embedding, norm = "gpt_neox", "embed_in", "final_layer_norm"
        block = both("input_layernorm", "attention.query_key_value", "attention.dense", "post_attention_layernorm",
                     "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    else:
        prefix, embedding, norm = "model", "embed_tokens", "norm"
        block = ["input_layernorm.weight", *both(*(f"self_attn.{p}_proj" for p in "qkvo")),
                 "self_attn.q_norm.weight", "self_attn.k_norm.weight",
                 "post_attention_layernorm.weight", *both(*(f"mlp.{p}_proj" for p in ("gate", "up", "down")))]
    names = ([f"{prefix}.{embedding}.weight"] +
             [f"{prefix}.layers.{l}.{n}" for l in range(model.config.num_hidden_layers) for n in block] +
             both(f"{prefix}.{norm}") + ["lm_head.weight"])
    present = dict(model.named_parameters())  # a tied head is not in it
    assert set(present) <= set(names)
    return [name for name in names if name in present]


def is_projection(name):
    return (name.endswith(".weight") and not name.endswith("norm.weight") and
            any(part in name for part in ("attn.", ".attention.", ".mlp.")))


def draw(shape, purpose, name):
    uniform = ((philox(int(np.prod(shape)), purpose) >> np.uint64(8)).astype(np.float64) - 2.0**23) * 2.0**-23
    scale = PROJECTION_SCALE if is_projection(name) else SCALE
    offset = 1.0 if name.endswith("norm.weight") else 0.0
    return (uniform * scale + offset).reshape(shape).astype(np.float32)


def build(spec, rounding, compute):
    """The model, whose weights are rounded to one dtype, and which computes in another."""
    with computing_in(compute):
        model = spec["model"]._from_config(spec["config"], attn_implementation="eager")
    rotary = model.base_model.rotary_emb
    frequencies = rotary.inv_freq
    model = model.to(compute)
    rotary.inv_freq = frequencies
    for index, name in enumerate(parameter_names(model)):
        parameter = model.get_parameter(name)
        value = torch.from_numpy(draw(tuple(parameter.shape), index, name))
        parameter.data.copy_(value.to(torch.bfloat16) if rounding == torch.bfloat16 else value)
    return model


def one_pass(spec, rounding, compute):
    model = build(spec, rounding, compute)
    with computing_in(compute):
        logits, loss = forward(model, *batch(spec, 0))
        loss.backward()
    gradients = {name: model.get_parameter(name).grad.to(torch.float64).numpy() for name in parameter_names(model)}
    return logits.detach().to(torch.float64).numpy(), loss.item(), gradients


def matrices(config, tensor):
    """Views of q, k and v if the tensor holds all three, head by head."""
    rows, columns = tensor.shape
    if config.model_type != "gpt_neox" or rows != 3 * columns:
        return [tensor]
    return tensor.view(config.num_attention_heads, 3, -1, columns).unbind(1)


def orthogonalized(u, dtype):
    """Newton-Schulz as in https://kellerjordan.github.io/posts/muon."""
    x = (u / (u.norm() + 1e-7)).to(dtype)
    if u.shape[0] > u.shape[1]:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if u.shape[0] > u.shape[1] else x).to(u.dtype)


def muon_step(config, masters, momenta, dtype):
    for master, momentum in zip(masters, momenta):
        momentum.lerp_(master.grad, 1 - MUON_MOMENTUM)
        direction = torch.lerp(master.grad, momentum, MUON_MOMENTUM)
        for w, u in zip(matrices(config, master.data), matrices(config, direction)):
            flat = u.reshape(-1, u.shape[-1])
            update = 0.2 * max(flat.shape) ** 0.5 * orthogonalized(flat, dtype).view_as(u)
            w.sub_(LR * (update + WEIGHT_DECAY * w))


def trajectory(spec, rounding, compute, muon=False):
    """Runs ten steps with clipping, of AdamW or of Muon for the projections; in bfloat16 with float32 masters."""
    master_dtype = torch.float64 if compute == torch.float64 else torch.float32
    model = build(spec, rounding, compute)
    masters = [p.detach().to(master_dtype).clone() for p in model.parameters()]
    of_muon = [m for m, (name, _) in zip(masters, model.named_parameters()) if muon and is_projection(name)]
    others = [m for m in masters if not any(m is other for other in of_muon)]
    momenta = [torch.zeros_like(m) for m in of_muon]
    optimizer = torch.optim.AdamW([{"params": [m for m in others if m.dim() > 1], "weight_decay": WEIGHT_DECAY},
                                   {"params": [m for m in others if m.dim() <= 1], "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        with torch.no_grad():
            for p, m in zip(model.parameters(), masters):
                p.copy_(m)
        model.zero_grad()
        with computing_in(compute):
            _, loss = forward(model, *batch(spec, step))
            loss.backward()
        losses.append(loss.item())
        for p, m in zip(model.parameters(), masters):
            m.grad = p.grad.to(master_dtype)
        torch.nn.utils.clip_grad_norm_(masters, CLIP)
        optimizer.step()
        muon_step(spec["config"], of_muon, momenta, compute)
    return losses


def trajectories(spec, dtype, muon=False):
    """The losses in float64, and the largest error of those in dtype."""
    losses, losses_c = (trajectory(spec, dtype, compute, muon) for compute in (torch.float64, dtype))
    return losses, max(abs(a - b) / b for a, b in zip(losses_c, losses))


def greedy(spec):
    """The continuation, and the smallest difference between the two highest logits. No token ends it."""
    model = build(spec, torch.float32, torch.float64)
    tokens = batch(spec, 0)[0][0, :PROMPT].tolist()
    closest = float("inf")
    with computing_in(torch.float64), torch.no_grad():
        while len(tokens) < min(PROMPT + GREEDY, spec["config"].max_position_embeddings):
            top = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
            closest = min(closest, (top.values[0] - top.values[1]).item())
            tokens.append(top.indices[0].item())
    return tokens[PROMPT:], closest


def save_config(spec, folder):
    with tempfile.TemporaryDirectory() as saved:
        build(spec, torch.float32, torch.float32).save_pretrained(saved)
        shutil.copyfile(pathlib.Path(saved) / "config.json", folder / "config.json")


def make(name, spec):
    spec = dict(spec, B=B, vocab=spec["config"].vocab_size)
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    save_config(spec, folder)
    record = dict(B=B, T=spec["T"], steps=STEPS, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS,
                  weight_decay=WEIGHT_DECAY, clip=CLIP, muon_momentum=MUON_MOMENTUM, scale=SCALE, projection_scale=PROJECTION_SCALE,
                  torch=torch.__version__, transformers=transformers.__version__)
    tensors = {}
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        logits, loss, gradients = one_pass(spec, dtype, torch.float64)
        logits_c, loss_c, gradients_c = one_pass(spec, dtype, dtype)
        losses, error_c = trajectories(spec, dtype)
        muon_losses, muon_error = trajectories(spec, dtype, muon=True)
        error = {"logits": relative(logits_c, logits), "loss": abs(loss_c - loss) / loss,
                 "gradients": {p: relative(gradients_c[p], gradients[p]) for p in gradients}}
        record[kind] = {"loss": loss, "losses": losses, "error": error,
                        "trajectory_error": error_c,
                        "muon": {"losses": muon_losses, "trajectory_error": muon_error}}
        tensors[f"{kind}.logits"] = logits.astype(np.float32)
        tensors |= {f"{kind}.{p}": gradient.astype(np.float32) for p, gradient in gradients.items()}
    record["parameters"] = list(gradients)
    record["greedy"], record["closest"] = greedy(spec)
    save_file(tensors, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps(record, indent=1) + "\n")
    print(name, "loss", record["fp32"]["loss"], "log V", np.log(spec["vocab"]), "greedy", len(set(record["greedy"])),
          "tokens of", len(record["greedy"]), "closest", record["closest"], "errors",
          *(f"{record[k]['error']['logits']:.2g} {record[k]['trajectory_error']:.2g} "
            f"{record[k]['muon']['trajectory_error']:.2g}" for k in ("fp32", "bf16")))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for model_name in sys.argv[1:] or MODELS:
        make(model_name, MODELS[model_name])
