"""A systemd unit: its facts, where its flags live, drop-ins, its log."""
