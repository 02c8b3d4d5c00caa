// Package workload says what is written when something is measured: a mix of
// operations as a value, made from a seed, so that the same work can be done again.
//
// One operation exists in the forms that the runs need: as an entry of the log, as
// a server would have written it, and as what an ordinary client sends for it.
package workload
