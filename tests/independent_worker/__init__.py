"""A worker that shares nothing with the product: written from docs/spec alone.

The modules of this folder are Part I of the page, its core: a worker that adds up f32 over IPv4
multicast. `options` is what it has of Part II, and the core imports nothing of it.

| module | sections |
| --- | --- |
| `packet` | 2 and 3 |
| `call` | 4 |
| `control` | 22 |
| `path` | 5 and 11 |
| `exchange` | 9 and 12 to 14 |
| `chunks` | 17 and 20 |
| `floats` | 18 and 19 |
| `worker` | all of them together |
| `lines` | none: calls from a file, results into another |

It makes its calls one at a time. It leaves out what the page leaves to the worker (a window that
grows), has one deadline for rules 14.1 and 14.2, and waits that long for a rank that has left.
"""
