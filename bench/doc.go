// Package bench measures the program: what it costs, beside what is possible at all.
//
//	Pipeline   the log up to the writers, into nothing, or through them
//	Apply      the applier alone, on any target
//	Ceiling    the same operations, by 16 goroutines of the plain driver
//	Mirror     a link whose source is written to at a pace: how far it is behind
//	CatchUp    a link that begins behind a backlog
//	Secondary  a secondary on the same backlog, a real one where there is a server
//	Clone      a copy, and as many bare loops of the driver
//	Suite      all of it, held to the project's goals
//
// A run makes its ends ready, measures several rounds, checks that all of the work
// has arrived, and returns a result.Run. What is compared is measured in turns on the
// same ends. Absolute figures mean something only beside others of the same machine.
//
// Embedded ends run in processes of their own where Config.Serve is set: what the
// process costs is the program's then. They are no real servers, and results say so.
// Databases at ends that a connection string names are dropped only with Overwrite.
package bench
