"""Mixed dimension embeddings: wide vectors for popular ids, narrow ones for rare ids."""

from mixdim._util import startup as startup  # isort: skip  # before torch, which takes seconds

from importlib import import_module
from types import ModuleType

from mixdim.compression.compressing import compress
from mixdim.compression.observing import observe
from mixdim.compression.saving import load_compressed, save_compressed
from mixdim.layer.data_parallel import DistributedDataParallel
from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.quantizing import quantize
from mixdim.layer.scores import dot_scores
from mixdim.optim import SparseAMSGrad, clip_grad_norm_
from mixdim.planning.bands import equal_mass_bands
from mixdim.planning.from_counts import FloorWarning, plan
from mixdim.planning.from_tables import spectral_plan
from mixdim.planning.plan import Plan, UnknownFeatureError
from mixdim.planning.sizing import power_law_dims
from mixdim.serving.exporting import export
from mixdim.storages import Hashed, QuotientRemainder, Robe, Rows
from mixdim.training.loop import fit

__version__ = "0.1.0"

__all__ = [
    "DistributedDataParallel",
    "FeatureEmbeddings",
    "FloorWarning",
    "Hashed",
    "MixedDimEmbedding",
    "Plan",
    "QuotientRemainder",
    "Robe",
    "Rows",
    "SparseAMSGrad",
    "UnknownFeatureError",
    "clip_grad_norm_",
    "compress",
    "dot_interaction",
    "dot_scores",
    "equal_mass_bands",
    "export",
    "fit",
    "load_compressed",
    "observe",
    "plan",
    "power_law_dims",
    "quantize",
    "save_compressed",
    "spectral_plan",
]


def __getattr__(name: str) -> ModuleType:
    """Import rooms when they are first used: `mixdim.data` needs polars, which the core does not."""
    if name in ("data", "distributed", "lab", "models", "serving", "training"):
        return import_module(f"mixdim.{name}")
    if name == "theory":
        return import_module("mixdim.lab.theory")
    raise AttributeError(f"module 'mixdim' has no attribute {name!r}")
