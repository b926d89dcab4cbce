"""The layouts that the referee and its workers share.

Every message is a length and a body. The referee sends its settings as JSON, then jobs in `marshal` form (both ends are the
same interpreter, and this direction is trusted). The worker first says in JSON what its layers are, then one answer for each
job: FAILURE and a reason, or OUTCOME and the shared page as the program left it. The page may hold anything.
"""

import struct

LENGTH = struct.Struct("<I")
OUTCOME = struct.Struct("<c i ??? d q")
"""b"O", exit state (negative for a signal), late, ended, whole, seconds of processor time, kilobytes of memory."""
FAILURE = b"F"

HEADER = struct.Struct("<II")
"""Start of the shared page: bytes used by records, and whether the program's process came to its end (END)."""
RECORD = struct.Struct("<BI")
"""A record's kind and length. One record for each call; or one for the program as a whole when no call was reached."""
END = 0x0E0F1CE5

VALUE, RAISED, NOT_A_VALUE, TOO_LARGE, MEMORY, FORBIDDEN, SYNTAX, NO_ENTRY = range(8)

FULL = 77
"""Exit state: the page was full before an input's turn; the rest belongs to another process."""
BARE = 76
"""Exit state of a program in a bare worker: it asks for a module that only an equipped worker has."""
NOT_SET_UP = 78
"""Exit state of a process that could not put its layers on. A program can exit so too, so the worker checks."""
