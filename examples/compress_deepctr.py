"""Compress a trained DeepFM of deepctr-torch to 1/8 up to 1/64. Give ml-1m.zip, or it draws clicks."""

import argparse
import itertools

import torch
from clicks import NAMES, read_clicks
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn.functional import binary_cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import mixdim


def main(data: str | None = None, rows: int = 200_000, epochs: int = 2, with_loss: bool = True) -> None:
    """Train, compress, and say what was lost."""
    ids, liked = read_clicks(data, rows)
    split = len(ids) * 9 // 10
    features = [SparseFeat(name, int(n) + 1, 16) for name, n in zip(NAMES, ids.max(0), strict=True)]

    def new_model() -> DeepFM:
        model = DeepFM(features, features, dnn_hidden_units=(128, 64), l2_reg_embedding=1e-6, seed=0)
        model.compile("adam", "binary_crossentropy")
        return model

    def report(name: str, model: DeepFM, num_bytes: int) -> None:
        found = model.predict(dict(zip(NAMES, ids[split:].T, strict=True)), batch_size=8192)
        loss, auc = log_loss(liked[split:], found), roc_auc_score(liked[split:], found)
        print(f"{name}: log loss {loss:.4f}, AUC {auc:.4f}, {num_bytes:,} bytes in wide tables")

    model = new_model()
    inputs = dict(zip(NAMES, ids[:split].T, strict=True))
    model.fit(inputs, liked[:split], batch_size=2048, epochs=epochs, verbose=0)
    batches = TensorDataset(torch.tensor(ids[:split], dtype=torch.float32), torch.tensor(liked[:split]))
    counts = mixdim.observe(
        model,
        DataLoader(batches, batch_size=8192),
        call=lambda model, batch: model(batch[0]).squeeze(1),
        loss=(lambda output, batch: binary_cross_entropy(output, batch[1])) if with_loss else None,
    )
    report("before", model, sum(table.weight.nbytes for table in model.embedding_dict.values()))
    for share, bits in itertools.product(("1/8", "1/16", "1/32", "1/64"), ("auto", 32)):
        small = new_model()
        small.load_state_dict(model.state_dict())
        result = mixdim.compress(small, counts, budget=share, bits=bits)
        report(f"{share}, {bits} bits", small, result.bytes_after - result.bytes_refused)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="ml-1m.zip")
    parser.add_argument("--counts-only", action="store_true", help="do not look at the loss's gradients")
    told = parser.parse_args()
    main(told.data, with_loss=not told.counts_only)
