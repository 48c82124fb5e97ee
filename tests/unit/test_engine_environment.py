import pytest

from hybrid.workers.environment import engine_environment


def test_threads_of_math_libraries_are_bounded():
    variables = engine_environment(3, {"OMP_NUM_THREADS": "8"})
    assert {variables[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}


@pytest.mark.parametrize(
    ("already", "then"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": ""}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, None),
    ],
)
def test_memory_is_asked_for_on_huge_pages_unless_the_user_decided(already, then):
    assert engine_environment(1, already).get("GLIBC_TUNABLES") == then
