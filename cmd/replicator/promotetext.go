package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/promote"
)

// print prints the recovery point, and the deferred options or, as JSON, their outcome.
func (c *promoteCommand) print(out cli.Output, r *promote.Recovery, o *restored) error {
	var err error
	if c.JSON {
		err = json.NewEncoder(out.Results).Encode(recoveryJSON(r, o))
	} else {
		err = writeRecovery(out.Results, r, o)
	}
	if err != nil {
		return fmt.Errorf("print the recovery point: %w", err)
	}
	return nil
}

// writeRecovery writes the recovery point as text.
func writeRecovery(w io.Writer, r *promote.Recovery, o *restored) error {
	var b []byte
	say := func(format string, args ...any) { b = fmt.Appendf(b, format+"\n", args...) }
	if r.Over == nil {
		say("Link %s was not promoted: this is what would be.", r.Link)
	} else {
		say("Link %s was promoted at %s by %s.", r.Link, r.Over.At.UTC().Format("2006-01-02 15:04:05 UTC"), printable.Text(r.Over.By))
	}
	at := fmt.Sprintf("%s (%s, by the source's clock)", r.At, clock(r.Wall))
	switch {
	case r.Exact() && r.Untried > 0:
		say("Recovery point: exact up to %s, if the target accepts what the relay log has.", at)
	case r.Exact():
		say("Recovery point: exact up to %s. All lanes are there, and none is further.", at)
	default:
		say("Recovery point: NOT EXACT. The target has everything up to %s, and of what follows what these lanes have applied:", at)
		for _, a := range r.Ahead {
			name := "lane " + strconv.Itoa(a.Lane)
			if a.Lane < 0 {
				name = "the barrier"
			}
			doubt := ""
			if a.Announced {
				doubt = ", the last of it perhaps not"
			}
			say("  %s: its operations up to %s%s", name, positionText(a.At), doubt)
		}
	}
	for _, ns := range r.LeftOut {
		say("Not as of that: %s, which was being copied again.", printable.Text(string(ns)))
	}
	for _, k := range r.KeptBack {
		say("Not as of that: %s, which waited for an index build: it has its operations up to %s, and none after that.", printable.Text(string(k.NS)), positionText(k.Since))
	}
	sayLog(say, r)
	if r.Untried > 0 {
		say("Not tried: %d entries of the relay log can be read, and converted; a dry run does not apply them, nor know whether the target accepts each. A promotion ends at one that it refuses, and says how to go on.", r.Untried)
	}
	sayMissing(say, r)
	switch {
	case r.Over == nil && o.deferred > 0:
		say("Deferred: %d indexes and collections have options that the target gets when the link is promoted.", o.deferred)
	case o.deferred > 0:
		say("Deferred: %d indexes and collections get the options of the source now, and are used without them meanwhile.", o.deferred)
	}
	if o.blocked {
		say("BLOCKED: the target blocks writes of users. Before applications use it, lift that there: db.adminCommand({setUserWriteBlockMode: 1, global: false}).")
	}
	if r.Over != nil {
		say("The processes of the link end by themselves, with exit code 6. If the source comes back, keep applications away from it, and run replicator rewind.")
	}
	_, err := w.Write(b)
	return err
}

// writeRestored writes the outcome for the options that were deferred, and for a cutover.
func writeRestored(w io.Writer, o *restored) error {
	var text string
	if o.deferred > 0 {
		text = fmt.Sprintf("Restored: %d options of indexes and collections.\n", o.restored)
	}
	if len(o.refused) > 0 {
		text += fmt.Sprintf("NOT UNIQUE: %s: several documents have the same key.\n", o.names())
	}
	switch {
	case o.left:
		text += "Cutover: " + cutover.StaysBlocked + ".\n"
	case o.cutover:
		text += "Cutover: the one that was under way has ended with the link.\n"
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print the restored options: %w", err)
	}
	return nil
}

// sayLog says what the relay log had.
func sayLog(say func(string, ...any), r *promote.Recovery) {
	switch {
	case r.Dir == "":
		say("Relay log: no directory is given (--spool-dir).")
	case r.Log.Last.IsNull():
		say("Relay log: there is none in %s.%s", printable.Text(r.Dir), elsewhere(r))
	default:
		say("Relay log: %s has the entries from %s to %s.", printable.Text(r.Dir), r.Log.First, r.Log.Last)
	}
	if cut := r.Log.Damage; cut != nil {
		say("Relay log: %s cannot be read from byte %d on (%s): %d bytes are lost.", printable.Text(cut.File), cut.Offset, printable.Text(cut.Why.Error()), cut.Bytes)
	}
}

// elsewhere says where a relay log may be.
func elsewhere(r *promote.Recovery) string {
	if r.Holder == "" {
		return ""
	}
	return " " + printable.Text(r.Holder) + " led last: if it had one, it is on that machine."
}

