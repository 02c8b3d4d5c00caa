// Package netfault applies the faults of network links to connections and messages.
//
// A [Network] has the current faults ([fault.Fault]) of the link between two named
// ends. They apply in two places:
//
//   - [Network.Conn] wraps one end of a connection. Its reads and writes are subject
//     to the link's faults, also those that are set or healed later. Only one end
//     of a connection must be wrapped, or each fault applies twice.
//   - [Network.Delay] is for messages between members of one process, without a
//     connection.
//
// Each link has two directions, and a fault applies to both unless it says
// otherwise. As with TCP, a link delivers delayed data once it is healed; only a
// cut or a reset loses data in flight.
//
//	           latency, rate       drop, half-open, freeze    cut, reset
//	Read       later, slower       blocks                     fails
//	Write      returns at once     blocks                     fails
//	deadline   holds               holds, but not if frozen   -
//	Delay      later (latency)     blocks until ctx ends      fails (cut)
//
// All waiting is on timers and channels, so that it takes no time in a
// testing/synctest bubble. Jitter is derived from the network's seed, separately for
// each direction of each link, so traffic on one link does not change the jitter of
// another.
package netfault
