"""The table of failures: one row is one signature, whose fault it is, and what to say.

Rows are tried in order and each against every decisive line, so a cause stands above its
consequences: when one rank runs out of memory, the others report a broken collective a moment
later.  SGLang's wording is that of 0.5.11 to 0.5.21; the rest is torch's, CUDA's and systemd's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["SIGNATURES", "Fault", "Signature"]


class Fault(StrEnum):
    """Who has to change for the next start to go better."""

    PARAMETERS = "parameters"
    BUSY = "busy"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Signature:
    """One row of the table.

    Attributes:
        name: Short name of the row, for tests and messages about the table.
        pattern: Searched for in one decisive line.
        fault: Whose fault it is.
        message: Template of the sentence; `{doing}` is what the server was doing.
        hint: What to do about it.
        weak: The row also matches what only follows from another failure, or a line that need not
            be fatal: it counts only when the process has ended or has said that it will.
    """

    name: str
    pattern: re.Pattern[str]
    fault: Fault
    message: str
    hint: str = ""
    weak: bool = False


def _row(
    name: str, pattern: str, fault: Fault, message: str, hint: str = "", *, weak: bool = False
) -> Signature:
    return Signature(name, re.compile(pattern), fault, message, hint, weak)


_P, _B, _M = Fault.PARAMETERS, Fault.BUSY, Fault.MACHINE

SIGNATURES: tuple[Signature, ...] = (
    # -- somebody else holds what the server needs ----------------------------------------------
    _row(
        "port-taken",
        r"\[Errno 98\]|EADDRINUSE|[Aa]ddress already in use",
        _B,
        "the server could not bind its port",
        "stop what listens there; it may be the server before, still draining",
    ),
    _row(
        "inner-port-taken",
        r"\b\w*port\w* at \d+ is not available",
        _B,
        "a port that the server derives from its own is held by somebody else",
        "workers of an earlier start may have outlived it",
    ),
    _row(
        "gpu-shared",
        # With `this process has` beside it, `Process N` is another one (torch's CUDA allocator).
        r"CUDA out of memory(?=.*\bthis process has)"
        r"(?=.*\bProcess \d+ has (?:[4-9]|\d{2,})(?:\.\d+)? GiB)",
        _B,
        "another process holds memory of the GPU",
        "end it or wait for it; workers of an earlier start may have outlived it",
    ),
    _row(
        "gpu-occupied",
        r"memory capacity is unbalanced|Some GPUs may be occupied|busy or unavailable",
        _B,
        "a GPU is occupied by another process",
        "`nvidia-smi` names it",
    ),
    # -- the kernel and the service manager -----------------------------------------------------
    _row(
        "kernel-oom",
        r"OOM killer|[Oo]om-kill|result '?oom-kill|Out of memory: Killed process",
        _M,
        "the kernel ended the server because the host ran out of memory",
        "host memory, not GPU memory: look at MemoryMax= of the unit and at what else runs",
    ),
    _row(
        "start-limit",
        r"start-limit-hit|Start request repeated too quickly",
        _M,
        "the service manager refuses to start the unit again so soon",
        "`systemctl reset-failed` clears the count",
    ),
    _row(
        "exec",
        r"status=2[0-4]\d(?:/[A-Z]|$)|Failed at step \w+|Failed to locate executable",
        _M,
        "the service manager could not run the command of the unit",
        "the program, its user or its directory is missing or may not be used",
    ),
    _row(
        "unit-resources",
        r"result '?(?:resources|protocol)\b",
        _M,
        "the service manager could not set the unit up",
    ),
    # -- the parameters, said plainly -----------------------------------------------------------
    _row(
        "draft-oom",
        r"(?:DFLASH|DDTREE) draft OOM",
        _P,
        "the draft model did not get its memory {doing}",
        "a smaller tree, or a smaller --mem-fraction-static",
    ),
    _row(
        "gpu-oom",
        r"OutOfMemoryError|CUDA out of memory|cudaErrorMemoryAllocation|HIP out of memory"
        r"|[Cc]uda failure 2 |CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        _P,
        "the server ran out of GPU memory {doing}",
        "verify buffers and graphs grow with batch x (budget + 1)",
    ),
    _row(
        "kv-memory",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        _P,
        "no memory was left for the KV cache",
        "weights, draft and graphs took it all: raise --mem-fraction-static or shrink the rest",
    ),
    # -- the machine's hardware, files and network ----------------------------------------------
    _row(
        "no-device",
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
        r"|CUDA driver version is insufficient|invalid device ordinal|no kernel image is available"
        r"|CUDA driver initialization failed|[Nn]o accelerator|NVML: Driver/library version",
        _M,
        "a GPU or its driver is missing",
        "`nvidia-smi` on the host says more",
    ),
    _row(
        "gpu-broken",
        r"uncorrectable ECC|fallen off the bus|cudaErrorECCUncorrectable|GPU is lost"
        r"|cudaErrorHardwareStackError|NVLink error",
        _M,
        "a GPU is broken",
        "the kernel log names it (Xid)",
    ),
    _row(
        "model-missing",
        r"LocalEntryNotFoundError|RepositoryNotFoundError|GatedRepoError|HFValidationError"
        r"|does not appear to have a file named|Can't load (?:the configuration|tokenizer)"
        r"|couldn't connect to '|Unrecognized model in|SafetensorError",
        _M,
        "the files of a model could not be read",
        "is the path right, the disk mounted, the download complete?",
    ),
    _row(
        "no-space",
        r"No space left on device|\[Errno 28\]|Read-only file system|\[Errno 12\]"
        r"|Cannot allocate memory|Too many open files",
        _M,
        "the host ran out of disk, memory or file handles",
    ),
    _row(
        "file",
        r"^(?:\w+\.)*(?:OSError|IOError|FileNotFoundError|PermissionError|NotADirectoryError"
        r"|IsADirectoryError|ConnectionError)\b|No such file or directory|Permission denied",
        _M,
        "the server could not use a file or an address of the host",
        weak=True,
    ),
    _row(
        "installation",
        r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError)\b|undefined symbol|GLIBC"
        r"|python[\d.]*: (?:No module named|Error while finding module spec|can't open file)",
        _M,
        "the installation of the engine is broken",
        weak=True,
    ),
    # -- the parameters, as the engine's code meets them ----------------------------------------
    _row(
        "illegal-access",
        r"illegal memory access|device-side assert|misaligned address|illegal instruction"
        r"|unspecified launch failure",
        _P,
        "a GPU kernel failed {doing}",
        "known for trees that are wider than the buffers made for them",
    ),
    _row(
        "shapes",
        r"qo_indptr|[Ss]hape.*(?:mismatch|invalid|not match|doesn't match|inconsistent)"
        r"|(?:mismatch|invalid|[Ee]xpected|broadcast).*\bshape|The size of tensor a"
        r"|mat1 and mat2 shapes|must match the size|size mismatch|out of bounds",
        _P,
        "tensors did not fit each other {doing}",
        "graphs or buffers were made for another number of tokens than the tree has",
    ),
    _row(
        "refused",
        r"^(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|IndexError)\b",
        _P,
        "the engine refused the parameters {doing}",
        weak=True,
    ),
    _row(
        "capture",
        r"[Cc]apture .*cuda graph failed|[Cc]apture .*CUDA graph failed",
        _P,
        "CUDA graphs could not be captured",
        "a smaller --cuda-graph-max-bs or --mem-fraction-static leaves more room",
        weak=True,
    ),
    # -- what may follow from anything above ----------------------------------------------------
    _row(
        "collective",
        r"NCCL|WorkNCCL|ncclSystemError|ncclUnhandledCudaError|ncclInternalError"
        r"|DistBackendError|Connection (?:closed|reset) by peer",
        _M,
        "the GPUs lost touch with each other",
        weak=True,
    ),
    _row(
        "ended-from-outside",
        r"status=(?:15/TERM|2/INT|1/HUP|143|130)|the main process was ended by signal (?:15|2|1)$",
        _M,
        "the server was stopped by somebody else",
    ),
)
