"""A worker that shares nothing with the product: written from docs/protocol.md alone.

Each module has sections of the page:

| module | sections |
| --- | --- |
| `packet` | 2 and 3 |
| `call` | 4 and 21 |
| `floats` | 18 and 19 |
| `packed` | 26 |
| `chunks` | 17 and 20 |
| `path` | 5 and 11 |
| `exchange` | 12 to 14 |
| `control` | 22 and 23 |
| `worker` | all of them together |

It makes sums, averages and extremes of i32, f32, f16 and bf16, sums and averages in 16 and 8 bits,
broadcasts and barriers, one at a time, on one shard. It leaves out what the page leaves to the
worker (a window that grows, fast resends, bundles), and jobs whose maxima have no check word.
"""
