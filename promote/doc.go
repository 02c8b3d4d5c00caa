// Package promote ends a link whose source is gone, after applying the part of its oplog that is on
// local disk, and reports the state of the target:
//
//	take the lease over ──▶ apply the relay log ──▶ all lanes at S? ──▶ end the link ──▶ promoted
//	        │                        │                    │                │ outcome unknown
//	        ▼                        ▼                    ▼                ▼
//	the process that led stands by; another call of [Run], at any time, continues from there
//
// It needs the target only. The relay log is applied as far as it can be read, whole
// transactions only; without one, the target has what the lanes have. Nothing is deleted from disk.
// A [Recovery] says up to where the target has everything, and which lanes have more.
package promote
