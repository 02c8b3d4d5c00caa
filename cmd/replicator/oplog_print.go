package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// payloadRunes is the part of a payload that a line shows.
const payloadRunes = 160

// printer prints the selected entries.
type printer struct {
	w    io.Writer
	json bool
	want *chooser
}

// print prints an entry if it is selected, and reports whether it was. It returns
// errEnough after the last entry that can be selected.
func (p *printer) print(raw bson.Raw) (bool, error) {
	e, err := oplog.ParseEntry(raw)
	if err != nil {
		// An entry that cannot be parsed is printed as it is: it may be the one to
		// diagnose.
		return p.printUnknown(raw, err)
	}
	if p.want.over(e.OpTime.TS) {
		return false, errEnough
	}
	if !p.want.when(e.OpTime.TS) {
		return false, nil
	}
	inner, err := p.inner(&e)
	if err != nil {
		return p.printUnknown(raw, err)
	}
	if !p.want.what(&e.Op) && len(inner) == 0 {
		return false, nil
	}
	if p.json {
		return true, p.printJSON(raw)
	}
	var text strings.Builder
	text.WriteString(line(&e) + "\n")
	for i := range inner {
		fmt.Fprintf(&text, "    %s  %s  %s\n", letter(inner[i].Kind), name(&inner[i]), payload(&inner[i]))
	}
	_, err = io.WriteString(p.w, text.String())
	return true, err
}

// printUnknown prints an entry that cannot be read.
func (p *printer) printUnknown(raw bson.Raw, err error) (bool, error) {
	if p.json {
		return true, p.printJSON(raw)
	}
	_, err = fmt.Fprintf(p.w, "?  %s  %s\n", printable.Text(err.Error()), shorten(extended(raw)))
	return true, err
}

func (p *printer) printJSON(raw bson.Raw) error {
	text, err := bson.MarshalExtJSON(raw, true, false)
	if err != nil {
		return fmt.Errorf("print an entry as JSON: %w", err)
	}
	_, err = p.w.Write(append(text, '\n'))
	return err
}

// inner returns the selected operations of an applyOps.
func (p *printer) inner(e *oplog.Entry) ([]oplog.Op, error) {
	if e.Command != oplog.CommandApplyOps {
		return nil, nil
	}
	group, err := e.ApplyOps()
	if err != nil {
		return nil, err
	}
	var ops []oplog.Op
	for op, err := range group.Ops() {
		if err != nil {
			return nil, err
		}
		if p.want.what(&op) {
			ops = append(ops, op)
		}
	}
	return ops, nil
}

// line formats an entry as text.
func line(e *oplog.Entry) string {
	return fmt.Sprintf("%s  %s  %s  %s  %s", e.OpTime, e.WallTime().UTC().Format("2006-01-02T15:04:05.000Z"),
		letter(e.Kind), name(&e.Op), group(e))
}

// group returns the payload of an entry, and for an applyOps its kind.
func group(e *oplog.Entry) string {
	if e.Command != oplog.CommandApplyOps {
		return payload(&e.Op)
	}
	a, err := e.ApplyOps()
	if err != nil {
		return payload(&e.Op)
	}
	n := 0
	for range a.Ops() { //nolint:errcheck // They were read before without a fault.
		n++
	}
	text := "applyOps of " + strconv.Itoa(n)
	switch {
	case e.InTransaction() && a.PartialTxn:
		text = fmt.Sprintf("part of a transaction, %d operations", n)
	case e.InTransaction() && a.Prepare:
		text = fmt.Sprintf("transaction prepared, %d operations", n)
	case e.InTransaction():
		text = fmt.Sprintf("transaction, %d operations", n)
	}
	if s := e.Session(); s.HasPrevOpTime && !s.PrevOpTime.IsNull() {
		text += ", after " + s.PrevOpTime.String()
	}
	return text
}

func letter(k oplog.Kind) string {
	for text, kind := range kinds {
		if kind == k {
			return text
		}
	}
	return "?"
}

// name is the namespace that an operation is of.
func name(op *oplog.Op) string {
	ns := op.NS
	if op.Kind == oplog.KindCommand {
		if of, _, err := op.Target(); err == nil && of != "" {
			ns = of
		}
	}
	if ns == "" {
		return "-"
	}
	return printable.Text(string(ns))
}

// payload is the document or change of an operation, cut to fit a line.
func payload(op *oplog.Op) string {
	if op.Kind == oplog.KindUpdate {
		return shorten(extended(op.O2) + " " + extended(op.O))
	}
	return shorten(extended(op.O))
}

// extended is a document as relaxed extended JSON.
func extended(doc bson.Raw) string {
	if doc == nil {
		return "-"
	}
	text, err := bson.MarshalExtJSON(doc, false, false)
	if err != nil {
		return fmt.Sprintf("(%d bytes: %v)", len(doc), err)
	}
	return string(text)
}

func shorten(s string) string {
	s = printable.Text(s)
	n := 0
	for i := range s {
		if n++; n > payloadRunes {
			return s[:i] + "…"
		}
	}
	return s
}
