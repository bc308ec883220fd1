"""A worker that shares nothing with the product: written from docs/protocol.md alone.

Each module has a section of the page:

| module | section |
| --- | --- |
| `packet` | Packet, Check word |
| `call` | Fingerprint; Integers, extremes and bytes |
| `floats` | Exponents; Integers of floats |
| `chunks` | Chunks of a call; Small calls of floats |
| `path` | Addresses; Opening the path |
| `exchange` | Sending and receiving |
| `control` | Control plane |
| `worker` | all of them together |

It makes sums, averages and extremes of i32, f32, f16 and bf16, broadcasts and barriers, one at a
time, on one shard. It leaves out what the page leaves to the worker (a window that grows, fast
resends, bundles), and jobs whose maxima have no check word.
"""
