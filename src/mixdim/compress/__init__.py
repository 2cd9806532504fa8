"""Trained tables made small: bands of popularity, each as wide as its spectrum asks for."""
