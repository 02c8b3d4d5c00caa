// Package simcaller sends commands to an embedded set in this process without a network,
// and lets a test fail them: before the server receives them, or afterwards.
package simcaller