// sayMissing describes the entries known to be missing.
func sayMissing(say func(string, ...any), r *promote.Recovery) {
	heard, when := heardOf(r)
	n, counted := r.MissingAtMost()
	switch {
	case heard.IsNull():
		say("Missing: how far the source had got is not known.")
	case r.Log.Damage != nil:
		say("Missing: the entries in what cannot be read of the relay log; how many is not known. The source was heard of up to %s, at %s; what it wrote after that is not known.",
			heard, clock(when.UnixMilli()))
	case !heard.After(r.At):
		say("Missing: nothing that was heard of. The source was heard of up to %s, at %s; what it wrote after that is not known.", heard, clock(when.UnixMilli()))
	case counted:
		say("Missing: at most %d entries that were heard of, from within a second: the source was heard of up to %s, at %s; what it wrote after that is not known.",
			n, heard, clock(when.UnixMilli()))
	default:
		say("Missing: entries of up to %d s that were heard of; how many is not known. The source was heard of up to %s, at %s; what it wrote after that is not known.",
			max(1, int64(heard.TS.T)-int64(r.At.TS.T)), heard, clock(when.UnixMilli()))
	}
	for i := range r.Open {
		t := &r.Open[i]
		kind := "a transaction without a known commit"
		if t.Prepared {
			kind = "a transaction that was prepared, and may have been committed"
		}
		say("Not applied: %s, begun at %s (%s), %d operations so far on %s.", kind, t.First, clock(t.Wall), t.Ops, names(t.Namespaces))
	}
}

func heardOf(r *promote.Recovery) (oplog.OpTime, time.Time) {
	switch {
	case r.Over != nil && r.Over.Promoted != nil:
		return r.Over.Promoted.Heard, r.Over.Promoted.HeardAt
	case r.Log.Heard == nil:
		return oplog.OpTime{}, time.Time{}
	}
	return r.Log.Heard.OpTime, r.Log.Heard.At
}

func names(list []oplog.Namespace) string {
	texts := make([]string, len(list))
	for i, ns := range list {
		texts[i] = printable.Text(string(ns))
	}
	return strings.Join(texts, ", ")
}

// clock formats milliseconds since the epoch.
func clock(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000 UTC") }

// positionText is a position as text.
func positionText(p checkpoint.Position) string {
	if p.Op == checkpoint.AllOps {
		return p.OpTime.String()
	}
	return fmt.Sprintf("%s, number %d", p.OpTime, p.Op)
}

// recoveryJSON is the recovery point as JSON.
func recoveryJSON(r *promote.Recovery, o *restored) map[string]any {
	at := func(o oplog.OpTime) any {
		if o.IsNull() {
			return nil
		}
		return map[string]any{"t": o.TS.T, "i": o.TS.I, "term": o.Term}
	}
	number := func(p checkpoint.Position) any {
		if p.Op == checkpoint.AllOps {
			return nil // all of the entry
		}
		return p.Op
	}
	ahead, open, kept, refused := []any{}, []any{}, []any{}, []any{}
	for _, e := range o.refused {
		refused = append(refused, map[string]any{"namespace": e.NS, "index": e.Index})
	}
	for _, k := range r.KeptBack {
		kept = append(kept, map[string]any{"namespace": k.NS, "at": at(k.Since.OpTime), "op": number(k.Since)})
	}
	for _, a := range r.Ahead {
		ahead = append(ahead, map[string]any{"lane": a.Lane, "at": at(a.At.OpTime), "op": number(a.At), "announced": a.Announced})
	}
	for i := range r.Open {
		t := &r.Open[i]
		open = append(open, map[string]any{
			"first": at(t.First), "wall": time.UnixMilli(t.Wall).UTC(), "ops": t.Ops, "namespaces": t.Namespaces, "prepared": t.Prepared,
		})
	}
	heard, when := heardOf(r)
	out := map[string]any{
		"link": r.Link, "promoted": r.Over != nil, "at": at(r.At), "wall": time.UnixMilli(r.Wall).UTC(), "exact": r.Exact(), "ahead": ahead,
		"open": open, "heard": at(heard), "leftOut": r.LeftOut, "keptBack": kept, "untried": r.Untried, "deferred": o.deferred, "restored": o.restored, "refused": refused,
		"targetBlocked": o.blocked, "sourceLeftBlocked": o.left,
		"relayLog": map[string]any{"dir": r.Dir, "first": at(r.Log.First), "last": at(r.Log.Last), "cut": r.Log.Damage != nil},
	}
	if !heard.IsNull() {
		out["heardAt"] = when.UTC()
	}
	if n, ok := r.MissingAtMost(); ok {
		out["missingAtMost"] = n
	}
	return out
}
