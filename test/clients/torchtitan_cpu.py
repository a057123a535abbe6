"""Pretrains torchtitan's smallest Llama 3 on the CPU, with a copy of examples/torchtitan_batchfs.py:
torchtitan_cpu.py COPY SPLIT

torchtitan supports only accelerators, so what it needs of them is replaced.
"""

import os
import sys
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling would take longer than training
import torch
from torch.distributed.fsdp import FSDPModule

loader, split = sys.argv[1:]
sys.path.insert(0, os.path.dirname(loader))

torch._utils._get_available_device_type = lambda: "cpu"
for name, result in {
    "get_device_name": "CPU",
    "get_device_properties": types.SimpleNamespace(total_memory=1),
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}.items():
    setattr(torch.cpu, name, lambda *_, result=result: result)

import torchtitan.train
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.distributed import utils
from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan_batchfs import BatchfsDataLoader

torchtitan.train.init_logger = lambda: None  # it logs to stdout
utils.set_pg_timeouts = lambda **_: None  # its barrier names devices, which Gloo does not support
HuggingFaceTokenizer.__init__ = lambda *_, **__: None  # nothing needs a tokenizer

divide = FSDPModule.set_gradient_divide_factor


def divide_before_sum(module, factor):
    module.set_force_sum_reduction_for_comms(True)  # Gloo cannot do both at once
    divide(module, factor)


def attend(q, k, v, *, block_mask, scale, enable_gqa, **_):
    """Replaces FlexAttention, which has no backward pass on the CPU."""
    batch, head, i, j = (torch.arange(n) for n in (q.shape[0], 1, q.shape[2], k.shape[2]))
    mask = block_mask.mask_mod(batch[:, None, None, None], head[:, None, None], i[:, None], j)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None


def print_loss(step, loss):
    if torch.distributed.get_rank() == 0:
        print(f"step {step}: loss {loss}", flush=True)


FSDPModule.set_gradient_divide_factor = divide_before_sum
FlexAttention.compiled_flex_attn = staticmethod(attend)
MetricsProcessor.log = lambda self, step, loss, *_, **__: print_loss(step, loss)
MetricsProcessor.log_validation = lambda self, loss, step: print_loss(f"{step} val", loss)


def pretrain():
    config = llama3_debugmodel()
    del config.model_spec.model.layers[2:]
    config.dataloader = BatchfsDataLoader.Config(split=split)
    config.validator.dataloader = BatchfsDataLoader.Config(split=f"{os.path.dirname(split)}/val/order=sequential")
    config.validator.enable, config.validator.freq, config.validator.steps = True, 20, -1
    config.checkpoint.interval = 20
    config.training.steps = 60
    config.training.seq_len, config.training.local_batch_size, config.training.global_batch_size = 64, 2, 8
    config.training.mixed_precision_param = "float32"
    config.training.disable_cuda_graphs = True
    config.debug.seed = 1337
    return config


sys.modules["run"] = types.SimpleNamespace(pretrain=pretrain)
sys.argv[1:] = ["--module", "run", "--config", "pretrain", "--checkpoint.enable"]
torchtitan.train.main()
