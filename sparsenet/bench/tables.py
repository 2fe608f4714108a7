"""The budgets as text: what each CUDA kernel costs, on a card or for a generation of GPUs."""

from collections.abc import Callable
from itertools import groupby

from sparsenet.bench import budgets
from sparsenet.bench.cards import CARDS, Card, card_named, occupancy, roofline
from sparsenet.bench.catalogue import entries
from sparsenet.bench.entry import REFERENCE, Entry

__all__ = ["ARCHITECTURES", "CARDS", "for_architecture", "for_card"]

ARCHITECTURES = [f"sm_{major}{minor}" for major, minor in budgets.CAPABILITIES]
_CODE = ("blocks", "threads", "registers", "spills", "shared", "LDG/STG.128", "LDS/STS.128", "HMMA")
_COST = ("B/element", "FLOP/element")


def for_card(name: str) -> str:
    """The table of a card: also its occupancy and least time. Raises ValueError where no data sheet has the name."""
    card = card_named(name)
    best = max(capability for capability in budgets.CAPABILITIES
               if capability[0] == card.capability[0] and capability <= card.capability)
    architecture = f"sm_{best[0]}{best[1]}"
    title = (f"{card.name}: machine code for {architecture}, {card.bandwidth / 1e12:.3g} TB/s, "
             f"{card.fp32 / 1e12:.3g} TFLOP/s in float32")
    return _table(title, architecture, card)


def for_architecture(name: str) -> str:
    """The table of an architecture, "sm_90" for example. Raises ValueError for one that is not in the table."""
    if name not in ARCHITECTURES:
        raise ValueError(f"arch: expected one of {', '.join(ARCHITECTURES)}, got {name!r}")
    return _table(f"Machine code for {name}", name, None)


def _table(title: str, architecture: str, card: Card | None) -> str:
    table = budgets.read()
    rows = [row for row in table.rows if row.code.architecture == architecture]
    launches = {name: list(group) for name, group in groupby(rows, lambda row: row.entry)}
    lines = [("", *_CODE, *(["occupancy"] if card else []), *_COST, *(["least us"] if card else []))]
    for entry in entries():
        found, cost = launches.get(entry.name, []), _cost(entry, card)
        if len(found) == 1:
            lines.append((entry.name, *_code(found[0], card), *cost))
        else:
            lines.append((entry.name, *[""] * (len(lines[0]) - 1 - len(cost)), *cost))
            lines += [(f"  {row.launch}", *_code(row, card), *[""] * len(cost)) for row in found]
    size = (f"Sizes: batch {REFERENCE.batch}, {REFERENCE.features:,} features and outputs, {REFERENCE.hidden} units, "
            f"about {REFERENCE.per_example} nonzeros an example. Compiled by {table.compilers}.")
    return "\n".join([title, size, "", *_aligned(lines)])


def _code(row: budgets.Row, card: Card | None) -> list[str]:
    code = row.code
    wide = f"{code.wide_loads}/{code.wide_stores}", f"{code.wide_shared_loads}/{code.wide_shared_stores}"
    counts = (row.blocks, row.threads, code.registers, code.spills, code.shared, *wide, code.tensor)
    share = [f"{occupancy(card, row.threads, code.registers, code.shared):.0%}"] if card else []
    return [*(str(count) for count in counts), *share]


def _cost(entry: Entry, card: Card | None) -> list[str]:
    least = [f"{1e6 * roofline(card, entry.moved, entry.flops, entry.rate):.3g}"] if card else []
    return [f"{entry.moved / entry.elements:.4g}", f"{entry.flops / entry.elements:.4g}", *least]


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pads: list[Callable] = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return ["  ".join(pad(text, width) for pad, text, width in zip(pads, line, widths, strict=True)).rstrip()
            for line in lines]
