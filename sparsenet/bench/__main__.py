"""The command `python -m sparsenet.bench`: for those who work on kernels."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsenet.bench import budgets, gpu
from sparsenet.device import device


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"sparsenet.bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m sparsenet.bench", description="What the CUDA kernels cost.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("budgets", help="compile every kernel and compare with budgets.csv; needs no GPU")
    command.add_argument("--write", action="store_true", help="write budgets.csv instead")
    command.set_defaults(run=_budgets)
    command = commands.add_parser("gpu", help="measure kernels and training on a GPU, beside PyTorch; writes tables")
    command.add_argument("--minutes", type=float, default=5, help="for all that is not measured yet (%(default)s)")
    command.add_argument("--out", type=Path, default=Path("gpu-report"), metavar="DIR", help="(%(default)s)")
    command.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulator"), help="(%(default)s)")
    command.add_argument("--small", type=int, default=1, metavar="N", help="divide all sizes by N, to try the report")
    command.add_argument("--section", choices=gpu.SECTIONS, help="only this one, in this process")
    command.set_defaults(run=_gpu)
    return parser


def _budgets(options: argparse.Namespace) -> int:
    found = budgets.build(*budgets.CAPABILITIES)
    if options.write:
        budgets.write(found, budgets.FILE)
        print(f"{len(found.rows)} rows written to {budgets.FILE}")
        return 0
    worse = list(budgets.complaints(found, budgets.read()))
    print(*worse, sep="\n", end="\n" if worse else "")
    print(budgets.REBUILD if worse else f"{len(found.rows)} launches within their budgets")
    return 1 if worse else 0


def _gpu(options: argparse.Namespace) -> int:
    out = options.out.resolve()
    if options.section:
        gpu.measure(options.section, options.device, options.small, options.minutes, out)
        return 0
    if options.device != "emulator":
        device(options.device)  # says at once what is missing
    print(f"tables in {gpu.report(options.device, options.small, options.minutes, out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
