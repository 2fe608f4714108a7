"""What each CUDA kernel costs: its machine code against a table (budgets), its least time on a card (cards)."""
