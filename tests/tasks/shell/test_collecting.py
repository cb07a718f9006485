"""What is taken out of a box to be graded."""

from agentrl.tasks.shell.collecting import is_guarded, steers


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
