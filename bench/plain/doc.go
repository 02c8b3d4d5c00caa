// Package plain is the official driver, used as a plain client uses it: the limit
// that the rest is compared with, the paced writer of a mirrored source, and the
// reader that looks for what was written.
package plain
