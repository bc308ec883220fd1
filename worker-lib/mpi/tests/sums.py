"""A program of plain mpi4py: sums that are known by arithmetic, blocking and not."""

import array
import sys

from mpi4py import MPI

COUNT = 50_000
world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()

sent = array.array("f", (rank + i % 1000 for i in range(COUNT)))
right = array.array("f", (ranks * (i % 1000) + ranks * (ranks - 1) // 2 for i in range(COUNT)))
first = array.array("f", bytes(4 * COUNT))
second = array.array("f", sent)
world.Allreduce([sent, MPI.FLOAT], [first, MPI.FLOAT])
world.Iallreduce(MPI.IN_PLACE, [second, MPI.FLOAT]).Wait()
world.Bcast([sent, MPI.FLOAT], root=1)
is_right = first == right and second == right and sent[0] == 1
print(f"rank {rank} of {ranks}: {'all right' if is_right else 'wrong'}", flush=True)
sys.exit(not is_right)
