"""What a user types: `fedrepro COMMAND`."""
