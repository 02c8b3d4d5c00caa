// Package plain uses the official driver as an ordinary client does. It is the limit
// that the applier and the copy are compared with, the writer that writes to a mirrored
// source at a fixed rate, and the reader that polls the target for these writes.
package plain
