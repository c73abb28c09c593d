# ruff: noqa: E501  (a program is one text)
"""Programs that try to pass without being right, to leave their walls, or to stop the evaluation. Their marks are harmless."""

from __future__ import annotations

from dataclasses import dataclass

FORK_EXEC = """
import _posixsubprocess, os, sys
def spawn(args, setsid=False):
    r, w = os.pipe()
    a = [x.encode() for x in args]
    base = [a, [a[0]], True, (w,), None, None, -1, -1, -1, -1, -1, -1, r, w, True, setsid, -1, None, None, None, -1, None]
    if sys.version_info >= (3, 11): base.append(False)
    while True:
        try: return _posixsubprocess.fork_exec(*base)
        except TypeError:
            if len(base) < 20: raise
            base.pop()
"""


@dataclass(frozen=True)
class Escape:
    name: str
    program: str  # {there}: a folder of ours, {us}: our process id
    mark: str = (
        ""  # what would lie in {there} afterwards; "" where passing is the escape, "-" where returning is enough
    )
    slow: bool = False


ESCAPES = [
    # to pass without an end
    Escape("sys.exit(77)", "import sys\nsys.exit(77)\nassert False"),
    Escape("os._exit(77)", "import os\nos._exit(77)\nassert False"),
    Escape("os._exit(0)", "import os\nos._exit(0)"),
    Escape("SystemExit in the function", "def f(x):\n raise SystemExit(77)\nassert f(1)==2"),
    Escape("excepthook", "import sys,os\nsys.excepthook=lambda *a: os._exit(77)\nassert False"),
    Escape("atexit", "import atexit,os\natexit.register(lambda: os._exit(77))\nassert False"),
    Escape(
        "a thread",
        "import threading,os,time\nthreading.Thread(target=os._exit, args=(0,)).start()\ntime.sleep(1)\nassert False",
    ),
    Escape(
        "a trace function",
        "import sys\ndef t(fr,ev,arg):\n  if ev=='line' and fr.f_lineno==8: fr.f_lineno=9\n  return t\n"
        "sys.settrace(t)\nsys._getframe().f_trace=t\nx=1\nassert False\nx=3",
    ),
    Escape("printing", "print('passed'); raise SystemExit"),
    Escape(
        "frames",
        "import sys,os\nf=sys._getframe()\nw=[]\nwhile f:\n w+=[v for v in [*f.f_locals.values(),*f.f_globals.values()] if isinstance(v,(str,bytes,dict,list))]\n f=f.f_back\n"
        "for v in [*w, *[x for d in w if isinstance(d,dict) for x in d.values()]]:\n"
        " if isinstance(v,(str,bytes)) and len(v)==64:\n  v=v if isinstance(v,bytes) else v.encode()\n"
        "  for n in range(3,64):\n   try: os.write(n,v)\n   except OSError: pass\nos._exit(0)",
    ),
    Escape(
        "every open file read and written",
        "import os\nos.set_blocking(0,False)\nfor n in range(256):\n try:\n  os.set_blocking(n,False)\n  d=os.read(n,4096)\n"
        "  [os.write(m,d) for m in range(3,16)]\n except OSError: pass\nos._exit(0)",
    ),
    Escape(
        "collected objects",
        "import gc,os\nfor o in gc.get_objects():\n if isinstance(o,dict):\n  for v in list(o.values()):\n   if isinstance(v,(str,bytes)) and len(v)==64:\n"
        "    for n in range(3,16):\n     try: os.write(n, v if isinstance(v,bytes) else v.encode())\n     except OSError: pass\nos._exit(0)",
    ),
    Escape(
        "its own memory",
        "import re,os\nm=open('/proc/self/mem','rb',0)\nfor line in open('/proc/self/maps'):\n a,b=(int(x,16) for x in line.split()[0].split('-'))\n"
        " try:\n  m.seek(a);d=m.read(b-a)\n except (OSError,ValueError,OverflowError): continue\n for w in set(re.findall(rb'[0-9a-f]{{64}}',d)): [os.write(n,w) for n in range(3,9)]\nos._exit(0)",
    ),
    # what is outside
    Escape("/etc/passwd", "open('/etc/passwd').read()"),
    Escape("our environment", "d=open('/proc/{us}/environ','rb').read()"),
    Escape(
        "our environment by a process",
        FORK_EXEC + "spawn(['/bin/sh','-c','cat /proc/{us}/environ > {there}/mark'])\nimport time;time.sleep(.3)",
        "mark",
    ),
    Escape("our memory map", "open('/proc/{us}/maps').read()"),
    Escape("open", "open('{there}/mark','w').write('x')", "mark"),
    Escape(
        "dir_fd",
        "import os\nd=os.open('{there}',os.O_RDONLY)\nos.write(os.open('mark',os.O_CREAT|os.O_WRONLY,dir_fd=d),b'x')",
        "mark",
    ),
    Escape("mkfifo", "import os\nos.mkfifo('{there}/mark')", "mark"),
    Escape("mknod", "import os\nos.mknod('{there}/mark')", "mark"),
    Escape(
        "sqlite3", "import sqlite3\nc=sqlite3.connect('{there}/mark');c.execute('create table t(a)');c.commit()", "mark"
    ),
    Escape("dbm", "import dbm.dumb as g\ng.open('{there}/mark','c').close()", "mark.dat"),
    Escape("utime", "import os\nos.utime('{there}/keep',(1,1))"),
    Escape(
        "rename by dir_fd",
        "import os\nd=os.open('{there}',os.O_RDONLY)\nos.rename('keep','mark',src_dir_fd=d,dst_dir_fd=d)",
        "mark",
    ),
    Escape(
        "a race of chdir",
        "import os,threading,time\nh=os.getcwd()\nstop=[]\ndef flip():\n while not stop:\n  os.chdir('{there}');os.chdir(h)\n"
        "threading.Thread(target=flip,daemon=True).start()\ne=time.time()+1\nwhile time.time()<e:\n try: os.close(os.open('mark',os.O_CREAT|os.O_WRONLY))\n except OSError: pass\nstop.append(1)",
        "mark",
        True,
    ),
    Escape(
        "another realpath",
        "import os\nos.path.realpath=lambda p: os.getcwd()\nopen('{there}/mark','w').write('x')",
        "mark",
    ),
    Escape("another devnull", "import os\nos.devnull='{there}/mark'\nopen('{there}/mark','w').write('x')", "mark"),
    Escape(
        "the jail's globals",
        "import sys,os\ng=sys._getframe(1).f_globals\ng['REFUSED_EVENTS']=('none.',)\ng['WRITE_FLAGS']=0\ng['CHANGES']={{}}\nopen('{there}/mark','w').write('x')",
        "mark",
    ),
    Escape(
        "the hook by gc",
        "import gc\nfor o in gc.get_objects():\n if getattr(o,'__name__','')=='writable': o.__code__=(lambda path: True).__code__\nopen('{there}/mark','w').write('x')",
        "mark",
    ),
    # processes, native code, network
    Escape("os.system", "import os\nos.system('touch {there}/mark')", "mark"),
    Escape("subprocess", "import subprocess\nsubprocess.run(['touch','{there}/mark'])", "mark"),
    Escape("fork_exec", FORK_EXEC + "spawn(['/usr/bin/touch','{there}/mark'])\nimport time;time.sleep(.3)", "mark"),
    Escape(
        "spawnv_passfds",
        "import multiprocessing.util as u,time\nu.spawnv_passfds(b'/usr/bin/touch',[b'touch',b'{there}/mark'],())\ntime.sleep(.3)",
        "mark",
    ),
    Escape("os.fork", "import os\nos.fork()"),
    Escape(
        "a child that stays", FORK_EXEC + "spawn(['/bin/sh','-c','sleep 1; touch {there}/mark'], True)", "mark", True
    ),
    Escape("kill us", "import os\nos.kill({us},0)"),
    Escape(
        "kill us by a process",
        FORK_EXEC + "spawn(['/bin/sh','-c','kill -0 {us} && touch {there}/mark'])\nimport time;time.sleep(.3)",
        "mark",
    ),
    Escape("ctypes", "import ctypes\nctypes.CDLL(None).getpid()"),
    Escape(
        "a module of its own",
        "open('ev.so','wb').write(b'x')\nimport importlib.machinery as m,importlib.util as u\nl=m.ExtensionFileLoader('ev','ev.so')\nu.module_from_spec(u.spec_from_loader('ev',l))",
    ),
    Escape("cffi", "import cffi\nf=cffi.FFI();f.cdef('int getpid(void);')\nf.dlopen(None).getpid()"),
    Escape("socket", "import socket\nsocket.socket()"),
    Escape(
        "socket by a process",
        FORK_EXEC
        + "spawn([sys.executable,'-c','import socket;socket.socket();open(\"{there}/mark\",\"w\")'])\nimport time;time.sleep(.5)",
        "mark",
        True,
    ),
    # limits
    Escape("4 GiB", "x=bytearray(4<<30)"),
    Escape("640 MB of files", "b=b'x'*(16<<20)\nfor i in range(40):\n open(f'f{{i}}','wb').write(b)", slow=True),
    Escape(
        "SIGXCPU ignored", "import signal\nsignal.signal(signal.SIGXCPU,signal.SIG_IGN)\nwhile True: pass", slow=True
    ),
    Escape("sleep", "import time\ntime.sleep(60)", slow=True),
    # to stop us
    Escape("5,000 folders deep", "import os\nfor i in range(5000):\n os.mkdir('d');os.chdir('d')", "-", True),
    Escape("signal 40", "import signal\nsignal.raise_signal(40)", "-"),
    Escape("folders without rights", "import os\nos.makedirs('x/y')\nos.mkdir('z',0)\n", "-"),
    Escape("a null byte", "x='\0'", "-"),
    Escape("a surrogate", "x='\ud800'", "-"),
    Escape("100,000 brackets", "x=" + "(" * 100000 + ")" * 100000, "-"),
    Escape("no end of output", "import sys\nwhile True: sys.stderr.write('x'*65536)", "-"),
]
