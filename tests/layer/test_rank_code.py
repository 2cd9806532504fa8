import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixdim.layer.rank_code import CHUNK, MOST_BANDS, RankCode, rank_code_nbytes


@st.composite
def bands_of_fields(draw):
    """The band of every id, by field: without gaps, and in one field at least two of them."""
    rng, fields = np.random.default_rng(draw(st.integers(0, 2**32))), []
    rows = st.one_of(st.integers(2, 40), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7]))
    for number in range(draw(st.integers(1, 4))):
        size = draw(rows)
        bands = draw(st.integers(1 + (number == 0), min(size, 9)))
        if bands == 1:
            fields.append(size)
            continue
        popular = rng.dirichlet(np.full(bands, 0.5))
        field = np.concatenate([np.arange(bands), rng.choice(bands, size - bands, p=popular)])
        fields.append(rng.permutation(field))
    return draw(st.permutations(fields))


def sorted_ranks(fields):
    """The ranks by sorting: fields one after the other, by band, then by id."""
    ranks, start = [], 0
    for field in fields:
        bands = np.zeros(field) if isinstance(field, int) else field
        ranks.append(start + np.argsort(np.argsort(bands, kind="stable")))
        start += len(bands)
    return np.concatenate(ranks)


@given(bands_of_fields())
def test_ranks_are_those_of_sorting_by_band_and_id(fields):
    code, ranks = RankCode.of(fields), sorted_ranks(fields)
    ids = torch.arange(len(ranks))
    assert code(ids).tolist() == ranks.tolist()
    assert code(ids.flip(0).view(1, -1)).tolist() == [ranks[::-1].tolist()]
    assert code.ranks().tolist() == ranks.tolist()
    assert code.ids()[ranks].tolist() == ids.tolist()


@given(bands_of_fields())
def test_bytes_are_those_of_the_state_and_can_be_told_before(fields):
    code = RankCode.of(fields)
    assert code.nbytes == sum(tensor.nbytes for tensor in code.state_dict().values())
    told = [rank_code_nbytes(rows, bands, of_rows=code.num_rows) for rows, bands in code.shape]
    assert code.nbytes == sum(told)
    copy = RankCode(code.shape)
    copy.load_state_dict(code.state_dict())
    assert torch.equal(copy(torch.arange(code.num_rows)), code(torch.arange(code.num_rows)))


def test_every_number_of_bands_up_to_the_most_is_exact():
    for bands in (2, 3, 31, MOST_BANDS):
        field = np.random.default_rng(bands).permutation(np.arange(1000) % bands)
        assert RankCode.of([field])(torch.arange(1000)).tolist() == sorted_ranks([field]).tolist()
    with pytest.raises(ValueError, match="bands of a field must be at most 64, got 65"):
        RankCode([(1000, 65)])


def test_a_code_of_one_band_everywhere_is_refused():
    with pytest.raises(ValueError, match="ids are ranks already"):
        RankCode([(10, 1), (5, 1)])


def test_eight_bands_take_five_eighths_of_a_byte():
    assert rank_code_nbytes(2**20, 8, of_rows=2**20) == 5 / 8 * 2**20
