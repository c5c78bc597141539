"""What tests and demos stand on: simulated servers and studies, the supervisors' contract."""
