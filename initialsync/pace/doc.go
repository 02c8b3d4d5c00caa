// Package pace slows a copy down: to limits that an operator sets, and when one of
// the clusters shows that it has enough to do.
//
// # Limits
//
// Bytes and documents have a limit each. Before a worker writes it asks for what it
// is about to write; what is more than a quarter of a second's worth is granted in
// parts, so that nothing is too large to be granted at all. A change of the limits
// counts at once, also for who waits.
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
// a queue. Beside that, the time that our own reads and writes take is compared
// with what it used to be: three times as long, for three samples in a row, is a
// sign as well. What it used to be is learned: it follows quickly where things
// become faster, and within some ten minutes where they become slower, so that a
// cluster that is slower for good is not mistaken for one under pressure for ever.
//
// A Factor below 1 makes workers pause after their work: for (1/Factor - 1) times
// as long as it took. What all workers took together is one account, which whoever
// comes next pays; that reading and writing go on at the same time is allowed for
// by counting the longer of both.
//
// # What it trusts
//
// A server that does not let us ask is reported once, and asked again every few
// minutes; then only the time counts. One that does not answer is passed over: for
// a while the pace stays what it is, as silence is no sign of health.
package pace
