"""Files without examples that need TorchRec are not imported to look for any: it takes a second."""

collect_ignore = [
    f"src/mixdim/distributed/{name}.py"
    for name in ("checkpoints", "embeddings", "engine", "sharding", "training")
]
