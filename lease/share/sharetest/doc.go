// Package sharetest has the helpers that tests of package share and of its boards share: [Run], the
// contract of a board as tests, and [Memory], a board in memory with a clock that can be
// wrong, and faults.
//
// A board's own test calls Run with a function that returns an empty board.
package sharetest
