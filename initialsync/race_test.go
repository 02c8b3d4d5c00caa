//go:build race

package initialsync_test

const raceEnabled = true
