"""The functions that compiled code calls, compiled, against Python's own ints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stigmergy.compiled import arithmetic
from tests.compiled.running import STAND_INS

EDGES = (0, 1, -1, 2, -2, 3, 2**31, -(2**31), 2**32, 2**62, -(2**62), 2**63 - 1, -(2**63), 3037000500, -3037000500)
INTS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES) | st.integers(-(2**33), 2**33)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "remainder"])
def test_results_and_overflow_are_exact(name: str) -> None:
    compiled, plain = getattr(arithmetic, name), STAND_INS[name]

    @settings(max_examples=300)
    @given(a=INTS, b=INTS)
    def check(a: int, b: int) -> None:
        if name == "remainder":
            if b != 0:
                assert compiled(a, b) == plain(a, b)
            return
        value, overflows = compiled(a, b)
        want, beyond = plain(a, b)
        assert overflows is beyond
        assert beyond or value == want

    for one in EDGES:
        for other in EDGES:
            check.hypothesis.inner_test(one, other)  # type: ignore[attr-defined]
    check()


def test_what_never_overflows_is_not_said_to() -> None:
    for name in ("add", "subtract", "multiply"):
        assert getattr(arithmetic, name)(3, 4)[1] is False
