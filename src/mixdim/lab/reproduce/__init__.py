"""Where runs, words and pictures of the paper are put together: every figure by one command."""
