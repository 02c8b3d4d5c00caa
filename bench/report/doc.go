// Package report draws measurements: an HTML page with tables and bar charts, in one file.
//
// The charts are derived from the runs: runs that differ in exactly one setting become a
// series over that setting. Of several runs with the same settings the median is shown.
package report
