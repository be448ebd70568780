"""A folder of two files, sums and the time, as functions.

TASK needs three calls, which are CALLS (name, arguments, result), and ends with REPORT.
"""

FILES = {"notes.txt": "Buy milk on Friday.", "plan.txt": "Meet Kim at 10:30."}


def list_folder(folder: str) -> list[str]:
    """List the files in a folder."""
    return sorted(FILES)


def read_file(path: str) -> str:
    """Read a text file."""
    return FILES[path]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def get_time() -> str:
    """Get the current time."""
    return "14:35"


TOOLS = (list_folder, read_file, add, get_time)
TASK = "First read notes.txt, then add 212 and 3046, then tell me the time."
CALLS = [
    ("read_file", {"path": "notes.txt"}, read_file("notes.txt")),
    ("add", {"a": 212, "b": 3046}, str(add(212, 3046))),
    ("get_time", {}, get_time()),
]
REPORT = "The file notes.txt says: Buy milk on Friday.\nThe sum is 3258.\nIt is 14:35."
