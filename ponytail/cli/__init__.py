"""The command line: flags, the socket, exit codes.  Imports what is heavy only when needed."""
