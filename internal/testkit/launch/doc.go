// Package launch runs a mongod binary as a process on loopback: for tests on real
// servers, and for the secondary that a benchmark times.
//
// A process listens on a free port and has its data and its log in a folder of the
// caller's. It can be stopped, killed and started again with its data. Whoever waits
// for it to answer learns from a context that it has ended, and how.
package launch
