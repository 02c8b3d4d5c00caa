// Package control carries out the requests of operators to a link, in the process that leads it:
// pause and resume, throttle, copy collections again, level of the log.
//
//	operators ──Ask──▶ records ──▶ Controller ──Set──▶ what is set ──▶ Brake ──▶ lanes, copy
//	                      ▲            │                (target)
//	                      └─ outcome ──┘
//
// What is set is in the target (package request). A Controller reads it before anything is
// applied in its process, and every second after that: until it has been read once, the Brake
// stops everything; if it cannot be read later, everything stays as it was. So a process that
// takes a link over, or starts again, continues a pause and a throttle.
//
// The Brake stops and slows down what is handed to the lanes of the applier and the workers of a
// copy. Reading the source continues: into memory, then to the spool. What is in flight when a link
// is paused is finished.
package control
