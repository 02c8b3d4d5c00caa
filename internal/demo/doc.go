// Package demo shows a link at work, on two replica sets inside the process:
//
//	start two sets ─▶ fill the source ─▶ write ─▶ the link begins with a copy
//	                                                  │
//	                        source steps down, target steps down
//	                                                  │
//	   result ◀─ compare ◀─ drain ◀─ wait until consistent and applied
//
// With an address to listen on, the page of the link is served meanwhile. With Keep, what runs continues
// after the comparison until it is told to end.
//
// The link is a real one, over TCP: the pipeline, the connections, the status. The sets
// are package mongosim, the clients package traffic. Only loopback ports are used, and no
// files remain.
package demo
