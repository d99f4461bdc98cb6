"""Endpoints in small whose sub workers run tasks side by side: in any order that the session allows.

As `copy_model`, but each session has two sub workers and a thread that fetches: actors, too.
"""

from collections import deque
from types import SimpleNamespace

from simpler_ref.calls.tasks import Task
from simpler_ref.remote.dispatcher import InnerCallable
from simpler_ref.remote.side_by_side import SideBySide

from . import copy_model
from .copy_model import Lost

SUB_WORKERS, FETCHERS = 2, 1


class Promise:
    """What another actor does, once: a future of a call, or of a thread."""

    def __init__(self, act):
        self.act, self.is_done, self.error, self.value = act, False, None, None

    def do(self):
        try:
            self.value = self.act()
        except Exception as error:
            self.error = error
        self.is_done = True

    def done(self):
        return self.is_done

    def exception(self):
        return self.error

    def result(self):
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, _callback):
        """Tell nobody: the session sees it when it is its turn."""


class Queue:
    """What actors of a session have to do: the calls of its sub workers, or what is to be fetched."""

    ended = 0

    def __init__(self, session):
        self.session, self.todo, self.busy = session, deque(), set()

    def submit(self, function, *args):
        if isinstance(function, Task):  # a call, as a stream has it
            (positional, _named) = args
            self.todo.append(Promise(lambda: function.py_func(*positional)))
        else:
            self.todo.append(Promise(lambda: function(*args)))
        made = self.todo[-1]
        self.session.promised.append(made)
        return made

    def can_go(self, name):
        return bool(self.todo) or name in self.busy or self.session.has_ended

    def live(self, name):
        play = self.session.play
        while self.todo or not self.session.has_ended:
            if self.todo:
                self.busy.add(name)
                one = self.todo.popleft()
                play.actors.point()
                one.do()
                self.busy.discard(name)
            play.actors.point()


class Served(copy_model.Served):
    """A session whose tasks are all for its sub workers; it waits where the actors take turns."""

    def __init__(self, play, of):
        super().__init__(play, of)
        self.promised, self.waits, self.has_ended = [], "", False
        self.sub_workers, self.fetchers = Queue(self), Queue(self)
        target = InnerCallable("handle", self._run_one)
        self._dispatcher = SimpleNamespace(find=lambda _digest: target)
        self._has_several = True
        fetchers = of.copies, lambda: self.fetchers
        self._beside = SideBySide(self._stream, *fetchers, lambda: None)

    def _stream(self):
        return self.sub_workers

    def _wait(self, for_frames):
        while not (for_frames and self.inbox):
            if any(one.is_done for one in self.promised):
                break
            self.waits = "frames" if for_frames else "tasks"
            self.play.actors.point()
            self.waits = ""
            self._require_alive()

    def _answer_ended(self):
        self.promised = [one for one in self.promised if not one.is_done]
        for end in self._beside.ends():
            self._tell(end)

    def live(self):
        """Serve frames until the link has no more."""
        super().live()
        self.has_ended = True

    def _run_one(self, args):
        self.run(None, args, None)

    def can_go(self):
        """Say whether it has something to do."""
        if not self.waits:
            return None
        ended = any(one.is_done for one in self.promised)
        return ended or self.of.is_lost or (self.waits == "frames" and bool(self.inbox))


class SideBySidePlay(copy_model.Play):
    """One time that a program is run, with sub workers that run tasks side by side."""

    serve = Served

    def _add_actors(self):
        super()._add_actors()
        self._queues = {}
        for served in self.served:
            for kind, queue, count in (
                ("sub", served.sub_workers, SUB_WORKERS),
                ("fetcher", served.fetchers, FETCHERS),
            ):
                for i in range(count):
                    name = f"{kind} {served.of.number} {i}"
                    self._queues[name] = queue
                    self.actors.add(name, lambda queue=queue, name=name: self._live(queue, name))

    @staticmethod
    def _live(queue, name):
        try:
            queue.live(name)
        except Lost:
            queue.busy.discard(name)

    def _can_go(self, name):
        queue = self._queues.get(name)
        if queue is not None:
            self._give()
            return queue.can_go(name)
        if name.startswith("session"):
            able = self.served[int(name.split()[1])].can_go()
            if able is not None:
                self._give()
                return able
        return super()._can_go(name)
