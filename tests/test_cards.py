"""Occupancy as NVIDIA publishes it, and the roofline's corner."""

import pytest

from sparsenet.bench.cards import CARDS, card_named, occupancy, resident_blocks, roofline

A100, H200, L4 = CARDS["A100"], CARDS["H200"], CARDS["L4"]


@pytest.mark.parametrize(("threads", "registers", "blocks"), [
    (128, 37, 12),  # Best Practices Guide, "Calculating Occupancy": 75 %
    (320, 37, 4),   # and 63 %
    (512, 64, 2),   # Programming Guide, "Multiprocessor Level": two blocks, one with one register more
    (512, 65, 1),
    (256, 32, 8),   # and the most registers for full occupancy: 65,536 / 2,048
    (256, 33, 6),
    (32, 16, 32),   # small blocks: no more than 32
    (1024, 64, 1),
    (1024, 65, 0),  # such a launch fails
])
def test_registers_and_threads(threads, registers, blocks):
    for card in (A100, H200):
        assert resident_blocks(card, threads, registers, shared=0) == blocks
        assert occupancy(card, threads, registers, shared=0) == blocks * threads / 2048


@pytest.mark.parametrize(("card", "most"), [(A100, 163), (H200, 227), (L4, 99)])
def test_most_shared_memory_of_a_block(card, most):
    """As each architecture's tuning guide says: all of a multiprocessor's but one kilobyte."""
    assert resident_blocks(card, 128, 32, most << 10) == 1
    assert resident_blocks(card, 128, 32, (most << 10) + 1) == 0
    assert resident_blocks(card, 128, 32, (most << 9) - 512) == 2


def test_ada_holds_fewer_threads():
    assert resident_blocks(L4, 256, 32, shared=0) == 6
    assert occupancy(L4, 256, 32, shared=0) == 1
    assert resident_blocks(L4, 1024, 32, shared=0) == 1
    assert resident_blocks(L4, 32, 32, shared=0) == 24


def test_a_part_of_a_warp_counts_as_one():
    assert resident_blocks(A100, 33, 32, shared=0) == resident_blocks(A100, 64, 32, shared=0)
    assert occupancy(A100, 33, 32, shared=0) == occupancy(A100, 64, 32, shared=0)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_data_sheets_are_plausible(card):
    """In float32 each lane does 2 FLOPs a cycle: 128 lanes a multiprocessor, the A100's 64, at 1.4 to 2.6 GHz."""
    lanes = 64 if card.name == "A100" else 128
    assert 1.4e9 < card.fp32 / (2 * lanes * card.multiprocessors) < 2.6e9
    assert card.bf16 == pytest.approx(2 * card.tf32)
    assert card.tf32 >= card.fp32


def test_roofline():
    assert roofline(H200, moved=4_800_000, flops=1) == pytest.approx(1e-6)
    assert roofline(H200, moved=1, flops=66_900_000) == pytest.approx(1e-6)
    assert roofline(A100, moved=1, flops=156_000_000, rate="tf32") == pytest.approx(1e-6)
    assert roofline(A100, moved=1, flops=312_000_000, rate="bfloat16") == pytest.approx(1e-6)


def test_names():
    assert card_named("rtx4090") is CARDS["RTX 4090"]
    with pytest.raises(ValueError, match="expected one of H200, A100, L4, RTX 4090, got 'H100'"):
        card_named("H100")
