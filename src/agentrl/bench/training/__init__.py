"""How fast whole training steps are: ours beside TRL's trainer, and asynchronous beside synchronous."""
