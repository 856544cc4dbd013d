"""Broadcasts from learner to engine through vLLM's own engines on both sides, with queues in the place of NCCL.

What NCCL itself does is not tried here: there is no GPU. Everything around it is vLLM's and ours: the handshake, what
is announced, the order, loading, versions, and a broadcast that breaks off.
"""

import queue
import threading

import pytest
import torch

from support.tiny_models import TINY_STUDENT_FOR_VLLM, save_tiny_model
from support.training import make_config
from support.weights import another_model, own_model
from tokbridge.errors import IncompleteWeightsError
from tokbridge_trainer.checkpoint_names import CheckpointNames
from tokbridge_trainer.outgoing_weights import OutgoingWeights
from tokbridge_trainer.ranks import Ranks
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.rollout.transformers_writer import TransformersWriter
from tokbridge_trainer.rollout.vllm_arguments import engine_arguments
from tokbridge_trainer.rollout.vllm_engine import VllmEngine
from tokbridge_trainer.rollout.vllm_writer import VllmWriter
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.student_text import load_student_text
from tokbridge_trainer.weights import Rendezvous, snapshot_weights

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RENDEZVOUS = Rendezvous("127.0.0.1", 1, world_size=2)


class Wire:
    """In the place of NCCL: tensors go through a queue, and who joined is written down."""

    def __init__(self):
        self.tensors = queue.Queue()
        self.joined = {}

    def learner_joins(self, info):
        self.joined["learner"] = (info.master_address, info.master_port, info.world_size)
        return self

    def engine_joins(self, info, parallel_config):
        self.joined["engine"] = (info.master_address, info.master_port, info.world_size, info.rank_offset)
        return self

    def send(self, iterator, group, post_iter_func, **sizes):
        for item in iterator:
            self.tensors.put(post_iter_func(item))

    def receive(self, iterator, group, post_unpack_func, **sizes):
        for name, (shape, dtype) in iterator:
            tensor = self.tensors.get(timeout=60)
            if tensor is None:
                raise ConnectionError("the learner is gone")
            assert (list(tensor.shape), tensor.dtype) == (shape, dtype)
            post_unpack_func([(name, tensor)])

    def destroy(self):
        pass


@pytest.fixture
def wire(monkeypatch):
    vllm_distributed = pytest.importorskip("vllm.distributed")
    nccl_engine = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    wire = Wire()
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", wire.learner_joins)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", wire.engine_joins)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", wire.send)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_consumer", wire.receive)
    yield wire
    vllm_distributed.cleanup_dist_env_and_memory()


@pytest.fixture
def config(tmp_path):
    return make_config(
        save_tiny_model(TINY_STUDENT_FOR_VLLM, tmp_path / "student"),
        max_response_tokens=16,
        sampling={"temperature": 0.0},
        rollout={
            "backend": "vllm",
            "vllm": {
                "enforce_eager": True,
                "weight_transfer": "nccl",
                "engine_args": {"kv_cache_memory_bytes": 64 << 20},
            },
        },
        ray={"threads": 1, "learner_gpus": 1, "rollout_gpus": 1},
    )


def test_broadcasts_arrive_whole_or_close_the_worker_for_good(wire, config, tmp_path):
    text, samples = load_student_text(config), []
    profile = text.profile
    names = CheckpointNames(config.student.model)
    names.write_config(tmp_path / "config")
    engine = VllmEngine(engine_arguments(config, str(tmp_path / "config")), 7)
    writer = VllmWriter(config, profile.vocabulary, profile.stop_ids, engine, names.shapes)
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append, writer)
    model = own_model(config)
    outgoing = OutgoingWeights(config, model, torch.device("cpu"), Ranks())
    outgoing.join_broadcasts(RENDEZVOUS)
    worker.join_broadcasts(RENDEZVOUS, 1)
    assert wire.joined == {"learner": ("127.0.0.1", 1, 2), "engine": ("127.0.0.1", 1, 2, 1)}
    prompt = text.prompt(0, [{"role": "user", "content": "she sells"}], None)
    tasks = [RolloutTask(SampleKey(0, 0, 0), prompt)]

    for version in (0, 1):
        with torch.no_grad():
            for own, other in zip(model.parameters(), another_model(config, version).parameters(), strict=True):
                own.copy_(other)
        manifest = outgoing.take(version)
        sender = threading.Thread(target=outgoing.broadcast)
        sender.start()
        worker.set_weights(manifest)
        sender.join(60)
        worker.write(tasks)
    assert [sample.policy_version for sample in samples] == [0, 1]
    assert [s.token_ids.tolist() for s in samples] == [
        written_by_transformers(config, text, tasks, another_model(config, version)) for version in (0, 1)
    ]

    manifest = outgoing.take(2)
    wire.tensors.put(next(iter(model.parameters())).detach())
    wire.tensors.put(None)
    with pytest.raises(ConnectionError):
        worker.set_weights(manifest)
    for refused in (lambda: worker.write(tasks), lambda: worker.set_weights(manifest), lambda: worker.write(tasks)):
        with pytest.raises(IncompleteWeightsError):
            refused()
    assert len(samples) == 2


def written_by_transformers(config, text, tasks, model):
    samples, profile = [], text.profile
    writer = TransformersWriter(config, profile.vocabulary, profile.stop_ids)
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append, writer)
    worker.set_weights(snapshot_weights(model, 0, torch.float32))
    worker.write(tasks)
    return samples[0].token_ids.tolist()
