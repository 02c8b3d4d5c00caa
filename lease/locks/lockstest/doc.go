// Package lockstest has the helpers that tests of package locks and of its stores share: [Run], the
// contract of a store as tests, and [Memory], a store in memory with a clock that can be
// wrong, elections, and faults.
//
// A store's own test calls Run with a function that returns an empty store.
package lockstest
