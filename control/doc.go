// Package control carries out the requests of operators to a link, in the process that leads it:
// pause and resume, throttle, resync of collections, log level.
//
//	operators ──Ask──▶ records ──▶ Controller ──Set──▶ settings ──▶ Brake ──▶ lanes, copy
//	                      ▲            │              (target)
//	                      └─ outcome ──┘
//
// The settings are stored in the target (package request). A Controller reads them before anything
// is applied in its process, and every second after that. Until they have been read once, the Brake
// stops everything; if they cannot be read later, the last ones stay in force. So a process that
// takes a link over, or restarts, continues a pause and a throttle.
//
// The Brake stops or slows down the operations handed to the lanes of the applier and to the workers
// of a copy. Reading the source continues, into memory and then to the spool. Operations in flight
// when a link is paused are completed.
package control
