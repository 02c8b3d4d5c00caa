// Package metric registers metrics that outlive the stage that counts with them.
//
// An attempt to replicate is repeated within one process, and each attempt makes
// its stages anew, with the same registry. What a stage counts has to go on where
// the stage before it stopped: [Register] hands out what is registered already.
package metric
