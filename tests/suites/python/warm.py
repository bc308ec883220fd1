"""A rank that need not import torch: a fork of a process that has done so.

    warm.py serve SOCKET                imports torch, and forks a process for each that asks
    warm.py run SOCKET SCRIPT [ARG...]  asks for one like `python SCRIPT [ARG...]` started here

Such a process has the namespaces, environment, folder and streams of the one that asks. That one
ends as the process does, and takes it along when it is killed itself.
"""

import json
import os
import signal
import socket
import sys

NAMESPACES = ("net", "uts", "mnt")


def run(server, script):
    """Ends as the script does."""
    request = {"script": script, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(go_to(server))
        namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES]
        socket.send_fds(connection, [b" "], [0, 1, 2, *namespaces])
        connection.sendall(json.dumps(request).encode() + b"\n")
        status = int(connection.makefile().read())
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def go_to(path):
    """Enters the folder of a socket, and returns its name: paths of sockets are short."""
    os.chdir(os.path.dirname(path))
    return os.path.basename(path)


def serve(path):
    """Returns in the processes that were asked for, each of which is to run its script."""
    import torch.distributed

    # A fork contains only the thread that forks.
    assert len(os.listdir("/proc/self/task")) == 1, "importing torch has started threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(go_to(path))
    listener.listen(64)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            die_with_parent()
            keep(connection)
            return
        connection.close()


def keep(connection):
    """Forks the process that was asked for, in which this returns; ends with it, and it with us."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3 + len(NAMESPACES))
    request = json.loads(connection.makefile().readline())
    process = os.fork()
    if process == 0:
        connection.close()
        die_with_parent()
        become(request, descriptors)
        return
    for descriptor in (0, 1, 2, *descriptors):
        # Closed, so that a reader sees the end of a stream when the process ends.
        os.close(descriptor)
    ended = os.pidfd_open(process)
    readable, _, _ = select.select([connection, ended], [], [])
    if ended in readable:
        connection.sendall(str(os.waitpid(process, 0)[1]).encode())
    os._exit(0)


def become(request, descriptors):
    """Takes over what a process has from the one that starts it."""
    for namespace in descriptors[3:]:
        assert libc.setns(namespace, 0) == 0, os.strerror(ctypes.get_errno())
    for stream, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, stream)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    torch = sys.modules["torch"]
    # Torch reads it when it is imported.
    torch.distributed.set_debug_level_from_env()
    sys.argv = request["script"]
    sys.path[0] = os.path.dirname(sys.argv[0])


def die_with_parent():
    PR_SET_PDEATHSIG = 1
    assert libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0


if sys.argv[1] == "run":
    run(sys.argv[2], sys.argv[3:])
else:
    # The `run` side starts faster without these imports.
    import ctypes
    import runpy
    import select

    libc = ctypes.CDLL(None, use_errno=True)
    serve(sys.argv[2])
    # Each requested process gets here.
    runpy.run_path(sys.argv[0], run_name="__main__")
