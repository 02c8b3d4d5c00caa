// Package report draws measurements: charts as SVG and PNG, and an HTML page with them.
//
// The charts are derived from the runs: runs that differ in exactly one setting become a
// line over that setting. Several runs with the same settings are one point, their median.
package report
