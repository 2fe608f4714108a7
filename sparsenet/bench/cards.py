"""Data sheets of GPUs, and the two bounds that follow from them: occupancy, and the roofline's least time.

Sources, all NVIDIA's: the white papers of the Ampere (GA100), Ada (AD102, L4) and Hopper (H100) architectures, the data
sheets of H200, A100 80GB and L4; limits of a multiprocessor from the table of compute capabilities in the CUDA C++
Programming Guide. Rates are peaks at boost clock, without structured sparsity.
"""

from dataclasses import dataclass

_WARP = 32  # threads
_PARTITIONS = 4  # of a multiprocessor; a warp's registers lie in one of them
_REGISTER_UNIT = 256  # registers are given to a warp in units of so many
_SHARED_UNIT, _SHARED_RESERVED = 128, 1024  # bytes; the second for the system, in each block


@dataclass(frozen=True)
class Card:
    """A GPU of compute capability 8.0 or later."""

    name: str
    capability: tuple[int, int]
    bandwidth: float
    """Of its memory, bytes/s."""
    fp32: float
    """FLOP/s outside the tensor cores; a fused multiply-add counts two."""
    tf32: float
    """FLOP/s of the tensor cores."""
    bf16: float
    """FLOP/s of the tensor cores, sums in float32."""
    multiprocessors: int
    l2: int
    """Bytes of its last cache."""
    shared: int
    """Bytes in a multiprocessor."""
    most_threads: int
    """Of a multiprocessor."""
    most_blocks: int
    """Of a multiprocessor."""
    registers: int = 65_536
    """Of a multiprocessor."""


CARDS = {card.name: card for card in (
    Card("H200", (9, 0), 4.8e12, 66.9e12, 494.7e12, 989.4e12, 132, 50 << 20, 228 << 10, 2048, 32),
    Card("A100", (8, 0), 2.039e12, 19.5e12, 156e12, 312e12, 108, 40 << 20, 164 << 10, 2048, 32),  # 80 GB, SXM
    Card("L4", (8, 9), 0.3e12, 30.3e12, 60.5e12, 121e12, 58, 48 << 20, 100 << 10, 1536, 24),
    Card("RTX 4090", (8, 9), 1.008e12, 82.6e12, 82.6e12, 165.2e12, 128, 72 << 20, 100 << 10, 1536, 24),
)}


def card_named(name: str) -> Card:
    """The card of a name, capitals and blanks left aside. Raises ValueError for a name that no sheet has."""
    def plain(text: str) -> str:
        return text.replace(" ", "").lower()

    for card in CARDS.values():
        if plain(card.name) == plain(name):
            return card
    raise ValueError(f"card: expected one of {', '.join(CARDS)}, got {name!r}")


def resident_blocks(card: Card, threads: int, registers: int, shared: int) -> int:
    """How many blocks a multiprocessor holds at once: the least of what each of its resources allows.

        warps      ceil(threads / 32) of each block, within the most threads
        blocks     the most blocks
        registers  32 registers of each warp, rounded up to 256; a quarter of all for the warps of each quarter
        shared     bytes of each block and 1,024 of the system's, rounded up to 128

    threads    of a block
    registers  of a thread
    shared     bytes of a block, static and dynamic
    Source: CUDA C++ Best Practices Guide, "Calculating Occupancy"; the granularities from NVIDIA's occupancy
    calculator (compute capability 8.0 and later).
    """
    warps = -(-threads // _WARP)
    by_threads = card.most_threads // _WARP // warps
    per_warp = _round_up(max(1, registers) * _WARP, _REGISTER_UNIT)
    by_registers = card.registers // _PARTITIONS // per_warp * _PARTITIONS // warps
    by_shared = card.shared // _round_up(shared + _SHARED_RESERVED, _SHARED_UNIT)
    return min(by_threads, card.most_blocks, by_registers, by_shared)


def occupancy(card: Card, threads: int, registers: int, shared: int) -> float:
    """Resident threads, in whole warps, as a share of the most that a multiprocessor holds; as `resident_blocks`."""
    warps = -(-threads // _WARP)
    return resident_blocks(card, threads, registers, shared) * warps * _WARP / card.most_threads


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def roofline(card: Card, moved: int, flops: int, rate: str = "float32") -> float:
    """The least time in seconds: of moving the bytes or of computing, whichever takes longer.

    rate  "float32", "tf32" or "bfloat16": what computes
    Source: Williams, Waterman and Patterson, "Roofline", Communications of the ACM 52, 2009.
    """
    return max(moved / card.bandwidth, flops / {"float32": card.fp32, "tf32": card.tf32, "bfloat16": card.bf16}[rate])
