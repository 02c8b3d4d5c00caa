// Package report draws what was measured: charts as SVG and PNG, and a page around
// them.
//
// What a chart shows is found in the reports, not told: wherever runs differ in one
// setting alone, and in nothing else, they are a line over that setting. Runs that
// were done again at the same setting are one point, their median.
package report
