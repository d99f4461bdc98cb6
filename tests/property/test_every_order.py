"""Tasks that are given ahead of time, in every order of steps: small programs, step by step.

Nothing is left to chance: all situations that Orch thread, Scheduler and workers can get into are gone
through.

Not in it, but in tests/interleaving: the order of the stores within one such step, workers that sleep,
control requests.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from tests.ahead_model import FIRST_KEY, AheadModel, parse
from tests.walk import live_words, walk

CLOCKS = [word + kind for word in (L.DEFERRED_SINCE, L.STUCK_SINCE) for kind in (0, 1)]
"""Words whose values differ from one time to the next, and mean nothing where no worker sleeps."""
BESIDE = ("works", "slots", "last_writer", "at_work", "dead", "cancelled")
BESIDE += ("left", "answers", "ends", "told", "torn", "losing")
"""What the model knows beside the engine."""
all_beside = operator.attrgetter(*BESIDE)

FREEZE = {bool: bool, list: tuple, set: frozenset, dict: lambda part: tuple(sorted(part.items()))}
"""Makes of what a part holds something that is equal for equal parts."""


class EveryOrder(AheadModel):
    """The model of a program, in the words of `parse`, that can go back: what `walk` needs."""

    def __init__(self, program: str, **how):
        super().__init__(parse(program), **how)
        self.words = np.union1d(live_words(self.driver), self.keys())
        self.kinds = [type(part) for part in all_beside(self)]
        self.told_apart = np.setdiff1d(self.words, CLOCKS)

    # ------------------------------------------------------------ going back to where one was
    def keys(self):
        """Return where in the TensorMap the buffers of the program have their places."""
        mem, home = self.driver.mem, self.driver.x.home
        keys = [FIRST_KEY + 8 * number for number in range(len(self.program))]
        places = {home(key, -1, int(mem[L.MAP_MASK])) for key in keys}
        assert len(places) == len(keys), "two of them want the same one"
        return [
            int(mem[L.MAP_BASE]) + place * L.ENTRY_WORDS + word
            for place in places
            for word in range(L.ENTRY_WORDS)
        ]

    def beside(self):
        return tuple([FREEZE[type(part)](part) for part in all_beside(self)])

    def save(self):
        return self.driver.mem[self.words], self.beside()

    def restore(self, saved):
        words, parts = saved
        self.driver.mem[self.words] = words
        for name, part, kind in zip(BESIDE, parts, self.kinds, strict=True):
            setattr(self, name, kind(part))

    def key(self):
        return hash((self.driver.mem[self.told_apart].tobytes(), self.beside()))

    # ------------------------------------------------------------ what must hold
    def take(self, _, step):
        step()
        self.check_order()

    def end(self):
        """Nothing leads on: everything is done, unless an end that nobody will show is waited for."""
        waiting = [worker for worker in self.all if self.task_at(worker) is not None]
        assert not waiting or self.torn, f"workers {waiting} wait for ever"
        assert len(self.works) == len(self.program) or not self.may_submit()
        before = self.driver.mem[self.words]
        self.finish()
        self.driver.mem[self.words] = before

    def explore(self, most=float("inf")):
        """Go everywhere; return how many situations there are."""
        before, start = self.driver.words(), self.save()
        found = walk(self, self.take, most)
        self.restore(start)
        changed = np.array(self.driver.changed_since(before))
        assert all(map(self.is_in_a_mailbox, changed)), "words were not brought back"
        self.driver.close()
        return found

    def is_in_a_mailbox(self, word):
        place = int(word - self.driver.mem[L.A_WORKERS]) % L.WORKER_WORDS
        return L.W_MAILBOX <= place < L.W_TRACE


PROGRAMS = [
    ("a@0 b@1<a c@0 d@1 e<b", {"coarse": True, "at_once": 5, "fail": 1, "back": 1}),
    ("a@0 b@1<a c@2<b d@1 e@1", {"coarse": True, "workers": 3, "at_once": 3, "fail": 1}),
    ("a@0 b@1<a c@1 d@1 e<b", {"coarse": True, "at_once": 2, "back": 1}),
    ("a@0 b@1<a c@0<b", {"fail": 1, "back": 1}),
    ("a b<a c<b", {"scoped": True, "fail": 1, "back": 1}),
    ("a@0 b@1<a c<b", {"workers": 3, "at_once": 3, "die": 2}),
    ("a b<a c<a d<bc", {"at_once": 4, "back": 1}),
    ("a@0 b@1<a c*2<b d<c", {"at_once": 4, "fail": 1, "back": 1}),
    ("a@0 b*2 c<b d@1<c", {"at_once": 4, "die": 1}),
    ("a*2 b@1<a c<b", {"fail": 1}),
    ("a@0 b@1<a c@0<b", {"at_once": 2, "cancel": 1}),
    ("a@0 b@1<a c<b d@0", {"depth": 3, "at_once": 4, "fail": 1, "die": 1}),
]


LARGER = [
    ("a@0 b@1<a c@0<b d@1 e@1", {"coarse": True, "at_once": 3, "back": 1}),
    ("a@0 b@1<a c@0<b d@1 e@1", {"at_once": 3, "back": 1}),
    ("a@0 b@1<a c@0 d@1 e<b", {"at_once": 5, "fail": 1, "back": 1, "die": 1}),
    ("a b<a c<a d<bc e<d", {"at_once": 5, "fail": 1, "back": 1}),
    ("a@0 b@1<a c<b", {"workers": 3, "fail": 1, "back": 1, "die": 2}),
]
PROGRAMS += [pytest.param(*one, marks=pytest.mark.long) for one in LARGER]


@pytest.mark.spec("SPEED-AHEAD-1", "SPEED-DEPTH-6")
@pytest.mark.parametrize(("program", "how"), PROGRAMS)
def test_whatever_the_order_no_task_starts_early_twice_or_never(program, how):
    model = EveryOrder(program, **how)
    model.explore()
    assert model.ahead > 0
