//go:build race

package oplog_test

const raceEnabled = true
