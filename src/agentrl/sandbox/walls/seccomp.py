"""The system call filter: a list of what no program of a box needs, and nothing of another architecture.

A call is refused with EPERM, so that honest code sees an error that it can handle. Calls of 32-bit and x32 code end the
process, because they have other numbers; calls that are newer than the list are refused as unknown to the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from . import kernel

_AUDIT_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_X32_BIT = 0x40000000
_LAST_KNOWN = 450
_NAMESPACE_FLAGS = 0x7E020000
_MKNOD, _MKNODAT = 133, (259, 33)
_TERMINAL_INJECTIONS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_UNIX, _INET, _INET6 = 1, 2, 10

_CHARACTER_DEVICE, _BLOCK_DEVICE, _KIND_OF_FILE = 0o020000, 0o060000, 0o170000

_LOAD, _MASK, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _AT_LEAST, _ANY_BIT = 0x15, 0x25, 0x35, 0x45
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

Table = dict[str, tuple[int | None, int | None]]

NAMESPACES_AND_MOUNTS: Table = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
OTHER_PROCESSES: Table = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
KERNEL: Table = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "fanotify_init": (300, 262),
    "vmsplice": (278, 75),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    "uselib": (134, None),
    "create_module": (174, None),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
MACHINE: Table = {
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
}
MEMORY_OUT_OF_SIGHT: Table = {
    # Memory that belongs to no process, so that nobody who adds up processes sees it.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
ATTRIBUTES_BY_PATH: Table = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
}
_MODES = (((90, None), 1), ((91, 52), 1), ((268, 53), 2))  # chmod, fchmod, fchmodat: numbers, place of the mode
_SET_ID_OR_WRITE_FOR_ALL = 0o6002
DENIED: Table = NAMESPACES_AND_MOUNTS | OTHER_PROCESSES | KERNEL | MACHINE | MEMORY_OUT_OF_SIGHT
SCHEDULING: Table = {
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
}
"""Whose first argument is a process; a program may slow down itself and no other."""
_SET_PRIORITY, _SET_IO_PRIORITY = (141, 140), (251, 30)
_PRIO_PROCESS, _IO_PROCESS = 0, 1
_CLONE, _CLONE3, _IOCTL, _PRLIMIT, _SOCKET, _SOCKETPAIR = (
    (56, 220),
    (435, 435),
    (16, 29),
    (302, 261),
    (41, 198),
    (53, 199),
)


def program(*, sockets: bool, among_own_files: bool = False, machine: str = "") -> bytes:
    """The filter as an array of ``struct sock_filter``, which `install` and ``bwrap --seccomp`` take.

    Args:
        sockets: allow IP and Unix sockets; for a box whose network namespace holds nothing but its own loopback.
        among_own_files: files of the user who runs it are in reach of calls that Landlock does not cover; so no mode
            may be given that lets other users write to a file or run it as this one. Modes that take rights away, and
            times, stay possible: to refuse them would break ``chmod +x`` and copies.
        machine: ``x86_64`` or ``aarch64``; this machine's by default.

    Raises:
        OSError: the numbers of this architecture are not known.
    """
    column = kernel.architecture(machine)
    lines = [_load(_ARCHITECTURE_OFFSET), *_if_not(_EQUAL, _AUDIT_ARCHITECTURES[column], _KILL), _load(_NUMBER_OFFSET)]
    if column == 0:
        lines += _if(_AT_LEAST, _X32_BIT, _KILL)
    lines += _if(_GREATER, _LAST_KNOWN, _ERRNO | errno.ENOSYS)
    lines += _if(_EQUAL, _CLONE3[column], _ERRNO | errno.ENOSYS)  # its flags are out of reach; libc falls back
    denied = DENIED | ATTRIBUTES_BY_PATH if among_own_files else DENIED
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            lines += _if(_EQUAL, number, _ERRNO | errno.EPERM)
    if among_own_files:
        lines += _on_modes(column)
    lines += _on_argument(_CLONE[column], 0, _if(_ANY_BIT, _NAMESPACE_FLAGS, _ERRNO | errno.EPERM))
    lines += _on_argument(_PRLIMIT[column], 0, _if_not(_EQUAL, 0, _ERRNO | errno.EPERM))
    for numbers in SCHEDULING.values():
        if (number := numbers[column]) is not None:
            lines += _on_argument(number, 0, _if_not(_EQUAL, 0, _ERRNO | errno.EPERM))
    for numbers, kind in ((_SET_PRIORITY, _PRIO_PROCESS), (_SET_IO_PRIORITY, _IO_PROCESS)):
        of_itself = [*_if_not(_EQUAL, kind, _ERRNO | errno.EPERM), _load(_ARGUMENTS_OFFSET + 8)]
        lines += _on_argument(numbers[column], 0, [*of_itself, *_if_not(_EQUAL, 0, _ERRNO | errno.EPERM)])
    lines += _on_argument(_IOCTL[column], 1, _refuse_any(_TERMINAL_INJECTIONS))
    devices = [_line(_MASK, _KIND_OF_FILE), *_refuse_any((_CHARACTER_DEVICE, _BLOCK_DEVICE))]
    lines += _on_argument(_MKNODAT[column], 2, devices)
    if column == 0:
        lines += _on_argument(_MKNOD, 1, devices)
    lines += _on_argument(_SOCKETPAIR[column], 0, _allow_only((_UNIX,)))
    lines += _on_argument(_SOCKET[column], 0, _allow_only((_UNIX, _INET, _INET6) if sockets else ()))
    return b"".join([*lines, _return(_ALLOW)])


def install(filter_program: bytes) -> None:
    """Put a filter on this process and all that it will start. Needs `kernel.forbid_new_privileges` before.

    Raises:
        OSError: the kernel has no seccomp filters, or they are refused here.
    """
    buffer = ctypes.create_string_buffer(filter_program, len(filter_program))
    described = struct.pack("HxxxxxxQ", len(filter_program) // 8, ctypes.addressof(buffer))
    kernel.call("seccomp", 1, 0, described, step="seccomp filter")


def _on_modes(column: int) -> list[bytes]:
    refusal = _if(_ANY_BIT, _SET_ID_OR_WRITE_FOR_ALL, _ERRNO | errno.EPERM)
    lines: list[bytes] = []
    for numbers, place in _MODES:
        if (number := numbers[column]) is not None:
            lines += _on_argument(number, place, refusal)
    return lines


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _line(_LOAD, offset)


def _return(action: int) -> bytes:
    return _line(_RETURN, action)


def _if(test: int, value: int, action: int) -> list[bytes]:
    return [_line(test, value, 0, 1), _return(action)]


def _if_not(test: int, value: int, action: int) -> list[bytes]:
    return [_line(test, value, 1, 0), _return(action)]


def _refuse_any(values: tuple[int, ...]) -> list[bytes]:
    return [line for value in values for line in _if(_EQUAL, value, _ERRNO | errno.EPERM)]


def _allow_only(values: tuple[int, ...]) -> list[bytes]:
    allowed = [line for value in values for line in _if(_EQUAL, value, _ALLOW)]
    return [*allowed, _return(_ERRNO | errno.EPERM)]


def _on_argument(number: int, index: int, checks: list[bytes]) -> list[bytes]:
    """For one system call: checks of the lower half of one argument, and leave to go on after them."""
    block = [_load(_ARGUMENTS_OFFSET + 8 * index), *checks, _return(_ALLOW)]
    return [_line(_EQUAL, number, 0, len(block)), *block]
