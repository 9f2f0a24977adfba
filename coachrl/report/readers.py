"""Who asks a server at loopback, which every user of the machine can reach: whose connection it is, and whether that
user may read what is served."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from pathlib import Path

_CLIENT, _SERVER, _USER = 1, 2, 7  # columns of the kernel's tables, from the client's side
_ACL = "system.posix_acl_access"  # a number of four bytes, and entries: what it is for, its permissions, for whom
_NAMED_USER, _GROUP, _NAMED_GROUP, _MASK, _OTHERS = 0x02, 0x04, 0x08, 0x10, 0x20
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address where a socket of IPv6 has it


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user whose connection it is, both ends on this machine and of IPv4; None where the kernel does not tell."""
    ends = [_shown(client), _shown(server)]
    for table, before in (("tcp", ""), ("tcp6", _MAPPED)):
        wanted = [before + end for end in ends]
        try:
            lines = Path("/proc/self/net", table).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for fields in map(str.split, lines):
            if [fields[_CLIENT], fields[_SERVER]] == wanted:
                return int(fields[_USER])
    return None


def _shown(end: tuple[str, int]) -> str:
    """As the tables have it."""
    (address,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{address:08X}:{end[1]:04X}"


def may_read(user: int, folder: Path) -> bool:
    """Whether the permissions of `folder`, and of those above it, let a user read it, who may be root, or this one, or
    who has become root by sudo."""
    if user in (0, os.getuid()) or (os.getuid() == 0 and str(user) == os.environ.get("SUDO_UID")):
        return True
    groups = _groups(user)
    above = all(_allows(path, user, groups, 0o1) for path in folder.resolve().parents)
    return above and _allows(folder, user, groups, 0o5)


def _allows(path: Path, user: int, groups: list[int], wanted: int) -> bool:
    found = path.stat()
    if (entries := _acl(path)) and found.st_uid != user:
        return _acl_allows(entries, found.st_gid, user, groups, wanted)
    shift = 6 if found.st_uid == user else 3 if found.st_gid in groups else 0
    return found.st_mode >> shift & wanted == wanted


def _acl(path: Path) -> list[tuple[int, int, int]]:
    """Whom the folder is open to beyond its mode, which then has the mask where it else has the group's permissions."""
    try:
        packed = os.getxattr(path, _ACL)
        return list(struct.iter_unpack("<HHI", packed[4:]))
    except (AttributeError, OSError, struct.error):  # no such system, file system, or list
        return []


def _acl_allows(entries: list[tuple[int, int, int]], group: int, user: int, groups: list[int], wanted: int) -> bool:
    """As the kernel has it, of who is not the owner: acl(5)."""
    mask = next((allowed for what, allowed, _ in entries if what == _MASK), 0o7)
    named = [allowed for what, allowed, whom in entries if (what, whom) == (_NAMED_USER, user)]
    of_groups = [
        allowed
        for what, allowed, whom in entries
        if (what == _GROUP and group in groups) or (what == _NAMED_GROUP and whom in groups)
    ]
    others = [allowed for what, allowed, _ in entries if what == _OTHERS]
    masked = [allowed & mask for allowed in named or of_groups]
    return any(allowed & wanted == wanted for allowed in masked or others)


def _groups(user: int) -> list[int]:
    try:
        entry = pwd.getpwuid(user)
    except KeyError:  # a number without a name
        return []
    return os.getgrouplist(entry.pw_name, entry.pw_gid)
