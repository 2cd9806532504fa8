"""A whole model made small in place, table by table, or not at all."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import mixdim
from models_to_compress import Recommender, batch, batches, changed, state_of

SGD = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
WIDE = {"user", "item", "tags"}


def observed(model):
    return mixdim.observe(model, batches())


def test_the_model_works_at_once_within_the_budget(capsys):
    model = Recommender().eval()
    stats, asked = observed(model), batch(9)
    with torch.no_grad():  # a graph would hold the old tables
        before = model(*asked)
    wide = sum(getattr(model, name).weight.nbytes for name in WIDE)
    top = model.top.weight
    result = mixdim.compress(model, stats, budget="1/4")
    assert result.plan.keys() == WIDE
    assert result.bytes_before == wide + model.bias.weight.nbytes
    assert result.bytes_after - result.bytes_refused <= wide / 4
    kept = sum(getattr(model, name).nbytes for name in WIDE)
    assert result.bytes_after == kept + model.bias.weight.nbytes
    assert result.refused == {"bias": "it has width 1, so there is nothing to make narrower"}
    assert result.stale == result.optimizers == ()
    assert model.top.weight is top
    after = model(*asked)
    assert (after - before).square().mean() < 0.1 * before.var()
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    assert f"compressed {result.ratio:.1f}x" in printed
    assert "bias: it has width 1" in printed
    assert "feature" in str(result.plan)
    assert [block.dim for block in model.user.plan.blocks] == [
        block.dim for block in result.plan["user"].blocks
    ]


def test_at_full_size_nothing_is_done():
    model = Recommender()
    before = state_of(model)
    result = mixdim.compress(model, observed(model), budget="1/1", echo=None)
    assert state_of(model) == before
    assert result.refused["user"] == "the budget has room for it as it is"
    assert (result.ratio, result.bytes_after) == (1.0, result.bytes_before)


def test_what_a_table_does_not_use_costs_nothing_to_leave_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(500, 16), nn.Linear(16, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(500, 4, dtype=torch.float64) @ torch.randn(4, 16).double())
        before = model(torch.arange(500))
    mixdim.compress(model, {"0": np.arange(500) % 9}, budget="1/3", echo=None)
    assert torch.allclose(model(torch.arange(500)), before, atol=1e-10)


def test_what_was_made_in_inference_mode_can_be_trained():
    model, given = Recommender(), batches()
    with torch.inference_mode():
        stats = mixdim.observe(model, given, loss=lambda output, batch: output.square().mean())
        mixdim.compress(model, stats, budget="1/4", echo=None)
    model(*batch()).sum().backward()
    assert all(parameter.grad is not None for parameter in model.user.parameters())


def test_bytes_are_for_all_tables_and_a_share_for_those_that_it_compresses():
    refused = Recommender().bias.weight.nbytes
    model = Recommender()
    result = mixdim.compress(model, observed(model), budget=20_000 + refused, echo=None)
    assert 15_000 < result.bytes_after - result.bytes_refused <= 20_000
    assert result.bytes_after <= 20_000 + refused
    model = Recommender()
    assert mixdim.compress(model, observed(model), budget="20kB", echo=None).bytes_after <= 20_000


def test_a_lower_budget_keeps_less_and_fewer_bits_keep_more():
    kept = {}
    for budget, bits in (("1/4", 32), ("1/16", 32), ("1/16", 8), ("1/16", 4)):
        model = Recommender()
        result = mixdim.compress(model, observed(model), budget=budget, bits=bits, echo=None)
        kept[budget, bits] = np.mean([t.kept_energy for t in result.tables if t.kept_energy is not None])
    assert kept["1/4", 32] > kept["1/16", 32]
    assert kept["1/16", 4] > kept["1/16", 8] > kept["1/16", 32]


def test_what_the_loss_feels_is_kept_first():
    """A model whose output sees two of sixteen directions loses less with its metric than without."""
    errors = {}
    for with_metric in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(500, 16), nn.Linear(16, 2, bias=False))
        given = [torch.from_numpy(np.random.default_rng(0).zipf(1.2, 2000) % 500)]
        loss = (lambda output, batch: output.square().sum()) if with_metric else None
        stats, before = mixdim.observe(model, given, loss=loss), model(given[0])
        mixdim.compress(model, stats, budget="1/8", echo=None)
        errors[with_metric] = (model(given[0]) - before).square().mean().item()
    assert errors[True] < 0.5 * errors[False]


def test_fields_that_share_a_table_are_cut_on_their_own():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(300, 8), nn.Linear(8, 1))

    counts = np.concatenate([np.arange(100), np.arange(200)[::-1]])
    one, by_name = model(), model()
    result = mixdim.compress(one, {"0": counts}, "1/4", fields=[100, 200], echo=None)
    mixdim.compress(by_name, {"0": counts}, "1/4", fields={"0": [100, 200]}, echo=None)
    assert torch.equal(one[0].weight, by_name[0].weight)
    starts = [block.start for block in result.plan["0"].blocks]
    assert 100 in starts
    with pytest.raises(ValueError, match="fields of 0 must add up to its 300 rows, got 299"):
        mixdim.compress(model(), {"0": counts}, "1/4", fields=[100, 199])
    with pytest.raises(ValueError, match="fields must be given by table: the model has 4 tables"):
        mixdim.compress(Recommender(), observed(Recommender()), "1/4", fields=[100, 200])


def test_a_module_in_two_places_is_swapped_in_both():
    torch.manual_seed(0)
    table = nn.Embedding(200, 8)
    model = nn.ModuleDict({"query": table, "deep": nn.Sequential(table)})
    counts = torch.arange(200, dtype=torch.bfloat16)
    result = mixdim.compress(model, {"deep.0": counts}, budget="1/4", echo=None)
    assert model["query"] is model["deep"][0]
    assert list(result.plan) == ["query"]
    assert result.bytes_before == 200 * 8 * 4


class OwnForward(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 2


class OwnScores(nn.Embedding):
    def scores(self, query):
        return query @ self.weight.t()


class OwnScale(nn.EmbeddingBag):
    def __init__(self, *sizes):
        super().__init__(*sizes, mode="mean")
        self.scale = nn.Parameter(torch.ones(1))


class OwnStart(nn.Embedding):
    """One that only starts in another way, as libraries have them: it is compressed."""

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=0.01)


def tied(model):
    model.lm_head = nn.Linear(16, 400)
    model.lm_head.weight = model.user.weight
    return model


def with_hook(model):
    model.user.register_forward_hook(lambda *_: None)
    return model


def with_hook_of_weight(model):
    model.user.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


def with_padding_row(model):
    with torch.no_grad():
        model.item.weight[0] = 1.0
    return model


def with_forward_of_its_own(model):
    model.user.forward = model.user.forward
    return model


REFUSED = {
    "user: its weight is also lm_head.weight": tied,
    "user: max_norm changes": lambda m: changed(m, user=nn.Embedding(400, 16, max_norm=1.0)),
    "user: scale_grad_by_freq": lambda m: changed(
        m, user=nn.Embedding(400, 16, scale_grad_by_freq=True)
    ),
    "user: it is a OwnForward with a forward": lambda m: changed(m, user=OwnForward(400, 16)),
    "user: it is a Embedding with a forward of its own": with_forward_of_its_own,
    "user: it is a OwnScores with scores of its own": lambda m: changed(m, user=OwnScores(400, 16)),
    "tags: it is a OwnScale with scale of its own": lambda m: changed(m, tags=OwnScale(200, 16)),
    "user: its weight is computed from other": lambda m: changed(
        m, user=parametrizations.weight_norm(nn.Embedding(400, 16))
    ),
    "user: it has hooks": with_hook,
    "user: it has hooks, which": with_hook_of_weight,
    "extra: it is empty": lambda m: changed(m, extra=nn.Embedding(0, 16)),
    "item: the row of its padding_idx is not zero": with_padding_row,
    "extra: its weight has no values yet": lambda m: changed(
        m, extra=nn.Embedding(9, 16, device="meta")
    ),
    "extra: none of its rows was asked for": lambda m: changed(m, extra=nn.Embedding(9, 16)),
    "extra: the budget has room for it as it is": lambda m: changed(m, extra=nn.Embedding(2, 16)),
    "extra: there are no counts for it": lambda m: changed(m, extra=nn.Embedding(9, 16)),
}


@pytest.mark.parametrize(("reason", "make"), REFUSED.items(), ids=REFUSED.keys())
def test_a_table_is_refused_with_its_reason_and_others_are_not(reason, make):
    model = make(Recommender())
    name, _, expected = reason.partition(": ")
    kept = model.get_submodule(name)
    stats = dict(observed(Recommender()))
    if "room for it" in reason:
        stats["extra"] = [1, 5]
    elif "empty" in reason:
        stats["extra"] = []
    elif "none of" in reason or "no values" in reason:
        stats["extra"] = [0] * 9
    result = mixdim.compress(model, stats, budget="1/4", echo=None)
    assert expected in result.refused[name]
    assert model.get_submodule(name) is kept
    assert result.plan.keys() == {"user", "item", "tags"} - {name}


def test_what_others_have_set_on_a_table_comes_along():
    model = changed(Recommender(), user=OwnStart(400, 16))
    model.user.field = "of users"
    result = mixdim.compress(model, observed(Recommender()), budget="1/4", echo=None)
    assert "user" in result.plan
    assert model.user.field == "of users"


def test_a_model_without_any_table_to_compress_says_why():
    with pytest.raises(
        ValueError, match=r"no table .* can be compressed: embedding: it is the model its"
    ):
        mixdim.compress(nn.Embedding(9, 4), {"embedding": range(9)}, "1/2")
    model = Recommender()
    mixdim.compress(model, observed(model), "1/4", echo=None)
    with pytest.raises(ValueError, match="user: it is compressed already"):
        mixdim.compress(model, {"user": range(400)}, "1/2")


def nan(model):
    with torch.no_grad():
        model.item.weight[7, 3] = torch.nan
    return model


@pytest.mark.parametrize(
    ("change", "stats", "options", "complaint"),
    [
        (None, {"user": range(399)}, {}, "counts of user .* each of its 400 rows, got 399"),
        (None, {"users": range(400)}, {}, "no table 'users' to be for; the tables are user, item"),
        (None, {"user": [-1] * 400}, {}, "counts of user must be finite and not negative, got -1 at 0"),
        (None, [1, 2], {}, "stats must be what mixdim.observe returned, or counts .*, got list"),
        (nan, None, {}, "weights of table 'item' must be finite, row 7 is not"),
        (None, None, {"budget": "1B"}, r"of 1 bytes .* [\d,]+ bytes, 1,600 of them for those that"),
        (None, None, {"budget": "1/100000"}, r"too small: the smallest for these 3 tables is [\d,]+ b"),
        (None, None, {"budget": "4 apples"}, "a size must be a number of bytes such as '64MB'"),
        (None, None, {"budget": "9/8"}, "budget must be a share above 0 and at most 1, got '9/8'"),
        (None, None, {"budget": "12.5%"}, "bytes such as '4MB' or a share such as '1/8', got '12.5%'"),
        (None, None, {"budget": 0.5}, "budget must be a whole number, got 0.5"),
        (None, None, {"bits": 7}, "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"),
        (None, None, {"bands": 0}, "bands must be"),
        (None, None, {"optimizers": SGD}, "optimizers must be a list, got one SGD: put it in"),
        (None, None, {"optimizers": ["adam"]}, r"optimizers\[0\] must be a torch.optim.Opt.*got str"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_the_model_is_untouched(change, stats, options, complaint):
    model = (change or (lambda model: model))(Recommender())
    stats = observed(Recommender()) if stats is None else stats
    before = state_of(model)
    with pytest.raises(ValueError, match=complaint) as error:
        mixdim.compress(model, stats, **{"budget": "1/4", "echo": None, **options})
    assert "\n" not in str(error.value)
    if change is None:
        assert state_of(model) == before
    assert type(model.user) is nn.Embedding


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match=r"model must be a torch.nn.Module, got dict"):
        mixdim.compress({}, {}, "1/2")
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    with pytest.raises(ValueError, match=r"give model\.module, then wrap it anew"):
        mixdim.compress(wrapped, {}, "1/2")
    with pytest.raises(ValueError, match=r"must have an nn.Embedding .*, Linear has none"):
        mixdim.compress(nn.Linear(2, 2), {}, "1/2")
    with pytest.raises(ValueError, match="not TorchScript: give the one it was made from"):
        mixdim.compress(torch.jit.ScriptModule(), {}, "1/2")


def test_an_error_between_two_swaps_takes_the_first_back(monkeypatch):
    model = Recommender()
    stats, before = observed(model), state_of(model)
    from mixdim.compression import compress as steps

    done = []

    def fail_at_the_second(model, name, module):
        done.append(name)
        if len(done) == 2:
            raise KeyboardInterrupt
        model._modules[name] = module

    monkeypatch.setattr(steps, "put_in_place", fail_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        mixdim.compress(model, stats, budget="1/4", echo=None)
    assert len(done) > 2
    assert state_of(model) == before


@pytest.mark.parametrize("what", ["asked for", "changed"])
def test_a_model_in_use_on_another_thread_is_left_alone(what, monkeypatch):
    from mixdim.compression import compress as steps

    model = Recommender().eval()
    stats, before = observed(model), state_of(model)
    choose = steps.choose

    def use_it_meanwhile(*args, **options):
        def use():
            with torch.no_grad():
                model(*batch()) if what == "asked for" else model.user.weight.mul_(1.0)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        return choose(*args, **options)

    monkeypatch.setattr(steps, "choose", use_it_meanwhile)
    with pytest.raises(RuntimeError, match=f"in use on another thread: user was {what} while"):
        mixdim.compress(model, stats, budget="1/4", echo=None)
    assert state_of(model) == before


def test_only_one_thread_compresses_a_model(monkeypatch):
    from mixdim.compression import compress as steps

    model = Recommender()
    stats, errors, choose = observed(model), [], steps.choose

    def compress_it_too(*args, **options):
        for call in (
            lambda: mixdim.compress(model, stats, budget="1/4", echo=None),
            lambda: mixdim.observe(model, batches()),
        ):
            with pytest.raises(RuntimeError, match="being observed or compressed on another") as error:
                call()
            errors.append(error)
        return choose(*args, **options)

    monkeypatch.setattr(steps, "choose", compress_it_too)
    mixdim.compress(model, stats, budget="1/4", echo=None)
    assert len(errors) == 2
