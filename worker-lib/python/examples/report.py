"""What the examples print: a line of JSON at a time, for whoever compares runs and ranks."""

import argparse
import hashlib
import json


def options(description, epochs):
    """What all examples can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="switchml", help="of torch.distributed")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument(
        "--bucket-cap-mb",
        type=float,
        default=25,
        help="DistributedDataParallel's; 25 is what it has by itself",
    )
    return parser.parse_args()


def digest(model):
    """Equal if and only if all parameters are, bit for bit."""
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy())
    return bits.hexdigest()


def say(**what):
    """Prints a line."""
    print(json.dumps(what), flush=True)
