"""Do the sampler and the trainer say the same log-probability of the same token? Measured, and where not, explained."""
