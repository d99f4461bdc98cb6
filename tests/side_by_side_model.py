"""Endpoints in small whose sub workers run tasks side by side: in any order that the session allows.

As `copy_model`, but each session has two sub workers and a thread that fetches: actors, too.
"""

from collections import deque
from types import SimpleNamespace

from simpler_ref.calls.tasks import Task
from simpler_ref.remote.dispatcher import InnerCallable
from simpler_ref.remote.side_by_side import SideBySide

from . import copy_model

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
        self.session, self.todo = session, deque()

    def submit(self, function, *args):
        if isinstance(function, Task):  # a call, as a stream has it
            (positional, _named) = args
            self.todo.append(Promise(lambda: function.py_func(*positional)))
        else:
            self.todo.append(Promise(lambda: function(*args)))
        made = self.todo[-1]
        self.session.promised.append(made)
        return made

    def can_go_on(self):
        """Say whether there is something to do, or will be nothing."""
        return bool(self.todo) or self.session.has_ended

    def live(self):
        point = self.session.play.actors.point
        while self.todo or not self.session.has_ended:
            if self.todo:
                one = self.todo.popleft()
                point()
                one.do()
            point(self.can_go_on)


class Served(copy_model.Served):
    """A session whose tasks are all for its sub workers; it waits where the actors take turns."""

    def __init__(self, play, of):
        super().__init__(play, of)
        self.promised, self.has_ended = [], False
        self.sub_workers, self.fetchers = Queue(self), Queue(self)
        target = InnerCallable("handle", self._run_one)
        self.dispatcher = SimpleNamespace(find=lambda _digest: target)
        self._has_several = True
        fetchers = of.copies, lambda: self.fetchers
        self._beside = SideBySide(self._stream, *fetchers, lambda: None)

    def _stream(self):
        return self.sub_workers

    def _wait(self, for_frames):
        def is_over():
            return any(one.is_done for one in self.promised) or (for_frames and bool(self.inbox))

        while not is_over():
            self.play.actors.point(lambda: is_over() or self.of.is_lost)
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


class SideBySidePlay(copy_model.Play):
    """One time that a program is run, with sub workers that run tasks side by side."""

    serve = Served

    def _add_actors(self):
        super()._add_actors()
        for served in self.served:
            several = {
                "sub": (served.sub_workers, SUB_WORKERS),
                "fetcher": (served.fetchers, FETCHERS),
            }
            for kind, (queue, count) in several.items():
                for i in range(count):
                    self.actors.add(f"{kind} {served.of.number} {i}", queue.live, queue.can_go_on)
