"""One run: its options, its model, training it, opening it again."""
