"""Reference packages of the `repo` level, each as an agent finds it; ``inputs.py`` says how each is tested."""
