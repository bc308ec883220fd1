"""The worker with options, Part II of docs/spec.

| module | sections |
| --- | --- |
| `integers` | 21: integers, extremes and bytes |
| `other_floats` | 29: averages, f16 and bf16 |
| `packed` | 26: 16 and 8 bits |
| `empty` | 30: EMPTY contributions |
| `audiences` | 34: broadcasts whose root needs no lanes |
| `ipv6` | 31 and 32: copies in place of multicast, and IPv6 |
| `rocev2` | 37: a NIC's queue pair in place of the socket |
| `reports` | 35: who called what |
| `calls` | which of these a call needs |
| `worker` | all of them together |

It leaves out f64, reduce-scatters and all-gathers, and sections 15, 16, 23, 27 and 28.
"""
