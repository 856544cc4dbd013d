"""Which tables are sent to the workers, and when they are dropped there."""

import gc

from tokbridge_teacher.backends.vllm.largest_pass import largest_tables
from tokbridge_teacher.backends.vllm.table_ledger import TableLedger
from tokbridge_teacher.routing.device_tables import DeviceTables


def some_tables() -> DeviceTables:
    return DeviceTables(largest_tables(8, 8), "cpu")


def test_tables_are_sent_once_and_again_to_new_workers():
    ledger, first, second = TableLedger(), some_tables(), some_tables()
    assert list(ledger.unsent([first, first]).values()) == [first]
    assert list(ledger.unsent([first, second]).values()) == [second]
    ledger.forget(first)
    assert list(ledger.unsent([first, second]).values()) == [first]
    ledger.forget_all()
    assert list(ledger.unsent([first, second]).values()) == [first, second]
    assert ledger.unused() == []


def test_tables_that_the_host_let_go_are_dropped_once():
    ledger, kept, gone, unsent = TableLedger(), some_tables(), some_tables(), some_tables()
    ledger.unsent([kept, gone])
    key = ledger.key_of(gone)
    ledger.key_of(unsent)
    del gone, unsent
    gc.collect()
    assert ledger.unused() == [key]
    assert ledger.unused() == []
    assert ledger.unsent([kept]) == {}
    assert ledger.key_of(some_tables()) not in (key, ledger.key_of(kept))
