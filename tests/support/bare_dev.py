"""bare_dev.py - a /dev for a root in a namespace: fresh nodes in memory of their own.

The host's own /dev would be simpler to bind, but then what runs there could write to its disks, and clearing the root
away with the mount still there would remove the host's nodes.
"""
import shlex

NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
         "ptmx": "pts/ptmx"}


def mount_dev(root):
    """Shell commands, each to follow the one before by &&, for a mount namespace that ends with what runs there."""
    dev = shlex.quote(f"{root}/dev")
    return [f"mount -t tmpfs -o mode=755,nosuid,noexec,size=16m tmpfs {dev}",
            *(f"mknod -m 666 {dev}/{name} c {major} {minor}" for name, (major, minor) in NODES.items()),
            *(f"ln -s {target} {dev}/{name}" for name, target in LINKS.items()),
            f"mkdir {dev}/pts", f"mkdir -m 1777 {dev}/shm",
            f"mount -t devpts -o newinstance,ptmxmode=0666,nosuid,noexec devpts {dev}/pts"]
