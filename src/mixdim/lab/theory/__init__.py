"""The paper's theory (Sec. 4, App. C) as pure functions of float64 arrays. Knows nothing about layers.

| module | question it answers |
|---|---|
| `structure` | which rows and columns are a block? |
| `spectra` | how fast do singular values fall? |
| `matrices` | what does a block matrix look like: ranks, incoherence? |
| `sampling` | which entries are seen? |
| `factorization` | what can be completed from them (Alg. 4)? |
| `recovery` | how many samples are needed (Thm. 4.1)? |
| `allocation`, `power_law_allocation` | how wide should each block be (Thm. 4.2)? |
| `tensors` | and with more than two features? |

`docs/theory.md` lists where the paper's text is wrong.
"""
