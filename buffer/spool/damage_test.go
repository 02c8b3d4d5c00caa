package spool

func writeUntilKilled(string) {}
