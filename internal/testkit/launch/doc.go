// Package launch runs a mongod binary as a process on loopback: for tests on real
// servers, and for the secondary that a benchmark times.
//
// A process listens on a free port and has its data and its log in a folder of the
// caller. It can be stopped, killed and started again with its data. A context is
// canceled when the process ends, with the reason as its cause.
package launch
