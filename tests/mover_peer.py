"""Another session's mover, in a process of its own, for tests that stop or kill it.

Started with the group's keys or nothing, `silence_s`, and what it does in the middle of a transfer. It
prints its address, and a line when it has come to the middle; it ends when its input does.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

KEY = 0x1234 << 48 | 5
NBYTES = 8 << 20


class Peer:
    """The process, seen from the test."""

    def __init__(self, group=None, silence_s=0.5, middle=""):
        argument = json.dumps([group, silence_s, middle])
        self._process = subprocess.Popen(
            [sys.executable, __file__, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address = self.line()

    def line(self):
        return self._process.stdout.readline().decode().strip()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def close(self):
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def say(text):
    print(text, flush=True)


def main(group, silence_s, middle):
    from simpler_ref.remote.connection import KeyPair
    from simpler_ref.remote.mover import Mover, Window

    made = Mover("tcp://127.0.0.1:*", KeyPair(*group) if group else None, silence_s)
    memory = (ctypes.c_char * NBYTES)()
    made.offer(Window(KEY, ctypes.addressof(memory), NBYTES))
    windows, served, released = made._windows, [], threading.Event()

    def at_the_third(serve):
        def serve_one(*request):
            served.append(request)
            if len(served) == 3 and middle == "wait":
                say("in the middle")
                released.wait()
            return serve(*request)

        return serve_one

    windows.read, windows.write = at_the_third(windows.read), at_the_third(windows.write)
    say(made.address)
    os.read(0, 1)
    released.set()
    made.close()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
