"""A rank that adds up f32, with the core alone; its arguments are those of `lines`."""

from . import lines
from .worker import Worker

if __name__ == "__main__":
    lines.main(Worker, lines.answer)
