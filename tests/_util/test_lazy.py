import sys
from types import ModuleType

import pytest
import torch

from mixdim._util.lazy import import_later


def test_a_module_is_imported_when_something_of_it_is_used_and_then_takes_its_place(
    tmp_path, monkeypatch
):
    (tmp_path / "slow_to_import.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    namespace = {}
    import_later(namespace, slow="slow_to_import")
    assert isinstance(namespace["slow"], ModuleType)
    assert "slow_to_import" not in sys.modules
    assert namespace["slow"].value == 3
    assert namespace["slow"] is sys.modules.pop("slow_to_import")


def test_a_module_that_is_not_there_is_missed_when_it_is_used():
    namespace = {}
    import_later(namespace, gone="gone_for_good")
    with pytest.raises(ModuleNotFoundError, match="gone_for_good"):
        _ = namespace["gone"].anything


def test_a_graph_whose_tracing_is_the_first_use_of_a_module_has_no_break():
    namespace = {}
    exec("def rectified(x):\n    return later.relu(x)", namespace)
    import_later(namespace, later="torch.nn.functional")
    x = torch.tensor([-1.0, 2.0])
    compiled = torch.compile(namespace["rectified"], backend="eager", fullgraph=True)
    assert compiled(x).tolist() == compiled(x).tolist() == [0.0, 2.0]
    assert namespace["later"] is torch.nn.functional
