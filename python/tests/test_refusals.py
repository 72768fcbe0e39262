"""Every mistake of a caller raises an exception that names the argument and its value."""

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import warpwright
from warpwright import _library
from warpwright.normalization import FusedLayerNorm
from warpwright.normalization import fused_layer_norm as functions


def refused(error, *words, **changes):
    good = {"input": torch.randn(4, 8), "weight": torch.ones(8), "bias": torch.zeros(8), "normalized_shape": (8,)}
    with pytest.raises(error) as caught:
        functions.fused_layer_norm_affine(**{**good, **changes})
    for word in ("fused_layer_norm_affine", *words):
        assert word in str(caught.value), str(caught.value)


def test_arguments_that_do_not_fit():
    refused(ValueError, "input has shape (4, 9)", "normalized_shape (8,)", input=torch.randn(4, 9))
    refused(ValueError, "input has shape ()", input=torch.tensor(1.0))
    refused(ValueError, "normalized_shape (4, 9)", normalized_shape=[4, 9])
    refused(ValueError, "normalized_shape is []", normalized_shape=[])
    refused(TypeError, "normalized_shape is 2.5", normalized_shape=2.5)
    refused(ValueError, "weight has shape (7,)", weight=torch.ones(7))
    refused(ValueError, "bias has shape (8, 1)", bias=torch.ones(8, 1))
    refused(TypeError, "input is torch.int64", input=torch.ones(4, 8, dtype=torch.int64))
    refused(TypeError, "input is list", input=[1.0])
    refused(TypeError, "weight is NoneType", weight=None)
    refused(TypeError, "weight is torch.complex64", weight=torch.ones(8, dtype=torch.complex64))
    refused(TypeError, "bias is torch.float64", "weight torch.float32", bias=torch.zeros(8, dtype=torch.float64))
    refused(ValueError, "weight is on meta", "input on cpu", weight=torch.ones(8, device="meta"))
    refused(TypeError, "eps is None", eps=None)
    refused(TypeError, "eps is '1e-5'", eps="1e-5")


def test_tensors_that_are_not_dense():
    refused(TypeError, "input is torch.sparse_coo", input=torch.randn(4, 8).to_sparse())
    refused(TypeError, "input is torch.sparse_csr", input=torch.randn(4, 8).to_sparse_csr())
    refused(TypeError, "weight is torch.sparse_coo", weight=torch.ones(8).to_sparse())
    refused(TypeError, "bias is torch.sparse_coo", bias=torch.zeros(8).to_sparse())
    for layout in torch.strided, torch.jagged:
        refused(TypeError, "input is nested", input=torch.nested.nested_tensor([torch.randn(4, 8)], layout=layout))
    with pytest.raises(TypeError, match="fused_add_layer_norm_affine: residual is torch.sparse_coo"):
        x = torch.randn(4, 8)
        functions.fused_add_layer_norm_affine(x, x.to_sparse(), torch.ones(8), torch.zeros(8), 8)


def test_modules_name_themselves():
    with pytest.raises(ValueError, match=r"FusedLayerNorm: input has shape \(2, 3\)"):
        FusedLayerNorm(8)(torch.randn(2, 3))
    with pytest.raises(TypeError, match="FusedLayerNorm: normalized_shape is None"):
        FusedLayerNorm(None)
    for shape in (-1, [4, -8], "8", [8.0]):
        with pytest.raises(ValueError, match="FusedLayerNorm: normalized_shape is .*, needs sizes"):
            FusedLayerNorm(shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_weight_on_another_device():
    refused(ValueError, "weight is on cuda:0", "input on cpu", weight=torch.ones(8, device="cuda"))


class Library:
    def __init__(self, version):
        self.warpwright_abi_version = lambda: version


def test_library_older_or_newer_than_the_package():
    _library.check_abi(Library(1000 * _library.ABI_MAJOR + _library.ABI_MINOR), "lib.so")
    _library.check_abi(Library(1000 * _library.ABI_MAJOR + _library.ABI_MINOR + 7), "lib.so")
    needs = rf"this package needs {_library.ABI_MAJOR}\.{_library.ABI_MINOR}"
    with pytest.raises(ImportError, match=rf"lib.so is older .* 0\.9, {needs}"):
        _library.check_abi(Library(9), "lib.so")
    with pytest.raises(ImportError, match=rf"lib.so is newer .* 2\.0, {needs}"):
        _library.check_abi(Library(2000), "lib.so")
    older = 1000 * _library.ABI_MAJOR + _library.ABI_MINOR - 1
    with pytest.raises(ImportError, match=rf"lib.so is older .* {older // 1000}\.{older % 1000}, {needs}"):
        _library.check_abi(Library(older), "lib.so")


def python(program, **environment):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stderr


def test_the_librarys_refusals_become_exceptions():
    program = """
        import torch
        from warpwright.normalization import fused_layer_norm as functions
        functions.fused_layer_norm(torch.randn(4, 8), 8)
    """
    # Wherever this runs, no kernel has this name.
    code, errors = python(program, WARPWRIGHT_FORCE="norm.forward=cpu.none")
    assert code == 1 and errors.splitlines()[-1].startswith("RuntimeError: ") and "cpu.none" in errors


def test_a_library_that_is_not_there():
    code, errors = python("import warpwright", WARPWRIGHT_LIBRARY="/nowhere/libwarpwright.so")
    assert code != 0 and "cannot load its library /nowhere/libwarpwright.so" in errors


def test_without_torch():
    code, errors = python("import sys; sys.modules['torch'] = None; import warpwright")
    assert code != 0 and "warpwright needs PyTorch" in errors and "pip install torch" in errors


def test_imports_without_a_gpu():
    code, errors = python(
        "import torch, warpwright; warpwright.FusedLayerNorm(8)(torch.randn(2, 8)); assert warpwright.__version__",
        CUDA_VISIBLE_DEVICES="",
    )
    assert code == 0, errors


def test_verbose():
    """The logger warpwright gets one line per operation, and WARPWRIGHT_FORCE selects the named kernel."""
    program = """
        import logging, torch
        logging.basicConfig(level=logging.INFO)
        import warpwright
        warpwright.FusedLayerNorm(8)(torch.randn(2, 8)).sum().backward()
    """
    code, errors = python(program, WARPWRIGHT_VERBOSE="1", WARPWRIGHT_FORCE="norm=reference")
    assert code == 0, errors
    assert "INFO:warpwright:norm.forward reference N=2 C=8" in errors
    assert "INFO:warpwright:norm.backward reference N=2 C=8" in errors


def test_public_names():
    for name in warpwright.__all__:
        assert getattr(warpwright, name)
