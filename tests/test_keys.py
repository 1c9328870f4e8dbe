"""Keys of random draws."""

from pipeline import keys


def test_keys_differ_in_every_part():
    drawn = {keys.key(s, p, c, r) for s in (0, 1) for p in ("a", "b") for c in (0, 1) for r in (0, 1)}
    assert len(drawn) == 16


def test_a_key_does_not_depend_on_the_process():
    assert keys.key(0, "batches", "c0", 1, 0) == 5124794432517932618
