// Package netfault gives connections and messages the faults of their links.
//
// A [Network] knows which faults ([fault.Fault]) the link between two named ends
// has at the moment. Traffic meets them in two places:
//
//   - [Network.Conn] wraps one end of a connection. Reads and writes then meet
//     the link's faults, also those that are set or healed later. Only one end
//     of a connection may be wrapped, or it meets everything twice.
//   - [Network.Delay] is for messages that members of one process pass to each
//     other without a connection.
//
// Each link has two directions, and a fault applies to both unless it says
// otherwise. Nothing is lost for good: like TCP, a link delivers what it held
// back once it is healed. What is lost is what a cut or a reset broke off.
//
//	           latency, rate       drop, half-open, freeze    cut, reset
//	Read       later, slower       blocks                     fails
//	Write      returns at once     blocks                     fails
//	deadline   holds               holds, but not if frozen   -
//	Delay      later (latency)     blocks until ctx ends      fails (cut)
//
// All waiting is on timers and channels, so that it takes no time in a
// testing/synctest bubble. Jitter comes from the network's seed, for each
// direction of each link on its own: what happens on one link does not change
// the draws of another.
package netfault
