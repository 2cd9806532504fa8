"""The paper: which runs make its figures and claims, and what they say."""
