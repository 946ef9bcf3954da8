"""The transaction core. `test_schedule_*` replay what protocol.md tells under its rules, request by request."""
