"""The warm fork server: one process in namespaces of its own that forks a keeper for every box. Standard library only.

Three kinds of process, none of which ever runs a line of a candidate's:

    starter   the child of ours; makes the pid namespace, waits
    zygote    process 1 there: makes the root that boxes see, gives up root, then forks keepers
    keeper    one for a box (see zygote_box.py); forks the walled process that starts a program (zygote_program.py)

When the zygote ends, for whatever reason, the kernel ends everything below. It ends when our end of the control socket
closes, and when the starter does.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
from typing import Any

from agentrl.sandbox import guest, zygote_box, zygote_frames
from agentrl.sandbox.walls import kernel, landlock, mounts, namespaces, seccomp

_MAX_PACKET = 1 << 17
_STANDARD = {0, 1, 2}


def main(control_descriptor: int) -> None:
    """Read the plan from the control socket, start the zygote, wait for its end."""
    control = socket.socket(fileno=control_descriptor)
    os.umask(0o022)
    plan = json.loads(control.recv(_MAX_PACKET))
    try:
        if plan["user"] is None:
            namespaces.enter_users()
        namespaces.unshare(namespaces.PROCESSES)
        life, our_life = os.pipe()
        zygote = os.fork()
        if zygote == 0:
            os.close(our_life)
            _be_zygote(control, life, plan)
    except OSError as error:
        _complain(control, error)
        return
    control.close()
    os.waitpid(zygote, 0)


def _be_zygote(control: socket.socket, life: int, plan: dict[str, Any]) -> None:
    try:
        guest.warm_up()
        enclose(plan)
        kernel.die_with_parent()
        settings = _settings()
        children = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        control.send(json.dumps({"landlock": landlock.abi(), "children": children}).encode())
        gc.freeze()
        _serve(control, life, settings)
    except OSError as error:
        _complain(control, error)
    os._exit(0)


def _complain(control: socket.socket, error: OSError) -> None:
    control.send(json.dumps({"error": str(error.strerror or error), "number": error.errno}).encode())


def enclose(plan: dict[str, Any]) -> None:
    """New namespaces, the root of the plan, and no root user any more.

    Raises:
        OSError: naming the step that this machine refuses.
    """
    own = (namespaces.NETWORK, namespaces.SHARED_MEMORY, namespaces.HOST_NAME, namespaces.CGROUPS)
    namespaces.unshare(namespaces.MOUNTS, *own)
    mounts.make_root(plan["shown"], hidden=plan["hidden"], files=plan["files"], folders=plan["folders"])
    if plan["user"] is not None:
        namespaces.become(plan["user"])
        namespaces.enter_users()
        namespaces.unshare(namespaces.MOUNTS)


def _settings() -> dict[str, bytes]:
    return {"none": seccomp.program(sockets=False), "loopback": seccomp.program(sockets=True)}


def _serve(control: socket.socket, life: int, filters: dict[str, bytes]) -> None:
    """Fork a keeper for every request until our maker or the starter is gone. Ended keepers leave no zombies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 of a program, which has it from us, then does not hear it
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(life, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if life in ready:
            return
        message, descriptors, _, _ = socket.recv_fds(control, _MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        if len(descriptors) == 1:
            _fork_keeper(json.loads(message), descriptors[0], filters)


def _fork_keeper(request: dict[str, Any], connection: int, filters: dict[str, bytes]) -> None:
    """A keeper at the other end of ``connection``; closing it is how a fork that failed is told."""
    try:
        keeper = os.fork()
    except OSError:
        os.close(connection)
        return
    if keeper:
        os.close(connection)
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        zygote_frames.close_all_but({*_STANDARD, connection})
        zygote_box.keep(socket.socket(fileno=connection), request, filters)
    finally:
        os._exit(0)
