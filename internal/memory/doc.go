// Package memory limits the memory of the process to one number: that which the operator
// gave, or that of its container.
//
//	--memory ─────────────────┐
//	container: 9/10 of it ────┤
//	machine: 9/10 of it ──────┼─▶ Total ──▶ Shares of a link
//	GOMEMLIMIT ───────────────┘      └────▶ the limit of Go's runtime
//
// The collector's limit alone is not enough: it is soft, and cannot free memory in use.
// So the stages of a link limit themselves to shares of the total, and leave a part of it
// to the collector.
//
// The limit of a container includes page cache, which the system can take back, and the
// buffers of sockets, which it cannot. The tenth that is left is for those.
package memory
