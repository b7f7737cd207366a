"""The Kubernetes operator: reconciles Testbeds, ScenarioRuns, Faults and TuningStudies."""
