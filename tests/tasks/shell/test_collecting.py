"""What is taken out of a box to be graded."""

from agentrl.tasks.shell.collecting import fitting, is_guarded, steers


def test_files_are_taken_in_their_order_as_long_as_they_fit():
    mib = b"x" * (1 << 20)
    large = {f"m{number}.py": mib for number in range(20)}
    assert list(fitting(large)) == [f"m{number}.py" for number in range(8)]  # of 8 MiB
    assert list(fitting({**large, "last.py": b""}))[-1] == "m7.py"  # nothing behind the first that does not fit
    deep = {f"a/b/{number}.py": b"" for number in range(2000)}
    assert len(fitting(deep)) == 997  # 1,000 places, of which three are a/b, a and the workspace
    assert fitting({}) == {}


def test_tests_and_settings_are_guarded_and_only_settings_may_not_be_added():
    paths = {
        "src/a.py": (False, False),
        "a.txt": (False, False),
        "test_a.py": (True, False),
        "tests/data.json": (True, False),
        "pkg/conftest.py": (True, True),
        "pyproject.toml": (True, True),
        "x.pth": (True, True),
        ".gitignore": (False, False),
        "pkg/__pycache__/a.pyc": (True, False),
    }
    assert {path: (is_guarded(path), steers(path)) for path in paths} == paths
