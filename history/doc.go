// Package history keeps what a link has done in the last 24 hours: the figures that matter,
// and what happened. An operator who looks at a link in the morning can see what happened in the
// night, even if the process that ran it then has ended.
//
//	samples, one a second ──▶ ┌─────────┐ ── View ────▶ charts: 1 h, 6 h or 24 h
//	events ─────────────────▶ │ History │ ── Events ──▶ the timeline
//	                          └──┬───▲──┘
//	              once a minute  │   │  at a start, at a takeover; a standby: every minute
//	                             ▼   │
//	                    one document per link in the target's metadata
//
// # Memory
//
// It does not grow. Samples are kept in three rings of 720 points: an hour in steps of 5 s, six
// hours in steps of 30 s, a day in steps of 120 s. A step has the largest lag and latency of its
// samples, so that a peak does not vanish in a mean; the mean of rates; the least oplog window;
// the last of what only grows. Steps are those of the clock, not of the process: what
// another process has stored fits in.
//
// Of events there are 1,000 at most, and half a MiB; of one message 20 in a minute: the next one
// says how many were left out.
//
// # Truth
//
// What is not known is null, never 0, and a time without samples stays a gap. If the clock of the
// process is set back, what seems to be later than now is dropped.
//
// # The document
//
// It has the rings in 16 bits a point (exact to a thousandth), compressed, and the last events: less than 100
// KB. The link does not depend on it: if it is damaged, or of an unknown format, that is logged, and
// it is written again. A leader writes it only over one of its own term or an earlier one, so that a
// process that has lost the link does not destroy what its successor has written: see
// [Store.Write].
package history
