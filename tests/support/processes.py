"""What a test asks about other processes."""

from pathlib import Path


def is_running(pid):
    """A process that has ended does not, also where nobody has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, and gone while it was read
        return False
