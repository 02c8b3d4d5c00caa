// Package mood says what a real server answers seldom, and when the embedded set
// does. A test that never meets a lock timeout does not show that its program
// bears one.
//
// [All] is the list: each [Mood] has a name, the places where it may occur, how
// often it does, what is answered, from which version on, and where that is known
// from. A [Temper] decides for one set; package command asks it at each command of
// a client and carries out what it says.
//
// # What decides
//
// The n-th command at which a mood may occur meets it or does not by the seed, the
// mood's name and n, and by whether it is spared: never by time. With one client at a
// time the same seed gives the same moods; with several it depends on the order in
// which they ask.
//
// # What lets work get done
//
// After a mood that is not gentle, the next [Rest] commands meet none such, and more
// each time. One that is expensive, as an election, has a limit per set. Gentle moods
// are no errors: a client that does nothing about them is right.
//
// # Who meets them
//
// Clients whose handshake has the application name of the [Config], the program's own.
// What tests use to prepare and to compare has another name, and the members of the
// set among themselves meet none. There is a second name, of clients that meet the
// gentle ones only: that of tests of one stage, which expect of each call what it says.
package mood
