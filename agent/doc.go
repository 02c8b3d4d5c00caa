// Package agent runs many links in one process. Which ones is decided by a coordinator
// (package share): this package runs those that it assigns to this process.
//
//	links file ── Set ──▶ ┌───────┐ ── Link.Run ──▶ one pipeline per link
//	coordinator ─ Work ─▶ │ Agent │
//	                      └───────┘ ──▶ /status, /healthz, /readyz, /metrics
//
// # A link's work
//
//	           room, settings known           error, a restart helps
//	waiting ──────────────────────▶ running ─────────────────────────▶ retrying ─┐
//	                                 ▲   │                                       │ pause
//	                                 └───┼───────────────────────────────────────┘
//	                                     │ error, a restart does not help
//	                                     ▼
//	                                   ended ── other settings, or Retry ──▶ running
//
// An error of a link ends neither the agent nor the other links. One that a restart may help is
// retried here, and after several times in a row returned by [Agent.Work], so that the coordinator
// may try another process: it may reach what this one does not. One that recurs wherever the link
// runs stays here, and is shown. When the context of Work is done the link drains; the
// agent's own context ends it at once.
//
// A link whose settings change drains and starts again, the others are not touched. A process
// may be told to run a link that its own file does not have yet, or no longer has: Work waits, and after
// two minutes returns an error, so that one whose file has it gets it.
//
// # Memory
//
// At most Config.Max links run at the same time, whatever the coordinator says, so that each has
// a fixed share of the process's memory. One that is still draining counts.
package agent
