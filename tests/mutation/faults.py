"""Faults as small changes of the source: what such programs have really had, or tests once let pass.

Every fault names tests that fail with it. The texts must stand in their files exactly once, so a change
of the source that a fault was made for is noticed.
"""

from __future__ import annotations

from typing import NamedTuple


class Patch(NamedTuple):
    """Text of a file of the package, and what stands there instead."""

    file: str
    old: str
    new: str


class Fault(NamedTuple):
    """A fault, and the tests that catch it: each of them fails, or hangs if `hangs` says so."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    caught_by: tuple[str, ...]
    hangs: bool = False


def fault(
    name: str, what: str, caught_by: str | tuple[str, ...], *patches: Patch, hangs: bool = False
) -> Fault:
    tests = (caught_by,) if isinstance(caught_by, str) else caught_by
    return Fault(name, what, patches, tests, hangs)


ORCH = "tests/conformance/orchestrator"
FLOW = "tests/conformance/task_flow"
SCHED = "tests/conformance/scheduler"
WM = "tests/conformance/worker_manager"
SPEED = "tests/conformance/speed"
FAILURE = "tests/conformance/failure"
HIER = "tests/conformance/hierarchy"
CALLS = "tests/conformance/calls"
LISTING = "tests/unit/test_listing.py"
REMOTE = "tests/conformance/remote"
INTERLEAVING = "tests/interleaving"
SEE = "tests/conformance/see"

FAULTS = (
    fault(
        "frame-not-decoded",
        "A worker goes by whatever counts its mailbox has.",
        f"{SCHED}/test_mail.py::test_a_worker_receives_no_task_whose_counts_are_wrong",
        Patch("jit/mailbox.py", "    if scalars < 0 or words > L.ARGS_WORDS:\n", "    if False:\n"),
    ),
    fault(
        "early-ready",
        "A producer that is done before it is wired counts as one of the live ones: its consumer is "
        "READY while others still run.",
        f"{SCHED}/test_ready.py::"
        "test_whenever_its_producers_complete_a_task_is_ready_once_and_with_the_last",
        Patch(
            "jit/graph.py",
            "            mem[slot + L.S_FANIN] += 1\n",
            "            mem[slot + L.S_FANIN] += 1\n"
            "        elif waits:\n"
            "            release_fanin(mem, slot)\n",
        ),
    ),
    fault(
        "released-twice",
        "A producer that completes releases each of its consumers twice.",
        f"{SCHED}/test_ready.py::"
        "test_while_a_task_is_being_wired_its_producers_cannot_make_it_ready",
        Patch(
            "jit/graph.py",
            "            release_fanin(mem, consumer & L.CONSUMER_MASK)\n",
            "            release_fanin(mem, consumer & L.CONSUMER_MASK)\n"
            "            release_fanin(mem, consumer & L.CONSUMER_MASK)\n",
        ),
    ),
    fault(
        "lost-wake",
        "A draining thread announces that it parks and does not look again; the limit of its sleep "
        "hides that.",
        f"{SCHED}/test_wake.py::"
        "test_a_draining_thread_does_not_sleep_on_work_that_came_before_it_parked",
        Patch("jit/schedule.py", "        if stays:\n", "        if True:\n"),
        hangs=True,
    ),
    fault(
        "drain-oversleeps",
        "A draining thread parks although the last task has ended since its pass.",
        "tests/interleaving/test_scenes.py::test_a_drain_ends_when_everything_has",
        Patch(
            "jit/schedule.py",
            " not have_ended(mem, ended) and not has_come_on(mem, taken)\n",
            " not has_come_on(mem, taken)\n",
        ),
    ),
    fault(
        "outlasts-its-time",
        "A thread whose wait is almost over sleeps as long as at its beginning.",
        "tests/interleaving/test_orch_thread.py::"
        "test_a_wait_ends_when_its_time_is_up_and_not_before",
        Patch("jit/schedule.py", "min(int(mem[L.PARK_NS]), rest)", "int(mem[L.PARK_NS])"),
    ),
    fault(
        "on-duty-too-soon",
        "The Scheduler thread takes the passes over although the Orch thread has run some meanwhile.",
        "tests/interleaving/test_scheduler_thread.py::"
        "test_it_is_on_duty_when_the_orch_thread_stays_away_and_has_a_clock_when_it_needs_one",
        Patch(
            "jit/schedule.py",
            "            seen = int(mem[L.ORCH_PASSES])\n            slept = 0\n",
            "            seen = int(mem[L.ORCH_PASSES])\n",
        ),
    ),
    fault(
        "answered-twice",
        "A worker that saw its task wait, and then need not start it, answers the next frame as well.",
        "tests/interleaving/test_scenes.py::"
        "test_a_worker_that_waited_for_long_answers_that_task_and_no_other",
        Patch(
            "jit/serve.py",
            "            waits = False\n            word = load",
            "            word = load",
        ),
    ),
    fault(
        "polling",
        "The Scheduler thread parks without a look at the work, and a poll every millisecond hides that.",
        f"{SCHED}/test_wake.py::test_a_parked_scheduler_thread_sleeps_until_it_is_woken",
        Patch(
            "jit/schedule.py",
            "    if has_work(mem):\n        return False\n    if mode",
            "    if mode",
        ),
        Patch(
            "jit/schedule.py",
            "        timeout = -1\n        since",
            "        timeout = 1_000_000\n        since",
        ),
    ),
    fault(
        "parked-ring",
        "A ring that holds nothing stays where its cursor stands, and refuses what would fit it.",
        f"{ORCH}/test_ring.py::test_a_live_task_without_bytes_does_not_park_the_ring",
        Patch("jit/ring.py", " or (top == tail and cursor > 0)", ""),
        Patch("jit/ring.py", "        if top == tail:  #", "        if False:  #"),
        Patch("jit/ring.py", "        if alive == end:\n", "        if False:\n"),
    ),
    fault(
        "group-overtaken",
        "A group that cannot be placed goes to the end of its queue, behind single tasks.",
        f"{WM}/test_place.py::test_later_single_tasks_do_not_overtake_a_group_that_waits",
        Patch(
            "jit/dispatch.py",
            "    push_candidate,\n    ready_empty,\n",
            "    push_candidate,\n    push_ready,\n    ready_empty,\n",
        ),
        Patch(
            "jit/dispatch.py",
            "                note_stuck(mem, slot, kind)\n                break\n",
            "                note_stuck(mem, slot, kind)\n"
            "                drop_first_ready(mem, kind)\n"
            "                push_ready(mem, kind, slot)\n"
            "                if mem[first_ready(mem, kind) + L.S_MEMBERS] != 0:\n"
            "                    break\n",
        ),
    ),
    fault(
        "erased-shutdown",
        "A worker that writes its answer erases a request to stop.",
        f"{SCHED}/test_mail.py::test_the_request_to_stop_is_a_word_of_its_own_that_stays_set",
        Patch(
            "jit/serve.py",
            "    exchange(mem, served(mem, w), state | error << L.HALF)\n",
            "    exchange(mem, served(mem, w), state | error << L.HALF)\n"
            "    store(mem, w + L.W_SHUTDOWN, 0)\n",
        ),
    ),
    fault(
        "blob-too-large",
        "Arguments larger than a mailbox are written over what stands behind it.",
        f"{ORCH}/test_misuse.py::test_arguments_up_to_the_mailbox_travel_and_one_more_is_refused",
        Patch(
            "jit/submit.py", "    if not fits_mailbox(words, counts, members):\n", "    if False:\n"
        ),
    ),
    fault(
        "stale-layouts",
        "Calls go on using the numbers of layouts that were forgotten.",
        f"{FLOW}/test_layout.py::test_calls_number_their_arrays_anew_once_numbers_are_forgotten",
        Patch("calls/arrays.py", "        self._layouts.tell(self._start_anew)\n", ""),
    ),
    fault(
        "extent-of-layouts",
        "Memory for a tensor with a layout has one element's bytes.",
        f"{FLOW}/test_layout.py::test_buffers_and_outputs_have_the_bytes_of_their_layouts",
        Patch(
            "jit/tensors.py",
            "        return int(words[t + L.TENSOR_EXTENT])\n",
            "        return 8\n",
        ),
    ),
    fault(
        "chip-takes-layouts",
        "A chip is sent tensors with layouts, which it cannot read.",
        f"{FLOW}/test_layout.py::test_a_chip_refuses_them_by_name",
        Patch(
            "orch/orchestrator.py",
            "            if handle._namespace == TargetNamespace.LOCAL_CHIP:\n",
            "            if False:\n",
        ),
    ),
    fault(
        "orphans",
        "The processes of a program that died live on, one of them at full CPU.",
        f"{SCHED}/test_death.py::test_when_the_parent_dies_every_process_it_started_ends",
        Patch(
            "workers/fork_server.py", "        if setup.by_main_thread:\n", "        if False:\n"
        ),
        Patch(
            "workers/fork_server.py",
            "            if fd == self.setup.parent_fd:\n                self.end_all()\n",
            "            if fd == self.setup.parent_fd:\n                continue\n",
        ),
        Patch(
            "workers/fork_server.py",
            "        if len(raw) < REQUEST.size:\n            self.end_all()\n",
            "        if len(raw) < REQUEST.size:\n            return\n",
        ),
        hangs=True,
    ),
    fault(
        "leaking-close",
        "close() after a failed run leaves the worker processes behind.",
        f"{WM}/test_stop.py::test_close_after_a_failure_leaves_no_process_and_no_thread",
        Patch(
            "workers/life.py",
            "                self.session.close()\n",
            "                if not self.session.engine.view.has_failed:\n"
            "                    self.session.close()\n",
        ),
    ),
    fault(
        "silent-success",
        "A task that failed counts as done.",
        f"{ORCH}/test_fail.py::test_run_raises_the_first_failure_once_after_everything_has_drained",
        Patch(
            "jit/collect.py",
            "        outcome = int(mem[frame + L.W_MAILBOX + L.MAIL_STATE]) >> L.HALF\n",
            "        outcome = L.SUCCESS\n",
        ),
    ),
    fault(
        "fails-with-a-reader",
        "With `track_reads`, a task fails if one that has read what it overwrites has failed.",
        f"{ORCH}/test_reads.py::test_a_writer_starts_after_a_reader_that_has_failed",
        Patch("jit/submit.py", "reader, stamp, slot | L.ORDER_ONLY)", "reader, stamp, slot)"),
    ),
    fault(
        "overtakes-a-reader",
        "With `track_reads`, a task that fails before it starts no longer stands for the readers that it "
        "waits for.",
        f"{ORCH}/test_reads.py::"
        "test_a_task_that_fails_unstarted_stands_for_the_readers_that_it_has_waited_for",
        Patch(
            "jit/graph.py",
            "    if mem[L.STREAM] == 0 and mem[L.TRACK_READS] == 0:\n",
            "    if mem[L.STREAM] == 0:\n",
        ),
    ),
    fault(
        "readers-add-up",
        "With `track_reads`, tasks that overwrite a buffer again and again wait for all of its readers.",
        f"{ORCH}/test_reads.py::test_a_buffer_that_is_used_again_and_again_gives_no_more_edges",
        Patch(
            "jit/hazards.py",
            "    if producer != L.NONE and producer != mem[entry + L.E_SLAB]:\n",
            "    if False:\n",
        ),
    ),
    fault(
        "freed-under-a-reader",
        "A producer is pinned when its consumer is wired and not when it is submitted: its slot and "
        "its memory may be gone by then.",
        f"{ORCH}/test_pin.py::"
        "test_a_producer_done_and_out_of_scope_before_wiring_waits_for_its_consumer",
        Patch(
            "jit/submit.py",
            "    if not acquire_ref(mem, producer):\n",
            "    if mem[producer + L.S_STATE] == L.CONSUMED:\n",
        ),
        Patch(
            "jit/graph.py",
            "    kind_of,\n    release_ref,\n",
            "    kind_of,\n    acquire_ref,\n    release_ref,\n",
        ),
        Patch(
            "jit/graph.py",
            "        producer = int(mem[edge + L.EDGE_PRODUCER])\n        state",
            "        producer = int(mem[edge + L.EDGE_PRODUCER])\n"
            "        acquire_ref(mem, producer)\n        state",
        ),
    ),
    fault(
        "invisible-buffers",
        "Memory that was allocated after the fork is taken, though no worker can see it.",
        f"{ORCH}/test_misuse.py::"
        "test_shared_memory_from_after_the_start_is_refused_and_from_before_accepted",
        Patch(
            "workers/processes.py",
            "        if self.has_started and covers(",
            "        if False and covers(",
        ),
    ),
    fault(
        "spinning-for-ever",
        "A worker that waits neither offers its core nor parks: with more of them than cores, who is "
        "waited for does not get to run.",
        f"{SCHED}/test_mail.py::"
        "test_a_worker_without_work_spins_for_its_time_and_then_wants_to_park",
        Patch(
            "jit/serve.py",
            "        elif not waits and now - start > mem[L.SPIN_NS]:\n            return L.PARK\n",
            "",
        ),
        Patch(
            "jit/serve.py",
            "            offer_core(mem, w + L.W_BACK_OFF)\n",
            "            pause()\n",
        ),
        hangs=True,
    ),
    fault(
        "erased-newer-key",
        "A task that is reclaimed erases the key of a newer producer.",
        f"{ORCH}/test_map.py::test_a_reclaimed_task_leaves_the_keys_of_a_newer_producer_alone",
        Patch(
            "jit/tensormap.py", "    if mem[entry + L.E_SLOT] != slot:\n        return False\n", ""
        ),
    ),
    fault(
        "no-sub-workers",
        "A sub task of a Worker without sub workers waits for ever.",
        f"{ORCH}/test_misuse.py::test_a_submit_without_sub_workers_is_refused_instead_of_waiting",
        Patch(
            "workers/session.py",
            "python if len(self.kinds) > len(self.next_level) else None",
            "python",
        ),
        Patch(
            "jit/dispatch.py",
            "                if any_usable(mem, kind, 1) or get_successors(mem):\n",
            "                if True:\n",
        ),
    ),
    fault(
        "group-larger-than-pool",
        "A group with more members than its pool has workers waits for ever.",
        f"{WM}/test_group.py::test_groups_that_cannot_be_are_refused_and_change_nothing",
        Patch("orch/words.py", "        if len(members) > room:\n", "        if False:\n"),
        Patch(
            "jit/dispatch.py",
            "    if not any_usable(mem, kind, open_members):\n",
            "    if False:\n",
        ),
    ),
    fault(
        "worker-minus-two",
        "A task for worker −2 is accepted.",
        f"{WM}/test_aff.py::test_a_worker_that_does_not_exist_is_refused",
        Patch("orch/words.py", "or not -1 <= worker < room:\n", "or not worker < room:\n"),
        hangs=True,
    ),
    fault(
        "run-inside-run",
        "A run inside an orchestration function is accepted.",
        f"{ORCH}/test_misuse.py::test_run_inside_an_orch_function_of_the_same_worker_is_refused",
        Patch(
            "workers/life.py",
            '        if self.running:\n            raise RuntimeError(\n                "a run',
            '        if False:\n            raise RuntimeError(\n                "a run',
        ),
    ),
    fault(
        "scope-left-open",
        "A run that fails leaves a scope open, and the next run begins inside it.",
        f"{ORCH}/test_run.py::test_after_a_run_everything_is_empty_and_ids_start_at_zero",
        Patch(
            "jit/entries.py",
            "    while submit.close_scope(mem) == L.OK:\n        pass\n    return L.OK\n",
            "    while submit.close_scope(mem) == L.OK:\n        pass\n"
            "    if cancel:\n        submit.open_scope(mem)\n    return L.OK\n",
        ),
        Patch(
            "workers/failures.py",
            "    if engine.view.next_task_id or engine.view.scope_depth:\n",
            "    if engine.view.next_task_id:\n",
        ),
    ),
    fault(
        "stale-orchestrator",
        "An Orchestrator that somebody has kept accepts tasks after its run.",
        f"{ORCH}/test_misuse.py::test_an_orch_kept_beyond_its_run_refuses_every_call",
        Patch(
            "orch/orchestrator.py",
            "        self._thread = -1\n        self._next_level = {}\n        self._subs = {}\n"
            "        self._quick_subs = {}\n",
            "        pass\n",
        ),
        Patch("jit/entries.py", "    mem[L.ORCH_THREAD] = 0\n", ""),
    ),
    fault(
        "idle-burn",
        "A worker without a task looks at its mailbox for ever instead of sleeping.",
        f"{SCHED}/test_wake.py::test_an_idle_worker_uses_no_cpu",
        Patch("jit/serve.py", "            commit(mem, state_word, seen, -1)\n", ""),
        hangs=True,
    ),
    fault(
        "lost-claim",
        "A worker that is admitted while a control request has its mailbox is given a task there.",
        (
            f"{WM}/test_claim.py::"
            "test_a_worker_that_is_claimed_before_it_is_admitted_has_no_task_before_the_release",
            f"{SCHED}/test_mail.py::"
            "test_whatever_happens_in_whatever_order_the_state_changes_along_the_table",
        ),
        Patch("jit/claims.py", "W_USABLE] |= L.ALIVE", "W_USABLE] = L.ALIVE"),
    ),
    fault(
        "skipped-unsaid",
        "What was given ahead behind a task that is skipped is not told: once the frame is filled again, "
        "it takes the end of another task for the one it waits for.",
        f"{SPEED}/test_ahead.py::"
        "test_a_task_that_was_not_started_is_seen_to_be_though_its_frame_was_filled_again",
        Patch(
            "jit/collect.py",
            "    call_consumers_back(mem, slot, answer)\n",
            "    if outcome == L.RETURNED:\n        call_consumers_back(mem, slot, answer)\n",
        ),
    ),
    fault(
        "lost-though-done",
        "A worker that dies while another is buried loses what it ended meanwhile.",
        f"{SPEED}/test_depth.py::"
        "test_what_a_worker_ended_while_another_is_buried_is_done_though_it_dies_next",
        Patch(
            "jit/collect.py",
            "        if mem[w + L.W_USABLE] != 0:\n            continue\n",
            "        if load(mem, w + L.W_DEATH) == 0:\n            continue\n",
        ),
    ),
    fault(
        "sigint-not-ignored",
        "No process below the user's ignores the Ctrl-C of a terminal, which reaches the whole group.",
        f"{ORCH}/test_run.py::"
        "test_a_terminals_ctrl_c_reaches_the_workers_as_well_and_none_of_them_minds",
        Patch(
            "workers/loop.py",
            "    signal.signal(signal.SIGINT, do_nothing)\n    signal.signal(signal.SIGTERM",
            "    signal.signal(signal.SIGTERM",
        ),
        Patch(
            "workers/fork_server.py", "        signal.signal(signal.SIGINT, signal.SIG_IGN)\n", ""
        ),
    ),
    fault(
        "memory-from-anywhere",
        "The memory calls of `orch` do not ask which thread they are on, nor whether the run is over.",
        (
            f"{ORCH}/test_inv.py::"
            "test_a_call_on_orch_from_another_thread_raises_and_changes_nothing",
            f"{ORCH}/test_misuse.py::test_an_orch_kept_beyond_its_run_refuses_every_call",
        ),
        *tuple(
            Patch(
                "orch/orchestrator.py",
                f"        self._require_mine()\n        {call}\n",
                f"        {call}\n",
            )
            for call in (
                "return self._session.chips.malloc(worker_id, size)",
                "self._session.chips.free(worker_id, ptr)",
                "self._session.chips.copy_to(worker_id, dst, src, size)",
                "self._session.chips.copy_from(worker_id, dst, src, size)",
            )
        ),
    ),
    fault(
        "late-death",
        "The death of a worker is reported eight seconds later.",
        f"{SCHED}/test_death.py::test_a_death_is_known_while_the_task_of_another_worker_goes_on",
        Patch(
            "workers/manager.py",
            "        with self._known:  # no successor may",
            "        time.sleep(0 if self._closing else 8)\n"
            "        with self._known:  # no successor may",
        ),
    ),
    fault(
        "tail-of-zero",
        "The tail of a ring is always said to be 0.",
        f"{ORCH}/test_api.py::test_the_tail_is_where_the_oldest_byte_still_held_begins",
        Patch(
            "engine/introspection.py",
            "ring.cursor if ring.tail == ring.top else ring.tail % ring.size\n",
            "0 * ring.tail\n",
        ),
    ),
    fault(
        "many-left-out",
        "The pass of 511 submits in a row is left out.",
        f"{SPEED}/test_many.py::"
        "test_while_all_workers_are_busy_the_sixty_fourth_submit_runs_a_pass",
        Patch("jit/constants.py", "PASS_AT_LATEST = 64 ", "PASS_AT_LATEST = 512 "),
    ),
    fault(
        "error-of-five",
        "An exception in a task is reported as error 5.",
        f"{WM}/test_loop.py::test_the_report_is_error_1_with_type_and_text",
        Patch(
            "workers/loop.py", "repeat((mem, worker, L.TASK_FAILURE))", "repeat((mem, worker, 5))"
        ),
    ),
    fault(
        "patient-control",
        "A control request waits for five minutes unless told otherwise.",
        f"{WM}/test_ctrl.py::test_by_default_a_request_waits_30_seconds",
        Patch(
            "workers/options.py",
            "py_control_timeout_s: float = option(\n        30.0",
            "py_control_timeout_s: float = option(\n        300.0",
        ),
    ),
    fault(
        "window-of-ids",
        "With several rings, too, ids may be ahead of the oldest task of a ring by `task_window` only.",
        f"{ORCH}/test_window.py::"
        "test_a_buffer_that_stays_alive_holds_nothing_up_that_fits_beside_it",
        Patch(
            "engine/memory.py",
            "        one_ring = ring_depth == 1 and task_window is not None\n",
            "        one_ring = True\n",
        ),
        Patch(
            "jit/ring.py",
            "    if mem[L.LIVE] >= mem[L.WINDOW] or outside_window(mem):\n",
            "    next_one, oldest = mem[r + L.R_NEXT], mem[r + L.R_ALIVE]\n"
            "    if mem[L.LIVE] >= mem[L.WINDOW] or next_one - oldest >= mem[L.ID_WINDOW]:\n",
        ),
    ),
    fault(
        "small-default-window",
        "Unless told otherwise a Worker has room for 65 536 live tasks.",
        f"{ORCH}/test_window.py::test_by_default_there_is_room_for_two_million_live_tasks",
        Patch(
            "jit/constants.py", "DEFAULT_TASK_WINDOW = 1 << 21\n", "DEFAULT_TASK_WINDOW = 1 << 16\n"
        ),
    ),
    fault(
        "lost-end",
        "What a full FIFO leaves out takes its bytes with it: the older allocation does not bring them "
        "back.",
        f"{ORCH}/test_ring.py::"
        "test_bytes_released_behind_one_that_stays_come_back_with_it_when_the_fifo_was_cleared",
        Patch(
            "jit/ring.py",
            "        mem[fifo_entry(mem, ring, last) + L.FIFO_END] = end & ~1\n",
            "            mem[fifo_entry(mem, ring, last) + L.FIFO_END] = end\n",
        ),
    ),
    fault(
        "look-at-another",
        "A look does not ask at its end whether the slot is still the task's.",
        (
            f"{ORCH}/test_api.py::"
            "test_a_slot_that_is_used_again_meanwhile_is_not_taken_for_the_task",
            f"{ORCH}/test_api.py::test_a_look_during_which_the_state_changes_is_taken_again",
        ),
        Patch(
            "engine/view/slots.py",
            "    if not is_same():\n        return None\n    waits",
            "    waits",
        ),
    ),
    fault(
        "reference-of-each-scope",
        "A task takes a reference for every open scope, of which the innermost gives one back.",
        f"{ORCH}/test_scope.py::"
        "test_scope_end_gives_back_one_reference_of_each_of_its_tasks_and_of_no_other",
        Patch(
            "jit/submit.py",
            "    mem[slot + L.S_FANOUT] += 1\n    mem[slot + L.S_LINK]",
            "    mem[slot + L.S_FANOUT] += depth\n    mem[slot + L.S_LINK]",
        ),
    ),
    fault(
        "inherited-lock",
        "A worker keeps the lock of the registry as it was when it was forked: held.",
        f"{ORCH}/test_fork.py::test_a_worker_finds_no_lock_of_the_engine_held",
        Patch("workers/life.py", "        self.registry.lock = threading.RLock()\n", ""),
    ),
    fault(
        "reclaims-alone-count",
        "A task that finishes and is not reclaimed does not start the time-out anew.",
        f"{ORCH}/test_back.py::"
        "test_every_task_that_finishes_or_is_reclaimed_starts_the_time_out_anew",
        Patch(
            "orch/room.py",
            "        return view.next_task_id - view.live, view.ended\n",
            "        return view.next_task_id - view.live, 0\n",
        ),
    ),
    fault(
        "called-though-skipped",
        "The members of a group that have not started are not told when another has failed.",
        f"{FAILURE}/test_outcome.py::"
        "test_a_member_whose_worker_has_not_started_it_is_not_called_and_not_what_the_run_raises",
        Patch("jit/collect.py", "        skip_rest(mem, slot, kind)\n", ""),
    ),
    fault(
        "wrong-name",
        "A name of the documents leads to another class.",
        f"{HIER}/test_api.py::test_a_module_has_the_names_of_the_table",
        Patch("orchestrator.py", "    },\n)\n", "    },\n)\nRing = Scope\n"),
    ),
    fault(
        "forks-beside-a-thread",
        "The process that forks the workers has another thread while it does so.",
        f"{WM}/test_fork.py::"
        "test_whoever_forks_a_worker_or_its_successor_has_no_other_thread_though_the_users_process_has",
        Patch(
            "workers/fork_server.py",
            "        server = os.getpid()\n",
            "        server = os.getpid()\n"
            "        import threading\n\n"
            "        threading.Thread(target=time.sleep, args=(1,)).start()\n",
        ),
    ),
    fault(
        "wake-by-word",
        "A death wakes only those whose park word says that they sleep: whoever has cleared the word may "
        "have died before he woke them.",
        f"{SCHED}/test_wake.py::test_a_death_and_the_end_wake_a_sleeper_whose_park_word_was_cleared",
        Patch(
            "jit/mailbox.py",
            "    wake(mem, L.PARK_ORCH)\n    wake(mem, L.PARK_SCHED)\n",
            "    notify(mem, L.PARK_ORCH)\n    notify(mem, L.PARK_SCHED)\n",
        ),
        Patch("jit/mailbox.py", "from .waiting import wake\n", "from .waiting import notify\n"),
    ),
    fault(
        "unseen-end",
        "Nobody keeps a clock for the end of a task whose worker has gone on to its next one.",
        f"{SCHED}/test_wake.py::"
        "test_an_end_may_stay_unseen_while_a_task_waits_and_one_of_several_is_idle",
        Patch(
            "jit/schedule.py",
            "    return load(mem, L.WIRING_PUSHED) != mem[L.DEALT]\n",
            "    return False\n",
        ),
    ),
    fault(
        "digest-of-another",
        "After a control request one frame of a worker forgets its digest, and the others keep that of a "
        "callable whose index another one has got.",
        "tests/conformance/task_flow/test_unreg.py::"
        "test_what_takes_the_place_of_a_callable_runs_in_each_frame_and_nothing_else_does",
        Patch(
            "jit/claims.py",
            "    for _ in range(mem[L.DEPTH]):\n        mem[frame + L.W_LAST_CALLABLE] = 0\n",
            "    for _ in range(1):\n        mem[frame + L.W_LAST_CALLABLE] = 0\n",
        ),
    ),
    fault(
        "chain-of-the-dead",
        "What is emptied for the successor of a dead worker are also the calls that wait for it.",
        f"{CALLS}/test_worker.py::test_calls_for_a_worker_that_dies_run_on_its_successor",
        Patch(
            "jit/mailbox.py",
            "    mem[w + L.W_AFFINITY_HEAD], mem[w + L.W_AFFINITY_TAIL] = head, tail\n",
            "",
        ),
        hangs=True,
    ),
    fault(
        "stranded-counts-as-lost",
        "A call that has no worker says that its worker has died while it ran.",
        f"{CALLS}/test_worker.py::"
        "test_an_initializer_that_raises_in_a_successor_starts_no_other_and_fails_what_waits",
        Patch("jit/dispatch.py", "    if mem[L.STREAM] != 0:\n        worker = ANY_WORKER\n", ""),
    ),
    fault(
        "no-retry-in-turn",
        "Calls that a lost worker had been given, and had not begun, are lost with it.",
        f"{CALLS}/test_limit.py::test_calls_behind_the_one_that_is_lost_are_made",
        Patch(
            "jit/collect.py",
            "(began and not may_run_again(mem, slot))",
            "not may_run_again(mem, slot)",
        ),
    ),
    fault(
        "one-retry-too-many",
        "A call is run again once more than its task allows.",
        f"{CALLS}/test_limit.py::test_a_call_whose_worker_dies_is_run_again_as_often_as_it_may_be",
        Patch(
            "jit/graph.py",
            ">= mem[(word & L.CALL_KEY) + L.BLOCK_AGAIN]",
            "> mem[(word & L.CALL_KEY) + L.BLOCK_AGAIN]",
        ),
    ),
    fault(
        "reader-forgotten",
        "A writer waits for the newest of those that read just the same bytes, not for the older "
        "ones.",
        f"{CALLS}/test_hazard.py::test_a_writer_waits_for_all_readers_since_the_last_write",
        Patch(
            "jit/hazards.py",
            "            access = int(mem[access + L.ACCESS_OLDER])\n    return conflicts\n",
            "            access = L.NONE\n    return conflicts\n",
        ),
    ),
    fault(
        "order-is-need",
        "Who overwrites what another writes fails with it.",
        f"{CALLS}/test_hazard.py::test_a_writer_waits_for_the_writer_before_and_does_not_fail_with_it",
        Patch(
            "jit/hazards.py",
            "conflicts = add_conflict(mem, access, newest, L.ORDER, conflicts)",
            "conflicts = add_conflict(mem, access, newest, L.NEEDS, conflicts)",
        ),
    ),
    fault(
        "failed-is-over",
        "A writer that has failed counts as over: who reads what it should have written is run.",
        f"{CALLS}/test_hazard.py::test_a_failed_writer_lets_readers_fail_until_it_is_overwritten",
        Patch(
            "jit/hazards.py",
            "        return state == L.COMPLETED\n",
            "        return state == L.COMPLETED or state == L.FAILED\n",
        ),
    ),
    fault(
        "ended-too-soon",
        "A task that was poisoned counts as ended while others that it waits for still run.",
        f"{CALLS}/test_hazard.py::test_a_writer_waits_until_all_have_ended_that_a_failed_one_waits_for",
        Patch(
            "jit/hazards.py",
            " == L.FAILED and mem[slot + L.S_FANIN] == 0\n\n\n@kernel\ndef is_over",
            " == L.FAILED\n\n\n@kernel\ndef is_over",
        ),
    ),
    fault(
        "touching-is-overlap",
        "Tensors that only touch count as overlapping.",
        f"{CALLS}/test_hazard.py::test_views_that_share_no_byte_are_independent",
        Patch(
            "jit/hazards.py",
            "        if other_low < high and low < other_high:\n",
            "        if other_low <= high and low <= other_high:\n",
        ),
    ),
    fault(
        "old-answer",
        "A search that has been made before is answered from memory although other bytes are "
        "asked for.",
        f"{CALLS}/test_hazard.py::test_a_search_may_be_repeated",
        Patch("jit/hazards.py", "        and mem[L.FOUND_HIGH] == high\n", ""),
    ),
    fault(
        "cancelled-unmarked",
        "A call that is cancelled while it waits is not marked as cancelled itself.",
        f"{CALLS}/test_cancel.py::test_a_call_that_waits_for_a_worker_or_for_others_is_cancelled",
        Patch(
            "jit/graph.py",
            "        note_cancelled(mem, slot)\n        poison(mem, slot)\n        return True\n",
            "        poison(mem, slot)\n        return True\n",
        ),
    ),
    fault(
        "future-not-awaited",
        "What a call gets from a future is taken without waiting for it.",
        f"{CALLS}/test_stream.py::test_futures_of_any_number_are_arguments_like_their_values",
        Patch(
            "jit/calls.py",
            "            edges += write_edge(mem, edge + edges * L.EDGE_WORDS, producer, slot | "
            "L.FETCHES)\n",
            "            edges += 0 * producer\n",
        ),
    ),
    fault(
        "runs-after-a-failure",
        "A call is pre-dispatched behind one that has failed and is still in its frame, and does not "
        "wait for it.",
        f"{INTERLEAVING}/test_scenes.py::test_each_call_ends_once_and_after_those_that_it_waits_for",
        Patch(
            "jit/dispatch.py", "        if has_failed(mem, edge):\n            return False\n", ""
        ),
    ),
    fault(
        "poisoned-counts-as-lost",
        "A call that was poisoned in the frame of a worker that dies says that it was lost, and "
        "keeps the one that it shared its failure with.",
        f"{INTERLEAVING}/test_scenes.py::test_calls_are_right_when_a_worker_has_died_after_any_store",
        Patch(
            "jit/collect.py",
            "            if lost and mem[slot + L.S_STATE] != L.FAILED:  # else it was poisoned before\n",
            "            if lost:\n",
        ),
    ),
    fault(
        "its-own-producer",
        "A call that finds no room goes on with the conflicts from before it made some: the slot of one "
        "of them may be its own.",
        f"{INTERLEAVING}/test_scenes.py::test_a_call_that_makes_room_does_not_wait_for_itself",
        Patch(
            "jit/calls.py",
            "        conflicts = collect_conflicts(mem, words, tensors)  # one may have ended and be "
            "reclaimed\n",
            "",
        ),
    ),
    fault(
        "failed-rank-breaks-nothing",
        "A rank whose task fails does not break its domain: the others wait for it until their deadline.",
        f"{WM}/test_domain.py::test_when_a_rank_is_lost_all_waits_in_its_domain_end",
        Patch(
            "native_chip/domains.py",
            "                memory.break_because(",
            "                str(",
        ),
        hangs=True,
    ),
    fault(
        "absent-rank-breaks-nothing",
        "A rank whose task never starts does not break its domain: the others wait until their deadline.",
        f"{WM}/test_domain.py::"
        "test_a_rank_whose_producer_has_failed_does_not_keep_the_others_waiting",
        Patch("orch/domains.py", "            if absent is not None:\n", "            if False:\n"),
        hangs=True,
    ),
    fault(
        "running-ranks-are-absent",
        "A domain is broken as soon as a run has failed, although the ranks that run get on.",
        f"{WM}/test_domain.py::test_ranks_that_run_when_a_run_fails_may_finish",
        Patch(
            "orch/domains.py", "        if not woken or woken != before:", "        if not woken:"
        ),
        Patch("orch/domains.py", " or any(times < 0 for _, times in woken)", ""),
    ),
    fault(
        "dead-chip-stays-a-member",
        "The successor of a chip that has died is taken for a member of the communicator.",
        f"{WM}/test_domain.py::test_the_successor_of_a_dead_chip_joins_before_the_next_domain",
        Patch("orch/domains.py", "        self._members.discard(worker)\n", ""),
    ),
    fault(
        "stale-copy-is-current",
        "An endpoint that has read a tensor counts as a holder after another one has written it.",
        f"{REMOTE}/test_copy.py::test_a_tensor_goes_from_endpoint_to_endpoint_and_home",
        Patch(
            "remote/directory.py",
            "        self.maker, self.holders, self.handle = maker, {maker}, handle\n",
            "        self.maker, self.handle = maker, handle\n        self.holders.add(maker)\n",
        ),
    ),
    fault(
        "overlap-stays-away",
        "What an endpoint has written does not come home before a task uses some of its bytes.",
        f"{REMOTE}/test_copy.py::test_tensors_that_share_bytes_are_one_memory",
        Patch(
            "remote/directory.py",
            "                elif use.reads or not use.covers(held):\n",
            "                elif False:\n",
        ),
    ),
    fault(
        "directory-outlives-the-run",
        "The directory takes endpoints for holders of what they had in the run before.",
        f"{REMOTE}/test_copy.py::"
        "test_the_program_reads_and_writes_arrays_between_runs_and_after_drain",
        Patch("remote/parent_tensors.py", "        self.directory.clear()\n", ""),
    ),
    fault(
        "lost-endpoint-had-made-all",
        "What a lost endpoint was to write counts as made, and so as lost, though no task had ended.",
        f"{REMOTE}/test_copy.py::"
        "test_what_was_not_made_before_its_endpoint_was_lost_is_not_lost_with_it",
        Patch(
            "remote/parent_tensors.py",
            "Brought.NEVER_MADE if made.task in failed else Brought.IS_LOST",
            "Brought.IS_LOST",
        ),
    ),
    fault(
        "later-version-fails-with-the-first",
        "What an endpoint has written without reading it counts as failed with the version before.",
        "tests/unit/test_versions.py::test_a_version_that_does_not_read_the_one_before_may_be_made",
        Patch(
            "remote/directory.py",
            "                self.makers[-1].task = -1\n",
            "                pass\n",
        ),
    ),
    fault(
        "failed-task-keeps-its-copy",
        "What a failed task has written counts as the version before.",
        f"{REMOTE}/test_copy.py::test_what_a_failed_task_alone_had_is_lost_until_it_is_written",
        Patch(
            "remote/copies.py",
            "                elif one.makes:\n                    self._drop_copy(one.key)\n",
            "                elif one.makes:\n"
            '                    self._step("keep", one.key, copy, one.makes - 1)\n',
        ),
    ),
    fault(
        "part-overtakes-what-it-needs",
        "A part of a list takes what another one has changed since as what it has got before.",
        f"{LISTING}::test_parts_side_by_side_do_what_the_graph_does_one_task_after_the_other",
        Patch(
            "remote/replays.py",
            "            self._versions[tensor] = _Version(number, i, {i}, shows)\n",
            "            holders = {i} if before is None else before.holders | {i}\n"
            "            self._versions[tensor] = _Version(number, i, holders, shows)\n",
        ),
    ),
    fault(
        "part-says-that-it-only-writes",
        "A part of a list does not say that it reads what one of its tasks changes.",
        f"{LISTING}::test_parts_side_by_side_do_what_the_graph_does_one_task_after_the_other",
        Patch(
            "remote/replays.py",
            "                reads = tensor in self.parts[i].named\n",
            "                reads = False\n",
        ),
    ),
    fault(
        "memory-gets-back-what-was-seen-last",
        "Before tasks run again, memory gets back what a later one of them saw, not the first.",
        "tests/unit/test_recovery.py::"
        "test_memory_gets_back_what_it_had_before_the_first_write_of_each_byte",
        Patch(
            "remote/recovery.py",
            "in reversed(self._saved.items()):\n",
            "in list(self._saved.items()):\n",
        ),
    ),
    fault(
        "session-runs-what-waits-for-a-failure",
        "A session runs a task that was sent ahead although one that it waits for has failed.",
        f"{REMOTE}/test_ahead.py::"
        "test_a_session_skips_what_waits_for_a_task_that_has_failed_and_what_waits_for_that",
        Patch(
            "remote/side_by_side.py",
            "        return any(one in self._failed for one in told.after)\n",
            "        return False\n",
        ),
    ),
    fault(
        "next-version-comes-into-memory-in-use",
        "What the parent stores for a later task comes into the copy that the current one uses.",
        f"{REMOTE}/test_ahead.py::"
        "test_a_copy_that_a_task_uses_stays_as_it_is_while_the_next_version_comes",
        Patch(
            "remote/copies.py",
            "            coming = self._coming.get(name)\n",
            "            coming = self._copies.get(one.key)\n",
        ),
    ),
    fault(
        "race-is-given-out",
        "A task that needs a version which was replaced gets the one that is there.",
        f"{REMOTE}/test_copy.py::test_a_version_that_was_replaced_is_not_given_out",
        Patch("remote/copies.py", "        if copy.version > version:\n", "        if False:\n"),
        Patch(
            "remote/copies.py",
            "    return (key + version * _STEP) & _U64 or 1\n",
            "    return key\n",
        ),
    ),
    fault(
        "overtaken-group-is-right",
        "The checker forgets that of tasks which became ready together a group that could not start was "
        "the first.",
        f"{SEE}/test_check.py::"
        "test_a_group_may_be_before_a_task_that_became_ready_with_it_or_after_it",
        Patch(
            "check/model.py",
            "        self.heads[kind] = [] if started else waiting\n",
            "        self.heads[kind] = []\n",
        ),
    ),
    fault(
        "unknown-keys-in-traces",
        "A trace with keys that no trace has is judged all the same.",
        f"{SEE}/test_check.py::test_what_is_no_trace_is_refused_with_the_place",
        Patch(
            "check/checker.py",
            "        if key is None:\n",
            "        if key is None and not value:\n",
        ),
        Patch(
            "check/checker.py",
            "        _require(one, form[key], ",
            "        _require(one, form.get(key, object), ",
        ),
    ),
    fault(
        "refusals-not-recorded",
        "A Stepper does not record a submit that is refused.",
        f"{SEE}/test_check.py::test_what_a_stepper_does_is_recorded_and_right",
        Patch("step_trace.py", '                self._note(step, refused="FAILED")\n', ""),
    ),
    fault(
        "moves-by-itself",
        "A submit of a Stepper runs its pass.",
        f"{HIER}/test_step.py::test_a_task_moves_from_submit_to_free_by_one_step_after_another",
        Patch(
            "stepping.py",
            "        self._steps.hold_pass(self._mem)  # a submit leaves its pass out then\n",
            "",
        ),
    ),
    fault(
        "counts-twice-in-a-scope",
        "A task that is registered twice in a scope has two references of it.",
        f"{ORCH}/test_api.py::test_ring_tensor_map_and_scope_work_without_a_worker",
        Patch("engine/structures.py", "        if slot in self.tasks():\n            return\n", ""),
    ),
    fault(
        "collects-from-others",
        "A WorkerThread that looks for an answer collects those of other workers, too.",
        f"{ORCH}/test_api.py::test_a_scheduler_and_a_manager_work_without_a_worker",
        Patch(
            "stepping.py",
            "        self._steps.collect_from(self._mem, self.index)\n",
            "        self._steps.collect(self._mem)\n",
        ),
    ),
    fault(
        "copies-stay",
        "joblib's backend keeps the copy of an array from one call of Parallel to the next.",
        f"{CALLS}/test_joblib.py::test_a_large_array_is_one_copy_that_is_only_read",
        Patch(
            "adapters/joblib_backend.py",
            "        self._shared = _Shared(self._stream, *self._arrays)\n",
            "        self._shared = vars(self).get('_shared') or _Shared(self._stream, *self._arrays)\n",
        ),
    ),
    fault(
        "blocks-stay",
        "dask's graphs keep the values of all blocks to the end.",
        f"{CALLS}/test_dask.py::test_values_are_dropped_as_soon_as_no_task_needs_them",
        Patch(
            "adapters/dask_scheduler.py",
            "                self._made.pop(key, None)\n",
            "                pass\n",
        ),
    ),
    fault(
        "stores-into-a-copy",
        "A task of dask may write into its own copy of an array of the program.",
        f"{CALLS}/test_dask.py::test_tasks_write_what_they_have_made_and_what_is_shared",
        Patch(
            "adapters/dask_scheduler.py",
            "        return _read_only, (array.shape, array.dtype, array.tobytes())\n",
            "        return array.__reduce_ex__(5)\n",
        ),
    ),
)
