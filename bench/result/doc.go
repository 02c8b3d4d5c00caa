// Package result holds the results of measurements, with the machine they ran on: as
// JSON, as a table, in benchstat's format, and compared with earlier ones.
//
// Compare absolute figures only with figures of the same machine. Only two things have
// thresholds: ratios within one run, with a margin, and allocations, exactly.
package result
