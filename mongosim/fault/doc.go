// Package fault describes faults of network links.
//
// A [Fault] is a value that mongosim.Set.Fault takes, with a text form for scenario
// files, such as "latency 5ms jitter=1ms", "half-open in" or "reset after=120": see
// [Parse]. What each does to a connection:
//
//	           latency, rate       drop, half-open, freeze    cut, reset
//	reading    later, slower       blocks                     fails
//	writing    returns at once     blocks                     fails
//	deadline   holds               holds, but not if frozen   -
//
// A link has two directions, and a fault applies to both unless it says otherwise.
// As with TCP, a link delivers delayed data once it is healed; only a cut or a reset
// loses data in flight.
package fault
