"""What torch calls when it is imported, to find backends."""


def register() -> None:
    """Makes the backend `switchml` known to torch.

    If torch is imported by `switchml.torch`, that does so itself once it has torch.
    """
    from . import torch
