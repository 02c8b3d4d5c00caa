// Package history keeps the important figures and the events of a link for 24 hours. An operator
// can see in the morning what happened at night, even if the process that ran the link has
// ended since.
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
// Its memory is bounded. Samples are kept in three rings of 720 points: an hour in steps of 5 s, six
// hours in steps of 30 s, a day in steps of 120 s. A step has the largest lag and latency of its
// samples, so that a peak does not vanish in a mean; the mean of rates; the least oplog window;
// and the last value of counters. Steps are aligned to the clock, so the steps that another
// process has stored fit in.
//
// It keeps at most 1,000 events, and half a MiB of them. Of events with the same message it keeps
// 20 in a minute, and the next one says how many were left out.
//
// # Truth
//
// An unknown value is null, never 0, and a time without samples stays a gap. If the clock of the
// process is set back, the steps later than now are dropped.
//
// # The document
//
// It contains the rings in 16 bits a point (exact to a thousandth), compressed, and the last events: less
// than 100 KB. The link does not depend on it: if it is damaged, or of an unknown format, that is logged,
// and it is written again. A leader replaces only a document of its own term or an earlier one, so that a
// process that has lost the link does not destroy the document of its successor: see
// [Store.Write].
package history
