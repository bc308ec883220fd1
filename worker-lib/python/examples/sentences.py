"""Text that is made up: sentences whose words depend on each other."""

import random

import torch

ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
NOUNS = ["cat", "dog", "bird", "fox", "hen", "goat"]
VERBS = ["see", "call", "follow", "help", "find"]


def sentence(draw):
    """A verb's ending follows from its subject; the second clause turns the first one round."""
    subject, object_ = draw.sample(NOUNS, 2)
    verb, (many, are_many) = draw.choice(VERBS), (draw.random() < 0.5, draw.random() < 0.5)
    subject, object_ = subject + "s" * many, object_ + "s" * are_many
    sees, is_seen = verb + "s" * (not many), verb + "s" * (not are_many)
    return f"the {subject} {sees} the {object_} and the {object_} {is_seen} the {subject}. "


def text(seed, length):
    """So many characters, as numbers."""
    draw = random.Random(seed)
    characters = ""
    while len(characters) < length:
        characters += sentence(draw)
    return torch.tensor([ALPHABET.index(character) for character in characters[:length]])
