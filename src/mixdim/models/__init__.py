"""Models that score samples with the embeddings they are given; a model is a file, `MODELS` has all.

Read base.py first; features.py and pairs.py have what models share.
"""

from mixdim.models.base import MODELS, Baseline, Drawn, Facts, Model, model_named, register
from mixdim.models.dcn import DCN
from mixdim.models.deepfm import DeepFM
from mixdim.models.dlrm import DLRM
from mixdim.models.first_order import FirstOrder
from mixdim.models.mf import MatrixFactorization
from mixdim.models.mlp import mlp
from mixdim.models.ncf import NeuralCollaborativeFiltering
from mixdim.models.samples import Samples

__all__ = [
    "DCN",
    "DLRM",
    "MODELS",
    "Baseline",
    "DeepFM",
    "Drawn",
    "Facts",
    "FirstOrder",
    "MatrixFactorization",
    "Model",
    "NeuralCollaborativeFiltering",
    "Samples",
    "mlp",
    "model_named",
    "register",
]
