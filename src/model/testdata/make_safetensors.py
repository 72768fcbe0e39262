#!/usr/bin/env python3
"""Writes python.safetensors with Hugging Face's safetensors package; tensor_files_test.cpp knows its content."""

from pathlib import Path

import torch
from safetensors.torch import save_file

tensors = {
    "step": torch.tensor(5, dtype=torch.int64),
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
    "empty": torch.zeros(0, 4),
    'odd "name" é': torch.tensor([-1.0]),
    "bias": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "bytes": torch.tensor([7], dtype=torch.uint8),
}
save_file(tensors, Path(__file__).with_name("python.safetensors"), {"format": "pt"})
