"""warpwright for PyTorch: layer and RMS normalization, with the names of apex.normalization, BERT-family encoders, and
decoders that continue texts.

    from warpwright.normalization import FusedLayerNorm, FusedRMSNorm
    vectors = warpwright.Encoder("all-MiniLM-L6-v2").encode(["a text", "another one"])
    text = warpwright.Decoder("SmolLM2-135M").generate("The sea").text
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("warpwright needs PyTorch 2.4 or later, but the module torch is missing: pip install torch") from error

from . import _library
from ._decoder import Decoder, GenerateError, Generated, Piece
from ._encoder import EncodeError, Encoder, EncoderLayers
from ._padding import Places, pack, places, unpack
from .normalization import (
    FusedAddLayerNorm,
    FusedAddRMSNorm,
    FusedLayerNorm,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
)
from .normalization.fused_layer_norm import (
    fused_add_layer_norm_affine,
    fused_add_rms_norm_affine,
    fused_layer_norm,
    fused_layer_norm_affine,
    fused_rms_norm,
    fused_rms_norm_affine,
    kept_columns,
    mixed_dtype_fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine,
)

__version__ = _library.version

__all__ = [
    "Decoder",
    "EncodeError",
    "Encoder",
    "EncoderLayers",
    "FusedAddLayerNorm",
    "FusedAddRMSNorm",
    "FusedLayerNorm",
    "FusedRMSNorm",
    "GenerateError",
    "Generated",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "Piece",
    "Places",
    "fused_add_layer_norm_affine",
    "fused_add_rms_norm_affine",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "kept_columns",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
    "pack",
    "places",
    "unpack",
]
