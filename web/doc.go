// Package web is the HTTP server of a process: status, events, metrics, requests of operators, the page.
//
//	              ┌────────┐  GET  /            the page, /fleet
//	Link ───────▶ │        │       /status      one Snapshot, as JSON
//	 Status       │ Server │       /events      a Snapshot each second, and what happens (SSE)
//	 History      │        │       /history     the last hours
//	 Events       │ guard  │       /requests    what operators have asked for
//	 Requests ◀── │        │  POST /requests    and what they ask for now
//	Links ──────▶ │        │  GET  /links       every link of the target
//	Metrics ────▶ └────────┘       /metrics /healthz /readyz /openapi.json
//
// It knows no other package of the program: what it shows comes in as functions, and what it is
// asked for goes out through [Requests]. A process with many links serves each of them under
// /link/NAME/, and under the same addresses there.
//
// # Guarantees
//
//   - No client can delay the link, whatever it does. A stream takes the latest status at its
//     own pace, and is dropped when a write takes too long; one status is made per second for all.
//   - Every size, time and number is bounded: headers, bodies, the time to send them and to take the
//     answer, connections, streams, concurrent requests to the target.
//   - A change (POST) needs a bearer token. Without a configured one it is taken only on a loopback
//     address, under a loopback name, not through a proxy. Either way a browser cannot be made to
//     send it by another site's page: the body has to be JSON, and requests of other origins are refused.
//   - On a loopback address it answers to loopback names only, so that a name that an attacker
//     makes resolve to it (DNS rebinding) reads nothing.
//   - A path has one spelling. Escapes, double slashes and dots that would be another path are
//     not found.
//
// Reading needs no token: listen on an address that only operators can reach. docs/http.md and
// docs/adr/0035-one-port.md say why.
package web
