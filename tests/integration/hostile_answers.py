"""Answers that attack what runs them: one dictionary."""

# ruff: noqa: E501 - hostile programs read better on long lines than in pieces

from __future__ import annotations

from autotune.coding.launch import Program

# Passes only where nothing of another answer is about: no process, no file, no System V object.
NEXT = Program(
    "import ctypes, os\n"
    "def f():\n"
    "    for n in range(4):\n        if os.fork() == 0: os._exit(0)\n        os.wait()\n"
    "    c = ctypes.CDLL(None)\n"
    "    found = [n for n, i in (('shm', c.shmget(5417, 0, 0)), ('sem', c.semget(5417, 0, 0)),\n"
    "        ('msg', c.msgget(5417, 0))) if i >= 0]\n"
    "    open('/tmp/mine', 'x').write('x')\n"
    "    return os.listdir('/tmp') + found",
    "f",
    ("f() == ['mine']",),
)

# name: (code, what may become of it). The check is `f() == 1`: an escape that works returns 1.
# {secret}, {folder} and {port} are things of the host that must stay out of reach.
HOSTILE: dict[str, tuple[str, str]] = {
    "wrong marker in the output": (
        "def f():\n    print('passed', 'S', 'N')\n    return 2",
        "wrong",
    ),
    "exit in the call": ("import os\ndef f():\n    os._exit(0)", "error"),
    "exit while loading": ("import os\nos._exit(0)\ndef f(): return 1", "error"),
    "sys.exit in the call": ("import sys\ndef f(): sys.exit(0)", "error"),
    "sys.exit while loading": ("import sys\nsys.exit(0)\ndef f(): return 1", "error"),
    "keyboard interrupt": ("def f(): raise KeyboardInterrupt", "error"),
    "abort": ("import os\ndef f(): os.abort()", "error"),
    "stop iteration": ("def f(): raise StopIteration(1)", "error"),
    "equal to everything": (
        "class A(int):\n    def __eq__(s, o): return True\n    def __bool__(s): return True\n"
        "    __hash__ = int.__hash__\ndef f(): return A(2)",
        "wrong",
    ),
    "patches builtins": (
        "import builtins\n"
        "for n in ('eval', 'exec', 'all', 'bool', 'isinstance', 'compile', 'len', 'type'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\ndef f(): return 2",
        "error wrong",
    ),
    "patches the harness": (
        "import sys\n"
        "for n, m in list(sys.modules.items()):\n"
        "    if n.startswith('autotune'):\n"
        "        m.examine = m.check_holds = lambda *a, **k: ('passed', '')\n"
        "def f(): return 2",
        "wrong",
    ),
    "patches the wire": (
        "import sys\nw = sys.modules['autotune.coding.wire']\n"
        "def f():\n    w.Peer._encode = lambda self, v: b'T'\n    return 2",
        "error",
    ),
    "writes to every descriptor": (
        "import os\ndef f():\n    for d in range(256):\n        try: os.write(d, b'passed' * 9)\n"
        "        except OSError: pass\n    return 2",
        "error timeout",
    ),
    "closes every descriptor": (
        "import os\ndef f():\n    os.closerange(0, 256)\n    return 1",
        "error",
    ),
    "closes the output": (
        "import os, sys\ndef f():\n    sys.stdout.close()\n    os.close(1)\n    return 2",
        "wrong",
    ),
    "looks for the checks": (
        "import gc, sys\n"
        "def f():\n    word = ''.join(('MARK', 'ER-5417'))\n    frame = sys._getframe().f_back\n    seen = []\n"
        "    while frame:\n        seen += list(frame.f_locals.values())\n        frame = frame.f_back\n"
        "    for o in gc.get_objects():\n"
        "        seen += list(o.values()) if type(o) is dict else list(o) if type(o) in (list, tuple) else []\n"
        "    return int(any(isinstance(s, (str, bytes)) and word in str(s) for s in seen))",
        "wrong",
    ),
    "reads the task again": (
        "import os\ndef f():\n    for d in range(64):\n        try:\n"
        "            if b''.join((b'MARK', b'ER-5417')) in os.pread(d, 99999, 0): return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "kills its examiner": (
        "import os\ndef f():\n    os.kill(os.getppid(), 9)\n    return 2",
        "error",
    ),
    "stops its examiner": (
        "import os\ndef f():\n    os.kill(os.getppid(), 19)\n    return 2",
        "timeout",
    ),
    "signals its keeper": (
        "import os\ndef f():\n    for s in (2, 9, 15, 19):\n        os.kill(1, s)\n    return 2",
        "wrong",
    ),
    "leaves a file": ("def f():\n    open('/tmp/mine', 'w').write('x')\n    return 2", "wrong"),
    "leaves a hidden folder": (
        "import os\ndef f():\n    os.makedirs('/tmp/.a/b')\n    os.chmod('/tmp/.a', 0)\n    return 2",
        "wrong",
    ),
    "closes the scratch folder": (
        "import os\ndef f():\n    os.chmod('/tmp', 0)\n    return 2",
        "wrong",
    ),
    "leaves shared memory": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).shmget(5417, 4096, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "leaves a semaphore": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).semget(5417, 1, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "leaves a System V queue": (
        "import ctypes\ndef f(): return 2 if ctypes.CDLL(None).msgget(5417, 0o1600) >= 0 else 3",
        "wrong",
    ),
    "makes a POSIX queue": (
        "import ctypes\ndef f():\n    c = ctypes.CDLL('librt.so.1')\n"
        "    return 1 if c.mq_open(b'/mine', 0o102, 0o600, None) >= 0 else 2",
        "wrong",
    ),
    "kills everybody": (
        "import os\ndef f():\n    try: os.kill(-1, 9)\n    except OSError: pass\n    return 2",
        "wrong error",
    ),
    "traces its parent": (
        "import ctypes, os\ndef f():\n    c = ctypes.CDLL(None)\n"
        "    return 1 if c.ptrace(16, os.getppid(), 0, 0) == 0 else 2",
        "wrong",
    ),
    "reads its parent's memory": (
        "import os\ndef f():\n    try: open(f'/proc/{{os.getppid()}}/mem', 'rb')\n"
        "    except OSError: return 2\n    return 1",
        "wrong",
    ),
    "process_vm_readv": (
        "import ctypes, os\nclass V(ctypes.Structure):\n"
        "    _fields_ = [('b', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "def f():\n    here = ctypes.create_string_buffer(8)\n"
        "    v = V(ctypes.addressof(here), 8)\n    p = ctypes.byref(v)\n"
        "    n = ctypes.CDLL(None).process_vm_readv(os.getppid(), p, 1, p, 1, 0)\n"
        "    return 1 if n > 0 else 2",
        "wrong",
    ),
    "fork bomb": (
        "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass",
        "timeout error",
    ),
    "fork bomb with sessions": (
        "import os\ndef f():\n    while True:\n        try:\n            os.fork()\n"
        "            os.setsid()\n        except OSError: pass",
        "timeout error",
    ),
    "thread bomb": (
        "import threading, time\ndef f():\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "error",
    ),
    "daemon that outlives": (
        "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            while True: time.sleep(9)\n        os._exit(0)\n"
        "    return 2",
        "wrong",
    ),
    "becomes another program": (
        "import os\ndef f(): os.execv('/usr/bin/sleep', ['sleep', '61.7'])",
        "error timeout",
    ),
    "infinite loop": ("def f():\n    while True: pass", "timeout"),
    "infinite loop while loading": ("while True: pass\ndef f(): return 1", "timeout"),
    "loop that ignores signals": (
        "import signal\ndef f():\n    for s in range(1, 65):\n"
        "        try: signal.signal(s, signal.SIG_IGN)\n        except (OSError, ValueError): pass\n"
        "    while True: pass",
        "timeout error",
    ),
    "endless sleep": ("import time\ndef f(): time.sleep(9999)", "timeout"),
    "endless iteration": (
        "import itertools\ndef f(): return list(itertools.count())",
        "error timeout",
    ),
    "waits for input": ("def f(): return input()", "error"),
    "huge allocation": ("def f(): return len(bytearray(10 << 30)) and 1", "error"),
    "growing list": ("def f():\n    x = [0]\n    while True: x += x", "error"),
    "huge mapping": ("import mmap\ndef f():\n    mmap.mmap(-1, 10 << 30)\n    return 1", "error"),
    "prints a gigabyte": (
        "def f():\n    for _ in range(1 << 10): print('x' * (1 << 20))\n    return 2",
        "wrong timeout",
    ),
    "returns a long text": ("def f(): return 'x' * (100 << 20)", "error"),
    "returns a huge number": ("def f(): return 1 << (1 << 28)", "error timeout"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): return f() + 1",
        "error timeout",
    ),
    "deep nesting": (
        "def f():\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
        "error",
    ),
    "huge power": ("def f(): return 10 ** 10 ** 10", "timeout error"),
    "regex blow-up": (
        "import re\ndef f(): return re.match('(a+)+$', 'a' * 60 + 'b') or 1",
        "timeout",
    ),
    "one huge file": (
        "def f():\n    with open('/tmp/x', 'wb') as o:\n"
        "        for _ in range(1024): o.write(bytes(1 << 20))\n    return 1",
        "error",
    ),
    "many files": (
        "def f():\n    for n in range(1000):\n        with open(f'/tmp/{{n}}', 'wb') as o:\n"
        "            o.write(bytes(1 << 20))\n    return 1",
        "error",
    ),
    "shared memory disk": (
        "def f():\n    for p in ('/dev/shm', '/dev', '/run', '/var/tmp', '/'):\n        try:\n"
        "            open(p + '/x', 'w').write('x')\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "writes outside": (
        "def f():\n    for p in ('{folder}/x', '/usr/x', '/etc/x', '/bin/x', '/python/x'):\n        try:\n"
        "            open(p, 'w').write('x')\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads a secret": ("def f():\n    return 1 if open('{secret}').read() else 2", "error"),
    "reads it through a link": (
        "import os\ndef f():\n    os.symlink('{secret}', '/tmp/l')\n    return 1 if open('/tmp/l').read() else 2",
        "error",
    ),
    "reads ~/.ssh": (
        "import os\ndef f():\n    for p in ('~/.ssh', '/root', '/root/.ssh', '/home', '{folder}'):\n"
        "        try:\n            if os.listdir(os.path.expanduser(p)): return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads /etc and /proc": (
        "def f():\n    for p in ('/etc/passwd', '/etc/shadow', '/proc/self/environ', '/proc/1/environ'):\n"
        "        try:\n            open(p).read()\n            return 1\n"
        "        except OSError: pass\n    return 2",
        "wrong",
    ),
    "reads the environment": (
        "import os\ndef f(): return 1 if 'AUTOTUNE_CANARY' in os.environ else 2",
        "wrong",
    ),
    "connects": (
        "import socket\ndef f():\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    return 1",
        "error",
    ),
    "becomes root": ("import os\ndef f():\n    os.setuid(0)\n    return 1", "error"),
    "new user namespace": (
        "import ctypes\ndef f(): return 1 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 2",
        "wrong",
    ),
    "mounts": (
        "import ctypes\n"
        "def f(): return 1 if ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 else 2",
        "wrong",
    ),
    "changes its root": ("import os\ndef f():\n    os.chroot('/tmp')\n    return 1", "error"),
}
# Those that may only be ended by the wall clock get little of it.
ENDLESS = {name for name, (_, ends) in HOSTILE.items() if "timeout" in ends}
