// Command mutate plants bugs in the program, one at a time, and runs the tests that
// must detect them. A bug that no test detects is a guarantee without a test.
//
// The bugs are in mutants/*.txt. Each has a name, a sentence that describes the bug, the
// tests to run (arguments of go test), and for one or more files a piece of text and its
// replacement:
//
//	== lane-ignores-term
//	A lane's move does not ask for the term: a process that was fenced commits data.
//	test: ./checkpoint -run TestFenced
//	file: checkpoint/lane.go
//	--- old
//	{Key: "term", Value: l.term},
//	--- new
//	--- end
//
// The text has to occur exactly once in its file; white space at both ends of its
// lines does not count. Nothing is written into the tree: the go command is given the
// changed file by -overlay.
//
// The command ends with 1 if a bug was not noticed, did not compile, or could not be
// planted, or if the tests fail without it. "go test" of this package checks that every
// bug can be planted in the code as it is.
package main
