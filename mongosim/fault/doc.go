// Package fault hurts the links between the members of an embedded set and
// between them and their clients, on purpose and repeatably.
//
// A [Fault] is a value with a text form that a scenario file can hold, such as
// "latency 5ms jitter=1ms", "half-open in" or "reset after=120"; see [Parse].
// A [Network] says which faults the link between two named ends has at the
// moment. It hurts traffic in two places:
//
//   - [Network.Conn] wraps one end of a connection. Reads and writes then meet
//     the link's faults, also those that are set or healed later. Only one end
//     of a connection may be wrapped, or it meets everything twice.
//   - [Network.Delay] is for messages that members of one process pass to each
//     other without a connection.
//
// Each link has two directions, and a fault holds for both unless it says
// otherwise. Nothing is lost for good: like TCP, a link carries what it held
// back once it is healed. What is gone is what a cut or a reset broke off.
//
//	           latency, rate       drop, half-open, freeze    cut, reset
//	Read       later, slower       blocks                     fails
//	Write      goes on its way     blocks                     fails
//	deadline   holds               holds, but not if frozen   -
//	Delay      later (latency)     blocks until ctx ends      fails (cut)
//
// All waiting is on timers and channels, so that it takes no time in a
// testing/synctest bubble. Jitter comes from the network's seed, for each
// direction of each link on its own: what happens on one link does not change
// the draws of another.
package fault
