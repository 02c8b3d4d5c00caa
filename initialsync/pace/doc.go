// Package pace slows a copy down: to limits that an operator sets, and when one of
// the clusters is under pressure.
//
// # Limits
//
// Bytes and documents have a limit each. Before a worker writes it waits until the
// limits allow it; what is more than a quarter of a second's worth is granted in parts,
// so that no write is too large. A change of the limits takes effect at once, also for
// workers that are waiting.
//
// # Pressure
//
//	 signs of pressure          Factor is halved, to 1/16 at least
//	┌────────────────┐ ──────▶ ┌────────────────┐
//	│ at full speed  │         │     slowed     │ ⟲ signs: halved, none: + 1/16
//	└────────────────┘ ◀────── └────────────────┘
//	                  none, up to 1
//
// Every two seconds both clusters are asked (serverStatus) for what says that they
// are at their limits: flow control that holds writes back, a cache that is dirty
// or full to where operations have to clean it up themselves, no tickets left, and
// a queue. In addition, the time that our own reads and writes take is compared with a
// baseline: three times as long, for three samples in a row, is a sign as well. The
// baseline follows quickly when a cluster becomes faster, and within some ten minutes
// when it becomes slower, so that a cluster that is slower for good does not count as
// one under pressure for ever.
//
// A Factor below 1 makes workers pause after their work: for (1/Factor - 1) times
// as long as it took. The time of all workers is one account, from which the next
// worker pauses; as reading and writing go on concurrently, the longer of both counts.
//
// # What it trusts
//
// A server that refuses serverStatus is reported once, and asked again every few
// minutes; until then only the times count. If one does not answer, the pace remains
// what it is for a while, as no answer is no sign of health.
package pace
