"""llama3 8b bf16, as functions of a torchtitan registry."""

from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.trainer import Trainer

from . import model_registry


def llama3_8b_bf16() -> Trainer.Config:
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(),
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=32, seq_len=2048, steps=763),
        parallelism=ParallelismConfig(tensor_parallel_degree=1, data_parallel_shard_degree=4),
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(enable=True),
    )
