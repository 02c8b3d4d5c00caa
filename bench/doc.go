// Package bench measures the pipeline: the way of the log up to the writers, and the
// copy of documents beside bare loops of the driver. The numbers mean something only
// beside others of the same run on the same machine.
package bench
