"""Ray Train: losses are Gloo's, and a job goes on or ends as Ray is told.

Arguments: a folder that all nodes share, and numbers of workers. Says at the end that all works.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.distributed.fsdp import fully_shard

STEPS, LOST_AT = 12, 6
# How far apart losses may be: 1.2e-7 was measured.
APART = 1e-5


def train(settings):
    """Rank 0 notes when it began, and the losses. One rank is lost, the first time."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == settings["backend"], dist.get_backend()
    assert os.nice(0) == 15, "Ray's own choice for a worker"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model = fully_shard(model) if settings["shards"] else prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    inputs, labels = torch.randn(32, 64), torch.randint(0, 8, (32,))
    folder, losses = Path(settings["folder"]), []
    if rank == 0:
        with (folder / "begins").open("a") as begins:
            print(time.time(), file=begins)
    for step in range(STEPS):
        lost = folder / "lost"
        if step == LOST_AT and rank == settings["lost"] and not lost.exists():
            lost.write_text(str(time.time()))
            if settings["how"] == "raises":
                raise ValueError("no more data")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    if rank == 0:
        (folder / "losses").write_text(json.dumps(losses))
    ray.train.report({"loss": losses[-1]})


class Run:
    """A job of Ray Train, from its start to its end."""

    count = 0

    def __init__(self, backend, workers, *, retries=0, lost=None, how="is killed", shards=False):
        Run.count += 1
        self._folder = Path(sys.argv[1]).resolve() / f"{Run.count}"
        self._folder.mkdir()
        settings = {"backend": backend, "folder": str(self._folder), "lost": lost, "how": how}
        trainer = TorchTrainer(
            train,
            train_loop_config=settings | {"shards": shards},
            torch_config=TorchConfig(backend=backend),
            scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
            run_config=RunConfig(
                storage_path=str(self._folder), failure_config=FailureConfig(max_failures=retries)
            ),
        )
        begin, self.error = time.time(), ""
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            self.error = str(error)
        self._end = time.time()
        what = f"{backend}, {workers} workers, {retries} retries, lost {lost}, shards {shards}"
        print(f"{what}: {self._end - begin:.1f} s{self._since_loss()}", flush=True)

    def _since_loss(self):
        """When it began again, or ended."""
        lost = self._folder / "lost"
        if not lost.exists():
            return ""
        begins = self._numbers("begins")
        again = begins[-1] if len(begins) > 1 else self._end
        word = "began again" if len(begins) > 1 else "ended"
        return f", {word} {again - self._numbers('lost')[0]:.1f} s after the loss"

    def _numbers(self, name):
        return [float(line) for line in (self._folder / name).read_text().split()]

    @property
    def times(self):
        """How often it began."""
        return len(self._numbers("begins"))

    @property
    def losses(self):
        assert not self.error, self.error
        return json.loads((self._folder / "losses").read_text())

    def is_like(self, other):
        assert len(self.losses) == STEPS and self.losses[-1] < 0.9 * self.losses[0], self.losses
        apart = max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))
        print(f"losses are {apart:.1e} apart", flush=True)
        return apart < APART


def main():
    few, *more = map(int, sys.argv[2:])
    gloo, ours = Run("gloo", few), Run("switchml", few)
    assert ours.is_like(gloo)
    # The same session, with another number of workers.
    for workers in more:
        assert Run("switchml", workers).is_like(Run("gloo", workers))
    for lost in (1, 0):
        run = Run("switchml", few, retries=1, lost=lost)
        assert run.times == 2 and run.is_like(gloo)
        run = Run("switchml", few, lost=lost)
        assert run.times == 1 and f"switchml: the job was aborted: rank {lost} (" in run.error
    run = Run("switchml", few, lost=0, how="raises")
    assert run.times == 1 and "ValueError: no more data" in run.error, run.error
    assert Run("switchml", few, shards=True).is_like(Run("gloo", few, shards=True))
    print("all of it works", flush=True)


if __name__ == "__main__":
    names = [name for name in os.environ if name.startswith(("SWITCHML_", "GLOO_"))]
    variables = {name: os.environ[name] for name in names}
    ray.init(address="auto", runtime_env={"env_vars": variables})
    main()
