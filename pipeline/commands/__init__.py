"""The commands `fedrepro COMMAND`."""
