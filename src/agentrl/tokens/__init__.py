"""Messages to token ids and back, and from traces to the tokens that are trained."""
