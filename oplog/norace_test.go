//go:build !race

package oplog_test

const raceEnabled = false
