"""Mixed dimension embeddings: wide vectors for popular ids, narrow ones for rare ids.

Names and rooms are imported when they are first used, so that planning needs no torch, which takes
seconds to import, and the core no polars. A name is in three lists here, which a test compares: the
imports that type checkers read, where it is, and `__all__`.
"""

from mixdim._util import startup as startup  # isort: skip  # before what takes seconds to import

from typing import TYPE_CHECKING

from mixdim._util.lazy import names_later

if TYPE_CHECKING:
    from mixdim import compression as compression
    from mixdim import data as data
    from mixdim import distributed as distributed
    from mixdim import kernels as kernels
    from mixdim import lab as lab
    from mixdim import layer as layer
    from mixdim import models as models
    from mixdim import optim as optim
    from mixdim import planning as planning
    from mixdim import serving as serving
    from mixdim import storages as storages
    from mixdim import training as training
    from mixdim.compression.compress import compress
    from mixdim.compression.files import load_compressed, save_compressed
    from mixdim.compression.observe import observe
    from mixdim.lab import theory as theory
    from mixdim.layer.data_parallel import DistributedDataParallel
    from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
    from mixdim.layer.interaction import dot_interaction
    from mixdim.layer.quantizing import quantize
    from mixdim.layer.replan import replan
    from mixdim.layer.scores import dot_scores
    from mixdim.optim import SparseAMSGrad, clip_grad_norm_
    from mixdim.planning.bands import equal_mass_bands
    from mixdim.planning.feature import UnknownFeatureError
    from mixdim.planning.from_counts import FloorWarning, plan
    from mixdim.planning.from_tables import spectral_plan
    from mixdim.planning.plan import Plan
    from mixdim.planning.sizing import power_law_dims
    from mixdim.runs.run import Run
    from mixdim.serving.exporting import export
    from mixdim.storages import Hashed, QuotientRemainder, Robe, Rows
    from mixdim.training.fitting import fit
else:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = names_later(
        globals(),
        names={
            "DistributedDataParallel": "layer.data_parallel",
            "FeatureEmbeddings": "layer.embedding",
            "FloorWarning": "planning.from_counts",
            "Hashed": "storages",
            "MixedDimEmbedding": "layer.embedding",
            "Plan": "planning.plan",
            "QuotientRemainder": "storages",
            "Robe": "storages",
            "Rows": "storages",
            "Run": "runs.run",
            "SparseAMSGrad": "optim",
            "UnknownFeatureError": "planning.feature",
            "clip_grad_norm_": "optim",
            "compress": "compression.compress",
            "dot_interaction": "layer.interaction",
            "dot_scores": "layer.scores",
            "equal_mass_bands": "planning.bands",
            "export": "serving.exporting",
            "fit": "training.fitting",
            "load_compressed": "compression.files",
            "observe": "compression.observe",
            "plan": "planning.from_counts",
            "power_law_dims": "planning.sizing",
            "quantize": "layer.quantizing",
            "replan": "layer.replan",
            "save_compressed": "compression.files",
            "spectral_plan": "planning.from_tables",
        },
        modules={
            **{room: room for room in ("compression", "data", "distributed", "kernels", "lab", "layer")},
            **{room: room for room in ("models", "optim", "planning", "serving", "storages")},
            **{"training": "training", "theory": "lab.theory"},
        },
    )

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
    "Run",
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
    "replan",
    "save_compressed",
    "spectral_plan",
]
