"""The table of errors: its numbers, and what fails."""

import numpy as np
import pytest

from fa_numba import accuracy, reference


def test_the_rows_pass_and_are_the_same_at_every_call():
    rows = accuracy.rows(9, 8)
    assert [(row.name, row.article) for row in rows] == [
        ("O", 9.69e-08),
        ("dV", 3.58e-07),
        ("dQ", 4.47e-08),
        ("dK", 1.19e-07),
    ]
    for row, factor in zip(rows, (2, 3, 3, 3)):
        assert row.fault is None
        assert 0 < row.error <= row.allowed
        assert 0 < row.plain < 1e-6
        assert row.allowed == factor * row.plain + 1e-6
    assert rows == accuracy.rows(9, 8)


def test_the_error_is_the_largest_one(monkeypatch):
    """Of o, in the last element; the inputs are uniform in [-1, 1]."""

    def nearly(q, k, v):
        assert q.dtype == np.float32
        assert 0.9 < np.abs([q, k, v]).max() <= 1
        o = reference.attention(q, k, v).o
        o[-1, -1] -= 0.25
        return o, None, None

    def exact(do, q, k, v, o, m, l):
        assert (do == 1).all()
        return reference.attention_backward(do, q, k, v)

    monkeypatch.setattr(accuracy, "flash_forward", nearly)
    monkeypatch.setattr(accuracy, "flash_backward", exact)
    o, dv, dq, dk = accuracy.rows(20, 16)
    assert o.error == pytest.approx(0.25)
    assert o.fault == "above what is allowed"
    assert [(row.error, row.fault) for row in (dv, dq, dk)] == [(0, None)] * 3


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda x: x + np.float32(2e-5), "above what is allowed"),
        (
            lambda x: np.where(np.arange(x.size).reshape(x.shape) == 5, np.float32(np.nan), x),
            "NaN or infinite elements",
        ),
        (lambda x: np.full_like(x, np.inf), "NaN or infinite elements"),
        (lambda x: x[:, :-1], "shape (9, 3), not (9, 4)"),
        (lambda x: x[None], "shape (1, 9, 4), not (9, 4)"),  # which would be broadcast
    ],
)
@pytest.mark.parametrize("spoilt", ["dQ", "dK", "dV"])
def test_a_wrong_gradient_fails_alone(monkeypatch, spoilt, spoil, fault):
    def wrong(do, q, k, v, o, m, l):
        gradients = zip(("dQ", "dK", "dV"), reference.attention_backward(do, q, k, v))
        return [spoil(x) if name == spoilt else x for name, x in gradients]

    monkeypatch.setattr(accuracy, "flash_backward", wrong)
    faults = {row.name: row.fault for row in accuracy.rows(9, 4)}
    assert faults == {"O": None, "dV": None, "dQ": None, "dK": None, spoilt: fault}


def test_the_table():
    rows = [
        accuracy.Row("O", 1.234e-7, 2e-7, 1.4e-6, 9.69e-8, None),
        accuracy.Row("dV", float("nan"), 2e-7, 1.6e-6, 3.58e-7, "NaN or infinite elements"),
    ]
    heading, first, second = accuracy.table(rows).splitlines()
    assert heading.split() == ["fa_numba", "float32", "NumPy", "allowed", "article"]
    assert first.split() == ["O", "1.23e-07", "2.00e-07", "1.40e-06", "9.69e-08", "PASSED"]
    assert second.split()[:2] == ["dV", "nan"]
    assert second.endswith("  FAILED: NaN or infinite elements")
    for title in ("fa_numba", "NumPy", "allowed", "article"):
        assert first[heading.index(title) + len(title) - 1].isdigit()  # columns are aligned on the right
