"""Compress a trained DeepFM of deepctr-torch to 1/8 and 1/32, on MovieLens 1M or generated clicks.

    python examples/compress_deepctr.py --data ml-1m.zip
"""

import argparse
import copy
import zipfile

import numpy as np
import pandas as pd
import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from sklearn.metrics import log_loss, roc_auc_score

import mixdim

NAMES = ["user", "movie"]


def clicks(path: str | None, rows: int) -> pd.DataFrame:
    """Ids of users and movies, and whether the user gave 4 stars or more; in the order of time."""
    if path is not None:
        with zipfile.ZipFile(path) as archive, archive.open("ml-1m/ratings.dat") as file:
            read = pd.read_csv(file, sep=":", usecols=[0, 2, 4, 6], names=range(7), header=None)
        read.columns = [*NAMES, "stars", "time"]
        read = read.sort_values("time", kind="stable").assign(liked=(read["stars"] >= 4).astype(int))
    else:
        draw = np.random.default_rng(0)
        read = pd.DataFrame({name: draw.zipf(1.3, rows) % 5000 for name in NAMES})
        taste, quality = draw.normal(size=(2, 5000))
        odds = quality[read["movie"]] + taste[read["user"]] * np.sin(read["movie"])
        read["liked"] = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return read.assign(**{name: pd.factorize(read[name])[0] for name in NAMES})


def main(data: str | None = None, rows: int = 200_000, width: int = 16, epochs: int = 3) -> None:
    """Train, compress, and say what was lost."""
    table = clicks(data, rows).sample(frac=1, random_state=0)
    train, test = np.split(table, [int(0.9 * len(table))])
    columns = [SparseFeat(name, int(table[name].max()) + 1, embedding_dim=width) for name in NAMES]
    model = DeepFM(columns, columns, dnn_hidden_units=(128, 64), l2_reg_embedding=1e-6, seed=0)
    model.compile("adam", "binary_crossentropy")
    inputs = {name: train[name].to_numpy() for name in NAMES}
    model.fit(inputs, train["liked"].to_numpy(), batch_size=2048, epochs=epochs, verbose=0)

    def report(name: str, model: torch.nn.Module, num_bytes: int) -> None:
        found = model.predict({name: test[name].to_numpy() for name in NAMES}, batch_size=8192)
        loss, auc = log_loss(test["liked"], found), roc_auc_score(test["liked"], found)
        print(f"{name}: log loss {loss:.4f}, AUC {auc:.4f}, {num_bytes:,} bytes of tables")

    batches = torch.tensor(train[NAMES].to_numpy(), dtype=torch.float32).split(8192)
    counts = mixdim.observe(model, batches)
    wide = sum(model.embedding_dict[name].weight.nbytes for name in NAMES)
    report("before", model, wide)
    for ratio in (8, 32):
        small = copy.deepcopy(model)
        result = mixdim.compress(small, counts, budget=f"1/{ratio}")
        report(f"1/{ratio}", small, result.bytes_after - result.bytes_refused)
        # The list of weights to regularise still has the old ones: train on with a new list.
        small.regularization_weight = []
        small.add_regularization_weight(small.embedding_dict.parameters(), l2=1e-6)
        small.compile("adam", "binary_crossentropy")  # and with an optimizer of the new parameters


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="ml-1m.zip; generated clicks if not given")
    main(parser.parse_args().data)
