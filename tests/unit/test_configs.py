"""A configuration travels with the first task that has it, and again only when another stood there."""

from __future__ import annotations

import pytest

from simpler_ref import CallConfig
from simpler_ref.jit import layout as L

from ..support import COMPLETED, member


def pattern(index):
    return bytes([index + 1]) * L.CALL_CONFIG_SIZE


def words_of_config(engine, index):
    """Return the bytes of the engine's own copy of a configuration."""
    at = int(engine.mem[L.A_CONFIGS]) + index * L.CONFIG_ENTRY_WORDS
    return engine.mem[at : at + L.CONFIG_WORDS].tobytes()[: L.CALL_CONFIG_SIZE]


@pytest.fixture
def configured(driver):
    """Give a driver with four configurations and one worker that answers."""
    for index in range(4):
        driver.engine.view.write_config(index, pattern(index))
    driver.kill(1)
    return driver


def config_area(driver, worker=0):
    """Return the bytes of the mailbox's configuration, not a copy."""
    return driver.mailbox(worker)[L.MAILBOX_OFF_CONFIG :][: L.CALL_CONFIG_SIZE]


def run_with(driver, config):
    driver.finish(driver.submit(config=config))
    return config_area(driver).tobytes()


def test_a_task_finds_its_configuration_which_is_written_where_it_does_not_stand(configured):
    for config in (0, 1, 1, 0, 3, 2, 2, 2, 0):
        assert run_with(configured, config) == pattern(config)
    run_with(configured, 2)
    config_area(configured)[:] = 0xEE
    assert run_with(configured, 2) == b"\xee" * L.CALL_CONFIG_SIZE
    assert run_with(configured, 1) == pattern(1)
    run_with(configured, 2)
    configured.engine.view.write_config(2, pattern(9))
    configured.k.forget_configs(configured.mem)
    assert configured.mem[L.PASS_LOCK] == 0
    assert run_with(configured, 2) == pattern(9)


def test_a_mailbox_that_was_used_for_a_request_gets_digest_and_configuration_again(configured):
    run_with(configured, 2)
    assert configured.k.claim_mailbox(configured.mem, 0, 0) == L.OK
    configured.mailbox(0)[L.MAILBOX_OFF_CONFIG : L.MAILBOX_OFF_ARGS] = 0xEE
    configured.k.release_mailbox(configured.mem, 0)
    slot = configured.submit_and_settle(config=2)
    assert config_area(configured).tobytes() == pattern(2)
    digest = configured.mailbox(0)[L.MAILBOX_OFF_DIGEST : L.MAILBOX_OFF_ARGS].tobytes()
    assert digest == configured.digest(0)
    configured.answer_and_settle(0)
    assert configured.state(slot) == COMPLETED


def test_each_member_of_a_group_finds_the_configuration(driver):
    driver.engine.view.write_config(3, pattern(3))
    driver.submit_group(member(), member(), config=3)
    driver.settle()
    for worker in range(2):
        assert config_area(driver, worker).tobytes() == pattern(3)


def test_the_engines_configurations_stand_side_by_side_and_the_first_is_the_default(engine):
    assert words_of_config(engine, 0) == CallConfig().to_bytes()
    for index in range(3):
        engine.view.write_config(index, pattern(index))
    assert [words_of_config(engine, index) for index in range(3)] == list(map(pattern, range(3)))
