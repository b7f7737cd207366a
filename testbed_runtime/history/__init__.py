"""The history of a trial, from which everything is judged: its tables (`schema`), how processes write them (`writer`, `recording`), how
they are sealed and read (`sealing`, `reader`), and how damage is found (`validation`, `crosschecks`)."""
