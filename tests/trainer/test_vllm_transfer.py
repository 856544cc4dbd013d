"""Both transfer engines begin an update of a model whose loaders are partial functions; no engine is started."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def load(factor, param, loaded_weight):
    param.data.copy_(loaded_weight * factor)


class Model(torch.nn.Module):
    """One weight, whose loader has no name, as some of MiniMax-M2 in vLLM."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 2, bias=False)
        self.inner.weight.weight_loader = partial(load, 1.0)


@pytest.mark.parametrize("name", ["ArrayTransferEngine", "BroadcastTransferEngine"])
def test_an_update_begins_on_loaders_that_are_partial_functions(name):
    pytest.importorskip("vllm")
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from tokbridge_trainer.rollout import vllm_transfer

    model = Model()
    record_metadata_for_reloading(model)
    vllm_config = SimpleNamespace(parallel_config=None, model_config=None)
    engine = getattr(vllm_transfer, name)(None, vllm_config, torch.device("cpu"), model)
    engine.start_weight_update()
    model.inner.weight.weight_loader(model.inner.weight, torch.ones(2, 4))
    assert torch.equal(model.inner.weight, torch.ones(2, 4))
