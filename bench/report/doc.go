// Package report draws what was measured: charts as SVG and PNG, and a page around
// them.
package report
