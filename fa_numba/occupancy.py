"""Occupancy: how many blocks of a launch a multiprocessor holds at a time, and what they fill up first.

Registers and shared memory are given out in units; what these are, and how many registers fit, is that of NVIDIA's
cuda_occupancy.h, which comes with the CUDA toolkit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fa_numba import limits

_WARP = 32
_REGISTER_UNIT = 256  # registers, for a warp
_MOST_REGISTERS = 255  # of a thread
_SCHEDULERS = 4  # of a multiprocessor, each with a quarter of the registers


@dataclass(frozen=True)
class Occupancy:
    """What a multiprocessor holds of a launch at a time.

    Attributes
    ----------
    blocks_by : dict
        For each of ``"threads"``, ``"blocks"``, ``"shared memory"`` and, if they are known, ``"registers"``: how many
        blocks it would have room for by that alone.
    warps_per_block, most_warps : int
        Warps of a block, and the most that a multiprocessor holds of any launch.
    """

    blocks_by: dict[str, int]
    warps_per_block: int
    most_warps: int

    @property
    def blocks(self) -> int:
        """Blocks at a time; 0 if not even one fits."""
        return min(self.blocks_by.values())

    @property
    def warps(self) -> int:
        """Warps at a time."""
        return self.blocks * self.warps_per_block

    @property
    def share(self) -> float:
        """The warps as a share of the most: what is called the occupancy."""
        return self.warps / self.most_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """What is filled up first."""
        return tuple(what for what, blocks in self.blocks_by.items() if blocks == self.blocks)

    def __str__(self) -> str:
        registers = "" if "registers" in self.blocks_by else "; registers are not known and left out"
        warps = "1 warp" if self.warps_per_block == 1 else f"{self.warps_per_block} warps"
        return (
            f"{self.blocks} blocks of {warps}, {self.share:.0%} of the {self.most_warps} warps "
            f"that a multiprocessor holds at most, limited by {' and '.join(self.limited_by)}{registers}"
        )


def occupancy(threads: int, shared: int, *, capability: str = "9.0", registers: int | None = None) -> Occupancy:
    """Return how many blocks a multiprocessor holds at a time.

    Parameters
    ----------
    threads, shared : int
        Threads of a block, and its bytes of shared memory, static and dynamic.
    capability : str
        The compute capability, as ``"9.0"``.
    registers : int, optional
        Registers of a thread, as the compiler says. None leaves them out.

    Raises
    ------
    ValueError
        If the compute capability is not known, or if a number is not whole or none that a launch can have: threads
        from 1 to 1024, shared memory from 0, registers from 1 to 255. More shared memory than there is gives 0 blocks.
    """
    room, most = limits.multiprocessor(capability), limits.of_capability(capability)
    threads = _whole("threads of a block", threads, 1, most.threads_per_block)
    shared = _whole("bytes of shared memory of a block", shared, 0)
    warps = -(-threads // _WARP)
    blocks_by = {"threads": room.warps // warps, "blocks": room.blocks}
    reserved = room.shared - most.shared_per_block  # by the driver, in every block
    if shared + reserved > 0:
        unit = 256 if capability.startswith("7.") else 128
        blocks_by["shared memory"] = room.shared // _rounded(shared + reserved, unit)
    if registers is not None:
        registers = _whole("registers of a thread", registers, 1, _MOST_REGISTERS)
        of_a_warp = _rounded(registers * _WARP, _REGISTER_UNIT)
        blocks_by["registers"] = room.registers // _SCHEDULERS // of_a_warp * _SCHEDULERS // warps
    return Occupancy(blocks_by, warps, room.warps)


def _whole(what: str, number: int, least: int, most: int | None = None) -> int:
    """Return a number as Python's int; ValueError if it is not whole or out of bounds."""
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or number < least or (most is not None and number > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"the {what} are a whole number {bounds}; {number!r} was given")
    return int(number)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
