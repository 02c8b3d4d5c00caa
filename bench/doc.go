// Package bench measures the program and compares it with the limits of driver and server.
//
//	Pipeline   the log up to the writers, into nothing
//	Apply      the applier alone, on any target
//	Ceiling    the same operations, written by 16 goroutines of the plain driver
//	Mirror     a link whose source is written to at a fixed rate: its lag
//	CatchUp    a link that starts with a backlog
//	Secondary  a secondary on the same backlog; a real one if there is a mongod
//	Clone      a copy, compared with the same number of bare driver loops
//	Suite      all of these, compared with the project's goals
//
// A run prepares its source and target (its ends), measures several rounds, checks that
// all of the work has arrived, and returns a result.Run. Runs that are compared are measured
// alternately on the same ends. Compare absolute figures only with figures of the same
// machine.
//
// If Config.Serve is set, embedded ends run in processes of their own, so that the cost
// of this process is that of the program. They are not real servers; results say so.
// Databases on ends named by a connection string are dropped only with Overwrite.
package bench
