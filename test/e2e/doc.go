// Package e2e holds the tests that need a real MongoDB and nothing else: what
// this program believes about the server, put to the server.
//
// They are skipped unless the environment names a server; see
// internal/mongotest. Each runs once for every server version at hand.
//
// Those of mirror_test.go need no server: they mirror recordings of one, from one
// embedded set into another.
package e2e
