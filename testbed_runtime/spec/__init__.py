"""The kinds as models, the catalogue of Flink's options, one validator, and the way from a document to core's plain data."""
