// Package result is what measuring yields: the records of runs, with what they ran
// on, as JSON, as a table, in benchstat's format, and compared with others.
//
// Absolute figures mean something only beside others of the same machine. What is
// held to a threshold are ratios within one run, loosely, and allocations, exactly.
package result
