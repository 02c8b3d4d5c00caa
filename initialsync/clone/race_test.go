//go:build race

package clone

const raceEnabled = true
