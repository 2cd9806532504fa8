"""Models that score samples with the embeddings they are given: DLRM, matrix factorisation, NCF."""

from mixdim.models.dlrm import DLRM
from mixdim.models.first_order import WithFirstOrder
from mixdim.models.matrix_factorization import MatrixFactorization
from mixdim.models.mlp import mlp
from mixdim.models.neural_cf import NeuralCollaborativeFiltering
from mixdim.models.samples import Samples

__all__ = [
    "DLRM",
    "MatrixFactorization",
    "NeuralCollaborativeFiltering",
    "Samples",
    "WithFirstOrder",
    "mlp",
]
