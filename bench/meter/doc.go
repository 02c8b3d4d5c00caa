// Package meter measures what a process uses between two points in time: wall time,
// CPU, allocations, resident memory and, on request, a CPU profile.
package meter
