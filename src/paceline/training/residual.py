"""What encoding has lost of a worker's pushes."""

from __future__ import annotations

import torch
from torch import Tensor


class Residual:
    """What encoding has lost of a worker's pushes so far, which the next one is to make up for.

    Source: error feedback, Seide et al. 2014 and Karimireddy et al. (arXiv 1901.09847): send C(x + e), and keep
    e = x + e - C(x + e). That an update that no version gets takes its share of e back is ours.
    """

    def __init__(self, values: int, pushes: int, kept: int = 0) -> None:
        """`values`: float32 that a version has room for. `pushes`: the most that may be neither in one nor dropped.

        `kept`: bytes of the last push that the next one begins with.
        """
        self.now = torch.zeros(values + -(-kept // 4), device="cpu")
        """Where a version has the parameter, zero for what goes as it is. Behind these lies what is kept."""
        self._values, self._kept = values, kept
        self._before: dict[int, Tensor] = {}
        """By step whose update may yet be in no version: what this was before it."""
        self._pushes = pushes

    def push(self, step: int) -> tuple[Tensor, Tensor]:
        """Return it as it is before that step's update, and the tensor to put it into as it is after that."""
        self._before[step] = before = self.now
        if len(self._before) > self._pushes:
            self.now = self._before.pop(min(self._before))
        else:
            self.now = torch.zeros_like(before)
        return before, self.now

    def kept(self, of: Tensor) -> Tensor:
        """What is kept in that tensor, which `push` has returned: uint8[kept]."""
        return of[self._values :].view(torch.uint8)[: self._kept]

    def drop(self, step: int) -> None:
        """No version will have that step's update: it is as if it had not been pushed."""
        if (before := self._before.pop(step, None)) is None:
            return
        later = sorted(one for one in self._before if one > step)
        if not later:
            self.now = before
            return
        back = before - self._before[later[0]]
        self._before[later[0]] = before
        for one in later[1:]:
            self._before[one] = self._before[one] + back
        self.now = self.now + back

    def as_of(self, step: int) -> Tensor:
        """Return it as it was before all updates of steps after that one."""
        later = min((one for one in self._before if one > step), default=None)
        return self.now if later is None else self._before[later]
