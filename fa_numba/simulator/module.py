"""What the name ``cuda`` means inside a simulated kernel."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numba.cuda.simulator.kernelapi import FakeCUDALocal, FakeCUDAModule

from fa_numba.simulator.arrays import KernelArray
from fa_numba.simulator.launch import Launch
from fa_numba.simulator.warp import FULL_MASK, SHUFFLED_TYPES

_stock_local = FakeCUDALocal()


class _Arrays:
    def __init__(self, launch: Launch):
        self._launch = launch

    @staticmethod
    def _description(shape: Any, dtype: Any) -> tuple[int, np.dtype]:
        """Return element count and NumPy dtype; the stock simulator knows how to read Numba's types."""
        dtype = getattr(dtype, "numba_type", dtype)
        return math.prod(np.atleast_1d(shape).tolist()), _stock_local.array(0, dtype).dtype


class _SharedArrays(_Arrays):
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> KernelArray:
        count, dtype = self._description(shape, dtype)
        if count == 0:
            return self._launch.dynamic_shared_array(dtype)
        caller = sys._getframe(1)
        site = (caller.f_code, caller.f_lasti)
        return self._launch.shared_array(site, count, shape, dtype, alignment or dtype.itemsize)


class _LocalArrays(_Arrays):
    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> KernelArray:
        count, dtype = self._description(shape, dtype)
        return self._launch.local_array(count, shape, dtype, alignment or dtype.itemsize)


class _ConstantArrays(_Arrays):
    def array_like(self, array: np.ndarray) -> KernelArray:
        constant = np.array(array)
        constant.flags.writeable = False
        return KernelArray(constant, self._launch, "constant", origin=constant)


class KernelCuda(FakeCUDAModule):
    """Numba's simulated ``cuda`` module, with warp operations, and with memory and barriers that check."""

    def __init__(self, launch: Launch):
        super().__init__(launch.grid, launch.block, 0)
        self._launch = launch
        self._shared = _SharedArrays(launch)
        self._local = _LocalArrays(launch)
        self._const = _ConstantArrays(launch)

    @property
    def threadIdx(self):  # noqa: N802 (CUDA's name)
        return self._launch.thread.threadIdx

    @property
    def blockIdx(self):  # noqa: N802 (CUDA's name)
        return self._launch.thread.blockIdx

    @property
    def laneid(self):
        return self._launch.thread.lane

    def syncthreads(self):
        self._launch.wait("syncthreads")

    def syncthreads_count(self, predicate):
        return self._counting_barrier("syncthreads_count", predicate)

    def syncthreads_and(self, predicate):
        return self._counting_barrier("syncthreads_and", predicate)

    def syncthreads_or(self, predicate):
        return self._counting_barrier("syncthreads_or", predicate)

    def syncwarp(self, mask=FULL_MASK):
        self._warp("syncwarp", mask)

    def shfl_sync(self, mask, value, src_lane):
        return self._shuffle("shfl_sync", mask, value, src_lane)

    def shfl_up_sync(self, mask, value, delta):
        return self._shuffle("shfl_up_sync", mask, value, delta)

    def shfl_down_sync(self, mask, value, delta):
        return self._shuffle("shfl_down_sync", mask, value, delta)

    def shfl_xor_sync(self, mask, value, lane_mask):
        return self._shuffle("shfl_xor_sync", mask, value, lane_mask)

    def all_sync(self, mask, predicate):
        return self._vote("all_sync", mask, predicate)

    def any_sync(self, mask, predicate):
        return self._vote("any_sync", mask, predicate)

    def eq_sync(self, mask, predicate):
        return self._vote("eq_sync", mask, predicate)

    def ballot_sync(self, mask, predicate):
        return self._vote("ballot_sync", mask, predicate)

    def activemask(self):
        """Return the lanes of this warp that come to this call together."""
        return self._launch.wait("activemask")

    def popc(self, value):
        return super().popc(_unsigned(value))

    def ffs(self, value):
        return super().ffs(_unsigned(value))

    def clz(self, value):
        return super().clz(_unsigned(value))

    def brev(self, value):
        return super().brev(_unsigned(value))

    def _counting_barrier(self, op: str, predicate: Any) -> int:
        if isinstance(predicate, (bool, np.bool_)) or not isinstance(predicate, (int, np.integer)):
            raise TypeError(f"cuda.{op} takes an integer, not {type(predicate).__name__}; write int32(...)")
        return self._launch.wait(op, value=predicate)

    def _vote(self, op: str, mask: int, predicate: Any) -> Any:
        if not isinstance(predicate, (int, np.integer, np.bool_)):
            raise TypeError(f"cuda.{op} takes an integer or a bool, not {type(predicate).__name__}")
        return self._warp(op, mask, predicate)

    def _shuffle(self, op: str, mask: int, value: Any, argument: int) -> Any:
        if isinstance(value, np.generic) and value.dtype.type not in SHUFFLED_TYPES:
            raise TypeError(f"cuda.{op} moves int32, int64, float32 and float64, not {value.dtype}")
        return self._warp(op, mask, value, argument)

    def _warp(self, op: str, mask: int, value: Any = None, argument: Any = None) -> Any:
        mask = int(mask) & FULL_MASK
        lane = self._launch.thread.lane
        if not mask >> lane & 1:
            raise ValueError(f"cuda.{op} is called by lane {lane}, which its own mask 0x{mask:08x} does not name")
        return self._launch.wait(op, mask, value, argument)


def _unsigned(value: Any) -> int:
    """Return an integer's bits as a non-negative number, as the bit-counting functions of the stock simulator need."""
    return int(value) & 0xFFFFFFFF if value < 0 else int(value)
