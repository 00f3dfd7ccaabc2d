"""Any PySpark streaming job between a wrapped source and a wrapped sink: a stage with one lane."""
