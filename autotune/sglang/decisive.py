"""Which log lines decide: something has ended, is ending, or deserves a mark.

Of the log, only these lines reach `signatures`, which says whose fault it is: a new failure needs
its row there and, unless `EXCEPTION` or `MANAGER_END` has it already, its line here.

What decides is matched from the beginning of a message, behind its time stamp, unless it begins
with `.*`: a prompt that quotes such a line must not look like one.
"""

from __future__ import annotations

import re

__all__ = [
    "CLOSING",
    "EVIDENCE",
    "EXCEPTION",
    "MANAGER_END",
    "MANAGER_STOP",
    "OPENING",
    "STOP_ASKED",
    "WARNINGS",
]

STOP_ASKED = re.compile(
    r"SIGTERM received\b|Gracefully exiting\.\.\. Remaining number of requests"
    r"|(?:INFO:\s+)?Shutting down$|.*crashed with exit code -15\b"
)
MANAGER_STOP = re.compile(r"Stopping ")
MANAGER_END = re.compile(
    r".*\b(?:(?:Main|Control) process exited|Failed with result|Start request repeated"
    r"|Failed at step|Failed to locate executable)"
)

CLOSING = re.compile(
    r"Received sigquit from a child process|SIGQUIT received"
    r"|(?:Subprocess|\S+ subprocess) .*crashed with exit code|.*scheduler died during init"
    r"|(?:ERROR:\s+)?\[Errno 98\]|Initialization failed\. warmup error"
    r"|\S+(?: \S+){0,4}: error: (?:argument |unrecognized arg|the following arg|ambiguous)"
    r"|.*rpc_port at \d+ is not available|(?:RuntimeError: )?Rank \d+ scheduler died"
)
"""Lines after which the process of this start can no longer serve: its failure is complete."""

OPENING = re.compile(
    r"Scheduler hit an exception|.*Capture (?:[\w ]+ )?cuda graph failed"
    r"|.*Watchdog caught collective operation timeout|.*watchdog timeout \(self"
    r"|Fatal Python error|terminate called|(?:DFLASH|DDTREE) draft OOM",
    re.IGNORECASE,
)
"""Lines that begin a failure; what it was comes in the lines after them."""

# The last line of a traceback stands at the beginning of its line.
EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|$)")
EVIDENCE = re.compile(
    r".*(?:OutOfMemoryError|CUDA error|CUDA out of memory|NCCL (?:error|WARN)|Not enough memory"
    r"|OOM killer|Out of memory: Killed|No such file or directory|Permission denied"
    r"|ECC error|fallen off the bus"
    # What an interpreter says that cannot begin, before there is any traceback.
    r"|python[\d.]*: (?:No module named|Error while finding module spec|can't open file))"
)

WARNINGS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"DFLASH block size mismatch",
        r"fused KV materialization (?:is )?disabled",
        r"non-greedy verification is unavailable",
        r"speculative.*has no effect",
        r"max.running.requests is (?:re)?set to \d+ for speculative",
        r"(?:speculative_\w+|topk|num_steps) .*(?:adjusted|overridden|overriding|forced) ",
        r"draft.*(?:falling|fall|falls) back",
        r"speculative.adaptive.*disabled",
        r"cuda graph is disabled",
        r"kept eager",
        r"SGLANG_SIMULATE_ACC",
        r"Health check failed",
        r"KV cache pool is full\. Retract",
    )
)
