"""From numbers to a verdict: is decoding as fast as the hardware allows, and if not, why?

Three things, apart: collecting (`monitor` with `traffic_window`, `model_files` and `engine_gpus`;
`probe` and `check` have their own) makes `Inputs`; `assess` is pure and makes an `Assessment` of
them; `publishing` and `wording` turn that into figures and sentences.

What is judged is the efficiency: the bandwidth with which decode steps read memory, as a share of
what the cards have (known as MBU, model bandwidth utilisation). 85 to 92 % is as good as hardware
gets. A low share is not a cause; causes are named only with evidence of their own, and evidence
that rules a cause out is shown as well. Sentences are for people, `kind`s for machines.
"""
