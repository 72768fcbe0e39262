"""Checks of arguments. Each raises an exception that names the class, the argument and its value."""

import ctypes
import operator
import os

import torch

from . import _library


def named(value, names):
    """The value of this name. Any other value is returned as it is, for choice() to check."""
    return names.get(value, value) if isinstance(value, str) else value


def choice(owner, name, value, choices):
    try:
        return choices[value]
    except (KeyError, TypeError):
        wanted = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{owner}: {name} is {value!r}, needs one of {wanted}") from None


def integer(owner, name, value, least, most):
    """An int in this range. True, False and floats are refused."""
    wanted = f"needs an int from {least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{owner}: {name} is {value!r}, {wanted}") from None
    if isinstance(value, bool):
        raise TypeError(f"{owner}: {name} is {value!r}, {wanted}")
    if not least <= number <= most:
        raise ValueError(f"{owner}: {name} is {number}, {wanted}")
    return number


def number(owner, name, value):
    """A float of any value."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{owner}: {name} is {value!r}, needs a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{owner}: {name} is an int that no float holds, needs a number") from None
    except (TypeError, ValueError, RuntimeError):  # a tensor or an array of several numbers
        raise TypeError(f"{owner}: {name} is {value!r}, needs a number") from None


def byte_strings(owner, name, texts):
    """The texts in UTF-8."""
    encoded = []
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"{owner}: {name}[{i}] is {type(text).__name__}, needs str")
        encoded.append(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return encoded


def arrays(texts):
    """Arrays of pointers and lengths. The texts must outlive them."""
    return (ctypes.c_char_p * len(texts))(*texts), (ctypes.c_size_t * len(texts))(*map(len, texts))


def path(owner, name, value):
    """The bytes of a path."""
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"{owner}: {name} is {value!r}, but a path cannot contain NUL")
    return encoded


def device(owner, value):
    """A CPU or a CUDA device. None: a GPU if there is one."""
    if value is None:
        value = "cuda" if torch.cuda.is_available() and _library.cuda_device_count() > 0 else "cpu"
    found = torch.device(value)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{owner}: device is {found}, needs a CPU or a CUDA device")
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found
