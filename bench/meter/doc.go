// Package meter measures what a span of a process costs: time, CPU, allocations,
// resident memory, and on request where the CPU time went.
package meter
