"""How busy the machine was during a training: processor, memory, disk, network and GPUs, by MLflow's names.

Samples are taken between rounds, without a thread, because a training that forks must not have one. They are
stored in `.cells` with the seeds, and MLflow shows those of a cell with its run.
"""

import csv
import io
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files

FILE = "system.csv"
# Seconds between two samples, as MLflow takes them itself.
EVERY = 10.0
# In bytes.
MEGABYTE = 1e6


@dataclass(frozen=True)
class Sample:
    """How busy the machine was at one moment.

    number  of the sample in its training, from 0
    at      when, in milliseconds since 1970
    values  MLflow's name of a metric -> its value
    """

    number: int
    at: int
    values: dict[str, float]


class Load:
    """The samples of a training, of which the first is taken at once; none if psutil is missing.

    root  a folder on the disk whose use is measured
    """

    def __init__(self, root: Path):
        self.root = root
        self.samples: list[Sample] = []
        self.sent = 0
        self.last = float("-inf")
        try:
            import psutil
        except ImportError:
            self.psutil: Any = None
            return
        self.psutil = psutil
        self.cards = Cards()
        self.network = psutil.net_io_counters()
        psutil.cpu_percent()
        self.sample()

    def sample(self, at_once: bool = False) -> None:
        """Take a sample, if the last one is EVERY seconds old.

        at_once  take it in any case
        """
        now = time.monotonic()
        if self.psutil and (at_once or now - self.last >= EVERY):
            self.last = now
            number = len(self.samples)
            self.samples.append(Sample(number, int(time.time() * 1000), self._values(number)))

    def taken(self) -> list[Sample]:
        """The samples since the last call."""
        first = self.sent
        self.sent = len(self.samples)
        return self.samples[first:]

    def end(self, folder: Path) -> None:
        """Take the last sample and write all of them to FILE in a folder."""
        self.sample(at_once=True)
        if self.samples:
            text = io.StringIO()
            names = sorted({name for sample in self.samples for name in sample.values})
            table = csv.DictWriter(text, ["at", *names], lineterminator="\n")
            table.writeheader()
            table.writerows({"at": sample.at, **sample.values} for sample in self.samples)
            files.write_text(folder / FILE, text.getvalue())

    def _values(self, number: int) -> dict[str, float]:
        """The values of a sample.

        The use of the processors is the mean since the sample before, so that the first one has none. That of
        the network is the traffic since the first sample.
        """
        memory = self.psutil.virtual_memory()
        disk = shutil.disk_usage(self.root)
        values = {
            "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
            "system/disk_usage_megabytes": disk.used / MEGABYTE,
            "system/disk_usage_percentage": 100 * disk.used / disk.total,
            "system/disk_available_megabytes": disk.free / MEGABYTE,
        }
        if number:
            values["system/cpu_utilization_percentage"] = self.psutil.cpu_percent()
        network = self.psutil.net_io_counters()
        if self.network and network:  # a machine may have none
            received = network.bytes_recv - self.network.bytes_recv
            sent = network.bytes_sent - self.network.bytes_sent
            values["system/network_receive_megabytes"] = received / MEGABYTE
            values["system/network_transmit_megabytes"] = sent / MEGABYTE
        return {name: round(value, 3) for name, value in (values | self.cards.values()).items()}


class Cards:
    """NVIDIA's GPUs of this machine; none if the extra `gpu` is not installed."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        try:
            import pynvml

            self.nvml: Any = pynvml
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self.handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        except Exception:  # no such module, no driver, or no card
            return

    def values(self) -> dict[str, float]:
        """Use and memory of every GPU that reports them; a part of a shared GPU may not."""
        values = {}
        for number, card in enumerate(self.handles):
            try:
                memory = self.nvml.nvmlDeviceGetMemoryInfo(card)
                values[f"system/gpu_{number}_memory_usage_megabytes"] = memory.used / MEGABYTE
                values[f"system/gpu_{number}_memory_usage_percentage"] = 100 * memory.used / memory.total
                used = self.nvml.nvmlDeviceGetUtilizationRates(card).gpu
                values[f"system/gpu_{number}_utilization_percentage"] = float(used)
            except self.nvml.NVMLError:
                continue
        return values


def read(folder: Path) -> list[Sample]:
    """The samples that a training left in a folder; none if FILE is missing or damaged."""
    path = folder / FILE
    if not path.exists():
        return []
    samples = []
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))):
            values = {name: float(value) for name, value in row.items() if name != "at" and value}
            samples.append(Sample(number, int(row["at"]), values))
    except (KeyError, TypeError, ValueError):
        return []
    return samples
