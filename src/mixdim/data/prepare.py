"""Raw files in, a prepared folder out: one function for each raw format.

Knows nothing itself: each format has a file of its own.
"""

from mixdim.data.criteo import prepare_criteo
from mixdim.data.movielens import prepare_movielens
from mixdim.data.table import prepare_table

__all__ = ["prepare_criteo", "prepare_movielens", "prepare_table"]
