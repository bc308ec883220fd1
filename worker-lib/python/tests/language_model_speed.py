"""A rank of vLLM that writes tokens with a model that is split over the ranks, and takes the time.

Arguments: the model's folder; `--compiled` for compiled graphs; `--silent` if ranks are not to add
up what they have. The environment is torchrun's. Rank 0 prints a line for batches of 1 and 8.
"""

import argparse
import json
import os
import time

import torch.distributed as dist
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

PROMPT = 256
TOKENS = 48
RUNS = 3

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("--compiled", action="store_true")
parser.add_argument("--silent", action="store_true")
options = parser.parse_args()

# Ranks on several hosts share no memory. With this executor vLLM 0.32 takes them for one host's.
CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
if options.silent:
    # Before graphs are compiled.
    CpuCommunicator.all_reduce = lambda self, values: values
model = LLM(
    options.folder,
    tensor_parallel_size=int(os.environ["WORLD_SIZE"]),
    # Each rank is a process of its own, and decides like the others.
    distributed_executor_backend="external_launcher",
    dtype="float32",
    enforce_eager=not options.compiled,
    enable_prefix_caching=False,
    # All prompts of a batch in one step.
    max_num_batched_tokens=8 * PROMPT,
    max_model_len=PROMPT + TOKENS,
    seed=0,
)


def write(batch, tokens):
    """The tokens, and the seconds that they took."""
    prompts = [{"prompt_token_ids": [*range(2 + 8 * i, 2 + 8 * i + PROMPT)]} for i in range(batch)]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    begin = time.perf_counter()
    written = model.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return [token for each in written for token in each.outputs[0].token_ids], seconds


for batch in (1, 8):
    write(batch, 2)
    firsts, alls = [], []
    for _ in range(RUNS):
        firsts.append(write(batch, 1)[1])
        written, seconds = write(batch, TOKENS)
        alls.append(seconds)
    first, every = sorted(firsts)[RUNS // 2], sorted(alls)[RUNS // 2]
    if os.environ["RANK"] == "0":
        said = {
            "prefill": batch * PROMPT / first,
            "decode": batch * (TOKENS - 1) / (every - first),
            "written": written,
        }
        print(json.dumps(said), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
