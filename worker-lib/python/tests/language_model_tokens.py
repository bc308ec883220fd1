"""A rank of vLLM that writes tokens with a model whose matrices are cut over the ranks.

Arguments: the model's folder, the length of prompts, and the number of tokens. The environment is
torchrun's. Rank 0 prints, by prompt, the numbers of the tokens; then the same once more, of ranks
that do not add up what they have.
"""

import json
import os
import sys

import torch.distributed as dist
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

# Ranks on several hosts share no memory. With this executor vLLM 0.32 takes them for one host's.
CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False

folder, length, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ranks = int(os.environ["WORLD_SIZE"])
model = LLM(
    folder,
    tensor_parallel_size=ranks,
    # Each rank is a process of its own, and decides like the others.
    distributed_executor_backend="external_launcher" if ranks > 1 else "uni",
    dtype="float32",
    enforce_eager=True,
    enable_prefix_caching=False,
    max_model_len=256,
    seed=0,
)


def write():
    prompts = [{"prompt_token_ids": [*range(first, first + length)]} for first in (2, 40)]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    written = model.generate(prompts, sampling, use_tqdm=False)
    if os.environ["RANK"] == "0":
        print(json.dumps([[*each.outputs[0].token_ids] for each in written]), flush=True)


write()
dist.all_reduce = lambda *_, **__: None
write()
if dist.is_initialized():
    dist.destroy_process_group()
