"""Samples of how busy the machine was: when they are taken, what they hold, and their file."""

import shutil
from types import SimpleNamespace

import pytest

from pipeline.tracking import system_metrics
from pipeline.tracking.system_metrics import FILE, Load, read


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(system_metrics.time, "monotonic", lambda: clock.now)
    return clock


def test_samples_are_taken_every_ten_seconds(clock, tmp_path):
    load = Load(tmp_path)
    for seconds, number in ((9.9, 1), (10.0, 2), (19.9, 2), (20.0, 3)):
        clock.now = 1000.0 + seconds
        load.sample()
        assert len(load.samples) == number
    assert [sample.number for sample in load.samples] == [0, 1, 2]


def test_a_sample_is_given_once(clock, tmp_path):
    load = Load(tmp_path)
    assert [sample.number for sample in load.taken()] == [0]
    load.sample(at_once=True)
    load.sample(at_once=True)
    assert [sample.number for sample in load.taken()] == [1, 2]
    assert load.taken() == []


def test_samples_are_read_as_they_were_written(clock, tmp_path):
    load = Load(tmp_path)
    load.end(tmp_path)
    assert len(load.samples) == 2  # the last is taken at the end
    assert read(tmp_path) == load.samples


def test_the_first_sample_has_no_use_of_processors(clock, tmp_path):
    load = Load(tmp_path)
    load.sample(at_once=True)
    name = "system/cpu_utilization_percentage"
    assert [name in sample.values for sample in load.samples] == [False, True]


def test_the_disk_is_that_of_the_folder_in_millions_of_bytes(monkeypatch, tmp_path):
    usage = SimpleNamespace(total=8e9, used=2e9, free=6e9)
    monkeypatch.setattr(shutil, "disk_usage", {tmp_path: usage}.__getitem__)
    [sample] = Load(tmp_path).samples
    disk = {name.removeprefix("system/disk_"): v for name, v in sample.values.items() if "disk" in name}
    assert disk == {"usage_megabytes": 2000, "usage_percentage": 25, "available_megabytes": 6000}


def test_traffic_is_counted_from_the_first_sample_on(monkeypatch, tmp_path):
    import psutil

    network = SimpleNamespace(bytes_recv=5e6, bytes_sent=7e6)
    monkeypatch.setattr(psutil, "net_io_counters", lambda: SimpleNamespace(**vars(network)))
    load = Load(tmp_path)
    network.bytes_recv, network.bytes_sent = 8e6, 8e6
    load.sample(at_once=True)
    traffic = {name: v for name, v in load.samples[1].values.items() if "network" in name}
    assert traffic == {"system/network_receive_megabytes": 3, "system/network_transmit_megabytes": 1}


@pytest.mark.parametrize("text", ["", "x\n1\n", "at,a\nx,1\n", "at,a\n1,x\n", "at,a\n1,2,3\n"])
def test_a_damaged_file_has_no_samples(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert read(tmp_path) == []


def test_where_no_file_was_left_there_are_no_samples(tmp_path):
    assert read(tmp_path) == []
