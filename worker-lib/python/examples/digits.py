"""Trains a small convolutional network on scikit-learn's handwritten digits.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 digits.py
"""

import report
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

options = report.options(__doc__, epochs=8, width=64)
dist.init_process_group(options.backend)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))
test, train = order[:500], TensorDataset(images[order[500:]], labels[order[500:]])


def train_once(seed):
    """From the first parameters that the seed gives."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, options.width),
        nn.ReLU(),
        nn.Linear(options.width, 10),
    )
    model = report.wrapped(model, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    sampler = DistributedSampler(train)
    batches = DataLoader(train, batch_size=16, sampler=sampler)
    tested = report.Test(model, images[test], labels[test], options)

    with report.Steps(model, options) as steps:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in batches:
                optimizer.zero_grad()
                if steps.begin():
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    loss.backward()
                optimizer.step()
                report.say_step(loss, model, options)
                if tested.is_passed():
                    return
    tested.say()


for seed in report.seeds(options):
    train_once(seed)
dist.destroy_process_group()
