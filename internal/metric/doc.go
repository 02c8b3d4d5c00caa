// Package metric registers metrics that outlive the stage that counts with them.
//
// A process makes several attempts to replicate, and each creates its stages again, with
// the same registry. The counters of a stage must continue where those of its predecessor
// stopped: [Register] returns a metric that is registered already. A metric computed from a
// stage is computed from the newest one: see [Computed].
package metric
