"""Many runs: what a store lacks is measured, on one machine or many."""
