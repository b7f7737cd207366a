"""What every Headgate process shares: its configuration and the adapters of time, chance and ids."""
