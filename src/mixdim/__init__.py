"""Mixed dimension embeddings: wide vectors for popular ids, narrow ones for rare ids."""

from importlib import import_module
from types import ModuleType

from mixdim.blocking import equal_mass_bands
from mixdim.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.interaction import dot_interaction
from mixdim.optim import SparseAMSGrad
from mixdim.plan import Plan, UnknownFeatureError
from mixdim.planning import FloorWarning, plan
from mixdim.scores import dot_scores
from mixdim.sizing import power_law_dims

__version__ = "0.1.0"

__all__ = [
    "FeatureEmbeddings",
    "FloorWarning",
    "MixedDimEmbedding",
    "Plan",
    "SparseAMSGrad",
    "UnknownFeatureError",
    "dot_interaction",
    "dot_scores",
    "equal_mass_bands",
    "plan",
    "power_law_dims",
]


def __getattr__(name: str) -> ModuleType:
    """Import `mixdim.data` when it is first used: it needs polars, which the core does not."""
    if name == "data":
        return import_module("mixdim.data")
    raise AttributeError(f"module 'mixdim' has no attribute {name!r}")
