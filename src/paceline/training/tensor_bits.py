"""The bits of tensors: whether they are equal, and digests of them. NaN equals NaN, and -0 is not 0."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy
import torch
from torch import Tensor


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same type, device, form and bits. `other` is dense."""
    if one.layout != torch.strided or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_conj() or one.is_neg():  # its memory has other values
        return False
    return one.shape == other.shape and one.stride() == other.stride() and torch.equal(_words(one), _words(other))


def octets(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in the order of its elements, in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def checksum(tensors: Iterable[Tensor]) -> str:
    """Return 64 bits, in hexadecimal, that depend on the bits of every tensor and on their order.

    The bits of each tensor are summed as whole numbers, which is as fast as memory is read.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        values = octets(tensor).numpy()
        if values.size:
            rest = values.size % 8
            digest.update(values[: values.size - rest].view(numpy.int64).sum().tobytes())
            digest.update(values[values.size - rest :].tobytes())
    return digest.hexdigest()


def parameters_sha256(parameters: Iterable[Tensor]) -> str:
    """Return the SHA-256 over the tensors' bytes, in order. That of `named_parameters()` is a run's identity."""
    digest = hashlib.sha256()
    for parameter in parameters:
        if parameter.numel():
            digest.update(octets(parameter).numpy().data)
    return digest.hexdigest()


def _words(tensor: Tensor) -> Tensor:
    """A dense tensor's memory, eight bytes at a time where that can be: a third of the time."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return flat if flat.numel() % 8 or flat.storage_offset() % 8 else flat.view(torch.int64)
