"""Pure planners. From the desired and the observed state and the time, each computes actions and a status, without an API server, a
clock or entropy."""
