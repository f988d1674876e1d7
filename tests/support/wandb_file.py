"""Reads the file of an offline run of Weights & Biases, for which its library has no reader in Python any more.

The file is a log in LevelDB's format, after a header of its own: blocks of 32 KiB with records that may go on in the
next block, each with a checksum, a length and a kind. A record is a message of the library's own schema.
"""

import json
import struct
import time

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32 * 1024, 7
FULL, FIRST, MIDDLE, LAST = range(1, 5)


def read_records(path):
    """All messages in the file, once it is whole: the library's service still writes when its finish() has returned."""
    end = time.monotonic() + 60
    while True:
        found = _records(path.read_bytes())
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert time.monotonic() < end, f"{path} has no last record"
        time.sleep(0.1)


def _records(data):
    """The messages that are there as a whole."""
    assert data[:4] == b":W&B"
    place, found, whole = HEADER, [], b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # too little for a record: padding
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        if place + HEADER + length > len(data):
            break
        part = data[place + HEADER : place + HEADER + length]
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST):
            found.append(wandb_internal_pb2.Record.FromString(whole))
        place += HEADER + length
    return found


def history(records):
    """By step, what was logged; the parts of a histogram or a picture are in a dict."""
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            assert record.history.step.num not in found
            items = found[record.history.step.num] = {}
            for item in record.history.item:
                name, *parts = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                if parts:
                    items.setdefault(name, {})[parts[0]] = value
                else:
                    items[name] = value
    return found


def summary(records):
    """What the run's summary has at the end."""
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found
