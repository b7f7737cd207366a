"""Pure planners: desired, observed and now in, actions and a status out. No API server, no clock, no entropy."""
