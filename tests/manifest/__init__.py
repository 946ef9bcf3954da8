"""The transaction core. `test_schedule_*` replay the schedules of docs/protocol.md, request by request."""
