from typing import Any

from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine, WeightSource, WeightTransferEngine

class WeightTransferEngineFactory:
    @classmethod
    def register_engine(cls, name: str, module_path_or_cls: type[WeightTransferEngine[Any, Any]]) -> None: ...

class WeightTransferTrainerFactory:
    @classmethod
    def trainer_init(
        cls, init_info: object, *, client: object, source: WeightSource
    ) -> TrainerWeightTransferEngine: ...
