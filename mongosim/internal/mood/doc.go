// Package mood makes the embedded set give the rare replies of real servers, such as
// lock timeouts and lost replies, so that tests show that a program handles them. Such a
// reply is called a mood.
//
// [All] is the list: each [Mood] has a name, the places where it can occur, its
// frequency, the reply, the first server version with it, and the evidence for it. A
// [Temper] decides for one set; package command calls it at each command of a client.
//
// # Determinism
//
// Whether a mood occurs at the n-th command where it can occur depends on the seed, the
// mood's name, n, and the moods before it: never on time. With one client at a time the
// same seed gives the same moods; with several clients it depends on their order.
//
// # Frequency
//
// After a mood that is an error, [Rest] commands get no other one, and more each time, so
// that work completes. An expensive mood, such as an election, has a limit per set. Gentle
// moods are those that are not errors: a client needs no special handling for them.
//
// # Affected clients
//
// Moods occur for clients whose handshake has the application name in [Config]: the
// program under test. The clients with which tests prepare and compare data have another
// name, and the members of the set get no moods from each other. Clients with a second
// name get gentle moods only: tests of one stage, which expect exact replies.
package mood
