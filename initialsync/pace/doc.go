// Package pace slows a copy down: to limits that an operator sets, and when one of
// the clusters is under pressure.
//
// # Limits
//
// Bytes and documents have a limit each. Before a worker writes it waits until the
// limits allow it; an amount above a quarter of a second's limit is granted in parts, so
// that no write is too large for the limits. A change of the limits takes effect at once,
// also for waiting workers.
//
// # Pressure
//
//	 signs of pressure          Factor is halved, to 1/16 at least
//	┌────────────────┐ ──────▶ ┌────────────────┐
//	│ at full speed  │         │     slowed     │ ⟲ signs: halved, none: + 1/16
//	└────────────────┘ ◀────── └────────────────┘
//	                  none, up to 1
//
// Every two seconds both clusters are polled (serverStatus) for signs of pressure: flow
// control that delays writes, a cache so dirty or full that application threads must
// evict, no tickets left, and a queue. In addition, the latency of our own reads and
// writes is compared with a baseline: three times the baseline, in three consecutive
// samples, is a sign as well. The baseline adapts quickly when a cluster becomes faster,
// and within about ten minutes when it becomes slower, so that a cluster that stays
// slower does not count as under pressure permanently.
//
// A Factor below 1 makes workers pause after their work: for (1/Factor - 1) times
// as long as it took. The time of all workers is added up, and the next worker pauses for
// it; as reading and writing run concurrently, the longer of both counts.
//
// # Failures
//
// A server that refuses serverStatus is reported once, and polled again every few
// minutes; until then only the latencies count. If a server does not answer, the Factor
// is kept for a while, because a missing answer does not mean that the pressure ended.
package pace
