"""The contestants of the speed benchmark: sparsenet (ours) and its peers, each a function `steps(task)`."""
