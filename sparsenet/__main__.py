"""`python -m sparsenet` is the command `sparsenet`."""

import sys

from sparsenet.cli import main

sys.exit(main())
