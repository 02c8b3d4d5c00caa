// Package record stores the record of a cutover in the metadata of its link: the options, the process
// that works on it, and the outcome of each step. Any process reads it; package cutover writes it.
//
//	collection cutovers: {_id: LINK, id, rev, save, state, by, started, ended, options, steps, …}
//
//	              Begin                      commit point
//	none, done, ────────▶ running ─────────────────────────▶ done
//	cancelled                │ Cancel, before the commit point
//	                         ▼
//	                     cancelling ──▶ cancelled
//
// Each change is a compare-and-set with write concern majority: it has the number of the change before
// it, and an id of its own, by which a process whose reply was lost finds out whether its change was
// made. A process that has missed a change of another one gets [ErrChanged].
package record
