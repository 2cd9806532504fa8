"""Records made by hand, for figures and claims whose right answer is known by construction."""

from mixdim.runs.sweeps.records import Record


def click_record(*, temperature=0.0, base_dim=2, parameters=1000, budget=None, seed=0, loss=0.5,
                 accuracy=0.75, seconds=10.0, plan=None, init="xavier"):  # fmt: skip
    """A finished run of DLRM: everything that figures and claims look at."""
    metrics = {"rows": 100, "log_loss": loss, "accuracy": accuracy, "step": 20}
    config = {"model": "dlrm", "temperature": None if plan else temperature, "seed": seed, "plan": plan,
              "model_budget": None if plan else budget or parameters, "init": init, "batch_size": 10,
              "base_dim": None if plan else base_dim, "bands": 1, "data": "clicks"}  # fmt: skip
    summary = {"model": "dlrm", "temperature": temperature, "base_dim": base_dim, "bands": 1,
               "num_parameters": parameters, "embedding_parameters": parameters - 100, "seed": seed,
               "seconds": seconds,
               "validation": {"best": metrics, "last": metrics},
               "test": {"best": metrics, "last": metrics}}  # fmt: skip
    curve = [
        {"step": step, "epoch": step / 20, "train_seconds": seconds * step / 20,
         "seconds": 2 * seconds * step / 20, "loss": loss + 1 / step, "accuracy": accuracy}
        for step in (10, 20)
    ]  # fmt: skip
    key = repr(sorted(config.items(), key=str))
    return Record(key, "finished", None, config, summary, curve, dict(metrics), "2026-11-16T02:00:00Z")


def rating_record(*, temperature=0.0, base_dim=2, parameters=1000, budget=None, seed=0, loss=0.8,
                  popular=0.7, rare=0.9, bands=8, train_slices=True):  # fmt: skip
    """A finished run of matrix factorisation; training loss is 0.1 below test loss everywhere."""
    slices = {"popular": {"mse": popular}, "middle": {"mse": loss}, "rare": {"mse": rare}}
    metrics = {"rows": 100, "mse": loss, "slices": slices}
    config = {"model": "mf", "temperature": temperature, "seed": seed, "plan": None, "init": "xavier",
              "model_budget": budget or parameters, "base_dim": base_dim, "bands": bands,
              "data": "ratings", "batch_size": 10}  # fmt: skip
    summary = {"model": "mf", "temperature": temperature, "base_dim": base_dim, "bands": bands,
               "num_parameters": parameters, "embedding_parameters": parameters, "seed": seed,
               "seconds": 2.0,
               "validation": {"best": metrics, "last": metrics},
               "test": {"best": metrics, "last": metrics}}  # fmt: skip
    train = {"rows": 100, "mse": loss - 0.1}
    if train_slices:
        train["slices"] = {name: {"mse": third["mse"] - 0.1} for name, third in slices.items()}
    curve = [{"step": 5, "epoch": 1, "train_seconds": 1.0, "seconds": 2.0, "loss": loss}]
    key = repr(sorted(config.items(), key=str))
    return Record(key, "finished", None, config, summary, curve, train, "2026-11-16T02:00:00Z")


def frontier(seeds=(0, 1), noise=0.01):
    """Uniform widths 2, 4 and 8, and temperature 0.3, as good with a quarter of the parameters."""
    found = []
    for seed in seeds:
        for width, loss in ((2, 0.6), (4, 0.55), (8, 0.5)):
            shift = noise * seed
            found.append(click_record(base_dim=width, parameters=1000 * width, seed=seed,
                                      loss=loss + shift, accuracy=1 - loss, seconds=width))  # fmt: skip
            found.append(click_record(temperature=0.3, base_dim=8 * width, parameters=1000 * width,
                                      seed=seed, loss=loss - 0.1 + shift, accuracy=1.1 - loss,
                                      seconds=width / 2))  # fmt: skip
    return found
