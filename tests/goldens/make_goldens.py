"""Makes the goldens of tests/golden_test.cpp with Hugging Face's GPT2LMHeadModel: a small GPT-2 and one of odd sizes.

    python3 tests/goldens/make_goldens.py     (torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, numpy)

Weights and tokens are not stored. Both sides draw them from Philox4x32-10 as integers scaled by powers of two, so they
agree to the bit. From float64 the goldens store the logits, the loss, every parameter's gradient and the losses of ten
optimizer steps. They also store PyTorch's own error compared with these, in float32 and in bfloat16 (weights and
activations; masters and optimizer in float32). It is the bound for this project's error.
"""

import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
MODELS = {
    "small": dict(layers=2, heads=4, channels=64, vocab=257, T=32, B=2, activation="gelu_new"),
    "odd": dict(layers=2, heads=3, channels=96, vocab=1021, T=37, B=2, activation="gelu"),
}
STEPS, LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 10, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
TOKENS = 1000  # the Philox stream of the tokens; a parameter's stream is its index


def philox(count, purpose):
    """The first word of Philox4x32-10 for counters (i, 0, purpose, 0), key (0, 0)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64),
         np.full(count, purpose, np.uint64), np.zeros(count, np.uint64)]
    k0, k1 = 0, 0
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0]


def parameter_names(layers):
    block = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
             "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
             "mlp.c_proj.bias"]
    return (["wte.weight", "wpe.weight"] + [f"h.{l}.{n}" for l in range(layers) for n in block] +
            ["ln_f.weight", "ln_f.bias"])


def is_transposed(name):
    """Conv1D keeps (in, out). Weights are drawn and gradients are stored as (out, in)."""
    return name.startswith("h.") and name.endswith(".weight") and "ln_" not in name


def draw(shape, purpose, name):
    n = int(np.prod(shape))
    uniform = ((philox(n, purpose) >> np.uint64(8)).astype(np.float64) - 2.0**23) * 2.0**-23  # [-1, 1), 24 bits
    offset = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
    return (uniform * 2.0**-3 + offset).reshape(shape)


def build(spec, dtype):
    config = GPT2Config(vocab_size=spec["vocab"], bos_token_id=0, eos_token_id=0, n_positions=spec["T"], n_embd=spec["channels"],
                        n_layer=spec["layers"], n_head=spec["heads"], activation_function=spec["activation"],
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    model = GPT2LMHeadModel(config).to(torch.float64)
    for index, name in enumerate(parameter_names(spec["layers"])):
        parameter = model.transformer.get_parameter(name)
        shape = tuple(parameter.shape[::-1]) if is_transposed(name) else tuple(parameter.shape)
        value = draw(shape, index, name).astype(np.float32)
        if dtype == torch.bfloat16:  # rounding the weights is an error of the input, not of the arithmetic
            value = torch.from_numpy(value).to(torch.bfloat16).to(torch.float32).numpy()
        value = value.T if is_transposed(name) else value
        parameter.data.copy_(torch.from_numpy(value.astype(np.float64)))
    return model


def batch(spec, step):
    B, T, V = spec["B"], spec["T"], spec["vocab"]
    ids = (philox((step + 1) * (B * T + 1), TOKENS) % np.uint64(V)).astype(np.int64)[step * (B * T + 1):]
    return torch.from_numpy(ids[:-1].reshape(B, T)), torch.from_numpy(ids[1:].reshape(B, T))


def forward(model, inputs, targets):
    logits = model(inputs).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
                                               targets.flatten())
    return logits, losses


def gradients(model, spec):
    out = {}
    for name in parameter_names(spec["layers"]):
        gradient = model.transformer.get_parameter(name).grad.detach().to(torch.float64).numpy()
        out[name] = np.ascontiguousarray(gradient.T if is_transposed(name) else gradient)
    return out


def one_pass(spec, rounding, compute):
    model = build(spec, rounding).to(compute)
    logits, loss = forward(model, *batch(spec, 0))
    loss.backward()
    return logits.detach().to(torch.float64).numpy(), loss.item(), gradients(model, spec)


def trajectory(spec, rounding, compute):
    """Runs ten steps of AdamW with clipping; in bfloat16 with float32 masters."""
    master_dtype = torch.float64 if compute == torch.float64 else torch.float32
    masters = build(spec, rounding).to(master_dtype)
    model = build(spec, rounding).to(compute)
    decay = [p for p in masters.parameters() if p.dim() > 1]
    rest = [p for p in masters.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": WEIGHT_DECAY},
                                   {"params": rest, "weight_decay": 0.0}], lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        with torch.no_grad():
            for p, m in zip(model.parameters(), masters.parameters()):
                p.copy_(m)
        model.zero_grad()
        _, loss = forward(model, *batch(spec, step))
        loss.backward()
        losses.append(loss.item())
        for p, m in zip(model.parameters(), masters.parameters()):
            m.grad = p.grad.to(master_dtype)
        torch.nn.utils.clip_grad_norm_(masters.parameters(), CLIP)
        optimizer.step()
    return losses


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def errors_of(spec, rounding, compute):
    logits, loss, grads = one_pass(spec, rounding, torch.float64)
    logits_c, loss_c, grads_c = one_pass(spec, rounding, compute)
    return {"logits": relative(logits_c, logits), "loss": abs(loss_c - loss) / loss,
            "gradients": {name: relative(grads_c[name], grads[name]) for name in grads}}


def make(name, spec):
    record = dict(spec, steps=STEPS, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=WEIGHT_DECAY,
                  clip=CLIP, torch=torch.__version__)
    tensors = {}
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        logits, loss, grads = one_pass(spec, dtype, torch.float64)
        losses = trajectory(spec, dtype, torch.float64)
        losses_c = trajectory(spec, dtype, dtype)
        record[kind] = {"loss": loss, "losses": losses, "error": errors_of(spec, dtype, dtype),
                        "trajectory_error": max(abs(a - b) / b for a, b in zip(losses_c, losses))}
        tensors[f"{kind}.logits"] = logits.astype(np.float32)
        for parameter, gradient in grads.items():
            tensors[f"{kind}.{parameter}"] = gradient.astype(np.float32)
    save_file(tensors, HERE / f"{name}.safetensors")
    (HERE / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(name, record["fp32"]["loss"], record["fp32"]["error"]["logits"], record["bf16"]["error"]["logits"],
          record["fp32"]["trajectory_error"], record["bf16"]["trajectory_error"])


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for model_name, model_spec in MODELS.items():
        make(model_name, model_spec)
