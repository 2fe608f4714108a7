"""The command `sparsenet`. Wrong use and bad files: one line, exit status 2."""

import argparse
import io
import sys
from collections.abc import Sequence
from dataclasses import replace

from sparsenet import demo
from sparsenet.bench import tables
from sparsenet.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a product's name may hold what the terminal cannot show
    try:
        return options.run(options)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        print(f"sparsenet: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sparsenet", description="Neural networks on sparse data.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("demo", help="train a recommender on real purchases, compare, recommend by name")
    defaults = demo.Settings()
    command.add_argument("--ratings", metavar="FILE", help="a MovieLens file: u.data, ratings.csv or ratings.dat")
    command.add_argument("--min-rating", type=float, metavar="R", help="count only ratings of R or more")
    command.add_argument("--out", default="sparsenet-demo", metavar="DIR", help="folder for results (%(default)s)")
    command.add_argument("--epochs", type=int, default=defaults.epochs, help="at most (%(default)s)")
    command.add_argument("--hidden", type=int, default=defaults.hidden, help="units of the hidden layer (%(default)s)")
    command.add_argument("--batch", type=int, default=defaults.batch, help="examples a step (%(default)s)")
    command.add_argument("--seed", type=int, default=1, help="same seed, same result (%(default)s)")
    command.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU")
    command.set_defaults(run=_demo)
    command = commands.add_parser("kernels", help="what each CUDA kernel costs: machine code, bytes, FLOPs, least time")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--card", nargs="+", default=["H200"], metavar="NAME",
                       help=f"{', '.join(tables.CARDS)} (H200)")
    which.add_argument("--arch", metavar="SM", help=f"machine code alone, for {', '.join(tables.ARCHITECTURES)}")
    command.set_defaults(run=_kernels)
    return parser


def _demo(options: argparse.Namespace) -> int:
    settings = replace(demo.Settings(), epochs=options.epochs, hidden=options.hidden, batch=options.batch)
    demo.run(ratings=options.ratings, min_rating=options.min_rating, out=options.out, settings=settings,
             seed=options.seed, device=options.device)
    return 0


def _kernels(options: argparse.Namespace) -> int:
    if options.arch:
        print(tables.for_architecture(options.arch))
    else:
        print(*[tables.for_card(name) for name in options.card], sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
