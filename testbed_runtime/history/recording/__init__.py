"""The shells of the history: the sink of each process and the recorder outside of them."""
