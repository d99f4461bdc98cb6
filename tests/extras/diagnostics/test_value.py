"""FLAG-VALUE: what flags can be."""

import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref.jit import layout as L
from tests.conformance.see.conftest import Below

REFUSED = [
    ("enable_dump_tensor", 4, "0 to 3"),
    ("enable_dep_gen", 2, "0 to 1"),
    ("enable_scope_stats", 2, "0 to 1"),
    ("enable_pmu", 3, r"1 \(arithmetic\), 2 \(pipes\), 4 \(memory\)"),
    ("enable_pmu", 9, r"8 \(l2_cache\)"),
]


@pytest.fixture(scope="module")
def w():
    with Worker(3, child_mode="thread") as made:
        made.add_next_level(Below())
        made.start()
        yield made


@pytest.mark.spec("FLAG-VALUE-1")
@pytest.mark.parametrize(("flag", "value", "words"), REFUSED)
def test_another_value_is_refused_and_changes_nothing(w, flag, value, words, tmp_path):
    folder = tmp_path / "out"
    config = CallConfig(**{flag: value, "output_prefix": str(folder)})
    said = f"{flag} is {value}; it can be .*{words}"
    handle, mem = w.register(lambda: None), w._session.engine.mem

    def orch_fn(orch, args, given):
        before = mem[L.RING_BLOCK : L.SCHED].copy()
        with pytest.raises(ValueError, match=said):
            orch.submit_next_level(handle, TaskArgs(), config)
        with pytest.raises(ValueError, match=said):
            orch.submit_next_level_group(handle, [TaskArgs()], config)
        assert (mem[L.RING_BLOCK : L.SCHED] == before).all()

    assert w.run(orch_fn).tasks == 0
    for ask in (w.run, w.record):
        with pytest.raises(ValueError, match=said):
            ask(lambda *_: pytest.fail("it ran"), None, config)
    assert not folder.exists()
