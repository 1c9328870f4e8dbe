"""The README's sentence on how long `make repro` takes."""

import pytest

from benchmarks import time_repro
from pipeline.schema import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_one_sentence_in_the_block():
    assert README.count(time_repro.BEGIN) == 1
    assert time_repro.sentence_in(README).startswith("`make repro` takes ")


def test_a_readme_without_the_block_ends_it_before_anything_is_timed():
    with pytest.raises(SystemExit, match="the block .* is missing"):
        time_repro.sentence_in(README.replace(time_repro.BEGIN, ""))


@pytest.mark.parametrize(
    "seconds, cores, processor, sentence",
    [
        (
            1680.0,
            2,
            "Intel(R) Xeon(R) 2.50GHz avx2 avx512f",
            "28 minutes on 2 cores (Intel Xeon 2.50GHz with AVX-512).",
        ),
        (360.0, 2, "AMD EPYC avx2", "6 minutes on 2 cores (AMD EPYC with AVX2)."),
        (61.0, 1, "AMD EPYC", "1 minute on 1 core (AMD EPYC)."),
    ],
)
def test_the_sentence_names_minutes_cores_and_processor(seconds, cores, processor, sentence):
    assert time_repro.in_words(seconds, cores, processor) == f"`make repro` takes {sentence}"


@pytest.mark.parametrize("share, idle", [(0.0, True), (0.09, True), (0.5, False)])
def test_a_machine_is_idle_where_others_take_a_tenth_at_most(monkeypatch, capsys, share, idle):
    busy = iter([100.0, 100.0 + share * time_repro.WATCHED * 2])
    monkeypatch.setattr(time_repro, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(time_repro, "cores", lambda: 2)
    monkeypatch.setattr(time_repro.time, "sleep", lambda seconds: None)
    assert time_repro.is_idle() == idle
    assert ("other processes take 50% of the cores" in capsys.readouterr().err) == (not idle)
