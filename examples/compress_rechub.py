"""Compress a trained DeepFM of torch-rechub to 1/8 and 1/32, on MovieLens 1M or generated clicks.

    python examples/compress_rechub.py --data ml-1m.zip
"""

import argparse
import tempfile
import zipfile

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

import mixdim

NAMES = ["user", "movie"]


def clicks(path: str | None, rows: int) -> pd.DataFrame:
    """Ids of users and movies, and whether the user gave 4 stars or more; shuffled."""
    if path is not None:
        with zipfile.ZipFile(path) as archive, archive.open("ml-1m/ratings.dat") as file:
            read = pd.read_csv(file, sep=":", usecols=[0, 2, 4], names=range(7), header=None)
        read.columns = [*NAMES, "stars"]
        read["liked"] = (read["stars"] >= 4).astype(int)
    else:
        draw = np.random.default_rng(0)
        read = pd.DataFrame({name: draw.zipf(1.3, rows) % 5000 for name in NAMES})
        odds = draw.normal(size=5000)[read["movie"]] + draw.normal(size=5000)[read["user"]]
        read["liked"] = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    encoded = {name: pd.factorize(read[name])[0] for name in NAMES}
    return read.assign(**encoded).sample(frac=1, random_state=0)


def main(data: str | None = None, rows: int = 200_000, width: int = 16, epochs: int = 3) -> None:
    """Train, compress, and say what was lost."""
    torch.manual_seed(0)
    table = clicks(data, rows)
    features = [SparseFeature(name, int(table[name].max()) + 1, embed_dim=width) for name in NAMES]
    loader = DataGenerator({name: table[name].to_numpy() for name in NAMES}, table["liked"].to_numpy())
    train, _, test = loader.generate_dataloader(split_ratio=[0.85, 0.05], batch_size=2048)
    model = DeepFM(features, features, mlp_params={"dims": [128, 64], "dropout": 0.0, "activation": "relu"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(model, n_epoch=epochs, model_path=folder)
        trainer.fit(train)
    learned = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def report(name: str, num_bytes: int) -> None:
        liked = np.concatenate([target.numpy() for _, target in test])
        found = np.array(trainer.predict(model, test))
        loss, auc = log_loss(liked, found), roc_auc_score(liked, found)
        print(f"{name}: log loss {loss:.4f}, AUC {auc:.4f}, {num_bytes:,} bytes of tables")

    counts = mixdim.observe(model, train, call=lambda model, batch: model(batch[0]))
    report("before", sum(feature.embed.weight.nbytes for feature in features))
    for ratio in (8, 32):
        result = mixdim.compress(model, counts, budget=f"1/{ratio}", optimizers=[trainer.optimizer])
        report(f"1/{ratio}", result.bytes_after)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="ml-1m.zip; generated clicks if not given")
    main(parser.parse_args().data)
