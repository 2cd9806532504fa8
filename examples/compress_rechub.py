"""Compress a trained DeepFM of torch-rechub to 1/8 up to 1/64. Give ml-1m.zip, or it draws clicks."""

import argparse
import itertools
import tempfile

import torch
from clicks import NAMES, read_clicks
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn.functional import binary_cross_entropy
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

import mixdim


def main(data: str | None = None, rows: int = 200_000, epochs: int = 2, with_loss: bool = True) -> None:
    """Train, compress, and say what was lost."""
    torch.manual_seed(0)
    ids, liked = read_clicks(data, rows)
    split = len(ids) * 9 // 10
    inputs = [dict(zip(NAMES, part.T, strict=True)) for part in (ids[:split], ids[split:])]
    loader = DataGenerator(inputs[0], liked[:split])
    train, test, _ = loader.generate_dataloader(
        inputs[1], liked[split:], inputs[1], liked[split:], batch_size=2048
    )

    def new_model() -> DeepFM:
        features = [
            SparseFeature(name, int(n) + 1, 16) for name, n in zip(NAMES, ids.max(0), strict=True)
        ]
        return DeepFM(features, features, {"dims": [128, 64], "activation": "relu", "dropout": 0})

    def report(name: str, model: DeepFM, num_bytes: int) -> None:
        found = trainer.predict(model, test)
        loss, auc = log_loss(liked[split:], found), roc_auc_score(liked[split:], found)
        print(f"{name}: log loss {loss:.4f}, AUC {auc:.4f}, {num_bytes:,} bytes of tables")

    model = new_model()
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(model, n_epoch=epochs, model_path=folder)
        trainer.fit(train)
    counts = mixdim.observe(
        model,
        train,
        call=lambda model, batch: model(batch[0]),
        loss=(lambda output, batch: binary_cross_entropy(output, batch[1])) if with_loss else None,
    )
    report("before", model, sum(t.weight.nbytes for t in model.embedding.embed_dict.values()))
    for share, bits in itertools.product(("1/8", "1/16", "1/32", "1/64"), ("auto", 32)):
        small = new_model()
        small.load_state_dict(model.state_dict())
        result = mixdim.compress(small, counts, budget=share, bits=bits)
        for feature in small.deep_features:  # which still have the old tables, as result.stale says
            feature.embed = small.embedding.embed_dict[feature.name]
        report(f"{share}, {bits} bits", small, result.bytes_after)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="ml-1m.zip")
    parser.add_argument("--counts-only", action="store_true", help="do not look at the loss's gradients")
    told = parser.parse_args()
    main(told.data, with_loss=not told.counts_only)
